//! Two threads count in adjacent words, on separate cache lines or one.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use ringmem_benches::{Workload, two_threads};
use ringmem_layouts::CacheLineAligned;

fn count<C: Sync>(messages: u64, places: &[C; 2], word: fn(&C) -> &AtomicU64) -> f64 {
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

fn apart(messages: u64) -> f64 {
    count(messages, &[const { CacheLineAligned::new(AtomicU64::new(0)) }; 2], |place| place.get())
}

fn together(messages: u64) -> f64 {
    let places = CacheLineAligned::new([const { AtomicU64::new(0) }; 2]);
    count(messages, places.get(), |place| place)
}

pub fn workload() -> Workload {
    Workload::two("counters", [1.0; 2], vec![("ringmem CacheLineAligned", apart), ("unpadded", together)])
}
