//! Allocators that count what they reserve.
//!
//! The models follow published rules; they are not the programs they model, so their times say nothing and are not shown. From an empty start the model of
//! PyTorch's allocator reserves, to the byte, what recordings of real programs show.

use std::alloc::Layout;

use offset_allocator::{Allocation, Allocator};
use ringmem::backend::host::HostBackend;
use ringmem::backend::{Block, Uses};
use ringmem::memory::{Device, Memory};
use ringmem::pool::{Builder, Pool};
use ringmem_recordings::models::{self, BestFit, Expandable, Extent, Model, PyTorch};

const UNIT: u64 = 256;
const MIB: u64 = 1 << 20;
/// As many addresses as no trace needs.
const SPACE: u64 = 1 << 40;

pub trait Subject {
    type Block;
    fn take(&mut self, bytes: u64) -> Self::Block;
    fn give(&mut self, block: Self::Block);
    /// The most reserved bytes so far.
    fn peak(&self) -> u64;
    /// Pieces of memory allocated, mapped, moved and freed so far.
    fn calls(&self) -> u64;
}

/// Our pool, over addresses that no memory is behind.
pub struct Ours(Pool<Device>);

impl Ours {
    fn new(options: impl FnOnce(Builder<Device>) -> Builder<Device>) -> Self {
        let backend = HostBackend::builder().device_memory(SPACE).poison(false).build().expect("a backend");
        Self(options(Pool::builder(Device::new(&backend, 0)).limit(SPACE)).build().expect("a pool"))
    }
    pub fn default() -> Self {
        Self::new(|builder| builder)
    }
    pub fn slabs() -> Self {
        Self::new(|builder| builder.slab(32 * MIB))
    }
    pub fn exact() -> Self {
        Self::new(|builder| builder.exact(true))
    }
}

impl Subject for Ours {
    type Block = Block;
    fn take(&mut self, bytes: u64) -> Block {
        let layout = Layout::from_size_align(bytes as usize, UNIT as usize).expect("a layout");
        self.0.alloc(layout, None).expect("memory for every trace")
    }
    fn give(&mut self, block: Block) {
        // SAFETY: of this pool, freed once, unused.
        unsafe { self.0.free(&block, &Uses::NONE) }.expect("a block of this pool");
    }
    fn peak(&self) -> u64 {
        self.0.statistics().reserved_peak
    }
    fn calls(&self) -> u64 {
        let statistics = self.0.statistics();
        statistics.memory_allocations + statistics.memory_moves + statistics.memory_frees
    }
}

/// One arena without an end; reserved is what lies below the highest end of a block so far.
pub struct Offset {
    allocator: Allocator,
    peak: u64,
}

impl Offset {
    pub fn new() -> Self {
        Self { allocator: Allocator::with_max_allocs((SPACE / UNIT - 1) as u32, 1 << 20), peak: 0 }
    }
}

impl Subject for Offset {
    type Block = Allocation;
    fn take(&mut self, bytes: u64) -> Allocation {
        let units = bytes.div_ceil(UNIT);
        let block = self.allocator.allocate(units as u32).expect("memory for every trace");
        self.peak = self.peak.max((u64::from(block.offset) + units) * UNIT);
        block
    }
    fn give(&mut self, block: Allocation) {
        self.allocator.free(block);
    }
    fn peak(&self) -> u64 {
        self.peak
    }
    fn calls(&self) -> u64 {
        1
    }
}

/// RMM's pool: best fit over one arena, in units of 256 bytes. The arena counts as that of [`Offset`]; a program must know its size.
pub struct Rmm {
    free: BestFit,
    peak: u64,
}

impl Rmm {
    pub fn new() -> Self {
        Self { free: BestFit::of(SPACE), peak: 0 }
    }
}

impl Subject for Rmm {
    type Block = Extent;
    fn take(&mut self, bytes: u64) -> Extent {
        let bytes = bytes.next_multiple_of(UNIT);
        let offset = self.free.carve(bytes).expect("memory for every trace");
        self.peak = self.peak.max(offset + bytes);
        (offset, bytes)
    }
    fn give(&mut self, block: Extent) {
        self.free.give(block);
    }
    fn peak(&self) -> u64 {
        self.peak
    }
    fn calls(&self) -> u64 {
        1
    }
}

/// A model of another allocator, of one stream.
pub struct Modelled<M>(M);

impl Modelled<PyTorch> {
    pub fn pytorch() -> Self {
        Self(PyTorch::new(SPACE))
    }
}

impl Modelled<Expandable> {
    pub fn expandable() -> Self {
        Self(Expandable::new(SPACE))
    }
}

impl<M: Model> Subject for Modelled<M> {
    type Block = models::Block;
    fn take(&mut self, bytes: u64) -> Self::Block {
        self.0.take(bytes, 0).expect("memory for every trace")
    }
    fn give(&mut self, block: Self::Block) {
        self.0.give(block);
    }
    fn peak(&self) -> u64 {
        self.0.driver().peak
    }
    fn calls(&self) -> u64 {
        self.0.driver().calls
    }
}
