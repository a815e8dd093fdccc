use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::Duration;

use ringmem::Error;
use ringmem::memory::{Buffer, Device, Limited, Memory, Pinned};
use ringmem::pool::{Classes, PinnedPool, Pool};

use super::reuse::frees;
use super::{Bytes, KIB, MIB, address, allocations, backend, builder, give, shortage};

fn of_limit<M: Memory>(memory: impl Fn() -> M, limit: u64) -> [Pool<M>; 2] {
    [false, true].map(|is_exact| Pool::builder(memory()).limit(limit).exact(is_exact).build().unwrap())
}

#[test]
fn a_request_within_a_limit_of_no_whole_units_is_served() {
    let backend = backend(64 * MIB);
    let device = || Device::new(&backend, 0);
    for (limit, requested) in [(255, 1), (255, 255), (700, 600), (1000, 800), (1000, 1000)] {
        for pool in of_limit(device, limit) {
            for _ in 0..3 {
                let block = give(&pool, requested);
                let statistics = pool.statistics();
                let held = (statistics.requested_bytes, statistics.held_bytes, statistics.reserved_bytes);
                assert_eq!(held, (requested, requested, requested), "{limit}");
                assert_eq!(backend.counters().device_live.bytes, requested);
                drop(block);
            }
            let small = give(&pool, 1);
            assert_eq!(pool.statistics().live, 1);
            drop(small);
            let statistics = pool.statistics();
            assert_eq!((statistics.acquires(), statistics.returns, statistics.requested_bytes, statistics.held_bytes), (4, 4, 0, 0));
        }
        let pool = Pool::builder(Limited::new(device(), limit)).build().unwrap();
        drop(Buffer::<u8, _>::new(pool, requested as usize).expect("within the limit of the memory below"));
        let pinned = PinnedPool::new(Pinned::new(&backend, 0), limit).unwrap();
        drop(Buffer::<u8, _>::new(pinned, requested as usize).expect("within the budget"));
    }
}

#[test]
fn out_of_memory_counts_the_bytes_that_a_request_can_get() {
    let backend = backend(64 * MIB);
    let device = || Device::new(&backend, 0);
    for limit in [700, 1000, 1023] {
        let limited = Limited::new(device(), limit);
        for pool in of_limit(device, limit) {
            figures_are_what_a_request_gets(&pool, limit);
        }
        for pool in of_limit(|| limited.clone(), 1 << 20) {
            figures_are_what_a_request_gets(&pool, limit);
        }
    }
}

fn figures_are_what_a_request_gets<M: Memory>(pool: &Pool<M>, limit: u64) {
    let get = |bytes: u64| Buffer::<u8, _>::new(pool.clone(), bytes as usize);
    let live = get(256).expect("one unit");
    let left = limit - 256;
    assert_eq!(shortage(get(limit)), (limit, left, left));
    assert_eq!(shortage(get(left + 1)), (left + 1, left, left));
    let rest = get(left).expect("the largest free block");
    assert_eq!(shortage(get(1)), (1, 0, 0));
    drop((live, rest));
}

#[test]
fn eight_threads_never_exceed_the_limit() {
    let backend = backend(256 * MIB);
    let pool = builder(&backend).limit(5 * MIB).slab(MIB).patience(Duration::ZERO).build().unwrap();
    thread::scope(|scope| {
        for thread in 0..8_u64 {
            let pool = &pool;
            scope.spawn(move || {
                let mut kept: Vec<Bytes> = Vec::new();
                for round in 0..3000_u64 {
                    let bytes = 1 + (round * 7919 + thread * 104_729) % (600 * KIB);
                    match Buffer::new(pool.clone(), bytes as usize) {
                        Ok(buffer) if kept.len() < 3 => kept.push(buffer),
                        Ok(buffer) => kept[(round % 3) as usize] = buffer,
                        Err(_) => kept.clear(),
                    }
                    if round % 500 == 0 {
                        pool.trim_to(MIB);
                    }
                }
            });
        }
    });
    let (below, above) = (backend.counters().device_live, pool.statistics());
    assert!(below.peak <= 5 * MIB, "the memory below saw {}", below.peak);
    assert!(above.reserved_peak <= 5 * MIB && above.reserved_peak >= below.peak);
    assert_eq!((above.live, above.requested_bytes, above.reserved_bytes), (0, 0, below.bytes));
}

#[test]
fn a_request_beyond_the_limit_fails_and_frees_no_slab() {
    const FIVE: u64 = 5 * MIB;
    let backend = backend(64 * MIB);
    let pool = builder(&backend).limit(4 * MIB).slab(2 * MIB).build().unwrap();
    drop(give(&pool, MIB));
    let refused = Bytes::new(pool.clone(), 5 << 20);
    assert!(
        matches!(refused, Err(Error::Limit { requested: FIVE, used, limit, .. }) if used == 2 * MIB && limit == 4 * MIB),
        "{refused:?}"
    );
    assert_eq!(pool.statistics().reserved_bytes, 2 * MIB);
    drop(give(&pool, MIB));
    assert_eq!(pool.statistics().hits, 1);
}

#[test]
fn a_disabled_pool_forwards_every_request() {
    let backend = backend(64 * MIB);
    let pool = builder(&backend).enabled(false).limit(MIB).build().unwrap();
    for round in 1..=10 {
        let buffer = give(&pool, 1000);
        assert_eq!(backend.counters().device_live.bytes, 1000);
        drop(buffer);
        assert_eq!((allocations(&backend), backend.counters().device_live.bytes), (round, 0));
    }
    let refused = Bytes::new(pool.clone(), (1 << 20) + 1);
    assert!(matches!(refused, Err(Error::Limit { used: 0, limit: MIB, .. })), "{refused:?}");
    let statistics = pool.statistics();
    assert_eq!((statistics.hits, statistics.misses, statistics.returns, statistics.reserved_bytes), (0, 10, 10, 0));
}

fn idle() -> (super::Clean, super::DevicePool, Arc<AtomicU64>, Vec<u64>) {
    let backend = backend(64 * MIB);
    let now = Arc::new(AtomicU64::new(0));
    let clock = Arc::clone(&now);
    let pool = builder(&backend).slab(2 * MIB).clock(move || clock.load(Relaxed)).build().unwrap();
    let blocks: Vec<_> = (0..3).map(|_| give(&pool, 2 * MIB)).collect();
    let at = blocks.iter().map(address).collect();
    for block in blocks {
        now.fetch_add(100, Relaxed);
        drop(block);
        assert_eq!(pool.trim_to(u64::MAX), 0);
    }
    (backend, pool, now, at)
}

#[test]
fn trim_older_than_frees_only_slabs_idle_for_the_interval() {
    let (backend, pool, now, at) = idle();
    now.store(1199, Relaxed);
    assert_eq!(pool.trim_older_than(Duration::from_nanos(1100)), 0);
    now.store(1200, Relaxed);
    assert_eq!(pool.trim_older_than(Duration::from_nanos(1000)), 4 * MIB);
    assert_eq!((frees(&backend), backend.counters().device_live.bytes), (at[..2].to_vec(), 2 * MIB));
    assert_eq!(pool.trim_older_than(Duration::from_nanos(900)), 2 * MIB);
    assert_eq!(pool.statistics().reserved_bytes, 0);
}

const SECOND: u64 = 1_000_000_000;

/// A pool with a clock that the test moves, in seconds. Each block has its own slab.
fn timed(is_exact: bool) -> (super::Clean, super::DevicePool, impl Fn(u64)) {
    let (backend, now) = (backend(64 * MIB), Arc::new(AtomicU64::new(1)));
    let clock = Arc::clone(&now);
    let builder = builder(&backend).slab(64 * KIB).exact(is_exact).clock(move || clock.load(Relaxed));
    (backend, builder.build().expect("a pool"), move |seconds| now.store(1 + seconds * SECOND, Relaxed))
}

#[test]
fn idle_memory_ages_from_its_last_use_although_caches_were_flushed_since() {
    for (is_exact, rounds) in [(false, 1), (false, 2), (false, 1000), (true, 1), (true, 1000)] {
        let (backend, pool, at) = timed(is_exact);
        (0..rounds).for_each(|_| drop(give(&pool, 64 * KIB)));
        at(60);
        assert_eq!(pool.trim_to(u64::MAX), 0, "flushes the caches");
        at(299);
        assert_eq!(pool.trim_older_than(Duration::from_secs(300)), 0);
        at(301);
        assert_eq!(pool.trim_older_than(Duration::from_secs(300)), 64 * KIB, "exact {is_exact}, {rounds} rounds");
        assert_eq!(backend.counters().device_live.bytes, 0);
    }
}

#[test]
fn the_first_free_after_a_flush_dates_the_cache() {
    let (_backend, pool, at) = timed(false);
    for second in [0, 100, 200, 250] {
        at(second);
        (0..3).for_each(|_| drop(give(&pool, 64 * KIB)));
        assert_eq!(pool.trim_to(u64::MAX), 0, "flushes the caches");
    }
    at(549);
    assert_eq!(pool.trim_older_than(Duration::from_secs(300)), 0);
    at(550);
    assert_eq!(pool.trim_older_than(Duration::from_secs(300)), 64 * KIB);
}

#[test]
fn a_block_in_a_cache_in_use_counts_as_used() {
    let (_backend, pool, at) = timed(false);
    drop([(); 2].map(|()| give(&pool, 64 * KIB)));
    at(250);
    drop(give(&pool, 64 * KIB));
    at(301);
    assert_eq!(pool.trim_older_than(Duration::from_secs(300)), 0);
    at(550);
    assert_eq!(pool.trim_older_than(Duration::from_secs(300)), 128 * KIB);
}

#[test]
fn blocks_of_another_thread_age_from_their_last_use() {
    let (_backend, pool, at) = timed(false);
    // More blocks than a cache holds, so that some pass through the central free list.
    let blocks: Vec<_> = (0..200).map(|_| give(&pool, 64 * KIB)).collect();
    at(60);
    thread::scope(|scope| scope.spawn(move || drop(blocks)).join().expect("no panic"));
    at(100);
    let taken = give(&pool, 64 * KIB);
    at(359);
    assert_eq!(pool.trim_older_than(Duration::from_secs(300)), 0);
    at(360);
    assert_eq!(pool.trim_older_than(Duration::from_secs(300)), 199 * 64 * KIB);
    drop(taken);
    at(659);
    assert_eq!(pool.trim_older_than(Duration::from_secs(300)), 0);
    at(660);
    assert_eq!(pool.trim_older_than(Duration::from_secs(300)), 64 * KIB);
}

#[test]
fn a_block_in_use_by_queued_work_ages_from_the_end_of_its_use() {
    let (backend, pool, at) = timed(false);
    let [stream, other] = [(); 2].map(|()| ringmem::stream::Stream::new(&backend, 0).expect("a stream"));
    let held = super::Held::new(&backend, &stream);
    let mut block = give(&pool, 64 * KIB);
    for stream in [&stream, &other] {
        block.used_by(stream).expect("a live stream");
    }
    drop(block);
    at(200);
    held.release();
    other.synchronize().expect("done");
    assert_eq!(pool.trim_older_than(Duration::from_secs(300)), 0, "collects it");
    at(499);
    assert_eq!(pool.trim_older_than(Duration::from_secs(300)), 0);
    at(500);
    assert_eq!(pool.trim_older_than(Duration::from_secs(300)), 64 * KIB);
}

#[test]
fn trim_to_stops_at_the_bytes_to_keep() {
    let (backend, pool, _, at) = idle();
    assert_eq!(pool.trim_to(4 * MIB), 2 * MIB);
    assert_eq!(frees(&backend), at[..1]);
    assert_eq!((pool.trim_to(4 * MIB), pool.trim_to(0)), (0, 4 * MIB));
    assert_eq!(frees(&backend), at);
}

#[test]
fn trim_keeps_a_slab_with_a_live_block() {
    let backend = backend(64 * MIB);
    let pool = builder(&backend).slab(2 * MIB).build().unwrap();
    let (live, idle) = (give(&pool, KIB), give(&pool, 2 * MIB));
    drop(idle);
    assert_eq!(pool.trim_to(0), 2 * MIB);
    assert_eq!(backend.counters().device_live.bytes, 2 * MIB);
    drop(live);
}

#[test]
fn invalid_class_steps_are_named_in_the_error() {
    let error = Classes::new(4096, 10, 3).expect_err("no such steps").to_string();
    assert!(error.contains("1, 2, 4 or 8") && !error.contains("alignment"), "{error}");
}

#[test]
fn an_invalid_smallest_block_is_named_in_the_error() {
    for (least, said) in
        [(128, "invalid smallest block of size classes: got 128 bytes, expected 256 to 4294967296"), (5000, "not a power of two")]
    {
        let error = Classes::new(least, 10, 1).expect_err("no such block").to_string();
        assert!(error.contains(said) && error.contains("smallest block") && !error.contains("alignment"), "{error}");
    }
}
