//! What a queued operation gives back when it is done.
#![allow(clippy::result_large_err, reason = "what comes back is as large as what went in")]

use core::fmt;
use core::time::Duration;
use std::sync::Arc;

use super::Stream;
use crate::backend::{Backend, Ticket};
use crate::memory::{Buffer, Memory};
use crate::{Error, Rejected, Result};

/// An operation that was queued, and the `T` that comes back from it. To be waited for, or [awaited](super::Completion).
///
/// Dropped, the operation is executed all the same and its `T` goes after it; forgotten, the `T` is never freed, nor the stream closed. An error that
/// nobody was told of comes out of [`Stream::synchronize`].
#[must_use = "dropping it drops the buffers of the operation"]
pub struct Pending<T: Queued> {
    value: T,
    /// `None` where there was nothing to do.
    ticket: Option<Ticket>,
    stream: Stream,
}

impl<T: Queued> Pending<T> {
    pub(super) fn new(mut value: T, ticket: Option<Ticket>, stream: Stream) -> Self {
        if let Some(ticket) = ticket {
            value.used(ticket);
        }
        Self { value, ticket, stream }
    }

    /// Whether it has been executed, or never will be.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.ticket.is_none_or(|ticket| self.stream.backend().reached(ticket))
    }

    /// Waits as long as it takes: for a kernel that nobody tells to end, for ever.
    ///
    /// # Errors
    ///
    /// What the operation failed with, and its operands; [`Operation`](Error::Operation) where another who waited for the stream was told that.
    pub fn wait(self) -> Result<T, Rejected<T>> {
        match self.wait_until(None) {
            Ok(outcome) => outcome,
            // Without a deadline nothing is left undone.
            Err(this) => Err(Rejected { error: Error::Closed { what: "stream" }, value: this.value }),
        }
    }

    /// Waits no longer than `timeout`.
    ///
    /// # Errors
    ///
    /// `self` when the time is up. Inside, as [`wait`](Self::wait).
    pub fn wait_timeout(self, timeout: Duration) -> Result<Result<T, Rejected<T>>, Self> {
        self.wait_until(Some(timeout))
    }

    /// Does not wait.
    ///
    /// # Errors
    ///
    /// `self` when it is not done. Inside, as [`wait`](Self::wait).
    pub fn try_take(self) -> Result<Result<T, Rejected<T>>, Self> {
        self.wait_until(Some(Duration::ZERO))
    }

    /// What comes back, at once: to be queued again, after this operation wherever that is. The host sees nothing of it before it is done.
    ///
    /// The error of this operation is reported once. The first blocking operation on one of the buffers reports it if nothing else was queued on
    /// that buffer, even if the stream was dropped; else [`Stream::synchronize`] does. Operations that read the target of a failed operation fail with
    /// [`Error::Tainted`].
    pub fn ordered(self) -> T {
        self.value
    }

    pub(crate) fn ticket(&self) -> Option<Ticket> {
        self.ticket
    }

    pub(super) fn backend(&self) -> &Arc<dyn Backend> {
        self.stream.backend()
    }

    fn wait_until(mut self, timeout: Option<Duration>) -> Result<Result<T, Rejected<T>>, Self> {
        let Some(ticket) = self.ticket else { return Ok(Ok(self.value)) };
        match self.stream.backend().outcome(ticket, timeout) {
            Ok(true) => {
                self.value.settled(ticket);
                Ok(Ok(self.value))
            }
            Ok(false) => Err(self),
            Err(error) => {
                // Where the wait itself has failed it may not be over, and stays listed.
                if self.stream.backend().reached(ticket) {
                    self.value.settled(ticket);
                }
                Ok(Err(Rejected { error, value: self.value }))
            }
        }
    }
}

/// The result of queueing: the operation, or its operands and the error.
pub type Queue<T> = Result<Pending<T>, Rejected<T>>;

impl Stream {
    /// What was queued, or what was refused. `queued` has no ticket where there was nothing to do.
    pub(crate) fn pending<T: Queued>(&self, queued: Result<Option<Ticket>>, value: T) -> Queue<T> {
        match queued {
            Ok(ticket) => Ok(Pending::new(value, ticket, self.clone())),
            Err(error) => Err(Rejected { error, value }),
        }
    }
}

impl<T: Queued> fmt::Debug for Pending<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").field("ticket", &self.ticket).field("is_done", &self.is_done()).finish_non_exhaustive()
    }
}

/// What an operation takes and gives back: buffers, leases, or nothing.
pub trait Queued: sealed::Settle {}

impl Queued for () {}
impl<T, M: Memory> Queued for Buffer<T, M> {}
impl<A: Queued, B: Queued> Queued for (A, B) {}

pub(crate) mod sealed {
    use super::{Buffer, Memory, Ticket};

    pub trait Settle {
        /// The operation is over.
        fn settled(&mut self, ticket: Ticket);
        /// The operation is queued.
        fn used(&mut self, ticket: Ticket);
    }

    impl Settle for () {
        fn settled(&mut self, _: Ticket) {}
        fn used(&mut self, _: Ticket) {}
    }
    impl<T, M: Memory> Settle for Buffer<T, M> {
        fn settled(&mut self, ticket: Ticket) {
            Buffer::settled(self, ticket);
        }
        fn used(&mut self, ticket: Ticket) {
            Buffer::used(self, ticket);
        }
    }
    impl<A: Settle, B: Settle> Settle for (A, B) {
        fn settled(&mut self, ticket: Ticket) {
            self.0.settled(ticket);
            self.1.settled(ticket);
        }
        fn used(&mut self, ticket: Ticket) {
            self.0.used(ticket);
            self.1.used(ticket);
        }
    }
}
