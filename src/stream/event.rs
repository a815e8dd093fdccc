use core::fmt;
use core::future::poll_fn;
use core::time::Duration;

use super::Stream;
use super::completion::Listener;
use crate::Result;
use crate::backend::{Backend, StreamId, Ticket, same_backend};

/// A timed point in a stream, complete when all earlier operations are. It keeps the stream open.
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
#[must_use = "dropping it releases the event"]
pub struct Event {
    ticket: Ticket,
    stream: Stream,
}

impl Stream {
    /// Records a timed event after the operations queued so far.
    ///
    /// # Errors
    ///
    /// The driver's error.
    pub fn record(&self) -> Result<Event> {
        let ticket = record(&**self.backend(), self.id())?;
        Ok(Event { ticket, stream: self.clone() })
    }

    /// Orders this stream's later operations after an event of any stream.
    ///
    /// # Errors
    ///
    /// [`OtherBackend`](crate::Error::OtherBackend), the driver's error.
    pub fn wait_for_event(&self, event: &Event) -> Result<()> {
        same_backend(&**self.backend(), &**event.stream.backend())?;
        if event.ticket.stream == self.id() { Ok(()) } else { self.backend().stream_wait(event.ticket, self.id()) }
    }
}

pub(super) fn record(backend: &dyn Backend, stream: StreamId) -> Result<Ticket> {
    match backend.record(stream)? {
        Some(ticket) => Ok(ticket),
        None => backend.record_position(stream),
    }
}

impl Event {
    /// Returns true if it is complete, or never will be.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.stream.backend().is_complete(self.ticket)
    }

    /// Waits until it is complete: forever behind a persistent kernel that does not end.
    ///
    /// # Errors
    ///
    /// The first unreported error of an earlier operation; all then count as reported.
    pub fn wait(&self) -> Result<()> {
        self.stream.backend().wait(self.ticket, None).map(drop)
    }

    /// Waits at most `timeout` for the event; returns false if it is not complete.
    ///
    /// # Errors
    ///
    /// As [`wait`](Self::wait).
    pub fn wait_timeout(&self, timeout: Duration) -> Result<bool> {
        self.stream.backend().wait(self.ticket, Some(timeout))
    }

    /// Waits as a task; cancel-safe.
    ///
    /// # Errors
    ///
    /// As [`wait`](Self::wait).
    pub async fn is_complete(&self) -> Result<()> {
        let mut listener = Listener::default();
        poll_fn(|cx| listener.poll(self.stream.backend(), self.ticket, cx)).await;
        self.wait()
    }

    /// Returns the time since an event of any stream; zero if this came first. The host backend uses its clock or its
    /// [`Link`](crate::backend::host::Link)'s.
    ///
    /// # Errors
    ///
    /// [`Operation`](crate::Error::Operation) if either is not complete, or failed; [`OtherBackend`](crate::Error::OtherBackend);
    /// [`Unsupported`](crate::Error::Unsupported) without timed events.
    pub fn elapsed_since(&self, earlier: &Self) -> Result<Duration> {
        same_backend(&**self.stream.backend(), &**earlier.stream.backend())?;
        self.stream.backend().elapsed(earlier.ticket, self.ticket)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        self.stream.backend().forget(self.ticket);
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event").field("ticket", &self.ticket).field("is_done", &self.is_done()).finish_non_exhaustive()
    }
}
