//! A stream: a thread that executes what is queued, in order.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU64, AtomicUsize};
use core::time::Duration;
use std::format;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Instant;
use std::vec::Vec;

use super::faults::Struck;
use super::log::{Facts, Phase};
use super::operation::Operation;
use super::shared::Shared;
use crate::backend::StreamId;
use crate::{Error, Result};

/// An operation on its way, and the call that queued it.
pub(super) struct Item {
    pub operation: Operation,
    pub facts: Facts,
    /// It is not executed, but fails.
    pub struck: Option<Struck>,
}

/// One stream, as its users see it.
pub(super) struct Queue {
    /// Whose it is: an ordinal.
    pub device: u32,
    /// The sender and the number of the last operation that it sent; `None` once closed.
    sender: Mutex<(Option<Sender<Item>>, u64)>,
    /// The last operation that was executed.
    done: AtomicU64,
    /// How many launches are queued or running.
    launches: AtomicUsize,
    /// Operations that failed, in order, whom nobody was told of.
    failures: Mutex<Vec<(u64, Error)>>,
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
            failures: Mutex::default(),
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
                .map_err(|source| Error::Thread { source })?,
        );
        drop(thread);
        shared.streams.write().unwrap_or_else(PoisonError::into_inner).insert(id, queue);
        shared.counts.streams.fetch_add(1, Relaxed);
        Ok(id)
    }

    fn run(&self, shared: &Shared, id: StreamId, operations: &Receiver<Item>) {
        for (number, Item { operation, facts, struck }) in (1..).zip(operations) {
            let is_launch = matches!(operation, Operation::Launch(_));
            let outcome = match (struck, operation) {
                (None, operation) => operation.execute(shared, self.device, &facts),
                // What comes after it relies on the order, whatever is said of the wait.
                (Some(struck), wait @ Operation::After(..)) => wait.execute(shared, self.device, &facts).and(Err(struck.error())),
                (Some(struck), _) => Err(struck.error()),
            };
            if is_launch {
                self.launches.fetch_sub(1, Relaxed);
            }
            shared.log(&facts, Phase::Executed, Some(number), outcome.is_ok());
            {
                let mut failures = self.failures();
                if let Err(error) = outcome {
                    failures.push((number, error));
                }
                // SYNC POINT: operation executed. Pairs with reached. Under the lock, so that no waiter misses it.
                self.done.store(number, Release);
                self.changed.notify_all();
            }
            shared.limbo.drain(shared);
        }
        shared.streams.write().unwrap_or_else(PoisonError::into_inner).remove(&id);
        // What waited for this stream alone is over now, if it was not before.
        shared.limbo.drain(shared);
        // Errors that nobody has asked for.
        shared.counts.unreported.fetch_add(self.failures().len() as u64, Relaxed);
    }

    /// Queues an operation; its number, which `announce` is told before anything is executed.
    pub fn push(&self, item: Item, announce: impl FnOnce(u64)) -> Result<u64> {
        let mut sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner);
        let (Some(open), last) = (&sender.0, sender.1 + 1) else { return Err(Error::StreamClosed) };
        if matches!(item.operation, Operation::Launch(_)) {
            self.launches.fetch_add(1, Relaxed);
        }
        announce(last);
        open.send(item).map_err(|_| Error::StreamClosed)?;
        sender.1 = last;
        Ok(last)
    }

    /// Whether a kernel is queued or running.
    pub fn has_kernels(&self) -> bool {
        self.launches.load(Relaxed) > 0
    }

    /// The number of the last operation that was queued.
    pub fn last(&self) -> u64 {
        self.sender.lock().unwrap_or_else(PoisonError::into_inner).1
    }

    pub fn reached(&self, number: u64) -> bool {
        // SYNC POINT: operation executed. Pairs with run.
        self.done.load(Acquire) >= number
    }

    /// Waits until an operation was executed, not longer than `timeout`: whether it was. Its own failure is told once.
    pub fn wait(&self, number: u64, timeout: Option<Duration>) -> Result<bool> {
        let Some(mut failures) = self.wait_locked(number, timeout) else { return Ok(false) };
        match failures.iter().position(|&(failed, _)| failed == number) {
            Some(index) => Err(failures.remove(index).1),
            None => Ok(true),
        }
    }

    /// Waits until everything was executed that is queued now. The first failure is told, the others have been.
    pub fn synchronize(&self) -> Result<()> {
        let Some(mut failures) = self.wait_locked(self.last(), None) else { return Ok(()) };
        match failures.drain(..).next() {
            Some((_, error)) => Err(error),
            None => Ok(()),
        }
    }

    /// Waits until an operation was executed, and takes no notice of how it ended.
    pub fn wait_for(&self, number: u64) {
        drop(self.wait_locked(number, None));
    }

    fn wait_locked(&self, number: u64, timeout: Option<Duration>) -> Option<MutexGuard<'_, Vec<(u64, Error)>>> {
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

    /// Takes no more operations. Waits for those it has, unless a launch is among them.
    pub fn close(&self) {
        drop(self.sender.lock().unwrap_or_else(PoisonError::into_inner).0.take());
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        // Nobody queues another.
        if let Some(thread) = thread
            && !self.has_kernels()
            && thread.thread().id() != thread::current().id()
        {
            // A thread that panicked has executed nothing more.
            let _ = thread.join();
        }
    }

    fn failures(&self) -> MutexGuard<'_, Vec<(u64, Error)>> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
