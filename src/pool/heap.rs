//! The free and taken parts of slabs. Splits and coalesces in constant time, with all metadata outside the pooled memory.
//!
//! 1. Free parts are in lists by size: 32 lists per octave, so the sizes in a list differ by at most 1/32. One bitmap marks the lists that
//!    are not empty, and a second one the words of the first that are not 0.
//! 2. A request takes a part from the first list whose parts are all long enough. If those lists are empty, it searches its own list to the
//!    end. So a request fails only if no free part is long enough.
//! 3. A freed part coalesces at once with free parts before and after it. Two free parts are never adjacent. A
//!    [deferred](Heap::free_deferred) free counts as taken until it coalesces.
//! 4. A request may specify an alignment. Bytes skipped at the front of a free part stay free. A request above one unit of alignment first
//!    searches for a part that fits at any offset, then checks every free part. This takes constant time if much memory is free, else
//!    linear time.
//!
//! Source: Masmano et al., "TLSF: a New Dynamic Memory Allocator for Real-Time Systems" (2004). Changes: metadata is out of band, and the
//! search of the own list is added.

mod base;
mod lists;

use core::num::NonZeroU32;
use std::vec::Vec;

use super::deferred::{Deferred, Due, fetch};
use base::align_units;
use lists::Lists;

pub(super) use base::Base;

/// The unit of sizes and offsets in bytes: the least alignment of a driver's allocations.
pub(super) const UNIT: u64 = 256;

/// The maximum number of parts: part numbers have 24 bits.
const PARTS: usize = 1 << 24;

/// The table size from which frees are deferred. The records of a smaller table mostly stay in the processor's caches.
const FAR: usize = 1 << 14;

/// The largest alignment that slabs serve, in bytes: the largest that backends provide. The upstream memory serves or refuses larger ones.
pub(super) const LARGEST_ALIGN: u64 = 2 << 20;

/// The longest slab in bytes: offsets and sizes in units have 32 bits.
pub(super) const LONGEST: u64 = u32::MAX as u64 * UNIT;

/// The number of a part, below [`PARTS`]. Numbers are reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct PartId(NonZeroU32);

impl PartId {
    const fn new(index: usize) -> Self {
        // Index 0 belongs to no part.
        match NonZeroU32::new(index as u32) {
            Some(number) => Self(number),
            None => Self(NonZeroU32::MIN),
        }
    }
    pub const fn from_index(index: u32) -> Option<Self> {
        match NonZeroU32::new(index) {
            Some(number) => Some(Self(number)),
            None => None,
        }
    }
    pub const fn index(self) -> usize {
        self.0.get() as usize
    }
}

/// INVARIANT of the table: `before` and `after` link the parts of a slab in order of offset, without gaps. A free part is in the list of
/// its size, and its neighbours are not free.
///
/// Half a cache line, because with many parts each access is a cache miss.
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
struct Part {
    slab: u32,
    /// In units.
    offset: u32,
    /// In units; 0 for an unused number.
    size: u32,
    is_free: bool,
    before: Option<PartId>,
    after: Option<PartId>,
    /// For a free part: its index in the list of its size.
    place: u32,
    /// For an unused number: the next unused number.
    next: Option<PartId>,
}

impl Part {
    /// Returns whether the part is free and covers its whole slab.
    fn is_whole(&self) -> bool {
        self.is_free && self.before.is_none() && self.after.is_none()
    }
}

/// A part that was allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Taken {
    pub part: PartId,
    pub slab: u32,
    /// In bytes from the beginning of the slab.
    pub offset: u64,
    /// In bytes; at least the requested size.
    pub size: u64,
}

/// A taken part, and the free parts left before and after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Carved {
    pub taken: Taken,
    pub before: Option<PartId>,
    pub after: Option<PartId>,
}

/// A slab's first part and its address.
#[derive(Clone, Copy, Debug)]
struct Ground {
    /// The part at offset 0. It keeps its number, because it only coalesces with parts after it.
    first: PartId,
    base: Base,
}

/// The result of a free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Given {
    pub slab: u32,
    /// No part of the slab is taken.
    pub is_empty: bool,
}

/// The free and taken parts of any number of slabs.
pub(super) struct Heap {
    parts: Vec<Part>,
    /// By slab number.
    slabs: Vec<Option<Ground>>,
    /// The maximum number of entries in `parts`, at most [`PARTS`].
    most: usize,
    /// The number of entries in `parts` from which frees are deferred.
    far: usize,
    deferred: Deferred,
    /// The first unused number; they are linked by `next`.
    unused: Option<PartId>,
    free_parts: Lists,
    /// In units.
    free: u64,
    total: u64,
    /// Number of free parts.
    pieces: u64,
}

impl Default for Heap {
    fn default() -> Self {
        Self::of(PARTS, FAR)
    }
}

impl Heap {
    fn of(most: usize, far: usize) -> Self {
        let nobody = Part { slab: 0, is_free: false, offset: 0, size: 0, before: None, after: None, place: 0, next: None };
        Self {
            parts: std::vec![nobody],
            slabs: Vec::new(),
            most,
            far,
            deferred: Deferred::default(),
            unused: None,
            free_parts: Lists::new(),
            free: 0,
            total: 0,
            pieces: 0,
        }
    }

    /// Returns the bytes of all slabs.
    pub const fn total(&self) -> u64 {
        self.total * UNIT
    }

    /// Returns the free bytes.
    pub const fn free(&self) -> u64 {
        self.free * UNIT
    }

    /// Returns the number of free parts.
    pub const fn pieces(&self) -> u64 {
        self.pieces
    }

    /// Adds a free slab of `bytes` bytes, rounded down to units. Returns false if no part number is left, or the slab is shorter than a
    /// unit or longer than [`LONGEST`].
    pub fn add(&mut self, slab: u32, bytes: u64, base: Base) -> bool {
        let size = u32::try_from(bytes / UNIT).unwrap_or(0);
        if size == 0 || !self.has_numbers(1) {
            return false;
        }
        let part = self.number(Part { slab, is_free: false, offset: 0, size, before: None, after: None, place: 0, next: None });
        self.total += u64::from(size);
        if self.slabs.len() <= slab as usize {
            self.slabs.resize(slab as usize + 1, None);
        }
        self.slabs[slab as usize] = Some(Ground { first: part, base });
        self.list(part);
        true
    }

    /// Allocates `bytes` bytes, at least one, from the best-fitting list, at an alignment that is a power of two. `None` if no free part
    /// fits.
    pub fn take(&mut self, bytes: u64, align: u64) -> Option<Taken> {
        let size = u32::try_from(bytes.div_ceil(UNIT).max(1)).ok()?;
        if align > UNIT {
            return self.take_aligned(size, align_units(align)?);
        }
        if !self.has_numbers(1) {
            return None;
        }
        let part = self.find(size)?;
        Some(self.carve(part, size).0)
    }

    #[cold]
    fn take_aligned(&mut self, size: u32, align: u32) -> Option<Taken> {
        if !self.has_numbers(2) {
            return None;
        }
        let (part, padding) = self.find_aligned(size, align)?;
        Some(self.carve_after(part, padding, size).taken)
    }

    /// Allocates `bytes` bytes, at least one, at the first aligned address of a part. `None` unless the part is free, still at that offset
    /// and long enough.
    pub fn take_at(&mut self, part: PartId, slab: u32, offset: u64, bytes: u64, align: u64) -> Option<Carved> {
        let (size, align) = (u32::try_from(bytes.div_ceil(UNIT).max(1)).ok()?, align_units(align)?);
        let there = self.parts.get(part.index())?;
        let is_it = there.is_free && there.slab == slab && u64::from(there.offset) * UNIT == offset;
        let padding = if is_it { self.fits(part, size, align)? } else { return None };
        self.has_numbers(2).then(|| self.carve_after(part, padding, size))
    }

    /// Returns the padding in units before `size` aligned units of a part; `None` if they do not fit.
    fn fits(&self, part: PartId, size: u32, align: u32) -> Option<u32> {
        let padding = self.padding(part, align)?;
        (self.parts[part.index()].size.checked_sub(padding)? >= size).then_some(padding)
    }

    /// Returns the units from the beginning of a part to its first address with an alignment.
    fn padding(&self, part: PartId, align: u32) -> Option<u32> {
        let Part { slab, offset, .. } = self.parts[part.index()];
        self.slabs[slab as usize]?.base.padding(offset, align)
    }

    /// Allocates `size` units of a free part after `padding` units; the part must be long enough. The rest before and after stays free.
    fn carve_after(&mut self, part: PartId, padding: u32, size: u32) -> Carved {
        if padding == 0 {
            let (taken, after) = self.carve(part, size);
            return Carved { taken, before: None, after };
        }
        self.unlist(part);
        let behind = self.split(part, padding);
        self.list(part);
        // Taken immediately, so no operation sees two free neighbours.
        self.list(behind);
        let (taken, after) = self.carve(behind, size);
        Carved { taken, before: Some(part), after }
    }

    /// Allocates the beginning of a free part that is long enough, and lists the rest.
    // Inlined: the whole work of a request without an alignment.
    #[inline(always)]
    fn carve(&mut self, part: PartId, size: u32) -> (Taken, Option<PartId>) {
        self.unlist(part);
        let mut left = None;
        let Part { slab, offset, size: whole, .. } = self.parts[part.index()];
        if whole > size {
            let rest = self.split(part, size);
            self.list(rest);
            left = Some(rest);
        }
        (Taken { part, slab, offset: u64::from(offset) * UNIT, size: u64::from(size) * UNIT }, left)
    }

    /// Splits a part, longer than `size`, after `size` units, and returns the part after the split. Neither is listed.
    #[inline(always)]
    fn split(&mut self, part: PartId, size: u32) -> PartId {
        let Part { slab, offset, size: whole, after, .. } = self.parts[part.index()];
        let rest =
            Part { slab, is_free: false, offset: offset + size, size: whole - size, before: Some(part), after, place: 0, next: None };
        let rest = self.number(rest);
        self.parts[part.index()].size = size;
        self.parts[part.index()].after = Some(rest);
        if let Some(after) = after {
            self.parts[after.index()].before = Some(rest);
        }
        rest
    }

    /// Frees a part and coalesces it with free neighbours.
    pub fn give(&mut self, part: PartId) -> Given {
        let slab = self.parts[part.index()].slab;
        let mut whole = part;
        if let Some(after) = self.parts[part.index()].after.filter(|after| self.parts[after.index()].is_free) {
            self.unlist(after);
            self.join(part, after);
        }
        if let Some(before) = self.parts[part.index()].before.filter(|before| self.parts[before.index()].is_free) {
            self.unlist(before);
            self.join(before, part);
            whole = before;
        }
        self.list(whole);
        let Part { before, after, .. } = self.parts[whole.index()];
        Given { slab, is_empty: before.is_none() && after.is_none() }
    }

    /// Frees a part, now or after some later frees. Returns the result of the free that this call performs, if any.
    pub fn free_deferred(&mut self, part: PartId) -> Option<Given> {
        if self.parts.len() < self.far {
            return Some(self.give(part));
        }
        fetch(&self.parts[part.index()]);
        let Due { half_way, over } = self.deferred.pass(part);
        if let Some(half_way) = half_way {
            let Part { before, after, .. } = self.parts[half_way.index()];
            [before, after].into_iter().flatten().for_each(|neighbour| fetch(&self.parts[neighbour.index()]));
        }
        over.map(|part| self.give(part))
    }

    /// Performs one deferred free; `None` if there is none.
    pub fn free_next_deferred(&mut self) -> Option<Given> {
        let part = self.deferred.take()?;
        Some(self.give(part))
    }

    /// Returns whether frees are deferred. Deferred parts count as taken.
    pub fn has_deferred(&self) -> bool {
        !self.deferred.is_empty()
    }

    /// Removes the empty slabs for which `wanted` returns true, and returns their numbers.
    pub fn remove_empty(&mut self, mut wanted: impl FnMut(u32) -> bool) -> Vec<u32> {
        let empty: Vec<PartId> = self.whole().filter(|part| wanted(self.parts[part.index()].slab)).collect();
        empty
            .into_iter()
            .map(|part| {
                self.unlist(part);
                let Part { slab, size, .. } = self.parts[part.index()];
                self.total -= u64::from(size);
                self.slabs[slab as usize] = None;
                self.retire(part);
                slab
            })
            .collect()
    }

    /// Returns the most bytes of a free part at an alignment.
    pub fn largest_at(&self, align: u64) -> u64 {
        let Some(align) = align_units(align) else { return 0 };
        if align == 1 {
            return self.largest();
        }
        let usable = |part| Some(self.parts[PartId::index(part)].size.saturating_sub(self.padding(part, align)?));
        u64::from(self.free_parts.all().filter_map(usable).max().unwrap_or(0)) * UNIT
    }

    /// Returns the bytes of the largest free part.
    pub fn largest(&self) -> u64 {
        let longest = self.free_parts.last().iter().map(|part| self.parts[part.index()].size).max();
        u64::from(longest.unwrap_or(0)) * UNIT
    }

    /// Returns every part of every slab, unordered: its number, slab, offset and size in bytes, and whether it is free.
    pub fn parts(&self) -> impl Iterator<Item = (PartId, u32, u64, u64, bool)> + '_ {
        let numbered = (0..).map(PartId::new).zip(&self.parts);
        let bytes = |units| u64::from(units) * UNIT;
        numbered
            .filter(|(_, part)| part.size > 0)
            .map(move |(id, part)| (id, part.slab, bytes(part.offset), bytes(part.size), part.is_free))
    }

    /// Returns the empty slabs.
    pub fn empty_slabs(&self) -> impl Iterator<Item = u32> + '_ {
        self.whole().map(|part| self.parts[part.index()].slab)
    }

    fn whole(&self) -> impl Iterator<Item = PartId> + '_ {
        self.slabs.iter().flatten().map(|ground| ground.first).filter(|part| self.parts[part.index()].is_whole())
    }

    /// Returns the low bits of a slab's address.
    pub fn base(&self, slab: u32) -> Option<Base> {
        Some((*self.slabs.get(slab as usize)?)?.base)
    }

    /// Returns a free part of at least `size` units.
    #[inline(always)]
    fn find(&self, size: u32) -> Option<PartId> {
        if let Some(part) = self.free_parts.first(size) {
            return Some(part);
        }
        self.free_parts.alike(size).find(|part| self.parts[part.index()].size >= size)
    }

    /// Returns a free part with `size` units at an alignment, and the padding before them.
    fn find_aligned(&self, size: u32, align: u32) -> Option<(PartId, u32)> {
        let fits = |part| Some((part, self.fits(part, size, align)?));
        // Long enough at any offset.
        let sure = size.checked_add(align - 1).and_then(|sure| self.free_parts.first(sure));
        sure.and_then(fits).or_else(|| self.free_parts.from(size).find_map(fits))
    }

    /// Makes a part free and lists it.
    fn list(&mut self, part: PartId) {
        let size = self.parts[part.index()].size;
        self.parts[part.index()].place = self.free_parts.add(part, size);
        self.parts[part.index()].is_free = true;
        self.free += u64::from(size);
        self.pieces += 1;
    }

    /// Removes a free part from its list, and marks it as taken.
    fn unlist(&mut self, part: PartId) {
        let Part { size, place, .. } = self.parts[part.index()];
        if let Some(moved) = self.free_parts.remove(size, place) {
            self.parts[moved.index()].place = place;
        }
        self.parts[part.index()].is_free = false;
        self.free -= u64::from(size);
        self.pieces -= 1;
    }

    /// Merges `after` into `part`, its predecessor. Neither is listed.
    fn join(&mut self, part: PartId, after: PartId) {
        let Part { size, after: next, .. } = self.parts[after.index()];
        self.parts[part.index()].size += size;
        self.parts[part.index()].after = next;
        if let Some(next) = next {
            self.parts[next.index()].before = Some(part);
        }
        self.retire(after);
    }

    /// Returns whether `count` more parts can be numbered.
    fn has_numbers(&self, count: usize) -> bool {
        // Numbers from the remaining capacity of the table, else unused numbers.
        let missing = count.saturating_sub(self.most - self.parts.len());
        let mut unused = self.unused;
        (0..missing).all(|_| {
            let has_one = unused.is_some();
            unused = unused.and_then(|id| self.parts[id.index()].next);
            has_one
        })
    }

    fn number(&mut self, part: Part) -> PartId {
        match self.unused {
            Some(id) => {
                self.unused = self.parts[id.index()].next;
                self.parts[id.index()] = part;
                id
            }
            None => {
                self.parts.push(part);
                PartId::new(self.parts.len() - 1)
            }
        }
    }

    fn retire(&mut self, part: PartId) {
        self.parts[part.index()].size = 0;
        self.parts[part.index()].is_free = false;
        self.parts[part.index()].next = self.unused;
        self.unused = Some(part);
    }
}

#[cfg(test)]
mod tests;
