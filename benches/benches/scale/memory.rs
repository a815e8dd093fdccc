use std::alloc::Layout;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ringmem::backend::{Block, Uses};
use ringmem::manager::{BufferConfig, MemoryManager};
use ringmem::memory::{Arena, Buffer, Memory, Tracked};
use ringmem::pool::Pool;
use ringmem_benches::{Growth, Line, Random, Work};

use crate::addresses::Addresses;
use crate::each;

type Numbers = Arc<Addresses>;

pub const KIB: usize = 1 << 10;
const MIB: u64 = 1 << 20;
const SLAB: u64 = 12 * MIB;
/// More than a thread's cache: blocks pass through the shared heap.
const BATCH: usize = 256;

fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes, 256).expect("a layout")
}

pub fn pool(is_exact: bool, slab: u64) -> Pool<Numbers> {
    Pool::builder(Addresses::new()).limit(1 << 42).slab(slab).exact(is_exact).build().expect("a pool")
}

pub fn alloc(memory: &impl Memory, bytes: usize) -> Block {
    memory.alloc(layout(bytes), None).expect("room")
}

pub fn free(memory: &impl Memory, block: &Block) {
    // SAFETY: of this memory, freed once, unused.
    unsafe { memory.free(block, &Uses::NONE) }.expect("ours");
}

/// Replaces a batch of random blocks; an operation is one free and allocation.
fn replaced(memory: impl Memory, live: u64, mut length: impl FnMut(&mut Random) -> usize + 'static) -> Work {
    let mut random = Random(7);
    let mut blocks: Vec<Block> = (0..live).map(|_| alloc(&memory, length(&mut random))).collect();
    // A power of two, as the counted operations are: a whole number of batches.
    let batch = 1 << BATCH.min(blocks.len()).ilog2();
    Box::new(move |times| {
        let rounds = times.div_ceil(batch as u64);
        let begun = Instant::now();
        for _ in 0..rounds {
            for _ in 0..batch {
                let block = blocks.swap_remove(random.index(&blocks));
                free(&memory, &block);
            }
            blocks.extend((0..batch).map(|_| alloc(&memory, length(&mut random))));
        }
        begun.elapsed().as_nanos() as f64 / (rounds * batch as u64) as f64
    })
}

fn lengths(random: &mut Random) -> usize {
    1 + random.below(64 << 10) as usize
}

fn pooled(live: u64) -> Work {
    replaced(pool(false, 32 * MIB), live, |_| 4 * KIB)
}

fn exact(live: u64) -> Work {
    replaced(pool(true, 32 * MIB), live, lengths)
}

/// The system clock fails under valgrind.
pub fn tracker() -> Tracked<Pool<Numbers>> {
    Tracked::with_clock(pool(false, 32 * MIB), || 0)
}

fn tracked(live: u64) -> Work {
    replaced(tracker(), live, |_| 4 * KIB)
}

/// `holes` free blocks of 256 bytes between live ones; an operation allocates and frees 512 bytes.
fn holes(memory: impl Memory, holes: u64) -> Work {
    let blocks: Vec<Block> = (0..2 * holes).map(|_| alloc(&memory, 256)).collect();
    blocks.iter().step_by(2).for_each(|block| free(&memory, block));
    each(move || {
        let block = alloc(&memory, black_box(512));
        free(&memory, &block);
    })
}

fn arena(bytes: u64) -> Arena<Numbers> {
    Arena::new(Addresses::new(), bytes as usize, 256).expect("an arena")
}

fn arena_alike(live: u64) -> Work {
    replaced(arena(live * 4096 + MIB), live, |_| 4 * KIB)
}

fn arena_holes(count: u64) -> Work {
    holes(arena(count * 512 + MIB), count)
}

fn exact_holes(count: u64) -> Work {
    holes(pool(true, 32 * MIB), count)
}

fn in_slabs(slabs: u64) -> Work {
    replaced(pool(true, SLAB), slabs * 3, |_| 4 << 20)
}

fn added(slabs: u64) -> Work {
    const MORE: u64 = 8;
    let pool = pool(true, SLAB);
    let live: Vec<Block> = (0..slabs).map(|_| alloc(&pool, SLAB as usize)).collect();
    Box::new(move |times| {
        let (rounds, mut took) = (times.div_ceil(MORE), Duration::ZERO);
        for _ in 0..rounds {
            let begun = Instant::now();
            let more: Vec<Block> = (0..MORE).map(|_| alloc(&pool, SLAB as usize)).collect();
            took += begun.elapsed();
            more.iter().for_each(|block| free(&pool, block));
            assert_eq!(pool.trim_to(live.len() as u64 * SLAB), MORE * SLAB);
        }
        took.as_nanos() as f64 / (rounds * MORE) as f64
    })
}

fn trimmed(slabs: u64) -> Work {
    let pool = pool(true, SLAB);
    let live: Vec<Block> = (0..slabs).map(|_| alloc(&pool, SLAB as usize)).collect();
    each(move || assert_eq!(pool.trim_to(live.len() as u64 * SLAB), 0))
}

fn named(names: u64) -> Work {
    let (memory, mut random) = (tracker(), Random(7));
    let handles: Vec<_> = (0..names).map(|name| memory.named(&name.to_string())).collect();
    each(move || {
        let handle = &handles[random.index(&handles)];
        let block = alloc(handle, 4 * KIB);
        free(handle, &block);
    })
}

fn empty(memory: &Numbers) -> Buffer<u64, Numbers> {
    Buffer::new(Arc::clone(memory), 0).expect("no bytes")
}

/// The system clock fails under valgrind.
fn empty_manager() -> MemoryManager<Numbers> {
    MemoryManager::builder(Addresses::new()).clock(|| 0).build()
}

fn leased(count: u64) -> Work {
    let (memory, manager, mut random) = (Addresses::new(), empty_manager(), Random(7));
    let ids: Vec<_> = (0..count).map(|_| manager.register(empty(&memory)).expect("room")).collect();
    each(move || drop(black_box(manager.lease(ids[random.index(&ids)]).expect("live"))))
}

fn registered(count: u64) -> Work {
    let (memory, manager) = (Addresses::new(), empty_manager());
    for _ in 0..count {
        manager.register(empty(&memory)).expect("room");
    }
    each(move || {
        let id = manager.register(empty(&memory)).expect("room");
        assert_eq!(manager.free(id).expect("live"), 0);
    })
}

fn another(count: u64) -> Work {
    let manager: &'static MemoryManager<Numbers> = Box::leak(Box::new(empty_manager()));
    let id = manager.register(empty(&Addresses::new())).expect("room");
    let leases: Vec<_> = (0..count).map(|_| manager.lease(id).expect("live")).collect();
    each(move || {
        black_box(&leases);
        drop(black_box(manager.lease(id).expect("live")));
    })
}

fn managed(count: u64) -> MemoryManager<Numbers> {
    let manager = empty_manager();
    for number in 0..count {
        manager.create::<u64>(&number.to_string(), 0, BufferConfig::new()).expect("room");
    }
    manager
}

fn found(count: u64) -> Work {
    let (manager, mut random) = (managed(count), Random(7));
    let names: Vec<String> = (0..count).map(|number| number.to_string()).collect();
    each(move || {
        black_box(manager.find::<u64>(&names[random.index(&names)]).expect("live"));
    })
}

fn created(count: u64) -> Work {
    let manager = managed(count);
    each(move || {
        let id = manager.create::<u64>("another", 0, BufferConfig::new()).expect("room");
        assert_eq!(manager.free(id).expect("live"), 0);
    })
}

fn freed_under_a_lease(count: u64) -> Work {
    let manager = managed(count);
    each(move || {
        let id = manager.create::<u64>("another", 0, BufferConfig::new()).expect("room");
        let lease = manager.lease(id).expect("live");
        assert_eq!(manager.free(id).expect("live"), 1);
        drop(lease);
    })
}

pub fn quantities() -> Vec<Growth> {
    vec![
        Growth {
            name: "live",
            lines: vec![
                Line::decades("ringmem Pool", 6, pooled),
                Line::decades("ringmem Pool, exact", 6, exact),
                Line::decades("ringmem Pool, exact, holes", 6, exact_holes),
                Line::decades("ringmem Arena", 6, arena_alike).above_log("first fit visits free parts"),
                Line::decades("ringmem Arena, holes", 6, arena_holes).above_log("first fit visits free parts"),
            ],
        },
        Growth {
            name: "slabs",
            lines: vec![
                Line::decades("ringmem Pool, block", 5, in_slabs),
                Line::decades("ringmem Pool, added slab", 5, added).timed_only(),
                Line::decades("ringmem Pool, trim", 5, trimmed).above_log("visits all slabs"),
            ],
        },
        Growth {
            name: "trackers",
            lines: vec![Line::decades("ringmem Tracked, blocks", 6, tracked), Line::decades("ringmem Tracked, names", 5, named)],
        },
        Growth {
            name: "leases",
            lines: vec![
                Line::decades("ringmem Manager, lease", 6, leased),
                Line::decades("ringmem Manager, register", 6, registered),
                Line::decades("ringmem Manager, one buffer", 6, another),
                Line::decades("ringmem Manager, find", 5, found),
                Line::decades("ringmem Manager, create", 5, created),
                Line::decades("ringmem Manager, free leased", 5, freed_under_a_lease),
            ],
        },
    ]
}
