use super::{BatchProducer, Grant, Handle};
use crate::ring::RingFlags;
use crate::ring::error::{PushError, ReserveError};
use crate::ring::kind::{Look, Turns, claim, fill, take};
use crate::{Machine, RmwWord, Word};

/// Claims slots, fills and publishes them. Clone it for another producer.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::Local;
/// use ringmem::ring::mpmc::ManyProducer;
/// use ringmem::ring::{PushError, mpmc, mpsc};
///
/// fn send<const KIND: u64>(mut producer: ManyProducer<'_, u32, Local, KIND>) -> Result<(), PushError<u32>> {
///     producer.push(7)
/// }
///
/// let (mut one, many) = (mpsc::Ring::<u32, 4>::new(), mpmc::Ring::<u32, 4>::new());
/// send(one.split().0)?;
/// send(many.split().0)?;
/// assert_eq!((one.split().1.pop(), many.split().1.pop()), (Ok(7), Ok(7)));
/// # Ok::<(), PushError<u32>>(())
/// ```
pub type ManyProducer<'a, T, M, const KIND: u64> = Handle<'a, T, M, KIND, true>;

impl<'a, T, M: Machine<Word: RmwWord>, const KIND: u64> ManyProducer<'a, T, M, KIND> {
    /// Pushes one value.
    ///
    /// # Errors
    ///
    /// [`PushError::Full`] with the value.
    #[doc(alias("try_push", "enqueue"))]
    #[inline]
    pub fn push(&mut self, value: T) -> Result<(), PushError<T, M::Corrupt>> {
        let Some((index, _)) = self.claim(1) else { return Err(PushError::Full(value)) };
        // SAFETY: claimed just now, nothing written.
        unsafe { fill::<T, M>(self.turns.slot(index), self.turns.full(index), value) };
        Ok(())
    }

    /// Pushes the first of `values` that fit into consecutive free slots, with one compare-exchange; returns their number. Fewer does not mean a
    /// full ring.
    pub fn push_slice(&mut self, values: &[T]) -> usize
    where
        T: Copy,
    {
        if values.is_empty() {
            return 0;
        }
        let Some((first, count)) = self.claim(values.len()) else { return 0 };
        let mut values = &values[..count];
        for (index, slots) in self.turns.runs(first, count) {
            let full = self.turns.full(index);
            let (now, later) = values.split_at(slots.len());
            values = later;
            for (slot, value) in slots.iter().zip(now) {
                // SAFETY: claimed just now, each slot once.
                unsafe { fill::<T, M>(slot, full, *value) };
            }
        }
        count
    }

    /// Claims `count` slots, to be written in order.
    ///
    /// # Errors
    ///
    /// [`ReserveError`].
    pub fn reserve(&mut self, count: usize) -> Result<Grant<'_, 'a, T, M>, ReserveError<M::Corrupt>> {
        if count > self.capacity() {
            return Err(ReserveError::TooLarge { capacity: self.capacity() });
        }
        let Self { turns, hint } = self;
        let mut free = 0;
        let claimed = if count == 0 {
            Some((0, 0))
        } else {
            let look = |tail| match turns.look(tail, count, |index| turns.free(index)) {
                Look::Claim(found) if found < count => {
                    if turns.header.producer.tail.load() != tail {
                        // Others claimed from here: a free slot may be unwritten, later ones written.
                        return Look::Passed;
                    }
                    free = found;
                    Look::NotYet
                }
                other => other,
            };
            claim(&turns.header.producer.tail, hint, look, |index| index.wrapping_add(1))
        };
        let Some((first, count)) = claimed else { return Err(ReserveError::Full { free }) };
        Ok(Grant::new(turns, first, count))
    }

    /// Claims and publishes up to `every` slots at a time (at least 1).
    pub fn batch(&mut self, every: usize) -> BatchProducer<'_, 'a, T, M> {
        BatchProducer::new(&self.turns, &mut self.hint, every.max(1))
    }

    #[inline(always)]
    fn claim(&mut self, most: usize) -> Option<(u64, usize)> {
        claim_free(&self.turns, &mut self.hint, most)
    }
}

impl<T, M: Machine<Word: RmwWord>> ManyProducer<'_, T, M, { RingFlags::MPMC.bits() }> {
    /// Pushes a value; while the ring is full, takes the oldest message out and passes it to `lost`.
    ///
    /// # Errors
    ///
    /// [`PushError::Full`] with the value, while another handle holds the oldest slot.
    ///
    /// ```
    /// # use ringmem_layouts as ringmem;
    /// use ringmem::ring::mpmc::Ring;
    ///
    /// static RING: Ring<u64, 2> = Ring::new();
    /// let (mut producer, mut consumer) = RING.split();
    /// let mut lost = Vec::new();
    /// for number in 0..5 {
    ///     producer.force_push(number, |oldest| lost.push(oldest)).unwrap();
    /// }
    /// assert_eq!((consumer.pop(), consumer.pop()), (Ok(3), Ok(4)));
    /// assert_eq!(lost, [0, 1, 2]);
    /// ```
    #[doc(alias = "push_overwrite")]
    pub fn force_push(&mut self, value: T, lost: impl FnMut(T)) -> Result<(), PushError<T, M::Corrupt>> {
        overwrite(self, value, Self::push, Self::evict, lost)
    }

    /// Takes the oldest message if the ring is full and no consumer has claimed it.
    pub fn evict(&mut self) -> Option<T> {
        let turns = &self.turns;
        let oldest = turns.header.producer.tail.load().wrapping_sub(turns.capacity());
        // SYNC POINT: slot published. Pairs with the producers' stores of it.
        if turns.slot(oldest).word.load_acquire() != turns.full(oldest) {
            return None;
        }
        let mut head = oldest;
        while let Err(found) = turns.header.consumer.head.compare_exchange(head, oldest.wrapping_add(1)) {
            // A consumer or another producer has claimed it. Else all from the head up to it were given up, if there are any, since the producers have claimed
            // their slots for the next lap.
            if (oldest.wrapping_sub(found) as i64) < 0 {
                return None;
            }
            head = found;
        }
        // SAFETY: claimed as a consumer does, when its slot was full.
        Some(unsafe { take::<T, M>(turns.slot(oldest), turns.taken(oldest)) })
    }
}

/// Pushes until there is room or nothing to evict.
///
/// After a failed push a consumer may release the oldest slot, so that `evict` finds a ring that is no longer full and returns nothing. A second push
/// distinguishes this from a slot that a stalled handle holds: only the latter is an error.
fn overwrite<E, T, C>(
    end: &mut E,
    mut value: T,
    push: impl Fn(&mut E, T) -> Result<(), PushError<T, C>>,
    evict: impl Fn(&mut E) -> Option<T>,
    mut lost: impl FnMut(T),
) -> Result<(), PushError<T, C>> {
    let mut is_last_try = false;
    loop {
        match push(end, value) {
            Err(PushError::Full(back)) => value = back,
            outcome => return outcome,
        }
        match evict(end) {
            Some(oldest) => {
                is_last_try = false;
                lost(oldest);
            }
            None if is_last_try => return Err(PushError::Full(value)),
            None => is_last_try = true,
        }
    }
}

#[inline(always)]
pub(super) fn claim_free<T, M: Machine<Word: RmwWord>>(turns: &Turns<'_, T, M>, hint: &mut u64, most: usize) -> Option<(u64, usize)> {
    claim(&turns.header.producer.tail, hint, |tail| turns.look(tail, most, |index| turns.free(index)), |index| index.wrapping_add(1))
}

#[cfg(test)]
mod tests {
    use core::convert::Infallible;

    use super::overwrite;
    use crate::ring::PushError;

    #[test]
    fn a_slot_released_after_the_failed_push_is_used() {
        let full_once = |pushes: &mut u32, value: u8| {
            *pushes += 1;
            if *pushes == 1 { Err(PushError::Full(value)) } else { Ok(()) }
        };
        let mut pushes = 0;
        assert_eq!(overwrite::<_, _, Infallible>(&mut pushes, 1, full_once, |_| None, |_| panic!("nothing is lost")), Ok(()));
        assert_eq!(pushes, 2);
    }
}
