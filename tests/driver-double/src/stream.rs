//! [`Stream`]: a thread that executes what is queued, in order, and [`Ticket`], a place in its queue.

use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use crate::code::{Answer, Code};
use crate::driver::Driver;
use crate::operation::Operation;

pub struct Stream {
    /// Whether the legacy stream and it wait for each other.
    pub blocking: bool,
    queue: Mutex<Queue>,
    progress: Arc<Progress>,
}

struct Queue {
    /// None once it is destroyed; what is queued is executed all the same.
    sender: Option<Sender<Work>>,
    queued: u64,
}

struct Work {
    operation: Operation,
    /// What it waits for besides its own stream.
    after: Vec<Ticket>,
}

/// How much of its queue a stream has executed.
#[derive(Default)]
struct Progress {
    executed: Mutex<u64>,
    changed: Condvar,
}

/// An operation of a stream.
#[derive(Clone)]
pub struct Ticket {
    progress: Arc<Progress>,
    number: u64,
}

impl Stream {
    pub fn new(blocking: bool) -> Answer<Self> {
        let progress = Arc::new(Progress::default());
        let (sender, receiver) = mpsc::channel::<Work>();
        let executor = {
            let progress = Arc::clone(&progress);
            move || {
                for Work { operation, after } in receiver {
                    after.iter().for_each(Ticket::wait);
                    operation.execute(Driver::the());
                    *progress.executed.lock().unwrap_or_else(PoisonError::into_inner) += 1;
                    progress.changed.notify_all();
                }
            }
        };
        thread::Builder::new().name("double-stream".into()).spawn(executor).map_err(|_| Code::OPERATING_SYSTEM)?;
        Ok(Self { blocking, queue: Mutex::new(Queue { sender: Some(sender), queued: 0 }), progress })
    }

    /// Queues an operation. Only under the engine's order, which keeps tickets from waiting for each other in a circle.
    pub fn queue(&self, operation: Operation, after: Vec<Ticket>) -> Answer<Ticket> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let sender = queue.sender.as_ref().ok_or(Code::INVALID_HANDLE)?;
        sender.send(Work { operation, after }).map_err(|_| Code::UNKNOWN)?;
        queue.queued += 1;
        Ok(Ticket { progress: Arc::clone(&self.progress), number: queue.queued })
    }

    /// The end of the queue as it is now.
    pub fn last(&self) -> Ticket {
        let number = self.queue.lock().unwrap_or_else(PoisonError::into_inner).queued;
        Ticket { progress: Arc::clone(&self.progress), number }
    }

    /// Takes nothing any more.
    pub fn close(&self) {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).sender = None;
    }

    /// Whether it is closed and has nothing left.
    pub fn is_over(&self) -> bool {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).sender.is_none() && self.last().is_done()
    }
}

impl Ticket {
    pub fn is_done(&self) -> bool {
        *self.progress.executed.lock().unwrap_or_else(PoisonError::into_inner) >= self.number
    }

    fn wait(&self) {
        let executed = self.progress.executed.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.progress.changed.wait_while(executed, |executed| *executed < self.number));
    }

    /// Whether it is done by then.
    pub fn wait_until(&self, then: Instant) -> bool {
        let executed = self.progress.executed.lock().unwrap_or_else(PoisonError::into_inner);
        let left = then.saturating_duration_since(Instant::now());
        let waited = self.progress.changed.wait_timeout_while(executed, left, |executed| *executed < self.number);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }
}
