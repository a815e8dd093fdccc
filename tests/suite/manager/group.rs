use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::Relaxed;

use ringmem::Error;
use ringmem::backend::host::{Fault, Faults, HostBackend, Verb};
use ringmem::manager::{AnyBufferId, BufferConfig, BufferId};
use ringmem::memory::Device;
use ringmem::stream::Stream;

use super::cleanup::{clocked, seconds};
use super::{MIB, Manager, VERBS, backend, holding, is_empty, manager, numbers, plain, read};
use crate::rig::leak_checked::Clean;
use crate::rig::panicking_clock::{clock, has_struck, strike};

fn name(k: usize) -> String {
    format!("buffer {k}")
}

fn group(manager: &Manager, count: usize, len: usize) -> Vec<BufferId<u32>> {
    (0..count).map(|k| holding(manager, &name(k), &numbers(k as u32 * 1000, len))).collect()
}

fn all(ids: &[BufferId<u32>], len: usize) -> Vec<(AnyBufferId, usize)> {
    ids.iter().map(|&id| (id.into(), len)).collect()
}

fn assert_unchanged(manager: &Manager, backend: &HostBackend, ids: &[BufferId<u32>], len: usize) {
    for (k, &id) in ids.iter().enumerate() {
        assert_eq!(manager.lease(id).expect("nobody else").capacity(), len, "{k}");
        assert_eq!(read(manager, id), numbers(k as u32 * 1000, len), "{k}");
    }
    let bytes = (ids.len() * len * 4) as u64;
    assert_eq!((manager.budget().used(), backend.counters().device_live.bytes), (bytes, bytes));
}

#[test]
fn a_failed_45th_allocation_grows_none_of_67_buffers() {
    const BUFFERS: usize = 67;
    let backend = backend();
    let manager = manager(&backend);
    let ids = group(&manager, BUFFERS, 100);
    backend.set_faults(&Faults::new().on(Verb::Allocate, Fault::from(45)));
    assert!(matches!(manager.resize_group(all(&ids, 200)), Err(Error::OutOfMemory { requested: 800, .. })));
    assert_unchanged(&manager, &backend, &ids, 100);
    backend.set_faults(&Faults::new());
    manager.resize_group(all(&ids, 200)).expect("room");
    assert!(ids.iter().all(|&id| manager.lease(id).is_ok_and(|lease| (lease.len(), lease.capacity()) == (200, 200))));
    manager.clear();
    assert!(is_empty(&backend));
}

#[test]
fn a_full_device_leaves_buffers_unchanged() {
    let backend = Clean::build(HostBackend::builder().device_memory(MIB));
    let manager = Manager::new(Device::new(&backend, 0));
    let ids = group(&manager, 8, 16 << 10);
    assert!(matches!(manager.resize_group(all(&ids, 32 << 10)), Err(Error::OutOfMemory { .. })));
    assert_unchanged(&manager, &backend, &ids, 16 << 10);
}

#[test]
fn a_group_beyond_the_limit_allocates_nothing() {
    let backend = backend();
    let manager = Manager::with_limit(Device::new(&backend, 0), 10_000);
    let ids = group(&manager, 5, 100);
    let allocations = backend.counters().device_allocations;
    assert!(matches!(manager.resize_group(all(&ids, 401)), Err(Error::Limit { requested: 8020, used: 2000, limit: 10_000, .. })));
    assert_eq!(backend.counters().device_allocations, allocations);
    assert_unchanged(&manager, &backend, &ids, 100);
    manager.resize_group(all(&ids, 400)).expect("just enough");
    assert_eq!((manager.budget().used(), manager.budget().peak()), (8000, 10_000));
}

#[test]
fn any_failure_in_a_group_leaves_all_buffers_unchanged() {
    const BUFFERS: usize = 5;
    let mut failed = 0;
    for on_stream in [false, true] {
        for verb in VERBS {
            for when_executed in [false, true] {
                for nth in 1.. {
                    let backend = backend();
                    let manager = manager(&backend);
                    let stream = Stream::new(&backend, 0).expect("a stream");
                    let ids = group(&manager, BUFFERS, 100);
                    let before = backend.calls(verb).expect("watched");
                    let fault = if when_executed { Fault::nth(nth).when_executed() } else { Fault::nth(nth) };
                    backend.set_faults(&Faults::new().on(verb, fault));
                    let outcome =
                        if on_stream { manager.resize_group_on(all(&ids, 200), &stream) } else { manager.resize_group(all(&ids, 200)) };
                    backend.set_faults(&Faults::new());
                    if outcome.is_err() {
                        failed += 1;
                        assert_unchanged(&manager, &backend, &ids, 100);
                        manager.resize_group(all(&ids, 200)).expect("no fault is left");
                    }
                    for (k, &id) in ids.iter().enumerate() {
                        let lease = manager.lease(id).expect("nobody else");
                        assert_eq!((lease.len(), lease.capacity()), (200, 200), "{k}");
                        assert_eq!(lease.slice(..100).expect("live").to_vec().expect("a copy"), numbers(k as u32 * 1000, 100));
                    }
                    drop(manager);
                    assert_eq!(backend.counters().device_live.bytes, 0);
                    if backend.calls(verb).expect("watched") - before < nth {
                        break;
                    }
                }
            }
        }
    }
    assert!(failed >= 4 * BUFFERS, "{failed}");
}

#[test]
fn each_buffer_of_a_group_grows_by_its_own_factor() {
    let backend = backend();
    let manager = manager(&backend);
    let positions = manager.create::<[f32; 3]>("positions", 1000, BufferConfig::positions()).expect("room");
    let edges = manager.create::<[u32; 8]>("edges", 1000, BufferConfig::edges()).expect("room");
    let flags = manager.create::<u8>("flags", 1000, plain().with_bytes(5000, MIB)).expect("room");
    manager.lease_mut(flags).expect("nobody else").view_mut().fill(9).expect("a fill");
    let flags_at = manager.lease(flags).expect("nobody else").device_address();
    manager.resize_group([(positions.into(), 1001), (edges.into(), 1001), (flags.into(), 1001)]).expect("room");
    let shape = |buffer: &ringmem::manager::BufferStatistics| (buffer.name.to_string(), buffer.len, buffer.capacity, buffer.resizes);
    let shapes: Vec<_> = manager.statistics().buffers.iter().map(shape).collect();
    assert_eq!(shapes, [("edges".into(), 1001, 2000, 1), ("flags".into(), 1001, 5000, 0), ("positions".into(), 1001, 1300, 1)]);
    let flags = manager.lease(flags).expect("nobody else");
    assert_eq!((flags.device_address(), flags.slice(..1000).expect("live").to_vec().expect("a copy")), (flags_at, vec![9; 1000]));
}

#[test]
fn a_group_with_an_unavailable_buffer_changes_none() {
    let backend = backend();
    let manager = manager(&backend);
    let ids = group(&manager, 3, 100);
    let lease = manager.lease(ids[2]).expect("nobody else");
    assert!(matches!(manager.resize_group(all(&ids, 200)), Err(Error::Busy { .. })));
    drop(lease);
    assert_unchanged(&manager, &backend, &ids, 100);
    let twice = [ids[0], ids[1], ids[0]];
    assert!(matches!(manager.resize_group(all(&twice, 200)), Err(Error::Busy { .. })));
    assert_unchanged(&manager, &backend, &ids, 100);
    manager.resize_group([(ids[0].into(), 200), (ids[1].into(), 1 << 40)]).expect_err("more than it may have");
    assert_unchanged(&manager, &backend, &ids, 100);
    manager.free(ids[1]).expect("nobody has it");
    assert!(matches!(manager.resize_group(all(&ids, 200)), Err(Error::Id(_))));
    assert_eq!(read(&manager, ids[0]), numbers(0, 100));
    manager.resize_group([]).expect("nothing to do");
}

#[test]
fn a_group_on_a_stream_is_copied_without_synchronizing() {
    let backend = backend();
    let manager = manager(&backend);
    let stream = Stream::new(&backend, 0).expect("a stream");
    let ids = group(&manager, 10, 100);
    let before = backend.counters();
    manager.resize_group_on(all(&ids, 200), &stream).expect("room");
    let after = backend.counters();
    assert_eq!(
        (after.device_copies.count - before.device_copies.count, after.device_copies.bytes - before.device_copies.bytes),
        (10, 4000)
    );
    assert_eq!((after.uploads, after.downloads), (before.uploads, before.downloads));
    assert_eq!(after.synchronizations, before.synchronizations);
}

#[test]
fn a_panicking_group_grows_all_buffers_or_none() {
    let mut grown = 0;
    for number in 1.. {
        let backend = Clean::build(HostBackend::builder().device_memory(MIB).log(true).clock(clock()));
        let (manager, now) = clocked(&backend);
        let ids = group(&manager, 3, 100);
        now.store(seconds(60), Relaxed);
        strike(number);
        let resized = catch_unwind(AssertUnwindSafe(|| manager.resize_group(all(&ids, 200))));
        let has_struck = has_struck();
        assert_eq!(resized.is_err(), has_struck);
        now.store(seconds(61), Relaxed);
        let lengths: Vec<_> =
            manager.statistics().buffers.iter().map(|buffer| (buffer.len, buffer.capacity, buffer.idle.as_secs())).collect();
        let (all_grown, none) = ([(200, 200, u64::from(!has_struck)); 3], [(100, 100, 0); 3]);
        assert!(lengths == all_grown || (has_struck && lengths == none), "call {number}: {lengths:?}");
        if !has_struck {
            break;
        }
        grown += usize::from(lengths == all_grown);
        for (k, &id) in ids.iter().enumerate() {
            assert_eq!(read(&manager, id)[..100], numbers(k as u32 * 1000, 100));
        }
        assert_eq!(manager.clear(), 3);
        assert_eq!((manager.budget().used(), backend.counters().device_live.bytes), (0, 0), "call {number}");
    }
    assert!(grown >= 3, "{grown}: once for each old block");
}
