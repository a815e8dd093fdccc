//! [`GrowingTable`]: a table that grows, whose elements never move.
//!
//! 1. An element is found by its number without a lock, and its address stays the same until the drop of the table.
//! 2. The table has room for at most 16 elements, or a quarter, more than necessary.
//! 3. A chunk is published by its `OnceLock`: a thread that finds it finds its elements initialised. Threads that grow the table at once create one
//!    chunk.
//!
//! Counted from 64, each octave of numbers, 2^k to 2^(k + 1), has four chunks of equal length. So the chunk of a number is the position of its highest bit
//! and the two bits below, and its offset is the remaining bits. A lookup has no branch but the checks for a missing chunk.

use std::boxed::Box;
use std::sync::OnceLock;

const BASE_BITS: u32 = 6;
const STEP_BITS: u32 = 2;
const OCTAVES: u32 = 26;
const CHUNKS: usize = (OCTAVES << STEP_BITS) as usize;

/// Numbers of all chunks.
pub(crate) const MOST: u32 = u32::MAX - ((1 << BASE_BITS) - 1);

pub(crate) struct GrowingTable<T> {
    chunks: [OnceLock<Box<[T]>>; CHUNKS],
}

impl<T> GrowingTable<T> {
    pub fn new() -> Self {
        Self { chunks: [const { OnceLock::new() }; CHUNKS] }
    }

    /// Returns `None` for a number whose chunk does not exist.
    #[inline(always)]
    pub fn get(&self, index: u32) -> Option<&T> {
        let (chunk, offset) = place(index);
        self.chunks.get(chunk)?.get()?.get(offset)
    }

    /// Creates the chunk of this number unless it exists. Returns `None` from [`MOST`] on.
    pub fn get_or_grow(&self, index: u32, new: impl FnMut() -> T) -> Option<&T> {
        let (chunk, offset) = place(index);
        self.chunks.get(chunk)?.get_or_init(|| create(chunk, new)).get(offset)
    }

    /// Creates the missing chunks of the first `len` elements. Returns `None` for more than [`MOST`].
    pub fn grow_to(&self, len: u32, mut new: impl FnMut() -> T) -> Option<()> {
        let (last, _) = place(len.checked_sub(1)?);
        for (chunk, elements) in self.chunks.get(..=last)?.iter().enumerate() {
            elements.get_or_init(|| create(chunk, &mut new));
        }
        Some(())
    }

    /// Returns the elements of the chunks before the first missing one.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.chunks.iter().map_while(OnceLock::get).flatten()
    }
}

fn create<T>(chunk: usize, new: impl FnMut() -> T) -> Box<[T]> {
    let bits = BASE_BITS - STEP_BITS + (chunk >> STEP_BITS) as u32;
    core::iter::repeat_with(new).take(1 << bits).collect()
}

/// Returns the chunk of a number, and its offset there.
#[inline(always)]
const fn place(index: u32) -> (usize, usize) {
    let number = index as u64 + (1 << BASE_BITS);
    let octave = number.ilog2();
    let step_bits = octave - STEP_BITS;
    // The shifted number is its highest bit, which is 4 here, plus the step within the octave.
    let step = (number >> step_bits) as u32 - (1 << STEP_BITS);
    let chunk = ((octave - BASE_BITS) << STEP_BITS) + step;
    (chunk as usize, (number & ((1 << step_bits) - 1)) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::Cell;

    #[test]
    fn places_fill_chunks_without_a_gap() {
        let (mut expected, mut length) = ((0, 0), 16);
        for index in 0..100_000 {
            assert_eq!(place(index), expected, "{index}");
            expected.1 += 1;
            if expected.1 == length {
                expected = (expected.0 + 1, 0);
                length = create(expected.0, || ()).len();
            }
        }
        assert_eq!(place(MOST - 1), (CHUNKS - 1, (1 << 29) - 1), "the last");
        assert_eq!((place(MOST).0, place(u32::MAX).0), (CHUNKS, CHUNKS), "one too many");
    }

    #[test]
    fn growth_creates_one_chunk_and_moves_no_element() {
        let (chunks, created) = (GrowingTable::new(), Cell::new(0));
        let new = || {
            created.set(created.get() + 1);
            created.get()
        };
        assert!(chunks.get(0).is_none());
        let first: *const u32 = chunks.get_or_grow(0, new).expect("within");
        assert_eq!((created.get(), chunks.get(15), chunks.get(16)), (16, Some(&16), None));
        assert_eq!(chunks.get_or_grow(16, new), Some(&17));
        assert_eq!((chunks.get(31), chunks.get(32)), (Some(&32), None));
        assert!(core::ptr::eq(first, chunks.get(0).expect("created")));
        assert!(chunks.get(u32::MAX).is_none() && chunks.get_or_grow(MOST, new).is_none());
        assert_eq!((chunks.grow_to(961, new), created.get(), chunks.iter().count()), (Some(()), 1216, 1216), "a quarter more");
        assert!(chunks.grow_to(MOST + 1, new).is_none());
        assert_eq!(created.get(), 1216);
    }
}
