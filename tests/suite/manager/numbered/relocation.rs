use super::*;
use crate::rig::busy_stream::Held;
use crate::rig::panicking_clock::{clock, has_struck, strike};
use ringmem::backend::host::{Fault, Faults, Verb};
use ringmem::manager::{BufferId, Relocated};
use ringmem::memory::{Aligned, Memory};
use ringmem::pool::{Pool, Statistics};
use ringmem::stream::Stream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

const KIB: usize = 1 << 10;
const MIB: u64 = 1 << 20;
const BLOCK: usize = 64 * KIB;

type DevicePool = Pool<DeviceMemory>;
type Ids = Vec<BufferId<u64>>;

fn pool(backend: &Arc<HostBackend>, blocks: usize, slabs: usize) -> DevicePool {
    let slab = (blocks * BLOCK) as u64;
    Pool::builder(Device::new(backend, 0)).slab(slab).limit(slab * slabs as u64).build().expect("a pool")
}

fn contents(number: usize, len: usize) -> Vec<u64> {
    (0..len as u64).map(|at| (number as u64) << 48 | at).collect()
}

fn give<M: Memory + Clone>(manager: &MemoryManager<M>, memory: &M, number: usize, bytes: usize) -> BufferId<u64> {
    let buffer = Buffer::from_slice(memory.clone(), &contents(number, bytes / 8)).expect("room");
    manager.register(buffer).expect("room")
}

fn full(manager: &MemoryManager<DevicePool>, pool: &DevicePool, blocks: usize) -> Ids {
    let ids: Ids = (0..blocks).map(|number| give(manager, pool, number, BLOCK)).collect();
    let mut placed: Vec<_> = ids.into_iter().map(|id| (address(manager, id), id)).collect();
    placed.sort_unstable_by_key(|&(address, _)| address);
    placed.into_iter().map(|(_, id)| id).collect()
}

fn address<M: Memory>(manager: &MemoryManager<Pool<M>>, id: BufferId<u64>) -> u64
where
    M::Visibility: ringmem::memory::DeviceReadable,
{
    manager.lease(id).expect("live").device_address().expect("it has bytes").get()
}

fn is_intact(manager: &MemoryManager<DevicePool>, id: BufferId<u64>, whole: &[Vec<u64>]) -> bool {
    let found = manager.lease(id).expect("live").view().to_vec().expect("live");
    whole.iter().filter(|contents| **contents == found).count() == 1
}

fn release_every_second(manager: &MemoryManager<DevicePool>, ids: &Ids) -> Ids {
    ids.iter().skip(1).step_by(2).for_each(|&id| assert_eq!(manager.free(id).expect("live"), 0));
    ids.iter().step_by(2).copied().collect()
}

fn all_contents(blocks: usize) -> Vec<Vec<u64>> {
    (0..blocks).map(|number| contents(number, BLOCK / 8)).collect()
}

fn quiet(statistics: Statistics) -> (u64, u64, u64) {
    (statistics.live, statistics.requested_bytes, statistics.held_bytes)
}

#[test]
fn defragmentation_makes_room_for_a_block_twice_as_large() {
    let backend = backend();
    let pool = pool(&backend, 16, 1);
    let manager = MemoryManager::new(pool.clone());
    let left = release_every_second(&manager, &full(&manager, &pool, 16));
    let two = || Buffer::<u8, _>::new(pool.clone(), 2 * BLOCK);
    let before = pool.statistics();
    match two().map(drop) {
        Err(Error::OutOfMemory { requested, free, largest, limit, .. }) => {
            let block = BLOCK as u64;
            assert_eq!((requested, free, largest, limit), (2 * block, 8 * block, block, Some([8 * block, 16 * block])));
        }
        other => panic!("it should not fit: {other:?}"),
    }
    let copies = backend.counters().device_copies;
    let done = manager.defragment().expect("no failure");
    let moved = 4;
    assert_eq!((done.moved, done.copied_bytes, done.kept, done.slabs), (moved, moved * BLOCK as u64, 0, 0));
    let after = backend.counters().device_copies;
    assert_eq!((after.count - copies.count, after.bytes - copies.bytes), (moved, done.copied_bytes), "as the backend counts");
    assert!(left.iter().all(|&id| is_intact(&manager, id, &all_contents(16))));
    assert_eq!(pool.statistics().largest_free, 8 * BLOCK as u64, "all that is free is in one piece");
    assert_eq!(quiet(pool.statistics()), quiet(before), "nothing was asked for or given back");
    drop(two().expect("it fits now"));
    drop(Buffer::<u8, _>::new(pool.clone(), 8 * BLOCK).expect("and so does all of it"));
    let again = manager.defragment().expect("no failure");
    assert_eq!((again.moved, again.copied_bytes), (0, 0), "nothing is left to do");
}

#[test]
fn relocation_keeps_the_alignment_of_blocks() {
    let backend = backend();
    let memory = Aligned::new(Device::new(&backend, 0), 4096).expect("a power of two");
    let pool = Pool::builder(memory).slab(MIB).limit(MIB).build().expect("a pool");
    let manager = MemoryManager::new(pool.clone());
    let ids: Vec<_> = (0..128).map(|number| give(&manager, &pool, number, 5000)).collect();
    let (left, gone): (Vec<_>, Vec<_>) = (0..128).partition(|number| number % 2 == 0);
    gone.into_iter().for_each(|number: usize| assert_eq!(manager.free(ids[number]).expect("live"), 0));
    let done = manager.defragment().expect("no failure");
    assert!(done.moved >= 30, "{done:?}");
    for number in left {
        assert!(address(&manager, ids[number]).is_multiple_of(4096));
        let found = manager.lease(ids[number]).expect("live").view().to_vec().expect("live");
        assert_eq!(found, contents(number, 5000 / 8));
    }
    drop(Buffer::<u8, _>::new(pool, 400 * KIB).expect("what is free is in one piece"));
}

#[test]
fn relocation_skips_and_counts_leased_and_used_buffers() {
    let backend = backend();
    let (pool, stream) = (pool(&backend, 16, 1), Stream::new(&backend, 0).expect("a stream"));
    let manager = MemoryManager::new(pool.clone());
    let left = release_every_second(&manager, &full(&manager, &pool, 16));
    let (last, before_last, third) = (left[7], left[6], left[5]);
    let lease = manager.lease(last).expect("live");
    let alone = manager.lease_mut(before_last).expect("live");
    let held = Held::new(&backend, &stream);
    let mut queued = manager.lease_mut(third).expect("live");
    queued.used_by(&stream).expect("a live stream");
    drop(queued);
    let places = || [last, third].map(|id| address(&manager, id));
    let (before, written) = (places(), alone.device_address());
    let done = manager.defragment().expect("no failure");
    assert_eq!((done.kept, done.moved), (3, 2), "the holes before the fourth are used by the two after it");
    assert_eq!((places(), alone.device_address()), (before, written));
    drop((lease, alone));
    held.let_go();
    let done = manager.defragment().expect("no failure");
    assert_eq!((done.kept, pool.statistics().largest_free), (0, 8 * BLOCK as u64));
    assert!(left.iter().all(|&id| is_intact(&manager, id, &all_contents(16))));
}

#[test]
fn relocation_empties_and_frees_sparse_slabs() {
    let backend = backend();
    let pool = pool(&backend, 8, 4);
    let manager = MemoryManager::new(pool.clone());
    let ids = full(&manager, &pool, 32);
    let stays = |slab: usize, block: usize| block < [6, 1, 2, 3][slab];
    let (left, gone): (Vec<_>, Vec<_>) = (0..32).partition(|&number| stays(number / 8, number % 8));
    gone.into_iter().for_each(|number| assert_eq!(manager.free(ids[number]).expect("live"), 0));
    assert_eq!(pool.statistics().slabs, 4);
    let done = manager.defragment().expect("no failure");
    assert_eq!((done.moved, done.slabs, done.slab_bytes), (3, 2, 16 * BLOCK as u64));
    assert_eq!((pool.statistics().slabs, pool.statistics().reserved_bytes), (2, 16 * BLOCK as u64));
    assert!(left.iter().all(|&number| is_intact(&manager, ids[number], &all_contents(32))));
}

#[test]
fn relocation_fills_the_slab_of_an_unregistered_block() {
    let backend = backend();
    let pool = pool(&backend, 8, 2);
    let manager = MemoryManager::new(pool.clone());
    let ids = full(&manager, &pool, 16);
    let fixed = manager.take(ids[5]).expect("not leased");
    let place = fixed.device_address();
    (0..16).filter(|number| ![5, 9, 11, 13].contains(number)).for_each(|number| assert_eq!(manager.free(ids[number]).expect("live"), 0));
    let done = manager.defragment().expect("no failure");
    assert_eq!((done.moved, done.slabs, pool.statistics().slabs), (3, 1, 1));
    assert_eq!(fixed.device_address(), place);
    assert!([9, 11, 13].iter().all(|&number| is_intact(&manager, ids[number], &all_contents(16))));
    assert!(all_contents(16).contains(&fixed.to_vec().expect("live")));
}

#[test]
fn defragment_leaves_buffers_of_other_pools_and_managers() {
    let backend = backend();
    let [one, other] = [(); 2].map(|()| pool(&backend, 16, 1));
    let manager = MemoryManager::new(one.clone());
    let left = release_every_second(&manager, &full(&manager, &other, 16));
    let theirs = MemoryManager::new(one.clone());
    let kept = release_every_second(&theirs, &full(&theirs, &one, 16));
    manager.register(Buffer::<u64, _>::new(one, 0).expect("room")).expect("room");
    assert_eq!(manager.defragment().expect("no failure"), Relocated::default());
    assert!(kept.iter().all(|&id| is_intact(&theirs, id, &all_contents(16))));
    assert!(left.iter().all(|&id| is_intact(&manager, id, &all_contents(16))));
    let own = MemoryManager::new(other);
    let left: Ids = left.into_iter().map(|id| own.register(manager.take(id).expect("not leased")).expect("room")).collect();
    assert_eq!(own.defragment().expect("no failure").moved, 4);
    assert!(left.iter().all(|&id| is_intact(&own, id, &all_contents(16))));
}

#[test]
fn a_failed_relocation_copy_keeps_every_buffer_intact() {
    for failing in 1..=4 {
        let backend = backend();
        let pool = pool(&backend, 16, 1);
        let manager = MemoryManager::new(pool.clone());
        let left = release_every_second(&manager, &full(&manager, &pool, 16));
        let before = quiet(pool.statistics());
        let already = backend.counters().device_copies.count;
        backend.set_faults(&Faults::new().on(Verb::Copy, Fault::nth(failing)));
        assert!(matches!(manager.defragment(), Err(Error::Injected { .. })), "copy {failing}");
        backend.set_faults(&Faults::new());
        assert_eq!(backend.counters().device_copies.count - already, failing - 1);
        assert!(left.iter().all(|&id| is_intact(&manager, id, &all_contents(16))), "copy {failing}");
        assert_eq!(quiet(pool.statistics()), before, "copy {failing}");
        assert_eq!(manager.defragment().expect("no failure").moved, 5 - failing);
        assert_eq!(pool.statistics().largest_free, 8 * BLOCK as u64);
    }
}

#[test]
fn a_lease_waits_for_a_relocation_and_gets_the_new_address() {
    const IDLE: u64 = 0;
    const ARMED: u64 = 1;
    const COPYING: u64 = 2;
    const ASKED: u64 = 3;
    let step = Arc::new(AtomicU64::new(IDLE));
    let looked = Arc::clone(&step);
    let clock = move || {
        if looked.compare_exchange(ARMED, COPYING, SeqCst, SeqCst).is_ok() {
            eventually("somebody asks", || looked.load(SeqCst) == ASKED);
            thread::sleep(Duration::from_millis(20));
        }
        0
    };
    let backend = HostBackend::builder().device_memory(64 << 20).log(true).clock(Arc::new(clock));
    let backend = Clean::build(backend);
    let pool = pool(&backend, 16, 1);
    let manager = MemoryManager::new(pool.clone());
    let last = release_every_second(&manager, &full(&manager, &pool, 16))[7];
    let before = address(&manager, last);
    thread::scope(|scope| {
        let asking = scope.spawn(|| {
            eventually("a copy", || step.load(SeqCst) == COPYING);
            step.store(ASKED, SeqCst);
            manager.lease(last).map(|lease| lease.device_address().expect("it has bytes").get())
        });
        step.store(ARMED, SeqCst);
        manager.defragment().expect("no failure");
        let found = asking.join().expect("no panic").expect("it waits for the copy");
        assert!(found < before, "{found:#x} {before:#x}");
    });
}

#[test]
fn buffers_stay_intact_under_concurrent_relocation() {
    let backend = backend();
    let pool = pool(&backend, 16, 4);
    let manager = MemoryManager::new(pool.clone());
    let ids = full(&manager, &pool, 48);
    let left = release_every_second(&manager, &ids);
    let whole = all_contents(48);
    let moved = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..30 {
                    let done = manager.defragment().expect("no failure");
                    moved.fetch_add(done.moved, SeqCst);
                }
            });
        }
        for thread in 0..4 {
            let (manager, left, whole) = (&manager, &left, &whole);
            scope.spawn(move || {
                for round in 0..60 {
                    let id = left[(round * 7 + thread * 5) % left.len()];
                    assert!(is_intact(manager, id, whole));
                }
            });
        }
        for thread in 0..2_usize {
            let (manager, pool) = (&manager, &pool);
            scope.spawn(move || {
                for round in 0..100 {
                    let ids = [1, 2, 3].map(|blocks| {
                        let elements = contents(1000 + thread, blocks * BLOCK / 16);
                        let buffer = Buffer::from_slice(pool.clone(), &elements).ok()?;
                        Some((elements, manager.register(buffer).expect("room")))
                    });
                    for (elements, id) in ids.into_iter().flatten().skip(round % 2) {
                        assert_eq!(manager.lease(id).expect("live").view().to_vec().expect("live"), elements);
                        manager.free(id).expect("live");
                    }
                }
            });
        }
    });
    assert!(moved.load(SeqCst) > 0);
    assert!(left.iter().all(|&id| is_intact(&manager, id, &whole)));
    assert_eq!(manager.statistics().leases, 0);
}

#[test]
fn lease_mut_never_fails_because_of_a_relocation() {
    let backend = backend();
    let pool = pool(&backend, 16, 1);
    let manager = MemoryManager::new(pool.clone());
    let ids: Ids = (0..256).map(|number| give(&manager, &pool, number, 16)).collect();
    thread::scope(|scope| {
        let relocating = scope.spawn(|| {
            for _ in 0..4000 {
                manager.defragment().expect("no failure");
            }
        });
        for &id in ids.iter().cycle().take_while(|_| !relocating.is_finished()) {
            drop(manager.lease_mut(id).expect("nobody else asks"));
        }
    });
    assert!(ids.iter().all(|&id| is_intact(&manager, id, &(0..256).map(|number| contents(number, 2)).collect::<Vec<_>>())));
}

#[test]
fn a_panic_during_relocation_loses_no_block_or_byte() {
    let panicked = (1..).find(|&number| {
        let backend = Clean::build(HostBackend::builder().device_memory(64 << 20).log(true).clock(clock()));
        let pool = pool(&backend, 4, 2);
        let manager = MemoryManager::new(pool.clone());
        let left = release_every_second(&manager, &full(&manager, &pool, 8));
        strike(number);
        let done = catch_unwind(AssertUnwindSafe(|| manager.defragment().expect("no fault").moved));
        let has_struck = has_struck();
        assert_eq!(done.is_err(), has_struck);
        assert!(left.iter().all(|&id| is_intact(&manager, id, &all_contents(8))), "call {number}");
        assert_eq!(manager.clear(), 4);
        pool.trim_to(0);
        assert_eq!(pool.statistics().reserved_bytes, 0, "call {number}");
        !has_struck
    });
    assert!(panicked > Some(2), "the copies");
}
