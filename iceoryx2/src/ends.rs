//! [`Sink`] and [`Source`]: the ends of rings that a link fills and empties.

use core::slice;

use ringmem::RingMessage;
use ringmem::channel::Channel;
use ringmem::ring::framed::{self, PushError};
use ringmem::ring::spsc;

use crate::Error;

/// An end that a [`Feed`](crate::Feed) fills.
pub trait Sink<M: ?Sized> {
    /// Copies `message` into the ring; returns `false` if it is full.
    ///
    /// # Errors
    ///
    /// An error; the message is not in the ring.
    fn push(&mut self, message: &M) -> Result<bool, Error>;

    /// Moves pushed messages on, after each [`Feed::pump`](crate::Feed::pump).
    ///
    /// # Errors
    ///
    /// An error; the messages are still in the ring.
    fn flush(&mut self) -> Result<(), Error> {
        Ok(())
    }
}

/// An end that a [`Publish`](crate::Publish) empties.
pub trait Source<M: ?Sized> {
    /// Calls `send` with the first message in place, if any, and releases it if `send` returns true. Returns whether it did.
    ///
    /// # Errors
    ///
    /// The ring's error or `send`'s; the message remains.
    fn pop(&mut self, send: impl FnOnce(&M) -> Result<bool, Error>) -> Result<bool, Error>;

    /// Brings messages, before each [`Publish::pump`](crate::Publish::pump).
    ///
    /// # Errors
    ///
    /// An error; no message is lost.
    fn flush(&mut self) -> Result<(), Error> {
        Ok(())
    }
}

impl<T: RingMessage> Sink<T> for spsc::OwnedProducer<T> {
    fn push(&mut self, message: &T) -> Result<bool, Error> {
        Ok(self.push_slice(slice::from_ref(message)) == 1)
    }
}

impl<T: RingMessage> Source<T> for spsc::OwnedConsumer<T> {
    fn pop(&mut self, send: impl FnOnce(&T) -> Result<bool, Error>) -> Result<bool, Error> {
        let Ok(chunk) = self.peek(1) else { return Ok(false) };
        let is_sent = chunk.get(0).map_or(Ok(false), send)?;
        chunk.release(usize::from(is_sent));
        Ok(is_sent)
    }
}

impl Sink<[u8]> for framed::OwnedProducer {
    fn push(&mut self, message: &[u8]) -> Result<bool, Error> {
        match self.push(message) {
            Ok(()) => Ok(true),
            Err(PushError::Full) => Ok(false),
            Err(PushError::TooLarge { asked, largest }) => Err(Error::TooLarge { bytes: asked, largest }),
        }
    }
}

impl Source<[u8]> for framed::OwnedConsumer {
    fn pop(&mut self, send: impl FnOnce(&[u8]) -> Result<bool, Error>) -> Result<bool, Error> {
        let frame = match self.peek() {
            Ok(frame) => frame,
            Err(framed::PopError::Empty) => return Ok(false),
            Err(refused) => return Err(Error::Frame(refused)),
        };
        let is_sent = send(&frame)?;
        if is_sent {
            frame.release();
        }
        Ok(is_sent)
    }
}

impl<I: RingMessage, O: RingMessage> Sink<I> for Channel<I, O> {
    fn push(&mut self, message: &I) -> Result<bool, Error> {
        Ok(self.try_send_slice(slice::from_ref(message))? == 1)
    }

    fn flush(&mut self) -> Result<(), Error> {
        Self::flush(self)?;
        Ok(())
    }
}

impl<I: RingMessage, O: RingMessage> Source<O> for Channel<I, O> {
    fn pop(&mut self, send: impl FnOnce(&O) -> Result<bool, Error>) -> Result<bool, Error> {
        let mut sent = Ok(false);
        let popped = self.try_recv_with(|answer| {
            sent = send(answer);
            matches!(sent, Ok(true))
        })?;
        sent?;
        Ok(popped)
    }

    fn flush(&mut self) -> Result<(), Error> {
        Self::flush(self)?;
        Ok(())
    }
}
