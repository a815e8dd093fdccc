use std::sync::Arc;
use std::thread;
use std::time::Duration;

use ringmem::Error;
use ringmem::backend::host::{Fault, Faults, HostBackend, Verb};
use ringmem::error::LimitOf;
use ringmem::memory::{Aligned, Buffer, Pinned};
use ringmem::pool::{PinnedPool, Pool};

use super::{KIB, MIB};
use crate::rig::leak_checked::Clean;

type Bytes = Buffer<u8, PinnedPool>;

fn backend() -> Clean {
    Clean::build(HostBackend::builder().pinned_budget(256 * MIB))
}

fn pool(backend: &Arc<HostBackend>, budget: u64) -> PinnedPool {
    PinnedPool::new(Pinned::new(backend, 0), budget).expect("a pool")
}

fn give(pool: &PinnedPool, bytes: u64) -> Bytes {
    Bytes::new(pool.clone(), bytes as usize).expect("within the budget")
}

fn locked(backend: &HostBackend) -> u64 {
    backend.counters().pinned_live.bytes
}

fn refused(outcome: Result<Bytes, Error>) -> (u64, u64, u64) {
    match outcome.map(drop) {
        Err(Error::Limit { of: LimitOf::Pinned, requested: asked, used, limit: budget }) => (asked, used, budget),
        other => panic!("the budget was expected to refuse, not {other:?}"),
    }
}

#[test]
fn a_long_block_locks_at_most_an_eighth_more() {
    for bytes in [65_537, 100_000, 600 * KIB + 1, MIB + 1, 2 * MIB + 1, 3_000_000, 16 * MIB + 1, 33 * MIB] {
        let backend = backend();
        let pool = pool(&backend, 128 * MIB);
        let blocks = [(); 3].map(|()| give(&pool, bytes));
        let most = 3 * (bytes + bytes / 8 + 256);
        assert!(locked(&backend) <= most, "{} locked for three times {bytes}", locked(&backend));
        assert_eq!((locked(&backend), backend.counters().pinned_allocations.count), (pool.locked(), 3));
        drop(blocks);
    }
    let backend = backend();
    let usual = Pool::builder(Pinned::new(&backend, 0)).build().expect("a pool");
    let _block = Buffer::<u8, _>::new(usual, 65_537).expect("room");
    assert_eq!(locked(&backend), 32 * MIB);
}

#[test]
fn a_block_aligned_beyond_256_bytes_is_reused_in_one_slab() {
    for bytes in [1000, 100_000] {
        let backend = backend();
        let pool = pool(&backend, MIB);
        let memory = Aligned::new(pool.clone(), 4096).expect("a power of two");
        for _ in 0..100 {
            let buffer = Buffer::<u8, _>::new(memory.clone(), bytes).expect("within the budget");
            assert!(buffer.device_address().expect("it has bytes").get().is_multiple_of(4096));
        }
        assert_eq!((backend.counters().pinned_allocations.count, pool.statistics().hits), (1, 99), "{bytes}");
        drop(pool);
        let whole = if bytes == 1000 { MIB } else { 106_496 };
        assert_eq!(locked(&backend), whole, "a shared slab, or the class of the block");
    }
}

#[test]
fn short_blocks_share_locked_slabs() {
    for bytes in [1, 256, 4097, 8 * KIB + 1, 16 * KIB + 1, 33 * KIB, 64 * KIB] {
        let backend = backend();
        let pool = pool(&backend, 128 * MIB);
        let count = 8 * MIB / bytes.max(4 * KIB);
        let blocks: Vec<Bytes> = (0..count).map(|_| give(&pool, bytes)).collect();
        let asked = count * bytes;
        let most = (asked + asked / 8) / 15 * 16 + 256 * count + MIB;
        assert!(locked(&backend) <= most, "{} locked for {count} times {bytes}", locked(&backend));
        assert!(backend.counters().pinned_allocations.count <= locked(&backend) / MIB);
        drop(blocks);
    }
}

#[test]
fn freed_pinned_blocks_are_reused_without_locking() {
    let backend = backend();
    let pool = pool(&backend, 16 * MIB);
    for bytes in [3000, 3_000_000] {
        let before = backend.counters().pinned_allocations.count;
        for round in 0..1000_u64 {
            let mut buffer = give(&pool, bytes);
            buffer.as_mut_slice().expect("nothing is queued").fill(round as u8);
        }
        assert_eq!(backend.counters().pinned_allocations.count, before + 1);
    }
    let statistics = pool.statistics();
    assert_eq!((statistics.hits, statistics.misses, statistics.returns, statistics.live), (1998, 2, 2000, 0));
    assert_eq!((statistics.reserved_bytes, pool.left(), pool.budget()), (pool.locked(), 16 * MIB, 16 * MIB));
}

#[test]
fn the_peak_of_both_inner_pools_is_within_the_budget() {
    let backend = backend();
    let pool = pool(&backend, 3 * MIB);
    for _ in 0..2 {
        for (bytes, count) in [(8 * KIB, 300), (2 * MIB, 1)] {
            let blocks: Vec<Bytes> = (0..count).map(|_| Bytes::new(pool.clone(), bytes as usize).expect("the budget")).collect();
            drop(blocks);
            pool.trim_older_than(std::time::Duration::ZERO);
        }
    }
    let statistics = pool.statistics();
    assert!(statistics.reserved_peak >= 2 * MIB && statistics.reserved_peak <= pool.budget(), "{statistics:?}");
}

#[test]
fn locked_bytes_never_exceed_the_budget() {
    let backend = backend();
    let pool = pool(&backend, 3 * MIB);
    thread::scope(|scope| {
        for thread in 0..8_u64 {
            let pool = &pool;
            scope.spawn(move || {
                let mut kept: Vec<Bytes> = Vec::new();
                for round in 0..500_u64 {
                    let bytes = 1 + (round * 7919 + thread * 104_729) % (200 * KIB);
                    match Bytes::new(pool.clone(), bytes as usize) {
                        Ok(mut buffer) => {
                            buffer.as_mut_slice().expect("nothing is queued").fill(thread as u8);
                            kept.push(buffer);
                        }
                        Err(error) => {
                            assert!(matches!(error, Error::Limit { of: LimitOf::Pinned, .. } | Error::OutOfMemory { .. }), "{error}");
                            kept.clear();
                        }
                    }
                    if kept.len() > 3 {
                        let buffer = kept.swap_remove((round % 3) as usize);
                        assert!(buffer.as_slice().expect("nothing is queued") == vec![thread as u8; buffer.len()]);
                    }
                }
            });
        }
    });
    assert!(backend.counters().pinned_live.peak <= 3 * MIB, "{}", backend.counters().pinned_live.peak);
    let statistics = pool.statistics();
    assert_eq!((statistics.live, statistics.returns, statistics.requested_bytes), (0, statistics.acquires(), 0));
}

#[test]
fn idle_memory_of_one_pool_makes_room_for_the_other() {
    let backend = backend();
    let pool = pool(&backend, 2 * MIB);
    drop(give(&pool, 1000));
    assert_eq!(locked(&backend), MIB, "a slab for short blocks");
    let long = give(&pool, 2 * MIB);
    assert_eq!(locked(&backend), 2 * MIB);
    drop(long);
    let short = give(&pool, 1000);
    assert_eq!(locked(&backend), MIB);
    drop(short);
}

#[test]
fn a_request_beyond_the_budget_fails_and_unlocks_nothing() {
    let backend = backend();
    let pool = pool(&backend, 2 * MIB);
    drop(give(&pool, 1000));
    assert_eq!(refused(Bytes::new(pool.clone(), (2 << 20) + 1)), (2 * MIB + 1, MIB, 2 * MIB));
    assert_eq!(locked(&backend), MIB, "what is longer than the budget is not had by emptying everything");
    let kept = give(&pool, MIB);
    assert_eq!(refused(Bytes::new(pool.clone(), 1 << 21)), (2 * MIB, MIB, 2 * MIB));
    drop(kept);
    assert_eq!(refused(Bytes::new(self::pool(&backend, 0), 1)), (1, 0, 0));
}

#[test]
fn a_smaller_backend_budget_is_used_in_smaller_slabs() {
    let backend = Clean::build(HostBackend::builder().pinned_budget(100_000));
    let pool = pool(&backend, 16 * MIB);
    let first = give(&pool, 5000);
    let second = give(&pool, 70_000);
    assert!(locked(&backend) < 85_000, "{}", locked(&backend));
    let more = Bytes::new(pool.clone(), 70_000);
    assert!(matches!(more, Err(Error::OutOfMemory { requested: 70_000, .. })), "{more:?}");
    drop(second);
    drop(give(&pool, 80_000));
    drop(first);
}

#[test]
fn trimmed_memory_is_unlocked() {
    let backend = backend();
    let pool = pool(&backend, 16 * MIB);
    let live = give(&pool, 100_000);
    for bytes in [1000, 2_000_000] {
        drop(give(&pool, bytes));
    }
    let (before, alone) = (locked(&backend), 100_000 + 100_000 / 8);
    assert_eq!(pool.trim_older_than(Duration::from_secs(3600)), 0);
    assert_eq!(pool.trim_older_than(Duration::ZERO), before - locked(&backend));
    assert!(locked(&backend) <= alone, "{}", locked(&backend));
    drop(live);
    assert_eq!((pool.trim_older_than(Duration::ZERO) > 0, locked(&backend)), (true, 0));
    drop(give(&pool, 1000));
    drop(pool);
    assert_eq!(locked(&backend), 0, "the last of it unlocks what is left");
}

#[test]
fn a_failed_lock_frees_idle_memory_and_retries() {
    let backend = backend();
    let pool = pool(&backend, 16 * MIB);
    drop(give(&pool, 1000));
    assert_eq!(locked(&backend), MIB, "idle");
    backend.set_faults(&Faults::new().on(Verb::Allocate, Fault::nth(1)).on(Verb::Allocate, Fault::nth(2)));
    let long = give(&pool, 3 * MIB);
    assert!(backend.calls(Verb::Allocate) >= Some(3) && locked(&backend) < 4 * MIB, "{}", locked(&backend));
    backend.set_faults(&Faults::new().on(Verb::Allocate, Fault::from(1)));
    let refused = Bytes::new(pool.clone(), 3 << 20);
    assert!(matches!(refused, Err(Error::OutOfMemory { requested, .. }) if requested == 3 * MIB), "{refused:?}");
    drop(long);
}
