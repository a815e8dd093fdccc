use super::Handle;
use crate::ring::RingFlags;
use crate::ring::chunk::drop_all;
use crate::ring::error::PopError;
use crate::ring::kind::{Turns, claim, take};
use crate::{Machine, RmwWord};

/// Claims messages and takes them. Clone it for another consumer.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::Local;
/// use ringmem::ring::mpmc::{Consumer, Ring};
///
/// fn sum(mut consumer: Consumer<'_, u32, Local>) -> u32 {
///     std::iter::from_fn(|| consumer.pop().ok()).sum()
/// }
///
/// static RING: Ring<u32, 8> = Ring::new();
/// let (mut producer, consumer) = RING.split();
/// producer.push_slice(&[1, 2, 3, 4]);
/// let threads = [consumer.clone(), consumer].map(|one| std::thread::spawn(|| sum(one)));
/// assert_eq!(threads.map(|thread| thread.join().unwrap()).iter().sum::<u32>(), 10);
/// ```
pub type Consumer<'a, T, M> = Handle<'a, T, M, { RingFlags::MPMC.bits() }, false>;

impl<'a, T, M: Machine<Word: RmwWord>> Consumer<'a, T, M> {
    /// Pops one value.
    ///
    /// # Errors
    ///
    /// [`PopError::Empty`].
    #[doc(alias("try_pop", "dequeue"))]
    #[inline]
    pub fn pop(&mut self) -> Result<T, PopError<M::Corrupt>> {
        let (index, _) = self.claim(1).ok_or(PopError::Empty)?;
        // SAFETY: claimed above, not taken yet.
        Ok(unsafe { take::<T, M>(self.turns.slot(index), self.turns.taken(index)) })
    }

    /// Pops consecutive values that fit, with one compare-exchange; returns their number.
    pub fn pop_slice(&mut self, values: &mut [T]) -> usize
    where
        T: Copy,
    {
        if values.is_empty() {
            return 0;
        }
        let Some((first, count)) = self.claim(values.len()) else { return 0 };
        // SAFETY: claimed just now.
        unsafe { self.turns.take_run(first, &mut values[..count]) };
        count
    }

    /// Claims up to `most` messages with one compare-exchange.
    ///
    /// # Errors
    ///
    /// [`PopError::Empty`], also for `most == 0`.
    pub fn take(&mut self, most: usize) -> Result<Taken<'_, 'a, T, M>, PopError<M::Corrupt>> {
        if most == 0 {
            return Err(PopError::Empty);
        }
        let (next, count) = self.claim(most).ok_or(PopError::Empty)?;
        Ok(Taken { turns: &self.turns, next, end: next.wrapping_add(count as u64) })
    }

    #[inline(always)]
    fn claim(&mut self, most: usize) -> Option<(u64, usize)> {
        let Self { turns, hint } = self;
        let look = |head| turns.look(head, most, |index| turns.full(index));
        claim(&turns.header.consumer.head, hint, look, |index| turns.after_given_up(index))
    }
}

/// An iterator over claimed messages. Dropping it drops the rest.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::ring::mpmc;
///
/// let (mut producer, mut consumer) = mpmc::bounded::<u32>(8);
/// (1..=4).for_each(|number| producer.push(number).unwrap());
/// let sum = consumer.take(3).map(|taken| taken.sum::<u32>()); // one claim
/// assert_eq!((sum, consumer.pop()), (Ok(6), Ok(4)));
/// ```
pub struct Taken<'c, 'a, T, M: Machine> {
    turns: &'c Turns<'a, T, M>,
    // INVARIANT: indices from `next` to `end` are claimed by this handle, full and not taken.
    next: u64,
    end: u64,
}

// SAFETY: it is handed `T`s; its slots are its own.
unsafe impl<T: Send, M: Machine> Send for Taken<'_, '_, T, M> {}

impl<T, M: Machine> Iterator for Taken<'_, '_, T, M> {
    type Item = T;

    #[inline]
    fn next(&mut self) -> Option<T> {
        if self.next == self.end {
            return None;
        }
        let index = self.next;
        // The index first: no message is taken twice.
        self.next = index.wrapping_add(1);
        // SAFETY: by the invariant.
        Some(unsafe { take::<T, M>(self.turns.slot(index), self.turns.taken(index)) })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.end.wrapping_sub(self.next) as usize;
        (left, Some(left))
    }
}

impl<T, M: Machine> ExactSizeIterator for Taken<'_, '_, T, M> {}

impl<T, M: Machine> Drop for Taken<'_, '_, T, M> {
    fn drop(&mut self) {
        drop_all(|| self.next().is_some());
    }
}
