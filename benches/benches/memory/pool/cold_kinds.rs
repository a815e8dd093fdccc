//! Heaps over numbers; others are behind a mutex, because a pool is shared.

use std::alloc::Layout;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use offset_allocator::{Allocation, Allocator};
use ringmem::Error;
use ringmem::backend::host::HostBackend;
use ringmem::backend::{Backend, Block, DeviceAddress, MemoryLocation, Uses};
use ringmem::memory::{Device, DeviceOnly, Memory};
use ringmem::pool::Pool;
use ringmem::stream::Stream;
use ringmem_benches::{BestFit, Extent};

pub const UNIT: u64 = 256;

pub trait Heap: Send + Sync + 'static {
    type Part: Send;
    fn new(bytes: u64, parts: usize) -> Self;
    fn take(&self, bytes: u64) -> Option<Self::Part>;
    fn extent(part: &Self::Part) -> Extent;
    fn give(&self, part: Self::Part);
}

pub struct Numbers {
    backend: Arc<dyn Backend>,
    next: AtomicU64,
}

// SAFETY: no address is allocated twice or accessed.
unsafe impl Memory for Numbers {
    type Visibility = DeviceOnly;

    fn alloc(&self, layout: Layout, _: Option<&Stream>) -> ringmem::Result<Block> {
        let address = self.next.fetch_add(layout.size() as u64, Relaxed);
        Ok(Block { device_address: Some(DeviceAddress::new(address)), layout, ..Block::empty(MemoryLocation::Device, 1) })
    }
    unsafe fn free(&self, _: &Block, _: &Uses) -> ringmem::Result<()> {
        Ok(())
    }
    fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }
    fn device(&self) -> u32 {
        0
    }
}

/// Our pool over a memory of its own kind.
pub struct Ours<M: Pooled>(Pool<M>);

pub trait Pooled: Memory + Sized {
    fn pool(bytes: u64) -> Pool<Self>;
}

impl Pooled for Numbers {
    /// One slab, and blocks as long as requested.
    fn pool(bytes: u64) -> Pool<Self> {
        let memory = Self { backend: crate::host::backend(), next: AtomicU64::new(1 << 40) };
        Pool::builder(memory).limit(bytes).slab(bytes).exact(true).build().expect("a pool")
    }
}

impl Pooled for Device {
    /// The default: memory mapped behind one address range.
    fn pool(bytes: u64) -> Pool<Self> {
        let backend = HostBackend::builder().device_memory(bytes).poison(false).build().expect("a backend");
        Pool::builder(Self::new(&backend, 0)).limit(bytes).build().expect("a pool")
    }
}

impl<M: Pooled> Heap for Ours<M> {
    type Part = Block;
    fn new(bytes: u64, _: usize) -> Self {
        Self(M::pool(bytes))
    }
    #[inline]
    fn take(&self, bytes: u64) -> Option<Block> {
        match self.0.alloc(Layout::from_size_align(bytes as usize, 1).expect("a layout"), None) {
            Ok(block) => Some(block),
            Err(Error::OutOfMemory { largest, .. }) if largest < bytes => None,
            Err(error) => panic!("{error}"),
        }
    }
    fn extent(part: &Block) -> Extent {
        (part.device_address.map_or(0, DeviceAddress::get), part.layout.size() as u64)
    }
    #[inline]
    fn give(&self, part: Block) {
        // SAFETY: of this pool, freed once, unused.
        unsafe { self.0.free(&part, &Uses::NONE) }.expect("ours");
    }
}

pub struct Nothing(AtomicU64);

impl Heap for Nothing {
    type Part = Extent;
    fn new(_: u64, _: usize) -> Self {
        Self(AtomicU64::new(0))
    }
    #[inline]
    fn take(&self, bytes: u64) -> Option<Extent> {
        let offset = self.0.load(Relaxed);
        self.0.store(offset + bytes, Relaxed);
        Some((offset, bytes))
    }
    fn extent(part: &Extent) -> Extent {
        *part
    }
    fn give(&self, _: Extent) {}
}

pub struct Offset(Mutex<Allocator>);

impl Heap for Offset {
    type Part = (Allocation, u64);
    fn new(bytes: u64, parts: usize) -> Self {
        Self(Mutex::new(Allocator::with_max_allocs((bytes / UNIT) as u32, 4 * parts as u32)))
    }
    #[inline]
    fn take(&self, bytes: u64) -> Option<(Allocation, u64)> {
        let part = self.0.lock().expect("no panic").allocate(bytes.div_ceil(UNIT) as u32)?;
        Some((part, bytes))
    }
    fn extent(part: &(Allocation, u64)) -> Extent {
        (u64::from(part.0.offset) * UNIT, part.1)
    }
    #[inline]
    fn give(&self, part: (Allocation, u64)) {
        self.0.lock().expect("no panic").free(part.0);
    }
}

pub struct Tree(Mutex<BestFit>);

impl Heap for Tree {
    type Part = Extent;
    fn new(bytes: u64, _: usize) -> Self {
        Self(Mutex::new(BestFit::of(bytes)))
    }
    fn take(&self, bytes: u64) -> Option<Extent> {
        let bytes = bytes.next_multiple_of(UNIT);
        Some((self.0.lock().expect("no panic").carve(bytes)?, bytes))
    }
    fn extent(part: &Extent) -> Extent {
        *part
    }
    fn give(&self, part: Extent) {
        self.0.lock().expect("no panic").give(part);
    }
}

/// RMM's linear scan of the free ranges.
pub struct List(Mutex<Vec<Extent>>);

impl Heap for List {
    type Part = Extent;
    fn new(bytes: u64, _: usize) -> Self {
        Self(Mutex::new(vec![(0, bytes)]))
    }
    fn take(&self, bytes: u64) -> Option<Extent> {
        let bytes = bytes.next_multiple_of(UNIT);
        let mut free = self.0.lock().expect("no panic");
        let fits = free.iter().enumerate().filter(|(_, part)| part.1 >= bytes);
        let (index, &(offset, length)) = fits.min_by_key(|(_, part)| part.1)?;
        if length == bytes {
            free.remove(index);
        } else {
            free[index] = (offset + bytes, length - bytes);
        }
        Some((offset, bytes))
    }
    fn extent(part: &Extent) -> Extent {
        *part
    }
    fn give(&self, (offset, bytes): Extent) {
        let mut free = self.0.lock().expect("no panic");
        let index = free.iter().position(|part| part.0 > offset).unwrap_or(free.len());
        let after = free.get(index).is_some_and(|after| offset + bytes == after.0);
        match index.checked_sub(1).filter(|&before| free[before].0 + free[before].1 == offset) {
            Some(before) => {
                free[before].1 += bytes;
                if after {
                    free[before].1 += free.remove(index).1;
                }
            }
            None if after => free[index] = (offset, bytes + free[index].1),
            None => free.insert(index, (offset, bytes)),
        }
    }
}
