use std::mem::forget;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;

use ringmem::backend::host::Phase;
use ringmem::manager::MemoryManager;
use ringmem::memory::{Buffer, Memory};
use ringmem::peer::MOST_COPIES;
use ringmem::pool::PinnedPool;

use super::*;
use crate::eventually;
use crate::rig::busy_stream::Held;

#[test]
fn copies_between_four_devices_use_the_host_only_without_peers() {
    let pairs = || (0..4).flat_map(|from| (0..4).map(move |to| (from, to))).filter(|(from, to)| from != to);
    let builder = HostBackend::builder().devices(4).device_memory(1 << 20);
    let backend = build(pairs().fold(builder, |builder, (from, to)| builder.peer(from, to)));
    let (bytes, mut peers) = (BYTES as u64, peers(&backend));
    for is_direct in [false, true] {
        if is_direct {
            pairs().filter(|(from, to)| from < to).for_each(|(from, to)| peers.enable(from, to).expect("it can"));
        }
        for (seed, (from, to)) in pairs().enumerate() {
            let (source, mut target) = (gpu(&backend, from, &pattern(seed)), gpu(&backend, to, &pattern(99)));
            let (blocking, ()) = moves(&backend, || peers.copy(&source, &mut target).expect("a copy"));
            assert!(target.to_vec().expect("a download") == pattern(seed), "{from} to {to}");
            target.zero().expect("a fill");
            let (queued, (_, target)) = moves(&backend, || done(peers.queue(source, target, None).expect("it is queued")));
            assert!(target.to_vec().expect("a download") == pattern(seed), "{from} to {to}");
            let (none, once) = ((0, 0), (1, bytes));
            let expected = if is_direct { [once, none, none, none] } else { [none, once, once, none] };
            assert_eq!([blocking, queued], [expected; 2], "{from} to {to}: no byte on the host, or twice as many");
        }
    }
}

#[test]
fn every_strategy_copies_every_byte_in_its_number_of_copies() {
    let backend = build(two());
    let mut peers = peers(&backend);
    peers.enable(0, 1).expect("it can");
    for strategy in STRATEGIES {
        let copies = if strategy == Strategy::Direct { 1 } else { 11 };
        let (none, all) = ((0, 0), (copies, BYTES as u64));
        let expected = if matches!(strategy, Strategy::Staged { .. }) { [none, all, all, none] } else { [all, none, none, none] };
        let (source, mut target) = (gpu(&backend, 0, &pattern(1)), gpu(&backend, 1, &pattern(2)));
        let mut told = Vec::new();
        let tell = |progress: ringmem::copy::Progress| told.push(progress.done);
        let (counted, ()) = moves(&backend, || peers.copy_with(&source, &mut target, with(strategy), tell).expect("a copy"));
        assert_eq!((counted, told.len() as u64), (expected, copies), "{strategy:?}");
        assert!(told.is_sorted() && told.last() == Some(&(BYTES as u64)), "{told:?}");
        assert!(target.to_vec().expect("a download") == pattern(1), "{strategy:?}");
        target.zero().expect("a fill");
        let (counted, (_, target)) = moves(&backend, || done(peers.queue(source, target, Some(strategy)).expect("it is queued")));
        assert_eq!(counted, expected, "{strategy:?}");
        assert!(target.to_vec().expect("a download") == pattern(1), "{strategy:?}");
    }
}

#[test]
fn every_strategy_works_without_peer_access() {
    let backend = build(two());
    let peers = peers(&backend);
    for strategy in STRATEGIES {
        let (source, mut target) = (gpu(&backend, 1, &pattern(1)), gpu(&backend, 0, &pattern(2)));
        let (counted, ()) = moves(&backend, || peers.copy_with(&source, &mut target, with(strategy), |_| {}).expect("a copy"));
        assert_eq!((counted[0], counted[1].1, counted[2].1), ((0, 0), BYTES as u64, BYTES as u64), "{strategy:?}");
        assert!(target.to_vec().expect("a download") == pattern(1), "{strategy:?}");
    }
}

#[test]
fn a_copy_within_a_device_uses_only_that_device() {
    let backend = build(two());
    let (source, mut target) = (gpu(&backend, 1, &pattern(1)), gpu(&backend, 1, &pattern(2)));
    let (counted, ()) = moves(&backend, || peers(&backend).copy(&source, &mut target).expect("a copy"));
    assert_eq!((counted, backend.counters().device_copies.bytes), ([(0, 0); 4], BYTES as u64));
    assert!(target.to_vec().expect("a download") == pattern(1));
}

#[test]
fn an_invalid_peer_copy_returns_the_buffers_without_calls() {
    let (backend, strange) = (build(two().log(true)), build(two()));
    let peers = peers(&backend);
    let (mut source, mut target) = (gpu(&backend, 0, &pattern(1)), gpu(&backend, 1, &pattern(2)));
    let (mut short, mut theirs) = (gpu(&backend, 1, &[1; 7]), gpu(&strange, 1, &pattern(2)));
    let calls = || Verb::ALL.map(|verb| backend.calls(verb).expect("watched"));
    let before = calls();
    let is_mismatch =
        |error: &Error| matches!(error, Error::Size { what: "length in elements", least: 7, asked: got, .. } if *got == BYTES as u64);
    let error = peers.copy(&source, &mut short).expect_err("another length");
    assert!(is_mismatch(&error), "{error}");
    let error = peers.copy(&source, &mut theirs).expect_err("another backend's");
    assert!(matches!(error, Error::OtherBackend { .. }), "{error}");
    let error = peers.copy(&theirs, &mut target).expect_err("another backend's");
    assert!(matches!(error, Error::OtherBackend { .. }), "{error}");
    for strategy in [
        Strategy::Chunked { chunk: 0 },
        Strategy::Pipelined { chunk: 100, depth: 0 },
        Strategy::Pipelined { chunk: 100, depth: 9 },
        Strategy::Staged { chunk: 0, depth: 2 },
        Strategy::Staged { chunk: 100, depth: u32::MAX },
    ] {
        let error = peers.copy_with(&source, &mut target, with(strategy), |_| {}).expect_err("no such chunk or depth");
        assert!(matches!(error, Error::Size { asked: 0, .. } | Error::Unsupported { .. }), "{strategy:?}: {error}");
        let rejected = peers.queue(source, target, Some(strategy)).expect_err("no such chunk or depth");
        assert!(matches!(rejected.error, Error::Size { asked: 0, .. } | Error::Unsupported { .. }), "{strategy:?}: {rejected}");
        (source, target) = rejected.value;
    }
    let rejected = peers.queue(source, short, None).expect_err("another length");
    assert!(is_mismatch(&rejected.error), "{rejected}");
    assert_eq!((rejected.value.0.len(), rejected.value.1.len(), calls()), (BYTES, 7, before));
}

#[test]
fn an_empty_buffer_is_copied_without_calls() {
    let backend = build(two().log(true));
    let peers = peers(&backend);
    let calls = || Verb::ALL.map(|verb| backend.calls(verb).expect("watched"));
    let before = calls();
    for strategy in STRATEGIES {
        let [source, mut target] = [0, 1].map(|device| GpuBuffer::<u32>::new(Device::new(&backend, device), 0).expect("no bytes"));
        peers.copy_with(&source, &mut target, Options { verify: true, ..with(strategy) }, |_| {}).expect("nothing to do");
        done(peers.queue(source, target, Some(strategy)).expect("nothing to do"));
        let [source, target] = [0, 1].map(|device| GpuBuffer::<[u8; 0]>::new(Device::new(&backend, device), 9).expect("no bytes"));
        done(peers.queue(source, target, Some(Strategy::Direct)).expect("nothing to do"));
    }
    assert_eq!(calls(), before);
}

#[test]
fn the_seventeenth_copy_in_flight_is_busy() {
    let backend = build(two());
    let (peers, stream) = (peers(&backend), Stream::new(&backend, 0).expect("a stream"));
    let held = Held::new(&backend, &stream);
    let mut under_way = Vec::new();
    for _ in 0..MOST_COPIES {
        let source = stream.fill(gpu(&backend, 0, &[0; 100]), .., 7).expect("it is queued").detach();
        under_way.push(peers.queue(source, gpu(&backend, 1, &[0; 100]), None).expect("there is a place"));
    }
    let rejected = peers.queue(gpu(&backend, 0, &[3; 100]), gpu(&backend, 1, &[0; 100]), None).expect_err("there is none");
    assert!(matches!(rejected.error, Error::Busy { .. }), "{rejected}");
    assert!(matches!(peers.copy(&gpu(&backend, 0, &[3; 100]), &mut gpu(&backend, 1, &[0; 100])), Err(Error::Busy { .. })));
    held.let_go();
    for copy in under_way {
        assert_eq!(done(copy).1.to_vec().expect("a download"), [7; 100]);
    }
    let (_, target) = done(peers.queue(rejected.value.0, rejected.value.1, None).expect("all have gone"));
    assert_eq!(target.to_vec().expect("a download"), [3; 100]);
}

#[test]
fn a_peer_copy_follows_queued_work_and_reports_its_failure() {
    let backend = build(two());
    let (peers, stream) = (peers(&backend), Stream::new(&backend, 0).expect("a stream"));
    for strategy in STRATEGIES {
        let held = Held::new(&backend, &stream);
        let source = stream.fill(gpu(&backend, 0, &pattern(1)), ..5000, 7).expect("it is queued").detach();
        let target = stream.fill(gpu(&backend, 1, &pattern(1)), .., 9).expect("it is queued").detach();
        let mut copy = peers.queue(source, target, Some(strategy)).expect("it is queued");
        assert!(!copy.poll(), "{strategy:?}");
        held.let_go();
        let target = done(copy).1.to_vec().expect("a download");
        assert!(target[..5000] == [7; 5000] && target[5000..] == pattern(1)[5000..], "{strategy:?}");
        backend.set_faults(&Faults::new().on(Verb::Fill, Fault::nth(1).when_executed()));
        let source = stream.fill(gpu(&backend, 0, &pattern(1)), .., 7).expect("it is queued").detach();
        let error = peers.copy_with(&source, &mut gpu(&backend, 1, &pattern(2)), with(strategy), |_| {}).expect_err("planned");
        assert!(matches!(error, Error::Injected { call: "fill", .. }), "{strategy:?}: {error}");
        backend.set_faults(&Faults::new());
    }
}

#[test]
fn a_dropped_or_forgotten_copy_still_completes_safely() {
    let backend = build(two().log(true));
    let (peers, stream) = (peers(&backend), Stream::new(&backend, 0).expect("a stream"));
    for strategy in STRATEGIES {
        for forgotten in [false, true] {
            let held = Held::new(&backend, &stream);
            let source = stream.fill(gpu(&backend, 0, &pattern(1)), .., 7).expect("it is queued").detach();
            let copy = peers.queue(source, gpu(&backend, 1, &pattern(2)), Some(strategy)).expect("it is queued");
            if forgotten {
                let blocks = if matches!(strategy, Strategy::Staged { .. }) { 5 } else { 2 };
                (0..blocks).for_each(|_| backend.forgets());
                forget(copy);
            } else {
                drop(copy);
            }
            held.let_go();
        }
    }
    let mut target = gpu(&backend, 1, &pattern(2));
    peers.copy(&gpu(&backend, 0, &pattern(1)), &mut target).expect("there is a place");
    assert!(target.to_vec().expect("a download") == pattern(1));
    drop((peers, stream));
    let log = backend.call_log();
    let copies = log.iter().filter(|call| call.verb == Verb::Copy && call.phase == Phase::Executed);
    assert!(copies.clone().count() > 20 && copies.clone().all(|call| call.ok), "none met memory that had gone");
}

#[test]
fn staging_is_allocated_once_per_copy_and_pooled() {
    let backend = build(two());
    let count = || backend.counters().pinned_allocations.count;
    let staged = with(Strategy::Staged { chunk: 100, depth: 3 });
    let (source, mut target) = (gpu(&backend, 0, &pattern(1)), gpu(&backend, 1, &pattern(2)));
    let mut copy = |peers: &Peers| {
        let before = count();
        peers.copy_with(&source, &mut target, staged, |_| {}).expect("a copy");
        count() - before
    };
    assert_eq!(copy(&peers(&backend)), 3, "of 102 chunks");
    let pool = PinnedPool::new(Pinned::new(&backend, 0), 4 << 20).expect("a pool");
    let pooled = Peers::new(pool).expect("streams");
    assert_eq!((copy(&pooled), copy(&pooled), copy(&pooled)), (1, 0, 0), "a slab, once");
    let before = backend.counters().pinned_allocations;
    peers(&backend).copy(&gpu(&backend, 0, &[1; 100]), &mut gpu(&backend, 1, &[2; 100])).expect("a copy");
    let after = backend.counters().pinned_allocations;
    assert_eq!((after.count - before.count, after.bytes - before.bytes), (1, 100));
}

#[test]
fn threads_copy_concurrently() {
    let backend = build(HostBackend::builder().devices(3).device_memory(1 << 20).peer(0, 1));
    let mut peers = peers(&backend);
    peers.enable(0, 1).expect("it can");
    let copying = AtomicU32::new(0);
    thread::scope(|scope| {
        for thread in 0..6_u32 {
            let (backend, peers, copying) = (&backend, &peers, &copying);
            scope.spawn(move || {
                let mut is_first = true;
                // An exclusive copy would wait here for ever.
                let mut meet = |_| {
                    if std::mem::take(&mut is_first) {
                        copying.fetch_add(1, Relaxed);
                        eventually("all threads are copying", || copying.load(Relaxed) == 6);
                    }
                };
                for round in 0..20 {
                    let (from, to) = (thread % 3, (thread + 1 + round % 2) % 3);
                    let (seed, strategy) = ((thread * 20 + round) as usize, STRATEGIES[(thread + round) as usize % 4]);
                    let (source, mut target) = (gpu(backend, from, &pattern(seed)), gpu(backend, to, &pattern(999)));
                    peers.copy_with(&source, &mut target, with(strategy), &mut meet).expect("a copy");
                    assert!(target.to_vec().expect("a download") == pattern(seed), "{from} to {to}, {strategy:?}");
                }
            });
        }
    });
}

#[test]
fn a_blocking_copy_completes_when_its_progress_panics() {
    let backend = build(two().log(true));
    let peers = peers(&backend);
    for strategy in &STRATEGIES[1..] {
        let (source, mut target) = (gpu(&backend, 0, &pattern(1)), gpu(&backend, 1, &pattern(2)));
        let copy = || peers.copy_with(&source, &mut target, with(*strategy), |_| panic!("a caller's mistake"));
        catch_unwind(AssertUnwindSafe(copy)).expect_err("it panics");
        let log = backend.call_log();
        let copies = |phase| log.iter().filter(|call| call.verb == Verb::Copy && call.phase == phase && call.ticket.is_some()).count();
        assert_eq!(copies(Phase::Called), copies(Phase::Executed), "{strategy:?}: nothing uses what was lent");
        let bytes = target.to_vec().expect("a download");
        assert!(bytes[..1000] == pattern(1)[..1000] && bytes[9000..] == pattern(2)[9000..], "{strategy:?}: some of it");
    }
}

#[test]
fn leases_can_be_copied_between_devices() {
    let backend = build(two());
    let manager = MemoryManager::new(Device::new(&backend, 0));
    let ids = [0, 1].map(|device| manager.register(gpu(&backend, device, &pattern(device as usize))).expect("room"));
    let (from, to) = (manager.lease(ids[0]).expect("live").into_owned(), manager.lease_mut(ids[1]).expect("live").into_owned());
    for strategy in STRATEGIES {
        let lease = manager.lease(ids[0]).expect("live").into_owned();
        let target = gpu(&backend, 1, &pattern(2));
        assert!(done(peers(&backend).queue(lease, target, Some(strategy)).expect("it is queued")).1.to_vec().expect("bytes") == pattern(0));
    }
    drop(done(peers(&backend).queue(from, to, None).expect("it is queued")));
    assert!(manager.lease(ids[1]).expect("live").view().to_vec().expect("a download") == pattern(0));
}

#[test]
fn limited_device_memory_can_be_copied_between_devices() {
    let backend = build(two());
    let memories = [0, 1].map(|device| std::sync::Arc::new(ringmem::memory::Limited::new(Device::new(&backend, device), 1 << 16)));
    let [source, mut target] = memories.map(|memory| Buffer::<u16, _>::new(memory, 500).expect("room"));
    let mut source = source;
    source.fill(0x1234).expect("a fill");
    peers(&backend).copy(&source, &mut target).expect("a copy");
    assert_eq!((target.to_vec().expect("a download"), target.memory().device()), (vec![0x1234; 500], 1));
}
