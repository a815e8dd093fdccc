#![allow(clippy::result_large_err, reason = "what comes back is as large as what went in")]

use core::fmt;
use core::time::Duration;
use std::sync::Arc;

use super::Stream;
use crate::backend::{Backend, Ticket};
use crate::memory::{Buffer, Memory};
use crate::{Error, Rejected, Result};

/// A queued operation and its operands `T`, to wait for or [await](super::Completion).
///
/// A drop drops `T` after the operation; if forgotten, `T` is never freed and the stream never closed. [`Stream::synchronize`] returns an
/// unreported error.
///
/// ```
/// use std::time::Duration;
///
/// use ringmem::backend::host::HostBackend;
/// use ringmem::memory::{Device, GpuBuffer};
/// use ringmem::stream::Stream;
///
/// let backend = HostBackend::builder().build()?;
/// let stream = Stream::new(&backend, 0)?;
/// let mut buffer = GpuBuffer::<u32>::new(Device::new(&backend, 0), 1000)?;
/// buffer = stream.fill(buffer, .., 1)?.detach(); // at once; later uses are ordered after the fill
/// buffer = stream.fill(buffer, .., 2)?.wait()?; // when it is complete
/// let Ok(done) = stream.fill(buffer, .., 3)?.wait_timeout(Duration::from_secs(10)) else { panic!("timed out") };
/// assert_eq!(done?.to_vec()?[999], 3);
/// # Ok::<(), ringmem::Error>(())
/// ```
#[must_use = "dropping it drops the buffers of the operation"]
pub struct Pending<T: Queued> {
    value: T,
    ticket: Option<Ticket>,
    stream: Stream,
}

impl<T: Queued> Pending<T> {
    pub(crate) fn new(mut value: T, ticket: Option<Ticket>, stream: Stream) -> Self {
        if let Some(ticket) = ticket {
            value.used(ticket);
        }
        Self { value, ticket, stream }
    }

    /// Returns true if it is executed, or never will be.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.ticket.is_none_or(|ticket| self.stream.backend().is_complete(ticket))
    }

    /// Waits until it is complete: forever behind a persistent kernel that does not end.
    ///
    /// # Errors
    ///
    /// The operation's error, with its operands; [`Operation`](Error::Operation) if another waiter got it.
    pub fn wait(self) -> Result<T, Rejected<T>> {
        match self.wait_until(None) {
            Ok(outcome) => outcome,
            Err(this) => Err(Rejected { error: Error::Closed { what: "stream" }, value: this.value }),
        }
    }

    /// As [`wait`](Self::wait), with a timeout.
    ///
    /// # Errors
    ///
    /// `self` on timeout; inside, as [`wait`](Self::wait).
    pub fn wait_timeout(self, timeout: Duration) -> Result<Result<T, Rejected<T>>, Self> {
        self.wait_until(Some(timeout))
    }

    /// Returns the operands if complete.
    ///
    /// # Errors
    ///
    /// `self` if incomplete; inside, as [`wait`](Self::wait).
    pub fn try_take(self) -> Result<Result<T, Rejected<T>>, Self> {
        self.wait_until(Some(Duration::ZERO))
    }

    /// Returns the operands at once, to queue them again; the host cannot access them earlier.
    ///
    /// The first blocking operation on a buffer, if nothing else was queued on it, else [`Stream::synchronize`], reports the error, once.
    pub fn detach(self) -> T {
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
                // If the wait failed, the operation stays listed.
                if self.stream.backend().is_complete(ticket) {
                    self.value.settled(ticket);
                }
                Ok(Err(Rejected { error, value: self.value }))
            }
        }
    }
}

/// The queued operation, or its operands and the error.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::memory::{Device, GpuBuffer};
/// use ringmem::stream::{Queue, Stream};
///
/// fn clear(stream: &Stream, buffer: GpuBuffer<f32>) -> Queue<GpuBuffer<f32>> {
///     stream.fill(buffer, .., 0.0)
/// }
///
/// let backend = HostBackend::builder().build()?;
/// let stream = Stream::new(&backend, 0)?;
/// let buffer = GpuBuffer::<f32>::from_slice(Device::new(&backend, 0), &[1.0, 2.0])?;
/// assert_eq!(clear(&stream, buffer)?.wait()?.to_vec()?, [0.0, 0.0]);
/// # Ok::<(), ringmem::Error>(())
/// ```
pub type Queue<T> = Result<Pending<T>, Rejected<T>>;

impl Stream {
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

/// Operands: buffers, leases, or none.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::memory::{Device, GpuBuffer};
/// use ringmem::stream::{Pending, Queued, Stream};
///
/// fn wait_all<T: Queued>(pending: Vec<Pending<T>>) -> ringmem::Result<Vec<T>> {
///     pending.into_iter().map(|one| Ok(one.wait()?)).collect()
/// }
///
/// let backend = HostBackend::builder().build()?;
/// let stream = Stream::new(&backend, 0)?;
/// let [one, two] = [(); 2].map(|()| GpuBuffer::<u32>::new(Device::new(&backend, 0), 4));
/// let buffers = wait_all(vec![stream.fill(one?, .., 1)?, stream.fill(two?, .., 2)?])?;
/// assert_eq!(buffers[1].to_vec()?, [2; 4]);
/// # Ok::<(), ringmem::Error>(())
/// ```
pub trait Queued: sealed::Settle {}

impl Queued for () {}
impl<T, M: Memory> Queued for Buffer<T, M> {}

/// Implements both traits for tuples.
macro_rules! tuples {
    ($(($($operand:ident $place:tt),+))+) => {$(
        impl<$($operand: Queued),+> Queued for ($($operand,)+) {}
        impl<$($operand: sealed::Settle),+> sealed::Settle for ($($operand,)+) {
            fn settled(&mut self, ticket: Ticket) {
                $(self.$place.settled(ticket);)+
            }
            fn used(&mut self, ticket: Ticket) {
                $(self.$place.used(ticket);)+
            }
        }
    )+};
}

tuples! {
    (A 0)
    (A 0, B 1)
    (A 0, B 1, C 2)
    (A 0, B 1, C 2, D 3)
    (A 0, B 1, C 2, D 3, E 4)
    (A 0, B 1, C 2, D 3, E 4, F 5)
    (A 0, B 1, C 2, D 3, E 4, F 5, G 6)
    (A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7)
    (A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8)
    (A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9)
    (A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10)
    (A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10, L 11)
}

pub(crate) mod sealed {
    use super::{Buffer, Memory, Ticket};

    pub trait Settle {
        fn settled(&mut self, ticket: Ticket);
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
}
