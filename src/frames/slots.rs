//! What is between a writer and a reader: slots that are free, and frames in the order in which they were started.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use std::vec::Vec;

use crate::memory::{Buffer, Memory};
use crate::stream::Pending;
use crate::{DeviceBytes, Rejected};

/// Both halves' view of the slots.
///
/// Under the lock the driver is asked whether transfers are over, and nothing that waits, allocates or frees. Each transfer is asked for by one half at a
/// time: its failure is told once.
pub(super) struct Slots<T, H: Memory> {
    books: Mutex<Books<T, H>>,
    changed: Condvar,
}

pub(super) struct Books<T, H: Memory> {
    /// Slots in all. One that is neither free, unread nor held has no buffer: not yet, or not since another was refused to it; or the writer has it.
    count: usize,
    pub free: Vec<Buffer<T, H>>,
    /// By sequence number.
    pub unread: VecDeque<Unread<T, H>>,
    /// The reader has one out.
    pub is_held: bool,
    pub has_writer: bool,
    pub has_reader: bool,
}

/// A frame that nobody has read.
pub(super) struct Unread<T, H: Memory> {
    pub sequence: u64,
    pub transfer: Transfer<T, H>,
}

pub(super) enum Transfer<T, H: Memory> {
    /// Queued; nobody has seen it end.
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
        let books = Books { count, free: Vec::new(), unread: VecDeque::new(), is_held: false, has_writer: true, has_reader: true };
        Self { books: Mutex::new(books), changed: Condvar::new() }
    }

    pub fn look(&self) -> MutexGuard<'_, Books<T, H>> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something that the other half may be waiting for.
    pub fn change<R>(&self, change: impl FnOnce(&mut Books<T, H>) -> R) -> R {
        let changed = change(&mut self.look());
        self.changed.notify_all();
        changed
    }

    /// Waits for a change; `None` when it is too late. Without an end there is no such time.
    pub fn wait<'a>(&'a self, books: MutexGuard<'a, Books<T, H>>, until: Option<Instant>) -> Option<MutexGuard<'a, Books<T, H>>> {
        let Some(until) = until else { return Some(self.changed.wait(books).unwrap_or_else(PoisonError::into_inner)) };
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        Some(self.changed.wait_timeout(books, left).unwrap_or_else(PoisonError::into_inner).0)
    }
}

impl<T, H: Memory> Books<T, H> {
    /// A slot for a new frame, with its buffer if it has one; `None` where all are in use.
    pub fn take_free(&mut self) -> Option<Option<Buffer<T, H>>> {
        let in_use = self.free.len() + self.unread.len() + usize::from(self.is_held);
        if in_use < self.count && self.free.is_empty() { Some(None) } else { self.free.pop().map(Some) }
    }
}

impl<T: DeviceBytes, H: Memory> Books<T, H> {
    /// Sees which transfers are over: the newest first, so that nothing older than a whole frame is taken for one in flight, whose failure nobody would
    /// be told of. They are over in order.
    pub fn settle(&mut self) {
        // Each goes round once, so the order stays.
        for _ in 0..self.unread.len() {
            if let Some(unread) = self.unread.pop_back() {
                self.unread.push_front(unread.settled());
            }
        }
    }

    /// The newest frame that is whole, by its place.
    pub fn newest(&self) -> Option<usize> {
        self.unread.iter().rposition(|unread| matches!(unread.transfer, Transfer::Whole(_)))
    }

    /// The oldest frame whose transfer is over, unless that is the newest whole one.
    pub fn take_older(&mut self) -> Option<Unread<T, H>> {
        self.settle();
        let oldest = self.unread.iter().position(|unread| !matches!(unread.transfer, Transfer::Flying(_)))?;
        if self.newest() == Some(oldest) { None } else { self.unread.remove(oldest) }
    }
}

impl<T: DeviceBytes, H: Memory> Unread<T, H> {
    fn settled(self) -> Self {
        let transfer = match self.transfer {
            Transfer::Flying(pending) => pending.try_take().map_or_else(Transfer::Flying, Transfer::from),
            over => over,
        };
        Self { transfer, ..self }
    }

    /// The slot's buffer, for a frame that comes after what is queued on it. An error that it had is counted as unreported.
    pub fn into_slot(self) -> Buffer<T, H> {
        match self.transfer {
            Transfer::Flying(pending) => pending.ordered(),
            Transfer::Whole(buffer) => buffer,
            Transfer::Lost(Rejected { error, value }) => {
                value.memory().backend().unreported(error);
                value
            }
        }
    }
}
