//! [`Heap`]: the free and taken parts of slabs, split and coalesced in constant time. All metadata is outside the pooled memory.
//!
//! A slab is a chain of [`Part`]s by offset, without gaps. A part is free, and then in one of the [`SizeLists`], or taken. One slab may be a *range*, whose
//! parts may also be absent: addresses without memory. Sizes and offsets count
//! units of 256 bytes, so that they have 32 bits and a part's record half a cache line.
//!
//! Each part belongs to a [`Zone`], for blocks of one kind of sizes. A zone has lists of its own, and no part joins one of the other zone: a slab is of one
//! zone, and between a range's two zones are addresses that no one claims.
//!
//! 1. *Take*: nearly best fit, in constant time. Of the newest [`CANDIDATES`] parts of the request's own list, whose parts are up to 1/32 smaller or larger,
//!    the smallest that suffices; else the smallest of as many of the first list whose parts all suffice; of equals the one in the slab of the lowest number,
//!    there at the lowest offset. If no list of longer parts has any, the own list is searched as a whole, and its oldest part that suffices is taken. So a
//!    request fails only if no free part of the zone suffices, or if no part number is left. Deferred parts are not free. The rest of a longer part returns to
//!    the lists.
//! 2. *Free*: a part joins its free neighbours, so that a free part's neighbours are always taken or absent. A slab whose first part is free and whole is
//!    empty.
//! 3. *Deferred*: in a table too large for the CPU caches, a free costs a cache miss for each neighbour's record and for its place in its list. So a freed
//!    part waits in a short queue, [`Deferred`], while its record, then its neighbours' and then their places are prefetched. Until it leaves the queue it
//!    counts as taken. A caller that needs exact figures, or finds nothing, first empties the queue.
//! 4. *Alignment* above one unit: a slab's address decides, see [`Base`]. A part of `size + align - 1` surely has an aligned place; else every free
//!    part from the size on is tried.
//!
//! 5. *Absent* parts are joined with each other, but never with others. [`Heap::claim`] takes an absent part and its free neighbours out of reach, for a
//!    request that all of them together can serve; [`Heap::fill`] says how much memory came. [`Heap::take_out`] takes memory out of a free part, and
//!    [`Heap::abandon`] leaves its addresses absent. A claim, or memory taken out, is in no list. The free sides of a claim stay in `total`, so they count as
//!    taken; the rest is in no count.
//!
//! | a part | its [`State`] | found in | joins a neighbour |
//! |---|---|---|---|
//! | free | `Free` | its zone's list | never: it has no free neighbour |
//! | a block, or a deferred free | `Taken` | the block's tag, or the queue | when it is coalesced |
//! | the free side of a claim | `Taken` | the claim | when the claim ends |
//! | absent | `Absent` | `absent` | never: it has no neighbour in `absent` |
//! | addresses of a claim, or memory taken out | `Absent` | the claim, or the caller | when the claim ends, or the memory is put back or abandoned |
//! | between the zones | `Absent` | nothing | never |
//!
//! Part numbers are indices into one table and are reused; `has_numbers` checks that the numbers suffice before anything changes. So a `take`, `take_at`,
//! `claim`, `take_out`, `add` or `add_range` that fails changes nothing.
//!
//! The heap has no lock: it is accessed under that of the pool's state.
//!
//! Source: Masmano et al., "TLSF: a New Dynamic Memory Allocator for Real-Time Systems" (2004).

use core::num::NonZeroU32;
use std::collections::BTreeMap;
use std::vec::Vec;

use ringmem_layouts::ring::prefetch;

use crate::backend::Block;

/// Unit of sizes and offsets in bytes: the least alignment of drivers.
pub(super) const UNIT: u64 = 256;

/// Part numbers have 24 bits.
const PARTS: usize = 1 << 24;

/// From this table size on, frees are deferred; a smaller table mostly stays in the CPU caches.
const DEFER_FROM: usize = 1 << 14;

/// The newest parts of a list among which a request takes the smallest.
const CANDIDATES: usize = 8;

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

/// Whose blocks lie together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Zone {
    Large,
    Small,
}

impl Zone {
    pub const fn other(self) -> Self {
        match self {
            Self::Large => Self::Small,
            Self::Small => Self::Large,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Taken,
    Free,
    /// Addresses without memory.
    Absent,
}

/// A piece of a slab. Half a cache line: with many parts, each access is a cache miss.
///
/// INVARIANT: `before` and `after` link a slab's parts by offset, without gaps. A free part's neighbours are not free. A free part is in its zone's list of its
/// size at `list_index`.
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
struct Part {
    slab: u32,
    /// In units.
    offset: u32,
    /// In units; 0 for an unused number.
    size: u32,
    state: State,
    zone: Zone,
    before: Option<PartId>,
    after: Option<PartId>,
    /// If free: its index in its list.
    list_index: u32,
    /// If the number is unused: the next unused one.
    next: Option<PartId>,
}

impl Part {
    /// Taken, alone in its slab.
    const fn whole(slab: u32, size: u32, zone: Zone) -> Self {
        Self { slab, offset: 0, size, state: State::Taken, zone, before: None, after: None, list_index: 0, next: None }
    }

    fn is_free(&self) -> bool {
        self.state == State::Free
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
struct SlabHead {
    /// It keeps its number: it coalesces only with parts after it.
    first: PartId,
    base: Base,
    /// Its parts get and lose memory one by one.
    is_range: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Freed {
    pub slab: u32,
    pub is_empty: bool,
    /// The time of the part's last use.
    pub since: u64,
    /// Of the freed part, in bytes.
    pub offset: u64,
    pub size: u64,
}

/// Addresses that get memory, with the free parts on both sides, out of others' reach meanwhile. Until [`fill`](Heap::fill) no other call changes these
/// parts, which are in no list and not in `absent`. Parts beyond them may change, also a free one behind the addresses that is not claimed.
///
/// Only `fill` ends it: dropped, it loses its addresses, its free sides and its spare number for ever. Likewise a part that was
/// [taken out](Heap::take_out) must be put back or abandoned.
#[derive(Debug)]
pub(super) struct Claim {
    before: Option<PartId>,
    part: PartId,
    after: Option<PartId>,
    /// An unused part number, for the rest of the addresses.
    spare: PartId,
    pub zone: Zone,
    /// Of the addresses without memory, in bytes.
    pub offset: u64,
    pub size: u64,
    /// As many of these bytes suffice for the request.
    pub least: u64,
}

pub(super) struct Heap {
    /// By number; 0 is no part.
    parts: Vec<Part>,
    slabs: Vec<Option<SlabHead>>,
    /// The most numbers.
    max_parts: usize,
    /// The table's length from which frees are deferred.
    defer_from: usize,
    deferred: Deferred,
    /// The first unused number below the table's length.
    unused: Option<PartId>,
    /// By zone.
    lists: [SizeLists; 2],
    /// By offset: the parts without memory that no one claims.
    absent: BTreeMap<u32, PartId>,
    /// Units in the lists.
    free: u64,
    /// By zone: units of all slabs, of a range those with memory.
    total: [u64; 2],
    /// Parts in the lists.
    free_parts: u64,
}

impl Default for Heap {
    fn default() -> Self {
        Self::of(PARTS, DEFER_FROM)
    }
}

impl Heap {
    fn of(max_parts: usize, defer_from: usize) -> Self {
        Self {
            parts: std::vec![Part::whole(0, 0, Zone::Large)],
            slabs: Vec::new(),
            max_parts,
            defer_from,
            deferred: Deferred::default(),
            unused: None,
            lists: [SizeLists::new(), SizeLists::new()],
            absent: BTreeMap::new(),
            free: 0,
            total: [0; 2],
            free_parts: 0,
        }
    }

    pub const fn total(&self) -> u64 {
        self.total_of(Zone::Large) + self.total_of(Zone::Small)
    }

    pub const fn total_of(&self, zone: Zone) -> u64 {
        self.total[zone as usize] * UNIT
    }

    pub const fn free(&self) -> u64 {
        self.free * UNIT
    }

    pub const fn free_parts(&self) -> u64 {
        self.free_parts
    }

    /// Adds a free slab, rounded down to units. False without a part number, or for a length out of range.
    pub fn add(&mut self, slab: u32, bytes: u64, base: Base, zone: Zone) -> bool {
        let size = u32::try_from(bytes / UNIT).unwrap_or(0);
        if size == 0 || !self.has_numbers(1) {
            return false;
        }
        let part = self.add_part(Part::whole(slab, size, zone), base, false);
        self.total[zone as usize] += u64::from(size);
        self.list(part);
        true
    }

    /// Adds addresses without memory, as many for large and for small blocks as `zones` says; the first `between` bytes for small ones are in no zone, so that
    /// the zones are not joined. Without addresses for small ones there is one zone. The slab is the only one of this kind. As [`add`](Self::add).
    pub fn add_range(&mut self, slab: u32, zones: [u64; 2], between: u64, base: Base) -> bool {
        let [Ok(large), Ok(small), Ok(between)] = [zones[0], zones[1], between].map(|bytes| u32::try_from(bytes / UNIT)) else {
            return false;
        };
        let Some(whole) = large.checked_add(small).filter(|_| large > 0 && self.has_numbers(3)) else { return false };
        let first = self.add_part(Part::whole(slab, whole, Zone::Large), base, true);
        self.absent.insert(0, first);
        if small > between {
            let unused = self.split(first, large);
            let second = self.split(unused, between);
            self.parts[unused.index()].state = State::Absent;
            self.parts[second.index()].state = State::Absent;
            self.parts[second.index()].zone = Zone::Small;
            self.absent.insert(large + between, second);
        }
        self.parts[first.index()].state = State::Absent;
        true
    }

    fn add_part(&mut self, part: Part, base: Base, is_range: bool) -> PartId {
        let slab = part.slab;
        let first = self.take_number(part);
        if self.slabs.len() <= slab as usize {
            self.slabs.resize(slab as usize + 1, None);
        }
        self.slabs[slab as usize] = Some(SlabHead { first, base, is_range });
        first
    }

    /// Takes a part of `bytes`, at least one unit, of the zone; `align` is a power of two.
    pub fn take(&mut self, bytes: u64, align: u64, zone: Zone) -> Option<Taken> {
        let size = u32::try_from(bytes.div_ceil(UNIT).max(1)).ok()?;
        if align > UNIT {
            return self.take_aligned(size, align_units(align)?, zone);
        }
        if !self.has_numbers(1) {
            return None;
        }
        let part = self.find(size, zone)?;
        Some(self.carve(part, size).0)
    }

    #[cold]
    fn take_aligned(&mut self, size: u32, align: u32, zone: Zone) -> Option<Taken> {
        if !self.has_numbers(2) {
            return None;
        }
        let (part, padding) = self.find_aligned(size, align, zone)?;
        Some(self.carve_after(part, padding, size).taken)
    }

    /// Allocates at the first aligned address of a part, if it is still free, in this slab, at this offset.
    pub fn take_at(&mut self, part: PartId, slab: u32, offset: u64, bytes: u64, align: u64) -> Option<Carved> {
        let (size, align) = (u32::try_from(bytes.div_ceil(UNIT).max(1)).ok()?, align_units(align)?);
        let there = self.parts.get(part.index())?;
        let is_it = there.is_free() && there.slab == slab && u64::from(there.offset) * UNIT == offset;
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
    // Inlined: it is the whole work of a request without an alignment.
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
        let Part { slab, zone, offset, size: whole, after, .. } = self.parts[part.index()];
        let rest = Part { offset: offset + size, before: Some(part), after, ..Part::whole(slab, whole - size, zone) };
        let rest = self.take_number(rest);
        self.parts[part.index()].size = size;
        self.parts[part.index()].after = Some(rest);
        if let Some(after) = after {
            self.parts[after.index()].before = Some(rest);
        }
        rest
    }

    /// Frees a part, last used at `since`, and joins it with its free neighbours. The caller owns the part, which is `Taken` and not in the queue. This is not
    /// checked: a second free lists the part twice, or frees the next owner of its number.
    pub fn coalesce(&mut self, part: PartId, since: u64) -> Freed {
        let Part { slab, offset, size, .. } = self.parts[part.index()];
        let mut whole = part;
        if let Some(after) = self.parts[part.index()].after.filter(|after| self.parts[after.index()].is_free()) {
            self.unlist(after);
            self.merge(part, after);
        }
        if let Some(before) = self.parts[part.index()].before.filter(|before| self.parts[before.index()].is_free()) {
            self.unlist(before);
            self.merge(before, part);
            whole = before;
        }
        self.list(whole);
        let Part { before, after, .. } = self.parts[whole.index()];
        let is_empty = before.is_none() && after.is_none();
        Freed { slab, is_empty, since, offset: u64::from(offset) * UNIT, size: u64::from(size) * UNIT }
    }

    /// Frees a part, last used at `since`, now or after later frees; returns the free that this performs, which may be that of an earlier part.
    pub fn free_deferred(&mut self, part: PartId, since: u64) -> Option<Freed> {
        if self.parts.len() < self.defer_from {
            return Some(self.coalesce(part, since));
        }
        self.fetch(part);
        let Due { halfway, near, due } = self.deferred.pass(part, since);
        self.neighbours(halfway).for_each(|neighbour| self.fetch(neighbour));
        self.neighbours(near).for_each(|neighbour| {
            let Part { size, list_index, state, zone, .. } = self.parts[neighbour.index()];
            if state == State::Free {
                self.lists[zone as usize].fetch(size, list_index);
            }
        });
        due.map(|(part, since)| self.coalesce(part, since))
    }

    fn neighbours(&self, part: Option<PartId>) -> impl Iterator<Item = PartId> + use<> {
        let sides = part.map(|part| self.parts[part.index()]).map(|part| [part.before, part.after]);
        sides.into_iter().flatten().flatten()
    }

    pub fn free_next_deferred(&mut self) -> Option<Freed> {
        let (part, since) = self.deferred.take()?;
        Some(self.coalesce(part, since))
    }

    pub fn has_deferred(&self) -> bool {
        !self.deferred.is_empty()
    }

    /// Claims addresses for `bytes` at `align`, a power of two. Memory on the first [`least`](Claim::least) of them, a multiple of `step` bytes, makes room
    /// with the free parts around. Claims as many as `wanted` says for this least, or all of the place, if that has fewer.
    ///
    /// The place is the one of the zone with the least need, of equals the first; or the last place. One of the other zone, if no place of this one has enough
    /// addresses.
    pub fn claim(
        &mut self,
        bytes: u64,
        align: u64,
        step: u64,
        zone: Zone,
        wanted: impl FnOnce(u64) -> u64,
        is_last: bool,
    ) -> Option<Claim> {
        let (bytes, align) = (u32::try_from(bytes.div_ceil(UNIT).max(1)).ok()?, align_units(align)?);
        let step = u32::try_from(step / UNIT).ok()?;
        let place = |zone| {
            let places = self.absent.iter().filter(|(_, part)| self.zone(**part) == zone);
            let mut places = places.filter_map(|(&offset, &part)| Some((self.lacks(part, bytes, align, step)?, offset, part)));
            if is_last { places.next_back() } else { places.min_by_key(|&(least, offset, _)| (least, offset)) }
        };
        let (least, offset, part) = place(zone).or_else(|| place(zone.other()))?;
        // One for the rest of the addresses now, and one for those that get no memory: `fill` must not fail.
        if !self.has_numbers(2) {
            return None;
        }
        let Part { slab, zone, .. } = self.parts[part.index()];
        let spare = self.take_number(Part::whole(slab, 0, zone));
        self.absent.remove(&offset);
        let absent = self.parts[part.index()].size;
        let wanted = u32::try_from(wanted(u64::from(least) * UNIT) / UNIT).unwrap_or(u32::MAX);
        let size = least.max(wanted / step * step).min(absent);
        if size < absent {
            let rest = self.split(part, size);
            self.parts[rest.index()].state = State::Absent;
            self.absent.insert(offset + size, rest);
        }
        let Part { before, after, .. } = self.parts[part.index()];
        // Memory behind the addresses is needed only if there are too few of them; it is claimed also if they suffice exactly.
        let sides = [before, after.filter(|_| least == absent)];
        let [before, after] = sides.map(|side| side.filter(|side| self.parts[side.index()].is_free()));
        for side in [before, after].into_iter().flatten() {
            self.unlist(side);
        }
        let bytes = |units: u32| u64::from(units) * UNIT;
        Some(Claim { before, part, after, spare, zone, offset: bytes(offset), size: bytes(size), least: bytes(least) })
    }

    /// The units of memory that an absent part needs for a request, from its beginning on.
    fn lacks(&self, part: PartId, size: u32, align: u32, step: u32) -> Option<u32> {
        let Part { slab, offset, size: absent, before, after, .. } = self.parts[part.index()];
        let free = |side: Option<PartId>| side.map(|side| self.parts[side.index()]).filter(Part::is_free).map_or(0, |part| part.size);
        let (before, after) = (free(before), free(after));
        // The block will begin at the first aligned address of the free part before, if there is one.
        let padding = self.slabs[slab as usize]?.base.padding(offset - before, align)?;
        let lacking = size.checked_add(padding)?.saturating_sub(before).max(1);
        match lacking.checked_next_multiple_of(step) {
            Some(lacking) if lacking <= absent => Some(lacking),
            // All of the addresses, and then the free part behind them.
            _ => (lacking <= absent.checked_add(after)?).then_some(absent),
        }
    }

    /// Ends a claim: the first `bytes` have memory and are free, with the parts around; the rest is absent again. This is no use: the extent has the times of a
    /// range's memory, so here and in [`put_back`](Self::put_back) the time is 0.
    pub fn fill(&mut self, claim: Claim, bytes: u64) {
        let Claim { before, part, after, spare, zone, size, .. } = claim;
        self.release_number(spare);
        let filled = (bytes.min(size) / UNIT) as u32;
        // Each with what was freed on its far side meanwhile. Not with each other: the addresses between them are absent until now.
        for side in [before, after].into_iter().flatten() {
            self.coalesce(side, 0);
        }
        let whole = self.parts[part.index()].size;
        if filled == 0 {
            self.abandon(part);
            return;
        }
        if filled < whole {
            let rest = self.split(part, filled);
            self.parts[rest.index()].state = State::Absent;
            self.abandon(rest);
        }
        self.total[zone as usize] += u64::from(filled);
        // As a block that is freed: joins the sides.
        self.parts[part.index()].state = State::Taken;
        self.coalesce(part, 0);
    }

    /// The free parts of a slab from `bytes` on: number, offset and size in bytes.
    pub fn free_from(&self, slab: u32, bytes: u64) -> impl Iterator<Item = (PartId, u64, u64)> + '_ {
        let least = u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX);
        let parts = self.lists.iter().flat_map(move |lists| lists.from(least)).map(|part| (part, &self.parts[part.index()]));
        let fitting = parts.filter(move |(_, part)| part.slab == slab && part.size >= least);
        fitting.map(|(id, part)| (id, u64::from(part.offset) * UNIT, u64::from(part.size) * UNIT))
    }

    /// Takes the bytes from `offset` on, with their memory, out of a free part. The rest stays free. `None` without two part numbers.
    pub fn take_out(&mut self, part: PartId, offset: u64, bytes: u64) -> Option<PartId> {
        let Part { offset: from, size: whole, .. } = self.parts[part.index()];
        let (skipped, size) = ((offset / UNIT) as u32 - from, (bytes / UNIT) as u32);
        if !self.has_numbers(2) {
            return None;
        }
        self.unlist(part);
        // The front keeps the number: the caller may know the part by it.
        let mut taken = part;
        if skipped > 0 {
            taken = self.split(part, skipped);
            self.list(part);
        }
        if skipped + size < whole {
            let rest = self.split(taken, size);
            self.list(rest);
        }
        self.total[self.zone(taken) as usize] -= u64::from(size);
        self.parts[taken.index()].state = State::Absent;
        Some(taken)
    }

    /// Returns memory [taken out](Self::take_out).
    pub fn put_back(&mut self, part: PartId) {
        self.total[self.zone(part) as usize] += u64::from(self.parts[part.index()].size);
        self.parts[part.index()].state = State::Taken;
        self.coalesce(part, 0);
    }

    /// The addresses of memory taken out have none any more, and may be claimed. Joins them with their neighbours.
    pub fn abandon(&mut self, part: PartId) {
        self.parts[part.index()].state = State::Absent;
        let mut whole = part;
        let is_vacant = |heap: &Self, side: &PartId| heap.absent.get(&heap.parts[side.index()].offset) == Some(side);
        if let Some(after) = self.parts[part.index()].after.filter(|after| is_vacant(self, after)) {
            self.absent.remove(&self.parts[after.index()].offset);
            self.merge(part, after);
        }
        if let Some(before) = self.parts[part.index()].before.filter(|before| is_vacant(self, before)) {
            self.merge(before, part);
            whole = before;
        }
        self.absent.insert(self.parts[whole.index()].offset, whole);
    }

    /// Returns the numbers of the slabs removed.
    pub fn remove_empty(&mut self, mut wanted: impl FnMut(u32) -> bool) -> Vec<u32> {
        let empty: Vec<PartId> = self.empty().filter(|part| wanted(self.parts[part.index()].slab)).collect();
        empty
            .into_iter()
            .map(|part| {
                self.unlist(part);
                let Part { slab, zone, size, .. } = self.parts[part.index()];
                self.total[zone as usize] -= u64::from(size);
                self.slabs[slab as usize] = None;
                self.release_number(part);
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
        u64::from(self.lists.iter().flat_map(SizeLists::all).filter_map(usable).max().unwrap_or(0)) * UNIT
    }

    pub fn largest(&self) -> u64 {
        let longest = self.lists.iter().flat_map(SizeLists::last).map(|listed| listed.size).max();
        u64::from(longest.unwrap_or(0)) * UNIT
    }

    /// Number, slab, offset, size in bytes and freeness of each part with memory.
    pub fn parts(&self) -> impl Iterator<Item = (PartId, u32, u64, u64, bool)> + '_ {
        let numbered = (0..).map(PartId::new).zip(&self.parts);
        let bytes = |units| u64::from(units) * UNIT;
        numbered
            .filter(|(_, part)| part.size > 0 && part.state != State::Absent)
            .map(move |(id, part)| (id, part.slab, bytes(part.offset), bytes(part.size), part.is_free()))
    }

    pub fn empty_slabs(&self) -> impl Iterator<Item = u32> + '_ {
        self.empty().map(|part| self.parts[part.index()].slab)
    }

    fn empty(&self) -> impl Iterator<Item = PartId> + '_ {
        self.slabs.iter().flatten().filter(|head| !head.is_range).map(|head| head.first).filter(|part| {
            let part = self.parts[part.index()];
            part.is_free() && part.before.is_none() && part.after.is_none()
        })
    }

    pub fn zone(&self, part: PartId) -> Zone {
        self.parts[part.index()].zone
    }

    pub fn base(&self, slab: u32) -> Option<Base> {
        Some((*self.slabs.get(slab as usize)?)?.base)
    }

    #[inline(always)]
    fn find(&self, size: u32, zone: Zone) -> Option<PartId> {
        let address = |listed: &Listed| {
            let Part { slab, offset, .. } = self.parts[listed.part.index()];
            (slab, offset)
        };
        let best = |list: &[Listed]| {
            let fitting = list.iter().rev().take(CANDIDATES).filter(|listed| listed.size >= size);
            // A record is only read to decide between equal sizes: it is a cache miss.
            fitting.min_by(|a, b| a.size.cmp(&b.size).then_with(|| address(a).cmp(&address(b)))).map(|listed| listed.part)
        };
        let lists = &self.lists[zone as usize];
        let own = lists.of(size);
        best(own).or_else(|| best(lists.first(size)?)).or_else(|| own.iter().find(|listed| listed.size >= size).map(|listed| listed.part))
    }

    fn find_aligned(&self, size: u32, align: u32, zone: Zone) -> Option<(PartId, u32)> {
        let fits = |part| Some((part, self.fits(part, size, align)?));
        let lists = &self.lists[zone as usize];
        let sure = size.checked_add(align - 1).and_then(|sure| lists.first(sure)?.last().map(|listed| listed.part));
        sure.and_then(fits).or_else(|| lists.from(size).find_map(fits))
    }

    fn list(&mut self, part: PartId) {
        let Part { size, zone, .. } = self.parts[part.index()];
        self.parts[part.index()].list_index = self.lists[zone as usize].add(part, size);
        self.parts[part.index()].state = State::Free;
        self.free += u64::from(size);
        self.free_parts += 1;
    }

    fn unlist(&mut self, part: PartId) {
        let Part { size, zone, list_index, .. } = self.parts[part.index()];
        if let Some(moved) = self.lists[zone as usize].remove(size, list_index) {
            self.parts[moved.index()].list_index = list_index;
        }
        self.parts[part.index()].state = State::Taken;
        self.free -= u64::from(size);
        self.free_parts -= 1;
    }

    /// `after` is the successor. Neither is listed.
    fn merge(&mut self, part: PartId, after: PartId) {
        let Part { size, after: next, .. } = self.parts[after.index()];
        self.parts[part.index()].size += size;
        self.parts[part.index()].after = next;
        if let Some(next) = next {
            self.parts[next.index()].before = Some(part);
        }
        self.release_number(after);
    }

    fn has_numbers(&self, count: usize) -> bool {
        // From the table's remaining capacity, else from unused numbers.
        let missing = count.saturating_sub(self.max_parts - self.parts.len());
        let mut unused = self.unused;
        (0..missing).all(|_| {
            let has_one = unused.is_some();
            unused = unused.and_then(|id| self.parts[id.index()].next);
            has_one
        })
    }

    fn take_number(&mut self, part: Part) -> PartId {
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

    fn release_number(&mut self, part: PartId) {
        self.parts[part.index()].size = 0;
        self.parts[part.index()].state = State::Taken;
        self.parts[part.index()].next = self.unused;
        self.unused = Some(part);
    }
}

/// The low bits of a slab's addresses, which determine the alignment of its parts. Memory that host and device address differently has two: they agree
/// on alignments up to `max_align`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Base {
    units: u32,
    /// The largest alignment on which all addresses agree, in units.
    max_align: u32,
}

impl Base {
    const TOP: u32 = 1 << 31;

    pub fn of(slab: &Block) -> Self {
        let device = slab.device_address.map(|address| address.get());
        let host = slab.host.map(|host| host.as_ptr().addr() as u64);
        let units = |address: u64| (address / UNIT) as u32;
        let (one, other) = (device.or(host).map_or(0, units), host.or(device).map_or(0, units));
        let differs = one ^ other;
        Self { units: one, max_align: if differs == 0 { Self::TOP } else { 1 << differs.trailing_zeros() } }
    }

    /// The largest alignment in bytes on which all addresses agree.
    pub fn most_align(self) -> u64 {
        u64::from(self.max_align) * UNIT
    }

    /// The units from `offset` to the next aligned address, if the slab's addresses agree on it.
    const fn padding(self, offset: u32, align: u32) -> Option<u32> {
        if align > self.max_align {
            return None;
        }
        // Modulo 2^32, a multiple of every alignment.
        Some(self.units.wrapping_add(offset).wrapping_neg() & (align - 1))
    }

    /// As [`padding`](Self::padding), in bytes.
    pub fn padding_bytes(self, offset: u64, align: u64) -> Option<u64> {
        Some(u64::from(self.padding((offset / UNIT) as u32, align_units(align)?)?) * UNIT)
    }
}

const fn align_units(align: u64) -> Option<u32> {
    match align {
        0..=UNIT => Some(1),
        _ if align <= LARGEST_ALIGN => Some((align / UNIT) as u32),
        _ => None,
    }
}

/// Lists per octave, as a power of two.
const STEP_BITS: u32 = 5;
const STEPS: usize = 1 << STEP_BITS;
/// Sizes in units have 32 bits.
const OCTAVES: usize = 32 - STEP_BITS as usize + 1;
const LISTS: usize = OCTAVES * STEPS;

/// A zone's free parts by size: 32 lists per octave, so that sizes in a list differ by at most 1/32.
///
/// Two levels of bits find the first list that is not empty with two instructions each: `octaves` has a bit per octave with a part, `steps` a bit per
/// list. A list is a vector of numbers and sizes: parts leave at the end, and a removal elsewhere moves the last part into the gap. Linked parts would touch
/// the records of both neighbours, each a cache miss; with the sizes in the list, a search for the smallest part touches no record.
///
/// INVARIANT: bit `step` of `steps[octave]` is set if and only if the list is not empty; bit `octave` of `octaves` if and only if its word is not 0.
struct SizeLists {
    parts: Vec<Vec<Listed>>,
    steps: [u32; OCTAVES],
    octaves: u64,
}

/// INVARIANT: `size` is that of the part's record.
#[derive(Clone, Copy)]
struct Listed {
    part: PartId,
    size: u32,
}

impl SizeLists {
    fn new() -> Self {
        Self { parts: std::vec![Vec::new(); LISTS], steps: [0; OCTAVES], octaves: 0 }
    }

    /// Returns the part's index in the list.
    fn add(&mut self, part: PartId, size: u32) -> u32 {
        let list = list_of(size);
        let place = self.parts[list].len() as u32;
        self.parts[list].push(Listed { part, size });
        self.steps[list / STEPS] |= 1 << (list % STEPS);
        self.octaves |= 1 << (list / STEPS);
        place
    }

    /// Returns the part that took its place.
    fn remove(&mut self, size: u32, place: u32) -> Option<PartId> {
        let list = list_of(size);
        self.parts[list].swap_remove(place as usize);
        if self.parts[list].is_empty() {
            self.steps[list / STEPS] &= !(1 << (list % STEPS));
            if self.steps[list / STEPS] == 0 {
                self.octaves &= !(1 << (list / STEPS));
            }
        }
        self.parts[list].get(place as usize).map(|listed| listed.part)
    }

    fn fetch(&self, size: u32, place: u32) {
        if let Some(listed) = self.parts[list_of(size)].get(place as usize) {
            prefetch::<false>(core::ptr::from_ref(listed).cast());
        }
    }

    /// The first list that is not empty and whose parts all suffice.
    #[inline(always)]
    fn first(&self, size: u32) -> Option<&[Listed]> {
        let list = list_above(size)?;
        let (octave, step) = (list / STEPS, list % STEPS);
        let here = self.steps[octave] & (u32::MAX << step);
        if here != 0 {
            return Some(&self.parts[octave * STEPS + here.trailing_zeros() as usize]);
        }
        let octave = (self.octaves & (u64::MAX << octave << 1)).trailing_zeros() as usize;
        let steps = *self.steps.get(octave)?;
        Some(&self.parts[octave * STEPS + steps.trailing_zeros() as usize])
    }

    /// A size's list, newest last.
    fn of(&self, size: u32) -> &[Listed] {
        &self.parts[list_of(size)]
    }

    /// The parts from a size's list on.
    fn from(&self, size: u32) -> impl Iterator<Item = PartId> + '_ {
        let (first, step) = (list_of(size) / STEPS, list_of(size) % STEPS);
        let lists = (first..OCTAVES).flat_map(move |octave| {
            let mut steps = self.steps[octave] & (u32::MAX << if octave == first { step } else { 0 });
            core::iter::from_fn(move || {
                let step = (steps != 0).then_some(steps.trailing_zeros() as usize)?;
                steps &= steps - 1;
                Some(octave * STEPS + step)
            })
        });
        lists.flat_map(|list| self.parts[list].iter().rev().map(|listed| listed.part))
    }

    /// The parts of the last list that is not empty.
    fn last(&self) -> &[Listed] {
        let octave = self.octaves.checked_ilog2().map(|octave| octave as usize);
        let list = octave.and_then(|octave| Some(octave * STEPS + self.steps[octave].checked_ilog2()? as usize));
        list.map_or(&[], |list| &self.parts[list])
    }

    fn all(&self) -> impl Iterator<Item = PartId> + '_ {
        self.parts.iter().flatten().map(|listed| listed.part)
    }
}

const fn list_of(size: u32) -> usize {
    if size < STEPS as u32 {
        return size as usize;
    }
    let shift = size.ilog2() - STEP_BITS;
    let step = (size >> shift) as usize & (STEPS - 1);
    (shift as usize + 1) * STEPS + step
}

const fn list_above(size: u32) -> Option<usize> {
    let is_least = size < STEPS as u32 || size.trailing_zeros() >= size.ilog2() - STEP_BITS;
    let list = list_of(size) + !is_least as usize;
    if list < LISTS { Some(list) } else { None }
}

/// Later frees before a part coalesces.
const OTHERS: usize = 8;

/// A queue of freed parts that have not coalesced yet. A part's record is prefetched when it enters, its neighbours' records halfway, and their places in their
/// lists halfway from there.
#[derive(Default)]
struct Deferred {
    /// With the times of their last uses.
    parts: [Option<(PartId, u64)>; OTHERS],
    next: usize,
}

struct Due {
    /// The part whose neighbours are prefetched now.
    halfway: Option<PartId>,
    /// The part whose neighbours' places are prefetched now.
    near: Option<PartId>,
    /// The part that coalesces now, with the time of its last use.
    due: Option<(PartId, u64)>,
}

impl Deferred {
    fn pass(&mut self, part: PartId, since: u64) -> Due {
        let due = self.parts[self.next % OTHERS].replace((part, since));
        let after = |frees: usize| self.parts[(self.next + frees) % OTHERS].map(|(part, _)| part);
        let (halfway, near) = (after(OTHERS / 2), after(OTHERS / 4));
        self.next = (self.next + 1) % OTHERS;
        Due { halfway, near, due }
    }

    fn take(&mut self) -> Option<(PartId, u64)> {
        self.parts.iter_mut().find_map(Option::take)
    }

    fn is_empty(&self) -> bool {
        self.parts.iter().all(Option::is_none)
    }
}

#[cfg(test)]
mod tests;
