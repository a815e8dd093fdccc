//! What goes to the kernel and comes back.

use std::time::{Duration, Instant};

use super::{Channel, pause};
use crate::attach::{AttachError, Corrupt};
use crate::bridge::{BatchReceiver, BatchSender, MOST_FAILURES, RingBufferBridge};
use crate::ring::spsc::{PopError, PushError};
use crate::{Result, RingMessage};

impl<I: RingMessage, O: RingMessage> Channel<I, O> {
    /// Sends a message; never waits. Whether there is still a kernel to take it, [`check`](Self::check) says.
    ///
    /// # Errors
    ///
    /// The message, if the ring is full or corrupt.
    pub fn send(&mut self, message: I) -> Result<(), PushError<I>> {
        let sent = match self.sender.push(message) {
            Err(PushError::Full(back)) if self.bridge.moves() => {
                self.pass();
                self.sender.push(back)
            }
            sent => sent,
        };
        if sent.is_ok() {
            self.pass_by(|bridge| bridge.flush_sent().map(|()| [0; 2]));
        }
        sent
    }

    /// Receives an answer; never waits.
    ///
    /// # Errors
    ///
    /// [`PopError`]: there is none yet, or the ring is corrupt.
    pub fn receive(&mut self) -> Result<O, PopError> {
        match self.receiver.pop() {
            Err(PopError::Empty) if self.bridge.moves() => {
                self.pass_by(RingBufferBridge::poll);
                self.receiver.pop()
            }
            received => received,
        }
    }

    /// Receives an answer, and waits for it no longer than `timeout`.
    ///
    /// # Errors
    ///
    /// [`Kernel`](crate::Error::Kernel): it has left and all its answers were received, or the time is up. What moving messages failed with, if that
    /// keeps them from coming until then, or after it has left; [`Attach`](crate::Error::Attach) for a ring that is corrupt.
    pub fn receive_timeout(&mut self, timeout: Duration) -> Result<O> {
        let begun = Instant::now();
        let (mut times, mut looks) = (0, None);
        loop {
            match self.receive() {
                Ok(answer) => return Ok(answer),
                Err(PopError::Corrupt(corrupt)) => return Err(AttachError::Corrupt(corrupt).into()),
                Err(PopError::Empty) => {}
            }
            // What it had published when it left may have been on its way then, or be where nobody can look any more.
            let is_over = |looks| self.bridge.has_brought_all(looks) || self.trouble.is_some() && self.bridge.failing()[1] >= MOST_FAILURES;
            if looks.is_some_and(is_over) || begun.elapsed() > timeout {
                return Err(self.trouble.take().unwrap_or_else(|| self.fault(begun.elapsed())));
            }
            if looks.is_none() && self.has_left() {
                looks = Some(self.bridge.looks());
            } else {
                pause(&mut times);
            }
        }
    }

    /// Sends without publishing each message: see [`BatchSender`]. Then [`flush`](Self::flush).
    pub fn send_batch(&mut self, every: u64) -> BatchSender<'_, I> {
        self.sender.batch(every)
    }

    /// Receives without releasing each slot: see [`BatchReceiver`]. [`flush`](Self::flush) before, for
    /// what is under way.
    pub fn receive_batch(&mut self, every: u64) -> BatchReceiver<'_, O> {
        self.receiver.batch(every)
    }

    /// Moves messages between the host's rings and the kernel's, where they are not the same; how many, each way.
    ///
    /// # Errors
    ///
    /// What the backend said. Nothing is lost: the next flush does it again.
    pub fn flush(&mut self) -> Result<[u64; 2]> {
        if !self.bridge.moves() {
            return Ok([0; 2]);
        }
        self.trouble = None;
        self.bridge.poll()
    }

    /// Flushes, and keeps an error for [`check`](Self::check).
    pub(super) fn pass(&mut self) {
        self.pass_by(RingBufferBridge::poll);
    }

    fn pass_by(&mut self, poll: impl FnOnce(&mut RingBufferBridge<I, O>) -> Result<[u64; 2]>) {
        if self.bridge.moves() {
            match poll(&mut self.bridge) {
                Err(trouble) => self.trouble = Some(trouble),
                Ok(_) if self.bridge.failing() == [0; 2] => self.trouble = None,
                // It only waited until a look is due or has come back.
                Ok(_) => {}
            }
        }
    }

    /// Index of the next message to be sent and of the next answer to be received.
    #[must_use]
    pub const fn indices(&self) -> (u64, u64) {
        (self.sender.tail(), self.receiver.head())
    }

    /// Messages that the kernel has not taken yet, as far as this end has looked.
    ///
    /// # Errors
    ///
    /// [`Corrupt`] if its index claims what cannot be.
    pub fn input_waiting(&mut self) -> Result<u64, Corrupt> {
        // Whoever asks only this moves messages too: what was sent may have come when no look was due.
        self.pass();
        if let Some((untaken, looked)) = self.bridge.untaken() {
            if let Err(error) = looked {
                self.trouble = Some(error);
            }
            return Ok(untaken);
        }
        Ok(self.sender.capacity() - self.sender.refresh()?)
    }

    /// Answers that have arrived and have not been received yet.
    ///
    /// # Errors
    ///
    /// [`Corrupt`] if the kernel's index claims what cannot be.
    pub fn output_waiting(&mut self) -> Result<u64, Corrupt> {
        self.pass();
        self.receiver.refresh()
    }
}
