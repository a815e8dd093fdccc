//! `cargo bench -p ringmem-benches --bench rings -- [--json] [--quick] [NAME]`: the SPSC ring beside rtrb, and counters with and without a line each.
//!
//! Capacity 1024, `try` operations with one spin on failure, every message checked by its receiver.

use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use ringmem_benches::{Subject, Wanted, Workload, pin, run, two_threads};
use ringmem_layouts::CacheLineAligned;
use ringmem_layouts::ring::spsc::Ring;

const CAPACITY: usize = 1024;
const BATCH: u64 = 16;

/// A message of `N` words, each of them its number.
fn message<const N: usize>(number: u64) -> [u64; N] {
    [number; N]
}

fn check<const N: usize>(got: [u64; N], number: u64) {
    assert!(got == message(number), "message {number} came as {}", got[0]);
}

/// One turn of two threads over whatever pushes and pops; both closures go when their thread is done, so a batch is flushed.
fn race<const N: usize>(
    messages: u64,
    mut push: impl FnMut([u64; N]) -> bool + Send,
    mut pop: impl FnMut() -> Option<[u64; N]> + Send,
) -> f64 {
    let send = move || {
        for number in 0..messages {
            while !push(message(number)) {
                spin_loop();
            }
        }
    };
    let receive = move || {
        for number in 0..messages {
            loop {
                match pop() {
                    Some(got) => break check(got, number),
                    None => spin_loop(),
                }
            }
        }
    };
    two_threads(messages, send, receive)
}

fn ours<const N: usize>(messages: u64) -> f64 {
    let mut ring = Box::new(Ring::<[u64; N], CAPACITY>::new());
    let (mut producer, mut consumer) = ring.split();
    race(messages, move |value| producer.push(value).is_ok(), move || consumer.pop().ok())
}

fn ours_batched<const N: usize>(messages: u64) -> f64 {
    let mut ring = Box::new(Ring::<[u64; N], CAPACITY>::new());
    let (mut producer, mut consumer) = ring.split();
    let (mut producer, mut consumer) = (producer.batch(BATCH), consumer.batch(BATCH));
    race(messages, move |value| producer.push(value).is_ok(), move || consumer.pop().ok())
}

fn rtrb<const N: usize>(messages: u64) -> f64 {
    let (mut producer, mut consumer) = rtrb::RingBuffer::<[u64; N]>::new(CAPACITY);
    race(messages, move |value| producer.push(value).is_ok(), move || consumer.pop().ok())
}

/// One turn of one thread: a push, then a pop.
fn alone<const N: usize>(messages: u64, mut push: impl FnMut([u64; N]) -> bool, mut pop: impl FnMut() -> Option<[u64; N]>) -> f64 {
    pin(0);
    let begun = Instant::now();
    for number in 0..messages {
        assert!(push(black_box(message(number))));
        match pop() {
            Some(got) => check(black_box(got), number),
            None => panic!("what was pushed is not there"),
        }
    }
    begun.elapsed().as_nanos() as f64 / messages as f64
}

fn ours_alone<const N: usize>(messages: u64) -> f64 {
    let mut ring = Box::new(Ring::<[u64; N], CAPACITY>::new());
    let (mut producer, mut consumer) = ring.split();
    alone(messages, |value| producer.push(value).is_ok(), || consumer.pop().ok())
}

fn rtrb_alone<const N: usize>(messages: u64) -> f64 {
    let (mut producer, mut consumer) = rtrb::RingBuffer::<[u64; N]>::new(CAPACITY);
    alone(messages, |value| producer.push(value).is_ok(), || consumer.pop().ok())
}

/// Two threads count in neighbouring places; the places are `C`s in a row.
fn counters<C: Sync>(messages: u64, places: &[C; 2], word: fn(&C) -> &AtomicU64) -> f64 {
    let count = |place: &C| {
        for _ in 0..messages {
            word(place).fetch_add(1, Relaxed);
        }
    };
    let [first, second] = places;
    let each = two_threads(messages, || count(first), || count(second));
    assert!(places.iter().all(|place| word(place).load(Relaxed) == messages));
    each
}

fn counters_apart(messages: u64) -> f64 {
    counters(messages, &[const { CacheLineAligned::new(AtomicU64::new(0)) }; 2], |place| place.get())
}

fn counters_together(messages: u64) -> f64 {
    // In one line, whatever the stack gives.
    let places = CacheLineAligned::new([const { AtomicU64::new(0) }; 2]);
    counters(messages, places.get(), |place| place)
}

const fn two(name: &'static str, aim: f64, subjects: &'static [Subject]) -> Workload {
    Workload { name, two_cores: true, messages: 2_000_000, aim, subjects }
}

const fn one(name: &'static str, aim: f64, subjects: &'static [Subject]) -> Workload {
    Workload { name, two_cores: false, messages: 10_000_000, aim, subjects }
}

fn main() {
    let workloads = [
        two("spsc-8", 1.15, &[("ringmem", ours::<1>), ("rtrb", rtrb::<1>)]),
        two("spsc-64", 1.15, &[("ringmem", ours::<8>), ("rtrb", rtrb::<8>)]),
        two("spsc-256", 1.15, &[("ringmem", ours::<32>), ("rtrb", rtrb::<32>)]),
        two("spsc-8-batch", 1.15, &[("ringmem batch 16", ours_batched::<1>), ("rtrb", rtrb::<1>)]),
        two("spsc-64-batch", 0.625, &[("ringmem batch 16", ours_batched::<8>), ("rtrb", rtrb::<8>)]),
        two("spsc-256-batch", 0.625, &[("ringmem batch 16", ours_batched::<32>), ("rtrb", rtrb::<32>)]),
        two("counters", 1.0, &[("ringmem CacheLineAligned", counters_apart), ("unpadded", counters_together)]),
        one("oneshot-8", 1.0, &[("ringmem", ours_alone::<1>), ("rtrb", rtrb_alone::<1>)]),
        one("oneshot-64", 1.0, &[("ringmem", ours_alone::<8>), ("rtrb", rtrb_alone::<8>)]),
    ];
    run("rings", &Wanted::from_args(), &workloads);
}
