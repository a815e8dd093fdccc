use std::collections::VecDeque;

use ringmem::RingMessage;
use ringmem::ring::{Pop, PopBytes, PopError, framed};

use crate::{Error, RingType, random};

/// The end of a ring that a sender reads. It keeps each message until [`release`](Self::release); sequence numbers wrap. Any error ends the relay.
pub trait Source: Send + 'static {
    /// Returns the type of the ring.
    fn ring(&self) -> &RingType;

    /// Returns the identity of the sequence; a process that continues it returns the same one.
    fn stream(&self) -> u64;

    /// Returns the sequence number of the first unreleased message.
    fn first(&self) -> u64;

    /// Appends the next messages to `into`, about `most` bytes but at least one message if any waits; returns their number.
    fn take(&mut self, most: usize, into: &mut Vec<u8>) -> Result<u32, Error>;

    /// Returns the number of unreleased messages, those that [`take`](Self::take) returned included: the most that [`seek`](Self::seek) can pass.
    fn unreleased(&mut self) -> Result<u64, Error>;

    /// Starts the next [`take`](Self::take) `count` messages after the first; returns `false` without effect if there are fewer.
    fn seek(&mut self, count: u64) -> Result<bool, Error>;

    /// Releases the first `count` messages, which [`take`](Self::take) returned or [`seek`](Self::seek) passed.
    fn release(&mut self, count: u64);

    /// Returns the most bytes that can be unreleased: the receiver acknowledges a small ring more often. By default unlimited.
    fn limit(&self) -> usize {
        usize::MAX
    }
}

struct Kept<T> {
    ring: RingType,
    stream: u64,
    first: u64,
    values: VecDeque<T>,
    taken: usize,
}

impl<T> Kept<T> {
    fn new(ring: RingType) -> Self {
        Self { ring, stream: random(), first: 0, values: VecDeque::new(), taken: 0 }
    }

    fn next(&self) -> Option<&T> {
        self.values.get(self.taken)
    }

    fn seek(&mut self, count: u64) -> bool {
        let found = count <= self.values.len() as u64;
        if found {
            self.taken = count as usize;
        }
        found
    }

    fn release(&mut self, count: u64) {
        let count = count.min(self.taken as u64) as usize;
        self.values.drain(..count);
        self.taken -= count;
        self.first = self.first.wrapping_add(count as u64);
    }
}

/// Messages of fixed size from a consumer or closure of this process. It keeps unacknowledged messages, at most the relay's window.
///
/// ```
/// use ringmem::ring::spsc;
/// use ringmem_zenoh::{Messages, Source};
///
/// let (mut producer, consumer) = spsc::bounded::<u64>(8);
/// producer.push(7).unwrap();
/// let mut source = Messages::of(consumer);
/// let mut bytes = Vec::new();
/// assert_eq!(source.take(1024, &mut bytes).unwrap(), 1);
/// assert_eq!(bytes, 7_u64.to_le_bytes());
/// ```
pub struct Messages<T> {
    pop: Box<dyn FnMut() -> Result<Option<T>, Error> + Send>,
    kept: Kept<T>,
}

impl<T: RingMessage> Messages<T> {
    /// Reads a consumer.
    #[must_use]
    pub fn of(mut end: impl Pop<Item = T> + Send + 'static) -> Self {
        Self::new(move || match end.pop() {
            Ok(value) => Ok(Some(value)),
            Err(PopError::Empty) => Ok(None),
            Err(PopError::Corrupt(corrupt)) => Err(Error::Corrupt(corrupt.into())),
        })
    }

    /// Reads from `pop`, which returns `None` if empty.
    #[must_use]
    pub fn new(pop: impl FnMut() -> Result<Option<T>, Error> + Send + 'static) -> Self {
        Self { pop: Box::new(pop), kept: Kept::new(RingType::of::<T>()) }
    }
}

impl<T: RingMessage> Source for Messages<T> {
    fn ring(&self) -> &RingType {
        &self.kept.ring
    }

    fn stream(&self) -> u64 {
        self.kept.stream
    }

    fn first(&self) -> u64 {
        self.kept.first
    }

    fn take(&mut self, most: usize, into: &mut Vec<u8>) -> Result<u32, Error> {
        let most = (most / size_of::<T>()).clamp(1, u32::MAX as usize);
        for count in 0..most {
            if self.kept.next().is_none() {
                match (self.pop)()? {
                    Some(value) => self.kept.values.push_back(value),
                    None => return Ok(count as u32),
                }
            }
            if let Some(value) = self.kept.next() {
                into.extend_from_slice(value.as_bytes());
                self.kept.taken += 1;
            }
        }
        Ok(most as u32)
    }

    fn unreleased(&mut self) -> Result<u64, Error> {
        Ok(self.kept.values.len() as u64)
    }

    fn seek(&mut self, count: u64) -> Result<bool, Error> {
        Ok(self.kept.seek(count))
    }

    fn release(&mut self, count: u64) {
        self.kept.release(count);
    }
}

type PopFrame = dyn FnMut(&mut [u8]) -> Result<Option<usize>, Error> + Send;

/// Messages of any length from a framed ring of this process, kept like [`Messages`].
pub struct Frames {
    pop: Box<PopFrame>,
    buffer: Vec<u8>,
    kept: Kept<Box<[u8]>>,
}

impl Frames {
    /// Reads a consumer whose largest message has `largest` bytes, at most 4 GiB.
    #[must_use]
    pub fn of(mut end: impl PopBytes + Send + 'static, largest: usize) -> Self {
        let pop = move |buffer: &mut [u8]| match end.pop_bytes(buffer) {
            Ok(len) => Ok(Some(len)),
            Err(framed::PopError::Empty) => Ok(None),
            Err(refused) => Err(Error::End(refused.to_string())),
        };
        let largest = largest.min(u32::MAX as usize);
        Self { pop: Box::new(pop), buffer: vec![0; largest], kept: Kept::new(RingType::frames(largest as u64)) }
    }
}

impl Source for Frames {
    fn ring(&self) -> &RingType {
        &self.kept.ring
    }

    fn stream(&self) -> u64 {
        self.kept.stream
    }

    fn first(&self) -> u64 {
        self.kept.first
    }

    fn take(&mut self, most: usize, into: &mut Vec<u8>) -> Result<u32, Error> {
        let most = into.len().saturating_add(most);
        let mut count = 0;
        loop {
            if self.kept.next().is_none() {
                match (self.pop)(&mut self.buffer)? {
                    Some(len) => {
                        let most = self.buffer.len();
                        let frame = self.buffer.get(..len).ok_or_else(|| Error::End(format!("the ring popped {len} bytes into {most}")))?;
                        self.kept.values.push_back(frame.into());
                    }
                    None => return Ok(count),
                }
            }
            match self.kept.next() {
                Some(frame) if count == 0 || into.len() + 4 + frame.len() <= most => {
                    into.extend_from_slice(&(frame.len() as u32).to_le_bytes());
                    into.extend_from_slice(frame);
                }
                _ => return Ok(count),
            }
            self.kept.taken += 1;
            count += 1;
        }
    }

    fn unreleased(&mut self) -> Result<u64, Error> {
        Ok(self.kept.values.len() as u64)
    }

    fn seek(&mut self, count: u64) -> Result<bool, Error> {
        Ok(self.kept.seek(count))
    }

    fn release(&mut self, count: u64) {
        self.kept.release(count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringmem::ring::spsc;

    #[test]
    fn unreleased_messages_are_taken_again_after_a_seek() {
        let (mut producer, consumer) = spsc::bounded::<u64>(8);
        (0..5).for_each(|value| producer.push(value).unwrap());
        let mut source = Messages::of(consumer);
        let take = |source: &mut Messages<u64>, most: usize| {
            let mut bytes = Vec::new();
            let count = source.take(8 * most, &mut bytes).unwrap();
            let values: Vec<_> = bytes.chunks(8).map(|value| value[0]).collect();
            assert_eq!(count as usize, values.len());
            values
        };
        assert_eq!(take(&mut source, 3), [0, 1, 2]);
        source.release(1);
        assert!(source.seek(0).unwrap() && !source.seek(3).unwrap());
        assert_eq!((source.first(), take(&mut source, 9)), (1, vec![1, 2, 3, 4]));
        source.release(9);
        assert_eq!((source.first(), take(&mut source, 9)), (5, vec![]));
    }

    #[test]
    fn a_frame_beyond_the_limit_starts_the_next_batch() {
        let (mut producer, consumer) = framed::bounded(256);
        for frame in [&b"one"[..], b"", b"three"] {
            producer.push(frame).unwrap();
        }
        let mut source = Frames::of(consumer, 120);
        let mut bytes = Vec::new();
        assert_eq!(source.take(11, &mut bytes).unwrap(), 2);
        assert_eq!(bytes, b"\x03\0\0\0one\0\0\0\0");
        bytes.clear();
        assert_eq!(source.take(1, &mut bytes).unwrap(), 1, "one at least");
        assert_eq!(bytes, b"\x05\0\0\0three");
    }
}
