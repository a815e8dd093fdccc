use std::collections::HashMap;
use std::hint::black_box;
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

use ringmem::backend::host::HostBackend;
use ringmem::manager::{BufferConfig, BufferId, Growth, MemoryManager};
use ringmem::memory::{Buffer, Device, Memory};
use ringmem::pool::Pool;
use ringmem_benches::{Workload, job, team};

use crate::numbered::two_additions;

const COUNT: usize = 64;
const LIVE: usize = 1 << 20;

type Managed = MemoryManager<Device>;

type Locked = HashMap<String, Arc<Buffer<u32, Device>>>;

fn device() -> Device {
    Device::new(&HostBackend::builder().device_memory(256 << 20).build().expect("a backend"), 0)
}

fn name(number: usize) -> String {
    format!("positions {number:02}")
}

fn config() -> BufferConfig {
    BufferConfig::new().with_bytes(0, 64 << 20).with_growth(Growth::new(3, 2))
}

fn managed() -> (Managed, Vec<BufferId<u32>>) {
    let manager = MemoryManager::new(device());
    let ids = (0..COUNT).map(|number| manager.create(&name(number), 8, config()).expect("room")).collect();
    (manager, ids)
}

fn looks(times: u64, look: impl Fn(usize) + Send + Sync) -> f64 {
    team(times, vec![(Some(0), job(|| (0..times).for_each(|number| look(black_box(number as usize % COUNT)))))])
}

fn lease(times: u64) -> f64 {
    let (manager, ids) = managed();
    looks(times, |number| drop(black_box(manager.lease(ids[number]).expect("live"))))
}

fn contains(times: u64) -> f64 {
    let (manager, ids) = managed();
    looks(times, |number| assert!(manager.contains(ids[number])))
}

fn by_name(times: u64) -> f64 {
    let (manager, ids) = managed();
    let names: Vec<String> = (0..COUNT).map(name).collect();
    looks(times, |number| assert!(manager.find::<u32>(&names[number]).expect("live") == ids[number]))
}

fn locked_map(times: u64) -> f64 {
    let names: Vec<String> = (0..COUNT).map(name).collect();
    let buffers = names.iter().map(|name| (name.clone(), Arc::new(Buffer::<u32, _>::new(device(), 8).expect("room"))));
    let map: RwLock<Locked> = RwLock::new(buffers.collect());
    looks(times, |number| {
        let found = map.read().expect("no panic").get(&names[number]).cloned();
        assert!(black_box(found).is_some());
    })
}

fn rounds(times: u64, mut round: impl FnMut() -> Duration + Send) -> f64 {
    let mut took = Duration::ZERO;
    let work = job(|| (0..times).for_each(|_| took += round()));
    team(times, vec![(Some(0), work)]);
    took.as_nanos() as f64 / times as f64
}

fn resize(times: u64, memory: impl Memory + Clone) -> f64 {
    let manager = MemoryManager::new(memory);
    rounds(times, || {
        let id = manager.create::<u8>("a", LIVE, config()).expect("room");
        let mut lease = manager.lease_mut(id).expect("nobody else");
        let begun = Instant::now();
        lease.resize(LIVE + 1).expect("room");
        let took = begun.elapsed();
        assert_eq!((lease.len(), lease.capacity()), (LIVE + 1, LIVE / 2 * 3));
        drop(lease);
        manager.free(id).expect("nobody has it");
        took
    })
}

fn bare(times: u64, frees: bool, memory: impl Memory + Clone) -> f64 {
    rounds(times, || {
        let old = Buffer::<u8, _>::new(memory.clone(), LIVE).expect("room");
        let begun = Instant::now();
        let mut new = Buffer::<u8, _>::new(memory.clone(), LIVE / 2 * 3).expect("room");
        new.slice_mut(..LIVE).and_then(|mut live| live.copy_from_view(old.as_view())).expect("as long");
        let old = (!frees).then_some(old);
        let took = begun.elapsed();
        drop((old, new));
        took
    })
}

fn pool() -> Pool<Device> {
    Pool::builder(device()).limit(128 << 20).build().expect("a pool")
}

fn resize_pooled(times: u64) -> f64 {
    resize(times, pool())
}

fn bare_pooled(times: u64) -> f64 {
    bare(times, false, pool())
}

fn resize_direct(times: u64) -> f64 {
    resize(times, device())
}

fn bare_direct(times: u64) -> f64 {
    bare(times, true, device())
}

fn pushes(times: u64) -> f64 {
    let manager = MemoryManager::new(device());
    let id = manager.create::<u32>("a", 0, config()).expect("room");
    let push = |number: u64| manager.lease_mut(id).expect("nobody else").push(number as u32).expect("room");
    team(times, vec![(Some(0), job(|| (0..times).for_each(|number| push(number % (8 << 20)))))])
}

fn appended(times: u64) -> f64 {
    let manager = MemoryManager::new(device());
    let id = manager.create::<u32>("a", 0, config()).expect("room");
    let append = || manager.lease_mut(id).expect("nobody else").extend((0..times).map(|number| black_box(number as u32))).expect("room");
    let took = team(times, vec![(Some(0), job(append))]);
    assert_eq!(manager.lease(id).expect("nobody else").len() as u64, times);
    took
}

fn of_a_vec(times: u64) -> f64 {
    let mut vec = Vec::new();
    let took = team(times, vec![(Some(0), job(|| (0..times).for_each(|number| vec.push(black_box(number as u32)))))]);
    assert_eq!(vec.len() as u64, times);
    took
}

const SLICE: usize = 4096;
const SLICES: usize = 1024;

fn slices(work: impl FnOnce(&[u32]) + Send) -> f64 {
    let slice: Vec<u32> = (0..SLICE as u32).collect();
    team((SLICE * SLICES) as u64, vec![(Some(0), job(move || work(black_box(&slice))))])
}

fn extended(_: u64) -> f64 {
    let manager = MemoryManager::new(device());
    let id = manager.create::<u32>("a", 0, config()).expect("room");
    slices(|slice| {
        let mut lease = manager.lease_mut(id).expect("nobody else");
        (0..SLICES).for_each(|_| lease.extend_from_slice(slice).expect("room"));
    })
}

fn copied_vec(_: u64) -> f64 {
    let memory = device();
    slices(|slice| {
        let mut vec = Vec::new();
        (0..SLICES).for_each(|_| vec.extend_from_slice(slice));
        drop(Buffer::from_slice(memory, &vec).expect("room"));
    })
}

const MANY: u64 = 1_000_000;

fn bytes_of_pushes(_: u64) -> f64 {
    let backend = HostBackend::builder().device_memory(64 << 20).build().expect("a backend");
    let manager = MemoryManager::new(Device::new(&backend, 0));
    let id = manager.create::<u32>("a", 0, config()).expect("room");
    let mut lease = manager.lease_mut(id).expect("nobody else");
    (0..MANY as u32).for_each(|number| lease.push(number).expect("room"));
    let counters = backend.counters();
    (counters.device_copies.bytes + counters.uploads.bytes) as f64 / MANY as f64
}

fn bytes_of_a_vec(_: u64) -> f64 {
    let (mut vec, mut moved) = (Vec::new(), 0);
    for number in 0..MANY as u32 {
        if vec.len() == vec.capacity() {
            moved += size_of_val(&*vec);
        }
        vec.push(number);
    }
    (moved + size_of_val(&*vec)) as f64 / MANY as f64
}

pub fn workloads() -> Vec<Workload> {
    let by_id: Vec<ringmem_benches::Subject> =
        vec![("ringmem lease", lease), ("ringmem contains", contains), ("RwLock<HashMap<_, Arc>>", locked_map)];
    let names: Vec<ringmem_benches::Subject> = vec![("ringmem find", by_name), ("RwLock<HashMap<_, Arc>>", locked_map)];
    let pooled: Vec<ringmem_benches::Subject> = vec![("ringmem resize", resize_pooled), ("allocate and copy", bare_pooled)];
    let direct: Vec<ringmem_benches::Subject> = vec![("ringmem resize", resize_direct), ("allocate, copy, free", bare_direct)];
    let push: Vec<ringmem_benches::Subject> = vec![("ringmem push", pushes), ("ringmem extend", appended), ("Vec::push", of_a_vec)];
    let extend: Vec<ringmem_benches::Subject> = vec![("ringmem extend_from_slice", extended), ("Vec and one copy", copied_vec)];
    let bytes: Vec<ringmem_benches::Subject> = vec![("ringmem push", bytes_of_pushes), ("Vec::push", bytes_of_a_vec)];
    vec![
        Workload { unit: "ns/look", aim_ns: Some(5.0), limit: Some(two_additions), ..Workload::one("managed-id", 1.0, by_id) },
        Workload { unit: "ns/look", aim_ns: Some(40.0), ..Workload::one("managed-name", 1.0, names) },
        Workload { unit: "ns/resize", ..Workload::one("resize-pooled", 1.25, pooled) },
        Workload { unit: "ns/resize", ..Workload::one("resize-direct", 1.25, direct) },
        Workload { unit: "ns/element", ..Workload::one("push", 1.0, push) },
        Workload { unit: "ns/element", ..Workload::one("extend", 1.0, extend) },
        Workload { unit: "bytes/element", ..Workload::one("push-bytes", 2.5, bytes) },
    ]
}
