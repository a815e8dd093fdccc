//! [`Chunks`]: a table that grows, whose elements never move.
//!
//! 1. An element is found by its number without a lock, and its address stays the same until the drop of the table.
//! 2. The first chunk has 64 elements; each further chunk has as many as all chunks before it. So the table doubles when it grows, and 26 chunks are
//!    2^31 elements.
//! 3. A chunk is published by its `OnceLock`: a thread that finds it finds its elements initialised. Threads that grow the table at once create one
//!    chunk.

use std::boxed::Box;
use std::sync::OnceLock;

const FIRST_BITS: u32 = 6;
const CHUNKS: usize = 26;

/// Elements of the first chunk.
pub(crate) const FIRST: u32 = 1 << FIRST_BITS;
/// Elements of all chunks.
pub(crate) const MOST: u32 = FIRST << (CHUNKS - 1);

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
        let len = if chunk == 0 { FIRST } else { begin(chunk) };
        self.chunks.get(chunk)?.get_or_init(|| core::iter::repeat_with(new).take(len as usize).collect()).get(offset)
    }

    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.chunks.iter().map_while(OnceLock::get).flatten()
    }
}

/// Returns the chunk of a number, and its place there.
#[inline(always)]
const fn place(index: u32) -> (usize, usize) {
    // The lowest bit makes the logarithm of a number in the first chunk 0.
    let chunk = (index >> (FIRST_BITS - 1) | 1).ilog2() as usize;
    (chunk, (index - begin(chunk)) as usize)
}

/// Returns the first number of a chunk: half of `FIRST << chunk`, and 0 for the first chunk, where the half is less than [`FIRST`].
#[inline(always)]
const fn begin(chunk: usize) -> u32 {
    ((FIRST as u64) << chunk >> 1) as u32 & !(FIRST - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::Cell;

    #[test]
    fn places_fill_chunks_without_a_gap() {
        let (mut expected, mut length, mut all) = ((0, 0), FIRST as usize, 0);
        for index in 0..100_000 {
            assert_eq!(place(index), expected);
            (expected.1, all) = (expected.1 + 1, all + 1);
            if expected.1 == length {
                (expected, length) = ((expected.0 + 1, 0), all);
            }
        }
        assert_eq!(place(MOST - 1), (CHUNKS - 1, MOST as usize / 2 - 1), "the last");
        assert_eq!(place(MOST).0, CHUNKS, "one too many");
        assert_eq!(place(u32::MAX).0, CHUNKS);
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
        assert_eq!(chunks.get_or_grow(130, new), Some(&131));
        assert_eq!((created.get(), chunks.iter().count()), (256, 256));
        assert!(core::ptr::eq(first, chunks.get(0).expect("created")));
        assert!(chunks.get(u32::MAX).is_none() && chunks.get_or_grow(MOST, new).is_none());
    }
}
