//! [`Row`]: the panic handler's knowledge of its block.
//!
//! The handler has no argument, so it finds its block's row in a table, by a hash. Blocks of different launches may have the same row, and store to it at any
//! time, the words in any order. A handler that believed a mixture would end another block's kernel. So the last word is a sum of the block's number
//! and of the other words, and a row whose sum is wrong belongs to no block: its panic reports nothing. Lanes of its group that have not panicked still end the
//! other groups of its launch; if all have, these go on until a batch of theirs waits in vain.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

/// Control block (0 for none), epoch, `Groups` (0 for none), sum.
pub(crate) struct Row([AtomicU64; 4]);

impl Row {
    pub const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; 4])
    }

    /// For the block of this number, which is unique among all launches.
    pub fn store(&self, block: u64, words: [u64; 3]) {
        let [control, epoch, groups, sum] = &self.0;
        control.store(words[0], Relaxed);
        epoch.store(words[1], Relaxed);
        groups.store(words[2], Relaxed);
        sum.store(sum_of(block, words), Relaxed);
    }

    /// Returns what this block has stored last, unless another one has overwritten it.
    pub fn load(&self, block: u64) -> Option<[u64; 3]> {
        let [control, epoch, groups, sum] = self.0.each_ref().map(|word| word.load(Relaxed));
        let words = [control, epoch, groups];
        if sum == sum_of(block, words) { Some(words) } else { None }
    }
}

/// Of each number another one; of two mixtures hardly the same: a step is a bijection of the sum before, and spreads it over all bits.
const fn sum_of(block: u64, [control, epoch, groups]: [u64; 3]) -> u64 {
    const fn step(sum: u64, word: u64) -> u64 {
        let mixed = (sum ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        mixed ^ mixed >> 32
    }
    step(step(step(step(block, control), epoch), groups), 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mixture_of_two_blocks_words_belongs_to_no_block() {
        let (mine, others) = ((1 << 32, [0x7F00_0000_1000, 3, 0]), (2 << 32 | 5, [0x7F00_0000_2000, 4, 0x7F00_0000_3000]));
        let rows = [mine, others].map(|(block, words)| {
            let row = Row::new();
            row.store(block, words);
            assert_eq!((row.load(block), row.load(block + 1)), (Some(words), None));
            row.0.map(AtomicU64::into_inner)
        });
        for mixture in 1_usize..15 {
            let mixed = Row(core::array::from_fn(|word| AtomicU64::new(rows[mixture >> word & 1][word])));
            assert_eq!([mine.0, others.0].map(|block| mixed.load(block)), [None; 2], "{mixture:04b}");
        }
    }

    #[test]
    fn an_untouched_row_belongs_to_no_block() {
        assert!((0..1000).all(|block| Row::new().load(block << 32).is_none()));
    }
}
