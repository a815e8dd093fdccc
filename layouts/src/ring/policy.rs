//! Overflow policies of a full ring. A [`lossy`](super::lossy) ring always overwrites.
//!
//! ```
//! # use ringmem_layouts as ringmem;
//! use ringmem::ring::{OverflowPolicy, mpmc::Ring};
//! static RING: Ring<u64, 2> = Ring::new();
//! let (producer, mut consumer) = RING.split();
//! let mut newest = OverflowPolicy::overwriting_oldest(producer);
//! let mut lost = Vec::new();
//! for number in 0..5 {
//!     newest.push(number, |old| lost.push(old)).unwrap();
//! }
//! assert_eq!((consumer.pop(), consumer.pop()), (Ok(3), Ok(4)));
//! assert_eq!(lost, [0, 1, 2]);
//! assert_eq!(newest.counts().overwritten, 3);
//! ```

use super::Push;
use super::error::PushError;
use crate::format::Format;

/// The number of values by outcome.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::ring::{Counts, OverflowPolicy, spsc};
///
/// let mut ring = spsc::Ring::<u32, 2>::new();
/// let mut producer = OverflowPolicy::dropping_newest(ring.split().0);
/// (1..=5).try_for_each(|number| producer.push(number, |_lost| ()))?;
/// assert_eq!(producer.counts(), Counts { taken: 2, dropped: 3, ..Counts::default() });
/// # Ok::<(), ringmem::ring::PushError<u32>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Format)]
pub struct Counts {
    /// Pushed into the ring.
    pub taken: u64,
    /// Returned to the caller.
    pub refused: u64,
    /// Dropped because the ring was full.
    pub dropped: u64,
    /// Replaced by a newer value.
    pub overwritten: u64,
}

/// A producer that can take a queued message out.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::ring::{Evict, mpmc};
///
/// fn make_room<E: Evict>(producer: &mut E) -> Option<E::Item> {
///     producer.evict()
/// }
///
/// let ring = mpmc::Ring::<u32, 2>::new();
/// let (mut producer, _consumer) = ring.split();
/// assert_eq!(make_room(&mut producer), None); // the ring is not full
/// producer.push_slice(&[1, 2]);
/// assert_eq!(make_room(&mut producer), Some(1));
/// ```
pub trait Evict: Push {
    /// Takes the oldest value if it occupies the slot of the next one.
    fn evict(&mut self) -> Option<Self::Item>;
}

impl<E: Evict> Evict for &mut E {
    fn evict(&mut self) -> Option<E::Item> {
        E::evict(self)
    }
}

/// A producer with an overflow policy.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::ring::OverflowPolicy;
/// use ringmem::ring::mpmc::Ring;
///
/// let ring = Ring::<u32, 2>::new();
/// let (producer, mut consumer) = ring.split();
/// let mut producer = OverflowPolicy::overwriting_oldest(producer);
/// for number in 1..=3 {
///     producer.push(number, |lost| assert_eq!(lost, 1)).unwrap(); // the third replaces the first
/// }
/// assert_eq!((consumer.pop(), consumer.pop()), (Ok(2), Ok(3)));
/// ```
pub struct OverflowPolicy<E: Push> {
    end: E,
    policy: Policy<E, E::Item>,
    counts: Counts,
}

enum Policy<E, T> {
    Refuse,
    DropNewest,
    OverwriteOldest(fn(&mut E) -> Option<T>),
}

impl<E: Push> OverflowPolicy<E> {
    /// Returns the value in an error.
    pub const fn refusing(end: E) -> Self {
        Self::new(end, Policy::Refuse)
    }

    /// Drops the new value.
    pub const fn dropping_newest(end: E) -> Self {
        Self::new(end, Policy::DropNewest)
    }

    /// Drops the oldest value in the ring.
    #[doc(alias("force_push", "push_overwrite"))]
    pub const fn overwriting_oldest(end: E) -> Self
    where
        E: Evict,
    {
        Self::new(end, Policy::OverwriteOldest(E::evict))
    }

    const fn new(end: E, policy: Policy<E, E::Item>) -> Self {
        Self { end, policy, counts: Counts { taken: 0, refused: 0, dropped: 0, overwritten: 0 } }
    }

    /// Pushes a value; calls `lost` with each value lost.
    ///
    /// # Errors
    ///
    /// [`PushError`] with the value. An overwriting end is full while a stalled handle holds the oldest slot.
    pub fn push(&mut self, mut value: E::Item, mut lost: impl FnMut(E::Item)) -> Result<(), PushError<E::Item, E::Corrupt>> {
        let mut again = true;
        loop {
            let back = match self.end.push(value) {
                Ok(()) => {
                    self.counts.taken += 1;
                    return Ok(());
                }
                Err(PushError::Full(back)) => back,
                Err(corrupt) => return Err(corrupt),
            };
            let oldest = match self.policy {
                Policy::Refuse => None,
                Policy::DropNewest => {
                    self.counts.dropped += 1;
                    lost(back);
                    return Ok(());
                }
                Policy::OverwriteOldest(evict) => evict(&mut self.end),
            };
            let Some(oldest) = oldest else {
                if core::mem::take(&mut again) && matches!(self.policy, Policy::OverwriteOldest(_)) {
                    value = back;
                    continue;
                }
                self.counts.refused += 1;
                return Err(PushError::Full(back));
            };
            again = true;
            self.counts.overwritten += 1;
            lost(oldest);
            value = back;
        }
    }

    /// Returns the counts by outcome.
    #[must_use]
    pub const fn counts(&self) -> Counts {
        self.counts
    }

    /// Returns the wrapped end.
    pub const fn end(&self) -> &E {
        &self.end
    }
}
