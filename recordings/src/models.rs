//! Models of allocators, which count the memory that they would have from the driver.
//!
//! They follow published rules. They are not the programs they model: their times say nothing, and each names its omissions.
//!
//! Work is complete at each free, so a free block of a stream may be given again. Blocks of one stream never serve another.

use std::collections::{BTreeMap, BTreeSet, HashMap};

const MIB: u64 = 1 << 20;
const UNIT: u64 = 512;
const SMALL: u64 = MIB;
const SMALL_SEGMENT: u64 = 2 * MIB;
const LARGE_SEGMENT: u64 = 20 * MIB;

/// Offset and length.
pub type Extent = (u64, u64);

/// Best fit over numbers: free extents by length and by offset.
#[derive(Clone, Debug, Default)]
pub struct BestFit {
    by_length: BTreeSet<Extent>,
    by_offset: BTreeMap<u64, u64>,
}

impl BestFit {
    /// One free extent, from offset 0 on.
    #[must_use]
    pub fn of(length: u64) -> Self {
        let mut free = Self::default();
        free.add((0, length));
        free
    }

    /// Takes `length` from the beginning of the shortest extent that suffices, of equal ones the first; returns the offset.
    pub fn carve(&mut self, length: u64) -> Option<u64> {
        let (offset, found) = self.take(length)?;
        self.give_rest(offset + length, found - length);
        Some(offset)
    }

    /// Frees the rest of an extent that was [taken](Self::take).
    pub fn give_rest(&mut self, offset: u64, length: u64) {
        if length > 0 {
            self.add((offset, length));
        }
    }

    /// Takes the shortest extent of at least `length`, of equal ones the first. Its caller returns the rest.
    pub fn take(&mut self, length: u64) -> Option<Extent> {
        let &(found, offset) = self.by_length.range((length, 0)..).next()?;
        self.remove((offset, found));
        Some((offset, found))
    }

    /// Frees an extent, and joins it with those that it touches.
    pub fn give(&mut self, (mut offset, mut length): Extent) {
        if let Some(before) = self.ending_at(offset) {
            self.remove(before);
            (offset, length) = (before.0, before.1 + length);
        }
        if let Some(after) = self.beginning_at(offset + length) {
            self.remove(after);
            length += after.1;
        }
        self.add((offset, length));
    }

    /// Frees an extent that touches no other.
    pub fn add(&mut self, (offset, length): Extent) {
        self.by_length.insert((length, offset));
        self.by_offset.insert(offset, length);
    }

    /// Takes a free extent.
    pub fn remove(&mut self, (offset, length): Extent) {
        self.by_length.remove(&(length, offset));
        self.by_offset.remove(&offset);
    }

    fn beginning_at(&self, offset: u64) -> Option<Extent> {
        self.by_offset.get(&offset).map(|&length| (offset, length))
    }

    fn ending_at(&self, end: u64) -> Option<Extent> {
        self.by_offset.range(..end).next_back().map(|(&offset, &length)| (offset, length)).filter(|(offset, length)| offset + length == end)
    }

    fn extents(&self) -> impl DoubleEndedIterator<Item = Extent> + '_ {
        self.by_offset.iter().map(|(&offset, &length)| (offset, length))
    }
}

/// A block of a model.
#[derive(Clone, Copy, Debug)]
pub struct Block {
    pool: Pool,
    extent: Extent,
}

/// A stream, and whether its blocks are small.
type Pool = (u32, bool);

/// A model's memory from the driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Driver {
    /// Bytes now.
    pub reserved: u64,
    /// Bytes at most.
    pub peak: u64,
    /// Pieces of memory allocated, mapped, unmapped and freed.
    pub calls: u64,
}

impl Driver {
    fn reserve(&mut self, bytes: u64, limit: u64) -> bool {
        let Some(reserved) = self.reserved.checked_add(bytes).filter(|&bytes| bytes <= limit) else { return false };
        self.reserved = reserved;
        self.peak = self.peak.max(reserved);
        self.calls += 1;
        true
    }

    fn release(&mut self, bytes: u64) {
        self.reserved -= bytes;
        self.calls += 1;
    }
}

/// A model of an allocator.
pub trait Model {
    /// A block, `None` if the limit refuses it.
    fn take(&mut self, bytes: u64, stream: u32) -> Option<Block>;
    /// Frees a block of this model.
    fn give(&mut self, block: Block);
    /// Its memory from the driver.
    fn driver(&self) -> Driver;
}

/// PyTorch's size of a block, and whether it is small.
fn rounded(bytes: u64) -> Option<(u64, bool)> {
    let bytes = bytes.max(1).checked_next_multiple_of(UNIT).filter(|&bytes| bytes < 1 << 60)?;
    Some((bytes, bytes <= SMALL))
}

/// PyTorch's caching allocator with its default settings.
///
/// Blocks up to 1 MiB come from segments of 2 MiB, larger ones best fit from segments of 20 MiB, or of their own size from 10 MiB on. The rest of a block is
/// split off if it is longer than 1 MiB; of a small one, from 512 bytes on. If the driver refuses, all free segments are freed first.
///
/// Omitted: private pools of graphs, settings such as `max_split_size_mb`, memory that other programs take. Of two recorded programs it has, to the byte, the
/// recorded memory.
#[derive(Debug)]
pub struct PyTorch {
    limit: u64,
    free: HashMap<Pool, BestFit>,
    segments: BTreeMap<u64, u64>,
    /// Of the next segment.
    address: u64,
    driver: Driver,
}

impl PyTorch {
    /// Of a device with so many bytes.
    #[must_use]
    pub fn new(limit: u64) -> Self {
        Self { limit, free: HashMap::new(), segments: BTreeMap::new(), address: 0, driver: Driver::default() }
    }

    fn segment(&mut self, length: u64) -> Option<Extent> {
        let offset = self.address;
        // A gap: two segments never join.
        let next = offset.checked_add(length + 1)?;
        if !self.driver.reserve(length, self.limit) {
            self.release();
            if !self.driver.reserve(length, self.limit) {
                return None;
            }
        }
        self.address = next;
        self.segments.insert(offset, length);
        Some((offset, length))
    }

    /// Frees all free segments.
    fn release(&mut self) {
        for free in self.free.values_mut() {
            let whole: Vec<Extent> = free.extents().filter(|(offset, length)| self.segments.get(offset) == Some(length)).collect();
            for extent in whole {
                free.remove(extent);
                self.segments.remove(&extent.0);
                self.driver.release(extent.1);
            }
        }
    }
}

impl Model for PyTorch {
    fn take(&mut self, bytes: u64, stream: u32) -> Option<Block> {
        let (bytes, is_small) = rounded(bytes)?;
        let pool = (stream, is_small);
        let found = self.free.entry(pool).or_default().take(bytes);
        let (offset, length) = match found {
            Some(found) => found,
            None => self.segment(match bytes {
                _ if is_small => SMALL_SEGMENT,
                _ if bytes < LARGE_SEGMENT / 2 => LARGE_SEGMENT,
                _ => bytes.next_multiple_of(SMALL_SEGMENT),
            })?,
        };
        let rest = length - bytes;
        let is_split = if is_small { rest >= UNIT } else { rest > SMALL };
        if is_split {
            self.free.entry(pool).or_default().add((offset + bytes, rest));
        }
        Some(Block { pool, extent: (offset, if is_split { bytes } else { length }) })
    }

    fn give(&mut self, block: Block) {
        self.free.entry(block.pool).or_default().give(block.extent);
    }

    fn driver(&self) -> Driver {
        self.driver
    }
}

/// PyTorch's allocator with `expandable_segments:True`.
///
/// A stream has one range of addresses for small blocks, which grows by 2 MiB, and one for large blocks, which grows by 20 MiB. Blocks are split from 512 bytes
/// on. If the driver refuses, all free steps are unmapped first; later growth fills the first hole that suffices with its free neighbours.
#[derive(Debug)]
pub struct Expandable {
    limit: u64,
    ranges: HashMap<Pool, Range>,
    driver: Driver,
}

#[derive(Debug)]
struct Range {
    step: u64,
    free: BestFit,
    /// Holes; the last has no end.
    unmapped: BestFit,
}

const ENDLESS: u64 = 1 << 62;

impl Range {
    fn new(step: u64) -> Self {
        Self { step, free: BestFit::default(), unmapped: BestFit::of(ENDLESS) }
    }

    fn carve(&mut self, bytes: u64) -> Option<u64> {
        // The free end counts as long as it can become: it is the last choice.
        let tail = self.unmapped.extents().next_back().and_then(|(end, _)| self.free.ending_at(end));
        let Some(tail) = tail else { return self.free.carve(bytes) };
        self.free.remove(tail);
        let found = self.free.carve(bytes).or_else(|| (tail.1 >= bytes).then_some(tail.0));
        if found == Some(tail.0) {
            self.free.give_rest(tail.0 + bytes, tail.1 - bytes);
        } else {
            self.free.add(tail);
        }
        found
    }

    /// The first hole that suffices for a request with its free neighbours, and how much of it.
    fn hole(&self, bytes: u64) -> Option<Extent> {
        self.unmapped.extents().find_map(|(offset, length)| {
            let before = self.free.ending_at(offset).map_or(0, |extent| extent.1);
            let after = self.free.beginning_at(offset + length).map_or(0, |extent| extent.1);
            let need = bytes - before.min(bytes);
            let mapped = need.next_multiple_of(self.step).min(length);
            (need > 0 && mapped + after >= need).then_some((offset, mapped))
        })
    }

    fn map(&mut self, (offset, length): Extent) {
        if let Some(hole) = self.unmapped.beginning_at(offset) {
            self.unmapped.remove(hole);
            self.unmapped.give_rest(offset + length, hole.1 - length);
        }
        self.free.give((offset, length));
    }

    /// Unmaps all free steps; returns how many.
    fn release(&mut self) -> u64 {
        let mut count = 0;
        for (offset, length) in self.free.extents().collect::<Vec<_>>() {
            let (from, to) = (offset.next_multiple_of(self.step), (offset + length) / self.step * self.step);
            if from >= to {
                continue;
            }
            count += (to - from) / self.step;
            self.free.remove((offset, length));
            self.free.give_rest(offset, from - offset);
            self.free.give_rest(to, offset + length - to);
            self.unmapped.give((from, to - from));
        }
        count
    }
}

impl Expandable {
    /// Of a device with so many bytes.
    #[must_use]
    pub fn new(limit: u64) -> Self {
        Self { limit, ranges: HashMap::new(), driver: Driver::default() }
    }

    fn grow(&mut self, pool: Pool, bytes: u64) -> Option<()> {
        let range = self.ranges.get_mut(&pool)?;
        let hole = range.hole(bytes)?;
        if !self.driver.reserve(hole.1, self.limit) {
            return None;
        }
        // Each step is mapped by a call.
        self.driver.calls += hole.1 / range.step - 1;
        range.map(hole);
        Some(())
    }
}

impl Model for Expandable {
    fn take(&mut self, bytes: u64, stream: u32) -> Option<Block> {
        let (bytes, is_small) = rounded(bytes)?;
        let pool = (stream, is_small);
        let range = self.ranges.entry(pool).or_insert_with(|| Range::new(if is_small { SMALL_SEGMENT } else { LARGE_SEGMENT }));
        if let Some(offset) = range.carve(bytes) {
            return Some(Block { pool, extent: (offset, bytes) });
        }
        if self.grow(pool, bytes).is_none() {
            for range in self.ranges.values_mut() {
                let count = range.release();
                self.driver.reserved -= count * range.step;
                self.driver.calls += count;
            }
            self.grow(pool, bytes)?;
        }
        let offset = self.ranges.get_mut(&pool)?.carve(bytes)?;
        Some(Block { pool, extent: (offset, bytes) })
    }

    fn give(&mut self, block: Block) {
        if let Some(range) = self.ranges.get_mut(&block.pool) {
            range.free.give(block.extent);
        }
    }

    fn driver(&self) -> Driver {
        self.driver
    }
}

/// No pool: each request is an allocation of the driver, of its own size.
#[derive(Debug)]
pub struct Direct {
    limit: u64,
    driver: Driver,
}

impl Direct {
    /// Of a device with so many bytes.
    #[must_use]
    pub fn new(limit: u64) -> Self {
        Self { limit, driver: Driver::default() }
    }
}

impl Model for Direct {
    fn take(&mut self, bytes: u64, stream: u32) -> Option<Block> {
        self.driver.reserve(bytes, self.limit).then_some(Block { pool: (stream, false), extent: (0, bytes) })
    }

    fn give(&mut self, block: Block) {
        self.driver.release(block.extent.1);
    }

    fn driver(&self) -> Driver {
        self.driver
    }
}
