//! Aliases for one kind of ring, in its module.

/// Re-exports of [`host`](super::host).
macro_rules! host {
    ($module:ident $(, $boxed:ident)?) => {
        #[cfg(any(target_has_atomic = "64", feature = "portable-atomic"))]
        pub use crate::ring::host::$module::*;
        $(
            #[cfg(all(feature = "alloc", any(target_has_atomic = "64", feature = "portable-atomic")))]
            pub use crate::ring::host::$boxed::$module::*;
        )?
        #[cfg(all(feature = "alloc", target_has_atomic = "ptr", any(target_has_atomic = "64", feature = "portable-atomic")))]
        pub use crate::ring::host::owned::$module::*;
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
    ($producer:ident: $kind:ident, $module:literal) => {
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
        pub type Producer<'a, T, M> = $producer<'a, T, M, { crate::ring::RingFlags::$kind.bits() }>;
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

pub(super) use {host, many_producers, one_consumer, one_producer};
