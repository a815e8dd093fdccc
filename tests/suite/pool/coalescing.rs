use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use ringmem::manager::MemoryManager;
use ringmem::pool::PartState;

use super::{Bytes, Clean, DevicePool, MIB, address, allocations, backend, builder, give, shortage};

const UNIT: u64 = 256;

fn full(slabs: u64) -> (Clean, DevicePool, Vec<Option<Bytes>>, Arc<AtomicU64>) {
    let (backend, now) = (backend(64 * MIB), Arc::new(AtomicU64::new(0)));
    let clock = Arc::clone(&now);
    let builder = builder(&backend).slab(8 * MIB).limit(slabs * 8 * MIB).exact(true).clock(move || clock.load(Relaxed));
    let pool = builder.build().expect("a pool");
    let mut blocks: Vec<_> = (0..8 * MIB / UNIT).map(|_| give(&pool, UNIT)).collect();
    blocks.sort_unstable_by_key(address);
    assert_eq!((allocations(&backend), pool.statistics().free_bytes), (1, 0));
    (backend, pool, blocks.into_iter().map(Some).collect(), now)
}

#[test]
fn deferred_blocks_count_as_free_in_statistics_and_snapshots() {
    let (_backend, pool, mut blocks, _) = full(1);
    let held = pool.statistics().held_bytes;
    let mut at = 0;
    for count in (1..=20).step_by(3) {
        let free = pool.statistics().free_bytes;
        blocks[at..at + count].fill_with(|| None);
        at += count + 1;
        let statistics = pool.statistics();
        let bytes = count as u64 * UNIT;
        assert_eq!((statistics.free_bytes, statistics.largest_free), (free + bytes, bytes));
        assert_eq!(statistics.held_bytes, held - statistics.free_bytes);
        blocks[at] = None;
        let parts = pool.snapshot().remove(0).parts;
        assert_eq!(parts.iter().find(|part| part.0 == at as u64 * UNIT), Some(&(at as u64 * UNIT, UNIT, PartState::Free)));
        at += 2;
    }
}

#[test]
fn a_fitting_request_is_served_from_deferred_blocks() {
    let (backend, pool, mut blocks, _) = full(2);
    for count in 1..=20 {
        let at = 1000 * count;
        let place = address(blocks[at].as_ref().expect("live"));
        blocks[at..at + count].fill_with(|| None);
        let one = give(&pool, count as u64 * UNIT);
        assert_eq!((address(&one), allocations(&backend)), (place, 1));
        blocks[at] = Some(one);
    }
    let (_backend, pool, mut blocks, _) = full(1);
    blocks[50..53].fill_with(|| None);
    blocks[70] = None;
    let refused = shortage(Bytes::new(pool.clone(), 4 * UNIT as usize));
    assert_eq!(refused, (4 * UNIT, 4 * UNIT, 3 * UNIT));
}

#[test]
fn a_slab_emptied_by_coalescing_is_trimmed_when_idle() {
    let (backend, pool, blocks, _) = full(1);
    drop(blocks);
    assert_eq!((pool.trim_to(0), backend.counters().device_live.bytes), (8 * MIB, 0));
    let (_backend, pool, blocks, now) = full(1);
    drop(blocks);
    now.store(100, Relaxed);
    assert_eq!(pool.trim_older_than(Duration::from_nanos(50)), 0);
    now.store(149, Relaxed);
    assert_eq!(pool.trim_older_than(Duration::from_nanos(50)), 0);
    now.store(150, Relaxed);
    assert_eq!(pool.trim_older_than(Duration::from_nanos(50)), 8 * MIB);
}

#[test]
fn defragment_moves_blocks_into_deferred_space() {
    let (_backend, pool, mut blocks, _) = full(1);
    let manager = MemoryManager::new(pool.clone());
    let last = blocks.pop().flatten().expect("live");
    let place = address(blocks[5].as_ref().expect("live"));
    let id = manager.register(last).expect("room");
    blocks[5..8].fill_with(|| None);
    assert_eq!(manager.defragment().expect("no failure").moved, 1);
    assert_eq!(manager.lease(id).expect("live").device_address().expect("it has bytes").get(), place);
}
