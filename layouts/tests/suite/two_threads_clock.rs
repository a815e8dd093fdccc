use std::collections::BTreeSet;
use std::sync::atomic::AtomicU64;
use std::thread;

use ringmem_layouts::clock::{HybridClock, Stamp};
use ringmem_layouts::{CacheLineAligned, HostWord};

const THREADS: u64 = 4;
const TICKS: u64 = 125_000 * crate::DEPTH;

fn tick_all(now_us: impl Fn(u64, u64) -> u64 + Sync) -> Vec<Vec<Stamp>> {
    let clock = &CacheLineAligned::new(HybridClock { last: HostWord::new(0) });
    let now_us = &now_us;
    let work = |thread: u64| move || -> Vec<Stamp> { (0..TICKS).map(|tick| clock.get().tick(now_us(thread, tick))).collect() };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(work(thread))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn no_stamp_twice(all: &[Vec<Stamp>]) {
    for stamps in all {
        assert!(stamps.is_sorted_by(|a, b| a < b), "not rising in its own thread");
    }
    let mut stamps = all.concat();
    stamps.sort_unstable();
    assert_eq!(stamps.len() as u64, THREADS * TICKS);
    let twice: BTreeSet<Stamp> = stamps.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| pair[0]).collect();
    assert!(twice.is_empty(), "{} stamps twice, {:?} first", twice.len(), twice.first());
}

#[test]
fn stamps_are_unique_while_time_stands_still() {
    let all = tick_all(|_, _| 7);
    no_stamp_twice(&all);
    let (first, last) = (Stamp::at(7).bits(), THREADS * TICKS);
    let greatest = all.iter().flatten().max().unwrap().bits();
    assert!(greatest - first <= last, "{} ahead for {last} stamps", greatest - first);
}

#[test]
fn stamps_are_unique_while_time_advances_each_tick() {
    let all = tick_all(|_, tick| tick);
    no_stamp_twice(&all);
    let behind = |stamps: &[Stamp]| stamps.iter().zip(0..).any(|(stamp, tick)| *stamp < Stamp::at(tick));
    assert!(!all.iter().any(|stamps| behind(stamps)));
}

#[test]
fn stamps_are_unique_while_threads_disagree_about_time() {
    no_stamp_twice(&tick_all(|thread, tick| match thread {
        0 => tick + 50,
        1 => tick.saturating_sub(50),
        2 => TICKS - tick,
        _ => tick / 200,
    }));
}

#[test]
fn stamps_are_unique_while_one_thread_advances_time() {
    use std::sync::atomic::Ordering::Relaxed;
    let now_us = AtomicU64::new(0);
    no_stamp_twice(&tick_all(|thread, tick| match thread {
        0 if tick % 16 == 0 => now_us.fetch_add(1, Relaxed),
        _ => now_us.load(Relaxed),
    }));
}
