use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use ringmem::pool::PartState;
use ringmem::stream::Stream;

use super::{Bytes, Held, KIB, LIMIT, MIB, address, backend, builder, give};

const CACHED: usize = 64;

#[test]
fn another_thread_reuses_blocks_of_the_central_free_list() {
    let backend = backend(64 * MIB);
    let pool = builder(&backend).slab(2 * MIB).build().unwrap();
    let (sender, receiver) = mpsc::channel::<Vec<Bytes>>();
    let (done, is_done) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(move || {
            for blocks in receiver {
                let at: Vec<_> = blocks.iter().map(address).collect();
                drop(blocks);
                done.send(at).expect("the test waits");
            }
        });
        sender.send((0..CACHED + 1).map(|_| give(&pool, 4 * KIB)).collect()).expect("the thread runs");
        let mut at = is_done.recv_timeout(LIMIT).expect("in time");
        let before = pool.statistics();
        assert_eq!((before.hits, before.live, before.held_bytes), (0, 0, 0));
        let again: Vec<_> = (0..CACHED / 2).map(|_| give(&pool, 4 * KIB)).collect();
        assert_eq!((pool.statistics().hits, pool.statistics().free_bytes), (CACHED as u64 / 2, before.free_bytes));
        at.truncate(CACHED / 2);
        assert!(again.iter().all(|block| at.contains(&address(block))));
        let next = give(&pool, 4 * KIB);
        assert_eq!((pool.statistics().hits, pool.statistics().free_bytes), (CACHED as u64 / 2, before.free_bytes - 4 * KIB));
        drop((again, next, sender));
    });
}

#[test]
fn the_central_free_list_is_bounded_and_emptied_on_demand() {
    let backend = backend(64 * MIB);
    for (block, count, kept) in [(64 * KIB, 128, 128), (64 * KIB, 256, 128), (4 * KIB, 2048, CACHED + 1024)] {
        let bytes = block * count;
        let pool = builder(&backend).limit(bytes).slab(bytes).patience(Duration::ZERO).build().unwrap();
        let blocks: Vec<_> = (0..count).map(|_| give(&pool, block)).collect();
        drop(blocks);
        let statistics = pool.statistics();
        assert_eq!((statistics.held_bytes, statistics.free_bytes), (0, bytes - block * kept as u64));
        let cached = pool.snapshot().into_iter().flat_map(|slab| slab.parts).filter(|part| part.2 == PartState::Cached).count();
        assert_eq!(cached, kept);
        let whole = give(&pool, bytes);
        assert_eq!(pool.statistics().memory_allocations, 1, "all of it was to be had");
        drop(whole);
    }
}

#[test]
fn blocks_in_use_are_not_in_the_central_free_list() {
    let backend = backend(64 * MIB);
    let pool = builder(&backend).slab(2 * MIB).build().unwrap();
    let stream = Stream::new(&backend, 0).unwrap();
    let held = Held::new(&backend, &stream);
    for _ in 0..CACHED {
        drop(stream.fill(give(&pool, 4 * KIB), .., 1).expect("queued"));
    }
    drop((0..CACHED / 2).map(|_| give(&pool, 4 * KIB)).collect::<Vec<_>>());
    assert_eq!(pool.statistics().pending, CACHED as u64 / 2);
    let others =
        thread::scope(|scope| scope.spawn(|| (0..CACHED).map(|_| give(&pool, 4 * KIB)).collect::<Vec<_>>()).join().expect("no panic"));
    assert_eq!(others.len(), CACHED, "none waits for the stream");
    assert!(others.iter().all(|buffer| buffer.to_vec().is_ok()));
    held.release();
    drop(others);
    pool.trim_to(0);
    assert_eq!((pool.statistics().pending, pool.statistics().reserved_bytes), (0, 0));
}
