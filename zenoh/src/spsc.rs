use ringmem::RingMessage;
use ringmem::ring::spsc::{OwnedConsumer, OwnedProducer};

use crate::{Error, RingType, Sink, Source, random};

/// The consumer's end of a `ring::spsc`. Unacknowledged messages stay in the ring. It copies runs of messages: faster than
/// [`Messages`](crate::Messages).
///
/// ```
/// use ringmem::ring::spsc;
/// use ringmem_zenoh::{Source, SpscSource};
///
/// let (mut producer, consumer) = spsc::bounded::<u8>(4);
/// [1, 2, 3].into_iter().for_each(|value| producer.push(value).unwrap());
/// let mut source = SpscSource::new(consumer);
/// let mut bytes = Vec::new();
/// assert_eq!(source.take(2, &mut bytes).unwrap(), 2);
/// source.release(1);
/// assert_eq!((bytes, producer.len()), (vec![1, 2], 2));
/// ```
pub struct SpscSource<T: RingMessage> {
    end: OwnedConsumer<T>,
    ring: RingType,
    stream: u64,
    taken: usize,
}

impl<T: RingMessage> SpscSource<T> {
    /// Reads a consumer.
    #[must_use]
    pub fn new(end: OwnedConsumer<T>) -> Self {
        Self { end, ring: RingType::of::<T>(), stream: random(), taken: 0 }
    }
}

impl<T: RingMessage> Source for SpscSource<T> {
    fn ring(&self) -> &RingType {
        &self.ring
    }

    fn stream(&self) -> u64 {
        self.stream
    }

    fn first(&self) -> u64 {
        self.end.end().head()
    }

    fn take(&mut self, most: usize, into: &mut Vec<u8>) -> Result<u32, Error> {
        let (skip, most) = (self.taken, (most / size_of::<T>()).clamp(1, u32::MAX as usize));
        let Ok(chunk) = self.end.peek(skip.saturating_add(most)) else { return Ok(0) };
        let [first, second] = chunk.as_slices();
        for run in [&first[skip.min(first.len())..], &second[skip.saturating_sub(first.len()).min(second.len())..]] {
            into.extend_from_slice(T::slice_as_bytes(run));
        }
        let count = chunk.len().saturating_sub(skip);
        self.taken += count;
        Ok(count as u32)
    }

    fn unreleased(&mut self) -> Result<u64, Error> {
        Ok(self.end.len() as u64)
    }

    fn seek(&mut self, count: u64) -> Result<bool, Error> {
        let found = count <= self.end.len() as u64;
        if found {
            self.taken = count as usize;
        }
        Ok(found)
    }

    fn release(&mut self, count: u64) {
        let count = count.min(self.taken as u64) as usize;
        if let Ok(chunk) = self.end.peek(count) {
            chunk.release(count);
        }
        self.taken -= count;
    }

    fn limit(&self) -> usize {
        self.end.capacity() * size_of::<T>()
    }
}

/// Bytes copied at a time: they stay in the L1 cache.
const ALIGNED: usize = 4096;

/// The producer's end of a `ring::spsc`. It copies runs of messages.
pub struct SpscSink<T: RingMessage> {
    end: OwnedProducer<T>,
    ring: RingType,
    /// Zenoh's buffers have any alignment.
    aligned: Box<[T]>,
}

impl<T: RingMessage> SpscSink<T> {
    /// Fills a producer.
    #[must_use]
    pub fn new(end: OwnedProducer<T>) -> Self {
        let aligned = vec![T::zeroed(); (ALIGNED / size_of::<T>()).max(1)];
        Self { end, ring: RingType::of::<T>(), aligned: aligned.into() }
    }
}

impl<T: RingMessage> Sink for SpscSink<T> {
    fn ring(&self) -> &RingType {
        &self.ring
    }

    fn push(&mut self, messages: &[u8]) -> Result<(u64, usize), Error> {
        let mut count = 0;
        for bytes in messages.chunks(size_of_val(&*self.aligned)) {
            let values = &mut self.aligned[..bytes.len() / size_of::<T>()];
            let whole = size_of_val(values);
            T::slice_as_bytes_mut(values).copy_from_slice(&bytes[..whole]);
            let pushed = self.end.push_slice(values);
            count += pushed;
            if pushed < values.len() {
                break;
            }
        }
        Ok((count as u64, count * size_of::<T>()))
    }

    fn tail(&self) -> u64 {
        self.end.end().tail()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringmem::ring::spsc;

    #[test]
    fn messages_stay_in_the_ring_until_released() {
        let ((mut producer, consumer), (end, mut there)) = (spsc::bounded::<u16>(4), spsc::bounded::<u16>(4));
        let (mut source, mut sink) = (SpscSource::new(consumer), SpscSink::new(end));
        for round in 0..20 {
            (0..3).for_each(|value| producer.push(3 * round + value).unwrap());
            let mut bytes = Vec::new();
            assert_eq!((source.take(4, &mut bytes).unwrap(), producer.len()), (2, 3));
            assert!(source.seek(1).unwrap() && !source.seek(4).unwrap());
            bytes.truncate(2);
            assert_eq!((source.take(100, &mut bytes).unwrap(), source.take(100, &mut bytes).unwrap()), (2, 0));
            source.release(9);
            assert_eq!((producer.len(), source.first()), (0, 3 * u64::from(round) + 3));
            assert_eq!(sink.push(&bytes).unwrap(), (3, 6));
            assert_eq!(sink.push(&bytes).unwrap(), (1, 2), "one more fits");
            assert_eq!(sink.push(&bytes).unwrap(), (0, 0));
            let got: Vec<_> = there.try_iter().collect();
            assert_eq!(got, [0, 1, 2, 0].map(|value| 3 * round + value));
        }
        assert_eq!((sink.tail(), source.limit()), (80, 8));
    }
}
