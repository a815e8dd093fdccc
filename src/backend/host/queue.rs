//! [`Queue`]: the operations of a stream, in the order in which its thread executes them; which of them are complete, and which failed.
//!
//! Operations and positions have numbers, from 1 on, assigned under the lock of `sender`. `done` is the greatest number such that it and all before it are
//! complete. A position without an operation ([`record_position`](Queue::record_position)) is complete with the operation before it: at once if that is
//! complete, else it goes through the channel as a number without an item.
//!
//! The lock of `failures` orders completion: the thread adds the failure of an operation, advances `done` and wakes waiters under it. So a waiter that
//! holds it and finds a number incomplete is woken, and one that finds it complete sees its failure. Lock order: `sender`, then `failures`.
//!
//! `close` takes the sender: the thread executes what is left in the channel, and ends. What an operation does, and the thread's loop, is in `execute.rs`.

use core::cell::Cell;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU64, AtomicUsize};
use core::task::Waker;
use core::time::Duration;
use std::boxed::Box;
use std::collections::{BTreeMap, HashMap};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;
use std::vec::Vec;

use ringmem_layouts::image::Entry;

use super::faults::Struck;
use super::link::Route;
use super::log::Facts;
use crate::backend::counters::Counts;
use crate::backend::failures::{Failures, HasUnreported};
use crate::backend::{Address, Copy, Fill, Operand, Prefetch};
use crate::sys::panic::caught;
use crate::{Error, Result};

/// INVARIANT: its caller made the promise of the backend's method.
pub(super) enum Operation {
    /// Target and source were pageable when queued.
    Copy(Copy, Route, [bool; 2]),
    /// The target was pageable when queued.
    Fill(Fill, bool),
    /// With the first operation whose failure prevents it.
    Publish {
        word: Address,
        value: u64,
        since: u64,
        pageable: bool,
    },
    Prefetch(Prefetch),
    Launch(Launch),
    Record(Arc<OnceLock<u64>>),
    StreamWait {
        stream: Arc<Queue>,
        number: u64,
        /// The other stream had an earlier kernel when this was queued.
        may_last: bool,
    },
}

pub(super) struct Launch {
    pub entry: Entry,
    pub arguments: Box<[u64]>,
    pub groups: u32,
    pub warps: u32,
    pub operands: Box<[Operand]>,
}

/// An operation with what its call is logged and refused by.
pub(super) struct Item {
    pub operation: Operation,
    pub facts: Facts,
    pub struck: Option<Struck>,
}

/// A position without an operation has no item.
pub(super) type Numbered = (u64, Option<Item>);

/// Completion times of recorded numbers, in ns.
type Records = HashMap<u64, Arc<OnceLock<u64>>>;

thread_local! {
    /// Whether this is a stream's thread, which must not wait for another.
    pub(super) static IS_STREAM: Cell<bool> = const { Cell::new(false) };
}

/// Tasks by the number that they wait for. Separate from deferred frees: a stream visits only due ones.
#[derive(Default)]
struct Tasks {
    waiting: Mutex<BTreeMap<u64, Vec<Waker>>>,
}

impl Tasks {
    /// The caller must then check for completion.
    fn add(&self, number: u64, waker: Waker) {
        self.with(|waiting| waiting.entry(number).or_default().push(waker));
    }

    fn over(&self, number: u64) -> Vec<Waker> {
        let mut over = Vec::new();
        self.with(|waiting| {
            while let Some(first) = waiting.first_entry().filter(|first| *first.key() <= number) {
                over.append(&mut first.remove());
            }
        });
        over
    }

    fn with<R>(&self, look: impl FnOnce(&mut BTreeMap<u64, Vec<Waker>>) -> R) -> R {
        look(&mut self.waiting.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

pub(super) struct Queue {
    pub device: u32,
    /// `None` once closed; the last number assigned.
    sender: Mutex<(Option<Sender<Numbered>>, u64)>,
    done: AtomicU64,
    launches: AtomicUsize,
    /// Queued or running, for a stream of unbounded duration.
    waits: AtomicUsize,
    failures: Mutex<Failures>,
    records: Mutex<Records>,
    tasks: Tasks,
    changed: Condvar,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Queue {
    /// Returns the queue, and the operations for its thread.
    pub fn new(device: u32) -> (Arc<Self>, Receiver<Numbered>) {
        let (sender, operations) = mpsc::channel();
        let queue = Self {
            device,
            sender: Mutex::new((Some(sender), 0)),
            done: AtomicU64::new(0),
            launches: AtomicUsize::new(0),
            waits: AtomicUsize::new(0),
            failures: Mutex::default(),
            records: Mutex::default(),
            tasks: Tasks::default(),
            changed: Condvar::new(),
            thread: Mutex::default(),
        };
        (Arc::new(queue), operations)
    }

    /// Stores the handle for [`close`](Self::close), before another thread has the queue.
    pub fn set_thread(&self, thread: JoinHandle<()>) {
        *self.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
    }

    /// Completes an operation and all positions after it; returns the next operation, if it is queued already. For the stream's thread.
    pub fn complete(&self, mut number: u64, outcome: Result<()>, operations: &Receiver<Numbered>) -> Option<Numbered> {
        let mut failures = self.failures();
        if let Err(error) = outcome {
            failures.add(number, error);
        }
        let mut next = operations.try_recv();
        while let Ok((position, None)) = next {
            number = position;
            next = operations.try_recv();
        }
        // SYNC POINT: operation executed. Pairs with is_complete. Under the lock, so that no waiter or position misses it.
        self.done.store(number, Release);
        self.changed.notify_all();
        next.ok()
    }

    /// Passes the number to `announce` before execution.
    pub fn push(&self, item: Item, announce: impl FnOnce(u64)) -> Result<u64> {
        let mut sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner);
        let (Some(open), number) = (&sender.0, sender.1 + 1) else { return Err(Error::Closed { what: "stream" }) };
        // It may panic.
        announce(number);
        let count = self.count(&item.operation);
        if let Some(count) = count {
            count.fetch_add(1, Relaxed);
        }
        if let Operation::Record(at) = &item.operation {
            self.records().insert(number, Arc::clone(at));
        }
        if open.send((number, Some(item))).is_err() {
            if let Some(count) = count {
                count.fetch_sub(1, Relaxed);
            }
            return Err(Error::Closed { what: "stream" });
        }
        sender.1 = number;
        Ok(number)
    }

    /// No operation has the number, so it does not fail.
    pub fn record_position(&self, announce: impl FnOnce(u64)) -> Result<u64> {
        let mut sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner);
        let (Some(open), number) = (&sender.0, sender.1 + 1) else { return Err(Error::Closed { what: "stream" }) };
        announce(number);
        {
            // The stream has executed everything, or finds the mark after the current operation.
            let _failures = self.failures();
            if self.is_complete(sender.1) {
                self.done.store(number, Release);
                self.changed.notify_all();
            } else {
                open.send((number, None)).map_err(|_| Error::Closed { what: "stream" })?;
            }
        }
        sender.1 = number;
        Ok(number)
    }

    /// The count of unfinished operations of its kind, if they may last.
    pub fn count(&self, operation: &Operation) -> Option<&AtomicUsize> {
        match operation {
            Operation::Launch(_) => Some(&self.launches),
            Operation::StreamWait { may_last: true, .. } => Some(&self.waits),
            _ => None,
        }
    }

    pub fn has_kernels(&self) -> bool {
        self.launches.load(Relaxed) > 0
    }

    pub fn may_last(&self) -> bool {
        self.has_kernels() || self.waits.load(Relaxed) > 0
    }

    fn last(&self) -> u64 {
        self.sender.lock().unwrap_or_else(PoisonError::into_inner).1
    }

    pub fn is_complete(&self, number: u64) -> bool {
        // SYNC POINT: operation executed. Pairs with complete.
        self.done.load(Acquire) >= number
    }

    /// `None` without a record; `Some(None)` before execution.
    pub fn recorded(&self, number: u64) -> Option<Option<u64>> {
        self.records().get(&number).map(|at| at.get().copied())
    }

    pub fn forget(&self, number: u64) {
        self.records().remove(&number);
    }

    /// True if executed within `timeout`, or the operation's unreported failure; for a recorded number, also an earlier one.
    pub fn wait(&self, number: u64, timeout: Option<Duration>) -> Result<bool> {
        let Some(mut failures) = self.wait_locked(number, timeout) else { return Ok(false) };
        let first = if failures.unreported() == 0 || self.recorded(number).is_none() { number } else { 0 };
        failures.report(first..=number).map(|()| true)
    }

    /// Even if its error was reported.
    pub fn has_failed(&self, number: u64) -> bool {
        self.failures().have(number)
    }

    pub fn synchronize(&self) -> Result<()> {
        let last = self.last();
        let Some(mut failures) = self.wait_locked(last, None) else { return Ok(()) };
        failures.report(0..=last)
    }

    /// Wakes the task when the number is complete.
    pub fn notify(&self, counts: &Counts, number: u64, waker: Waker) {
        self.tasks.add(number, waker);
        // By the lock of the tasks, this thread sees the number complete, or the stream's thread sees the task.
        if self.is_complete(number) {
            self.wake(counts);
        }
    }

    /// Wakes the tasks that wait for complete numbers. A panic is counted: it has no caller.
    pub fn wake(&self, counts: &Counts) {
        for waker in self.tasks.over(self.done.load(Acquire)) {
            if caught(|| waker.wake()).is_none() {
                counts.unreported.fetch_add(1, Relaxed);
            }
        }
    }

    pub fn wait_for(&self, number: u64) {
        drop(self.wait_locked(number, None));
    }

    fn wait_locked(&self, number: u64, timeout: Option<Duration>) -> Option<MutexGuard<'_, Failures>> {
        // A short operation completes sooner than a sleeper wakes.
        for _ in 0..if timeout == Some(Duration::ZERO) { 0 } else { 200 } {
            if self.is_complete(number) {
                break;
            }
            core::hint::spin_loop();
        }
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut failures = self.failures();
        while !self.is_complete(number) {
            failures = match deadline {
                None => self.changed.wait(failures).unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return None;
                    }
                    self.changed.wait_timeout(failures, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        Some(failures)
    }

    /// Waits for the queued operations, unless one may last, or on a stream's thread.
    pub fn close(&self) {
        drop(self.sender.lock().unwrap_or_else(PoisonError::into_inner).0.take());
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread
            && !self.may_last()
            && !IS_STREAM.get()
        {
            let _ = thread.join();
        }
    }

    fn failures(&self) -> MutexGuard<'_, Failures> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn records(&self) -> MutexGuard<'_, Records> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HasUnreported for Queue {
    fn unreported(&self) -> u64 {
        self.failures().unreported()
    }
}
