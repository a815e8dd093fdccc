//! Rings on the heap, with a run-time capacity.

use alloc::{boxed::Box, vec::Vec};
use core::mem::MaybeUninit;

use super::filled::fill;
use super::{BareSlot, HostKind, RingIn, Storage, WordSlot};
use crate::ring::{Flagged, Indexed, Mpmc, Mpsc};

// SAFETY: a box owns its slots, which do not move with it.
unsafe impl<C> Storage<C> for Box<[MaybeUninit<C>]> {}

impl<K: HostKind<T>, T> RingIn<K, T, Box<[MaybeUninit<K::Slot>]>> {
    /// Allocates an empty ring of at least `capacity` slots, a power of two.
    ///
    /// # Panics
    ///
    /// If the next power of two overflows, or its slots exceed `isize::MAX` bytes.
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Self {
        match Self::over(Box::new_uninit_slice(power_of_two(capacity, 1))) {
            Ok(ring) => ring,
            Err(_) => panic!("capacity overflow: {capacity} slots"),
        }
    }
}

/// The next power of two, at least `least`; on overflow a size that no allocator has.
const fn power_of_two(count: usize, least: usize) -> usize {
    let count = if count < least { least } else { count };
    match count.checked_next_power_of_two() {
        Some(power) => power,
        None => usize::MAX,
    }
}

macro_rules! boxed {
    ($($kind:ident[$slot:ident] $module:ident;)+) => {$(
        pub mod $module {
            use super::*;

            /// A ring on the heap, with a run-time capacity.
            ///
            /// ```
            /// # use ringmem_layouts as ringmem;
            #[doc = concat!("use ringmem::ring::", stringify!($module), "::Boxed;")]
            ///
            /// let (mut producer, mut consumer) = Boxed::<u32>::with_capacity(100).into_ends();
            /// producer.push(7)?;
            /// assert_eq!((consumer.pop(), consumer.capacity()), (Ok(7), 128));
            /// # Ok::<(), ringmem::ring::PushError<u32>>(())
            /// ```
            pub type Boxed<T> = RingIn<$kind, T, Box<[MaybeUninit<$slot<T>>]>>;
        }

        /// A ring on the heap with these values; its capacity is the next power of two.
        ///
        /// ```
        /// # use ringmem_layouts as ringmem;
        #[doc = concat!("let (producer, mut consumer) = ringmem::ring::", stringify!($module), "::Boxed::from(vec![1, 2, 3]).into_ends();")]
        /// assert_eq!((producer.capacity(), consumer.pop()), (4, Ok(1)));
        /// ```
        impl<T> From<Vec<T>> for RingIn<$kind, T, Box<[MaybeUninit<$slot<T>>]>> {
            fn from(values: Vec<T>) -> Self {
                #[allow(unused_mut, reason = "the ends of some kinds borrow it shared")]
                let mut ring = Self::with_capacity(values.len());
                fill(ring.split().0, values);
                ring
            }
        }

        /// As from a `Vec`.
        ///
        /// ```
        /// # use ringmem_layouts as ringmem;
        #[doc = concat!("use ringmem::ring::", stringify!($module), "::Boxed;")]
        ///
        /// let (_, mut consumer) = (0..100).collect::<Boxed<u32>>().into_ends();
        /// assert_eq!((consumer.capacity(), consumer.try_iter().sum::<u32>()), (128, 4950));
        /// ```
        impl<T> FromIterator<T> for RingIn<$kind, T, Box<[MaybeUninit<$slot<T>>]>> {
            fn from_iter<I: IntoIterator<Item = T>>(values: I) -> Self {
                Vec::from_iter(values).into()
            }
        }
    )+};
}

each_kind! { boxed }

pub mod framed {
    use super::*;
    use crate::ring::framed::RingIn;

    /// A ring on the heap, with a run-time capacity.
    ///
    /// ```
    /// # use ringmem_layouts as ringmem;
    /// use ringmem::ring::framed::Boxed;
    ///
    /// let (mut producer, mut consumer) = Boxed::with_capacity(1000).into_ends();
    /// producer.push(b"hello")?;
    /// let mut message = [0; 16];
    /// assert_eq!((consumer.capacity(), consumer.pop(&mut message)), (1024, Ok(5)));
    /// # Ok::<(), ringmem::ring::framed::PushError>(())
    /// ```
    pub type Boxed = RingIn<Box<[MaybeUninit<BareSlot<u64>>]>>;

    impl Boxed {
        /// Allocates a ring of at least `bytes` bytes: a power of two, at least 16.
        ///
        /// # Panics
        ///
        /// If that exceeds `isize::MAX`.
        #[must_use]
        pub fn with_capacity(bytes: usize) -> Self {
            match Self::over(Box::new_uninit_slice(power_of_two(bytes, 16) / 8)) {
                Ok(ring) => ring,
                Err(_) => unreachable!("the capacity is a power of two"),
            }
        }
    }
}

pub mod lossy {
    use super::*;
    use crate::ring::lossy::{RingIn, slots::words_of};
    use crate::{HostWord, RingMessage};

    /// A ring on the heap, with a run-time capacity.
    ///
    /// ```
    /// # use ringmem_layouts as ringmem;
    /// use ringmem::ring::lossy::Boxed;
    ///
    /// let (mut writer, mut reader) = Boxed::<u32>::with_capacity(100).into_ends();
    /// writer.push(7);
    /// assert_eq!((reader.capacity(), reader.pop()), (128, Ok(7)));
    /// ```
    pub type Boxed<T> = RingIn<T, Box<[MaybeUninit<HostWord>]>>;

    impl<T: RingMessage> Boxed<T> {
        /// Allocates a ring of at least `capacity` messages, a power of two.
        ///
        /// # Panics
        ///
        /// If the words exceed `isize::MAX` bytes.
        #[must_use]
        pub fn with_capacity(capacity: usize) -> Self {
            let words = power_of_two(capacity, 1).saturating_mul(words_of::<T>());
            match Self::over(Box::new_uninit_slice(words)) {
                Ok(ring) => ring,
                Err(_) => unreachable!("the capacity is a power of two"),
            }
        }
    }
}
