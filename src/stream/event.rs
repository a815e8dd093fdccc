//! [`Event`]: a moment in a stream, and the time between two.

use core::fmt;
use core::future::poll_fn;
use core::time::Duration;

use super::Stream;
use super::completion::Listener;
use crate::Result;
use crate::backend::{Backend, StreamId, Ticket, same_backend};

/// A moment in a stream: reached when everything that was queued before has been executed. It holds the stream.
///
/// What is told who waits for one is what the first operation before it failed with that nobody was told of, as by [`Stream::synchronize`]: wait for
/// the [`Pending`](super::Pending) of an operation first, if its error is to be found there.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::memory::{Device, GpuBuffer};
/// use ringmem::stream::Stream;
///
/// # fn main() -> ringmem::Result<()> {
/// let backend = HostBackend::builder().build()?;
/// let (stream, other) = (Stream::new(&backend, 0)?, Stream::new(&backend, 0)?);
/// let begun = stream.record()?;
/// let filled = stream.fill(GpuBuffer::<u8>::new(Device::new(&backend, 0), 1 << 20)?, .., 7)?;
/// let ended = stream.record()?;
/// other.wait_for_event(&ended)?; // what is queued there from now on comes after the fill
/// ended.wait()?;
/// println!("{:?}", ended.elapsed_since(&begun)?);
/// # drop(filled);
/// # Ok(())
/// # }
/// ```
#[must_use = "dropping it forgets the moment"]
pub struct Event {
    ticket: Ticket,
    stream: Stream,
}

impl Stream {
    /// This moment in the stream, timed.
    ///
    /// # Errors
    ///
    /// What the driver said.
    pub fn record(&self) -> Result<Event> {
        let ticket = record(&**self.backend(), self.id())?;
        Ok(Event { ticket, stream: self.clone() })
    }

    /// Makes what is queued here from now on wait for a moment in any stream.
    ///
    /// # Errors
    ///
    /// [`OtherBackend`](crate::Error::OtherBackend), what the driver said.
    pub fn wait_for_event(&self, event: &Event) -> Result<()> {
        same_backend(&**self.backend(), &**event.stream.backend())?;
        // In its own stream it is behind it as it is.
        if event.ticket.stream == self.id() { Ok(()) } else { self.backend().after(event.ticket, self.id()) }
    }
}

/// Records a timed event, or a mark if the backend has no timed events.
pub(super) fn record(backend: &dyn Backend, stream: StreamId) -> Result<Ticket> {
    match backend.extension().record(stream)? {
        Some(ticket) => Ok(ticket),
        None => backend.mark(stream),
    }
}

impl Event {
    /// Whether it was reached, or never will be.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.stream.backend().reached(self.ticket)
    }

    /// Waits as long as it takes: for a kernel that nobody tells to end, for ever.
    ///
    /// # Errors
    ///
    /// What the first operation before it failed with that nobody was told of; it and the others before the event are told now.
    pub fn wait(&self) -> Result<()> {
        self.stream.backend().wait(self.ticket, None).map(drop)
    }

    /// Waits no longer than `timeout`: whether it was reached.
    ///
    /// # Errors
    ///
    /// As [`wait`](Self::wait).
    pub fn wait_timeout(&self, timeout: Duration) -> Result<bool> {
        self.stream.backend().wait(self.ticket, Some(timeout))
    }

    /// Waits as a task of any executor, which is woken once. Dropping the future takes nothing back.
    ///
    /// # Errors
    ///
    /// As [`wait`](Self::wait).
    pub async fn reached(&self) -> Result<()> {
        let mut listener = Listener::default();
        poll_fn(|cx| listener.poll(self.stream.backend(), self.ticket, cx)).await;
        self.wait()
    }

    /// How long after another event, of any stream of the backend, this one was reached; nothing if it was before. On the host backend by its
    /// clock, or in the virtual time of its [`Link`](crate::backend::host::Link) if it has one; by a driver's clock to about half a microsecond.
    ///
    /// # Errors
    ///
    /// [`Operation`](crate::Error::Operation) where either was not, or failed: it never waits. [`OtherBackend`](crate::Error::OtherBackend);
    /// [`Unsupported`](crate::Error::Unsupported) where nothing is timed.
    pub fn elapsed_since(&self, earlier: &Self) -> Result<Duration> {
        same_backend(&**self.stream.backend(), &**earlier.stream.backend())?;
        self.stream.backend().extension().elapsed(earlier.ticket, self.ticket)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        self.stream.backend().extension().forget(self.ticket);
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event").field("ticket", &self.ticket).field("is_done", &self.is_done()).finish_non_exhaustive()
    }
}
