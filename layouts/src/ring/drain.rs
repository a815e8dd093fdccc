//! [`Drain`]: the messages of a chunk, by value; and [`drop_all`], for the values left in a ring.

/// A consumer that has seen messages and takes them one by one.
pub trait Take {
    /// What it takes.
    type Item;

    /// Takes the message at the head, without releasing its slot.
    ///
    /// # Safety
    ///
    /// It is there.
    unsafe fn take(&mut self) -> Self::Item;

    /// Releases what was taken.
    fn release(&mut self);
}

/// The messages of a chunk by value, from the first. Those that are not asked for stay in the ring.
///
/// Each is released when it is taken, so that forgetting the iterator gives nothing out twice. `for_each`, `fold` and what goes through them
/// (`sum`, `count`, `last`) cannot be forgotten half way: they release all that they took together, at their end or when they panic.
#[must_use = "what is not asked for stays in the ring"]
pub struct Drain<'c, C> {
    consumer: &'c mut C,
    // INVARIANT: so many messages from the consumer's head on are there.
    left: u64,
}

impl<'c, C: Take> Drain<'c, C> {
    /// # Safety
    ///
    /// So many messages from the consumer's head on are there.
    pub(super) const unsafe fn new(consumer: &'c mut C, left: u64) -> Self {
        Self { consumer, left }
    }
}

impl<C: Take> Iterator for Drain<'_, C> {
    type Item = C::Item;

    #[inline]
    fn next(&mut self) -> Option<C::Item> {
        self.left = self.left.checked_sub(1)?;
        // SAFETY: by the invariant.
        let value = unsafe { self.consumer.take() };
        // Before anybody has the value: a consumer that comes after this one begins behind what was released.
        self.consumer.release();
        Some(value)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left as usize, Some(self.left as usize))
    }

    fn fold<B, F: FnMut(B, C::Item) -> B>(self, start: B, mut fold: F) -> B {
        /// Releases what was taken, also when `fold` panics.
        struct Release<'c, C: Take>(&'c mut C);
        impl<C: Take> Drop for Release<'_, C> {
            fn drop(&mut self) {
                self.0.release();
            }
        }
        let guard = Release(self.consumer);
        // SAFETY: by the invariant, so many times.
        (0..self.left).fold(start, |folded, _| fold(folded, unsafe { guard.0.take() }))
    }
}

/// Calls `next` until it returns `false`. `next` drops values and returns whether more may remain. If a drop panics, the other values are
/// dropped while the panic unwinds, as in `Vec`; a second panic aborts the process.
pub(super) fn drop_all(next: impl FnMut() -> bool) {
    struct Rest<F: FnMut() -> bool>(F);
    impl<F: FnMut() -> bool> Drop for Rest<F> {
        fn drop(&mut self) {
            while (self.0)() {}
        }
    }
    let mut rest = Rest(next);
    while (rest.0)() {}
}

impl<C: Take> ExactSizeIterator for Drain<'_, C> {}
impl<C: Take> core::iter::FusedIterator for Drain<'_, C> {}
