use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;

use ringmem::error::OperationFault;

use ringmem::Error;
use ringmem::backend::host::{Fault, Faults, HostBackend, Phase, Verb};
use ringmem::memory::Device;
use ringmem::stream::Stream;

use super::{MIB, Manager, VERBS, backend, holding, is_empty, manager, numbers, plain, read};
use crate::rig::leak_checked::Clean;

#[test]
fn a_resize_copies_live_elements_on_the_device() {
    let backend = backend();
    let manager = manager(&backend);
    for on in [None, Some(Stream::new(&backend, 0).expect("a stream"))] {
        let id = holding(&manager, "a", &numbers(0, 1000));
        manager.lease_mut(id).expect("nobody else").resize(300).expect("it is there");
        let before = backend.counters();
        let mut lease = manager.lease_mut(id).expect("nobody else");
        match &on {
            None => lease.ensure_capacity(5000),
            Some(stream) => lease.ensure_capacity_on(5000, stream),
        }
        .expect("room");
        assert_eq!((lease.len(), lease.capacity()), (300, 5000));
        drop(lease);
        let after = backend.counters();
        assert_eq!(
            (after.device_copies.count - before.device_copies.count, after.device_copies.bytes - before.device_copies.bytes),
            (1, 1200)
        );
        assert_eq!((after.uploads, after.downloads, after.host_copies), (before.uploads, before.downloads, before.host_copies));
        assert_eq!((read(&manager, id), manager.budget().used(), after.device_live.bytes), (numbers(0, 300), 20_000, 20_000));
        manager.free(id).expect("nobody has it");
    }
    drop(manager);
    assert!(is_empty(&backend));
}

#[test]
fn all_requested_elements_are_live() {
    let backend = backend();
    let manager = manager(&backend);
    let id = manager.create::<u32>("a", 100, plain()).expect("room");
    manager.lease_mut(id).expect("nobody else").view_mut().fill(7).expect("a fill");
    manager.lease_mut(id).expect("nobody else").resize(200).expect("room");
    assert_eq!(read(&manager, id)[..100], [7; 100]);
}

#[test]
fn a_resize_within_the_capacity_copies_nothing() {
    let backend = backend();
    let manager = manager(&backend);
    let id = holding(&manager, "a", &numbers(0, 1000));
    let before = backend.counters();
    let mut lease = manager.lease_mut(id).expect("nobody else");
    for len in [0, 1000, 500, 1000] {
        lease.resize(len).expect("it is there");
        assert_eq!((lease.len(), lease.capacity()), (len, 1000));
    }
    lease.ensure_capacity(10).expect("it is there");
    drop(lease);
    let after = backend.counters();
    assert_eq!((after.device_allocations, after.device_copies), (before.device_allocations, before.device_copies));
    assert_eq!(read(&manager, id), numbers(0, 1000), "also what was not live meanwhile");
}

#[test]
fn a_failed_resize_leaves_the_buffer_unchanged() {
    let mut failed = 0;
    for on_stream in [false, true] {
        for verb in VERBS {
            for when_executed in [false, true] {
                for nth in 1.. {
                    let fault = if when_executed { Fault::nth(nth).when_executed() } else { Fault::nth(nth) };
                    let (outcome, calls) = resize_with(on_stream, verb, fault);
                    failed += usize::from(outcome.is_err());
                    if calls < nth {
                        assert!(outcome.is_ok());
                        break;
                    }
                }
            }
        }
    }
    assert!(failed >= 5, "{failed} faults were seen");
}

fn resize_with(on_stream: bool, verb: Verb, fault: Fault) -> (ringmem::Result<()>, u64) {
    let backend = backend();
    let manager = manager(&backend);
    let stream = Stream::new(&backend, 0).expect("a stream");
    let id = holding(&manager, "a", &numbers(0, 1000));
    let before = backend.calls(verb).expect("watched");
    backend.set_faults(&Faults::new().on(verb, fault));
    let mut lease = manager.lease_mut(id).expect("nobody else");
    let outcome = if on_stream { lease.resize_on(2000, &stream) } else { lease.resize(2000) };
    backend.set_faults(&Faults::new());
    let calls = backend.calls(verb).expect("watched") - before;
    if outcome.is_err() {
        assert_eq!((lease.len(), lease.capacity()), (1000, 1000), "{verb:?} {fault:?}");
        assert_eq!(lease.to_vec().expect("a copy"), numbers(0, 1000), "{verb:?} {fault:?}");
        assert_eq!((manager.budget().used(), backend.counters().device_live.bytes), (4000, 4000), "{verb:?} {fault:?}");
        lease.resize(2000).expect("no fault is left");
    }
    assert_eq!((lease.len(), lease.capacity()), (2000, 2000));
    assert_eq!(lease.slice(..1000).expect("live").to_vec().expect("a copy"), numbers(0, 1000), "{verb:?} {fault:?}");
    drop(lease);
    assert_eq!((manager.budget().used(), backend.counters().device_live.bytes), (8000, 8000), "{verb:?} {fault:?}");
    drop(manager);
    assert_eq!(backend.counters().device_live.bytes, 0);
    (outcome, calls)
}

#[test]
fn a_queued_resize_follows_queued_work_and_frees_after_it() {
    let backend = Clean::build(HostBackend::builder().device_memory(MIB).log(true));
    let manager = Manager::new(Device::new(&backend, 0));
    let (stream, other) = (Stream::new(&backend, 0).expect("a stream"), Stream::new(&backend, 0).expect("a stream"));
    let id = manager.create::<u32>("a", 1000, plain().with_async(true)).expect("room");
    let mut lease = manager.lease_mut(id).expect("nobody else");
    let old = lease.device_address().expect("it has bytes").get();
    lease.fill_on(&other, .., 7).expect("queued");
    lease.resize_on(2000, &stream).expect("room");
    let new = lease.device_address().expect("it has bytes").get();
    assert_eq!(lease.slice(..1000).expect("live").to_vec().expect("a copy"), [7; 1000]);
    let log = backend.call_log();
    let place = |what: &dyn Fn(&ringmem::backend::host::Call) -> bool| log.iter().position(what).expect("it happened");
    let filled = place(&|call| (call.phase, call.verb, call.to) == (Phase::Executed, Verb::Fill, Some(old)));
    let copied = place(&|call| (call.phase, call.verb, call.from, call.to) == (Phase::Executed, Verb::Copy, Some(old), Some(new)));
    let freed = place(&|call| (call.phase, call.verb, call.from) == (Phase::Freed, Verb::Free, Some(old)));
    assert!(filled < copied && copied < freed);
    assert!(log.iter().any(|call| call.verb == Verb::Allocate && call.to == Some(new) && call.stream == Some(stream.id())));
}

#[test]
fn old_and_new_block_both_count_towards_the_limit() {
    let backend = backend();
    let manager = Manager::with_limit(Device::new(&backend, 0), 10_000);
    let id = holding(&manager, "a", &numbers(0, 1000));
    let allocations = backend.counters().device_allocations;
    let mut lease = manager.lease_mut(id).expect("nobody else");
    assert!(matches!(lease.resize(1501), Err(Error::Limit { requested: 6004, used: 4000, limit: 10_000, .. })));
    assert_eq!(backend.counters().device_allocations, allocations, "refused before anything was done");
    lease.resize(1500).expect("4000 and 6000 bytes");
    assert_eq!((manager.budget().used(), manager.budget().peak()), (6000, 10_000));
    lease.resize(1200).expect("it is there");
    assert!(matches!(lease.shrink_to_fit(), Err(Error::Limit { requested: 4800, used: 6000, limit: 10_000, .. })));
    assert_eq!((lease.len(), lease.capacity()), (1200, 1500));
    assert_eq!(lease.slice(..1000).expect("live").to_vec().expect("a copy"), numbers(0, 1000));
}

#[test]
fn a_failed_queued_resize_keeps_the_old_block() {
    let backend = backend();
    let manager = manager(&backend);
    let stream = Stream::new(&backend, 0).expect("a stream");
    let (one, two) = (holding(&manager, "one", &numbers(0, 1000)), holding(&manager, "two", &numbers(5000, 1000)));
    let (is_over, mut others) = (AtomicBool::new(false), 0);
    thread::scope(|scope| {
        let other = scope.spawn(|| {
            let mut told = 0;
            while !is_over.load(Relaxed) {
                told += u64::from(stream.synchronize().is_err());
            }
            told
        });
        let end = Ended(&is_over);
        let mut round = 0;
        while round < 1000 || others == 0 && round < 100_000 {
            backend.set_faults(&Faults::new().on(Verb::Copy, Fault::nth(1 + round % 2).when_executed()));
            let error = manager.resize_group_on([(one.into(), 2000), (two.into(), 2000)], &stream).expect_err("planned");
            assert!(matches!(error, Error::Injected { .. } | Error::Operation { what: OperationFault::AlreadyReported, .. }), "{error}");
            others += u64::from(matches!(error, Error::Operation { what: OperationFault::AlreadyReported, .. }));
            assert_eq!((manager.lease(one).expect("idle").capacity(), manager.lease(two).expect("idle").capacity()), (1000, 1000));
            round += 1;
        }
        drop(end);
        assert!(other.join().expect("no panic") >= others);
    });
    backend.set_faults(&Faults::new());
    assert!(others > 0, "nobody else was ever told");
    assert_eq!((read(&manager, one), read(&manager, two)), (numbers(0, 1000), numbers(5000, 1000)));
}

struct Ended<'a>(&'a AtomicBool);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}
