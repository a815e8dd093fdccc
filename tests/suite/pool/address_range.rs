//! A pool over an address range: growth, moves, trims, failures.

use std::alloc::Layout;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use ringmem::backend::host::{Fault, Faults, HostBackend, Verb};
use ringmem::backend::{Backend, Block, Uses};
use ringmem::error::Unavailable;
use ringmem::memory::{Buffer, Device, DeviceOnly, Limited, Memory};
use ringmem::pool::{Builder, Pool};
use ringmem::stream::Stream;
use ringmem::{Error, Result};

use super::{Bytes, Clean, KIB, LIMIT, MIB, address, give, shortage};

/// Of the tests' backends.
const GRANULE: u64 = 64 * KIB;

fn backend(bytes: u64) -> Clean {
    let builder = HostBackend::builder().device_memory(bytes).mapping_granularity(Some(GRANULE));
    Clean::build(builder.faults(Faults::new()).log(true))
}

fn builder(backend: &Arc<HostBackend>) -> Builder<Device> {
    Pool::builder(Device::new(backend, 0))
}

fn mapped(backend: &HostBackend) -> u64 {
    backend.counters().device_live.bytes
}

fn calls(backend: &HostBackend, verb: Verb) -> u64 {
    backend.calls(verb).expect("they are counted")
}

fn numbered(buffer: &mut Bytes, number: usize) {
    buffer.fill(number as u8).expect("live");
}

fn is_numbered(buffer: &Bytes, number: usize) -> bool {
    buffer.to_vec().expect("live") == vec![number as u8; buffer.len()]
}

#[test]
fn memory_grows_in_place_by_what_is_lacking() {
    let backend = backend(64 * MIB);
    let pool = builder(&backend).build().expect("a pool");
    assert_eq!((calls(&backend, Verb::Reserve), mapped(&backend)), (0, 0), "at the first request");
    let first = give(&pool, 3 * MIB);
    let second = give(&pool, 2 * MIB + 1);
    assert_eq!(address(&second), address(&first) + 3 * MIB);
    assert_eq!(mapped(&backend), 5 * MIB + GRANULE, "in granules");
    let third = give(&pool, MIB + 56 * KIB);
    assert_eq!((address(&third), mapped(&backend)), (address(&second) + 2 * MIB + 256, 6 * MIB + GRANULE), "with the rest of the last one");
    let at = address(&first);
    drop((first, second));
    let joined = give(&pool, 5 * MIB);
    assert_eq!((address(&joined), mapped(&backend)), (at, 6 * MIB + GRANULE), "two holes are one");
    let statistics = pool.statistics();
    assert_eq!((statistics.reserved_bytes, statistics.reserved_peak), (6 * MIB + GRANULE, 6 * MIB + GRANULE));
    assert_eq!(statistics.slabs, statistics.memory_allocations);
    assert_eq!((calls(&backend, Verb::Reserve), calls(&backend, Verb::Allocate)), (1, 0));
    drop((third, joined));
    assert_eq!((pool.trim_to(0), mapped(&backend)), (6 * MIB + GRANULE, 0));
    drop(give(&pool, KIB));
    assert_eq!(mapped(&backend), GRANULE, "again");
}

/// Blocks of 1 MiB, of which every second is freed.
fn checkered(pool: &Pool<Device>, count: usize) -> Vec<Option<Bytes>> {
    let mut live: Vec<_> = (0..count).map(|_| Some(give(pool, MIB))).collect();
    live.iter_mut().flatten().enumerate().for_each(|(number, buffer)| numbered(buffer, number));
    live.iter_mut().step_by(2).for_each(|buffer| *buffer = None);
    live
}

#[test]
fn at_the_limit_whole_free_handles_move_together() {
    for (limit, device) in [(8, 64), (64, 8)] {
        let backend = backend(device * MIB);
        let pool = builder(&backend).limit(limit * MIB).build().expect("a pool");
        let live = checkered(&pool, 8);
        let places: Vec<_> = live.iter().flatten().map(address).collect();
        assert_eq!((mapped(&backend), calls(&backend, Verb::Remap)), (8 * MIB, 0));
        let large = give(&pool, 3 * MIB);
        assert_eq!((calls(&backend, Verb::Remap), mapped(&backend)), (3 * MIB / GRANULE, 8 * MIB));
        for ((number, buffer), place) in live.iter().enumerate().filter_map(|(number, buffer)| Some((number, buffer.as_ref()?))).zip(places)
        {
            assert!(address(buffer) == place && is_numbered(buffer, number), "a live block stays as it is");
        }
        assert_eq!(pool.statistics().reserved_bytes, mapped(&backend));
        assert_eq!(shortage(Bytes::new(pool.clone(), 4 << 20)), (4 * MIB, MIB, MIB));
        drop((live, large));
        assert_eq!(give(&pool, 8 * MIB).len() as u64, 8 * MIB, "all of it");
    }
}

#[test]
fn the_last_two_whole_free_handles_serve_a_request() {
    let backend = backend(64 * MIB);
    let pool = builder(&backend).limit(256 * GRANULE).exact(true).build().expect("a pool");
    let mut live: Vec<_> = (0..256).map(|_| Some(give(&pool, GRANULE))).collect();
    (live[10], live[20]) = (None, None);
    drop(give(&pool, 2 * GRANULE));
    assert_eq!((calls(&backend, Verb::Remap), mapped(&backend)), (2, 256 * GRANULE));
}

#[test]
fn out_of_memory_tells_what_can_be_moved_and_what_cannot() {
    let backend = backend(64 * MIB);
    let pool = builder(&backend).limit(8 * MIB).exact(true).build().expect("a pool");
    // Each hole is two granules long and begins in the middle of one, so that one of them is whole.
    let mut live: Vec<_> =
        (0..32).map(|_| [GRANULE / 2, 2 * GRANULE, GRANULE / 2, GRANULE].map(|bytes| Some(give(&pool, bytes)))).collect();
    live.iter_mut().for_each(|four| four[1] = None);
    let error = Bytes::new(pool.clone(), 33 * GRANULE as usize).map(drop).expect_err("32 granules are whole");
    let Error::OutOfMemory { requested, free, largest, limit, ref unavailable } = error else { panic!("{error}") };
    assert_eq!((requested, free, largest), (33 * GRANULE, 64 * GRANULE, 32 * GRANULE));
    let fragments = Unavailable::Fragments { movable: 32 * GRANULE, held: 32 * GRANULE };
    assert_eq!(unavailable.as_deref(), Some(&fragments));
    assert_eq!(limit, Some([8 * MIB - 64 * GRANULE, 8 * MIB]));
    assert!(
        error
            .to_string()
            .contains("2 MiB are free in mapped blocks that can be moved together, 2 MiB in those that live blocks, or a running kernel, hold in place"),
        "{error}"
    );
    drop(give(&pool, 32 * GRANULE));
    assert_eq!(pool.statistics().reserved_bytes, 8 * MIB);
}

#[test]
fn many_whole_free_handles_move_before_memory_is_mapped() {
    let backend = backend(64 * MIB);
    let pool = builder(&backend).build().expect("a pool");
    let live = checkered(&pool, 8);
    let large = give(&pool, 5 * MIB);
    assert_eq!((mapped(&backend), calls(&backend, Verb::Remap)), (9 * MIB, 4 * MIB / GRANULE), "the rest is mapped");
    assert_eq!(pool.statistics().memory_moves, 4 * MIB / GRANULE);
    drop((live, large));
}

#[test]
fn handles_that_would_leave_much_of_a_free_part_behind_stay_while_there_is_other_memory() {
    // The free part has one whole handle of its 2.5 MiB, or two.
    for (before, moves) in [(5 * MIB / 4, 0), (2 * MIB, 2)] {
        let whole = 16384 * MIB;
        let untouched = HostBackend::builder().device_memory(2 * whole).mapping_granularity(Some(GRANULE)).poison(false);
        let backend = Clean::build(untouched.faults(Faults::new()));
        let pool = builder(&backend).limit(2 * whole).build().expect("a pool");
        // Handles of 1 MiB.
        drop(give(&pool, whole));
        let [first, freed, last] = [before, 5 * MIB / 2, whole - before - 5 * MIB / 2].map(|bytes| give(&pool, bytes));
        drop(freed);
        assert_eq!((mapped(&backend), pool.statistics().movable_bytes), (whole, moves.max(1) * MIB));
        let large = give(&pool, 11 * MIB / 4);
        assert_eq!((calls(&backend, Verb::Remap), pool.statistics().memory_moves), (moves, moves));
        drop((first, last, large));
    }
}

#[test]
fn clean_handles_stay_where_mapping_elsewhere_takes_less() {
    // The least part: none of the blocks is small.
    const PART: u64 = MIB + GRANULE;
    const MANY: u64 = 3 * 16384;
    let untouched = HostBackend::builder().device_memory(2 * MANY * PART).mapping_granularity(Some(GRANULE)).poison(false);
    let backend = Clean::build(untouched.faults(Faults::new()));
    let pool = builder(&backend).limit(2 * MANY * PART).exact(true).build().expect("a pool");
    let give = |parts: u64| give(&pool, parts * PART);
    // Handles of 3 parts, one of 1, and more of 3.
    drop(give(MANY + 1));
    let [first, left, single] = [MANY - 2, 2, 1].map(give);
    let [right, _rest, clean] = [2, 1, 3].map(give);
    let _end = give(mapped(&backend) / PART - MANY - 1 - 6);
    let hole = address(&single);
    drop(single);
    assert_eq!((pool.trim_to(0), pool.statistics().memory_moves), (PART, 0));
    // No whole handle is free next to the hole, and none fits into it.
    drop((left, right, clean));
    let before = mapped(&backend);
    let joined = give(5);
    assert_eq!((address(&joined) + 2 * PART, mapped(&backend)), (hole, before + PART));
    assert_eq!(pool.statistics().memory_moves, 0);
    drop((first, joined));
}

#[test]
fn small_blocks_do_not_lie_between_large_ones() {
    let backend = backend(64 * MIB);
    let pool = builder(&backend).build().expect("a pool");
    let live: Vec<_> = (0..8).map(|_| [2 * MIB, 4 * KIB, MIB].map(|bytes| give(&pool, bytes))).collect();
    let (large, small): (Vec<_>, Vec<_>) = live.into_iter().map(|[large, small, largest]| (large, [small, largest])).unzip();
    assert_eq!(mapped(&backend), 16 * MIB + 8 * MIB + GRANULE);
    drop(large);
    assert_eq!(pool.statistics().movable_bytes, 16 * MIB, "all of it");
    let joined = give(&pool, 16 * MIB);
    assert_eq!((mapped(&backend), calls(&backend, Verb::Remap)), (24 * MIB + GRANULE, 0), "it is in one piece");
    drop((joined, small));
}

#[test]
fn blocks_lie_in_the_others_zone_before_a_request_is_refused() {
    let backend = backend(64 * MIB);
    let pool = builder(&backend).limit((64 + 17) * GRANULE).exact(true).build().expect("a pool");
    let [whole, first, long, last] = [64 * GRANULE, 2 * KIB, MIB, 60 * KIB].map(|bytes| give(&pool, bytes));
    let at = address(&long);
    drop((long, last));
    assert_eq!(pool.statistics().movable_bytes, 16 * GRANULE, "too few for the next");
    let large = give(&pool, MIB + 1);
    assert_eq!((address(&large), calls(&backend, Verb::Remap)), (at, 0), "a large one between small ones");
    drop((whole, first, large));
    pool.trim_to(0);
    let large = give(&pool, 80 * GRANULE + 256);
    let small = give(&pool, 4 * KIB);
    assert_eq!(address(&small), address(&large) + 80 * GRANULE + 256, "a small one behind a large one");
    drop((large, small));
}

#[test]
fn a_handle_moves_to_small_blocks_before_they_lie_among_large_ones() {
    let backend = Clean::build(HostBackend::builder().device_memory(64 * MIB).mapping_granularity(Some(MIB)));
    let pool = builder(&backend).exact(true).build().expect("a pool");
    // One granule of the hole is whole: half of the hole would stay behind.
    let [first, hole, last] = [3 * MIB / 2, 2 * MIB, 121 * MIB / 2].map(|bytes| give(&pool, bytes));
    let places = address(&hole)..address(&hole) + 2 * MIB;
    drop(hole);
    let small: Vec<_> = (0..256).map(|_| give(&pool, 4 * KIB)).collect();
    assert!(small.iter().all(|block| !places.contains(&address(block))), "among large blocks");
    assert_eq!((pool.statistics().memory_moves, mapped(&backend)), (1, 64 * MIB));
    let among = give(&pool, 4 * KIB);
    assert!(places.contains(&address(&among)), "no handle is whole");
    drop((first, last, small, among));
}

#[test]
fn a_pool_of_few_granules_has_one_zone() {
    for (granules, are_together) in [(63, true), (64, false)] {
        let backend = backend(64 * MIB);
        let pool = builder(&backend).limit(granules * GRANULE).build().expect("a pool");
        let [large, small] = [MIB + 256, 256].map(|bytes| give(&pool, bytes));
        assert_eq!(address(&small) == address(&large) + MIB + 256, are_together, "{granules}");
        assert_eq!(mapped(&backend), MIB + if are_together { GRANULE } else { 2 * GRANULE });
    }
}

#[test]
fn a_request_that_the_device_cannot_serve_maps_nothing() {
    let backend = backend(64 * MIB);
    let other = Buffer::<u8, _>::new(Device::new(&backend, 0), 4 << 20).expect("room");
    let pools = [builder(&backend).limit(64 * MIB).build().expect("a pool"), builder(&backend).build().expect("a pool")];
    for (pool, kept) in pools.iter().zip([0, 2 * MIB]) {
        let live = (kept > 0).then(|| give(pool, kept));
        let before = calls(&backend, Verb::Map);
        let (requested, free, largest) = shortage(Bytes::new(pool.clone(), 62 << 20));
        assert_eq!((requested, free, largest), (62 * MIB, 60 * MIB - kept, 60 * MIB - kept));
        assert_eq!(calls(&backend, Verb::Map), before, "each block would have been given back");
        drop(live);
        assert_eq!(give(pool, 60 * MIB).len() as u64, 60 * MIB, "as in the error");
        assert_eq!(pool.trim_to(0), 60 * MIB);
    }
    drop(other);
}

#[test]
fn pages_of_managed_memory_give_way_to_a_pool() {
    let backend = backend(64 * MIB);
    let pages = Buffer::<u8, _>::new(ringmem::memory::Unified::new(&backend, 0), 40 << 20).expect("room");
    let pages = Stream::new(&backend, 0).expect("a stream").prefetch(pages, Some(0)).expect("queued").wait().expect("on the device");
    let free = backend.memory_info(0).expect("a device").expect("it is known").free;
    assert!(free < 60 * MIB, "the pages are on the device");
    let pool = builder(&backend).build().expect("a pool");
    let before = calls(&backend, Verb::Allocate);
    let large = give(&pool, 60 * MIB);
    assert!(calls(&backend, Verb::Map) > 0 && calls(&backend, Verb::Allocate) == before, "mapped, and no slab");
    drop((pages, large));
}

#[test]
fn a_limit_below_the_pool_s_is_known_before_memory_is_mapped() {
    let backend = backend(64 * MIB);
    let pool = Pool::builder(Limited::new(Device::new(&backend, 0), 8 * MIB)).build().expect("a pool");
    let refused = Buffer::<u8, _>::new(pool.clone(), 9 << 20).map(drop).expect_err("above the limit below");
    let Error::OutOfMemory { largest, .. } = refused else { panic!("{refused}") };
    assert_eq!((largest, calls(&backend, Verb::Map)), (8 * MIB, 0));
}

#[test]
fn memory_that_is_mapped_in_advance_ages_from_then() {
    let step = 4 * KIB;
    let backend = Clean::build(HostBackend::builder().device_memory(64 * MIB).mapping_granularity(Some(step)));
    let now = Arc::new(AtomicU64::new(1_000_000));
    let clock = Arc::clone(&now);
    let pool = builder(&backend).clock(move || clock.load(Relaxed)).build().expect("a pool");
    let live = [(); 20].map(|()| give(&pool, MIB));
    let last = give(&pool, 100);
    assert!(mapped(&backend) > 20 * MIB + step, "more than was requested");
    assert_eq!(pool.trim_older_than(Duration::from_nanos(1)), 0);
    now.store(1_000_001, Relaxed);
    assert!(pool.trim_older_than(Duration::from_nanos(1)) > 0);
    drop((live, last));
}

#[test]
fn a_trim_frees_whole_free_handles_by_age() {
    let (backend, now) = (backend(64 * MIB), Arc::new(AtomicU64::new(1000)));
    let clock = Arc::clone(&now);
    let pool = builder(&backend).clock(move || clock.load(Relaxed)).build().expect("a pool");
    // Too long for a cache, and in handles of one granule.
    let long = MIB + GRANULE;
    let [first, second, kept, third, fourth, fifth] = [long, long, 100, long, long, long].map(|bytes| give(&pool, bytes));
    drop((first, second));
    now.store(2000, Relaxed);
    drop((third, fourth, fifth));
    let age = Duration::from_nanos;
    assert_eq!(pool.trim_older_than(age(1001)), 0);
    assert_eq!((pool.trim_older_than(age(1000)), mapped(&backend)), (2 * long, 3 * long + GRANULE));
    now.store(2500, Relaxed);
    assert_eq!(pool.trim_older_than(age(501)), 0, "it was used later");
    assert_eq!((pool.trim_to(2 * long), mapped(&backend)), (long + GRANULE, 2 * long), "no more than asked for");
    assert_eq!((pool.trim_older_than(age(500)), mapped(&backend)), (2 * long - GRANULE, GRANULE), "the handle of a live block stays");
    drop(kept);
    assert_eq!((pool.trim_to(0), mapped(&backend)), (GRANULE, 0));
}

#[test]
fn a_device_without_room_for_a_granule_has_slabs() {
    for (limit, requested) in [(GRANULE - 1, GRANULE - 1), (GRANULE + 5000, GRANULE + 5000)] {
        let backend = backend(64 * MIB);
        let pool = builder(&backend).limit(limit).build().expect("a pool");
        let whole = give(&pool, requested);
        assert_eq!(mapped(&backend), requested);
        drop(whole);
    }
    let backend = backend(64 * MIB);
    backend.set_faults(&Faults::new().on(Verb::Reserve, Fault::from(1)));
    let pool = builder(&backend).build().expect("a pool");
    let blocks = [3 * MIB, 100, MIB].map(|bytes| give(&pool, bytes));
    assert_eq!((calls(&backend, Verb::Map), pool.statistics().slabs), (0, 1), "no addresses");
    assert_eq!(calls(&backend, Verb::Reserve), 1, "asked for once");
    drop(blocks);
    assert_eq!((pool.trim_to(0), mapped(&backend)), (32 * MIB, 0));
}

#[test]
fn a_failure_of_any_call_leaks_nothing() {
    let script = |verb, nth: u64| {
        let backend = backend(2 * MIB);
        backend.set_faults(&Faults::new().on(verb, Fault::nth(nth)));
        let pool = builder(&backend).limit(3 * MIB / 2).build().expect("a pool");
        let mut live: Vec<(Bytes, usize)> = Vec::new();
        for (number, bytes) in
            [100, 150 * KIB, 256 * KIB, 50 * KIB, 512 * KIB, 175 * KIB, 768 * KIB].into_iter().cycle().take(60).enumerate()
        {
            if let Ok(mut buffer) = Bytes::new(pool.clone(), bytes as usize) {
                numbered(&mut buffer, number);
                live.push((buffer, number));
            }
            if live.len() > 5 {
                live.swap_remove(number % 3);
                live.swap_remove(number % 2);
            }
            if number % 13 == 12 {
                pool.trim_to(MIB / 2);
            }
            assert!(live.iter().all(|(buffer, number)| is_numbered(buffer, *number)), "fault {nth}");
            assert_eq!(pool.statistics().reserved_bytes, mapped(&backend), "fault {nth}");
        }
        assert_eq!(pool.statistics().live, live.len() as u64);
        drop(live);
        pool.trim_to(0);
        assert_eq!((pool.statistics().reserved_bytes, mapped(&backend)), (0, 0), "fault {nth}");
        let whole = || Bytes::new(pool.clone(), 1 << 20);
        drop(whole().or_else(|_| whole()).expect("no further fault"));
        drop(pool);
        assert_eq!(mapped(&backend), 0, "fault {nth}");
        calls(&backend, verb)
    };
    for verb in [Verb::Reserve, Verb::Map, Verb::Remap, Verb::Free] {
        let calls = script(verb, u64::MAX / 4);
        assert!(calls > 0, "{verb:?}");
        (1..=calls).step_by(1 + calls as usize / 40).for_each(|nth| {
            script(verb, nth);
        });
    }
}

/// The backend reads its clock for the log of each call, after the call.
#[test]
fn a_panic_in_any_call_leaks_nothing() {
    for calls in 0..120 {
        let reads = Arc::new(AtomicU64::new(u64::MAX));
        let left = Arc::clone(&reads);
        let clock = move || {
            assert_ne!(left.fetch_sub(1, Relaxed), 0, "a clock that a test asked for");
            7
        };
        let backend = HostBackend::builder()
            .device_memory(8 * MIB)
            .mapping_granularity(Some(GRANULE))
            .log(true)
            .clock(Arc::new(clock))
            .build()
            .expect("a backend");
        let pool = builder(&backend).build().expect("a pool");
        let mut live = checkered(&pool, 8);
        reads.store(calls, Relaxed);
        let large = catch_unwind(AssertUnwindSafe(|| Bytes::new(pool.clone(), 3 << 20)));
        reads.store(u64::MAX, Relaxed);
        assert!(calls > 0 || large.is_err());
        assert_eq!(pool.statistics().reserved_bytes, mapped(&backend), "after {calls}");
        for (number, buffer) in live.iter_mut().enumerate() {
            assert!(buffer.as_ref().is_none_or(|buffer| is_numbered(buffer, number)), "after {calls}");
        }
        if !matches!(large, Ok(Ok(_))) {
            assert_eq!(give(&pool, 3 * MIB).len() as u64, 3 * MIB, "after {calls}");
        }
        drop((large, live));
        assert_eq!(give(&pool, 8 * MIB).len() as u64, 8 * MIB, "after {calls}");
        drop(pool);
        assert_eq!(mapped(&backend), 0, "after {calls}");
    }
}

#[test]
fn a_request_waits_for_the_uses_of_handles_that_it_needs() {
    let backend = backend(20 * MIB);
    let pool = builder(&backend).patience(Duration::from_secs(3600)).build().expect("a pool");
    let [used, other] = [(); 2].map(|()| Stream::new(&backend, 0).expect("a stream"));
    use ringmem::backend::{Backend, Ticket};
    backend.stream_wait(Ticket { stream: other.id(), number: 1 }, used.id()).expect("two streams");
    let live: Vec<_> = (0..4).map(|_| [4 * MIB - 256, MIB + 256].map(|bytes| give(&pool, bytes))).collect();
    let kept: Vec<_> = live
        .into_iter()
        .map(|[long, short]| {
            drop(used.fill(long, .., 1).expect("queued"));
            short
        })
        .collect();
    let (sender, receiver) = mpsc::channel();
    let theirs = pool.clone();
    thread::spawn(move || sender.send(Bytes::new(theirs, 6 << 20).map(|buffer| buffer.len())));
    assert!(receiver.recv_timeout(Duration::from_millis(50)).is_err(), "their bytes are in use");
    assert_eq!(calls(&backend, Verb::Remap), 0);
    backend.record_position(other.id()).expect("a stream");
    used.synchronize().expect("both are executed");
    assert_eq!(receiver.recv_timeout(LIMIT).expect("in time").expect("moved together"), 6 << 20);
    assert!(calls(&backend, Verb::Remap) > 0);
    drop(kept);
}

#[test]
fn threads_grow_and_move_at_once() {
    let backend = backend(24 * MIB);
    let pool = builder(&backend).limit(20 * MIB).patience(Duration::from_secs(3600)).build().expect("a pool");
    thread::scope(|scope| {
        for seed in 0..4_u64 {
            let pool = pool.clone();
            scope.spawn(move || {
                let (mut live, mut random): (Vec<(Bytes, usize)>, _) = (Vec::new(), seed);
                for number in 0..400 {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let bytes = ((random >> 33) % (1 << (8 + random % 14))) + 1;
                    if let Ok(mut buffer) = Bytes::new(pool.clone(), bytes as usize) {
                        numbered(&mut buffer, number);
                        live.push((buffer, number));
                    }
                    if live.len() > 6 {
                        let (buffer, number) = live.swap_remove((random >> 50) as usize % 7);
                        assert!(is_numbered(&buffer, number), "somebody else wrote to it");
                    }
                    if number % 97 == 96 {
                        pool.trim_to(4 * MIB);
                    }
                }
            });
        }
    });
    let statistics = pool.statistics();
    assert!(
        statistics.live == 0 && statistics.reserved_peak <= 20 * MIB && statistics.reserved_bytes == mapped(&backend),
        "{statistics:?}"
    );
    pool.trim_to(0);
    assert_eq!((pool.statistics().reserved_bytes, mapped(&backend)), (0, 0));
}

#[test]
fn a_snapshot_shows_each_run_of_mapped_memory() {
    let backend = backend(64 * MIB);
    let pool = builder(&backend).build().expect("a pool");
    let [first, hole, last] = [2 * MIB, 3 * MIB, MIB + GRANULE].map(|bytes| give(&pool, bytes));
    assert_eq!(pool.snapshot().len(), 1);
    drop(hole);
    pool.trim_to(0);
    let runs = pool.snapshot();
    let seen: Vec<_> = runs.iter().map(|run| (run.device_address.map(|address| address.get()), run.bytes)).collect();
    assert_eq!(seen, [(Some(address(&first)), 2 * MIB), (Some(address(&last)), MIB + GRANULE)]);
    assert_ne!(runs[0].number, runs[1].number);
    let whole: u64 = runs.iter().flat_map(|run| &run.parts).map(|(_, bytes, _)| bytes).sum();
    assert_eq!((whole, pool.statistics().reserved_bytes), (3 * MIB + GRANULE, 3 * MIB + GRANULE));
    let broken: Vec<_> = runs.iter().filter(|run| run.parts.first().is_none_or(|&(offset, ..)| offset != 0)).collect();
    assert!(broken.is_empty(), "offsets count from the run's beginning: {broken:?}");
    let again = give(&pool, 3 * MIB);
    assert_eq!((address(&again), pool.snapshot().len()), (address(&first) + 2 * MIB, 1), "the gap is filled first");
}

#[test]
fn an_adaptor_that_must_see_its_allocations_has_slabs() {
    let backend = backend(64 * MIB);
    let pool = Pool::builder(ringmem::memory::Statistics::new(Device::new(&backend, 0))).build().expect("a pool");
    drop(Buffer::<u8, _>::new(pool, 100).expect("room"));
    assert_eq!((calls(&backend, Verb::Reserve), calls(&backend, Verb::Allocate)), (0, 1));
    let memory: Arc<Device> = Arc::new(Device::new(&backend, 0));
    let pool = Pool::builder(memory).build().expect("a pool");
    drop(Buffer::<u8, _>::new(pool, 100).expect("room"));
    assert_eq!((calls(&backend, Verb::Map), calls(&backend, Verb::Allocate)), (1, 1), "a pointer forwards");
}

#[test]
fn pools_over_one_limited_memory_share_its_limit() {
    let backend = backend(64 * MIB);
    let limited = Limited::new(Device::new(&backend, 0), 8 * MIB);
    let [first, second] = [(); 2].map(|()| Pool::builder(limited.clone()).build().expect("a pool"));
    let take = |pool: &Pool<_>, bytes: u64| Buffer::<u8, _>::new(pool.clone(), bytes as usize);
    let live = (take(&first, 6 * MIB).expect("room"), take(&second, MIB).expect("room"));
    assert_eq!((limited.used(), mapped(&backend), calls(&backend, Verb::Allocate)), (7 * MIB, 7 * MIB, 0), "mapped memory counts");
    assert_eq!(shortage(take(&second, 2 * MIB)), (2 * MIB, MIB, MIB), "what the limit has left");
    drop(live.0);
    assert_eq!(shortage(take(&second, 2 * MIB)), (2 * MIB, MIB, MIB), "the other pool keeps it");
    assert_eq!(first.trim_to(0), 6 * MIB);
    let large = take(&second, 7 * MIB).expect("the rest");
    assert_eq!((limited.used(), mapped(&backend)), (8 * MIB, 8 * MIB));
    drop((live.1, large));
    assert_eq!((take(&second, 8 * MIB).expect("handles move").len() as u64, limited.used()), (8 * MIB, 8 * MIB));
    drop((first, second));
    assert_eq!((limited.used(), mapped(&backend)), (0, 0));
}

/// Frees each block that it moves, as a driver may that refuses both places.
struct Losing(Device);

// SAFETY: the device's blocks, unchanged.
unsafe impl Memory for Losing {
    type Visibility = DeviceOnly;

    fn alloc(&self, layout: Layout, on: Option<&Stream>) -> Result<Block> {
        self.0.alloc(layout, on)
    }
    unsafe fn free(&self, block: &Block, uses: &Uses) -> Result<()> {
        // SAFETY: the caller promises that the block is of this memory and freed once, with its uses; blocks are the device's, unchanged.
        unsafe { self.0.free(block, uses) }
    }
    fn backend(&self) -> &Arc<dyn Backend> {
        self.0.backend()
    }
    fn device(&self) -> u32 {
        self.0.device()
    }
    fn mapping_granularity(&self) -> Option<u64> {
        self.0.mapping_granularity()
    }
    unsafe fn remap(&self, block: &mut Block, _: u64) -> Result<()> {
        // SAFETY: nothing uses the block: the caller's promise. It is emptied, so it is not freed again.
        unsafe { self.0.free(block, &Uses::NONE) }?;
        *block = Block::empty(block.location, 1);
        Err(Error::Busy { what: "a move that a test asked to fail" })
    }
}

#[test]
fn a_handle_that_a_move_loses_returns_its_bytes_to_the_limit() {
    let backend = backend(64 * MIB);
    let limited = Limited::new(Losing(Device::new(&backend, 0)), 4 * MIB);
    let pool = Pool::builder(limited.clone()).limit(4 * MIB).build().expect("a pool");
    let take = |bytes: u64| Buffer::<u8, _>::new(pool.clone(), bytes as usize);
    let mut live: Vec<_> = (0..4).map(|_| Some(take(MIB).expect("room"))).collect();
    (live[0], live[2]) = (None, None);
    let large = take(2 * MIB).expect("what was lost is mapped anew");
    let reserved = pool.statistics().reserved_bytes;
    assert!(calls(&backend, Verb::Free) > 0 && calls(&backend, Verb::Remap) == 0);
    assert_eq!((reserved, limited.used()), (mapped(&backend), mapped(&backend)));
    drop((live, large));
}

/// The sizes of some training steps of a transformer, layer by layer: parameters, activations until the backward pass, gradients, optimiser state after the
/// first step, scratch memory, and a varying length of the sequences. Frees blocks by their place in `live`.
fn train(mut alloc: impl FnMut(u64) -> u64, mut free: impl FnMut(u64)) {
    const LAYERS: usize = 12;
    const WIDTH: u64 = 768;
    const BATCH: u64 = 8;
    const VOCABULARY: u64 = 50_257;
    let weights = [3 * WIDTH * WIDTH, WIDTH * WIDTH, 4 * WIDTH * WIDTH, 4 * WIDTH * WIDTH, WIDTH, WIDTH];
    let mut kept: Vec<u64> = (0..LAYERS).flat_map(|_| weights).map(|weight| alloc(4 * weight)).collect();
    kept.push(alloc(4 * VOCABULARY * WIDTH));
    let mut gradients = Vec::new();
    for (step, length) in [512, 300, 700, 384, 256, 640].into_iter().enumerate() {
        let tokens = BATCH * length;
        let mut activations = vec![alloc(8 * tokens), alloc(2 * tokens * WIDTH)];
        for _ in 0..LAYERS {
            activations.extend([3 * tokens * WIDTH, 12 * tokens * length].map(|elements| alloc(2 * elements)));
            let scratch = alloc(4 * 12 * tokens * length);
            free(scratch);
            activations.extend([tokens * WIDTH, 4 * tokens * WIDTH, 4 * tokens * WIDTH, tokens].map(|elements| alloc(2 * elements)));
        }
        let mut error = alloc(2 * tokens * VOCABULARY);
        let loss = alloc(4 * tokens * VOCABULARY);
        free(loss);
        for _ in 0..LAYERS {
            for activation in activations.split_off(activations.len() - 6) {
                let [product, next] = [4 * tokens * WIDTH, tokens * WIDTH].map(|elements| alloc(2 * elements));
                free(activation);
                free(product);
                free(std::mem::replace(&mut error, next));
            }
            if step == 0 {
                gradients.extend(weights.map(|weight| alloc(4 * weight)));
            }
        }
        free(error);
        activations.into_iter().for_each(&mut free);
        if step == 0 {
            kept.extend((0..2 * LAYERS).flat_map(|_| weights).map(|weight| alloc(4 * weight)));
        }
        for weight in weights {
            let scratch = [alloc(4 * weight), alloc(4 * weight)];
            scratch.into_iter().for_each(&mut free);
        }
    }
    kept.into_iter().chain(gradients).for_each(free);
}

#[test]
fn a_training_run_reserves_little_more_than_it_uses() {
    let run = |is_range: bool| {
        let backend = HostBackend::builder().device_memory(64 << 30).poison(false).build().expect("a backend");
        let builder = builder(&backend).limit(64 << 30);
        let pool = if is_range { builder } else { builder.slab(32 * MIB) }.build().expect("a pool");
        let (live, peak) = (std::cell::Cell::new(0), std::cell::Cell::new(0));
        let blocks = std::cell::RefCell::new(std::collections::HashMap::new());
        train(
            |bytes| {
                let block = give(&pool, bytes);
                live.set(live.get() + bytes);
                peak.set(live.get().max(peak.get()));
                let number = address(&block);
                blocks.borrow_mut().insert(number, block);
                number
            },
            |number| {
                let block = blocks.borrow_mut().remove(&number).expect("live");
                live.set(live.get() - block.size_bytes() as u64);
            },
        );
        pool.statistics().reserved_peak as f64 / peak.get() as f64
    };
    let (range, slabs) = (run(true), run(false));
    assert!(range < 1.02, "{range}");
    assert!(slabs > 1.05, "over slabs, as they are: {slabs}");
}
