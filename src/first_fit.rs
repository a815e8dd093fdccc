//! [`FirstFit`]: first-fit allocation of offsets, with coalescing.
//!
//! The free blocks are in runs of at most [`MOST`], and each run has the size of its longest block. A search skips runs of which every block is too short. An
//! insertion or removal moves the blocks of one run. With n free blocks, a call visits at most 4 n / [`MOST`] runs and the blocks of one or two. (At an
//! alignment above 1, a search also scans runs in which only padding makes the long blocks too short.)
//!
//! A balanced tree visits fewer, but takes longer for few blocks, the common case.

use core::mem;
use std::vec::Vec;

/// INVARIANT: free blocks are ordered, not empty, and neither overlap nor touch; `free` is their sum. No run is empty.
pub(crate) struct FirstFit {
    runs: Vec<Run>,
    free: u64,
}

/// INVARIANT: `longest` is the size of its longest block.
struct Run {
    blocks: Vec<FreeBlock>,
    longest: u64,
}

/// Blocks of a run.
const MOST: usize = 64;

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

/// The indices of a run and of a block in it.
type Place = (usize, usize);

impl FirstFit {
    pub fn new(total: u64) -> Self {
        Self { runs: Vec::from([Run::new(Vec::from([FreeBlock { offset: 0, size: total }]))]), free: total }
    }

    pub fn free(&self) -> u64 {
        self.free
    }

    /// `align` is a power of two.
    pub fn allocate(&mut self, bytes: u64, align: u64) -> Result<u64, Shortage> {
        let Some(place) = self.first_fit(bytes, align) else {
            return Err(self.shortage(align));
        };
        let block = self.block(place);
        let (usable, padding) = block.usable(align);
        let offset = block.offset + padding;
        let before = FreeBlock { size: padding, ..block };
        let rest = FreeBlock { offset: offset + bytes, size: usable - bytes };
        match (padding, rest.size) {
            (0, 0) => self.remove(place),
            (0, _) => self.replace(place, rest),
            (_, 0) => self.replace(place, before),
            _ => {
                self.replace(place, before);
                self.insert((place.0, place.1 + 1), rest);
            }
        }
        self.free -= bytes;
        Ok(offset)
    }

    fn first_fit(&self, bytes: u64, align: u64) -> Option<Place> {
        // A long block may be too short behind its padding.
        self.runs.iter().enumerate().filter(|(_, run)| run.longest >= bytes).find_map(|(at, run)| {
            let block = run.blocks.iter().position(|block| block.usable(align).0 >= bytes)?;
            Some((at, block))
        })
    }

    pub fn shortage(&self, align: u64) -> Shortage {
        let mut largest = 0;
        for run in &self.runs {
            if run.longest > largest {
                largest = run.blocks.iter().map(|block| block.usable(align).0).fold(largest, u64::max);
            }
        }
        Shortage { free: self.free, largest }
    }

    /// Returns the length of the longest free range, as if the ranges `more` were released.
    pub fn longest_with(&self, more: impl Iterator<Item = (u64, u64)>) -> u64 {
        let mut all: Vec<(u64, u64)> = self.blocks().chain(more).collect();
        all.sort_unstable();
        longest(all)
    }

    /// The offset and size of each free block, in order.
    fn blocks(&self) -> impl Iterator<Item = (u64, u64)> {
        self.runs.iter().flat_map(|run| &run.blocks).map(|block| (block.offset, block.size))
    }

    pub fn release(&mut self, offset: u64, bytes: u64) {
        self.free += bytes;
        let given = FreeBlock { offset, size: bytes };
        // The run of the last block that begins before; without such a block, the first run.
        let run = self.runs.partition_point(|run| run.blocks[0].offset < offset).saturating_sub(1);
        let Some(blocks) = self.runs.get(run).map(|run| &run.blocks) else {
            return self.runs.push(Run::new(Vec::from([given])));
        };
        let at = blocks.partition_point(|block| block.offset < offset);
        let after = if at < blocks.len() { (run, at) } else { (run + 1, 0) };
        let joins_after = self.runs.get(after.0).map(|run| run.blocks[after.1]).is_some_and(|block| block.offset == given.end());
        let before = at.checked_sub(1).map(|before| (run, before)).filter(|&before| self.block(before).end() == offset);
        match (before, joins_after) {
            (Some(before), true) => {
                self.grow(before, bytes + self.block(after).size);
                self.remove(after);
            }
            (Some(before), false) => self.grow(before, bytes),
            (None, true) => self.replace(after, FreeBlock { offset, size: bytes + self.block(after).size }),
            (None, false) => self.insert((run, at), given),
        }
    }

    fn block(&self, (run, at): Place) -> FreeBlock {
        self.runs[run].blocks[at]
    }

    fn replace(&mut self, (run, at): Place, block: FreeBlock) {
        let run = &mut self.runs[run];
        let old = mem::replace(&mut run.blocks[at], block);
        run.changed(old.size, block.size);
    }

    fn grow(&mut self, place: Place, bytes: u64) {
        let block = self.block(place);
        self.replace(place, FreeBlock { size: block.size + bytes, ..block });
    }

    fn insert(&mut self, (at, index): Place, block: FreeBlock) {
        let run = &mut self.runs[at];
        run.blocks.insert(index, block);
        if run.blocks.len() > MOST {
            let second = Run::new(run.blocks.split_off(MOST / 2));
            run.update();
            self.runs.insert(at + 1, second);
        } else {
            run.changed(0, block.size);
        }
    }

    fn remove(&mut self, (at, index): Place) {
        let run = &mut self.runs[at];
        let removed = run.blocks.remove(index);
        run.changed(removed.size, 0);
        self.join(at);
        if let Some(before) = at.checked_sub(1) {
            self.join(before);
        }
    }

    /// Joins a run with the next if both are short, so that two neighbours have more than half of [`MOST`]. Removes an empty run.
    fn join(&mut self, at: usize) {
        match &mut self.runs[at..] {
            [run, next, ..] if run.blocks.len() + next.blocks.len() <= MOST / 2 => {
                run.blocks.append(&mut next.blocks);
                run.longest = run.longest.max(next.longest);
                self.runs.remove(at + 1);
            }
            [run, ..] if run.blocks.is_empty() => drop(self.runs.remove(at)),
            _ => {}
        }
    }
}

impl Run {
    fn new(blocks: Vec<FreeBlock>) -> Self {
        let mut run = Self { blocks, longest: 0 };
        run.update();
        run
    }

    /// Restores the invariant after a block of the first size became one of the second.
    fn changed(&mut self, old: u64, new: u64) {
        if new >= self.longest {
            self.longest = new;
        } else if old == self.longest {
            self.update();
        }
    }

    fn update(&mut self) {
        self.longest = self.blocks.iter().map(|block| block.size).max().unwrap_or(0);
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
            assert_eq!((list.free(), list.blocks().count()), (30, 1), "{order:?}");
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

    fn numbers() -> impl FnMut(u64) -> u64 {
        let mut random = 7_u64;
        move |below| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        }
    }

    #[test]
    fn random_allocations_and_frees_follow_a_model() {
        const TOTAL: usize = 512;
        let mut next = numbers();
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
            assert_eq!(
                (list.blocks().collect::<Vec<_>>(), list.free()),
                (runs(&free), free.iter().filter(|is_free| **is_free).count() as u64)
            );
        }
        assert!(refused > 1000 && coalesced > 100, "{refused} refused, {coalesced} coalesced with both neighbours");
    }

    /// First fit by a scan over ordered blocks.
    struct Scan(Vec<FreeBlock>);

    impl Scan {
        fn allocate(&mut self, bytes: u64, align: u64) -> Result<u64, Shortage> {
            let largest = self.0.iter().map(|block| block.usable(align).0).max().unwrap_or(0);
            let Some(at) = self.0.iter().position(|block| block.usable(align).0 >= bytes) else {
                return Err(Shortage { free: self.0.iter().map(|block| block.size).sum(), largest });
            };
            let block = self.0.remove(at);
            let (usable, padding) = block.usable(align);
            let offset = block.offset + padding;
            let parts = [FreeBlock { size: padding, ..block }, FreeBlock { offset: offset + bytes, size: usable - bytes }];
            self.0.splice(at..at, parts.into_iter().filter(|part| part.size > 0));
            Ok(offset)
        }

        fn release(&mut self, offset: u64, bytes: u64) {
            let at = self.0.partition_point(|block| block.offset < offset);
            self.0.insert(at, FreeBlock { offset, size: bytes });
            for at in [at, at.saturating_sub(1)] {
                if let [first, second, ..] = self.0[at..]
                    && first.end() == second.offset
                {
                    self.0[at].size += second.size;
                    self.0.remove(at + 1);
                }
            }
        }
    }

    /// The runs that are not empty, not too long, and have the size of their longest block.
    fn valid_runs(list: &FirstFit) -> usize {
        let longest = |run: &Run| run.blocks.iter().map(|block| block.size).max();
        list.runs.iter().filter(|run| run.blocks.len() <= MOST && longest(run) == Some(run.longest)).count()
    }

    #[test]
    fn many_blocks_are_allocated_as_by_a_scan() {
        const TOTAL: u64 = 1 << 20;
        let (mut next, mut list, mut scan) = (numbers(), FirstFit::new(TOTAL), Scan(Vec::from([FreeBlock { offset: 0, size: TOTAL }])));
        let mut live: Vec<(u64, u64)> = Vec::new();
        let (mut refused, mut most) = (0, 0);
        for event in 0..30_000 {
            // Mostly allocations, then mostly frees, and so on.
            if next(8) < if event / 3000 % 2 == 0 { 6 } else { 3 } {
                // Short and long, so that blocks of many lengths stay free.
                let (bits, shift) = (1 + next(12), next(9) * next(2));
                let (bytes, align) = (1 + next(1 << bits), 1 << shift);
                let taken = list.allocate(bytes, align);
                assert_eq!(taken, scan.allocate(bytes, align), "{bytes} bytes at {align}");
                match taken {
                    Ok(offset) => live.push((offset, bytes)),
                    Err(_) => refused += 1,
                }
            } else if !live.is_empty() {
                let (offset, bytes) = live.swap_remove(next(live.len() as u64) as usize);
                list.release(offset, bytes);
                scan.release(offset, bytes);
            }
            if event % 500 == 0 {
                assert!(list.blocks().eq(scan.0.iter().map(|block| (block.offset, block.size))));
                assert_eq!(valid_runs(&list), list.runs.len());
                most = most.max(scan.0.len());
            }
        }
        assert!(refused > 100 && most > 1000, "{refused} refused, {most} free blocks");
    }

    #[test]
    fn many_blocks_are_in_few_runs() {
        const BLOCKS: u64 = 1 << 14;
        let mut list = FirstFit::new(2 * BLOCKS);
        (0..2 * BLOCKS).for_each(|offset| assert_eq!(list.allocate(1, 1), Ok(offset)));
        (0..BLOCKS).for_each(|block| list.release(2 * block, 1));
        let most = BLOCKS as usize / (MOST / 2);
        assert!(list.blocks().count() as u64 == BLOCKS && list.runs.len() <= most, "{} runs", list.runs.len());
        // All but each 512th: short runs join, and the rest of the blocks needs few.
        (0..BLOCKS).for_each(|block| assert_eq!(list.allocate(1, 1), Ok(2 * block)));
        (0..BLOCKS).for_each(|block| list.release(2 * block, 1));
        let (kept, joined): (Vec<u64>, Vec<u64>) = (0..BLOCKS).partition(|block| block % 512 == 0);
        joined.into_iter().filter(|block| block % 512 < 511).for_each(|block| list.release(2 * block + 1, 1));
        assert_eq!(list.blocks().count(), 2 * kept.len());
        assert!(list.runs.len() <= 1 + 2 * 2 * kept.len() / (MOST / 2), "{} runs", list.runs.len());
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
