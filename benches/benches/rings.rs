//! `cargo bench -p ringmem-benches --bench rings -- [--json] [--quick] [NAME]`: the SPSC ring beside rtrb.
//!
//! Capacity 1024, `try` operations with one spin on failure, every message checked by its receiver.

use std::hint::{black_box, spin_loop};
use std::time::Instant;

use ringmem_benches::{Subject, Wanted, Workload, pin, run, two_threads};
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

fn ours<const N: usize>(messages: u64) -> f64 {
    let mut ring = Box::new(Ring::<[u64; N], CAPACITY>::new());
    let (mut producer, mut consumer) = ring.split();
    two_threads(
        messages,
        move || {
            for number in 0..messages {
                while producer.push(message(number)).is_err() {
                    spin_loop();
                }
            }
        },
        move || {
            for number in 0..messages {
                loop {
                    match consumer.pop() {
                        Ok(got) => break check(got, number),
                        Err(_) => spin_loop(),
                    }
                }
            }
        },
    )
}

fn ours_batched<const N: usize>(messages: u64) -> f64 {
    let mut ring = Box::new(Ring::<[u64; N], CAPACITY>::new());
    let (mut producer, mut consumer) = ring.split();
    two_threads(
        messages,
        move || {
            let mut producer = producer.batch(BATCH);
            for number in 0..messages {
                while producer.push(message(number)).is_err() {
                    spin_loop();
                }
            }
        },
        move || {
            let mut consumer = consumer.batch(BATCH);
            for number in 0..messages {
                loop {
                    match consumer.pop() {
                        Ok(got) => break check(got, number),
                        Err(_) => spin_loop(),
                    }
                }
            }
        },
    )
}

fn rtrb<const N: usize>(messages: u64) -> f64 {
    let (mut producer, mut consumer) = rtrb::RingBuffer::<[u64; N]>::new(CAPACITY);
    two_threads(
        messages,
        move || {
            for number in 0..messages {
                while producer.push(message(number)).is_err() {
                    spin_loop();
                }
            }
        },
        move || {
            for number in 0..messages {
                loop {
                    match consumer.pop() {
                        Ok(got) => break check(got, number),
                        Err(_) => spin_loop(),
                    }
                }
            }
        },
    )
}

fn each(messages: u64, begun: Instant) -> f64 {
    begun.elapsed().as_nanos() as f64 / messages as f64
}

fn ours_alone<const N: usize>(messages: u64) -> f64 {
    pin(0);
    let mut ring = Box::new(Ring::<[u64; N], CAPACITY>::new());
    let (mut producer, mut consumer) = ring.split();
    let begun = Instant::now();
    for number in 0..messages {
        assert!(producer.push(black_box(message(number))).is_ok());
        match consumer.pop() {
            Ok(got) => check(black_box(got), number),
            Err(error) => panic!("{error}"),
        }
    }
    each(messages, begun)
}

fn rtrb_alone<const N: usize>(messages: u64) -> f64 {
    pin(0);
    let (mut producer, mut consumer) = rtrb::RingBuffer::<[u64; N]>::new(CAPACITY);
    let begun = Instant::now();
    for number in 0..messages {
        assert!(producer.push(black_box(message(number))).is_ok());
        match consumer.pop() {
            Ok(got) => check(black_box(got), number),
            Err(error) => panic!("{error}"),
        }
    }
    each(messages, begun)
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
        one("oneshot-8", 1.0, &[("ringmem", ours_alone::<1>), ("rtrb", rtrb_alone::<1>)]),
        one("oneshot-64", 1.0, &[("ringmem", ours_alone::<8>), ("rtrb", rtrb_alone::<8>)]),
    ];
    run("rings", &Wanted::from_args(), &workloads);
}
