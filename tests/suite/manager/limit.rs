use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Barrier;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;

use ringmem::Error;
use ringmem::backend::host::HostBackend;
use ringmem::manager::MemoryManager;
use ringmem::memory::{Budget, Device, Statistics};

use super::{Manager, backend, holding, is_empty, manager, numbers, plain};
use crate::rig::leak_checked::Clean;
use crate::rig::panicking_clock::{clock, has_struck, strike};

#[test]
fn reserved_bytes_are_unavailable_to_others() {
    let manager = Manager::with_limit(Device::new(&backend(), 0), 1000);
    assert!(manager.can_allocate(1000) && !manager.can_allocate(1001));
    let elsewhere = manager.reserve(700).expect("room");
    assert!(!manager.can_allocate(301) && manager.can_allocate(300));
    assert!(matches!(manager.create::<u8>("a", 301, plain()), Err(Error::Limit { requested: 301, used: 700, limit: 1000, .. })));
    let id = manager.create::<u8>("a", 300, plain()).expect("just enough");
    assert!(matches!(manager.reserve(1), Err(Error::Limit { requested: 1, used: 1000, limit: 1000, .. })));
    drop(elsewhere);
    manager.lease_mut(id).expect("nobody else").resize(700).expect("just enough");
    assert_eq!((manager.budget().used(), manager.budget().peak()), (700, 1000));
}

#[test]
fn create_in_uses_reserved_bytes() {
    let backend = backend();
    let manager = Manager::with_limit(Device::new(&backend, 0), 1000);
    let mut reserved = manager.reserve(1000).expect("room");
    assert!(matches!(manager.create::<u8>("a", 1, plain()), Err(Error::Limit { .. })));
    let id = manager.create_in::<u8>(&mut reserved, "a", 600, plain()).expect("reserved");
    assert_eq!((reserved.bytes(), manager.budget().used()), (400, 1000));
    assert!(matches!(manager.create_in::<u8>(&mut reserved, "b", 401, plain()), Err(Error::Size { asked: 401, most: 400, .. })));
    assert!(matches!(manager.create_in::<u8>(&mut reserved, "a", 1, plain()), Err(Error::AlreadyExists { .. })));
    backend.set_faults(
        &ringmem::backend::host::Faults::new().on(ringmem::backend::host::Verb::Allocate, ringmem::backend::host::Fault::nth(1)),
    );
    assert!(matches!(manager.create_in::<u8>(&mut reserved, "b", 400, plain()), Err(Error::OutOfMemory { .. })));
    assert_eq!(reserved.bytes(), 400, "as it was");
    manager.free(id).expect("nobody has it");
    assert_eq!(manager.budget().used(), 400);
    let mut foreign = Budget::new(1000).reserve(500).expect("room");
    assert!(matches!(manager.create_in::<u8>(&mut foreign, "b", 400, plain()), Err(Error::Unsupported { .. })));
    assert_eq!(foreign.bytes(), 500);
}

#[test]
fn split_divides_a_reservation() {
    let budget = Budget::new(100);
    let mut whole = budget.reserve(60).expect("room");
    let part = whole.split(60).expect("all of it");
    assert!(matches!(whole.split(1), Err(Error::Size { asked: 1, least: 0, most: 0, .. })));
    assert_eq!((whole.bytes(), part.bytes(), budget.used()), (0, 60, 60));
    assert!(matches!(budget.reserve(u64::MAX), Err(Error::Limit { requested: u64::MAX, used: 60, limit: 100, .. })));
    drop(whole);
    assert_eq!(budget.used(), 60);
    drop(part);
    assert_eq!((budget.used(), budget.peak()), (0, 60));
}

#[test]
fn eight_threads_never_exceed_the_limit() {
    const LIMIT: u64 = 100_000;
    const ROUNDS: u32 = 400;
    let backend = backend();
    let counted = Statistics::new(Device::new(&backend, 0));
    let manager = MemoryManager::with_limit(counted.clone(), LIMIT);
    let (over, begin, met) = (AtomicBool::new(false), Barrier::new(9), Barrier::new(8));
    let refused: u32 = thread::scope(|scope| {
        let threads: Vec<_> = (0..8_u32)
            .map(|thread| {
                let (manager, begin, met) = (&manager, &begin, &met);
                scope.spawn(move || {
                    let mut refused = 0;
                    let first = manager.create::<u32>(&format!("first {thread}"), 1000, plain()).expect("room");
                    begin.wait();
                    match manager.lease_mut(first).expect("its own").resize(4000) {
                        Ok(()) => {}
                        Err(Error::Limit { .. }) => refused += 1,
                        Err(other) => panic!("{other}"),
                    }
                    met.wait();
                    manager.free(first).expect("its own");
                    for round in 0..ROUNDS {
                        let (name, len) = (format!("{thread}"), ((thread * 977 + round * 331) % 3000) as usize);
                        let Ok(id) = manager.create::<u32>(&name, len, plain()) else {
                            refused += 1;
                            continue;
                        };
                        let mut lease = manager.lease_mut(id).expect("its own");
                        lease.view_mut().fill(round).expect("a fill");
                        match lease.resize(len * 2 + 1) {
                            Ok(()) => assert_eq!((lease.len(), lease.capacity()), (len * 2 + 1, lease.capacity())),
                            Err(Error::Limit { .. }) => {
                                refused += 1;
                                assert_eq!((lease.len(), lease.capacity()), (len, len));
                            }
                            Err(other) => panic!("{other}"),
                        }
                        assert_eq!(lease.slice(..len).expect("live").to_vec().expect("a copy"), vec![round; len]);
                        lease.resize(len / 2).expect("it is there");
                        let _ = lease.shrink_to_fit();
                        drop(lease);
                        manager.free(id).expect("its own");
                    }
                    refused
                })
            })
            .collect();
        let watcher = scope.spawn(|| {
            begin.wait();
            loop {
                let (used, live) = (manager.budget().used(), counted.scope().bytes.live as u64);
                assert!(used <= LIMIT && live <= LIMIT, "{used} and {live} of {LIMIT}");
                if over.load(Relaxed) {
                    break;
                }
                thread::yield_now();
            }
        });
        let refused = threads.into_iter().map(|thread| thread.join().expect("no panic")).sum();
        over.store(true, Relaxed);
        watcher.join().expect("never above the limit");
        refused
    });
    let peak = counted.scope().bytes.peak as u64;
    assert!(peak <= manager.budget().peak() && manager.budget().peak() <= LIMIT, "{peak}");
    assert!(refused > 0 && manager.budget().peak() > LIMIT - 16_000, "{refused} were refused at {peak}");
    assert_eq!((manager.budget().used(), counted.scope().bytes.live), (0, 0));
    assert!(is_empty(&backend));
}

#[test]
fn a_failed_allocation_is_not_counted() {
    let backend = backend();
    let manager = manager(&backend);
    let id = holding(&manager, "a", &numbers(0, 10));
    backend.set_faults(
        &ringmem::backend::host::Faults::new().on(ringmem::backend::host::Verb::Allocate, ringmem::backend::host::Fault::from(1)),
    );
    assert!(matches!(manager.create::<u32>("b", 10, plain()), Err(Error::OutOfMemory { .. })));
    assert!(matches!(manager.lease_mut(id).expect("nobody else").push(1), Err(Error::OutOfMemory { .. })));
    assert_eq!((manager.budget().used(), manager.statistics().buffers.len()), (40, 1));
    backend.set_faults(&ringmem::backend::host::Faults::new());
    manager.create::<u32>("b", 10, plain()).expect("the name is free");
}

#[test]
fn a_panicking_creation_keeps_its_reservation() {
    let own = clock();
    let panicked = (1..).find(|&number| {
        let backend = Clean::build(HostBackend::builder().log(true).clock(clock()));
        let now = own.clone();
        let manager = Manager::builder(Device::new(&backend, 0)).limit(1000).clock(move || now()).build();
        let mut reserved = manager.reserve(1000).expect("room");
        strike(number);
        let created = catch_unwind(AssertUnwindSafe(|| manager.create_in::<u8>(&mut reserved, "a", 600, plain()).map(drop)));
        let has_struck = has_struck();
        assert_eq!(created.is_err(), has_struck);
        let bytes = if has_struck { 1000 } else { 400 };
        assert_eq!((reserved.bytes(), manager.budget().used()), (bytes, 1000), "call {number}");
        if has_struck {
            manager.create_in::<u8>(&mut reserved, "a", 1000, plain()).expect("all of it");
        }
        manager.clear();
        !has_struck
    });
    assert!(panicked > Some(2), "the allocation and the creation");
}
