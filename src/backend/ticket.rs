use core::fmt;
use core::num::NonZeroU64;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use super::Backend;
use crate::error::OperationFault;
use crate::{Error, Result};

/// The number of a stream, never reused.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::stream::Stream;
///
/// let backend = HostBackend::builder().build()?;
/// let stream = Stream::new(&backend, 0)?;
/// let id = stream.id();
/// assert_eq!(stream.clone().id(), id); // the same stream
/// drop(stream);
/// assert_ne!(Stream::new(&backend, 0)?.id(), id); // never reused
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(NonZeroU64);

impl StreamId {
    /// Returns a number that no stream of this process has had.
    #[must_use]
    pub fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NonZeroU64::MIN.saturating_add(NEXT.fetch_add(1, Relaxed)))
    }

    /// Returns the number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0.get()
    }

    pub(crate) const fn numbered(number: u64) -> Option<Self> {
        match NonZeroU64::new(number) {
            Some(number) => Some(Self(number)),
            None => None,
        }
    }
}

impl fmt::Debug for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StreamId({})", self.0)
    }
}

/// An operation in a stream, complete when everything up to it is.
///
/// ```
/// use ringmem::backend::Backend;
/// use ringmem::backend::host::HostBackend;
/// use ringmem::stream::Stream;
///
/// let backend = HostBackend::builder().build()?;
/// let stream = Stream::new(&backend, 0)?;
/// let ticket = backend.record_position(stream.id())?; // after all queued operations
/// assert!(backend.wait(ticket, None)? && backend.is_complete(ticket));
/// assert_eq!(ticket.stream, stream.id());
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    /// Stream.
    pub stream: StreamId,
    /// From 1; 0 is before the first operation.
    pub number: u64,
}

impl Ticket {
    pub(super) const fn already_told(self) -> Error {
        Error::Operation { what: OperationFault::AlreadyReported, stream: self.stream.get(), number: self.number }
    }
}

const MOST: usize = 4;

/// The operations that may still use a block: a ticket each of a few streams; may include complete ones.
///
/// ```
/// use ringmem::backend::Uses;
///
/// assert!(Uses::NONE.is_empty());
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Uses {
    tickets: [Option<Ticket>; MOST],
}

impl Uses {
    /// The maximum number of listed streams.
    pub const MOST: usize = MOST;

    /// No uses.
    pub const NONE: Self = Self { tickets: [None; MOST] };

    /// Returns the uses by one ticket.
    #[must_use]
    pub const fn of(ticket: Ticket) -> Self {
        Self { tickets: [Some(ticket), None, None, None] }
    }

    /// Returns true if there are no uses.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.tickets.iter().all(Option::is_none)
    }

    /// Iterates over the tickets, in no order.
    pub fn iter(&self) -> impl Iterator<Item = Ticket> + '_ {
        self.tickets.iter().flatten().copied()
    }

    pub(crate) fn only(&self) -> Option<Ticket> {
        let mut tickets = self.iter();
        tickets.next().filter(|_| tickets.next().is_none())
    }

    /// Adds a ticket, which replaces its stream's earlier one.
    ///
    /// # Errors
    ///
    /// The ticket, if there are too many streams. Make its stream wait for a listed one, [`remove`](Self::remove) that, and add a new mark.
    pub fn add(&mut self, ticket: Ticket) -> core::result::Result<(), Ticket> {
        if let Some(listed) = self.tickets.iter_mut().flatten().find(|listed| listed.stream == ticket.stream) {
            listed.number = listed.number.max(ticket.number);
            return Ok(());
        }
        match self.tickets.iter_mut().find(|place| place.is_none()) {
            Some(place) => {
                *place = Some(ticket);
                Ok(())
            }
            None => Err(ticket),
        }
    }

    /// If there are too many streams, makes the ticket's stream wait for a listed one, and replaces that one. An error leaves the list unchanged.
    pub(crate) fn add_after(&mut self, ticket: Ticket, backend: &dyn Backend) -> Result<()> {
        let Err(ticket) = self.add(ticket) else { return Ok(()) };
        let Some(other) = self.iter().next() else { return Ok(()) };
        backend.stream_wait(other, ticket.stream)?;
        let both = backend.record_position(ticket.stream)?;
        self.remove(other);
        let _ = self.add(both);
        Ok(())
    }

    /// Waits until all are complete, even after a failure.
    ///
    /// # Errors
    ///
    /// As [`Backend::wait`]; the first one.
    pub fn settle(&self, backend: &dyn Backend) -> Result<()> {
        let mut outcome = Ok(());
        for ticket in self.iter() {
            let waited = backend.wait(ticket, None).map(drop);
            outcome = outcome.and(waited);
        }
        outcome
    }

    /// Removes a ticket and its stream's earlier ones.
    pub fn remove(&mut self, ticket: Ticket) {
        for place in &mut self.tickets {
            if place.is_some_and(|listed| listed.stream == ticket.stream && listed.number <= ticket.number) {
                *place = None;
            }
        }
    }

    /// Keeps the tickets for which `is_open` returns true.
    pub fn retain(&mut self, mut is_open: impl FnMut(Ticket) -> bool) {
        for place in &mut self.tickets {
            if place.is_some_and(|ticket| !is_open(ticket)) {
                *place = None;
            }
        }
    }
}

impl From<Option<Ticket>> for Uses {
    fn from(ticket: Option<Ticket>) -> Self {
        ticket.map_or(Self::NONE, Self::of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_ticket_replaces_earlier_ones_of_its_stream() {
        let stream = StreamId::next();
        let mut uses = Uses::of(Ticket { stream, number: 3 });
        assert_eq!(uses.add(Ticket { stream, number: 5 }), Ok(()));
        assert_eq!(uses.add(Ticket { stream, number: 4 }), Ok(()));
        assert!(uses.iter().eq([Ticket { stream, number: 5 }]));
        uses.remove(Ticket { stream, number: 4 });
        assert!(!uses.is_empty());
        uses.remove(Ticket { stream, number: 5 });
        assert!(uses.is_empty());
    }

    #[test]
    fn add_returns_the_ticket_of_one_stream_too_many() {
        let mut uses = Uses::NONE;
        for _ in 0..MOST {
            assert_eq!(uses.add(Ticket { stream: StreamId::next(), number: 1 }), Ok(()));
        }
        let last = Ticket { stream: StreamId::next(), number: 1 };
        assert_eq!(uses.add(last), Err(last));
        let first = uses.iter().next();
        uses.retain(|ticket| Some(ticket) != first);
        assert_eq!((uses.add(last), uses.iter().count()), (Ok(()), MOST));
    }
}
