#![allow(clippy::result_large_err, reason = "what comes back is as large as what went in")]

use core::ops::RangeBounds;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use super::LeaseMut;
use crate::backend::Ticket;
use crate::memory::{Buffer, Memory, end};
use crate::registry::lease::Leased;
use crate::stream::{Queue, Queued, Stream};
use crate::{DeviceBytes, Rejected, Result};

impl<T: DeviceBytes, M: Memory> LeaseMut<'_, T, M> {
    /// Queues a copy of `from` to the live elements from index `at` on.
    ///
    /// # Errors
    ///
    /// The other buffer, with [`Unsupported`](crate::Error::Unsupported) unless [configured](super::BufferConfig::is_async), or as
    /// [`Stream::copy_range`]. Nothing is queued.
    pub fn upload<N: Memory>(&mut self, stream: &Stream, from: Buffer<T, N>, at: usize) -> Queue<Buffer<T, N>> {
        let queued = (|| {
            self.value.may_queue()?;
            let end = end::<T>(at, from.len(), self.len())?;
            let target = self.slice(at..end)?;
            // SAFETY: two exclusive buffers. This one lists the copy below, the other before its next use.
            self.value.shared.guard.retry(|| unsafe { stream.queue_copy(from.as_view(), target, [None; 2]) })
        })();
        self.list(stream, queued, from)
    }

    /// Queues a copy of live elements to the first elements of `to`.
    ///
    /// # Errors
    ///
    /// As [`upload`](Self::upload).
    pub fn download<N: Memory>(&mut self, stream: &Stream, range: impl RangeBounds<usize>, to: Buffer<T, N>) -> Queue<Buffer<T, N>> {
        let queued = (|| {
            self.value.may_queue()?;
            let source = self.slice(range)?;
            let target = to.slice(..source.len())?;
            // SAFETY: as in `upload`.
            self.value.shared.guard.retry(|| unsafe { stream.queue_copy(source, target, [None; 2]) })
        })();
        self.list(stream, queued, to)
    }

    /// Queues a [fill](Stream::fill) of live elements.
    ///
    /// # Errors
    ///
    /// As [`upload`](Self::upload).
    pub fn fill_on(&mut self, stream: &Stream, range: impl RangeBounds<usize>, value: T) -> Result<()> {
        self.value.may_queue()?;
        let mut ticket = None;
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let target = self.slice(range)?;
            // SAFETY: the lease is exclusive, and the buffer lists the fill below.
            self.value.shared.guard.retry(|| unsafe { stream.queue_fill(target, value, None, &mut ticket) })
        }));
        self.list(stream, Ok(ticket), ()).map(drop).map_err(Rejected::into_error)?;
        outcome.unwrap_or_else(|payload| resume_unwind(payload))
    }

    fn list<V: Queued>(&mut self, stream: &Stream, queued: Result<Option<Ticket>>, other: V) -> Queue<V> {
        if let Ok(Some(ticket)) = queued {
            self.value.held.buffer.used(ticket);
            self.value.has_queued();
        }
        stream.pending(queued, other)
    }
}
