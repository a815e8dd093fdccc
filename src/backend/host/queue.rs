//! A stream: a thread that executes what is queued, in order.

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
use super::log::{Facts, Phase};
use super::operation::Operation;
use super::shared::Shared;
use super::tasks::Tasks;
use crate::backend::ended::Untold;
use crate::backend::failures::Failures;
use crate::backend::panic::caught;
use crate::backend::{StreamId, Ticket};
use crate::error::OperationFault;
use crate::{Error, Result};

/// An operation on its way, and the call that queued it.
pub(super) struct Item {
    pub operation: Operation,
    pub facts: Facts,
    /// It is not executed, but fails.
    pub struck: Option<Struck>,
}

/// A number and what has it; a mark has nothing, and is reached with what is before it.
type Numbered = (u64, Option<Item>);

/// When numbers were executed, in ns of the clock.
type Records = HashMap<u64, Arc<OnceLock<u64>>>;

thread_local! {
    /// Whether this thread is a stream's. One that waited for another to end would keep it from ending if that one waited for it.
    static IS_STREAM: Cell<bool> = const { Cell::new(false) };
}

/// One stream, as its users see it.
pub(super) struct Queue {
    /// Whose it is: an ordinal.
    pub device: u32,
    /// The sender and the last number that was given away; `None` once closed.
    sender: Mutex<(Option<Sender<Numbered>>, u64)>,
    /// The last operation that was executed.
    done: AtomicU64,
    /// How many launches are queued or running.
    launches: AtomicUsize,
    /// How many waits for a stream that may last are queued or running.
    waits: AtomicUsize,
    failures: Mutex<Failures>,
    /// Of the recorded numbers that nobody has forgotten.
    records: Mutex<Records>,
    tasks: Tasks,
    changed: Condvar,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Queue {
    /// A running stream, listed in `shared` until it has executed its last operation.
    pub fn open(shared: &Arc<Shared>, device: u32) -> Result<StreamId> {
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
        // Held until the handle is stored, so that nobody closes a stream without one.
        let mut thread = queue.thread.lock().unwrap_or_else(PoisonError::into_inner);
        *thread = Some(
            thread::Builder::new()
                .name(name)
                .spawn({
                    let (shared, queue) = (Arc::clone(shared), Arc::clone(&queue));
                    move || queue.run(&shared, id, &operations)
                })
                .map_err(|source| Error::System { call: "start of a thread", path: None, answer: source })?,
        );
        drop(thread);
        shared.streams.write().unwrap_or_else(PoisonError::into_inner).insert(id, queue);
        shared.counts.streams.fetch_add(1, Relaxed);
        Ok(id)
    }

    fn run(&self, shared: &Shared, id: StreamId, operations: &Receiver<Numbered>) {
        IS_STREAM.set(true);
        let mut is_broken = false;
        let mut last_failed = 0;
        let mut next = operations.recv().ok();
        while let Some((mut number, item)) = next {
            let outcome =
                item.map_or(Ok(()), |item| self.execute(shared, Ticket { stream: id, number }, item, &mut is_broken, last_failed));
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
                // SYNC POINT: operation executed. Pairs with reached. Under the lock, so that no waiter and no mark misses it.
                self.done.store(number, Release);
                self.changed.notify_all();
                next.ok()
            };
            self.wake(shared);
            shared.deferred.drain(shared);
            next = next.or_else(|| operations.recv().ok());
        }
        {
            // Under the lock, so that nobody who has something to be told finds it neither here nor there.
            let mut streams = shared.streams.write().unwrap_or_else(PoisonError::into_inner);
            let forgotten = streams.remove(&id).map_or(0, |queue| shared.ended.keep(id, queue));
            shared.counts.unreported.fetch_add(forgotten, Relaxed);
        }
        // What waited for this stream alone is over now, if it was not before.
        shared.deferred.drain(shared);
    }

    /// Executes an operation and writes it down. After a panic of what is not a kernel, a clock for one, nothing is executed any more, but fails:
    /// whoever waits for it is told.
    fn execute(&self, shared: &Shared, ticket: Ticket, item: Item, is_broken: &mut bool, last_failed: u64) -> Result<()> {
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
                (None, operation) => operation.execute(shared, self.device, &facts),
                // What comes after it relies on the order, whatever is said of the wait.
                (Some(error), wait @ Operation::After { .. }) => wait.execute(shared, self.device, &facts).and(Err(error)),
                (Some(error), _) => Err(error),
            };
            if let (Ok(()), Some(at)) = (&outcome, flips) {
                shared.flip(&facts, at);
            }
            shared.log(&facts, Phase::Executed, Some(ticket.number), outcome.is_ok());
            outcome
        });
        if let Some(count) = count {
            count.fetch_sub(1, Relaxed);
        }
        let outcome = outcome.unwrap_or_else(|| {
            *is_broken = true;
            Err(Error::Closed { what: "stream" })
        });
        outcome.inspect_err(|error| operation.taint(shared, ticket, error))
    }

    /// Queues an operation; its number, which `announce` is told before anything is executed.
    pub fn push(&self, item: Item, announce: impl FnOnce(u64)) -> Result<u64> {
        let mut sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner);
        let (Some(open), number) = (&sender.0, sender.1 + 1) else { return Err(Error::Closed { what: "stream" }) };
        // What it calls may panic: nothing has been counted yet.
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

    /// A number of its own that is reached with everything before it, which `announce` is told: nobody else's failure has it.
    pub fn mark(&self, announce: impl FnOnce(u64)) -> Result<u64> {
        let mut sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner);
        let (Some(open), number) = (&sender.0, sender.1 + 1) else { return Err(Error::Closed { what: "stream" }) };
        announce(number);
        {
            // The stream does not get further meanwhile, so it either is through or finds the mark behind what it executes: whoever has waited for
            // that finds the mark reached too.
            let _failures = self.failures();
            if self.reached(sender.1) {
                self.done.store(number, Release);
                self.changed.notify_all();
            } else {
                open.send((number, None)).map_err(|_| Error::Closed { what: "stream" })?;
            }
        }
        sender.1 = number;
        Ok(number)
    }

    /// Where an operation is counted that may last as long as a kernel does.
    fn count(&self, operation: &Operation) -> Option<&AtomicUsize> {
        match operation {
            Operation::Launch(_) => Some(&self.launches),
            Operation::After { may_last: true, .. } => Some(&self.waits),
            _ => None,
        }
    }

    /// Whether a kernel is queued or running.
    pub fn has_kernels(&self) -> bool {
        self.launches.load(Relaxed) > 0
    }

    /// Whether it ends when a kernel does, its own or another stream's.
    pub fn may_last(&self) -> bool {
        self.has_kernels() || self.waits.load(Relaxed) > 0
    }

    /// The last number that was given away.
    fn last(&self) -> u64 {
        self.sender.lock().unwrap_or_else(PoisonError::into_inner).1
    }

    pub fn reached(&self, number: u64) -> bool {
        // SYNC POINT: operation executed. Pairs with run.
        self.done.load(Acquire) >= number
    }

    /// When a number was executed, if it has been; `None` for one that is not recorded.
    pub fn recorded(&self, number: u64) -> Option<Option<u64>> {
        self.records().get(&number).map(|at| at.get().copied())
    }

    pub fn forget(&self, number: u64) {
        self.records().remove(&number);
    }

    /// Waits until an operation was executed, not longer than `timeout`: whether it was. Its own failure is told once; by a recorded number, also those
    /// before.
    pub fn wait(&self, number: u64, timeout: Option<Duration>) -> Result<bool> {
        let Some(mut failures) = self.wait_locked(number, timeout) else { return Ok(false) };
        // Most often nothing has failed, and nobody need know whether it is recorded.
        let first = if failures.untold() == 0 || self.recorded(number).is_none() { number } else { 0 };
        failures.tell(first..=number).map(|()| true)
    }

    /// Whether an operation that was executed has failed, whoever was told.
    pub fn has_failed(&self, number: u64) -> bool {
        self.failures().have(number)
    }

    /// Waits until everything was executed that is queued now. The first failure of that is told, the others have been; those of what was queued
    /// later stay.
    pub fn synchronize(&self) -> Result<()> {
        let last = self.last();
        let Some(mut failures) = self.wait_locked(last, None) else { return Ok(()) };
        failures.tell(0..=last)
    }

    /// Wakes a task when a number is reached.
    pub fn notify(&self, shared: &Shared, number: u64, waker: Waker) {
        self.tasks.add(number, waker);
        // It may have been reached meanwhile, and the stream have found nobody: under the tasks' lock one of the two has seen the other.
        if self.reached(number) {
            self.wake(shared);
        }
    }

    /// Wakes those whose number was reached. A panic of a waker is nobody's here: it is counted.
    fn wake(&self, shared: &Shared) {
        for waker in self.tasks.over(self.done.load(Acquire)) {
            if caught(|| waker.wake()).is_none() {
                shared.counts.unreported.fetch_add(1, Relaxed);
            }
        }
    }

    /// Waits until an operation was executed, and takes no notice of how it ended.
    pub fn wait_for(&self, number: u64) {
        drop(self.wait_locked(number, None));
    }

    fn wait_locked(&self, number: u64, timeout: Option<Duration>) -> Option<MutexGuard<'_, Failures>> {
        // A short operation is over before a sleeper would be woken.
        for _ in 0..if timeout == Some(Duration::ZERO) { 0 } else { 200 } {
            if self.reached(number) {
                break;
            }
            core::hint::spin_loop();
        }
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut failures = self.failures();
        while !self.reached(number) {
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

    /// Takes no more operations. Waits for those it has, unless a launch or a wait for another stream's is among them. A stream's thread never waits.
    pub fn close(&self) {
        drop(self.sender.lock().unwrap_or_else(PoisonError::into_inner).0.take());
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        // Nobody queues another.
        if let Some(thread) = thread
            && !self.may_last()
            && !IS_STREAM.get()
        {
            // A thread that panicked has executed nothing more.
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

impl Untold for Queue {
    fn untold(&self) -> u64 {
        self.failures().untold()
    }
}
