use std::collections::BTreeMap;

use super::Chunk;

/// Folds results of chunks in byte order, so a float sum is reproducible; keeps early results.
///
/// ```
/// use ringmem::streaming::InOrder;
///
/// let mut text = InOrder::new(String::new(), |all: &mut String, part: &str| all.push_str(part));
/// text.push_at(2, 2, "cd"); // chunks may complete in any order
/// text.push_at(0, 2, "ab");
/// assert_eq!(text.finish(4).as_deref(), Some("abcd"));
/// ```
#[derive(Clone, Debug)]
pub struct InOrder<A, P, F> {
    folded: A,
    next: u64,
    waiting: BTreeMap<u64, (u64, P)>,
    came_again: bool,
    fold: F,
}

impl<A, P, F: FnMut(&mut A, P)> InOrder<A, P, F> {
    /// Creates an empty fold.
    ///
    /// ```
    /// use ringmem::streaming::InOrder;
    ///
    /// let mut digits = InOrder::new(0, |all: &mut u32, digit: u32| *all = *all * 10 + digit);
    /// for (offset, digit) in [(8, 2), (0, 1), (16, 3)] {
    ///     digits.push_at(offset, 8, digit);
    /// }
    /// assert_eq!(digits.finish(24), Some(123));
    /// ```
    pub const fn new(first: A, fold: F) -> Self {
        Self { folded: first, next: 0, waiting: BTreeMap::new(), came_again: false, fold }
    }

    /// Adds the result of a chunk.
    pub fn push(&mut self, chunk: &Chunk, part: P) {
        self.push_at(chunk.offset, chunk.length, part);
    }

    /// Adds the result of `length` bytes from `offset` on.
    pub fn push_at(&mut self, offset: u64, length: u64, part: P) {
        self.came_again |= self.waiting.insert(offset, (length, part)).is_some();
        while let Some((length, part)) = self.waiting.remove(&self.next) {
            (self.fold)(&mut self.folded, part);
            self.next = self.next.saturating_add(length);
        }
    }

    /// Returns the folded value; `None` if a chunk of the first `end` bytes is missing or repeated.
    pub fn finish(self, end: u64) -> Option<A> {
        (self.next == end && self.waiting.is_empty() && !self.came_again).then_some(self.folded)
    }
}
