//! Rings created from an array, a `Vec` or an iterator. Producers have no `Extend`: [`fill`](crate::ring::Grant::fill) returns how many values fitted.

use core::mem::MaybeUninit;

use super::{BareSlot, RingIn, WordSlot};
use crate::ring::{Flagged, Indexed, Mpmc, Mpsc, Push, lossy};
use crate::{Machine, RingMessage};

pub(super) fn fill<P: Push>(mut producer: P, values: impl IntoIterator<Item = P::Item>) {
    for value in values {
        if producer.push(value).is_err() {
            unreachable!("the ring is new, and has as many slots");
        }
    }
}

macro_rules! filled {
    ($($kind:ident[$slot:ident] $module:ident;)+) => {$(
        /// A full ring of these values; their number must be a power of two (checked at compile time).
        ///
        /// ```
        /// # use ringmem_layouts as ringmem;
        #[doc = concat!("use ringmem::ring::", stringify!($module), "::Ring;")]
        ///
        /// let mut ring = Ring::from([1, 2, 3, 4]);
        /// let ring = &mut ring;
        /// let (mut producer, mut consumer) = ring.split();
        /// assert!(producer.push(5).is_err());
        /// assert_eq!(consumer.pop(), Ok(1));
        /// ```
        impl<T, const N: usize> From<[T; N]> for RingIn<$kind, T, [MaybeUninit<$slot<T>>; N]> {
            fn from(values: [T; N]) -> Self {
                #[allow(unused_mut, reason = "the ends of some kinds borrow it shared")]
                let mut ring = Self::new();
                fill(ring.split().0, values);
                ring
            }
        }
    )+};
}

each_kind! { filled }

/// Publishes each value; overwrites the oldest.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::ring::lossy::Ring;
///
/// let mut ring = Ring::<u32, 4>::new();
/// let (mut writer, mut reader) = ring.split();
/// writer.extend(0..6);
/// assert_eq!((reader.skip(2), reader.pop()), (4, Ok(4))); // all but two
/// ```
impl<T: RingMessage, M: Machine> Extend<T> for lossy::Writer<'_, T, M> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, values: I) {
        values.into_iter().for_each(|value| self.push(value));
    }
}
