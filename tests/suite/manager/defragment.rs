use std::sync::Arc;

use ringmem::Error;
use ringmem::backend::host::{Fault, Faults, HostBackend, Verb};
use ringmem::manager::{BufferId, MemoryManager};
use ringmem::memory::{Arena, Device};
use ringmem::pool::Pool;
use ringmem::stream::Stream;

use super::{MIB, backend, numbers, plain};
use crate::rig::busy_stream::Held;

type DevicePool = Pool<Device>;
type Pooled = MemoryManager<DevicePool>;
type Numbered = Vec<(u32, BufferId<u32>)>;

const ELEMENTS: usize = MIB as usize / 4;

fn fragmented(backend: &Arc<HostBackend>) -> (DevicePool, Pooled, Numbered) {
    let pool = Pool::builder(Device::new(backend, 0)).slab(16 * MIB).limit(16 * MIB).build().expect("a pool");
    let manager = MemoryManager::new(pool.clone());
    let all = (0..16).map(|number| {
        let id = manager.create::<u32>(&format!("buffer {number}"), ELEMENTS, plain()).expect("room");
        manager.lease_mut(id).expect("nobody else").view_mut().copy_from(&numbers(number << 20, ELEMENTS)).expect("a copy");
        (number, id)
    });
    let (left, gone): (Numbered, Numbered) = all.collect::<Numbered>().into_iter().partition(|(number, _)| number % 2 == 1);
    gone.into_iter().for_each(|(_, id)| assert_eq!(manager.free(id).expect("live"), 0));
    (pool, manager, left)
}

fn are_intact(manager: &Pooled, buffers: &[(u32, BufferId<u32>)]) -> bool {
    buffers.iter().all(|&(number, id)| manager.lease(id).expect("live").to_vec().expect("a copy") == numbers(number << 20, ELEMENTS))
}

#[test]
fn defragment_makes_room_for_a_large_buffer() {
    let backend = backend();
    let (pool, manager, left) = fragmented(&backend);
    let create = || manager.create::<u8>("large", 2 << 20, plain());
    for _ in 0..2 {
        assert!(matches!(create(), Err(Error::OutOfMemory { .. })));
        assert!(!manager.can_allocate(2 * MIB), "`create` would fail too");
        pool.trim_to(0);
    }
    let before = manager.statistics();
    let done = manager.defragment().expect("no failure");
    assert_eq!((done.moved, done.copied_bytes, done.kept), (4, 4 * MIB, 0));
    assert_eq!((manager.statistics().used_bytes, manager.statistics().resizes), (before.used_bytes, before.resizes));
    assert!(are_intact(&manager, &left));
    assert!(manager.can_allocate(8 * MIB) && !manager.can_allocate(8 * MIB + 1));
    let id = create().expect("it fits now");
    assert_eq!(manager.free(id).expect("live"), 0);
    assert_eq!(manager.defragment().expect("no failure").moved, 0, "nothing is left to do");
    assert_eq!(manager.clear(), 8);
    assert_eq!(pool.statistics().live, 0);
    pool.trim_to(0);
    assert!(super::is_empty(&backend));
}

#[test]
fn defragment_keeps_leased_and_used_buffers_in_place() {
    let backend = backend();
    let (_, manager, left) = fragmented(&backend);
    let stream = Stream::new(&backend, 0).expect("a stream");
    let place = |id| manager.lease(id).expect("not written").device_address();
    let (read, queued) = (left[7].1, left[6].1);
    let lease = manager.lease(read).expect("live");
    let held = Held::new(&backend, &stream);
    manager.lease_mut(queued).expect("nobody else").used_by(&stream).expect("a live stream");
    let before = [place(read), place(queued)];
    assert_eq!(manager.defragment().expect("no failure").kept, 2);
    assert_eq!([place(read), place(queued)], before);
    drop(lease);
    held.let_go();
    stream.synchronize().expect("it ends");
    assert_eq!(manager.defragment().expect("no failure").kept, 0);
    assert!(are_intact(&manager, &left) && manager.can_allocate(8 * MIB));
}

#[test]
fn defragment_keeps_small_buffers_apart_from_large_ones() {
    let backend = HostBackend::builder().device_memory(64 * MIB).mapping_granularity(Some(MIB)).build().expect("a backend");
    let pool = Pool::builder(Device::new(&backend, 0)).exact(true).build().expect("a pool");
    let manager = MemoryManager::new(pool);
    let [hole, _large, first, last] = [("hole", 2 * MIB), ("large", 3 * MIB), ("first", 100), ("last", 100)]
        .map(|(name, bytes)| manager.create::<u8>(name, bytes as usize, plain()).expect("room"));
    let place = |id| manager.lease(id).expect("not written").device_address();
    let at = place(first);
    assert_eq!((manager.free(hole).expect("live"), manager.free(first).expect("live")), (0, 0));
    assert_eq!(manager.defragment().expect("no failure").moved, 1);
    assert_eq!(place(last), at, "not to the hole that the large buffer left");
}

#[test]
fn a_failed_defragment_keeps_buffers_and_budget() {
    let backend = backend();
    let (_, manager, left) = fragmented(&backend);
    backend.set_faults(&Faults::new().on(Verb::Copy, Fault::nth(2)));
    assert!(matches!(manager.defragment(), Err(Error::Injected { .. })));
    backend.set_faults(&Faults::new());
    assert!(are_intact(&manager, &left));
    assert_eq!(manager.statistics().used_bytes, 8 * MIB);
    assert_eq!(manager.defragment().expect("no failure").moved, 3);
    assert!(are_intact(&manager, &left));
}

#[test]
fn a_moved_buffer_can_be_resized_and_freed() {
    let backend = backend();
    let (pool, manager, left) = fragmented(&backend);
    manager.defragment().expect("no failure");
    let (number, id) = left[7];
    manager.lease_mut(id).expect("nobody else").resize(2 * ELEMENTS).expect("room in one piece");
    assert_eq!(
        manager.lease(id).expect("live").slice(..ELEMENTS).expect("live").to_vec().expect("a copy"),
        numbers(number << 20, ELEMENTS)
    );
    assert_eq!(manager.clear(), 8);
    assert_eq!((manager.statistics().used_bytes, pool.statistics().held_bytes), (0, 0));
}

#[test]
fn can_allocate_agrees_with_create() {
    let backend = backend();
    let arena = Arena::new(Device::new(&backend, 0), 700, 64).expect("room");
    let manager = MemoryManager::with_limit(arena, 900);
    let kept = manager.create::<u64>("kept", 50, plain()).expect("room");
    for bytes in [0, 1, 8, 299, 300, 301, 500, 501, 1000, usize::MAX] {
        let can = manager.can_allocate(bytes as u64);
        let created = manager.create::<u8>("probe", bytes, plain().with_bytes(0, u64::MAX));
        assert_eq!(can, created.is_ok(), "{bytes}: {created:?}");
        if let Ok(id) = created {
            manager.free(id).expect("live");
        }
    }
    manager.free(kept).expect("live");
    assert!(manager.can_allocate(700) && !manager.can_allocate(701));
    assert_eq!(manager.statistics().used_bytes, 0);
}
