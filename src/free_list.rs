//! What is free: holes by offset, taken first fit, neighbours joined.

use std::vec::Vec;

/// The free parts of `0..total`.
///
/// INVARIANT: holes are in order of offset, not empty, do not overlap and do not touch; `free` is the sum of their sizes.
pub(crate) struct Holes {
    /// In one piece: first fit walks them, and most blocks are cut from a hole or joined to one that stays where it is.
    holes: Vec<Hole>,
    free: u64,
}

#[derive(Clone, Copy)]
struct Hole {
    offset: u64,
    size: u64,
}

impl Hole {
    const fn end(self) -> u64 {
        self.offset + self.size
    }

    /// What an alignment leaves of it, and what it skips.
    const fn usable(self, align: u64) -> (u64, u64) {
        let padding = self.offset.wrapping_neg() & (align - 1);
        (self.size.saturating_sub(padding), padding)
    }
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
        Self { holes: Vec::from([Hole { offset: 0, size: total }]), free: total }
    }

    pub fn free(&self) -> u64 {
        self.free
    }

    /// The lowest offset that is a multiple of `align`, a power of two, with `bytes` free bytes after it.
    pub fn take(&mut self, bytes: u64, align: u64) -> Result<u64, Shortage> {
        let Some((at, hole)) = self.holes.iter_mut().enumerate().find(|(_, hole)| hole.usable(align).0 >= bytes) else {
            return Err(self.shortage(align));
        };
        let (usable, padding) = hole.usable(align);
        let offset = hole.offset + padding;
        let rest = Hole { offset: offset + bytes, size: usable - bytes };
        match (padding, rest.size) {
            (0, 0) => drop(self.holes.remove(at)),
            (0, _) => *hole = rest,
            (_, 0) => hole.size = padding,
            _ => {
                hole.size = padding;
                self.holes.insert(at + 1, rest);
            }
        }
        self.free -= bytes;
        Ok(offset)
    }

    /// What is free, and the most that an alignment could have.
    pub fn shortage(&self, align: u64) -> Shortage {
        Shortage { free: self.free, largest: self.holes.iter().map(|hole| hole.usable(align).0).max().unwrap_or(0) }
    }

    /// Gives back what was taken.
    pub fn give(&mut self, offset: u64, bytes: u64) {
        self.free += bytes;
        let given = Hole { offset, size: bytes };
        let after = self.holes.partition_point(|hole| hole.offset < offset);
        let joins_after = self.holes.get(after).is_some_and(|hole| hole.offset == given.end());
        let joins_before = after > 0 && self.holes[after - 1].end() == offset;
        match (joins_before, joins_after) {
            (true, true) => self.holes[after - 1].size += bytes + self.holes.remove(after).size,
            (true, false) => self.holes[after - 1].size += bytes,
            (false, true) => self.holes[after] = Hole { offset, size: bytes + self.holes[after].size },
            (false, false) => self.holes.insert(after, given),
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
            assert_eq!((holes.free(), holes.holes.len()), (30, 1), "{order:?}");
            assert_eq!(holes.take(30, 1), Ok(0));
        }
    }

    /// The maximal free runs of bytes, in order of offset.
    fn runs(free: &[bool]) -> Vec<(u64, u64)> {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for (offset, _) in (0..).zip(free).filter(|(_, is_free)| **is_free) {
            match runs.last_mut() {
                Some((start, size)) if *start + *size == offset => *size += 1,
                _ => runs.push((offset, 1)),
            }
        }
        runs
    }

    /// Compares with a model that lists free bytes: equal holes after every step, the lowest place that fits, and true figures in a shortage.
    #[test]
    fn random_takes_and_gives_leave_the_holes_of_a_model() {
        const TOTAL: usize = 512;
        let mut random = 7_u64;
        let mut next = move |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        let (mut holes, mut free) = (Holes::new(TOTAL as u64), std::vec![true; TOTAL]);
        let mut live: Vec<(u64, u64)> = Vec::new();
        let (mut refused, mut coalesced) = (0, 0);
        for _ in 0..20_000 {
            if next(5) < 3 {
                let (bytes, align) = (1 + next(40), 1 << next(6));
                let usable = |&(start, size): &(u64, u64)| size.saturating_sub(start.next_multiple_of(align) - start);
                let model = runs(&free);
                let expected = match model.iter().find(|run| usable(run) >= bytes) {
                    Some(&(start, _)) => Ok(start.next_multiple_of(align)),
                    None => {
                        refused += 1;
                        let largest = model.iter().map(usable).max().unwrap_or(0);
                        Err(Shortage { free: model.iter().map(|run| run.1).sum(), largest })
                    }
                };
                let taken = holes.take(bytes, align);
                assert_eq!(taken, expected, "{bytes} bytes at {align}");
                if let Ok(offset) = taken {
                    free[offset as usize..][..bytes as usize].fill(false);
                    live.push((offset, bytes));
                }
            } else if !live.is_empty() {
                let (offset, bytes) = live.swap_remove(next(live.len() as u64) as usize);
                let before = runs(&free).len();
                holes.give(offset, bytes);
                free[offset as usize..][..bytes as usize].fill(true);
                coalesced += usize::from(runs(&free).len() < before);
            }
            let found: Vec<_> = holes.holes.iter().map(|hole| (hole.offset, hole.size)).collect();
            assert_eq!((found, holes.free()), (runs(&free), free.iter().filter(|is_free| **is_free).count() as u64));
        }
        assert!(refused > 1000 && coalesced > 100, "{refused} refused, {coalesced} coalesced with both neighbours");
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
