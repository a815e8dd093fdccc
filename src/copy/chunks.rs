use core::iter::FusedIterator;
use core::ops::Range;

use crate::{Error, Result};

/// Contiguous byte ranges of elements from byte 0, each of as many whole elements as fit; the rest last.
///
/// ```
/// use ringmem::copy::Chunks;
///
/// // Ten elements of 12 bytes, in chunks of at most 50.
/// let chunks: Vec<_> = Chunks::new(10, 12, 50)?.collect();
/// assert_eq!(chunks, [0..48, 48..96, 96..120]);
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Chunks {
    next: u64,
    end: u64,
    // INVARIANT: not 0.
    step: u64,
}

impl Chunks {
    /// Cuts `elements` elements of `size` bytes into ranges of at most `chunk` bytes.
    ///
    /// # Errors
    ///
    /// [`Size`](Error::Size) for a chunk that is empty or shorter than an element, or too many bytes.
    pub fn new(elements: u64, size: u64, chunk: u64) -> Result<Self> {
        let (least, most) = (size.max(1), isize::MAX as u64);
        if chunk < least {
            return Err(Error::Size { what: "chunk size", asked: chunk, least, most });
        }
        let asked = elements.saturating_mul(size);
        if asked > most {
            return Err(Error::Size { what: "size in bytes", asked, least: 0, most });
        }
        Ok(Self { next: 0, end: asked, step: chunk - chunk % least })
    }

    /// Returns the bytes of each range but the last.
    #[must_use]
    pub const fn step(&self) -> u64 {
        self.step
    }

    /// Returns the total bytes.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.end
    }

    pub(crate) const fn skip_all(&mut self) {
        self.next = self.end;
    }
}

impl Iterator for Chunks {
    type Item = Range<u64>;

    fn next(&mut self) -> Option<Range<u64>> {
        let start = self.next;
        self.next += self.step.min(self.end - start);
        (start < self.next).then_some(start..self.next)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = usize::try_from((self.end - self.next).div_ceil(self.step)).ok();
        (left.unwrap_or(usize::MAX), left)
    }
}

impl FusedIterator for Chunks {}
