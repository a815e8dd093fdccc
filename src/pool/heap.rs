//! Who has which part of which slab: splitting and joining in constant time, with everything known about a part kept outside the pooled memory.
//!
//! 1. Free parts are listed by size: 32 lists an octave, so a list's sizes differ by at most 1/32. A bitmap says which lists are not empty, and
//!    another which words of the first are not.
//! 2. A request is served from the first list whose parts are all long enough; if all of those are empty, from its own list, looked
//!    through to the end. So a request fails only where no free part is long enough.
//! 3. A part that is given back joins with the free parts before and after it at once. Two neighbours are never both free. One that is given
//!    back [deferred](Heap::free_deferred) stays taken until then.
//! 4. A request may specify an alignment. Bytes skipped at the front of a free part stay free. A request above one unit of alignment first searches
//!    for a part that fits at any offset, then checks every free part. This takes constant time if much room is free, else linear time.
//!
//! Source: Masmano et al., "TLSF: a New Dynamic Memory Allocator for Real-Time Systems" (2004), with the metadata out of band and the look
//! through the last list added.

use core::num::NonZeroU32;
use std::vec::Vec;

use super::deferred::{Deferred, Due, fetch};
use crate::backend::Block;

/// What sizes and offsets are multiples of, bytes: what a driver aligns to at least.
pub(super) const UNIT: u64 = 256;

/// Lists an octave, as bits.
const STEP_BITS: u32 = 5;
const STEPS: usize = 1 << STEP_BITS;
/// Octaves of sizes in units, which have 32 bits.
const OCTAVES: usize = 32 - STEP_BITS as usize + 1;
const LISTS: usize = OCTAVES * STEPS;

/// The most parts there are: their numbers have 24 bits.
const PARTS: usize = 1 << 24;

/// From so many parts on, those that are given back late are joined deferred: fewer are near a processor anyway.
const FAR: usize = 1 << 14;

/// The largest alignment that is searched for in slabs, in bytes: the largest that backends give. The memory serves or refuses larger ones.
pub(super) const LARGEST_ALIGN: u64 = 2 << 20;

/// The longest slab, bytes: offsets and sizes in units have 32 bits.
pub(super) const LONGEST: u64 = u32::MAX as u64 * UNIT;

/// A part of a slab, by a number below [`PARTS`], which is used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct PartId(NonZeroU32);

impl PartId {
    const fn new(index: usize) -> Self {
        // Index 0 is the table's own: no part has it.
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

/// INVARIANT of the table: `before` and `after` link the parts of a slab in order of offset, without gaps; a free part is in the list of its
/// size, and neither neighbour of it is free.
///
/// Half a cache line: with many parts, each that is looked at is a line from far away.
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
struct Part {
    slab: u32,
    /// Units.
    offset: u32,
    /// Units; 0 for a number that nobody has.
    size: u32,
    is_free: bool,
    before: Option<PartId>,
    after: Option<PartId>,
    /// Of a free part: its index in the list of its size.
    place: u32,
    /// Of a number that nobody has: the next such number.
    next: Option<PartId>,
}

impl Part {
    /// All of its slab, and nobody's.
    fn is_whole(&self) -> bool {
        self.is_free && self.before.is_none() && self.after.is_none()
    }
}

/// A part that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Taken {
    pub part: PartId,
    pub slab: u32,
    /// Bytes from the slab's beginning.
    pub offset: u64,
    /// Bytes; at least what was asked for.
    pub size: u64,
}

/// A taken part, and the free parts left before and after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Carved {
    pub taken: Taken,
    pub before: Option<PartId>,
    pub after: Option<PartId>,
}

/// The low bits of a slab's address, which determine alignments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Base {
    /// The low bits, in units.
    units: u32,
    /// The largest alignment at which all addresses of the slab agree, in units: a power of two.
    most: u32,
}

impl Base {
    const TOP: u32 = 1 << 31;

    pub fn of(slab: &Block) -> Self {
        let device = slab.device_address.map(|address| address.get());
        let host = slab.host.map(|host| host.as_ptr().addr() as u64);
        let units = |address: u64| (address / UNIT) as u32;
        let (one, other) = (device.or(host).map_or(0, units), host.or(device).map_or(0, units));
        let differs = one ^ other;
        Self { units: one, most: if differs == 0 { Self::TOP } else { 1 << differs.trailing_zeros() } }
    }

    /// Returns the units from `offset` to the next address with this alignment, a power of two; `None` if the slab's addresses disagree on it.
    const fn padding(self, offset: u32, align: u32) -> Option<u32> {
        if align > self.most {
            return None;
        }
        // Modulo 2^32, a multiple of every alignment.
        Some(self.units.wrapping_add(offset).wrapping_neg() & (align - 1))
    }

    /// Returns the bytes from `offset` to the next address with this alignment; all in bytes.
    pub fn padding_bytes(self, offset: u64, align: u64) -> Option<u64> {
        Some(u64::from(self.padding((offset / UNIT) as u32, align_units(align)?)?) * UNIT)
    }
}

/// A slab's first part and its address.
#[derive(Clone, Copy, Debug)]
struct Ground {
    /// The part at offset 0. It keeps its number, because it only coalesces with parts after it.
    first: PartId,
    base: Base,
}

/// What giving a part back left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Given {
    pub slab: u32,
    /// Nothing of the slab is taken any more.
    pub is_empty: bool,
}

/// Free and taken parts of any number of slabs.
pub(super) struct Heap {
    parts: Vec<Part>,
    /// By slab.
    slabs: Vec<Option<Ground>>,
    /// How many there may be, [`PARTS`] at most.
    most: usize,
    /// From how many parts on parts may be deferred.
    far: usize,
    deferred: Deferred,
    /// Numbers that nobody has, linked by `next`.
    unused: Option<PartId>,
    /// By list, in no order: a part is taken from the end, and the last takes the place of one that leaves from elsewhere. Linked through
    /// the parts, each step would touch a part or two more.
    lists: Vec<Vec<PartId>>,
    /// Which lists are not empty.
    steps: [u32; OCTAVES],
    /// Which words of `steps` are not 0.
    octaves: u64,
    /// Units.
    free: u64,
    total: u64,
    /// Free parts.
    pieces: u64,
}

impl Heap {
    pub fn new() -> Self {
        Self::of(PARTS, FAR)
    }

    fn of(most: usize, far: usize) -> Self {
        let nobody = Part { slab: 0, is_free: false, offset: 0, size: 0, before: None, after: None, place: 0, next: None };
        let lists = std::vec![Vec::new(); LISTS];
        Self {
            parts: std::vec![nobody],
            slabs: Vec::new(),
            most,
            far,
            deferred: Deferred::default(),
            unused: None,
            lists,
            steps: [0; OCTAVES],
            octaves: 0,
            free: 0,
            total: 0,
            pieces: 0,
        }
    }

    /// Bytes of all slabs.
    pub const fn total(&self) -> u64 {
        self.total * UNIT
    }

    /// Bytes that nobody has.
    pub const fn free(&self) -> u64 {
        self.free * UNIT
    }

    /// How many pieces those are in.
    pub const fn pieces(&self) -> u64 {
        self.pieces
    }

    /// Adds a slab of `bytes` bytes, all of it free, unless there are too many parts or it is longer than [`LONGEST`]: whether it did. Less
    /// than a unit at its end is left out.
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

    /// Takes `bytes` bytes, at least one, at an address with this alignment, a power of two, from the list that fits best. `None` if no free part
    /// has that many there.
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

    /// Takes `bytes` bytes, at least one, at the first aligned address of a part, if the part is free, still at that offset and long enough.
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

    /// Takes `size` units of a free part after `padding` units; the part has that many. The rest before and after stays free.
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

    /// Takes the beginning of a free part that is long enough, and lists the rest.
    // Inline: for a request without an alignment this is all the work. Aligned requests call it elsewhere.
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

    /// Gives a part back that was taken.
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

    /// Gives a part back that was taken, now or when some others have come; what is given back now, if anything.
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

    /// Gives one back that is deferred; `None` when none is.
    pub fn free_next_deferred(&mut self) -> Option<Given> {
        let part = self.deferred.take()?;
        Some(self.give(part))
    }

    /// Some are deferred, which count as taken.
    pub fn has_deferred(&self) -> bool {
        !self.deferred.is_empty()
    }

    /// Takes out every slab of which nothing is taken and that `wanted` says yes to; their numbers.
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
        u64::from(self.lists.iter().flatten().copied().filter_map(usable).max().unwrap_or(0)) * UNIT
    }

    /// Bytes of the longest free part.
    pub fn largest(&self) -> u64 {
        let Some(octave) = self.octaves.checked_ilog2() else { return 0 };
        let Some(step) = self.steps[octave as usize].checked_ilog2() else { return 0 };
        let longest = self.walk(octave as usize * STEPS + step as usize).map(|part| self.parts[part.index()].size).max();
        u64::from(longest.unwrap_or(0)) * UNIT
    }

    /// Every part of every slab, in no order: its slab, offset and bytes, and whether it is free.
    pub fn parts(&self) -> impl Iterator<Item = (PartId, u32, u64, u64, bool)> + '_ {
        let numbered = (0..).map(PartId::new).zip(&self.parts);
        let bytes = |units| u64::from(units) * UNIT;
        numbered
            .filter(|(_, part)| part.size > 0)
            .map(move |(id, part)| (id, part.slab, bytes(part.offset), bytes(part.size), part.is_free))
    }

    /// The slabs of which nothing is taken.
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

    /// A free part of at least `size` units.
    #[inline(always)]
    fn find(&self, size: u32) -> Option<PartId> {
        if let Some(part) = self.first_from(list_of(size, true)) {
            return Some(part);
        }
        let own = list_of(size, false)?;
        self.walk(own).find(|part| self.parts[part.index()].size >= size)
    }

    /// Returns a free part with `size` units at an alignment, and the padding before them.
    fn find_aligned(&self, size: u32, align: u32) -> Option<(PartId, u32)> {
        let fits = |part| Some((part, self.fits(part, size, align)?));
        // Long enough at any offset.
        let sure = size.checked_add(align - 1).and_then(|sure| self.first_from(list_of(sure, true)));
        sure.and_then(fits).or_else(|| (list_of(size, false)?..LISTS).flat_map(|list| self.walk(list)).find_map(fits))
    }

    /// The first part of the first list from `list` on that has one.
    #[inline(always)]
    fn first_from(&self, list: Option<usize>) -> Option<PartId> {
        let list = list?;
        let (octave, step) = (list / STEPS, list % STEPS);
        let here = self.steps[octave] & (u32::MAX << step);
        if here != 0 {
            return self.lists[octave * STEPS + here.trailing_zeros() as usize].last().copied();
        }
        // Shifted twice: by all bits at once it would not be shifted at all.
        let octave = (self.octaves & (u64::MAX << octave << 1)).trailing_zeros() as usize;
        let steps = *self.steps.get(octave)?;
        self.lists[octave * STEPS + steps.trailing_zeros() as usize].last().copied()
    }

    fn walk(&self, list: usize) -> impl Iterator<Item = PartId> + '_ {
        self.lists[list].iter().rev().copied()
    }

    /// Makes a part free and lists it.
    fn list(&mut self, part: PartId) {
        let size = self.parts[part.index()].size;
        // Every size has a list.
        let list = list_of(size, false).unwrap_or(LISTS - 1);
        self.parts[part.index()].is_free = true;
        // No more than there are parts.
        self.parts[part.index()].place = self.lists[list].len() as u32;
        self.lists[list].push(part);
        self.steps[list / STEPS] |= 1 << (list % STEPS);
        self.octaves |= 1 << (list / STEPS);
        self.free += u64::from(size);
        self.pieces += 1;
    }

    /// Takes a free part off its list.
    fn unlist(&mut self, part: PartId) {
        let Part { size, place, .. } = self.parts[part.index()];
        let list = list_of(size, false).unwrap_or(LISTS - 1);
        self.lists[list].swap_remove(place as usize);
        if let Some(moved) = self.lists[list].get(place as usize) {
            self.parts[moved.index()].place = place;
        }
        if self.lists[list].is_empty() {
            self.steps[list / STEPS] &= !(1 << (list % STEPS));
            if self.steps[list / STEPS] == 0 {
                self.octaves &= !(1 << (list / STEPS));
            }
        }
        self.parts[part.index()].is_free = false;
        self.free -= u64::from(size);
        self.pieces -= 1;
    }

    /// Adds a part to the one before it. Neither is listed.
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

/// Returns an alignment in units, at least one; `None` above [`LARGEST_ALIGN`].
const fn align_units(align: u64) -> Option<u32> {
    match align {
        0..=UNIT => Some(1),
        _ if align <= LARGEST_ALIGN => Some((align / UNIT) as u32),
        _ => None,
    }
}

/// The list of a size in units, or the first whose parts are all at least as long; `None` above the last.
const fn list_of(size: u32, all_fit: bool) -> Option<usize> {
    // Sizes below one octave of steps have a list each.
    let (octave, step) = if size < STEPS as u32 {
        (0, size as usize)
    } else {
        let shift = size.ilog2() - STEP_BITS;
        let step = (size >> shift) as usize & (STEPS - 1);
        let exact = size & ((1 << shift) - 1) == 0;
        let list = (shift as usize + 1) * STEPS + step + (all_fit && !exact) as usize;
        (list / STEPS, list % STEPS)
    };
    // One past the last, where nothing that is long enough has a number.
    if octave >= OCTAVES {
        return None;
    }
    Some(octave * STEPS + step)
}

#[cfg(test)]
mod tests;
