//! Allocators shared by threads, inlined: calls would distort the comparison.

use std::alloc::{GlobalAlloc, Layout};
use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::Mutex;

use crossbeam_queue::ArrayQueue;
use mimalloc::MiMalloc;
use ringkernel_core::memory::{StratifiedBuffer, StratifiedMemoryPool};
use ringmem::backend::host::HostBackend;
use ringmem::backend::{Backend, Block, Uses};
use ringmem::memory::{Buffer, Host, Memory};
use ringmem::pool::Pool;

pub trait Blocks: Sync + 'static {
    type Block<'a>: Send
    where
        Self: 'a;
    fn new(bytes: usize, count: usize) -> Self;
    fn acquire(&self, bytes: usize) -> Self::Block<'_>;
    fn place(block: &mut Self::Block<'_>) -> NonNull<u8>;
    fn release<'a>(&'a self, block: Self::Block<'a>);
}

#[inline(always)]
pub fn acquire<K: Blocks>(blocks: &K, bytes: usize, mark: u64) -> K::Block<'_> {
    let mut block = blocks.acquire(bytes);
    // SAFETY: every block holds an aligned word and belongs to this thread.
    unsafe { K::place(&mut block).cast::<u64>().write_volatile(mark) };
    block
}

#[inline(always)]
pub fn release<'a, K: Blocks>(blocks: &'a K, mut block: K::Block<'a>, mark: u64) {
    // SAFETY: every block holds an aligned word and belongs to this thread; `acquire` wrote the word.
    assert_eq!(unsafe { K::place(&mut block).cast::<u64>().read_volatile() }, mark, "another's block");
    blocks.release(block);
}

type Words = Box<[u64]>;

fn words(bytes: usize) -> Words {
    vec![0; bytes.div_ceil(8)].into_boxed_slice()
}

fn place_of(words: &mut Words) -> NonNull<u8> {
    NonNull::from(&mut **words).cast()
}

fn host_pool() -> Pool<Host> {
    let backend = HostBackend::builder().build().expect("a backend").erased();
    Pool::builder(Host::new(&backend, 0)).limit(1 << 30).build().expect("a pool")
}

pub struct Ours(Pool<Host>);

impl Blocks for Ours {
    type Block<'a> = Block;
    fn new(bytes: usize, count: usize) -> Self {
        let pool = host_pool();
        pool.prewarm(bytes as u64, count).expect("room");
        Self(pool)
    }
    #[inline(always)]
    fn acquire(&self, bytes: usize) -> Block {
        let layout = Layout::from_size_align(bytes, 8).expect("a layout");
        self.0.alloc(layout, None).expect("room")
    }
    #[inline(always)]
    fn place(block: &mut Block) -> NonNull<u8> {
        block.host.expect("host memory")
    }
    #[inline(always)]
    fn release(&self, block: Block) {
        // SAFETY: of this pool, freed once, unused.
        unsafe { self.0.free(&block, &Uses::NONE) }.expect("ours");
    }
}

pub struct OurBuffers(pub Pool<Host>);

impl Blocks for OurBuffers {
    type Block<'a> = Buffer<u64, Pool<Host>>;
    fn new(bytes: usize, count: usize) -> Self {
        Self(Ours::new(bytes, count).0)
    }
    #[inline(always)]
    fn acquire(&self, bytes: usize) -> Buffer<u64, Pool<Host>> {
        Buffer::new(self.0.clone(), bytes / 8).expect("room")
    }
    #[inline(always)]
    fn place(block: &mut Buffer<u64, Pool<Host>>) -> NonNull<u8> {
        NonNull::from(block.as_mut_slice().expect("idle")).cast()
    }
    #[inline(always)]
    fn release(&self, block: Buffer<u64, Pool<Host>>) {
        drop(block);
    }
}

/// ringkernel-core's pool. It clears freed blocks.
pub struct Ringkernel(StratifiedMemoryPool);

impl Blocks for Ringkernel {
    type Block<'a> = StratifiedBuffer<'a>;
    fn new(_: usize, count: usize) -> Self {
        Self(StratifiedMemoryPool::with_capacity("bench", count.max(16)))
    }
    #[inline(always)]
    fn acquire(&self, bytes: usize) -> StratifiedBuffer<'_> {
        self.0.allocate(bytes)
    }
    #[inline(always)]
    fn place(block: &mut StratifiedBuffer<'_>) -> NonNull<u8> {
        NonNull::from(block.as_mut_slice()).cast()
    }
    #[inline(always)]
    fn release<'a>(&'a self, block: StratifiedBuffer<'a>) {
        drop(block);
    }
}

pub struct Buckets(Mutex<Map>);

#[derive(Default)]
struct Map {
    lists: HashMap<u32, Vec<Words>>,
    allocations: u64,
    hits: u64,
    returns: u64,
}

impl Blocks for Buckets {
    type Block<'a> = (u32, Words);
    fn new(_: usize, _: usize) -> Self {
        Self(Mutex::default())
    }
    #[inline(always)]
    fn acquire(&self, bytes: usize) -> (u32, Words) {
        let bucket = bytes.next_power_of_two().trailing_zeros();
        let mut map = self.0.lock().expect("no panic");
        map.allocations += 1;
        match map.lists.get_mut(&bucket).and_then(Vec::pop) {
            Some(block) => {
                map.hits += 1;
                (bucket, block)
            }
            None => (bucket, words(1 << bucket)),
        }
    }
    #[inline(always)]
    fn place(block: &mut (u32, Words)) -> NonNull<u8> {
        place_of(&mut block.1)
    }
    #[inline(always)]
    fn release(&self, (bucket, block): (u32, Words)) {
        let mut map = self.0.lock().expect("no panic");
        map.returns += 1;
        map.lists.entry(bucket).or_default().push(block);
    }
}

pub struct List(Mutex<Vec<Words>>);

impl Blocks for List {
    type Block<'a> = Words;
    fn new(bytes: usize, count: usize) -> Self {
        Self(Mutex::new((0..count).map(|_| words(bytes)).collect()))
    }
    #[inline(always)]
    fn acquire(&self, bytes: usize) -> Words {
        self.0.lock().expect("no panic").pop().unwrap_or_else(|| words(bytes))
    }
    #[inline(always)]
    fn place(block: &mut Words) -> NonNull<u8> {
        place_of(block)
    }
    #[inline(always)]
    fn release(&self, block: Words) {
        self.0.lock().expect("no panic").push(block);
    }
}

pub struct Queue(ArrayQueue<Words>);

impl Blocks for Queue {
    type Block<'a> = Words;
    fn new(bytes: usize, count: usize) -> Self {
        let queue = ArrayQueue::new(count.next_power_of_two().max(64));
        for _ in 0..count {
            let _ = queue.push(words(bytes));
        }
        Self(queue)
    }
    #[inline(always)]
    fn acquire(&self, bytes: usize) -> Words {
        self.0.pop().unwrap_or_else(|| words(bytes))
    }
    #[inline(always)]
    fn place(block: &mut Words) -> NonNull<u8> {
        place_of(block)
    }
    #[inline(always)]
    fn release(&self, block: Words) {
        let _ = self.0.push(block);
    }
}

pub struct Shared(NonNull<u8>);

// SAFETY: an address; the holder owns the block.
unsafe impl Send for Shared {}

pub struct Mimalloc;

impl Blocks for Mimalloc {
    type Block<'a> = (Shared, Layout);
    fn new(_: usize, _: usize) -> Self {
        Self
    }
    #[inline(always)]
    fn acquire(&self, bytes: usize) -> (Shared, Layout) {
        let layout = Layout::from_size_align(bytes, 8).expect("a layout");
        // SAFETY: the size is not zero.
        let place = unsafe { MiMalloc.alloc(layout) };
        (Shared(NonNull::new(place).expect("room")), layout)
    }
    #[inline(always)]
    fn place(block: &mut (Shared, Layout)) -> NonNull<u8> {
        block.0.0
    }
    #[inline(always)]
    fn release(&self, (block, layout): (Shared, Layout)) {
        // SAFETY: of this allocator, with this layout, freed once.
        unsafe { MiMalloc.dealloc(block.0.as_ptr(), layout) };
    }
}

pub struct Direct;

impl Blocks for Direct {
    type Block<'a> = (Shared, usize);
    fn new(_: usize, _: usize) -> Self {
        Self
    }
    fn acquire(&self, bytes: usize) -> (Shared, usize) {
        use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::POPULATE);
        // SAFETY: a new mapping at any address.
        let place = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, access, flags) }.expect("room");
        (Shared(NonNull::new(place.cast()).expect("a place")), bytes)
    }
    fn place(block: &mut (Shared, usize)) -> NonNull<u8> {
        block.0.0
    }
    fn release(&self, (block, bytes): (Shared, usize)) {
        // SAFETY: mapped with this length, unused.
        unsafe { rustix::mm::munmap(block.0.as_ptr().cast(), bytes) }.expect("mapped");
    }
}
