//! The free and taken parts of slabs, split and coalesced in constant time. All metadata is outside the pooled memory.
//!
//! 1. Free parts are in [`Lists`] by size.
//! 2. A request searches the first list whose parts all suffice, then its own list: it fails only if no free part suffices.
//! 3. A freed part coalesces with its free neighbours at once or [deferred](Heap::free_deferred); until then it counts as taken.
//! 4. An alignment above one unit is searched at sufficient length, then in every free part.
//!
//! Source: Masmano et al., "TLSF: a New Dynamic Memory Allocator for Real-Time Systems" (2004).

mod base;
mod lists;

use core::num::NonZeroU32;
use std::vec::Vec;

use ringmem_layouts::ring::prefetch;

use super::deferred::{Deferred, Due};
use base::align_units;
use lists::Lists;

pub(super) use base::Base;

/// Unit of sizes and offsets in bytes: the least alignment of drivers.
pub(super) const UNIT: u64 = 256;

/// Part numbers have 24 bits.
const PARTS: usize = 1 << 24;

/// From this table size on, frees are deferred; a smaller table mostly stays in the CPU caches.
const FAR: usize = 1 << 14;

/// In bytes: the largest that backends provide.
pub(super) const LARGEST_ALIGN: u64 = 2 << 20;

/// Offsets and sizes in units have 32 bits.
pub(super) const LONGEST: u64 = u32::MAX as u64 * UNIT;

/// Numbers are reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct PartId(NonZeroU32);

impl PartId {
    const fn new(index: usize) -> Self {
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

/// INVARIANT: `before` and `after` link a slab's parts by offset, without gaps. A free part's neighbours are not free.
///
/// Half a cache line: with many parts, each access is a cache miss.
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
    /// If free: its index in its list.
    place: u32,
    next: Option<PartId>,
}

impl Part {
    fn is_whole(&self) -> bool {
        self.is_free && self.before.is_none() && self.after.is_none()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Taken {
    pub part: PartId,
    pub slab: u32,
    /// In bytes.
    pub offset: u64,
    pub size: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Carved {
    pub taken: Taken,
    pub before: Option<PartId>,
    pub after: Option<PartId>,
}

#[derive(Clone, Copy, Debug)]
struct Ground {
    /// It keeps its number: it coalesces only with parts after it.
    first: PartId,
    base: Base,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Given {
    pub slab: u32,
    pub is_empty: bool,
    /// The time of the part's last use.
    pub since: u64,
}

pub(super) struct Heap {
    parts: Vec<Part>,
    slabs: Vec<Option<Ground>>,
    most: usize,
    far: usize,
    deferred: Deferred,
    unused: Option<PartId>,
    free_parts: Lists,
    /// In units.
    free: u64,
    total: u64,
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

    pub const fn total(&self) -> u64 {
        self.total * UNIT
    }

    pub const fn free(&self) -> u64 {
        self.free * UNIT
    }

    pub const fn pieces(&self) -> u64 {
        self.pieces
    }

    /// Adds a free slab, rounded down to units. False without a part number, or for a length out of range.
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

    /// Best fit, at least one byte; `align` is a power of two.
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

    /// Allocates at the first aligned address of an unchanged part.
    pub fn take_at(&mut self, part: PartId, slab: u32, offset: u64, bytes: u64, align: u64) -> Option<Carved> {
        let (size, align) = (u32::try_from(bytes.div_ceil(UNIT).max(1)).ok()?, align_units(align)?);
        let there = self.parts.get(part.index())?;
        let is_it = there.is_free && there.slab == slab && u64::from(there.offset) * UNIT == offset;
        let padding = if is_it { self.fits(part, size, align)? } else { return None };
        self.has_numbers(2).then(|| self.carve_after(part, padding, size))
    }

    fn fits(&self, part: PartId, size: u32, align: u32) -> Option<u32> {
        let padding = self.padding(part, align)?;
        (self.parts[part.index()].size.checked_sub(padding)? >= size).then_some(padding)
    }

    fn padding(&self, part: PartId, align: u32) -> Option<u32> {
        let Part { slab, offset, .. } = self.parts[part.index()];
        self.slabs[slab as usize]?.base.padding(offset, align)
    }

    fn carve_after(&mut self, part: PartId, padding: u32, size: u32) -> Carved {
        if padding == 0 {
            let (taken, after) = self.carve(part, size);
            return Carved { taken, before: None, after };
        }
        self.unlist(part);
        let behind = self.split(part, padding);
        self.list(part);
        self.list(behind);
        let (taken, after) = self.carve(behind, size);
        Carved { taken, before: Some(part), after }
    }

    /// Takes the beginning of a free part; lists the rest.
    // A request without an alignment needs no more.
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

    /// Returns the second part. Neither is listed.
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

    pub fn give(&mut self, part: PartId, since: u64) -> Given {
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
        Given { slab, is_empty: before.is_none() && after.is_none(), since }
    }

    /// Frees a part, last used at `since`, now or after later frees; returns the free that this performs.
    pub fn free_deferred(&mut self, part: PartId, since: u64) -> Option<Given> {
        if self.parts.len() < self.far {
            return Some(self.give(part, since));
        }
        self.fetch(part);
        let Due { half_way, over } = self.deferred.pass(part, since);
        if let Some(half_way) = half_way {
            let Part { before, after, .. } = self.parts[half_way.index()];
            [before, after].into_iter().flatten().for_each(|neighbour| self.fetch(neighbour));
        }
        over.map(|(part, since)| self.give(part, since))
    }

    pub fn free_next_deferred(&mut self) -> Option<Given> {
        let (part, since) = self.deferred.take()?;
        Some(self.give(part, since))
    }

    pub fn has_deferred(&self) -> bool {
        !self.deferred.is_empty()
    }

    /// Returns the numbers of the slabs removed.
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

    pub fn largest_at(&self, align: u64) -> u64 {
        let Some(align) = align_units(align) else { return 0 };
        if align == 1 {
            return self.largest();
        }
        let usable = |part| Some(self.parts[PartId::index(part)].size.saturating_sub(self.padding(part, align)?));
        u64::from(self.free_parts.all().filter_map(usable).max().unwrap_or(0)) * UNIT
    }

    pub fn largest(&self) -> u64 {
        let longest = self.free_parts.last().iter().map(|part| self.parts[part.index()].size).max();
        u64::from(longest.unwrap_or(0)) * UNIT
    }

    /// Number, slab, offset, size in bytes and freeness.
    pub fn parts(&self) -> impl Iterator<Item = (PartId, u32, u64, u64, bool)> + '_ {
        let numbered = (0..).map(PartId::new).zip(&self.parts);
        let bytes = |units| u64::from(units) * UNIT;
        numbered
            .filter(|(_, part)| part.size > 0)
            .map(move |(id, part)| (id, part.slab, bytes(part.offset), bytes(part.size), part.is_free))
    }

    pub fn empty_slabs(&self) -> impl Iterator<Item = u32> + '_ {
        self.whole().map(|part| self.parts[part.index()].slab)
    }

    fn whole(&self) -> impl Iterator<Item = PartId> + '_ {
        self.slabs.iter().flatten().map(|ground| ground.first).filter(|part| self.parts[part.index()].is_whole())
    }

    pub fn base(&self, slab: u32) -> Option<Base> {
        Some((*self.slabs.get(slab as usize)?)?.base)
    }

    #[inline(always)]
    fn find(&self, size: u32) -> Option<PartId> {
        if let Some(part) = self.free_parts.first(size) {
            return Some(part);
        }
        self.free_parts.alike(size).find(|part| self.parts[part.index()].size >= size)
    }

    fn find_aligned(&self, size: u32, align: u32) -> Option<(PartId, u32)> {
        let fits = |part| Some((part, self.fits(part, size, align)?));
        let sure = size.checked_add(align - 1).and_then(|sure| self.free_parts.first(sure));
        sure.and_then(fits).or_else(|| self.free_parts.from(size).find_map(fits))
    }

    fn list(&mut self, part: PartId) {
        let size = self.parts[part.index()].size;
        self.parts[part.index()].place = self.free_parts.add(part, size);
        self.parts[part.index()].is_free = true;
        self.free += u64::from(size);
        self.pieces += 1;
    }

    fn unlist(&mut self, part: PartId) {
        let Part { size, place, .. } = self.parts[part.index()];
        if let Some(moved) = self.free_parts.remove(size, place) {
            self.parts[moved.index()].place = place;
        }
        self.parts[part.index()].is_free = false;
        self.free -= u64::from(size);
        self.pieces -= 1;
    }

    /// `after` is the successor. Neither is listed.
    fn join(&mut self, part: PartId, after: PartId) {
        let Part { size, after: next, .. } = self.parts[after.index()];
        self.parts[part.index()].size += size;
        self.parts[part.index()].after = next;
        if let Some(next) = next {
            self.parts[next.index()].before = Some(part);
        }
        self.retire(after);
    }

    fn has_numbers(&self, count: usize) -> bool {
        // From the table's remaining capacity, else from unused numbers.
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

    fn fetch(&self, part: PartId) {
        prefetch::<false>(core::ptr::from_ref(&self.parts[part.index()]).cast());
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
