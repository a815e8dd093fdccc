use std::collections::HashMap;
use std::thread;
use std::time::Instant;

use ringmem::backend::host::{Call, Link, Phase};
use ringmem::memory::PinnedBuffer;

use super::*;
use crate::rig::busy_stream::Held;

fn visits(log: &[Call], [source, target]: [u64; 2]) -> HashMap<u64, Vec<(bool, u64)>> {
    let mut visits: HashMap<u64, Vec<_>> = HashMap::new();
    for call in log.iter().filter(|call| call.verb == Verb::Copy && call.phase == Phase::Executed && call.ok) {
        let (from, to) = (call.from.expect("a copy"), call.to.expect("a copy"));
        let within = |place: u64, buffer: u64| (buffer..buffer + BYTES as u64).contains(&place).then(|| place - buffer);
        match (within(from, source), within(to, target)) {
            (Some(at), None) => visits.entry(to).or_default().push((true, at)),
            (None, Some(at)) => visits.entry(from).or_default().push((false, at)),
            other => panic!("{call:?}: {other:?}"),
        }
    }
    visits
}

#[test]
fn staging_is_read_before_it_is_overwritten() {
    for depth in [1, 2, 3, 8] {
        let backend = build(two().log(true));
        let peers = peers(&backend);
        let (source, mut target) = (gpu(&backend, 0, &pattern(1)), gpu(&backend, 1, &pattern(2)));
        let begin = backend.call_log().len();
        peers.copy_with(&source, &mut target, with(Strategy::Staged { chunk: 100, depth }), |_| {}).expect("a copy");
        let log = backend.call_log().split_off(begin);
        let places = [&source, &target].map(|buffer| buffer.device_address().expect("bytes").get());
        let visits = visits(&log, places);
        assert_eq!(visits.len(), depth as usize, "so many places, in turn");
        assert_eq!(visits.values().map(Vec::len).sum::<usize>(), 2 * 101);
        for visits in visits.values() {
            for pair in visits.chunks(2) {
                assert!(matches!(pair, [(true, written), (false, read)] if written == read), "{visits:?}");
            }
        }
    }
}

#[test]
fn at_most_depth_chunks_are_in_flight() {
    for strategy in STRATEGIES {
        let depth = match strategy {
            Strategy::Pipelined { depth, .. } | Strategy::Staged { depth, .. } => depth,
            _ => 1,
        };
        let backend = build(two().log(true));
        let (source, mut target) = (gpu(&backend, 0, &pattern(1)), gpu(&backend, 1, &pattern(2)));
        peers(&backend).copy_with(&source, &mut target, with(strategy), |_| {}).expect("a copy");
        let ways = if matches!(strategy, Strategy::Staged { .. }) { 2 } else { 1 };
        let (mut queued, mut most) = (0_u32, 0);
        for call in backend.call_log().iter().filter(|call| call.phase == Phase::Called && call.ticket.is_some()) {
            match call.verb {
                Verb::Copy => queued += 1,
                Verb::Wait => queued -= 1,
                _ => {}
            }
            most = most.max(queued);
        }
        assert_eq!((queued, most), (0, depth * ways), "{strategy:?}: each waited for, and as many at once as it says");
    }
}

fn waits(backend: &Clean, peers: &Peers, first: Duration, timeout: Duration) -> [Duration; 2] {
    let [out, into] = [0, 1].map(|device| Stream::new(backend, device).expect("a stream"));
    let (mut source, mut target) = (gpu(backend, 0, &pattern(1)), gpu(backend, 1, &pattern(2)));
    let [first_held, second_held] = [&out, &into].map(|stream| Held::new(backend, stream));
    source.used_by(&out).expect("its own backend");
    target.used_by(&into).expect("its own backend");
    let strategy = Strategy::Staged { chunk: BYTES as u64, depth: 1 };
    let copy = peers.queue(source, target, Some(strategy)).expect("it is queued");
    let begun = Instant::now();
    let (let_go, (copy, over)) = thread::scope(|scope| {
        let waiter = scope.spawn(|| (copy.wait_timeout(timeout).expect_err("the second way is held up"), begun.elapsed()));
        thread::sleep(first);
        let let_go = begun.elapsed();
        first_held.let_go();
        (let_go, waiter.join().expect("no panic"))
    });
    second_held.let_go();
    done(copy);
    [let_go, over]
}

#[test]
fn one_deadline_covers_both_directions_of_a_chunk() {
    let timeout = Duration::from_millis(40);
    let backend = build(two());
    let peers = peers(&backend);
    // A wait for the second part is always late, a slow machine only sometimes.
    let is_in_time = |_| {
        let [let_go, over] = waits(&backend, &peers, timeout / 2, timeout);
        let_go < timeout && over < let_go + timeout
    };
    assert!((0..50).any(is_in_time), "the second way had a time limit of its own");
}

fn link() -> Link {
    Link { latency_ns: 1000, pinned: 10.0, pageable: 5.0, peer: 10.0, ..Link::default() }
}

fn takes(strategy: Strategy, enabled: bool) -> u64 {
    let backend = build(two().link(link()));
    let mut peers = peers(&backend);
    if enabled {
        peers.enable(0, 1).expect("it can");
    }
    let (source, mut target) = (gpu(&backend, 0, &[1; 80_000]), gpu(&backend, 1, &[2; 80_000]));
    let now = || backend.model_now().expect("a model");
    let before = now();
    peers.copy_with(&source, &mut target, with(strategy), |_| {}).expect("a copy");
    now() - before
}

#[test]
fn both_directions_of_a_staged_copy_overlap() {
    let staged = |depth| takes(Strategy::Staged { chunk: 10_000, depth }, false);
    assert_eq!(staged(1), 8 * 4000, "one after the other");
    for depth in [2, 3, 4, 8] {
        assert_eq!(staged(depth), 9 * 2000, "{depth} chunks at once: the longer way, and one chunk's other");
    }
}

#[test]
fn a_peer_copy_takes_half_the_time_of_a_staged_copy() {
    let direct = takes(Strategy::Direct, true);
    let staged = takes(Strategy::Staged { chunk: 80_000, depth: 1 }, false);
    assert_eq!((direct, staged), (9000, 18_000));
    assert!(staged >= 2 * direct);
}

#[test]
fn a_pinned_upload_takes_half_the_time_of_a_pageable_one() {
    let backend = build(two().link(link()));
    let mut device = gpu(&backend, 0, &[0; 100_000]);
    let mut pinned = PinnedBuffer::<u8>::new(Pinned::new(&backend, 0), 100_000).expect("room");
    pinned.as_mut_slice().expect("idle").fill(3);
    let pageable = vec![4; 100_000];
    let now = || backend.model_now().expect("a model");
    let mut took = [0; 2];
    let (counted, ()) = moves(&backend, || {
        let before = now();
        device.as_view_mut().copy_from_view(pinned.as_view()).expect("as long");
        took[0] = now() - before;
    });
    assert_eq!(counted[2..], [(1, 100_000), (0, 0)], "not copied a second time");
    let (counted, ()) = moves(&backend, || {
        let before = now();
        device.copy_from(&pageable).expect("as long");
        took[1] = now() - before;
    });
    assert_eq!(counted[2..], [(1, 100_000), (1, 100_000)], "copied a second time");
    assert_eq!(took, [11_000, 21_000]);
}

#[test]
fn a_dropped_copy_counts_until_it_completes() {
    let backend = build(two());
    let slow = Stream::new(&backend, 0).expect("a stream");
    let (held, peers) = (Held::new(&backend, &slow), peers(&backend));
    let queue = || {
        let (mut from, to) = (gpu(&backend, 0, &pattern(1)), gpu(&backend, 1, &pattern(2)));
        from.used_by(&slow).expect("a live stream");
        peers.queue(from, to, Some(Strategy::Staged { chunk: 1000, depth: 2 })).map(drop)
    };
    for _ in 0..MOST_COPIES {
        queue().expect("a place");
    }
    let refused = queue().expect_err("no place is left");
    assert!(matches!(refused.error, Error::Busy { .. }), "{refused:?}");
    drop(refused);
    held.let_go();
    let begun = Instant::now();
    while queue().is_err() {
        assert!(begun.elapsed() < LIMIT, "the staging is not released");
        thread::yield_now();
    }
}
