//! What is free: holes by offset, taken first fit, neighbours joined.

use std::collections::BTreeMap;

/// The free parts of `0..total`.
///
/// INVARIANT: holes are not empty, do not overlap and do not touch; `free` is the sum of their sizes.
pub(crate) struct Holes {
    sizes: BTreeMap<u64, u64>,
    free: u64,
}

/// Why nothing was taken.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Shortage {
    pub free: u64,
    /// The most that this alignment could have had.
    pub largest: u64,
}

impl Holes {
    /// One hole of `total` bytes.
    pub fn new(total: u64) -> Self {
        Self { sizes: BTreeMap::from([(0, total)]), free: total }
    }

    pub fn free(&self) -> u64 {
        self.free
    }

    /// The lowest offset that is a multiple of `align`, a power of two, with `bytes` free bytes after it.
    pub fn take(&mut self, bytes: u64, align: u64) -> Result<u64, Shortage> {
        let mut fit = None;
        for (&hole, &size) in &self.sizes {
            let padding = hole.wrapping_neg() & (align - 1);
            let usable = size.saturating_sub(padding);
            if usable >= bytes {
                fit = Some((hole, size, padding));
                break;
            }
        }
        let Some((hole, size, padding)) = fit else { return Err(self.shortage(align)) };
        let offset = hole + padding;
        if padding > 0 {
            self.sizes.insert(hole, padding);
        } else {
            self.sizes.remove(&hole);
        }
        let rest = size - padding - bytes;
        if rest > 0 {
            self.sizes.insert(offset + bytes, rest);
        }
        self.free -= bytes;
        Ok(offset)
    }

    /// What is free, and the most that an alignment could have.
    pub fn shortage(&self, align: u64) -> Shortage {
        let usable = |(&hole, &size): (&u64, &u64)| size.saturating_sub(hole.wrapping_neg() & (align - 1));
        Shortage { free: self.free, largest: self.sizes.iter().map(usable).max().unwrap_or(0) }
    }

    /// Gives back what was taken.
    pub fn give(&mut self, offset: u64, bytes: u64) {
        self.free += bytes;
        let after = self.sizes.remove(&(offset + bytes)).unwrap_or(0);
        match self.sizes.range_mut(..offset).next_back() {
            Some((&before, size)) if before + *size == offset => *size += bytes + after,
            _ => drop(self.sizes.insert(offset, bytes + after)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_hole_that_fits_is_taken() {
        let mut holes = Holes::new(100);
        assert_eq!([holes.take(10, 1), holes.take(30, 1), holes.take(20, 1)], [Ok(0), Ok(10), Ok(40)]);
        holes.give(10, 30);
        assert_eq!(holes.take(31, 1), Ok(60));
        assert_eq!(holes.take(5, 1), Ok(10));
    }

    #[test]
    fn holes_join_with_the_neighbour_before_after_and_both() {
        for order in [[0, 1, 2], [0, 2, 1], [2, 1, 0], [1, 0, 2], [1, 2, 0], [2, 0, 1]] {
            let mut holes = Holes::new(30);
            for _ in 0..3 {
                holes.take(10, 1).expect("room for three");
            }
            for block in order {
                holes.give(block * 10, 10);
            }
            assert_eq!((holes.free(), holes.sizes.len()), (30, 1), "{order:?}");
            assert_eq!(holes.take(30, 1), Ok(0));
        }
    }

    #[test]
    fn padding_stays_free_and_a_shortage_says_what_the_alignment_could_have_had() {
        let mut holes = Holes::new(256);
        assert_eq!(holes.take(1, 1), Ok(0));
        assert_eq!(holes.take(64, 128), Ok(128));
        assert_eq!(holes.free(), 191);
        assert_eq!(holes.take(127, 1), Ok(1));
        assert_eq!(holes.take(64, 128), Err(Shortage { free: 64, largest: 0 }));
        assert_eq!(holes.take(65, 1), Err(Shortage { free: 64, largest: 64 }));
    }
}
