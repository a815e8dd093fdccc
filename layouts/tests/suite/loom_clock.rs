#[allow(dead_code)]
use crate::loom_machine;

use loom::sync::Arc;
use loom::thread;
use loom_machine::{LoomWord, STRONG, check, must_fail};
use ringmem_layouts::clock::{HybridClock, Stamp};
use ringmem_layouts::{RmwWord, Word};

const WHOLE: u8 = 0;
const TORN_ADD: u8 = 1;
const TORN_EXCHANGE: u8 = 2;

/// Splits read-modify-writes in two.
struct Torn<const WHICH: u8>(LoomWord<STRONG>);

// SAFETY: as `LoomWord`.
unsafe impl<const WHICH: u8> Word for Torn<WHICH> {
    fn new(value: u64) -> Self {
        Self(LoomWord::new(value))
    }
    fn load(&self) -> u64 {
        self.0.load()
    }
    fn load_acquire(&self) -> u64 {
        self.0.load_acquire()
    }
    fn store(&self, value: u64) {
        self.0.store(value);
    }
    fn store_release(&self, value: u64) {
        self.0.store_release(value);
    }
    fn publish_all<const N: usize>(words: [(&Self, u64); N]) {
        for (word, value) in words {
            word.store_release(value);
        }
    }
}

// SAFETY: `WHOLE` is a `LoomWord`; the others are broken on purpose, which a model detects.
unsafe impl<const WHICH: u8> RmwWord for Torn<WHICH> {
    fn compare_exchange(&self, current: u64, new: u64) -> Result<u64, u64> {
        if WHICH != TORN_EXCHANGE {
            return self.0.compare_exchange(current, new);
        }
        let found = self.0.load_acquire();
        if found != current {
            return Err(found);
        }
        self.0.store_release(new);
        Ok(found)
    }
    fn fetch_add(&self, value: u64) -> u64 {
        if WHICH != TORN_ADD {
            return self.0.fetch_add(value);
        }
        let found = self.0.load_acquire();
        self.0.store_release(found.wrapping_add(value));
        found
    }
    fn swap(&self, value: u64) -> u64 {
        self.0.swap(value)
    }
}

#[derive(Clone, Copy)]
enum Call {
    Tick(u64),
    Merge(Stamp, u64),
}
use Call::{Merge, Tick};

fn call<const WHICH: u8>(clock: &HybridClock<Torn<WHICH>>, call: Call) -> Stamp {
    match call {
        Tick(now_us) => {
            let stamp = clock.tick(now_us);
            assert!(stamp >= Stamp::at(now_us), "behind: {stamp} at {now_us}");
            stamp
        }
        Merge(remote, now_us) => {
            let stamp = clock.merge(remote, now_us, 10).expect("within the bound");
            assert!(stamp > remote && stamp >= Stamp::at(now_us), "behind: {stamp} after {remote}");
            stamp
        }
    }
}

fn threads_share_a_clock<const WHICH: u8>(programs: &'static [&'static [Call]]) {
    let clock = Arc::new(HybridClock { last: Torn::<WHICH>::new(0) });
    let threads: Vec<_> = programs[1..]
        .iter()
        .map(|program| {
            let clock = Arc::clone(&clock);
            thread::spawn(move || program.iter().map(|each| call(&clock, *each)).collect::<Vec<_>>())
        })
        .collect();
    let mut all: Vec<Vec<Stamp>> = vec![programs[0].iter().map(|each| call(&clock, *each)).collect()];
    all.extend(threads.into_iter().map(|thread| thread.join().unwrap()));
    for stamps in &all {
        assert!(stamps.is_sorted_by(|a, b| a < b), "not rising: {stamps:?}");
    }
    let mut stamps = all.concat();
    stamps.sort();
    let given = stamps.len();
    stamps.dedup();
    assert_eq!(stamps.len(), given, "twice");
    assert!(clock.tick(0) > stamps[given - 1], "not after all: who comes later");
}

const PREEMPTIONS: usize = 3;

const TWO: &[&[Call]] = &[&[Tick(1), Tick(2)], &[Tick(2), Tick(1)]];
const RECEIVING: &[&[Call]] = &[&[Tick(1), Tick(1)], &[Merge(Stamp::from_bits(2 << 12 | 7), 1)]];
const THREE: &[&[Call]] = &[&[Tick(1)], &[Tick(2)], &[Tick(3)]];

#[test]
fn two_threads_get_distinct_stamps() {
    check(PREEMPTIONS, || threads_share_a_clock::<WHOLE>(TWO));
}

#[test]
fn concurrent_merges_and_ticks_give_distinct_stamps() {
    check(PREEMPTIONS, || threads_share_a_clock::<WHOLE>(RECEIVING));
}

#[test]
fn three_threads_get_distinct_stamps() {
    check(PREEMPTIONS, || threads_share_a_clock::<WHOLE>(THREE));
}

#[test]
fn a_torn_fetch_add_repeats_a_stamp() {
    must_fail("twice", PREEMPTIONS, || threads_share_a_clock::<TORN_ADD>(&[&[Tick(0)], &[Tick(0)]]));
}

#[test]
fn a_torn_compare_exchange_repeats_a_stamp() {
    must_fail("twice", PREEMPTIONS, || threads_share_a_clock::<TORN_EXCHANGE>(&[&[Tick(1)], &[Tick(1)]]));
}
