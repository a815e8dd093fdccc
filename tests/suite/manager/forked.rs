use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use ringmem::Error;
use ringmem::backend::{Backend, Uses};
use ringmem::manager::Statistics;
use ringmem::memory::Buffer;
use ringmem::stream::Stream;

use crate::rig::busy_stream::Held;
use crate::rig::in_fork::fork;

use super::*;

#[test]
fn manager_calls_fail_in_a_fork_without_blocking() {
    let backend = backend();
    let manager = manager(&backend);
    let id = holding(&manager, "numbers", &[1, 2, 3]);
    let mut reserved = manager.reserve(KIB).expect("room");
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Relaxed) {
                let other = manager.create::<u32>("other", 10, plain()).expect("room");
                let _ = manager.statistics();
                manager.free(other).expect("ours");
            }
        });
        let is_refused = |result: Result<(), Error>| matches!(result, Err(Error::Unsupported { .. }));
        let outcomes: Vec<bool> = (0..20)
            .map(|_| {
                fork(|| {
                    [
                        is_refused(manager.find::<u32>("numbers").map(drop)),
                        is_refused(manager.create::<u32>("more", 10, plain()).map(drop)),
                        is_refused(manager.create_in::<u32>(&mut reserved, "more", 10, plain()).map(drop)),
                        is_refused(manager.get_or_create::<u32>("numbers", 3, plain()).map(drop)),
                        is_refused(manager.lease(id).map(drop)),
                        is_refused(manager.lease_mut(id).map(drop)),
                        is_refused(manager.resize_group([(id.into(), 5)])),
                        is_refused(manager.free(id).map(drop)),
                        is_refused(manager.reserve(1).map(drop)),
                        !manager.contains(id),
                        !manager.can_allocate(1),
                        manager.clear() == 0,
                        manager.cleanup(Duration::ZERO, |_| true).is_empty(),
                        manager.statistics() == Statistics::default(),
                    ]
                    .into_iter()
                    .all(|is_so| is_so)
                })
            })
            .collect();
        stop.store(true, Relaxed);
        assert!(outcomes.into_iter().all(|is_so| is_so), "in a fork it does something, or waits");
    });
    assert_eq!(manager.lease(id).expect("here it is").to_vec().expect("a copy"), [1, 2, 3]);
}

struct Tells(&'static AtomicBool);

impl Drop for Tells {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

#[test]
fn dropping_a_manager_in_a_fork_frees_nothing() {
    static IS_DROPPED: AtomicBool = AtomicBool::new(false);
    let backend = backend();
    let stream = Stream::new(&backend, 0).expect("a stream");
    let manager = manager(&backend);
    let held = Held::new(&backend, &stream);
    holding(&manager, "idle", &[1, 2, 3]);
    let used = holding(&manager, "used", &[4, 5, 6]);
    manager.lease_mut(used).expect("nobody else").used_by(&stream).expect("its backend's");
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Relaxed) {
                drop(Buffer::<u8, _>::new(Device::new(&backend, 0), 1000).expect("room"));
                backend.keep(Box::new(()), &Uses::NONE, None);
            }
        });
        let outcomes: Vec<bool> = (0..20)
            .map(|_| {
                fork(|| {
                    let before = backend.counters().device_frees;
                    // SAFETY: the child exits without another drop.
                    drop(unsafe { std::ptr::read(&raw const manager) });
                    backend.keep(Box::new(Tells(&IS_DROPPED)), &Uses::NONE, None);
                    backend.counters().device_frees == before && !IS_DROPPED.load(Relaxed)
                })
            })
            .collect();
        stop.store(true, Relaxed);
        assert!(outcomes.into_iter().all(|is_so| is_so), "in a fork it frees, or waits");
    });
    held.let_go();
    stream.synchronize().expect("nothing failed");
    assert_eq!((read(&manager, used), manager.statistics().buffers.len()), (vec![4, 5, 6], 2));
    drop(manager);
    assert!(is_empty(&backend));
}

#[test]
fn a_lease_changes_nothing_in_a_fork() {
    let backend = backend();
    let manager = manager(&backend);
    let id = manager.create::<u32>("numbers", 3, plain().with_bytes(400, MIB)).expect("room");
    let mut lease = manager.lease_mut(id).expect("nobody else");
    lease.view_mut().copy_from(&[1, 2, 3]).expect("a copy");
    let stream = Stream::new(&backend, 0).expect("a stream");
    let is_refused = |result: Result<(), Error>| matches!(result, Err(Error::Unsupported { .. }));
    let is_as_it_should_be = fork(|| {
        [
            is_refused(lease.resize(2)),
            is_refused(lease.resize(1000)),
            is_refused(lease.resize_on(1000, &stream)),
            is_refused(lease.ensure_capacity(1000)),
            is_refused(lease.ensure_capacity_on(1000, &stream)),
            is_refused(lease.shrink_to_fit().map(drop)),
            is_refused(lease.push(4)),
            is_refused(lease.extend_from_slice(&[4])),
            is_refused(lease.extend([4])),
            (lease.len(), lease.capacity()) == (3, 100),
        ]
        .into_iter()
        .all(|is_so| is_so)
    });
    assert!(is_as_it_should_be, "in a fork it does something, or waits");
    lease.push(4).expect("here it is");
    assert_eq!(lease.to_vec().expect("a copy"), [1, 2, 3, 4]);
}
