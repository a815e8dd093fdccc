use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use std::vec::Vec;

use crate::memory::{Buffer, Memory};
use crate::stream::Pending;
use crate::{DeviceBytes, Error, Rejected};

/// No call waits or frees under the lock. One half takes a copy's outcome, outside the lock: its error is reported once.
pub(super) struct Slots<T, H: Memory> {
    books: Mutex<Books<T, H>>,
    changed: Condvar,
}

pub(super) struct Books<T, H: Memory> {
    /// A slot neither free, unread nor held has no buffer, or is with the writer.
    count: usize,
    pub free: Vec<Buffer<T, H>>,
    pub unread: VecDeque<Unread<T, H>>,
    pub is_held: bool,
    /// One half takes a copy's outcome, or queues a copy over a frame; the frame is not in `unread`.
    is_asking: bool,
    pub has_writer: bool,
    pub has_reader: bool,
}

pub(super) struct Unread<T, H: Memory> {
    pub sequence: u64,
    pub transfer: Transfer<T, H>,
}

pub(super) enum Transfer<T, H: Memory> {
    Flying(Pending<Buffer<T, H>>),
    Whole(Buffer<T, H>),
    Lost(Rejected<Buffer<T, H>>),
}

impl<T, H: Memory> From<Result<Buffer<T, H>, Rejected<Buffer<T, H>>>> for Transfer<T, H> {
    fn from(outcome: Result<Buffer<T, H>, Rejected<Buffer<T, H>>>) -> Self {
        outcome.map_or_else(Self::Lost, Self::Whole)
    }
}

impl<T, H: Memory> Slots<T, H> {
    pub fn new(count: usize) -> Self {
        let books = Books {
            count,
            free: Vec::new(),
            unread: VecDeque::new(),
            is_held: false,
            is_asking: false,
            has_writer: true,
            has_reader: true,
        };
        Self { books: Mutex::new(books), changed: Condvar::new() }
    }

    pub fn look(&self) -> MutexGuard<'_, Books<T, H>> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn change<R>(&self, change: impl FnOnce(&mut Books<T, H>) -> R) -> R {
        let changed = change(&mut self.look());
        self.changed.notify_all();
        changed
    }

    pub fn change_settled<R>(&self, change: impl FnOnce(&mut Books<T, H>) -> R) -> R
    where
        T: DeviceBytes,
    {
        let changed = change(&mut self.settle(self.look()));
        self.changed.notify_all();
        changed
    }

    pub fn wait<'a>(&'a self, books: MutexGuard<'a, Books<T, H>>, until: Option<Instant>) -> Option<MutexGuard<'a, Books<T, H>>> {
        let Some(until) = until else { return Some(self.wait_for_change(books)) };
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        Some(self.changed.wait_timeout(books, left).unwrap_or_else(PoisonError::into_inner).0)
    }

    pub fn whole<'a>(&'a self, mut books: MutexGuard<'a, Books<T, H>>) -> MutexGuard<'a, Books<T, H>> {
        while books.is_asking {
            books = self.wait_for_change(books);
        }
        books
    }

    /// As [`whole`](Self::whole), at most until then.
    pub fn whole_until<'a>(
        &'a self,
        mut books: MutexGuard<'a, Books<T, H>>,
        until: Option<Instant>,
    ) -> Option<MutexGuard<'a, Books<T, H>>> {
        while books.is_asking {
            books = self.wait(books, until)?;
        }
        Some(books)
    }

    fn wait_for_change<'a>(&self, books: MutexGuard<'a, Books<T, H>>) -> MutexGuard<'a, Books<T, H>> {
        self.changed.wait(books).unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: DeviceBytes, H: Memory> Slots<T, H> {
    /// Takes complete copies' outcomes, oldest first: a failed frame before a complete one would otherwise lose its error.
    ///
    /// Releases the lock: an outcome may drop kept values, such as the other half.
    pub fn settle<'a>(&'a self, mut books: MutexGuard<'a, Books<T, H>>) -> MutexGuard<'a, Books<T, H>> {
        loop {
            books = self.whole(books);
            let Some(over) = books.take_over() else { return books };
            books.is_asking = true;
            drop(books);
            let mut asking = Asking { slots: self, told: None };
            let told = asking.told.insert(over.settled());
            let is_flying = matches!(told.transfer, Transfer::Flying(_));
            drop(asking);
            books = self.look();
            if is_flying {
                return self.whole(books);
            }
        }
    }
}

/// A frame that is not in `unread` for a moment. A drop returns it to its position; after a panic, it is lost with its buffer.
struct Asking<'a, T, H: Memory> {
    slots: &'a Slots<T, H>,
    told: Option<Unread<T, H>>,
}

impl<T, H: Memory> Drop for Asking<'_, T, H> {
    fn drop(&mut self) {
        self.slots.change(|books| {
            books.is_asking = false;
            if let Some(told) = self.told.take() {
                let place = books.unread.partition_point(|unread| unread.sequence < told.sequence);
                books.unread.insert(place, told);
            }
        });
    }
}

/// The frame that a new one overwrites, without its slot, while the new copy is queued. No reader sees a later frame meanwhile.
///
/// After a panic, the frame is lost: the copy may be queued.
pub(super) struct Overwritten<'a, T, H: Memory> {
    asking: Asking<'a, T, H>,
    sequence: u64,
    error: Option<Error>,
}

impl<T: DeviceBytes, H: Memory> Overwritten<'_, T, H> {
    /// Returns the frame with its slot to the reader: nothing was queued.
    pub fn put_back(mut self, value: Buffer<T, H>) {
        let transfer = match self.error {
            Some(error) => Transfer::Lost(Rejected { error, value }),
            None => Transfer::Whole(value),
        };
        self.asking.told = Some(Unread { sequence: self.sequence, transfer });
    }

    /// Ends the frame; its error was reported to no one.
    pub fn finish(self, memory: &H) {
        drop(self.asking);
        if let Some(error) = self.error {
            memory.backend().unreported(error);
        }
    }
}

impl<T: DeviceBytes, H: Memory> Slots<T, H> {
    /// Takes the frame that a new one may overwrite, and its slot. The books are [settled](Self::settle).
    pub fn overwrite<'a>(&'a self, mut books: MutexGuard<'a, Books<T, H>>) -> Option<(Buffer<T, H>, Overwritten<'a, T, H>)> {
        let place = books.oldest()?;
        let Unread { sequence, transfer } = books.unread.remove(place)?;
        books.is_asking = true;
        drop(books);
        let (slot, error) = match transfer {
            Transfer::Flying(pending) => (pending.detach(), None),
            Transfer::Whole(slot) => (slot, None),
            Transfer::Lost(Rejected { error, value }) => (value, Some(error)),
        };
        Some((slot, Overwritten { asking: Asking { slots: self, told: None }, sequence, error }))
    }
}

impl<T, H: Memory> Books<T, H> {
    /// `Some(None)` is a slot without a buffer.
    pub fn take_free(&mut self) -> Option<Option<Buffer<T, H>>> {
        let in_use = self.free.len() + self.unread.len() + usize::from(self.is_held) + usize::from(self.is_asking);
        if in_use < self.count && self.free.is_empty() { Some(None) } else { self.free.pop().map(Some) }
    }
}

impl<T: DeviceBytes, H: Memory> Books<T, H> {
    /// Later copies are not complete before earlier ones.
    fn take_over(&mut self) -> Option<Unread<T, H>> {
        let mut flying = self.unread.iter().enumerate();
        let (place, pending) = flying.find_map(|(place, unread)| unread.flying().map(|pending| (place, pending)))?;
        if pending.is_done() { self.unread.remove(place) } else { None }
    }

    pub fn newest(&self) -> Option<usize> {
        self.unread.iter().rposition(|unread| matches!(unread.transfer, Transfer::Whole(_)))
    }

    /// Returns the position of the oldest complete or failed frame, if it is not the newest complete one.
    fn oldest(&self) -> Option<usize> {
        let oldest = self.unread.iter().position(|unread| !matches!(unread.transfer, Transfer::Flying(_)))?;
        (self.newest() != Some(oldest)).then_some(oldest)
    }

    /// Returns the length of the slot that [`overwrite`](Slots::overwrite) takes.
    pub fn oldest_len(&self) -> Option<usize> {
        match &self.unread.get(self.oldest()?)?.transfer {
            Transfer::Flying(_) => None,
            Transfer::Whole(slot) | Transfer::Lost(Rejected { value: slot, .. }) => Some(slot.len()),
        }
    }
}

impl<T: DeviceBytes, H: Memory> Unread<T, H> {
    const fn flying(&self) -> Option<&Pending<Buffer<T, H>>> {
        if let Transfer::Flying(pending) = &self.transfer { Some(pending) } else { None }
    }

    fn settled(self) -> Self {
        let transfer = match self.transfer {
            Transfer::Flying(pending) => pending.try_take().map_or_else(Transfer::Flying, Transfer::from),
            over => over,
        };
        Self { transfer, ..self }
    }

    /// For a copy ordered after the one in flight.
    pub fn into_slot(self) -> Buffer<T, H> {
        match self.transfer {
            Transfer::Flying(pending) => pending.detach(),
            Transfer::Whole(buffer) => buffer,
            Transfer::Lost(Rejected { error, value }) => {
                value.memory().backend().unreported(error);
                value
            }
        }
    }
}
