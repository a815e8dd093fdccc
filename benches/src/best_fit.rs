//! Best fit over numbers: the allocator that programs write first, and the part that models of others have in common.

use std::collections::{BTreeMap, BTreeSet};

/// Offset and length.
pub type Extent = (u64, u64);

/// Free extents by length and by offset.
#[derive(Default)]
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

    /// Frees what a caller of [`take`](Self::take) does not need.
    pub fn give_rest(&mut self, offset: u64, length: u64) {
        if length > 0 {
            self.add((offset, length));
        }
    }

    /// Takes the shortest extent of at least `length`, of equal ones the first. Its caller returns what it does not need.
    pub fn take(&mut self, length: u64) -> Option<Extent> {
        let &(found, offset) = self.by_length.range((length, 0)..).next()?;
        self.remove((offset, found));
        Some((offset, found))
    }

    /// Frees an extent, and joins it with those that it touches.
    pub fn give(&mut self, (mut offset, mut length): Extent) {
        let before = self.by_offset.range(..offset).next_back().map(|(&offset, &length)| (offset, length));
        if let Some(before) = before.filter(|before| before.0 + before.1 == offset) {
            self.remove(before);
            (offset, length) = (before.0, before.1 + length);
        }
        if let Some(&after) = self.by_offset.get(&(offset + length)) {
            self.remove((offset + length, after));
            length += after;
        }
        self.add((offset, length));
    }

    /// Frees an extent that touches no other.
    pub fn add(&mut self, (offset, length): Extent) {
        self.by_length.insert((length, offset));
        self.by_offset.insert(offset, length);
    }

    /// The free extent with the highest offset.
    #[must_use]
    pub fn last(&self) -> Option<Extent> {
        self.by_offset.last_key_value().map(|(&offset, &length)| (offset, length))
    }

    /// Takes a free extent.
    pub fn remove(&mut self, (offset, length): Extent) {
        self.by_length.remove(&(length, offset));
        self.by_offset.remove(&offset);
    }
}
