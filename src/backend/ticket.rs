//! What was queued on which stream, and who still uses a block.

use core::fmt;
use core::num::NonZeroU64;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use super::Backend;
use crate::error::OperationFault;
use crate::{Error, Result};

/// A stream's number, never used twice in a process: a handle of the driver's may be.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(NonZeroU64);

impl StreamId {
    /// A number that no stream has had.
    #[must_use]
    pub fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        // It would take centuries to wrap.
        Self(NonZeroU64::MIN.saturating_add(NEXT.fetch_add(1, Relaxed)))
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0.get()
    }

    /// The one that has this number; none has 0.
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

/// An operation in a stream: reached when it and all before it have been executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    /// Whose.
    pub stream: StreamId,
    /// Goes up with each operation, from 1; 0 is before the first.
    pub number: u64,
}

impl Ticket {
    /// What is said of its failure to who comes second.
    pub(super) const fn already_told(self) -> Error {
        Error::Operation { what: OperationFault::AlreadyReported, stream: self.stream.get(), number: self.number }
    }
}

/// How many streams a block may be used by at once before one has to wait for another.
const MOST: usize = 4;

/// The operations that may still use a block: at most one ticket of each of a few streams.
///
/// Empty means that nobody does. More is listed than is so: a ticket stays until somebody has seen that it was reached.
#[derive(Clone, Copy, Debug, Default)]
pub struct Uses {
    tickets: [Option<Ticket>; MOST],
}

impl Uses {
    /// How many streams can be listed.
    pub const MOST: usize = MOST;

    /// None.
    pub const NONE: Self = Self { tickets: [None; MOST] };

    /// One.
    #[must_use]
    pub const fn of(ticket: Ticket) -> Self {
        Self { tickets: [Some(ticket), None, None, None] }
    }

    /// Whether there is none.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.tickets.iter().all(Option::is_none)
    }

    /// The tickets, in no order.
    pub fn iter(&self) -> impl Iterator<Item = Ticket> + '_ {
        self.tickets.iter().flatten().copied()
    }

    /// The only one; `None` for none and for several.
    pub(crate) fn only(&self) -> Option<Ticket> {
        let mut tickets = self.iter();
        tickets.next().filter(|_| tickets.next().is_none())
    }

    /// Adds one. A later ticket of a stream stands for the earlier ones.
    ///
    /// # Errors
    ///
    /// The ticket, if that is one stream too many. Let its stream wait for one that is listed, [`remove`](Self::remove) that one, and add it again.
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

    /// Adds one whatever the number of streams: where there are too many, its stream waits for another's, and stands for both.
    ///
    /// # Errors
    ///
    /// What the backend said; nothing is added, and nothing taken off.
    pub(crate) fn add_after(&mut self, ticket: Ticket, backend: &dyn Backend) -> Result<()> {
        let Err(ticket) = self.add(ticket) else { return Ok(()) };
        let Some(other) = self.iter().next() else { return Ok(()) };
        backend.after(other, ticket.stream)?;
        let both = backend.mark(ticket.stream)?;
        self.remove(other);
        // There is room now.
        let _ = self.add(both);
        Ok(())
    }

    /// Waits until all are complete, even after one has failed.
    ///
    /// # Errors
    ///
    /// As [`Backend::wait`], the first of several.
    pub fn settle(&self, backend: &dyn Backend) -> Result<()> {
        let mut outcome = Ok(());
        for ticket in self.iter() {
            let waited = backend.wait(ticket, None).map(drop);
            outcome = outcome.and(waited);
        }
        outcome
    }

    /// Takes a ticket off, and every earlier one of its stream.
    pub fn remove(&mut self, ticket: Ticket) {
        for place in &mut self.tickets {
            if place.is_some_and(|listed| listed.stream == ticket.stream && listed.number <= ticket.number) {
                *place = None;
            }
        }
    }

    /// Keeps those that `is_open` says yes to.
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
    fn a_later_ticket_of_a_stream_stands_for_the_earlier_ones() {
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
    fn one_stream_too_many_is_given_back() {
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
