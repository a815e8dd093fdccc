use core::mem::MaybeUninit;

use super::error::ReserveError;
use super::kind::{Indexed, OneProducer};
use super::producer::Producer;
use crate::{Machine, SliceCell};

impl<'a, K: OneProducer<T, M>, T, M: Machine> Producer<'a, K, T, M> {
    /// Reserves `count` slots, to be written in place.
    ///
    /// # Errors
    ///
    /// [`ReserveError`].
    #[doc(alias("write_chunk", "write_chunk_uninit"))]
    pub fn reserve(&mut self, count: usize) -> Result<Grant<'_, 'a, K, T, M>, ReserveError<M::Corrupt>> {
        if self.free() < count {
            if count > self.capacity() {
                return Err(ReserveError::TooLarge { capacity: self.capacity() });
            }
            let free = K::room(self).map_err(ReserveError::Corrupt)?;
            if free < count {
                return Err(ReserveError::Full { free });
            }
        }
        Ok(Grant::new(self, count))
    }
}

/// Slots to be written in place, in order. Dropping the grant publishes the written slots. If it is forgotten, the producer's next publish or drop
/// does.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::ring::spsc::Ring;
///
/// let mut ring = Ring::<u32, 8>::new();
/// let (mut producer, mut consumer) = ring.split();
/// let mut grant = producer.reserve(3).unwrap();
/// assert_eq!(grant.fill([1, 2]), 2);
/// assert!(consumer.is_empty()); // not visible yet
/// grant.commit();
/// assert_eq!((consumer.pop(), consumer.pop()), (Ok(1), Ok(2)));
/// ```
pub struct Grant<'p, 'a, K: OneProducer<T, M>, T, M: Machine> {
    producer: &'p mut Producer<'a, K, T, M>,
    count: usize,
    // INVARIANT: slots from the producer's tail to here are free, at most `count`.
    end: u64,
}

impl<'p, 'a, K: OneProducer<T, M>, T, M: Machine> Grant<'p, 'a, K, T, M> {
    /// `count` slots are free.
    #[inline(always)]
    pub(super) fn new(producer: &'p mut Producer<'a, K, T, M>, count: usize) -> Self {
        K::defer(producer);
        let end = producer.tail.wrapping_add(count as u64);
        Self { producer, count, end }
    }

    /// Returns the number of slots granted.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.count
    }

    /// Returns whether the grant is empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the number of slots written.
    #[must_use]
    pub const fn written(&self) -> usize {
        self.count - self.end.wrapping_sub(self.producer.tail) as usize
    }

    /// Writes the next slot.
    ///
    /// # Errors
    ///
    /// The value, if all are written.
    #[inline]
    pub fn write(&mut self, value: T) -> Result<(), T> {
        if self.producer.tail == self.end {
            return Err(value);
        }
        K::fill(self.producer, value);
        Ok(())
    }

    /// Writes values while slots remain; returns their number.
    pub fn fill(&mut self, values: impl IntoIterator<Item = T>) -> usize {
        let before = self.written();
        let mut values = values.into_iter();
        while self.producer.tail != self.end {
            let Some(value) = values.next() else { break };
            K::fill(self.producer, value);
        }
        self.written() - before
    }

    /// Publishes the written slots, as drop does.
    pub fn commit(self) {}
}

impl<T, M: Machine<Cell<T>: SliceCell<T>>> Grant<'_, '_, Indexed, T, M> {
    /// Marks the first `count` slots as written in [`as_mut_slices`](Self::as_mut_slices).
    ///
    /// # Safety
    ///
    /// `count` is at most [`len`](Self::len); these slots are initialised.
    pub unsafe fn assume_written(&mut self, count: usize) {
        debug_assert!(count <= self.count);
        self.producer.tail = self.end.wrapping_sub(self.count as u64).wrapping_add(count as u64);
    }

    /// Returns the unwritten slots before the wrap and after it.
    pub fn as_mut_slices(&mut self) -> [&mut [MaybeUninit<T>]; 2] {
        let Producer { slots, tail, .. } = &*self.producer;
        let rest = self.end.wrapping_sub(*tail) as usize;
        let first = slots.before_wrap(*tail, rest);
        let run = |index: u64, count: usize| {
            // SAFETY: `count` free slots before the wrap, borrowed with this grant.
            unsafe { core::slice::from_raw_parts_mut(slots.run(index).as_ptr().cast(), count) }
        };
        [run(*tail, first), run(tail.wrapping_add(first as u64), rest - first)]
    }
}

impl<K: OneProducer<T, M>, T, M: Machine> Drop for Grant<'_, '_, K, T, M> {
    fn drop(&mut self) {
        K::end_deferral(self.producer);
    }
}
