#![allow(clippy::result_large_err, reason = "what comes back is as large as what went in")]

use std::collections::HashSet;
use std::mem::forget;
use std::sync::Arc;
use std::time::Duration;

use crate::LIMIT;
use crate::rig::busy_stream::Held;
use crate::rig::leak_checked::Clean;
use proptest::prelude::*;
use ringmem::backend::host::{Call, Fault, Faults, HostBackend, Phase, Verb};
use ringmem::copy::{Chunked, Chunks, MOST_DEPTH, Progress};
use ringmem::error::OperationFault;
use ringmem::manager::MemoryManager;
use ringmem::memory::{Device, GpuBuffer, Pinned, PinnedBuffer};
use ringmem::stream::Stream;
use ringmem::{DeviceBytes, Error};

fn backend() -> Clean {
    Clean::build(HostBackend::builder().device_memory(1 << 20).log(true))
}

fn stream(backend: &Arc<HostBackend>) -> Stream {
    Stream::new(backend, 0).expect("a stream")
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + i / 251) as u8).collect()
}

type Ends<T> = (PinnedBuffer<T>, GpuBuffer<T>);

fn ends<T: DeviceBytes>(backend: &Arc<HostBackend>, len: usize) -> Ends<T> {
    let mut from = PinnedBuffer::<T>::new(Pinned::new(backend, 0), len).expect("room");
    T::slice_as_bytes_mut(from.as_mut_slice().expect("idle")).copy_from_slice(&pattern(len * size_of::<T>()));
    (from, GpuBuffer::new(Device::new(backend, 0), len).expect("room"))
}

fn done<A, B>(copy: Chunked<A, B>) -> (A, B)
where
    A: ringmem::stream::Source,
    B: ringmem::stream::Target<Element = A::Element>,
{
    copy.wait_timeout(LIMIT).expect("in time").expect("no fault")
}

fn copied<const N: usize>(len: usize, chunk: u64, depth: u32) {
    let backend = backend();
    let (from, to) = ends::<[u8; N]>(&backend, len);
    let (_from, to) = done(Chunked::new(&stream(&backend), from, to, chunk, depth).expect("it is queued"));
    let uploads = backend.counters().uploads;
    let step = chunk - chunk % N as u64;
    assert_eq!((uploads.bytes, uploads.count), ((len * N) as u64, ((len * N) as u64).div_ceil(step)), "each byte once");
    assert!(DeviceBytes::slice_as_bytes(&to.to_vec().expect("a download")) == pattern(len * N), "{len} elements of {N} bytes by {chunk}");
    assert!(max_queued(&backend.call_log()) <= depth as usize);
}

fn max_queued(log: &[Call]) -> usize {
    let mut queued = HashSet::new();
    let mut most = 0;
    for call in log.iter().filter(|call| call.phase == Phase::Called && call.ticket.is_some()) {
        match call.verb {
            Verb::Copy => queued.insert((call.stream, call.ticket)),
            Verb::Wait => queued.remove(&(call.stream, call.ticket)),
            _ => false,
        };
        most = most.max(queued.len());
    }
    most
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn chunks_are_whole_elements_and_cover_the_buffer(len in 0_u64..5000, size in 1_u64..=24, chunk in 0_u64..2000) {
        let chunks = Chunks::new(len, size, chunk);
        if chunk < size {
            let is_refused = matches!(chunks, Err(Error::Size { asked, least, .. }) if (asked, least) == (chunk, size));
            prop_assert!(is_refused, "{:?}", chunks);
            return Ok(());
        }
        let chunks = chunks.expect("it holds an element");
        let (expected, bytes, step) = (chunks.size_hint(), chunks.bytes(), chunks.step());
        prop_assert_eq!(bytes, len * size);
        let ranges: Vec<_> = chunks.collect();
        prop_assert_eq!(expected, (ranges.len(), Some(ranges.len())));
        let mut at = 0;
        for (index, range) in ranges.iter().enumerate() {
            let long = range.end - range.start;
            prop_assert_eq!(range.start, at);
            prop_assert!(long > 0 && long <= chunk && long % size == 0);
            prop_assert!(long == step || index + 1 == ranges.len());
            at = range.end;
        }
        prop_assert_eq!(at, len * size);
        prop_assert!(step + size > chunk, "as many as fit");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_byte_is_copied_once_for_any_element_and_chunk_size(len in 0_usize..300, size in 0_usize..8, more in 0_u64..500, depth in 1..=8_u32) {
        type Copied = fn(usize, u64, u32);
        const SIZES: [(usize, Copied); 8] = [
            (1, copied::<1>), (2, copied::<2>), (3, copied::<3>), (7, copied::<7>),
            (8, copied::<8>), (12, copied::<12>), (23, copied::<23>), (24, copied::<24>),
        ];
        let (size, copied) = SIZES[size];
        copied(len, size as u64 + more, depth);
    }
}

#[test]
fn invalid_chunks_are_errors_and_return_the_buffers() {
    let backend = backend();
    let stream = stream(&backend);
    let calls = || Verb::ALL.map(|verb| backend.calls(verb).expect("watched"));
    let (mut from, mut to) = ends::<[u8; 12]>(&backend, 10);
    let before = calls();
    for (chunk, depth) in [(0, 1), (11, 1), (12, 0), (12, MOST_DEPTH + 1), (12, u32::MAX)] {
        let rejected = Chunked::new(&stream, from, to, chunk, depth).expect_err("it makes no sense");
        match rejected.error {
            Error::Size { asked, least: 12, .. } => assert_eq!(asked, chunk),
            Error::Unsupported { .. } => assert_eq!(chunk, 12),
            error => panic!("{chunk}, {depth}: {error}"),
        }
        (from, to) = rejected.value;
    }
    assert_eq!((from.len(), to.len(), calls()), (10, 10, before));
    let short = GpuBuffer::<[u8; 12]>::new(Device::new(&backend, 0), 9).expect("room");
    let rejected = Chunked::new(&stream, from, short, 12, 1).expect_err("another length");
    assert!(matches!(rejected.error, Error::Size { what: "length in elements", least: 9, asked: 10, .. }), "{rejected}");
    assert!(matches!(Chunks::new(u64::MAX / 2, 4, 64), Err(Error::Size { what: "size in bytes", asked: u64::MAX, .. })));
    assert!(matches!(Chunks::new(0, 0, 0), Err(Error::Size { asked: 0, least: 1, .. })));
    assert_eq!(Chunks::new(5, 0, 1).expect("no bytes").count(), 0);
}

#[test]
fn at_most_depth_chunks_are_queued() {
    for depth in 1..=MOST_DEPTH {
        let backend = backend();
        let stream = stream(&backend);
        let (from, to) = ends::<u8>(&backend, 2000);
        let held = Held::new(&backend, &stream);
        let before = backend.calls(Verb::Copy).expect("watched");
        let copies = || backend.calls(Verb::Copy).expect("watched") - before;
        let mut copy = Chunked::new(&stream, from, to, 100, depth).expect("it is queued");
        for _ in 0..3 {
            assert!(!copy.poll());
            assert_eq!((copies(), copy.progress()), (u64::from(depth), Progress { done: 0, bytes: 2000 }));
        }
        let copy = copy.wait_timeout(Duration::from_millis(1)).expect_err("the stream is held");
        held.let_go();
        let (_, to) = done(copy);
        assert_eq!((copies(), to.to_vec().expect("a download")), (20, pattern(2000)));
        assert_eq!(max_queued(&backend.call_log()), depth as usize);
    }
}

#[test]
fn progress_is_reported_per_chunk_in_order() {
    let backend = backend();
    let (from, to) = ends::<[u8; 3]>(&backend, 100);
    let copy = Chunked::new(&stream(&backend), from, to, 32, 4).expect("it is queued");
    let mut told = Vec::new();
    copy.wait_with(|progress| told.push((progress.done, progress.bytes))).expect("no fault");
    assert_eq!(told, (1..=10).map(|chunk| (chunk * 30, 300)).collect::<Vec<_>>());
}

#[test]
fn an_empty_copy_is_done_at_once() {
    let backend = backend();
    let stream = stream(&backend);
    let (from, to) = ends::<u64>(&backend, 0);
    let before = backend.calls(Verb::Copy);
    let mut copy = Chunked::new(&stream, from, to, 8, 1).expect("nothing is queued");
    assert!(copy.poll());
    done(copy);
    let none = || (PinnedBuffer::<[u8; 0]>::new(Pinned::new(&backend, 0), 5), GpuBuffer::<[u8; 0]>::new(Device::new(&backend, 0), 5));
    let (from, to) = none();
    done(Chunked::new(&stream, from.expect("no bytes"), to.expect("no bytes"), 1, 1).expect("nothing is queued"));
    assert_eq!(backend.calls(Verb::Copy), before);
}

#[test]
fn a_failed_chunk_returns_both_buffers() {
    let mut struck = 0;
    for when_executed in [false, true] {
        for (verb, calls) in [(Verb::Copy, 12), (Verb::Wait, 12), (Verb::StreamWait, 2)] {
            for nth in 1..=calls {
                let backend = backend();
                let (other, stream) = (stream(&backend), stream(&backend));
                let (from, to) = ends::<u8>(&backend, 1000);
                let to = other.fill(to, .., 0).expect("it is queued").detach();
                let fault = Fault::nth(nth);
                backend.set_faults(&Faults::new().on(verb, if when_executed { fault.when_executed() } else { fault }));
                let mut arrived = 0;
                let queued = Chunked::new(&stream, from, to, 100, 3);
                let outcome = queued.map_or_else(Err, |copy| copy.wait_with(|progress| arrived = progress.done));
                backend.set_faults(&Faults::new());
                let (from, to) = match outcome {
                    Ok(ends) => ends,
                    Err(rejected) => {
                        assert!(matches!(rejected.error, Error::Injected { call, .. } if call == verb.name()), "{rejected}");
                        struck += 1;
                        rejected.value
                    }
                };
                let bytes = to.slice(..arrived as usize).expect("within").to_vec().expect("what arrived is valid");
                assert!(bytes == pattern(1000)[..arrived as usize], "{verb:?} {nth}: {arrived}");
                // A failed wait between streams has no waiter to report to; the stream has waited anyway.
                assert!(stream.synchronize().is_ok() || verb == Verb::StreamWait, "each failure was told");
                let (_, to) = done(Chunked::new(&stream, from, to, 100, 3).expect("no fault any more"));
                assert!(to.to_vec().expect("a download") == pattern(1000));
            }
        }
    }
    assert!((41..=42).contains(&struck), "{struck}");
}

#[test]
fn a_chunk_with_a_reported_failure_is_not_counted() {
    for nth in 1..=3 {
        let backend = backend();
        let stream = stream(&backend);
        let (from, to) = ends::<u8>(&backend, 1000);
        backend.set_faults(&Faults::new().on(Verb::Copy, Fault::nth(nth).when_executed()));
        let copy = Chunked::new(&stream, from, to, 100, 3).expect("it is queued");
        stream.synchronize().expect_err("planned");
        let mut arrived = 0;
        let rejected = copy.wait_with(|progress| arrived = progress.done).expect_err("a chunk is missing");
        assert!(
            matches!(rejected.error, Error::Operation { what: OperationFault::AlreadyReported, number, .. } if number == nth),
            "{rejected}"
        );
        assert_eq!(arrived, 100 * (nth - 1), "all before it");
        assert_eq!(backend.calls(Verb::Copy), Some(3 + arrived / 100), "one for each that arrived, and no more");
    }
}

#[test]
fn a_rejected_first_chunk_leaves_nothing_queued() {
    let backend = backend();
    let stream = stream(&backend);
    let (from, to) = ends::<u8>(&backend, 1000);
    backend.set_faults(&Faults::new().on(Verb::Copy, Fault::nth(1)));
    let rejected = Chunked::new(&stream, from, to, 100, 3).expect_err("planned");
    assert!(matches!(rejected.error, Error::Injected { call: "copy", .. }), "{rejected}");
    assert_eq!(backend.calls(Verb::Copy), Some(1));
}

#[test]
fn a_dropped_or_forgotten_copy_queues_no_more_chunks() {
    let backend = backend();
    let stream = stream(&backend);
    for forgotten in [false, true] {
        let (from, to) = ends::<u8>(&backend, 1000);
        let (held, before) = (Held::new(&backend, &stream), backend.counters().uploads.count);
        let copy = Chunked::new(&stream, from, to, 100, 3).expect("it is queued");
        if forgotten {
            (0..2).for_each(|_| backend.forgets());
            forget(copy);
        } else {
            drop(copy);
        }
        held.let_go();
        stream.synchronize().expect("no fault");
        assert_eq!(backend.counters().uploads.count - before, 3);
    }
}

#[test]
fn leases_can_be_copied_in_chunks() {
    let backend = backend();
    let (from, to) = ends::<u8>(&backend, 1000);
    let manager = MemoryManager::new(to.memory().clone());
    let id = manager.register(to).expect("room");
    let lease = manager.lease_mut(id).expect("live").into_owned();
    let (_, lease) = done(Chunked::new(&stream(&backend), from, lease, 300, 2).expect("it is queued"));
    drop(lease);
    assert_eq!(manager.lease(id).expect("live").view().to_vec().expect("a download"), pattern(1000));
    assert_eq!(manager.statistics().leases, 0);
}
