//! A thread that executes queued work in order; [`Ticket`]: a position in its queue.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::code::{Answer, Code};
use crate::driver::Driver;
use crate::operation::Operation;

pub struct Stream {
    pub blocking: bool,
    pub device: u32,
    pub id: u64,
    delay: Duration,
    queue: Mutex<Queue>,
    progress: Arc<Progress>,
}

struct Queue {
    sender: Option<Sender<Work>>,
    receiver: Option<Receiver<Work>>,
    queued: u64,
    past: Arc<[Point]>,
    waits_for_words: bool,
}

struct Work {
    operation: Operation,
    ticket: Ticket,
    after: Vec<Ticket>,
}

struct Progress {
    stream: u64,
    executed: AtomicU64,
    waiting: Mutex<usize>,
    changed: Condvar,
    observed: AtomicU64,
}

#[derive(Clone)]
pub struct Point {
    progress: Arc<Progress>,
    number: u64,
}

#[derive(Clone)]
pub struct Ticket {
    pub at: Point,
    past: Arc<[Point]>,
    /// The word's writer is unknown, so it may be ordered after anything.
    waits_for_words: bool,
}

impl Stream {
    pub fn new(device: u32, id: u64, blocking: bool, delay: Duration) -> Self {
        let (executed, observed) = (AtomicU64::new(0), AtomicU64::new(0));
        let progress = Arc::new(Progress { stream: id, executed, waiting: Mutex::new(0), changed: Condvar::new(), observed });
        let (sender, receiver) = mpsc::channel();
        let queue = Queue { sender: Some(sender), receiver: Some(receiver), queued: 0, past: Arc::new([]), waits_for_words: false };
        Self { blocking, device, id, delay, queue: Mutex::new(queue), progress }
    }

    fn start(&self, receiver: Receiver<Work>) -> Answer {
        let (progress, device, delay) = (Arc::clone(&self.progress), self.device, self.delay);
        let executor = move || {
            for Work { operation, ticket, after } in receiver {
                after.iter().for_each(Ticket::wait);
                if !delay.is_zero() {
                    thread::sleep(delay);
                }
                if operation.tells_host() {
                    // First: the host may act on the completion.
                    ticket.observe();
                }
                operation.execute(Driver::the(), device, &ticket);
                progress.step();
            }
        };
        thread::Builder::new().name("double-stream".into()).spawn(executor).map(drop).map_err(|_| Code::OPERATING_SYSTEM)
    }

    pub fn next(&self, after: &[Ticket], waits: bool) -> Answer<Ticket> {
        let mut queue = self.state();
        if queue.sender.is_none() {
            return Err(Code::INVALID_HANDLE);
        }
        queue.waits_for_words |= waits || after.iter().any(|ticket| ticket.waits_for_words);
        let mut next = queue.ticket(&self.progress, queue.queued + 1);
        for ticket in after {
            for point in ticket.past.iter().chain([&ticket.at]) {
                next.learn(point);
            }
        }
        queue.past = Arc::clone(&next.past);
        Ok(next)
    }

    /// Requires the engine's lock: tickets must not wait in a cycle.
    pub fn queue(&self, operation: Operation, ticket: &Ticket, after: Vec<Ticket>) -> Answer {
        let mut queue = self.state();
        if let Some(receiver) = queue.receiver.take() {
            self.start(receiver)?;
        }
        let sender = queue.sender.as_ref().ok_or(Code::INVALID_HANDLE)?;
        sender.send(Work { operation, ticket: ticket.clone(), after }).map_err(|_| Code::UNKNOWN)?;
        queue.queued = ticket.at.number;
        Ok(())
    }

    pub fn last(&self) -> Ticket {
        let queue = self.state();
        queue.ticket(&self.progress, queue.queued)
    }

    pub fn query(&self) -> bool {
        let queue = self.state();
        let is_done = self.progress.executed.load(Acquire) >= queue.queued;
        if is_done && self.progress.observed.load(Acquire) < queue.queued {
            self.progress.observed.fetch_max(queue.queued, AcqRel);
            queue.past.iter().for_each(Point::observe);
        }
        is_done
    }

    pub fn close(&self) {
        self.state().sender = None;
    }

    pub fn is_over(&self) -> bool {
        let is_closed = self.state().sender.is_none();
        is_closed && self.last().at.is_done()
    }

    fn state(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    fn ticket(&self, progress: &Arc<Progress>, number: u64) -> Ticket {
        let at = Point { progress: Arc::clone(progress), number };
        Ticket { at, past: Arc::clone(&self.past), waits_for_words: self.waits_for_words }
    }
}

impl Progress {
    fn step(&self) {
        let waiting = self.waiting();
        self.executed.fetch_add(1, Release);
        if *waiting > 0 {
            self.changed.notify_all();
        }
    }

    fn waiting(&self) -> MutexGuard<'_, usize> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Point {
    pub fn is_done(&self) -> bool {
        self.progress.executed.load(Acquire) >= self.number
    }

    pub fn stream(&self) -> u64 {
        self.progress.stream
    }

    pub fn is_of(&self, stream: &Self) -> bool {
        Arc::ptr_eq(&self.progress, &stream.progress)
    }

    fn observe(&self) {
        self.progress.observed.fetch_max(self.number, AcqRel);
    }

    pub fn is_observed(&self) -> bool {
        self.progress.observed.load(Acquire) >= self.number
    }
}

impl Ticket {
    pub fn follows(&self, point: &Point) -> bool {
        let covers = |known: &Point| known.is_of(point) && known.number >= point.number;
        self.waits_for_words || covers(&self.at) || point.is_observed() || self.past.iter().any(covers)
    }

    fn learn(&mut self, point: &Point) {
        if !self.follows(point) {
            let others = self.past.iter().filter(|known| !known.is_of(point) && !known.is_observed());
            self.past = others.chain([point]).cloned().collect();
        }
    }

    pub fn observe(&self) {
        if !self.at.is_observed() {
            self.past.iter().chain([&self.at]).for_each(Point::observe);
        }
    }

    fn wait(&self) {
        if self.at.is_done() {
            return;
        }
        let mut waiting = self.at.progress.waiting();
        *waiting += 1;
        while !self.at.is_done() {
            waiting = self.at.progress.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
        *waiting -= 1;
    }

    pub fn wait_until(&self, then: Instant) -> bool {
        let mut waiting = self.at.progress.waiting();
        *waiting += 1;
        while !self.at.is_done() {
            let left = then.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            waiting = self.at.progress.changed.wait_timeout(waiting, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        *waiting -= 1;
        drop(waiting);
        self.query()
    }

    pub fn query(&self) -> bool {
        let is_done = self.at.is_done();
        if is_done {
            self.observe();
        }
        is_done
    }
}
