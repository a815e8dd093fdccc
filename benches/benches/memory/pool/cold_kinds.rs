//! Heaps over numbers; others are behind a mutex, because a pool is shared.

use std::alloc::Layout;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use offset_allocator::{Allocation, Allocator};
use ringmem::Error;
use ringmem::backend::{Backend, Block, DeviceAddress, MemoryLocation, Uses};
use ringmem::memory::{DeviceOnly, Memory};
use ringmem::pool::Pool;
use ringmem::stream::Stream;

pub const UNIT: u64 = 256;

pub type Extent = (u64, u64);

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

pub struct Ours(Pool<Numbers>);

impl Heap for Ours {
    type Part = Block;
    fn new(bytes: u64, _: usize) -> Self {
        let memory = Numbers { backend: crate::host::backend(), next: AtomicU64::new(1 << 40) };
        Self(Pool::builder(memory).limit(bytes).slab(bytes).exact(true).build().expect("a pool"))
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

#[derive(Default)]
pub struct BestFit(Mutex<Trees>);

#[derive(Default)]
struct Trees {
    by_length: BTreeSet<Extent>,
    by_offset: BTreeMap<u64, u64>,
}

impl Trees {
    fn add(&mut self, (offset, length): Extent) {
        self.by_length.insert((length, offset));
        self.by_offset.insert(offset, length);
    }
    fn remove(&mut self, (offset, length): Extent) {
        self.by_length.remove(&(length, offset));
        self.by_offset.remove(&offset);
    }
}

impl Heap for BestFit {
    type Part = Extent;
    fn new(bytes: u64, _: usize) -> Self {
        let mut trees = Trees::default();
        trees.add((0, bytes));
        Self(Mutex::new(trees))
    }
    fn take(&self, bytes: u64) -> Option<Extent> {
        let bytes = bytes.next_multiple_of(UNIT);
        let mut trees = self.0.lock().expect("no panic");
        let &(length, offset) = trees.by_length.range((bytes, 0)..).next()?;
        trees.remove((offset, length));
        if length > bytes {
            trees.add((offset + bytes, length - bytes));
        }
        Some((offset, bytes))
    }
    fn extent(part: &Extent) -> Extent {
        *part
    }
    fn give(&self, (mut offset, mut bytes): Extent) {
        let mut trees = self.0.lock().expect("no panic");
        let before = trees.by_offset.range(..offset).next_back().map(|(&offset, &bytes)| (offset, bytes));
        if let Some(before) = before.filter(|before| before.0 + before.1 == offset) {
            trees.remove(before);
            (offset, bytes) = (before.0, before.1 + bytes);
        }
        if let Some(&after) = trees.by_offset.get(&(offset + bytes)) {
            trees.remove((offset + bytes, after));
            bytes += after;
        }
        trees.add((offset, bytes));
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
