use ringmem::memory::{Buffer, Device, Outcome, Trace};
use ringmem::pool::{Classes, PartState};

use super::{KIB, MIB, allocations, backend, builder, give, pool};

#[test]
fn known_requests_give_the_known_statistics() {
    let backend = backend(64 * MIB);
    let pool = pool(&backend);
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
fn utilisation_counts_allocated_bytes_and_waste_the_unrequested_ones() {
    let backend = backend(64 * MIB);
    let pool = builder(&backend).limit(MIB).slab(MIB).build().unwrap();
    let _block = give(&pool, 129 * KIB);
    let statistics = pool.statistics();
    let (requested, held) = (statistics.requested_bytes, statistics.held_bytes);
    assert!(requested == 129 * KIB && requested < held, "{statistics:?}");
    assert_eq!((statistics.utilisation(), statistics.reserved_bytes), (held as f64 / MIB as f64, MIB));
    assert_eq!(statistics.internal_waste(), 1.0 - requested as f64 / held as f64);
}

#[test]
fn fragmentation_is_one_minus_the_largest_free_part() {
    let backend = backend(64 * MIB);
    let pool = builder(&backend).limit(4 * MIB).slab(4 * MIB).build().unwrap();
    assert_eq!((pool.statistics().fragmentation(), pool.statistics().utilisation()), (0.0, 0.0), "nothing is held");
    let sizes = [4, 1, 4, 1, 8, 1].map(|size| size * 64 * KIB);
    let mut blocks: Vec<_> = sizes.into_iter().map(|bytes| Some(give(&pool, bytes))).collect();
    let rest = (4 * MIB - 19 * 64 * KIB) / (64 * KIB);
    let _rest: Vec<_> = (0..rest).map(|_| give(&pool, 64 * KIB)).collect();
    assert_eq!((pool.statistics().free_bytes, pool.statistics().fragmentation()), (0, 0.0), "nothing is free");
    assert_eq!(pool.statistics().utilisation(), 1.0, "all that is reserved is live");
    for index in [0, 2, 4] {
        blocks[index] = None;
    }
    let cached = pool.snapshot().into_iter().flat_map(|slab| slab.parts).filter(|part| part.2 == PartState::Cached).count();
    assert_eq!((cached, pool.statistics().free_bytes), (3, 0), "cached is not free");
    assert_eq!((pool.statistics().cached_bytes, pool.statistics().largest_cached), (16 * 64 * KIB, 8 * 64 * KIB));
    assert_eq!(pool.statistics().fragmentation(), 0.5, "a piece each");
    assert_eq!(pool.statistics().utilisation(), 0.75, "nor live: 48 of 64 pieces are");
    assert_eq!(pool.trim_to(0), 0, "a live block holds the slab");
    let statistics = pool.statistics();
    assert_eq!((statistics.free_bytes, statistics.free_blocks, statistics.largest_free), (16 * 64 * KIB, 3, 8 * 64 * KIB));
    assert_eq!((statistics.fragmentation(), statistics.cached_bytes), (0.5, 0));
    let slab = pool.snapshot().remove(0);
    assert_eq!(slab.parts[..3].iter().map(|part| part.2).collect::<Vec<_>>(), [PartState::Free, PartState::Live, PartState::Free]);
    assert_eq!(slab.parts.iter().map(|part| part.1).sum::<u64>(), slab.bytes);
    for (index, largest, free) in [(1, 9.0, 17.0), (3, 18.0, 18.0)] {
        blocks[index] = None;
        pool.trim_to(0);
        assert_eq!(pool.statistics().fragmentation(), 1.0 - largest / free);
    }
}

#[test]
fn the_high_water_mark_remains_when_slabs_are_freed() {
    let backend = backend(16 * MIB);
    let pool = builder(&backend).slab(2 * MIB).build().unwrap();
    drop([(); 2].map(|()| give(&pool, 2 * MIB)));
    assert_eq!(pool.trim_to(0), 4 * MIB);
    let kept = give(&pool, 2 * MIB);
    assert_eq!((pool.statistics().reserved_bytes, pool.statistics().reserved_peak), (2 * MIB, 4 * MIB));
    drop(kept);
}

#[test]
fn cached_bytes_count_as_fragmented() {
    let backend = backend(16 * MIB);
    let pool = builder(&backend).limit(16 * MIB).slab(16 * MIB).build().unwrap();
    let (left, gone): (Vec<_>, Vec<_>) = (0..16).map(|number| (number, give(&pool, MIB))).partition(|(number, _)| number % 2 == 0);
    drop(gone);
    let statistics = pool.statistics();
    assert_eq!((statistics.held_bytes, statistics.free_bytes, statistics.cached_bytes), (8 * MIB, 0, 8 * MIB), "in this thread's cache");
    assert_eq!((statistics.largest_free, statistics.largest_cached), (0, MIB));
    assert_eq!(statistics.fragmentation(), 0.875);
    drop(left);
    pool.trim_to(0);
    assert_eq!((pool.statistics().cached_bytes, pool.statistics().fragmentation()), (0, 0.0));
    let whole = give(&pool, 16 * MIB);
    drop(whole);
    let statistics = pool.statistics();
    assert_eq!((statistics.cached_bytes, statistics.fragmentation()), (16 * MIB, 0.0), "cached, in one piece");
}

#[test]
fn internal_waste_is_bounded_by_the_class_steps() {
    let backend = backend(64 * MIB);
    for (steps, most) in [(1, 0.5), (2, 1.0 / 3.0), (4, 0.2), (8, 1.0 / 9.0)] {
        let pool = builder(&backend).slab(32 * MIB).classes(Classes::new(4096, 12, steps).unwrap()).build().unwrap();
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

fn log_uniform() -> Trace {
    let requests = 1100;
    let size = |number: u32| (4096.0 * (11.0 * (f64::from(number) + 0.5) / f64::from(requests)).exp2()) as u64;
    let lines = (0..requests).map(|number| format!("alloc {number} {} 1\nfree {number}\n", size(number)));
    Trace::parse(&lines.collect::<String>()).unwrap()
}

#[test]
fn log_uniform_requests_have_the_known_mean_waste() {
    let (backend, trace) = (backend(64 * MIB), log_uniform());
    for (steps, mean, most) in [(1, 0.28, 0.5), (2, 0.16, 1.0 / 3.0), (4, 0.08, 0.25)] {
        let pool = builder(&backend).slab(32 * MIB).classes(Classes::new(4096, 12, steps).unwrap()).build().unwrap();
        let mut wastes = Vec::new();
        let waste = |outcome| match outcome {
            Outcome::Allocated => wastes.push(pool.statistics().internal_waste()),
            outcome => assert!(matches!(outcome, Outcome::Freed), "{outcome:?}"),
        };
        trace.replay_with(&pool, &[], waste).unwrap();
        assert!(wastes.len() == 1100 && wastes.iter().all(|&waste| waste < most), "by {steps}: {wastes:?}");
        let got = wastes.iter().sum::<f64>() / 1100.0;
        assert_eq!((got * 100.0).round() / 100.0, mean, "by {steps}: {got}");
    }
}

#[test]
fn trimming_idle_slabs_makes_room_for_other_memories() {
    let backend = backend(4 * MIB);
    let pool = builder(&backend).slab(256 * KIB).build().unwrap();
    let mut blocks: Vec<_> = (0..16).map(|_| Some(give(&pool, 256 * KIB))).collect();
    for (number, block) in blocks.iter_mut().enumerate() {
        block.as_mut().unwrap().fill(number as u8).unwrap();
    }
    let below = || Buffer::<u8, _>::new(Device::new(&backend, 0), 512 << 10);
    for number in (1..16).step_by(2) {
        blocks[number] = None;
    }
    assert_eq!(super::shortage(below()).1, 0);
    assert_eq!(pool.trim_to(0), 8 * 256 * KIB);
    let (_, free, largest) = super::shortage(below());
    assert_eq!((free, largest), (8 * 256 * KIB, 256 * KIB));
    blocks[2] = None;
    super::shortage(below());
    assert_eq!(pool.trim_to(0), 256 * KIB);
    assert!(below().is_ok());
    for (number, block) in blocks.iter().enumerate() {
        let bytes = block.as_ref().map(|block| block.to_vec().unwrap());
        assert!(bytes.is_none_or(|bytes| bytes.iter().all(|&byte| byte == number as u8)), "live bytes stay");
    }
}

#[test]
fn added_slabs_have_the_lowest_free_numbers() {
    let backend = backend(MIB);
    let pool = builder(&backend).slab(64 * KIB).build().unwrap();
    let numbers = || pool.snapshot().iter().map(|slab| slab.number).collect::<Vec<_>>();
    let mut live: Vec<_> = (0..5).map(|_| give(&pool, 64 * KIB)).collect();
    assert_eq!(numbers(), [0, 1, 2, 3, 4]);
    for removed in [vec![3, 1], vec![4, 0], vec![0, 1, 2, 3, 4]] {
        let count = removed.len();
        live = live.into_iter().enumerate().filter(|(at, _)| !removed.contains(at)).map(|(_, buffer)| buffer).collect();
        assert_eq!(pool.trim_to(0), count as u64 * 64 * KIB);
        assert_eq!(numbers().len(), 5 - count);
        live.extend((0..count).map(|_| give(&pool, 64 * KIB)));
        assert_eq!(numbers(), [0, 1, 2, 3, 4]);
    }
}
