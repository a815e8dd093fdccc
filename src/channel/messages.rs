//! Messages to the kernel and back.

use std::time::{Duration, Instant};

use super::error::{ReceiveError, SendError};
use super::{Channel, pause};
use crate::attach::AttachError;
use crate::bridge::{BatchReceiver, BatchSender, MOST_FAILURES};
use crate::ring::spsc::{PopError, PushError};
use crate::{Result, RingMessage};

impl<I: RingMessage, O: RingMessage> Channel<I, O> {
    /// Pushes a message and flushes it to the device; never waits. [`check`](Self::check) returns whether the kernel still runs.
    ///
    /// # Errors
    ///
    /// [`SendError`]: with the message unless it is in the ring.
    pub fn send(&mut self, message: I) -> Result<(), SendError<I>> {
        let pushed = match self.sender.push(message) {
            Err(PushError::Full(message)) if self.bridge.moves() => match self.bridge.poll() {
                Ok(_) => self.sender.push(message),
                Err(error) => return Err(SendError::Flush { error, message: Some(message) }),
            },
            pushed => pushed,
        };
        match pushed {
            Ok(()) if self.bridge.moves() => self.bridge.flush_sent().map_err(|error| SendError::Flush { error, message: None }),
            Ok(()) => Ok(()),
            Err(PushError::Full(message)) => Err(SendError::Full(message)),
            Err(PushError::Corrupt(message)) => Err(SendError::Corrupt(message)),
        }
    }

    /// Pops an answer; flushes if there is none; never waits.
    ///
    /// # Errors
    ///
    /// [`ReceiveError`]; no answer is lost.
    pub fn receive(&mut self) -> Result<O, ReceiveError> {
        let popped = match self.receiver.pop() {
            Err(PopError::Empty) if self.bridge.moves() => {
                self.bridge.poll().map_err(ReceiveError::Flush)?;
                self.receiver.pop()
            }
            popped => popped,
        };
        popped.map_err(|error| match error {
            PopError::Empty => ReceiveError::Empty,
            PopError::Corrupt(corrupt) => ReceiveError::Corrupt(corrupt),
        })
    }

    /// Pops an answer; waits for it no longer than `timeout`. A flush that fails is repeated meanwhile.
    ///
    /// # Errors
    ///
    /// [`Kernel`](crate::Error::Kernel): the kernel has left and all its answers were received, or the time is up. The error of the last flush, if flushes fail until then or
    /// keep failing after the kernel has left; [`Attach`](crate::Error::Attach) for a ring that is corrupt.
    pub fn receive_timeout(&mut self, timeout: Duration) -> Result<O> {
        let begun = Instant::now();
        let (mut times, mut polls, mut failed) = (0, None, None);
        loop {
            match self.receive() {
                Ok(answer) => return Ok(answer),
                Err(ReceiveError::Corrupt(corrupt)) => return Err(AttachError::Corrupt(corrupt).into()),
                Err(ReceiveError::Flush(error)) => failed = Some(error),
                // While it only waits until a poll is due or complete, the failure stands.
                Err(ReceiveError::Empty) => failed = failed.filter(|_| self.bridge.failing() != [0; 2]),
            }
            // Answers that the kernel had published when it left may have been in flight then, or be where they can no longer be read.
            let is_lost = failed.is_some() && self.bridge.failing()[1] >= MOST_FAILURES;
            if polls.is_some_and(|polls| is_lost || self.bridge.has_brought_all(polls)) || begun.elapsed() > timeout {
                return Err(failed.unwrap_or_else(|| self.fault(begun.elapsed())));
            }
            if polls.is_none() && self.has_left() {
                polls = Some(self.bridge.polls());
            } else {
                pause(&mut times);
            }
        }
    }

    /// Pushes and publishes every `every` messages: see [`BatchSender`]. Call [`flush`](Self::flush) after it.
    pub fn send_batch(&mut self, every: u64) -> BatchSender<'_, I> {
        self.sender.batch(every)
    }

    /// Pops and releases every `every` slots: see [`BatchReceiver`]. Call [`flush`](Self::flush) before it, for answers in flight.
    pub fn receive_batch(&mut self, every: u64) -> BatchReceiver<'_, O> {
        self.receiver.batch(every)
    }

    /// Moves messages between the host's rings and the kernel's. Returns how many, each way; `[0, 0]` for shared rings.
    ///
    /// # Errors
    ///
    /// The backend's error. No message is lost: the next flush repeats what failed.
    pub fn flush(&mut self) -> Result<[u64; 2]> {
        if self.bridge.moves() { self.bridge.poll() } else { Ok([0; 2]) }
    }

    /// Index of the next message to be sent and of the next answer to be received.
    #[must_use]
    pub const fn indices(&self) -> (u64, u64) {
        (self.sender.tail(), self.receiver.head())
    }

    /// Flushes, and returns how many messages the kernel has not popped, as far as its index was polled.
    ///
    /// # Errors
    ///
    /// As [`flush`](Self::flush); [`Attach`](crate::Error::Attach) for a ring that is corrupt.
    pub fn input_waiting(&mut self) -> Result<u64> {
        self.flush()?;
        if let Some((untaken, polled)) = self.bridge.untaken() {
            return polled.map(|()| untaken);
        }
        Ok(self.sender.capacity() - self.sender.refresh().map_err(AttachError::Corrupt)?)
    }

    /// Flushes, and returns how many answers have arrived and have not been received.
    ///
    /// # Errors
    ///
    /// As [`input_waiting`](Self::input_waiting).
    pub fn output_waiting(&mut self) -> Result<u64> {
        self.flush()?;
        Ok(self.receiver.refresh().map_err(AttachError::Corrupt)?)
    }
}
