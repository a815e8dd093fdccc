//! What a pool says of itself.

use std::sync::Mutex;

use ringmem::pool::{Classes, PartState};

use super::{KIB, MIB, allocations, backend, builder, give, pool};

#[test]
fn a_replay_of_known_requests_gives_the_known_figures() {
    let backend = backend(64 * MIB);
    let pool = pool(&backend);
    // 1052 requests that nothing can serve: each is the first of its kind, or more than what is cached.
    let kept: Vec<_> = (0..1051).map(|_| give(&pool, 4 * KIB)).collect();
    for _ in 0..9472 {
        drop(give(&pool, 40 * KIB));
    }
    let statistics = pool.statistics();
    assert_eq!((statistics.acquires(), statistics.hits, statistics.misses), (10_523, 9_471, 1_052));
    assert_eq!((statistics.hit_rate() * 1000.0).round(), 900.0);
    assert_eq!((statistics.live, statistics.returns), (1051, 9472));
    assert_eq!((statistics.requested_bytes, statistics.held_bytes), (1051 * 4 * KIB, 1051 * 4 * KIB));
    assert!(allocations(&backend) * 10 <= statistics.acquires(), "nine of ten allocations are avoided");
    let class = pool.class_statistics().into_iter().find(|class| class.bytes == 40 * KIB).unwrap();
    assert_eq!((class.requests, class.hits), (9472, 9471));
    drop(kept);
    let end = pool.statistics();
    assert_eq!((end.live, end.requested_bytes, end.held_bytes, end.returns), (0, 0, 0, 10_523));
    assert_eq!(end.reserved_bytes, backend.counters().device_live.bytes);
    assert_eq!(end.memory_allocations, allocations(&backend));
}

#[test]
fn fragmentation_is_of_free_pieces() {
    let backend = backend(64 * MIB);
    let pool = builder(&backend).limit(4 * MIB).slab(4 * MIB).build().unwrap();
    assert_eq!(pool.statistics().fragmentation(), 0.0, "nothing is held");
    // 4 4 8 of free memory, each behind a live block, and live blocks in what is left.
    let sizes = [4, 1, 4, 1, 8, 1].map(|size| size * 64 * KIB);
    let mut blocks: Vec<_> = sizes.into_iter().map(|bytes| Some(give(&pool, bytes))).collect();
    let rest = (4 * MIB - 19 * 64 * KIB) / (64 * KIB);
    let _rest: Vec<_> = (0..rest).map(|_| give(&pool, 64 * KIB)).collect();
    assert_eq!((pool.statistics().free_bytes, pool.statistics().fragmentation()), (0, 0.0), "nothing is free");
    for index in [0, 2, 4] {
        blocks[index] = None;
    }
    let cached = pool.snapshot().into_iter().flat_map(|slab| slab.parts).filter(|part| part.2 == PartState::Cached).count();
    assert_eq!((cached, pool.statistics().free_bytes), (3, 0), "cached is not free");
    assert_eq!(pool.defragment(), 0, "a live block holds the slab");
    let statistics = pool.statistics();
    assert_eq!((statistics.free_bytes, statistics.largest_free), (16 * 64 * KIB, 8 * 64 * KIB));
    assert_eq!(statistics.fragmentation(), 0.5);
    let slab = pool.snapshot().remove(0);
    assert_eq!(slab.parts[..3].iter().map(|part| part.2).collect::<Vec<_>>(), [PartState::Free, PartState::Live, PartState::Free]);
    assert_eq!(slab.parts.iter().map(|part| part.1).sum::<u64>(), slab.bytes);
}

#[test]
fn waste_is_what_nobody_asked_for_and_has_its_bound() {
    let backend = backend(64 * MIB);
    for (steps, most) in [(1, 0.5), (2, 1.0 / 3.0), (4, 0.2), (8, 1.0 / 9.0)] {
        let pool = builder(&backend).classes(Classes::new(4096, 12, steps).unwrap()).build().unwrap();
        assert_eq!(pool.statistics().internal_waste(), 0.0);
        for bytes in [4097, 5000, 8191, 8193, 100_000, 262_145, 1_048_577] {
            let buffer = give(&pool, bytes);
            let statistics = pool.statistics();
            assert_eq!(statistics.requested_bytes, bytes);
            assert!(statistics.held_bytes >= bytes && statistics.internal_waste() < most, "{bytes} in {}", statistics.held_bytes);
            drop(buffer);
        }
        let exact = builder(&backend).exact(true).build().unwrap();
        let buffer = give(&exact, 5000);
        assert_eq!(exact.statistics().held_bytes, 5120);
        drop(buffer);
    }
}

#[test]
fn a_request_that_fails_although_enough_is_free_succeeds_after_joining_what_is_free() {
    let backend = backend(4 * MIB);
    let shared = Mutex::new(Vec::new());
    let pool = builder(&backend).slab(256 * KIB).patience(std::time::Duration::ZERO).build().unwrap();
    let mut blocks: Vec<_> = (0..16).map(|_| give(&pool, 256 * KIB)).collect();
    for (number, block) in blocks.iter_mut().enumerate() {
        block.fill(number as u8).unwrap();
    }
    // Every other: as much is free as is asked for, but no two of them are neighbours.
    let odd: Vec<_> =
        blocks.into_iter().enumerate().filter_map(|(number, block)| if number % 2 == 0 { Some((number, block)) } else { None }).collect();
    assert_eq!(super::shortage(super::Bytes::new(pool.clone(), 512 << 10)).0, 512 * KIB);
    let mut odd = odd.into_iter();
    // With one more given back three are free in a row.
    odd.next();
    assert!(pool.defragment() > 0 || pool.statistics().reserved_bytes < 4 * MIB);
    shared.lock().unwrap().push(give(&pool, 512 * KIB));
    for (number, block) in odd {
        assert!(block.to_vec().unwrap().iter().all(|&byte| byte == number as u8), "live bytes stay");
    }
}
