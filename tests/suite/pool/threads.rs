use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::mpsc;
use std::thread;

use ringmem::memory::{Buffer, Pinned};
use ringmem::pool::Pool;

use super::{Bytes, KIB, MIB, allocations, backend, builder, give, pool};

#[test]
fn no_block_is_allocated_twice_and_statistics_add_up() {
    const THREADS: u64 = 8;
    const ROUNDS: u64 = 100_000;
    let backend = backend(64 * MIB);
    let pool = Pool::builder(Pinned::new(&backend, 0)).limit(32 * MIB).slab(2 * MIB).build().unwrap();
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let pool = &pool;
            scope.spawn(move || {
                let mut kept: Vec<Buffer<u64, _>> = Vec::new();
                for round in 0..ROUNDS {
                    let tag = thread << 32 | round;
                    let mut buffer =
                        Buffer::<u64, _>::new(pool.clone(), 1 + (tag.wrapping_mul(2_654_435_761) >> 7) as usize % 1000).unwrap();
                    let slice = buffer.as_mut_slice().unwrap();
                    let last = slice.len() - 1;
                    (slice[0], slice[last]) = (tag, tag);
                    kept.push(buffer);
                    if kept.len() == 8 {
                        let old = kept.swap_remove((round % 7) as usize);
                        let slice = old.as_slice().unwrap();
                        assert!(slice[0] >> 32 == thread && slice[0] == slice[slice.len() - 1], "another's tag");
                    }
                    if round % 5000 == 0 {
                        pool.trim_to(0);
                    }
                }
            });
        }
    });
    let statistics = pool.statistics();
    assert_eq!(statistics.acquires(), THREADS * ROUNDS);
    assert_eq!((statistics.returns, statistics.live, statistics.requested_bytes), (THREADS * ROUNDS, 0, 0));
    assert_eq!(statistics.held_bytes, 0, "no part is lost");
    // The scope does not wait for threads' caches.
    super::eventually("every cached block is back", || {
        pool.trim_to(0);
        pool.statistics().reserved_bytes == 0
    });
}

#[test]
fn blocks_freed_by_another_thread_are_not_lost() {
    let backend = backend(64 * MIB);
    let pool = builder(&backend).limit(4 * MIB).slab(4 * MIB).build().unwrap();
    let (sender, receiver) = mpsc::sync_channel::<Bytes>(16);
    let consumer = thread::spawn(move || receiver.into_iter().count());
    for _ in 0..20_000 {
        sender.send(give(&pool, 10 * KIB)).expect("the consumer runs");
    }
    drop(sender);
    assert_eq!(consumer.join().expect("no panic"), 20_000);
    let statistics = pool.statistics();
    assert_eq!((statistics.live, statistics.requested_bytes, allocations(&backend)), (0, 0, 1));
}

#[test]
fn statistics_are_consistent_during_cross_thread_frees() {
    let backend = backend(64 * MIB);
    let pool = pool(&backend);
    let (sender, receiver) = mpsc::sync_channel::<Bytes>(16);
    let consumer = thread::spawn(move || receiver.into_iter().count());
    let producer = thread::spawn({
        let pool = pool.clone();
        move || (0..20_000).for_each(|number| sender.send(give(&pool, 10 * KIB + number % 3 * 50 * KIB)).expect("the consumer runs"))
    });
    while !producer.is_finished() {
        let read = pool.statistics();
        assert!(read.requested_bytes <= read.held_bytes && read.held_bytes <= read.reserved_bytes, "{read:?}");
        assert!(read.held_bytes + read.cached_bytes + read.free_bytes <= read.reserved_bytes, "{read:?}");
        assert!(read.reserved_bytes <= read.reserved_peak && read.largest_cached <= read.cached_bytes, "{read:?}");
        assert!(read.returns + read.live == read.acquires() && (read.live > 0 || read.held_bytes == 0), "{read:?}");
        for part in [read.hit_rate(), read.utilisation(), read.fragmentation(), read.internal_waste()] {
            assert!((0.0..=1.0).contains(&part), "{read:?}");
        }
    }
    producer.join().expect("no panic");
    assert_eq!(consumer.join().expect("no panic"), 20_000);
    assert_eq!((pool.statistics().requested_bytes, pool.statistics().held_bytes), (0, 0));
}

#[test]
fn a_finished_thread_leaves_its_blocks_and_counts() {
    let backend = backend(64 * MIB);
    let pool = builder(&backend).limit(4 * MIB).slab(4 * MIB).build().unwrap();
    for _ in 0..20 {
        let pool = pool.clone();
        thread::spawn(move || drop((give(&pool, MIB), give(&pool, MIB)))).join().expect("no panic");
    }
    let statistics = pool.statistics();
    assert_eq!((statistics.acquires(), statistics.returns, statistics.free_bytes), (40, 40, 4 * MIB));
    drop(give(&pool, 4 * MIB));
}

#[test]
fn a_thread_finds_its_cache_in_each_of_forty_pools() {
    let backend = backend(64 * MIB);
    let mut pools: Vec<_> = (0..40).map(|_| builder(&backend).slab(64 * KIB).build().unwrap()).collect();
    // Newest first: the caches are sorted by pool.
    let mut at: Vec<_> = pools.iter().rev().map(|pool| super::address(&give(pool, KIB))).collect();
    at.reverse();
    for round in 0..3 {
        if round == 1 {
            for pool in &mut pools[..10] {
                *pool = builder(&backend).slab(64 * KIB).build().unwrap();
                drop(give(pool, KIB));
            }
        }
        for (number, (pool, at)) in pools.iter().zip(&at).enumerate() {
            let before = pool.statistics();
            let buffer = give(pool, KIB);
            assert!(number < 10 || super::address(&buffer) == *at, "pool {number}");
            assert_eq!((pool.statistics().hits, pool.statistics().misses), (before.hits + 1, 1), "pool {number}");
        }
    }
}

struct Late(Option<(Bytes, super::DevicePool)>);

impl Drop for Late {
    fn drop(&mut self) {
        if let Some((buffer, pool)) = self.0.take() {
            drop(buffer);
            drop(give(&pool, 2 * KIB));
        }
    }
}

thread_local! {
    static LATE: std::cell::RefCell<Late> = const { std::cell::RefCell::new(Late(None)) };
}

#[test]
fn allocations_during_a_thread_exit_are_counted_and_freed() {
    let backend = backend(64 * MIB);
    let pool = pool(&backend);
    for _ in 0..10 {
        let pool = pool.clone();
        thread::spawn(move || {
            // Made before the cache: a thread's destructors run in order of creation or reverse.
            LATE.with(|_| ());
            let kept = give(&pool, KIB);
            LATE.with(|late| late.borrow_mut().0 = Some((kept, pool.clone())));
            let again = give(&pool, KIB);
            drop(again);
        })
        .join()
        .expect("no panic");
    }
    let statistics = pool.statistics();
    assert_eq!((statistics.acquires(), statistics.returns, statistics.live, statistics.requested_bytes), (30, 30, 0, 0));
    assert_eq!(statistics.free_bytes, statistics.reserved_bytes);
}

#[test]
fn statistics_and_trim_work_while_threads_start_and_exit() {
    let backend = backend(64 * MIB);
    let pool = builder(&backend).limit(64 * MIB).patience(super::LIMIT).build().unwrap();
    let addresses = Mutex::new(HashSet::new());
    let (done, is_done) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..4 {
            let (pool, addresses, done) = (&pool, &addresses, done.clone());
            scope.spawn(move || {
                for _ in 0..100 {
                    thread::scope(|inner| {
                        inner.spawn(|| {
                            for bytes in [KIB, 2 * KIB, 4 * KIB] {
                                let buffer = give(pool, bytes);
                                let at = super::address(&buffer);
                                assert!(addresses.lock().unwrap().insert(at), "handed out twice");
                                assert!(addresses.lock().unwrap().remove(&at));
                                drop(buffer);
                            }
                        });
                    });
                }
                done.send(()).expect("the test waits");
            });
        }
        drop(done);
        let mut left = 4;
        while left > 0 {
            match is_done.recv_timeout(std::time::Duration::from_micros(100)) {
                Ok(()) => left -= 1,
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
                Err(mpsc::RecvTimeoutError::Timeout) => {}
            }
            let statistics = pool.statistics();
            assert!(statistics.live <= 4 && statistics.reserved_bytes <= 64 * MIB);
            pool.trim_to(0);
        }
    });
    assert_eq!((pool.statistics().acquires(), pool.statistics().live), (1200, 0));
}
