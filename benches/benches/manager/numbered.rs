use std::collections::HashMap;
use std::hint::black_box;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::AcqRel;
use std::sync::{Arc, RwLock};

use ringmem::backend::host::HostBackend;
use ringmem::manager::{BufferId, MemoryManager};
use ringmem::memory::{Buffer, Device, GpuBuffer, Pinned};
use ringmem_benches::{Workload, job, team};

const COUNT: usize = 1000;
const MIB: usize = 1 << 20;

fn backend() -> Arc<HostBackend> {
    HostBackend::builder().device_memory(16 << 20).build().expect("a backend")
}

fn registered() -> (MemoryManager<Device>, Vec<BufferId<u64>>) {
    let backend = backend();
    let manager = MemoryManager::new(Device::new(&backend, 0));
    let ids = (0..COUNT).map(|_| manager.register(GpuBuffer::new(Device::new(&backend, 0), 8).expect("room")).expect("room")).collect();
    (manager, ids)
}

fn looks(times: u64, look: impl Fn(usize) + Send + Sync) -> f64 {
    team(times, vec![(Some(0), job(|| (0..times).for_each(|number| look(black_box(number as usize % COUNT)))))])
}

fn lease(times: u64) -> f64 {
    let (manager, ids) = registered();
    looks(times, |number| drop(black_box(manager.lease(ids[number]).expect("live"))))
}

fn contains(times: u64) -> f64 {
    let (manager, ids) = registered();
    looks(times, |number| assert!(manager.contains(ids[number])))
}

pub fn two_additions(times: u64) -> f64 {
    let words: Vec<AtomicU64> = (0..COUNT).map(|_| AtomicU64::new(0)).collect();
    looks(times, |number| {
        words[number].fetch_add(1, AcqRel);
        words[number].fetch_sub(1, AcqRel);
    })
}

fn locked_map(times: u64) -> f64 {
    let backend = backend();
    let buffers = (0..COUNT).map(|number| {
        let buffer: Buffer<u64, _> = GpuBuffer::new(Device::new(&backend, 0), 8).expect("room");
        (number, Arc::new(buffer))
    });
    let map: RwLock<HashMap<usize, Arc<Buffer<u64, _>>>> = RwLock::new(buffers.collect());
    looks(times, |number| {
        let found = map.read().expect("no panic").get(&number).cloned();
        assert!(black_box(found).is_some());
    })
}

fn by_reference(times: u64) -> f64 {
    let memory = Pinned::new(&backend(), 0);
    let manager = MemoryManager::new(memory.clone());
    let mut buffer = Some(Buffer::<u8, _>::new(memory, MIB).expect("room"));
    let mut round = || {
        let id = manager.register(buffer.take().expect("taken back")).expect("room");
        let message = black_box(manager.reference(id, ..).expect("live"));
        let (lease, part) = manager.resolve::<u8>(&message).expect("live");
        assert_eq!(lease.slice(part).expect("within").len(), MIB);
        drop(lease);
        buffer = Some(manager.take(id).expect("not leased"));
    };
    team(times, vec![(Some(0), job(|| (0..times).for_each(|_| round())))])
}

fn encoded(times: u64) -> f64 {
    let buffer = Buffer::<u8, _>::new(Pinned::new(&backend(), 0), MIB).expect("room");
    let bytes = buffer.as_slice().expect("idle");
    let mut message = Vec::with_capacity(MIB + 8);
    let mut round = || {
        message.clear();
        message.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
        message.extend_from_slice(black_box(bytes));
        assert_eq!(black_box(&message).len(), MIB + 8);
    };
    team(times, vec![(Some(0), job(|| (0..times).for_each(|_| round())))])
}

pub fn workloads() -> Vec<Workload> {
    let looks: Vec<ringmem_benches::Subject> =
        vec![("ringmem lease", lease), ("ringmem contains", contains), ("RwLock<HashMap<_, Arc>>", locked_map)];
    vec![
        Workload { unit: "ns/look", aim_ns: Some(5.0), limit: Some(two_additions), ..Workload::one("lookup-id", 1.0, looks) },
        Workload {
            unit: "ns/message",
            ..Workload::one("reference-1m", 0.01, vec![("ringmem MemoryManager", by_reference), ("encoded bytes", encoded)])
        },
    ]
}
