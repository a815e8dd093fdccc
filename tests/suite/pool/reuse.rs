use std::alloc::Layout;
use std::panic::{AssertUnwindSafe, catch_unwind};

use ringmem::Error;
use ringmem::backend::Uses;
use ringmem::memory::{Aligned, Arena, Buffer, Device, Memory, Unified};
use ringmem::pool::{Classes, Pool};

use super::{KIB, MIB, address, allocations, backend, builder, give, pool};

#[test]
fn every_size_of_a_class_reuses_the_freed_block() {
    let backend = backend(64 * MIB);
    let pool = builder(&backend).slab(32 * MIB).build().unwrap();
    let classes = Classes::default();
    let mut least = 1;
    for most in (0..).map_while(|class| classes.size_of(class)).filter(|&most| most <= 8 * MIB) {
        let first = give(&pool, most);
        let at = address(&first);
        drop(first);
        let before = allocations(&backend);
        for bytes in [least, (least + most) / 2, most] {
            let again = give(&pool, bytes);
            assert_eq!((address(&again), again.size_bytes() as u64), (at, bytes), "a class of {most}");
        }
        least = most + 1;
        assert_eq!(allocations(&backend), before);
    }
    let statistics = pool.statistics();
    assert_eq!((statistics.acquires(), statistics.returns, statistics.live), (statistics.returns, statistics.returns, 0));
    assert_eq!(statistics.misses, statistics.acquires() / 4, "one of four, each first of its class");
}

#[test]
fn a_larger_free_block_is_used_before_a_new_slab() {
    let backend = backend(64 * MIB);
    let pool = builder(&backend).limit(4 * MIB).slab(4 * MIB).build().unwrap();
    let large = give(&pool, 3 * MIB);
    assert_eq!(allocations(&backend), 1);
    let at = address(&large);
    drop(large);
    assert_eq!(address(&give(&pool, 3 * MIB)), at);
    let small: Vec<_> = (0..2).map(|_| give(&pool, 2 * MIB)).collect();
    assert_eq!(allocations(&backend), 1);
    assert_ne!(address(&small[0]), address(&small[1]));
    assert_eq!(pool.statistics().memory_frees, 0);
}

#[test]
fn at_the_limit_the_longest_empty_slabs_are_freed() {
    let backend = backend(64 * MIB);
    let now = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let clock = std::sync::Arc::clone(&now);
    let read = move || clock.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let pool = builder(&backend).limit(6 * MIB).slab(2 * MIB).clock(read).build().unwrap();
    let slabs: Vec<_> = (0..3).map(|_| give(&pool, 2 * MIB)).collect();
    let at: Vec<_> = slabs.iter().map(address).collect();
    let mut slabs = slabs.into_iter();
    let (first, second, third) = (slabs.next().unwrap(), slabs.next().unwrap(), slabs.next().unwrap());
    // The thread caches two blocks of a class; prewarming shows that they left.
    drop(second);
    pool.trim_to(u64::MAX);
    drop(first);
    pool.trim_to(u64::MAX);
    drop(third);
    pool.trim_to(u64::MAX);
    let longer = give(&pool, 4 * MIB);
    let freed: Vec<_> = frees(&backend);
    assert_eq!(freed, [at[1], at[0]], "as much as is needed, the oldest first");
    assert_eq!(pool.statistics().reserved_bytes, 6 * MIB);
    drop(longer);
}

pub fn frees(backend: &ringmem::backend::host::HostBackend) -> Vec<u64> {
    use ringmem::backend::host::{Phase, Verb};
    let calls = backend.call_log();
    calls.iter().filter(|call| call.verb == Verb::Free && call.phase == Phase::Called).filter_map(|call| call.from).collect()
}

#[test]
fn a_request_above_the_largest_class_is_allocated_exactly() {
    let backend = backend(64 * MIB);
    let pool = builder(&backend).slab(32 * MIB).classes(Classes::new(4096, 10, 4).unwrap()).build().unwrap();
    drop(give(&pool, 2 * MIB));
    let before = backend.counters();
    drop(give(&pool, 2 * MIB + 1));
    let after = backend.counters();
    assert_eq!(after.device_allocations.bytes - before.device_allocations.bytes, 2 * MIB + 1);
    assert_eq!(after.device_frees.bytes - before.device_frees.bytes, 2 * MIB + 1);
    let statistics = pool.statistics();
    assert_eq!((statistics.live, statistics.requested_bytes, statistics.held_bytes, statistics.hits), (0, 0, 0, 0));
}

#[test]
fn slabs_serve_every_alignment_up_to_2_mib() {
    for is_exact in [false, true] {
        let backend = backend(64 * MIB);
        let pool = builder(&backend).slab(32 * MIB).exact(is_exact).build().unwrap();
        let first = give(&pool, 100);
        let mut blocks = Vec::new();
        for align in [1, 256, 512, 4096, 64 << 10, 2 << 20].repeat(3) {
            let layout = Layout::from_size_align(1000, align).unwrap();
            let block = pool.alloc(layout, None).unwrap();
            assert_eq!((block.layout, block.device_address.unwrap().get() % align as u64), (layout, 0));
            blocks.push(block);
        }
        let mut places: Vec<_> = blocks.iter().map(|block| block.device_address.unwrap().get()).chain([address(&first)]).collect();
        places.sort_unstable();
        assert!(places.windows(2).all(|pair| pair[1] - pair[0] >= 1000 || pair[0] == address(&first)), "no two share bytes: {places:x?}");
        assert_eq!((allocations(&backend), pool.statistics().slabs), (1, 1));
        for block in blocks {
            // SAFETY: this pool's block, freed once, unused.
            unsafe { pool.free(&block, &Uses::NONE) }.unwrap();
        }
        assert_eq!(pool.statistics().live, 1);
        drop(first);
        pool.trim_to(0);
        assert_eq!(backend.counters().device_live.bytes, 0, "the parts have coalesced");
    }
}

#[test]
fn a_block_aligned_beyond_256_bytes_is_reused() {
    let backend = backend(64 * MIB);
    let pool = pool(&backend);
    let memory = Aligned::new(pool.clone(), 4096).unwrap();
    for _ in 0..100 {
        let buffer = Buffer::<u8, _>::new(memory.clone(), 1000).unwrap();
        assert!(buffer.device_address().unwrap().get().is_multiple_of(4096));
    }
    assert_eq!((allocations(&backend), pool.statistics().hits), (1, 99));
}

#[test]
fn an_alignment_above_2_mib_is_an_error_with_the_maximum() {
    let backend = backend(64 * MIB);
    let pool = pool(&backend);
    drop(give(&pool, 1000));
    let refused = pool.alloc(Layout::from_size_align(1000, 4 << 20).unwrap(), None).map(drop);
    assert!(matches!(refused, Err(Error::Align { asked: 0x40_0000, most: 0x20_0000, .. })), "{refused:?}");
}

#[test]
fn a_pool_over_small_alignments_serves_large_ones() {
    let backend = backend(64 * MIB);
    let arena = Arena::new(Device::new(&backend, 0), 16 << 20, 256).unwrap();
    let pool = Pool::builder(arena).slab(64 * KIB).limit(16 * MIB).build().unwrap();
    for (bytes, align) in [(1000, 4096), (1 << 20, 4096), (1000, 1 << 20), (3 << 20, 2 << 20)] {
        let block = pool.alloc(Layout::from_size_align(bytes, align).unwrap(), None).unwrap();
        assert!(block.device_address.unwrap().get().is_multiple_of(align as u64), "{bytes} at {align}");
        // SAFETY: of this pool, freed once, unused.
        unsafe { pool.free(&block, &Uses::NONE) }.unwrap();
    }
}

#[test]
fn a_pool_over_aligned_memory_keeps_its_alignment() {
    let backend = backend(64 * MIB);
    let aligned = || Aligned::new(Device::new(&backend, 0), 4096).unwrap();
    for is_exact in [false, true] {
        let pool = Pool::builder(aligned()).exact(is_exact).build().unwrap();
        pool.prewarm(1000, 3).unwrap();
        let live: Vec<_> = (0..10).map(|_| Buffer::<u8, _>::new(pool.clone(), 1000).unwrap()).collect();
        assert!(live.iter().all(|buffer| buffer.device_address().unwrap().get().is_multiple_of(4096)));
        drop(live);
        for _ in 0..2 {
            let buffer = Buffer::<u8, _>::new(pool.clone(), 4096).unwrap();
            assert_eq!(buffer.cast::<u64>().map(|words| words.len()).ok(), Some(512), "the buffer knows its alignment, new or reused");
        }
    }
}

#[test]
fn an_empty_request_makes_no_calls() {
    let backend = backend(64 * MIB);
    let pool = pool(&backend);
    drop(give_none(&pool));
    assert_eq!((backend.call_log().len(), pool.statistics().acquires()), (0, 0));
}

fn give_none(pool: &super::DevicePool) -> super::Bytes {
    Buffer::new(pool.clone(), 0).expect("a buffer without bytes")
}

#[test]
fn a_failed_prewarm_reserves_nothing() {
    let backend = backend(64 * MIB);
    let pool = builder(&backend).slab(32 * MIB).build().unwrap();
    assert!(matches!(pool.prewarm(MIB, 100), Err(Error::OutOfMemory { .. })));
    assert_eq!((pool.statistics().reserved_bytes, backend.counters().device_live.bytes), (0, 0));
    let kept = give(&pool, MIB);
    assert!(pool.prewarm(MIB, 100).is_err());
    assert_eq!((pool.statistics().reserved_bytes, pool.statistics().held_bytes), (32 * MIB, MIB), "the slab of the live block stays");
    pool.prewarm(MIB, 60).expect("they fit");
    assert_eq!(pool.statistics().free_bytes, 63 * MIB);
    drop(kept);
    let panicking = builder(&backend).limit(32 * MIB).slab(8 * MIB).on_out_of_memory(|_| panic!("asked for")).build().unwrap();
    pool.trim_to(0);
    assert!(catch_unwind(AssertUnwindSafe(|| panicking.prewarm(MIB, 100))).is_err());
    assert_eq!((panicking.statistics().reserved_bytes, backend.counters().device_live.bytes), (0, 0));
}

#[test]
fn a_pool_that_is_not_enabled_has_no_blocks_in_advance() {
    let backend = backend(64 * MIB);
    let pool = builder(&backend).enabled(false).build().unwrap();
    let error = pool.prewarm(1000, 1).unwrap_err();
    assert!(matches!(error, Error::Unsupported { .. }), "{error}");
}

#[test]
fn prewarmed_blocks_need_no_new_allocation() {
    let backend = backend(64 * MIB);
    let pool = pool(&backend);
    pool.prewarm(100 * KIB, 20).unwrap();
    let before = allocations(&backend);
    assert!(before > 0);
    assert_eq!((pool.statistics().held_bytes, pool.statistics().acquires()), (0, 0), "nobody has them");
    let all: Vec<_> = (0..20).map(|_| give(&pool, 100 * KIB)).collect();
    assert_eq!(allocations(&backend), before);
    assert_eq!(pool.statistics().live, 20);
    drop(all);
    assert!(pool.prewarm(64 * MIB, 2).is_err(), "more than there is");
    assert_eq!(pool.statistics().live, 0);
}

#[test]
fn batches_of_one_shape_use_one_allocation() {
    let backend = backend(64 * MIB);
    let pool = builder(&backend).slab(256 * KIB).build().unwrap();
    for batch in 0..50_u32 {
        let mut buffer = Buffer::<f32, _>::new(pool.clone(), 64 * 1024).unwrap();
        let outcome: Result<(), u32> = if batch % 7 == 0 { Err(batch) } else { buffer.fill(batch as f32).map_err(|_| batch) };
        assert_eq!(outcome.is_err(), batch % 7 == 0);
    }
    assert_eq!(allocations(&backend), 1);
    assert_eq!(pool.statistics().live, 0);
}

#[test]
fn managed_memory_is_pooled() {
    let backend = backend(64 * MIB);
    let pool = Pool::builder(Unified::new(&backend, 0)).build().unwrap();
    let shape = || Buffer::<f32, _>::new(pool.clone(), 256 * 256).unwrap();
    let mut first = shape();
    first.as_mut_slice().unwrap().fill(2.0);
    let (at, location) = (first.as_ptr(), first.location());
    drop(first);
    let second = shape();
    assert_eq!((second.as_ptr(), second.location()), (at, location));
    assert_eq!(pool.statistics().hits, 1);
}

#[test]
fn short_exact_blocks_are_not_reused_for_a_class() {
    let backend = backend(64 * MIB);
    let classes = Classes::new(4096, 21, 1).unwrap();
    let pool = builder(&backend).classes(classes).exact(true).build().unwrap();
    let (short, after) = (give(&pool, 100), give(&pool, 4096));
    let (at, end) = (address(&short), address(&after));
    assert!(end.abs_diff(at) < 4096);
    drop(short);
    let whole = give(&pool, 4096);
    assert!(address(&whole).abs_diff(end) >= 4096, "two blocks share bytes");
    drop((whole, after));
    assert_eq!((pool.statistics().live, pool.statistics().requested_bytes), (0, 0));
}

#[test]
fn exact_blocks_are_not_cached_and_coalesce_at_once() {
    let backend = backend(64 * MIB);
    let pool = builder(&backend).limit(2 * MIB).slab(2 * MIB).exact(true).build().unwrap();
    let (odd, class) = ([give(&pool, 5 * KIB + 1), give(&pool, 9 * KIB + 300)], give(&pool, 5 * KIB));
    let at = address(&odd[0]);
    let (held, free) = (pool.statistics().held_bytes, pool.statistics().free_bytes);
    assert_eq!(held, 5 * KIB + 256 + 9 * KIB + 512 + 5 * KIB);
    drop(class);
    assert_eq!(pool.statistics().free_bytes, free + 5 * KIB);
    drop(odd);
    assert_eq!((pool.statistics().free_bytes, pool.statistics().largest_free), (free + held, 2 * MIB));
    assert_eq!(address(&give(&pool, held)), at, "one piece");
    assert_eq!((pool.statistics().hits, pool.statistics().misses, pool.statistics().live), (0, 4, 0));
}

#[test]
fn a_stream_of_another_backend_is_an_error() {
    let (ours, theirs) = (backend(64 * MIB), backend(64 * MIB));
    let pool = pool(&ours);
    drop(give(&pool, KIB));
    let stream = ringmem::stream::Stream::new(&theirs, 0).unwrap();
    assert!(matches!(Buffer::<u8, _>::new_on(pool.clone(), 1024, &stream), Err(ringmem::Error::OtherBackend { .. })));
    assert_eq!(pool.statistics().live, 0);
}
