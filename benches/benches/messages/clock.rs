use std::hint::black_box;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::AcqRel};

use ringmem_benches::{Workload, two_threads};
use ringmem_layouts::clock::{HybridClock, tick};
use ringmem_layouts::{CacheLineAligned, HostWord};

use crate::each;

fn now_us<const PER_US: u64>(number: u64) -> u64 {
    1 + number.checked_div(PER_US).unwrap_or(0)
}

fn clock() -> CacheLineAligned<HybridClock<HostWord>> {
    CacheLineAligned::new(HybridClock { last: HostWord::new(0) })
}

fn ours_alone<const PER_US: u64>(messages: u64) -> f64 {
    let clock = clock();
    let clock = black_box(clock.get());
    each(messages, |number| {
        black_box(clock.tick(now_us::<PER_US>(number)));
    })
}

fn add_alone(messages: u64) -> f64 {
    let word = CacheLineAligned::new(AtomicU64::new(0));
    let word = black_box(word.get());
    each(messages, |number| {
        black_box(now_us::<200>(number));
        black_box(word.fetch_add(1, AcqRel));
    })
}

fn lock_alone(messages: u64) -> f64 {
    let last = Mutex::new(0);
    let last = black_box(&last);
    each(messages, |number| {
        let mut last = last.lock().expect("no panics");
        *last = tick(*last, now_us::<200>(number));
        black_box(*last);
    })
}

fn private(messages: u64) -> f64 {
    let mut last = 0;
    each(messages, |number| last = black_box(tick(last, now_us::<200>(number))))
}

fn shared(messages: u64, stamp: impl Fn(u64) -> u64 + Sync) -> f64 {
    let work = || {
        let mut last = 0;
        for number in 0..messages / 2 {
            let stamp = stamp(number);
            assert!(stamp > last);
            last = stamp;
        }
    };
    two_threads(messages, work, work)
}

fn ours_shared<const PER_US: u64>(messages: u64) -> f64 {
    let clock = clock();
    shared(messages, |number| clock.get().tick(now_us::<PER_US>(number)).bits())
}

fn add_shared(messages: u64) -> f64 {
    let word = CacheLineAligned::new(AtomicU64::new(0));
    shared(messages, |_| word.get().fetch_add(1, AcqRel) + 1)
}

fn lock_shared(messages: u64) -> f64 {
    let last = Mutex::new(0);
    shared(messages, |number| {
        let mut last = last.lock().expect("no panics");
        *last = tick(*last, now_us::<100>(number));
        *last
    })
}

pub fn workloads() -> Vec<Workload> {
    vec![
        Workload {
            unit: "ns/stamp",
            aim_ns: Some(8.0),
            limit: Some(private),
            ..Workload::one(
                "hlc-tick-1",
                2.0,
                vec![
                    ("ringmem", ours_alone::<200>),
                    ("ringmem, time moves each", ours_alone::<1>),
                    ("ringmem, time stands", ours_alone::<0>),
                    ("fetch_add", add_alone),
                    ("Mutex", lock_alone),
                ],
            )
        },
        Workload {
            unit: "ns/stamp",
            limit: Some(add_shared),
            ..Workload::two(
                "hlc-tick-2",
                [2.0; 2],
                vec![
                    ("ringmem", ours_shared::<100>),
                    ("ringmem, time moves each", ours_shared::<1>),
                    ("ringmem, time stands", ours_shared::<0>),
                    ("fetch_add", add_shared),
                    ("Mutex", lock_shared),
                ],
            )
        },
    ]
}
