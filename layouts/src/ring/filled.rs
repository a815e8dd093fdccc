//! Rings created from an array, a `Vec` or an iterator. Producers have no `Extend`: [`fill`](super::Grant::fill) returns how many values fitted.
#![cfg(any(target_has_atomic = "64", feature = "portable-atomic"))]

#[cfg(feature = "alloc")]
use alloc::{boxed::Box, vec::Vec};
use core::mem::MaybeUninit;

use super::{BareSlot, Flagged, Indexed, Mpmc, Mpsc, Push, RingIn, WordSlot, lossy};
use crate::{Machine, RingMessage};

fn fill<P: Push>(mut producer: P, values: impl IntoIterator<Item = P::Item>) {
    for value in values {
        if producer.push(value).is_err() {
            unreachable!("the ring is new, and has as many slots");
        }
    }
}

macro_rules! filled {
    ($($kind:ident[$slot:ident] $module:literal;)+) => {$(
        /// A full ring of these values; their number must be a power of two (checked at compile time).
        ///
        /// ```
        /// # use ringmem_layouts as ringmem;
        #[doc = concat!("use ringmem::ring::", $module, "::Ring;")]
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

        /// A ring on the heap with these values; its capacity is the next power of two.
        ///
        /// ```
        /// # use ringmem_layouts as ringmem;
        #[doc = concat!("let (producer, mut consumer) = ringmem::ring::", $module, "::Boxed::from(vec![1, 2, 3]).into_ends();")]
        /// assert_eq!((producer.capacity(), consumer.pop()), (4, Ok(1)));
        /// ```
        #[cfg(feature = "alloc")]
        impl<T> From<Vec<T>> for RingIn<$kind, T, Box<[MaybeUninit<$slot<T>>]>> {
            fn from(values: Vec<T>) -> Self {
                #[allow(unused_mut, reason = "as above")]
                let mut ring = Self::with_capacity(values.len());
                fill(ring.split().0, values);
                ring
            }
        }

        /// As from a `Vec`.
        ///
        /// ```
        /// # use ringmem_layouts as ringmem;
        #[doc = concat!("use ringmem::ring::", $module, "::Boxed;")]
        ///
        /// let (_, mut consumer) = (0..100).collect::<Boxed<u32>>().into_ends();
        /// assert_eq!((consumer.capacity(), consumer.try_iter().sum::<u32>()), (128, 4950));
        /// ```
        #[cfg(feature = "alloc")]
        impl<T> FromIterator<T> for RingIn<$kind, T, Box<[MaybeUninit<$slot<T>>]>> {
            fn from_iter<I: IntoIterator<Item = T>>(values: I) -> Self {
                Vec::from_iter(values).into()
            }
        }
    )+};
}

filled! {
    Indexed[BareSlot] "spsc";
    Flagged[WordSlot] "flagged";
    Mpsc[WordSlot] "mpsc";
    Mpmc[WordSlot] "mpmc";
}

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
