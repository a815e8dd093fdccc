//! [`Chunks`]: a table that grows, whose elements never move.
//!
//! 1. An element is found by its number without a lock, and its address stays the same until the drop of the table.
//! 2. From 64 elements on, the table has room for at most a quarter more elements than necessary.
//! 3. A chunk is published by its `OnceLock`: a thread that finds it finds its elements initialised. Threads that grow the table at once create one
//!    chunk.
//!
//! The first chunk has the numbers below 64. Each octave of numbers above, 2^k to 2^(k + 1), has four chunks of equal length: the chunk of a number is the
//! position of its highest bit and the two bits below, its offset is the remaining bits.

use std::boxed::Box;
use std::sync::OnceLock;

const FIRST_BITS: u32 = 6;
const STEP_BITS: u32 = 2;
const OCTAVES: u32 = 25;
const CHUNKS: usize = 1 + (OCTAVES << STEP_BITS) as usize;

/// Elements of the first chunk.
pub(crate) const FIRST: u32 = 1 << FIRST_BITS;
/// Elements of all chunks.
pub(crate) const MOST: u32 = FIRST << OCTAVES;

pub(crate) struct Chunks<T> {
    chunks: [OnceLock<Box<[T]>>; CHUNKS],
}

impl<T> Chunks<T> {
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
    let len = match chunk.checked_sub(1) {
        None => FIRST as usize,
        Some(steps) => 1 << (FIRST_BITS as usize - STEP_BITS as usize + (steps >> STEP_BITS)),
    };
    core::iter::repeat_with(new).take(len).collect()
}

/// Returns the chunk of a number, and its offset there.
#[inline(always)]
const fn place(index: u32) -> (usize, usize) {
    if index < FIRST {
        return (0, index as usize);
    }
    let octave = index.ilog2();
    let step_bits = octave - STEP_BITS;
    // The shifted number is its highest bit, which is 4 here, plus the step within the octave.
    let step = (index >> step_bits) - (1 << STEP_BITS);
    let chunk = 1 + ((octave - FIRST_BITS) << STEP_BITS) + step;
    (chunk as usize, (index & ((1 << step_bits) - 1)) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::Cell;

    #[test]
    fn places_fill_chunks_without_a_gap() {
        let (mut expected, mut length) = ((0, 0), FIRST as usize);
        for index in 0..100_000 {
            assert_eq!(place(index), expected, "{index}");
            expected.1 += 1;
            if expected.1 == length {
                expected = (expected.0 + 1, 0);
                length = create(expected.0, || ()).len();
            }
        }
        assert_eq!(place(MOST - 1), (CHUNKS - 1, (1 << 28) - 1), "the last");
        assert_eq!(place(MOST).0, CHUNKS, "one too many");
        assert!(place(u32::MAX).0 >= CHUNKS);
    }

    #[test]
    fn growth_creates_one_chunk_and_moves_no_element() {
        let (chunks, created) = (Chunks::new(), Cell::new(0));
        let new = || {
            created.set(created.get() + 1);
            created.get()
        };
        assert!(chunks.get(0).is_none());
        let first: *const u32 = chunks.get_or_grow(0, new).expect("within");
        assert_eq!((created.get(), chunks.get(63), chunks.get(64)), (64, Some(&64), None));
        assert_eq!(chunks.get_or_grow(64, new), Some(&65));
        assert_eq!((chunks.get(79), chunks.get(80)), (Some(&80), None));
        assert!(core::ptr::eq(first, chunks.get(0).expect("created")));
        assert!(chunks.get(u32::MAX).is_none() && chunks.get_or_grow(MOST, new).is_none());
        assert_eq!((chunks.grow_to(1025, new), created.get(), chunks.iter().count()), (Some(()), 1280, 1280), "a quarter more");
        assert!(chunks.grow_to(MOST + 1, new).is_none());
        assert_eq!(created.get(), 1280);
    }
}
