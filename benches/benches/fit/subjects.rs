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
use ringmem_benches::{BestFit, Extent};

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

const PYTORCH_UNIT: u64 = 512;
const SMALL: u64 = MIB;
const SMALL_SEGMENT: u64 = 2 * MIB;
const LARGE_SEGMENT: u64 = 20 * MIB;

/// PyTorch's caching allocator on one stream: blocks up to 1 MiB from segments of 2 MiB, larger ones best fit from segments of 20 MiB, or of their own size from
/// 10 MiB on. The rest of a block is split off if it is longer than 1 MiB; of a small one, from 512 bytes on.
#[derive(Default)]
pub struct PyTorch {
    small: BestFit,
    large: BestFit,
    /// Of the next segment.
    address: u64,
    reserved: u64,
    segments: u64,
}

impl Subject for PyTorch {
    type Block = (bool, Extent);
    fn take(&mut self, bytes: u64) -> Self::Block {
        let bytes = bytes.max(1).next_multiple_of(PYTORCH_UNIT);
        let is_small = bytes <= SMALL;
        let free = if is_small { &mut self.small } else { &mut self.large };
        let (offset, length) = free.take(bytes).unwrap_or_else(|| {
            let length = match bytes {
                _ if is_small => SMALL_SEGMENT,
                _ if bytes < LARGE_SEGMENT / 2 => LARGE_SEGMENT,
                _ => bytes.next_multiple_of(SMALL_SEGMENT),
            };
            let offset = self.address;
            // A gap: two segments never join.
            self.address += length + 1;
            self.reserved += length;
            self.segments += 1;
            (offset, length)
        });
        let rest = length - bytes;
        if if is_small { rest >= PYTORCH_UNIT } else { rest > SMALL } {
            free.add((offset + bytes, rest));
            (is_small, (offset, bytes))
        } else {
            (is_small, (offset, length))
        }
    }
    fn give(&mut self, (is_small, extent): Self::Block) {
        if is_small { self.small.give(extent) } else { self.large.give(extent) }
    }
    fn peak(&self) -> u64 {
        self.reserved
    }
    fn calls(&self) -> u64 {
        self.segments
    }
}

/// The same with `expandable_segments:True`: one range of addresses for small blocks that grows by 2 MiB, and one for large blocks that grows by 20 MiB.
#[derive(Default)]
pub struct Expandable {
    small: Range,
    large: Range,
}

#[derive(Default)]
struct Range {
    free: BestFit,
    end: u64,
}

impl Range {
    fn take(&mut self, bytes: u64, step: u64) -> Extent {
        // The free end counts as long as it can become: it is the last choice.
        let tail = self.free.last().filter(|(offset, length)| offset + length == self.end).unwrap_or((self.end, 0));
        self.free.remove(tail);
        if let Some(offset) = self.free.carve(bytes) {
            self.free.give_rest(tail.0, tail.1);
            return (offset, bytes);
        }
        self.end += bytes.saturating_sub(tail.1).next_multiple_of(step);
        self.free.give_rest(tail.0 + bytes, self.end - tail.0 - bytes);
        (tail.0, bytes)
    }
}

impl Subject for Expandable {
    type Block = (bool, Extent);
    fn take(&mut self, bytes: u64) -> Self::Block {
        let bytes = bytes.max(1).next_multiple_of(PYTORCH_UNIT);
        let is_small = bytes <= SMALL;
        (is_small, if is_small { self.small.take(bytes, SMALL_SEGMENT) } else { self.large.take(bytes, LARGE_SEGMENT) })
    }
    fn give(&mut self, (is_small, extent): Self::Block) {
        let range = if is_small { &mut self.small } else { &mut self.large };
        range.free.give(extent);
    }
    fn peak(&self) -> u64 {
        self.small.end + self.large.end
    }
    fn calls(&self) -> u64 {
        self.small.end / SMALL_SEGMENT + self.large.end / LARGE_SEGMENT
    }
}
