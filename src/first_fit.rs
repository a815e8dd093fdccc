//! [`FirstFit`]: first-fit allocation of offsets, with coalescing.

use std::vec::Vec;

/// INVARIANT: free blocks are ordered, not empty, and neither overlap nor touch; `free` is their sum.
pub(crate) struct FirstFit {
    /// Scanned by first fit; most calls change a block in place.
    blocks: Vec<FreeBlock>,
    free: u64,
}

#[derive(Clone, Copy)]
struct FreeBlock {
    offset: u64,
    size: u64,
}

impl FreeBlock {
    const fn end(self) -> u64 {
        self.offset + self.size
    }

    /// Usable bytes, and the padding before.
    const fn usable(self, align: u64) -> (u64, u64) {
        let padding = self.offset.wrapping_neg() & (align - 1);
        (self.size.saturating_sub(padding), padding)
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Shortage {
    pub free: u64,
    /// At the requested alignment.
    pub largest: u64,
}

impl FirstFit {
    pub fn new(total: u64) -> Self {
        Self { blocks: Vec::from([FreeBlock { offset: 0, size: total }]), free: total }
    }

    pub fn free(&self) -> u64 {
        self.free
    }

    /// `align` is a power of two.
    pub fn allocate(&mut self, bytes: u64, align: u64) -> Result<u64, Shortage> {
        let Some((at, block)) = self.blocks.iter_mut().enumerate().find(|(_, block)| block.usable(align).0 >= bytes) else {
            return Err(self.shortage(align));
        };
        let (usable, padding) = block.usable(align);
        let offset = block.offset + padding;
        let rest = FreeBlock { offset: offset + bytes, size: usable - bytes };
        match (padding, rest.size) {
            (0, 0) => drop(self.blocks.remove(at)),
            (0, _) => *block = rest,
            (_, 0) => block.size = padding,
            _ => {
                block.size = padding;
                self.blocks.insert(at + 1, rest);
            }
        }
        self.free -= bytes;
        Ok(offset)
    }

    pub fn shortage(&self, align: u64) -> Shortage {
        Shortage { free: self.free, largest: self.blocks.iter().map(|block| block.usable(align).0).max().unwrap_or(0) }
    }

    /// Returns the length of the longest free range, as if the ranges `more` were released.
    pub fn longest_with(&self, more: impl Iterator<Item = (u64, u64)>) -> u64 {
        let free = self.blocks.iter().map(|block| (block.offset, block.size));
        let mut all: Vec<(u64, u64)> = free.chain(more).collect();
        all.sort_unstable();
        longest(all)
    }

    pub fn release(&mut self, offset: u64, bytes: u64) {
        self.free += bytes;
        let given = FreeBlock { offset, size: bytes };
        let after = self.blocks.partition_point(|block| block.offset < offset);
        let joins_after = self.blocks.get(after).is_some_and(|block| block.offset == given.end());
        let joins_before = after > 0 && self.blocks[after - 1].end() == offset;
        match (joins_before, joins_after) {
            (true, true) => self.blocks[after - 1].size += bytes + self.blocks.remove(after).size,
            (true, false) => self.blocks[after - 1].size += bytes,
            (false, true) => self.blocks[after] = FreeBlock { offset, size: bytes + self.blocks[after].size },
            (false, false) => self.blocks.insert(after, given),
        }
    }
}

/// Returns the length of the longest range. The ranges are ordered by offset, and adjacent ones count as one.
pub(crate) fn longest(ranges: impl IntoIterator<Item = (u64, u64)>) -> u64 {
    let (mut longest, mut run, mut end) = (0, 0, 0);
    for (offset, size) in ranges {
        run = if offset == end { run + size } else { size };
        end = offset + size;
        longest = longest.max(run);
    }
    longest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_fitting_block_is_allocated() {
        let mut list = FirstFit::new(100);
        assert_eq!([list.allocate(10, 1), list.allocate(30, 1), list.allocate(20, 1)], [Ok(0), Ok(10), Ok(40)]);
        list.release(10, 30);
        assert_eq!(list.allocate(31, 1), Ok(60));
        assert_eq!(list.allocate(5, 1), Ok(10));
    }

    #[test]
    fn free_blocks_coalesce_with_both_neighbours() {
        for order in [[0, 1, 2], [0, 2, 1], [2, 1, 0], [1, 0, 2], [1, 2, 0], [2, 0, 1]] {
            let mut list = FirstFit::new(30);
            for _ in 0..3 {
                list.allocate(10, 1).expect("room for three");
            }
            for block in order {
                list.release(block * 10, 10);
            }
            assert_eq!((list.free(), list.blocks.len()), (30, 1), "{order:?}");
            assert_eq!(list.allocate(30, 1), Ok(0));
        }
    }

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

    #[test]
    fn random_allocations_and_frees_follow_a_model() {
        const TOTAL: usize = 512;
        let mut random = 7_u64;
        let mut next = move |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        let (mut list, mut free) = (FirstFit::new(TOTAL as u64), std::vec![true; TOTAL]);
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
                let taken = list.allocate(bytes, align);
                assert_eq!(taken, expected, "{bytes} bytes at {align}");
                if let Ok(offset) = taken {
                    free[offset as usize..][..bytes as usize].fill(false);
                    live.push((offset, bytes));
                }
            } else if !live.is_empty() {
                let (offset, bytes) = live.swap_remove(next(live.len() as u64) as usize);
                let before = runs(&free).len();
                list.release(offset, bytes);
                free[offset as usize..][..bytes as usize].fill(true);
                coalesced += usize::from(runs(&free).len() < before);
            }
            let found: Vec<_> = list.blocks.iter().map(|block| (block.offset, block.size)).collect();
            assert_eq!((found, list.free()), (runs(&free), free.iter().filter(|is_free| **is_free).count() as u64));
        }
        assert!(refused > 1000 && coalesced > 100, "{refused} refused, {coalesced} coalesced with both neighbours");
    }

    #[test]
    fn padding_stays_free_and_a_shortage_has_the_aligned_maximum() {
        let mut list = FirstFit::new(256);
        assert_eq!(list.allocate(1, 1), Ok(0));
        assert_eq!(list.allocate(64, 128), Ok(128));
        assert_eq!(list.free(), 191);
        assert_eq!(list.allocate(127, 1), Ok(1));
        assert_eq!(list.allocate(64, 128), Err(Shortage { free: 64, largest: 0 }));
        assert_eq!(list.allocate(65, 1), Err(Shortage { free: 64, largest: 64 }));
    }
}
