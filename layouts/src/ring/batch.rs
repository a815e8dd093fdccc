use core::hint::cold_path;

use super::consumer::Consumer;
use super::error::{PopError, PushError};
use super::kind::{OneConsumer, OneProducer};
use super::producer::Producer;
use crate::{Machine, Word};

impl<'a, K: OneProducer<T, M>, T, M: Machine> Producer<'a, K, T, M> {
    /// Publishes every `every` messages, at least 1.
    pub fn batch(&mut self, every: usize) -> BatchProducer<'_, 'a, K, T, M> {
        BatchProducer::new(self, every as u64)
    }
}

/// Publishes every `every` messages, if the ring seems full or the consumer ran dry, on [`flush`](Self::flush) and on drop. Flush before you wait.
///
/// If it is forgotten, the producer's next publish or drop publishes the rest.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::ring::spsc::Ring;
///
/// let mut ring = Ring::<u32, 8>::new();
/// let (mut producer, mut consumer) = ring.split();
/// let mut batch = producer.batch(4); // at most four messages for one index store
/// (1..=3).for_each(|number| batch.push(number).unwrap());
/// batch.flush(); // before waiting for an answer
/// assert_eq!(consumer.peek(8).map(|chunk| chunk.len()), Ok(3));
/// ```
pub struct BatchProducer<'p, 'a, K: OneProducer<T, M>, T, M: Machine> {
    producer: &'p mut Producer<'a, K, T, M>,
    every: u64,
}

impl<'p, 'a, K: OneProducer<T, M>, T, M: Machine> BatchProducer<'p, 'a, K, T, M> {
    #[inline(always)]
    pub(super) fn new(producer: &'p mut Producer<'a, K, T, M>, every: u64) -> Self {
        K::publish_deferred(producer);
        K::defer(producer);
        Self { producer, every: every.max(1) }
    }

    /// Pushes one value; publishes it with its batch.
    ///
    /// # Errors
    ///
    /// [`PushError`] with the value; earlier messages are published.
    #[inline]
    pub fn push(&mut self, value: T) -> Result<(), PushError<T, M::Corrupt>> {
        if self.producer.free() == 0 {
            cold_path();
            match K::room(self.producer) {
                Ok(0) => return Err(PushError::Full(value)),
                Ok(_) => {}
                Err(corrupt) => return Err(PushError::Corrupt(value, corrupt)),
            }
        }
        K::fill(self.producer, value);
        let published = K::published(self.producer);
        let pending = self.producer.tail.wrapping_sub(published);
        // At once when full, or both ends would wait for a forgotten batch. Relaxed: a hint.
        if pending >= self.every || self.producer.free() == 0 || self.producer.port.own.consumer.head.load() == published {
            self.flush();
        }
        Ok(())
    }

    /// Publishes pending messages.
    #[inline]
    pub fn flush(&mut self) {
        K::flush(self.producer);
    }
}

impl<K: OneProducer<T, M>, T, M: Machine> Drop for BatchProducer<'_, '_, K, T, M> {
    fn drop(&mut self) {
        K::end_deferral(self.producer);
    }
}

impl<'a, K: OneConsumer<T, M>, T, M: Machine> Consumer<'a, K, T, M> {
    /// Releases every `every` messages, at least 1.
    ///
    /// For `Copy` values only: if batch and consumer are forgotten, the next consumer pops unreleased messages again.
    pub fn batch(&mut self, every: usize) -> BatchConsumer<'_, 'a, K, T, M>
    where
        T: Copy,
    {
        BatchConsumer::new(self, every as u64)
    }
}

/// Releases every `every` messages, when the ring is empty, on [`flush`](Self::flush) and on drop.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::ring::spsc::Ring;
///
/// let mut ring = Ring::<u32, 2>::new();
/// let (mut producer, mut consumer) = ring.split();
/// producer.push_slice(&[1, 2]).unwrap();
/// let mut batch = consumer.batch(8);
/// assert_eq!(batch.pop(), Ok(1));
/// assert!(producer.push(3).is_err()); // the slot is not released yet
/// batch.flush();
/// assert!(producer.push(3).is_ok());
/// ```
pub struct BatchConsumer<'c, 'a, K: OneConsumer<T, M>, T, M: Machine> {
    consumer: &'c mut Consumer<'a, K, T, M>,
    every: u64,
}

impl<'c, 'a, K: OneConsumer<T, M>, T, M: Machine> BatchConsumer<'c, 'a, K, T, M> {
    #[inline(always)]
    pub(super) fn new(consumer: &'c mut Consumer<'a, K, T, M>, every: u64) -> Self {
        K::defer_release(consumer);
        Self { consumer, every: every.max(1) }
    }

    /// Pops one value; releases its slot with its batch.
    ///
    /// # Errors
    ///
    /// [`PopError`]; earlier messages are released.
    #[inline]
    pub fn pop(&mut self) -> Result<T, PopError<M::Corrupt>> {
        if let Err(nothing) = K::next(self.consumer) {
            self.flush();
            return Err(nothing);
        }
        let value = K::take(self.consumer);
        if self.consumer.head.wrapping_sub(K::released(self.consumer)) >= self.every {
            self.flush();
        }
        Ok(value)
    }

    /// Releases popped messages.
    #[inline]
    pub fn flush(&mut self) {
        K::release_pending(self.consumer);
    }
}

impl<K: OneConsumer<T, M>, T, M: Machine> Drop for BatchConsumer<'_, '_, K, T, M> {
    fn drop(&mut self) {
        K::end_release_deferral(self.consumer);
    }
}
