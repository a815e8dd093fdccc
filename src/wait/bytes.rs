use std::future::Future;
use std::time::{Duration, Instant};

use super::WaitError;
use super::park::Park;
use super::waiting::Waiting;
use crate::ring::framed::{PopError, PushError};
use crate::ring::{PopBytes, PushBytes};

impl<E: PushBytes, P: Park<E::Word>> Waiting<E, P> {
    /// Pushes a copy of `message` without waiting.
    ///
    /// # Errors
    ///
    /// [`WaitError::Disconnected`] if the receiver was dropped; [`WaitError::Refused`]: full, too large, or corrupt.
    pub fn try_send_bytes(&mut self, message: &[u8]) -> Result<(), WaitError<PushError<E::Corrupt>>> {
        self.attempt(|end| push(end, message).unwrap_or(Err(WaitError::Refused(PushError::Full))))
    }

    /// Pushes a copy of `message`; waits for room. To write in place, [`wait`](Self::wait) for a grant.
    ///
    /// # Errors
    ///
    /// [`WaitError::Disconnected`] if the receiver was dropped; [`WaitError::Refused`] for a message that never fits, or a corrupt ring.
    pub fn send_bytes(&mut self, message: &[u8]) -> Result<(), WaitError<PushError<E::Corrupt>>> {
        self.outcome_until(None, |end| push(end, message))
    }

    /// As [`send_bytes`](Self::send_bytes), with a timeout.
    pub fn send_bytes_timeout(&mut self, message: &[u8], most: Duration) -> Result<(), WaitError<PushError<E::Corrupt>>> {
        self.outcome_until(Instant::now().checked_add(most), |end| push(end, message))
    }

    /// As [`send_bytes`](Self::send_bytes), with a deadline.
    pub fn send_bytes_deadline(&mut self, message: &[u8], deadline: Instant) -> Result<(), WaitError<PushError<E::Corrupt>>> {
        self.outcome_until(Some(deadline), |end| push(end, message))
    }

    /// As [`send_bytes`](Self::send_bytes); a future dropped earlier pushes nothing.
    pub fn send_bytes_async(&mut self, message: &[u8]) -> impl Future<Output = Result<(), WaitError<PushError<E::Corrupt>>>> {
        self.outcome_async(move |end| push(end, message))
    }
}

pub(super) fn push<E: PushBytes>(end: &mut E, message: &[u8]) -> Option<Result<(), WaitError<PushError<E::Corrupt>>>> {
    if end.is_disconnected() {
        return Some(Err(WaitError::Disconnected));
    }
    match end.push_bytes(message) {
        Err(PushError::Full) => None,
        done => Some(done.map_err(WaitError::Refused)),
    }
}

impl<E: PopBytes, P: Park<E::Word>> Waiting<E, P> {
    /// Pops a message into the beginning of `into`, without waiting; returns its length.
    ///
    /// # Errors
    ///
    /// As [`recv_bytes`](Self::recv_bytes), and [`WaitError::Refused`] if the ring is empty.
    pub fn try_recv_bytes(&mut self, into: &mut [u8]) -> Result<usize, WaitError<PopError<E::Corrupt>>> {
        self.attempt(|end| match pop(end, into) {
            Some(popped) => popped,
            // All messages of the other side are visible now.
            None if end.is_disconnected() => pop(end, into).unwrap_or(Err(WaitError::Disconnected)),
            None => Err(WaitError::Refused(PopError::Empty)),
        })
    }

    /// Pops a message into the beginning of `into`; waits for one; returns its length. To read in place, [`wait`](Self::wait) for a frame.
    ///
    /// # Errors
    ///
    /// [`WaitError::Disconnected`] if the ring is empty and the sender was dropped; [`WaitError::Refused`] for a corrupt ring, or a message
    /// longer than `into`, which stays.
    pub fn recv_bytes(&mut self, into: &mut [u8]) -> Result<usize, WaitError<PopError<E::Corrupt>>> {
        self.outcome_until(None, |end| pop(end, into))
    }

    /// As [`recv_bytes`](Self::recv_bytes), with a timeout.
    pub fn recv_bytes_timeout(&mut self, into: &mut [u8], most: Duration) -> Result<usize, WaitError<PopError<E::Corrupt>>> {
        self.outcome_until(Instant::now().checked_add(most), |end| pop(end, into))
    }

    /// As [`recv_bytes`](Self::recv_bytes), with a deadline.
    pub fn recv_bytes_deadline(&mut self, into: &mut [u8], deadline: Instant) -> Result<usize, WaitError<PopError<E::Corrupt>>> {
        self.outcome_until(Some(deadline), |end| pop(end, into))
    }

    /// As [`recv_bytes`](Self::recv_bytes); a future dropped earlier pops nothing.
    pub fn recv_bytes_async(&mut self, into: &mut [u8]) -> impl Future<Output = Result<usize, WaitError<PopError<E::Corrupt>>>> {
        self.outcome_async(move |end| pop(end, into))
    }
}

pub(super) fn pop<E: PopBytes>(end: &mut E, into: &mut [u8]) -> Option<Result<usize, WaitError<PopError<E::Corrupt>>>> {
    match end.pop_bytes(into) {
        Err(PopError::Empty) => None,
        done => Some(done.map_err(WaitError::Refused)),
    }
}
