use super::consumer::Consumer;
use super::error::PopError;
use super::kind::{InPlace, Indexed, OneConsumer};
use crate::{Machine, SliceCell, SlotCell};

impl<'a, K: OneConsumer<T, M> + InPlace, T, M: Machine> Consumer<'a, K, T, M> {
    /// Returns up to `most` waiting messages in place; only [`Chunk::release`] takes them.
    ///
    /// # Errors
    ///
    /// [`PopError`]; empty also for `most == 0`.
    #[doc(alias = "read_chunk")]
    pub fn peek(&mut self, most: usize) -> Result<Chunk<'_, 'a, K, T, M>, PopError<M::Corrupt>> {
        match K::ready(self, most).map_err(PopError::Corrupt)? {
            0 => {
                K::release_deferred(self);
                Err(PopError::Empty)
            }
            count => Ok(Chunk::new(self, count)),
        }
    }
}

/// Waiting messages in place. Dropping it takes none.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::ring::spsc::Ring;
///
/// let mut ring = Ring::<String, 4>::new();
/// let (mut producer, mut consumer) = ring.split();
/// for word in ["a", "b", "c"] {
///     producer.push(word.to_owned()).unwrap();
/// }
/// let chunk = consumer.peek(2).unwrap();
/// assert_eq!(chunk.iter().map(String::as_str).collect::<Vec<_>>(), ["a", "b"]);
/// chunk.release(1); // drops "a"
/// assert_eq!(consumer.pop().as_deref(), Ok("b"));
/// ```
pub struct Chunk<'c, 'a, K: OneConsumer<T, M>, T, M: Machine> {
    pub(super) consumer: &'c mut Consumer<'a, K, T, M>,
    // INVARIANT: this many messages from the consumer's head on are present, at least one.
    count: usize,
}

impl<'c, 'a, K: OneConsumer<T, M> + InPlace, T, M: Machine> Chunk<'c, 'a, K, T, M> {
    #[inline(always)]
    pub(super) const fn new(consumer: &'c mut Consumer<'a, K, T, M>, count: usize) -> Self {
        Self { consumer, count }
    }

    /// Returns the number of messages, at least one.
    #[must_use]
    #[allow(clippy::len_without_is_empty)]
    pub const fn len(&self) -> usize {
        self.count
    }

    /// Returns the message `offset` places after the first, if any.
    #[must_use]
    #[inline]
    pub fn get(&self, offset: usize) -> Option<&T>
    where
        M::Cell<T>: SliceCell<T>,
    {
        let place = self.with(offset, core::ptr::from_ref)?;
        // SAFETY: present until `release`, which takes the chunk; the cell is plain bytes.
        Some(unsafe { &*place })
    }

    /// Returns the messages in place, in order.
    pub fn iter(&self) -> impl Iterator<Item = &T>
    where
        M::Cell<T>: SliceCell<T>,
    {
        (0..self.count).map_while(|offset| self.get(offset))
    }

    /// Like [`get`](Self::get), also for cells that are not plain bytes.
    #[must_use]
    #[inline]
    pub fn with<R>(&self, offset: usize, read: impl FnOnce(&T) -> R) -> Option<R> {
        if offset >= self.count {
            return None;
        }
        // SAFETY: present by the invariant; not written until released.
        Some(self.consumer.slot(offset as u64).with(|slot| read(unsafe { &*slot })))
    }

    /// Drops the first `count` messages (at most all) and releases their slots together.
    ///
    /// If a drop panics, that message is the last released.
    pub fn release(self, count: usize) {
        let guard = Release(self.consumer);
        for _ in 0..count.min(self.count) {
            let cell = guard.0.slot(0);
            // The index first: no value is dropped twice after a panic.
            guard.0.head = guard.0.head.wrapping_add(1);
            // SAFETY: present; the index has passed it.
            cell.with_mut(|slot| unsafe { slot.drop_in_place() });
        }
    }
}

impl<T, M: Machine<Cell<T>: SliceCell<T>>> Chunk<'_, '_, Indexed, T, M> {
    /// Returns the messages before the wrap and after it.
    #[must_use]
    pub fn as_slices(&self) -> [&[T]; 2] {
        self.consumer.runs(self.count)
    }
}

struct Release<'c, 'a, K: OneConsumer<T, M>, T, M: Machine>(&'c mut Consumer<'a, K, T, M>);

impl<K: OneConsumer<T, M>, T, M: Machine> Drop for Release<'_, '_, K, T, M> {
    fn drop(&mut self) {
        K::release(self.0);
    }
}

/// The messages by value.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::ring::spsc::Ring;
/// let mut ring = Ring::<String, 4>::new();
/// let (mut producer, mut consumer) = ring.split();
/// ["a", "b", "c"].into_iter().for_each(|name| producer.push(name.to_owned()).unwrap());
/// let two: Vec<String> = consumer.peek(8).unwrap().into_iter().take(2).collect();
/// assert_eq!((two, consumer.len()), (vec!["a".to_owned(), "b".to_owned()], 1));
/// ```
impl<'c, 'a, K: OneConsumer<T, M>, T, M: Machine> IntoIterator for Chunk<'c, 'a, K, T, M> {
    type Item = T;
    type IntoIter = Drain<'c, 'a, K, T, M>;

    fn into_iter(self) -> Self::IntoIter {
        Drain { consumer: self.consumer, left: self.count }
    }
}

/// A chunk's messages by value, in order. Untaken messages stay.
///
/// Each is released when taken; `for_each` and `fold` release all at their end or panic.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::ring::spsc::Ring;
///
/// let mut ring = Ring::<u32, 4>::new();
/// let (mut producer, mut consumer) = ring.split();
/// producer.push_slice(&[1, 2, 3]).unwrap();
/// for value in consumer.peek(4).unwrap() {
///     if value == 2 {
///         break; // 3 stays in the ring
///     }
/// }
/// assert_eq!(consumer.pop(), Ok(3));
/// ```
#[must_use = "messages that are not taken stay in the ring"]
pub struct Drain<'c, 'a, K: OneConsumer<T, M>, T, M: Machine> {
    consumer: &'c mut Consumer<'a, K, T, M>,
    // INVARIANT: this many messages from the consumer's head on are present.
    left: usize,
}

impl<K: OneConsumer<T, M>, T, M: Machine> Iterator for Drain<'_, '_, K, T, M> {
    type Item = T;

    #[inline]
    fn next(&mut self) -> Option<T> {
        self.left = self.left.checked_sub(1)?;
        let value = K::take(self.consumer);
        // Released first: a later consumer begins after it.
        K::release(self.consumer);
        Some(value)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }

    fn fold<B, F: FnMut(B, T) -> B>(self, start: B, mut fold: F) -> B {
        let guard = Release(self.consumer);
        (0..self.left).fold(start, |folded, _| fold(folded, K::take(guard.0)))
    }
}

impl<K: OneConsumer<T, M>, T, M: Machine> ExactSizeIterator for Drain<'_, '_, K, T, M> {}
impl<K: OneConsumer<T, M>, T, M: Machine> core::iter::FusedIterator for Drain<'_, '_, K, T, M> {}

/// Calls `next`, which drops values, until it returns `false`, also after a panic.
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
