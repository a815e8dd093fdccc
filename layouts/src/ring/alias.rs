//! Aliases for one kind of ring, in its module.

macro_rules! rings {
    ($kind:ident, $slot:ident, $module:literal) => {
        #[cfg(any(target_has_atomic = "64", feature = "portable-atomic"))]
        pub use host::*;

        #[cfg(any(target_has_atomic = "64", feature = "portable-atomic"))]
        mod host {
            use core::mem::MaybeUninit;

            use crate::ring::{$kind, $slot};

            /// A ring with its slots in `S`: inline ([`Ring`]), borrowed, or boxed.
            ///
            /// ```
            /// # use ringmem_layouts as ringmem;
            /// use core::mem::MaybeUninit;
            #[doc = concat!("use ringmem::ring::", $module, "::RingIn;")]
            ///
            /// let mut memory = [const { MaybeUninit::uninit() }; 64];
            /// let ring = &mut RingIn::<u32, _>::over(&mut memory[..16])?;
            /// let (mut producer, mut consumer) = ring.split();
            /// assert!(producer.push(7).is_ok());
            /// assert_eq!((consumer.pop(), consumer.capacity()), (Ok(7), 16));
            /// # Ok::<(), ringmem::ring::LayoutError>(())
            /// ```
            pub type RingIn<T, S> = crate::ring::RingIn<$kind, T, S>;

            /// A ring of `N` values of any type, a power of two (checked at compile time).
            ///
            /// ```compile_fail
            /// # use ringmem_layouts as ringmem;
            #[doc = concat!("let ring = ringmem::ring::", $module, "::Ring::<u8, 6>::new(); // 6 is not a power of two")]
            /// ```
            pub type Ring<T, const N: usize> = RingIn<T, [MaybeUninit<$slot<T>>; N]>;

            /// A ring on the heap, with a run-time capacity.
            ///
            /// ```
            /// # use ringmem_layouts as ringmem;
            #[doc = concat!("use ringmem::ring::", $module, "::Boxed;")]
            ///
            /// let (mut producer, mut consumer) = Boxed::<u32>::with_capacity(100).into_ends();
            /// producer.push(7)?;
            /// assert_eq!((consumer.pop(), consumer.capacity()), (Ok(7), 128));
            /// # Ok::<(), ringmem::ring::PushError<u32>>(())
            /// ```
            #[cfg(feature = "alloc")]
            pub type Boxed<T> = RingIn<T, alloc::boxed::Box<[MaybeUninit<$slot<T>>]>>;

            /// A producer that shares ownership of its ring.
            ///
            /// ```
            /// # use ringmem_layouts as ringmem;
            #[doc = concat!("use ringmem::ring::", $module, "::{OwnedProducer, bounded};")]
            ///
            /// struct Log {
            ///     lines: OwnedProducer<String>,
            /// }
            ///
            /// let (lines, mut consumer) = bounded(16);
            /// let mut log = Log { lines };
            /// log.lines.push("started".to_owned())?;
            /// assert_eq!(consumer.pop().as_deref(), Ok("started"));
            /// # Ok::<(), ringmem::ring::PushError<String>>(())
            /// ```
            #[cfg(all(feature = "alloc", target_has_atomic = "ptr"))]
            pub type OwnedProducer<T> = crate::ring::Owned<super::Producer<'static, T, crate::Local>>;

            /// A consumer that shares ownership of its ring.
            ///
            /// ```
            /// # use ringmem_layouts as ringmem;
            #[doc = concat!("use ringmem::ring::", $module, "::{OwnedConsumer, bounded};")]
            ///
            /// fn sum(mut consumer: OwnedConsumer<u32>) -> u32 {
            ///     consumer.try_iter().sum()
            /// }
            ///
            /// let (mut producer, consumer) = bounded(4);
            /// producer.push(3)?;
            /// producer.push(4)?;
            /// assert_eq!(std::thread::spawn(|| sum(consumer)).join().unwrap(), 7);
            /// # Ok::<(), ringmem::ring::PushError<u32>>(())
            /// ```
            #[cfg(all(feature = "alloc", target_has_atomic = "ptr"))]
            pub type OwnedConsumer<T> = crate::ring::Owned<super::Consumer<'static, T, crate::Local>>;

            /// Allocates a ring of at least `capacity` slots (the next power of two, at least 1); its ends share ownership.
            ///
            /// ```
            /// # use ringmem_layouts as ringmem;
            #[doc = concat!("let (mut producer, mut consumer) = ringmem::ring::", $module, "::bounded::<String>(100);")]
            /// assert_eq!(producer.capacity(), 128);
            /// std::thread::spawn(move || producer.push("hello".to_owned()).is_ok()).join().unwrap();
            /// assert_eq!(consumer.pop().as_deref(), Ok("hello"));
            /// ```
            ///
            /// # Panics
            ///
            /// If the next power of two overflows, or its slots exceed `isize::MAX` bytes.
            #[cfg(all(feature = "alloc", target_has_atomic = "ptr"))]
            #[must_use]
            pub fn bounded<T: Send + 'static>(capacity: usize) -> (OwnedProducer<T>, OwnedConsumer<T>) {
                Boxed::with_capacity(capacity).into_ends()
            }
        }

        pub use crate::ring::error::{PopError, PushError, ReserveError};
    };
}

macro_rules! one_producer {
    ($kind:ident, $module:literal) => {
        /// Fills slots and publishes them. One per ring.
        ///
        /// ```
        /// # use ringmem_layouts as ringmem;
        /// use ringmem::Local;
        #[doc = concat!("use ringmem::ring::", $module, "::{Producer, PushError, Ring};")]
        ///
        /// fn send(producer: &mut Producer<'_, u32, Local>) -> Result<(), PushError<u32>> {
        ///     (1..=3).try_for_each(|number| producer.push(number))
        /// }
        ///
        /// let mut ring = Ring::<u32, 4>::new();
        /// let (mut producer, consumer) = ring.split();
        /// send(&mut producer)?;
        /// assert_eq!(consumer.len(), 3);
        /// # Ok::<(), PushError<u32>>(())
        /// ```
        pub type Producer<'a, T, M> = crate::ring::Producer<'a, crate::ring::$kind, T, M>;
        /// Slots to be written in place.
        ///
        /// ```
        /// # use ringmem_layouts as ringmem;
        /// use ringmem::Local;
        #[doc = concat!("use ringmem::ring::", $module, "::{Grant, Ring};")]
        ///
        /// fn number(mut grant: Grant<'_, '_, u32, Local>) -> usize {
        ///     grant.fill(1..)
        /// }
        ///
        /// let mut ring = Ring::<u32, 4>::new();
        /// let (mut producer, mut consumer) = ring.split();
        /// assert_eq!(number(producer.reserve(2)?), 2);
        /// assert_eq!((consumer.pop(), consumer.pop()), (Ok(1), Ok(2)));
        /// # Ok::<(), ringmem::ring::ReserveError>(())
        /// ```
        pub type Grant<'p, 'a, T, M> = crate::ring::Grant<'p, 'a, crate::ring::$kind, T, M>;
        /// Publishes several messages at a time.
        ///
        /// ```
        /// # use ringmem_layouts as ringmem;
        /// use ringmem::Local;
        #[doc = concat!("use ringmem::ring::", $module, "::{BatchProducer, PushError, Ring};")]
        ///
        /// fn send(mut batch: BatchProducer<'_, '_, u32, Local>) -> Result<(), PushError<u32>> {
        ///     (1..=6).try_for_each(|number| batch.push(number))
        /// }
        ///
        /// let mut ring = Ring::<u32, 8>::new();
        /// let (mut producer, consumer) = ring.split();
        /// send(producer.batch(4))?;
        /// assert_eq!(consumer.len(), 6);
        /// # Ok::<(), PushError<u32>>(())
        /// ```
        pub type BatchProducer<'p, 'a, T, M> = crate::ring::BatchProducer<'p, 'a, crate::ring::$kind, T, M>;
    };
}

macro_rules! many_producers {
    ($kind:ident, $module:literal) => {
        /// Claims slots, fills and publishes them. Clone it for another producer.
        ///
        /// ```
        /// # use ringmem_layouts as ringmem;
        /// use ringmem::Local;
        #[doc = concat!("use ringmem::ring::", $module, "::{Producer, Ring};")]
        ///
        /// fn send(mut producer: Producer<'_, u32, Local>) {
        ///     (1..=3).for_each(|number| producer.push(number).unwrap());
        /// }
        ///
        /// let ring = &mut Ring::<u32, 8>::new();
        /// let (producer, consumer) = ring.split();
        /// std::thread::scope(|threads| {
        ///     let other = producer.clone();
        ///     threads.spawn(move || send(other));
        ///     threads.spawn(move || send(producer));
        /// });
        /// assert_eq!(consumer.len(), 6);
        /// ```
        pub type Producer<'a, T, M> = crate::ring::mpmc::ManyProducer<'a, T, M, { crate::ring::RingFlags::$kind.bits() }>;
    };
}

macro_rules! one_consumer {
    ($kind:ident, $module:literal) => {
        /// Empties slots and releases them. One per ring.
        ///
        /// ```
        /// # use ringmem_layouts as ringmem;
        /// use ringmem::Local;
        #[doc = concat!("use ringmem::ring::", $module, "::{Consumer, Ring};")]
        ///
        /// fn sum(consumer: &mut Consumer<'_, u32, Local>) -> u32 {
        ///     std::iter::from_fn(|| consumer.pop().ok()).sum()
        /// }
        ///
        /// let mut ring = Ring::<u32, 4>::new();
        /// let (mut producer, mut consumer) = ring.split();
        /// producer.push(3)?;
        /// producer.push(4)?;
        /// assert_eq!(sum(&mut consumer), 7);
        /// # Ok::<(), ringmem::ring::PushError<u32>>(())
        /// ```
        pub type Consumer<'a, T, M> = crate::ring::Consumer<'a, crate::ring::$kind, T, M>;
        /// Waiting messages in place.
        ///
        /// ```
        /// # use ringmem_layouts as ringmem;
        /// use ringmem::Local;
        #[doc = concat!("use ringmem::ring::", $module, "::{Chunk, Ring};")]
        ///
        /// fn longest<'c>(chunk: &'c Chunk<'_, '_, String, Local>) -> Option<&'c str> {
        ///     chunk.iter().map(String::as_str).max_by_key(|name| name.len())
        /// }
        ///
        /// let mut ring = Ring::<String, 4>::new();
        /// let (mut producer, mut consumer) = ring.split();
        /// producer.push("head".to_owned())?;
        /// producer.push("capacity".to_owned())?;
        /// assert_eq!(longest(&consumer.peek(4).unwrap()), Some("capacity"));
        /// # Ok::<(), ringmem::ring::PushError<String>>(())
        /// ```
        pub type Chunk<'c, 'a, T, M> = crate::ring::Chunk<'c, 'a, crate::ring::$kind, T, M>;
        /// Releases several messages at a time.
        ///
        /// ```
        /// # use ringmem_layouts as ringmem;
        /// use ringmem::Local;
        #[doc = concat!("use ringmem::ring::", $module, "::{BatchConsumer, Ring};")]
        ///
        /// fn sum(mut batch: BatchConsumer<'_, '_, u32, Local>) -> u32 {
        ///     std::iter::from_fn(|| batch.pop().ok()).sum()
        /// }
        ///
        /// let mut ring = Ring::<u32, 4>::new();
        /// let (mut producer, mut consumer) = ring.split();
        /// producer.push(3)?;
        /// producer.push(4)?;
        /// assert_eq!(sum(consumer.batch(4)), 7);
        /// # Ok::<(), ringmem::ring::PushError<u32>>(())
        /// ```
        pub type BatchConsumer<'c, 'a, T, M> = crate::ring::BatchConsumer<'c, 'a, crate::ring::$kind, T, M>;
    };
}

pub(super) use {many_producers, one_consumer, one_producer, rings};
