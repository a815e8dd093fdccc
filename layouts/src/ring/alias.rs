//! The types of one kind of ring by the names of its module.

/// The common part of all ring modules: `$kind`, the slot of a host's ring, and the module's name.
macro_rules! rings {
    ($kind:ident, $slot:ident, $module:literal) => {
        #[cfg(any(target_has_atomic = "64", feature = "portable-atomic"))]
        pub use host::*;

        // One condition for all that needs a host's words.
        #[cfg(any(target_has_atomic = "64", feature = "portable-atomic"))]
        mod host {
            use core::mem::MaybeUninit;

            use crate::ring::{$kind, $slot};

            /// A ring whose slots lie in `S`: in the ring itself ([`Ring`]), in memory that the caller lends, in a box.
            pub type RingIn<T, S> = crate::ring::RingIn<$kind, T, S>;

            /// A ring of `N` values of any type, a power of two (checked at compile time). Dropping it drops the values left in it.
            ///
            /// ```compile_fail
            #[doc = concat!("let ring = ringmem_layouts::ring::", $module, "::Ring::<u8, 6>::new(); // 6 is not a power of two")]
            /// ```
            pub type Ring<T, const N: usize> = RingIn<T, [MaybeUninit<$slot<T>>; N]>;

            /// A ring whose capacity is known at run time, on the heap.
            #[cfg(feature = "alloc")]
            pub type Boxed<T> = RingIn<T, alloc::boxed::Box<[MaybeUninit<$slot<T>>]>>;

            /// A producer that shares ownership of its ring.
            #[cfg(all(feature = "alloc", target_has_atomic = "ptr"))]
            pub type OwnedProducer<T> = crate::ring::Owned<super::Producer<'static, T, crate::Host>>;

            /// A consumer that shares ownership of its ring.
            #[cfg(all(feature = "alloc", target_has_atomic = "ptr"))]
            pub type OwnedConsumer<T> = crate::ring::Owned<super::Consumer<'static, T, crate::Host>>;

            /// Allocates a ring of at least `capacity` slots (the next power of two), and returns its ends. They share ownership of it.
            ///
            /// ```
            #[doc = concat!("let (mut producer, mut consumer) = ringmem_layouts::ring::", $module, "::bounded::<String>(100);")]
            /// assert_eq!(producer.capacity(), 128);
            /// std::thread::spawn(move || producer.push("hello".to_owned()).is_ok()).join().unwrap();
            /// assert_eq!(consumer.pop().as_deref(), Ok("hello"));
            /// ```
            ///
            /// # Panics
            ///
            /// If the slots exceed `isize::MAX` bytes, as `Vec::with_capacity`.
            #[cfg(all(feature = "alloc", target_has_atomic = "ptr"))]
            #[must_use]
            pub fn bounded<T: Send + 'static>(capacity: usize) -> (OwnedProducer<T>, OwnedConsumer<T>) {
                Boxed::with_capacity(capacity).into_ends()
            }
        }

        pub use crate::ring::error::{PopError, PushError, ReserveError};
    };
}

/// The producer of a kind that has one.
macro_rules! one_producer {
    ($kind:ident) => {
        /// Fills slots and publishes them. One per ring.
        pub type Producer<'a, T, M> = crate::ring::Producer<'a, crate::ring::$kind, T, M>;
        /// Slots to be written in place.
        pub type Grant<'p, 'a, T, M> = crate::ring::Grant<'p, 'a, crate::ring::$kind, T, M>;
        /// Publishes every so many messages.
        pub type BatchProducer<'p, 'a, T, M> = crate::ring::BatchProducer<'p, 'a, crate::ring::$kind, T, M>;
    };
}

/// The consumer of a kind that has one.
macro_rules! one_consumer {
    ($kind:ident) => {
        /// Empties slots and releases them. One per ring.
        pub type Consumer<'a, T, M> = crate::ring::Consumer<'a, crate::ring::$kind, T, M>;
        /// Waiting messages, seen in place.
        pub type Chunk<'c, 'a, T, M> = crate::ring::Chunk<'c, 'a, crate::ring::$kind, T, M>;
        /// Releases every so many messages.
        pub type BatchConsumer<'c, 'a, T, M> = crate::ring::BatchConsumer<'c, 'a, crate::ring::$kind, T, M>;
    };
}

pub(super) use {one_consumer, one_producer, rings};
