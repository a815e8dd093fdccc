use ringmem::RingMessage;
use ringmem::ring::{Push, PushBytes, PushError, framed};

use crate::envelope::split_frame;
use crate::{Error, RingType};

/// The end of a ring that a receiver fills. Any error ends the relay.
pub trait Sink: Send + 'static {
    /// Returns the type of the ring.
    fn ring(&self) -> &RingType;

    /// Pushes as many messages as fit, from the first of `messages` on; returns their number and bytes. `messages` holds whole messages.
    fn push(&mut self, messages: &[u8]) -> Result<(u64, usize), Error>;

    /// Returns the number of messages pushed, wrapping, including those before the state that [`load`](Self::load) returns.
    fn tail(&self) -> u64;

    /// Returns the state that [`save`](Self::save) stored, if any.
    fn load(&self) -> Result<Option<Vec<u8>>, Error> {
        Ok(None)
    }

    /// Stores some hundred bytes that must live as long as the ring.
    fn save(&mut self, _state: &[u8]) -> Result<(), Error> {
        Ok(())
    }
}

/// Messages of fixed size to a producer or closure of this process.
pub struct MessageSink<T> {
    push: Box<dyn FnMut(T) -> Result<bool, Error> + Send>,
    ring: RingType,
    pushed: u64,
}

impl<T: RingMessage> MessageSink<T> {
    /// Fills a producer.
    #[must_use]
    pub fn of(mut end: impl Push<Item = T> + Send + 'static) -> Self {
        Self::new(move |value| match end.push(value) {
            Ok(()) => Ok(true),
            Err(PushError::Full(_)) => Ok(false),
            Err(refused) => Err(Error::End(refused.to_string())),
        })
    }

    /// Calls `push` for each message; `false` means full.
    #[must_use]
    pub fn new(push: impl FnMut(T) -> Result<bool, Error> + Send + 'static) -> Self {
        Self { push: Box::new(push), ring: RingType::of::<T>(), pushed: 0 }
    }
}

impl<T: RingMessage> Sink for MessageSink<T> {
    fn ring(&self) -> &RingType {
        &self.ring
    }

    fn push(&mut self, messages: &[u8]) -> Result<(u64, usize), Error> {
        let mut count = 0;
        for message in messages.chunks_exact(size_of::<T>()) {
            let mut value = T::zeroed();
            value.as_bytes_mut().copy_from_slice(message);
            if !(self.push)(value)? {
                break;
            }
            count += 1;
            self.pushed = self.pushed.wrapping_add(1);
        }
        Ok((count, count as usize * size_of::<T>()))
    }

    fn tail(&self) -> u64 {
        self.pushed
    }
}

type PushFrame = dyn FnMut(&[u8]) -> Result<bool, Error> + Send;

/// Messages of any length to a framed ring of this process.
pub struct FrameSink {
    push: Box<PushFrame>,
    ring: RingType,
    pushed: u64,
}

impl FrameSink {
    /// Fills a producer whose largest message has `largest` bytes.
    #[must_use]
    pub fn of(mut end: impl PushBytes + Send + 'static, largest: usize) -> Self {
        let push = move |frame: &[u8]| match end.push_bytes(frame) {
            Ok(()) => Ok(true),
            Err(framed::PushError::Full) => Ok(false),
            Err(refused) => Err(Error::End(refused.to_string())),
        };
        Self { push: Box::new(push), ring: RingType::frames(largest as u64), pushed: 0 }
    }
}

impl Sink for FrameSink {
    fn ring(&self) -> &RingType {
        &self.ring
    }

    fn push(&mut self, messages: &[u8]) -> Result<(u64, usize), Error> {
        let (mut count, mut rest) = (0, messages);
        while let Some((frame, after)) = split_frame(rest) {
            if !(self.push)(frame)? {
                break;
            }
            count += 1;
            rest = after;
            self.pushed = self.pushed.wrapping_add(1);
        }
        Ok((count, messages.len() - rest.len()))
    }

    fn tail(&self) -> u64 {
        self.pushed
    }
}
