//! [`Queue`]: a stream, and which of its queued operations are complete.
//!
//! 1. Operations are numbered. An event covers all operations up to the number at which it was recorded. One is recorded after each large
//!    operation, before each operation of unbounded duration, and on demand. So a flush of small copies and an index costs one event, and a
//!    wait for a copy does not wait for a later kernel.
//! 2. A completion that was observed is cached; the driver is not queried again.
//! 3. If a call fails before anything is queued, its caller gets the error. If a later call of the same operation fails, the operation gets
//!    a number that fails, since a part of it may be executed. A context that a kernel broke completes all operations with its error.
//! 4. If the driver does not report whether an operation is complete, waiters get the driver's error and the operation stays incomplete.
//!    Its memory stays allocated until the driver answers or the process ends.

use core::mem::{self, ManuallyDrop};
use core::ptr::NonNull;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::boxed::Box;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::LocalKey;
use std::vec::Vec;

use cudarc::driver::sys::{CUstream, CUstream_st};

use super::call::Handle;
use super::device::{Bound, Device};
use super::event::Event;
use super::pieces::Piece;
use super::process;
use super::recent::{Recent, Remembered};
use super::tally::Done;
use crate::backend::counters::Counts;
use crate::backend::ended::Untold;
use crate::backend::failures::Failures;
use crate::backend::{StreamId, Ticket};
use crate::error::OperationFault;
use crate::{Error, Result};

/// Operations of at least this many bytes get an event of their own: they take 5 us or more, so a wait for earlier work should not include
/// them.
const LARGE: u64 = 64 << 10;
/// An event is recorded after at most this many small operations.
const RUN: u64 = 32;
/// The number of outstanding events at which `push` polls them.
const MANY: usize = 64;
/// The minimum of idle events on the device when a stream is opened: for a kernel, its waits and some large copies.
const EVENTS: usize = 16;
/// The number of events that a stream is opened with. One at a time is enough if each operation is waited for.
const FIRST_EVENTS: usize = 2;
/// The most idle events that a stream keeps: the number of kernels usually queued in a row.
pub(super) const OWN_EVENTS: usize = 32;

pub(super) struct Queue {
    pub(super) counts: Arc<Counts>,
    stream: Owned,
    state: Mutex<State>,
    /// All operations up to this number are complete.
    pub(super) done: AtomicU64,
    /// The number of the last launch.
    pub(super) launch: AtomicU64,
    /// The number of the last operation of unbounded duration: a kernel, or a wait for another stream.
    pub(super) lasting: AtomicU64,
    // Declared last: the events of `state` return to the device's pool, so the device must be dropped after them.
    pub device: Arc<Device>,
}

enum Owned {
    /// The device's; it returns there once the queue is closed and complete.
    Here(Handle<CUstream_st>),
    /// Adopted, with the value that keeps it alive.
    There { stream: Handle<CUstream_st>, keeps: ManuallyDrop<Box<dyn Send + Sync>> },
}

impl Drop for Owned {
    fn drop(&mut self) {
        // Its owner might call the driver even in a fork.
        if let Self::There { keeps, .. } = self
            && process::is_home()
        {
            // SAFETY: dropped only here, and not used afterwards.
            unsafe { ManuallyDrop::drop(keeps) };
        }
    }
}

#[derive(Default)]
pub(super) struct State {
    /// The last number assigned.
    pub last: u64,
    /// The events in order, each with the last number that it covers.
    pub events: VecDeque<(u64, Arc<Event>)>,
    /// Complete events that this stream reuses before it takes one from the device.
    pub idle: Vec<Arc<Event>>,
    /// The counts to add when a number completes.
    pub done: VecDeque<(u64, Done)>,
    /// The pinned pieces to return when a number completes.
    pub lent: VecDeque<(u64, Piece)>,
    pub failures: Failures,
    /// The last number that failed.
    pub failed: u64,
    /// The error that broke the context, and the last number that was complete before it.
    pub broken: Option<(u64, &'static str, u32)>,
    /// The number of consecutive queries that the driver failed to answer.
    pub troubles: u32,
    /// The call and code of the driver's error, once [`troubles`](Self::troubles) exceeds the limit.
    pub silent: Option<(&'static str, u32)>,
    /// Memory for host functions, shared by the operations of the stream, which run in order. `None` once closed.
    staging: Option<Piece>,
    is_closed: bool,
    /// The driver's stream belongs to the device again.
    is_finished: bool,
}

/// The bound on an operation's duration.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Lasts {
    /// Bounded by the time to transfer this many bytes.
    Bytes(u64),
    /// Bounded by a kernel on another stream.
    Wait,
    /// Unbounded.
    Kernel,
}

/// An operation while its driver calls are made.
pub(super) struct Making<'a> {
    queue: &'a Queue,
    number: u64,
    staging: Option<NonNull<u8>>,
    /// A pinned word that belongs to the operation until it completes.
    word: Option<Piece>,
    has_begun: bool,
}

impl Making<'_> {
    /// Makes one driver call of the operation.
    pub fn call(&mut self, call: impl FnOnce(CUstream) -> Result<()>) -> Result<()> {
        call(self.queue.handle())?;
        self.has_begun = true;
        Ok(())
    }

    /// Returns the number under which the operation fails, if a call failed after another one was made.
    pub fn failed(&self) -> Option<u64> {
        self.has_begun.then_some(self.number)
    }

    /// Returns [`STAGING`](super::device::STAGING) pinned bytes. Only the operation's calls use them, in stream order; the host accesses
    /// them only in host functions.
    pub fn staging(&self) -> Result<NonNull<u8>> {
        self.staging.ok_or(Error::Closed { what: "stream" })
    }

    /// Returns a pinned word that belongs to the operation until it completes. Each call returns the same word.
    pub fn word(&mut self) -> Result<NonNull<u64>> {
        let word = match self.word.take() {
            Some(word) => word,
            None => self.queue.device.words.take()?,
        };
        Ok(self.word.insert(word).place().cast())
    }
}

impl Queue {
    /// Creates a stream.
    pub fn open(device: &Arc<Device>, counts: &Arc<Counts>) -> Result<Self> {
        let _bound = device.bind()?;
        Self::new(device, counts, || Ok(Owned::Here(device.take_stream()?)))
    }

    /// Adopts a stream of another owner, which lives as long as `keeps`.
    pub fn adopt(device: &Arc<Device>, counts: &Arc<Counts>, stream: CUstream, keeps: Box<dyn Send + Sync>) -> Result<Self> {
        let _bound = device.bind()?;
        Self::new(device, counts, || Ok(Owned::There { stream: Handle(stream), keeps: ManuallyDrop::new(keeps) }))
    }

    /// Allocates now what later operations need, since those allocations could block behind a running kernel. The context must be bound.
    fn new(device: &Arc<Device>, counts: &Arc<Counts>, stream: impl FnOnce() -> Result<Owned>) -> Result<Self> {
        let idle = (0..FIRST_EVENTS).map(|_| device.events.take().map(Arc::new)).collect::<Result<_>>()?;
        device.events.stock(EVENTS)?;
        let state = Mutex::new(State { staging: Some(device.stagings.take()?), idle, ..State::default() });
        let [done, launch, lasting] = [const { AtomicU64::new(0) }; 3];
        let (device, counts, stream) = (Arc::clone(device), Arc::clone(counts), stream()?);
        Ok(Self { counts, stream, state, done, launch, lasting, device })
    }

    pub fn handle(&self) -> CUstream {
        match &self.stream {
            Owned::Here(stream) | Owned::There { stream, .. } => stream.0,
        }
    }

    /// Queues the operation whose calls `make` makes, and returns its number.
    pub fn push(&self, lasts: Lasts, done: Option<Done>, make: impl FnOnce(&mut Making<'_>) -> Result<()>) -> Result<u64> {
        self.push_bound(&self.device.bind()?, self.state(), None, lasts, done, make)
    }

    /// Like [`push`](Self::push), with the bound context and the locked state. If an operation has failed from the ticket `since` on, this one fails too.
    pub fn push_bound(
        &self,
        _bound: &Bound,
        mut state: MutexGuard<'_, State>,
        since: Option<Ticket>,
        lasts: Lasts,
        done: Option<Done>,
        make: impl FnOnce(&mut Making<'_>) -> Result<()>,
    ) -> Result<u64> {
        if state.is_closed {
            return Err(Error::Closed { what: "stream" });
        }
        if !matches!(lasts, Lasts::Bytes(_)) {
            // A wait for an earlier operation must not wait for this one.
            self.record(&mut state)?;
        }
        let staging = state.staging.as_ref().map(Piece::place);
        let number = state.last + 1;
        let mut making = Making { queue: self, number, staging, word: None, has_begun: false };
        let made = match since {
            Some(since) if state.failed > 0 && state.failed >= since.number => {
                making.has_begun = true;
                Err(Error::Operation { what: OperationFault::Unpublished, stream: since.stream.get(), number: state.failed })
            }
            _ => make(&mut making),
        };
        let Making { word, has_begun, .. } = making;
        if let Err(error) = made {
            if !has_begun {
                return Err(error);
            }
            state.failures.add(number, error);
            state.failed = number;
        } else if let Some(done) = done {
            state.done.push_back((number, done));
        }
        state.last = number;
        if let Some(word) = word {
            state.lent.push_back((number, word));
        }
        if lasts == Lasts::Kernel {
            self.launch.store(number, Release);
        }
        if !matches!(lasts, Lasts::Bytes(_)) {
            self.lasting.store(number, Release);
        }
        let covered = state.events.back().map_or_else(|| self.done.load(Relaxed), |(number, _)| *number);
        if matches!(lasts, Lasts::Bytes(LARGE..)) || number - covered >= RUN {
            // If recording fails, the next query records again and returns the error.
            let _ = self.record(&mut state);
        }
        if state.events.len() >= MANY {
            // If polling fails, the next query returns the error.
            let _ = self.look(&mut state);
        }
        Ok(number)
    }

    /// Returns a number that completes when all earlier ones do.
    pub fn mark(&self) -> Result<u64> {
        let mut state = self.state();
        if state.is_closed {
            return Err(Error::Closed { what: "stream" });
        }
        state.last += 1;
        let (number, before) = (state.last, state.last - 1);
        // No call was queued for it: the event that covers the earlier operations covers it too.
        match state.events.back_mut() {
            Some((covered, _)) if *covered == before => *covered = number,
            None if self.done.load(Acquire) >= before => self.done.store(number, Release),
            _ => {}
        }
        Ok(number)
    }

    /// Returns the last number assigned.
    pub fn last(&self) -> u64 {
        self.state().last
    }

    /// Rejects further operations. Waits for the queued ones, unless a launch or a wait for another stream is among them. Returns true if
    /// the queue was open.
    pub fn close(&self) -> bool {
        let last = {
            let mut state = self.state();
            if mem::replace(&mut state.is_closed, true) {
                return false;
            }
            state.last
        };
        if !self.may_last() {
            self.wait_for(last, None);
        }
        // If binding fails, the context may already be bound.
        let _bound = self.device.bind();
        let mut state = self.state();
        if let Some(staging) = state.staging.take()
            && self.done.load(Acquire) < last
        {
            state.lent.push_back((last, staging));
        }
        // If recording fails, the next query records again.
        let _ = self.cover(&mut state, last);
        true
    }

    /// Returns the driver's stream to the device, once. The queue must be closed and all its operations complete.
    pub fn finish(&self) {
        let mut state = self.state();
        state.idle.clear();
        if let (Owned::Here(stream), false) = (&self.stream, mem::replace(&mut state.is_finished, true)) {
            self.device.return_stream(*stream);
        }
    }

    pub fn is_closed(&self) -> bool {
        self.state().is_closed
    }

    /// Returns true if the queue is closed and all its operations are complete.
    pub fn is_over(&self) -> bool {
        let (is_closed, last) = {
            let state = self.state();
            (state.is_closed, state.last)
        };
        is_closed && self.reached(last)
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Remembered for Queue {
    type Key = StreamId;

    fn recent() -> &'static LocalKey<Recent<StreamId, Self>> {
        thread_local!(static RECENT: Recent<StreamId, Queue> = const { Recent::new() });
        &RECENT
    }
}

impl Untold for Queue {
    fn untold(&self) -> u64 {
        self.state().failures.untold()
    }
}
