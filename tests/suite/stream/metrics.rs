use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use ringmem::error::OperationFault;

use ringmem::backend::host::{Fault, Faults, Verb};
use ringmem::backend::{Backend, Ticket};
use ringmem::image::{Entry, KernelHost};
use ringmem::memory::{Unified, UnifiedBuffer};
use ringmem::stream::{Kernels, Metrics, Module, Traffic};
use ringmem::{Error, Image};
use ringmem_kernels::{ABI, IMAGE};

use super::*;

const WORKS: Image = Image { host: &[Entry { name: "work", arguments: 1, run: work }], ..IMAGE };

unsafe fn work(_: &dyn KernelHost, _: &[u64]) {}

fn traffic(count: u64, bytes: u64, ns: u64) -> Traffic {
    Traffic { count, bytes, time: Duration::from_nanos(ns) }
}

fn metrics(stream: &Stream) -> Metrics {
    stream.synchronize().expect("nothing failed");
    stream.metrics().expect("it is measured")
}

#[test]
fn metrics_count_bytes_time_and_bandwidth_per_direction() {
    let backend = build(builder().devices(2).peer(0, 1).link(link()));
    let stream = stream(&backend);
    stream.measure().expect("the host backend has a clock");
    stream.measure().expect("and goes on");
    let other = GpuBuffer::<u8>::new(Device::new(&backend, 1), 10_000).expect("room");
    let (mut host, mut near) = (pinned(&backend, 10_000), gpu(&backend, 10_000));
    for _ in 0..3 {
        (host, near) = stream.copy(host, near).expect("it is queued").detach();
    }
    for _ in 0..2 {
        (near, host) = stream.copy_range(near, ..5000, host, 0).expect("it is queued").detach();
    }
    let (near, next) = stream.copy(near, gpu(&backend, 10_000)).expect("it is queued").detach();
    let (near, other) = stream.copy_range(near, ..8000, other, 0).expect("it is queued").detach();
    backend.set_peer(0, 1, true).expect("it can be reached");
    let (near, other) = stream.copy_range(near, ..8000, other, 0).expect("it is queued").detach();
    let (host, second) = stream.copy(host, pinned(&backend, 10_000)).expect("it is queued").detach();
    let near = stream.fill(near, ..200, 1).expect("it is queued").detach();
    let nothing = stream.fill(gpu(&backend, 0), .., 1).expect("nothing to do").detach();
    let metrics = metrics(&stream);
    assert_eq!(metrics.uploads, traffic(3, 30_000, 6000));
    assert_eq!(metrics.downloads, traffic(2, 10_000, 3000));
    assert_eq!(metrics.device_copies, traffic(1, 10_000, 100));
    assert_eq!(metrics.peer_copies, traffic(2, 16_000, 3600 + 3000), "over the host and directly");
    assert_eq!(metrics.host_copies, traffic(1, 10_000, 500));
    assert_eq!(metrics.fills, traffic(1, 200, 2));
    assert_eq!((metrics.kernels.count, metrics.prefetches, metrics.lost), (0, Traffic::default(), 0));
    assert_eq!((metrics.uploads.bandwidth(), metrics.fills.bandwidth()), (Some(5.0), Some(100.0)));
    assert_eq!(metrics.prefetches.bandwidth(), None);
    let uploads = backend.counters().uploads;
    assert_eq!((uploads.count, uploads.bytes), (3 + 1, 30_000 + 8000), "the backend counts the one over the host as both of its halves");
    drop((near, next, other, host, second, nothing));
}

#[test]
fn metrics_count_prefetches_apart_from_uploads_and_downloads() {
    let backend = build(builder().link(link()));
    let stream = stream(&backend);
    stream.measure().expect("the host backend has a clock");
    let managed = UnifiedBuffer::<u8>::new(Unified::new(&backend, 0), 10_000).expect("room");
    let managed = stream.prefetch(managed, Some(0)).expect("it is queued").detach();
    let managed = stream.prefetch(managed, None).expect("it is queued").detach();
    let metrics = metrics(&stream);
    let nothing = Traffic::default();
    assert_eq!((metrics.prefetches, metrics.uploads, metrics.downloads), (traffic(2, 20_000, 4000), nothing, nothing));
    let counters = backend.counters();
    let none = (0, 0);
    let [prefetches, uploads, downloads] =
        [counters.prefetches, counters.uploads, counters.downloads].map(|count| (count.count, count.bytes));
    assert_eq!((prefetches, uploads, downloads), ((2, 20_000), none, none));
    drop(managed);
}

#[test]
fn enabling_a_peer_does_not_change_a_queued_copy() {
    let backend = build(builder().devices(2).peer(0, 1).link(link()));
    let stream = stream(&backend);
    let held = Held::new(&backend, &stream);
    let other = GpuBuffer::<u8>::new(Device::new(&backend, 1), 64).expect("room");
    let (near, other) = stream.copy(gpu(&backend, 64), other).expect("it is queued").detach();
    backend.set_peer(0, 1, true).expect("it can be reached");
    held.let_go();
    stream.synchronize().expect("nothing failed");
    let counters = backend.counters();
    assert_eq!((counters.downloads.bytes, counters.uploads.bytes, counters.peer_copies.count), (64, 64, 0));
    drop((near, other));
}

#[test]
fn metrics_keep_the_times_of_the_last_hundred_kernels() {
    let backend = build(builder().link(link()));
    let stream = stream(&backend);
    stream.measure().expect("the host backend has a clock");
    let module = Module::load(&backend, &WORKS, &ABI).expect("our ABI");
    for ns in 1..=150 {
        // SAFETY: it accesses nothing.
        drop(unsafe { stream.launch(&module, "work", &[ns]) }.expect("it is queued"));
    }
    let kernels = metrics(&stream).kernels;
    assert_eq!((kernels.count, kernels.time), (150, Duration::from_nanos(150 * 151 / 2)));
    assert!(kernels.last().map(|time| time.as_nanos()).eq(51..=150), "{kernels:?}");
    assert_eq!(kernels.last().len(), Kernels::LAST);
}

#[test]
fn an_unmeasured_stream_records_no_events() {
    let backend = build(builder().faults(Faults::new()));
    let stream = stream(&backend);
    drop(stream.fill(gpu(&backend, 64), .., 1).expect("it is queued"));
    stream.synchronize().expect("nothing failed");
    assert_eq!((stream.metrics(), backend.calls(Verb::Record)), (None, Some(0)));
}

#[test]
fn metrics_exclude_unfinished_work_and_do_not_block() {
    let backend = build(builder());
    let stream = stream(&backend);
    stream.measure().expect("the host backend has a clock");
    let held = Held::new(&backend, &stream);
    let filled = stream.fill(gpu(&backend, 64), .., 1).expect("it is queued").detach();
    let before = stream.metrics().expect("it is measured");
    assert_eq!((before.fills.count, before.kernels.count), (0, 0));
    held.let_go();
    let after = metrics(&stream);
    assert_eq!((after.fills.count, after.fills.bytes, after.kernels.count), (1, 64, 1));
    assert!(after.kernels.time > Duration::ZERO);
    drop(filled);
}

#[test]
fn metrics_exclude_failed_work_and_count_untimed_work_as_lost() {
    let record = |nth| (Verb::Record, Fault::nth(nth));
    let planned = [record(2), record(4), (Verb::Fill, Fault::nth(2)), (Verb::Record, Fault::nth(7).when_executed())];
    let faults = planned.into_iter().fold(Faults::new(), |faults, (verb, fault)| faults.on(verb, fault));
    let backend = build(builder().faults(faults));
    let stream = stream(&backend);
    stream.measure().expect("the first is recorded");
    let refused = stream.fill(gpu(&backend, 64), .., 1).expect_err("no moment before it");
    assert!(matches!(refused.error, Error::Injected { call: "record", number: 2 }));
    assert_eq!(backend.calls(Verb::Fill), Some(0), "nothing was queued");
    let untimed = stream.fill(refused.value, .., 2).expect("no moment after it");
    let gpu = untimed.wait().expect("it is executed all the same");
    assert_eq!(gpu.to_vec().expect("a copy"), [2; 64]);
    let refused = stream.fill(gpu, .., 3).expect_err("planned");
    let unmeasured = stream.fill(refused.value, .., 4).expect("what is after it fails later").wait().expect("and is not its own");
    assert!(matches!(stream.synchronize(), Err(Error::Injected { call: "record", number: 7 })));
    let filled = stream.fill(unmeasured, .., 5).expect("nothing more is planned").detach();
    let metrics = metrics(&stream);
    assert_eq!((metrics.fills.count, metrics.fills.bytes, metrics.lost), (1, 64, 2));
    drop(filled);
}

#[test]
fn reading_metrics_or_dropping_the_stream_forgets_its_events() {
    let backend = build(builder());
    let stream = stream(&backend);
    let ticket = |number| Ticket { stream: stream.id(), number };
    let [first, second] = [[2, 4], [6, 8]].map(|both| both.map(ticket));
    stream.measure().expect("the host backend has a clock");
    let filled = stream.fill(gpu(&backend, 64), .., 1).expect("it is queued").detach();
    stream.synchronize().expect("nothing failed");
    assert!(backend.elapsed(first[0], first[1]).is_ok());
    assert_eq!(stream.metrics().map(|metrics| metrics.fills.count), Some(1));
    assert!(first.iter().all(|&ticket| is_forgotten(&backend, ticket)));
    let other = super::stream(&backend);
    let held = Held::new(&backend, &other);
    stream.wait_for(&other).expect("one backend");
    let filled = stream.fill(filled, .., 2).expect("it is queued").detach();
    assert!(
        matches!(backend.elapsed(second[0], second[1]), Err(Error::Operation { what: OperationFault::NotReached, .. })),
        "a kernel is in front of it"
    );
    drop(stream);
    assert!(second.iter().all(|&ticket| is_forgotten(&backend, ticket)));
    held.let_go();
    drop(filled);
}

#[test]
fn a_panicking_clock_leaves_no_recorded_event() {
    let (mut refused, mut lost) = (0, 0);
    for nth in 1..=5 {
        let left = Arc::new(AtomicU64::new(0));
        let clock = {
            let (left, caller) = (Arc::clone(&left), thread::current().id());
            move || {
                let is_ours = thread::current().id() == caller;
                assert!(
                    !(is_ours && left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)) == Ok(1)),
                    "a clock that a test asked for"
                );
                0
            }
        };
        let backend = build(builder().log(true).clock(Arc::new(clock)));
        let stream = stream(&backend);
        stream.measure().expect("the host backend has a clock");
        let buffer = gpu(&backend, 64);
        left.store(nth, Relaxed);
        let queued = catch_unwind(AssertUnwindSafe(|| stream.fill(buffer, .., 1).expect("it is queued")));
        left.store(0, Relaxed);
        let is_queued = queued.is_ok();
        if let Ok(queued) = queued {
            assert_eq!(queued.wait().expect("no fault").to_vec().expect("a copy"), [1; 64]);
        }
        stream.synchronize().expect("no fault");
        let metrics = metrics(&stream);
        assert_eq!(metrics.fills.count + metrics.lost, u64::from(is_queued), "{nth}");
        (refused, lost) = (refused + u64::from(!is_queued), lost + metrics.lost);
        assert!((1..20).all(|number| is_forgotten(&backend, Ticket { stream: stream.id(), number })), "{nth}");
    }
    assert_eq!((refused, lost), (2, 1), "the moment before it and it itself; the moment after it");
}

fn is_forgotten(backend: &Clean, ticket: Ticket) -> bool {
    matches!(backend.elapsed(ticket, ticket), Err(Error::Unsupported { .. }))
}

#[test]
fn metrics_combine_clones_on_many_threads() {
    let backend = build(builder());
    let measured = stream(&backend);
    measured.measure().expect("the host backend has a clock");
    thread::scope(|scope| {
        for thread in 1..=4 {
            let (stream, mut buffer) = (measured.clone(), gpu(&backend, thread * 10));
            scope.spawn(move || {
                for _ in 0..50 {
                    buffer = stream.fill(buffer, .., 1).expect("it is queued").detach();
                }
            });
        }
    });
    let metrics = metrics(&measured);
    assert_eq!((metrics.fills.count, metrics.fills.bytes, metrics.lost), (200, 50 * 100, 0));
}
