use core::cell::Cell;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU64, AtomicUsize};
use core::task::Waker;
use core::time::Duration;
use std::collections::HashMap;
use std::format;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use super::faults::Struck;
use super::inner::Inner;
use super::log::{Facts, Phase};
use super::operation::Operation;
use super::tasks::Tasks;
use crate::backend::failures::Failures;
use crate::backend::failures::HasUnreported;
use crate::backend::{StreamId, Ticket};
use crate::error::OperationFault;
use crate::sys::panic::caught;
use crate::{Error, Result};

pub(super) struct Item {
    pub operation: Operation,
    pub facts: Facts,
    pub struck: Option<Struck>,
}

type Numbered = (u64, Option<Item>);

/// Completion times of recorded numbers, in ns.
type Records = HashMap<u64, Arc<OnceLock<u64>>>;

thread_local! {
    static IS_STREAM: Cell<bool> = const { Cell::new(false) };
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
    /// Listed in `inner` until its last operation is executed.
    pub fn open(inner: &Arc<Inner>, device: u32) -> Result<StreamId> {
        let id = StreamId::next();
        let (sender, operations) = mpsc::channel();
        let queue = Arc::new(Self {
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
        });
        let name = format!("ringmem-{}", id.get());
        // Until the handle is stored, for `close`.
        let mut thread = queue.thread.lock().unwrap_or_else(PoisonError::into_inner);
        *thread = Some(
            thread::Builder::new()
                .name(name)
                .spawn({
                    let (inner, queue) = (Arc::clone(inner), Arc::clone(&queue));
                    move || queue.run(&inner, id, &operations)
                })
                .map_err(|source| Error::System { call: "start of a thread", path: None, answer: source })?,
        );
        drop(thread);
        inner.streams.write().unwrap_or_else(PoisonError::into_inner).insert(id, queue);
        inner.counts.streams.fetch_add(1, Relaxed);
        Ok(id)
    }

    fn run(&self, inner: &Inner, id: StreamId, operations: &Receiver<Numbered>) {
        IS_STREAM.set(true);
        let mut is_broken = false;
        let mut last_failed = 0;
        let mut next = operations.recv().ok();
        while let Some((mut number, item)) = next {
            let outcome = item.map_or(Ok(()), |item| self.execute(inner, Ticket { stream: id, number }, item, &mut is_broken, last_failed));
            if outcome.is_err() {
                last_failed = number;
            }
            next = {
                let mut failures = self.failures();
                if let Err(error) = outcome {
                    failures.add(number, error);
                }
                let mut next = operations.try_recv();
                while let Ok((mark, None)) = next {
                    number = mark;
                    next = operations.try_recv();
                }
                // SYNC POINT: operation executed. Pairs with is_complete. Under the lock, so that no waiter or mark misses it.
                self.done.store(number, Release);
                self.changed.notify_all();
                next.ok()
            };
            self.wake(inner);
            inner.deferred.drain(inner);
            next = next.or_else(|| operations.recv().ok());
        }
        {
            // Under the lock: a stream with unreported failures is always in a list.
            let mut streams = inner.streams.write().unwrap_or_else(PoisonError::into_inner);
            let forgotten = streams.remove(&id).map_or(0, |queue| inner.ended.keep(id, queue));
            inner.counts.unreported.fetch_add(forgotten, Relaxed);
        }
        inner.deferred.drain(inner);
    }

    /// After a panic outside a kernel, later operations fail unexecuted.
    fn execute(&self, inner: &Inner, ticket: Ticket, item: Item, is_broken: &mut bool, last_failed: u64) -> Result<()> {
        let Item { operation, facts, struck } = item;
        let count = self.count(&operation);
        let flips = struck.and_then(|struck| struck.flips);
        let refusal = if *is_broken {
            Some(Error::Closed { what: "stream" })
        } else {
            struck.filter(|_| flips.is_none()).map(|struck| struck.error())
        };
        let outcome = caught(|| {
            let outcome = match (refusal, &operation) {
                (None, Operation::Publish { since, .. }) if last_failed >= *since => {
                    Err(Error::Operation { what: OperationFault::Unpublished, stream: ticket.stream.get(), number: last_failed })
                }
                (None, operation) => operation.execute(inner, self.device, &facts),
                // Later operations rely on the order despite the fault.
                (Some(error), wait @ Operation::After { .. }) => wait.execute(inner, self.device, &facts).and(Err(error)),
                (Some(error), _) => Err(error),
            };
            if let (Ok(()), Some(at)) = (&outcome, flips) {
                inner.flip(&facts, at);
            }
            inner.log(&facts, Phase::Executed, Some(ticket.number), outcome.is_ok());
            outcome
        });
        if let Some(count) = count {
            count.fetch_sub(1, Relaxed);
        }
        let outcome = outcome.unwrap_or_else(|| {
            *is_broken = true;
            Err(Error::Closed { what: "stream" })
        });
        outcome.inspect_err(|error| operation.taint(inner, ticket, error))
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

    fn count(&self, operation: &Operation) -> Option<&AtomicUsize> {
        match operation {
            Operation::Launch(_) => Some(&self.launches),
            Operation::After { may_last: true, .. } => Some(&self.waits),
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
        // SYNC POINT: operation executed. Pairs with run.
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

    pub fn notify(&self, inner: &Inner, number: u64, waker: Waker) {
        self.tasks.add(number, waker);
        // By the lock, one side sees the other.
        if self.is_complete(number) {
            self.wake(inner);
        }
    }

    fn wake(&self, inner: &Inner) {
        for waker in self.tasks.over(self.done.load(Acquire)) {
            if caught(|| waker.wake()).is_none() {
                inner.counts.unreported.fetch_add(1, Relaxed);
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
