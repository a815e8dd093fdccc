//! [`Queue`]: a stream, and which of what was queued on it is over.
//!
//! 1. Operations have numbers. An event covers all up to the number at which it was recorded: one after each large operation and before each that
//!    may last, and where somebody asks, one for all that is queued. So a flush of small copies and an index costs one event, and nobody who waits
//!    for a copy waits for a kernel behind it.
//! 2. What was seen to be over once is asked of nobody again.
//! 3. A call that failed before anything was queued is its caller's error. One of several that make up an operation leaves a number that fails, since a
//!    part of it may be executed. A context that a kernel broke has ended all: whoever waits is told.
//! 4. Where the driver does not say what is over, whoever waits is told what it says instead, and nothing is over: its memory stays where it is until the
//!    driver says more, or the process ends.

use core::mem::{self, ManuallyDrop};
use core::ptr::NonNull;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::LocalKey;
use std::vec::Vec;

use cudarc::driver::CudaStream;
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

/// From so many bytes on an operation has an event of its own: what takes 5 us and more is worth not being waited for by mistake.
const LARGE: u64 = 64 << 10;
/// So many small operations have one at least.
const RUN: u64 = 32;
/// So many events wait before somebody looks which are over.
const MANY: usize = 64;
/// Events that a stream which is opened finds idle at least: a kernel's, its waits', and some large copies'.
const EVENTS: usize = 16;
/// Events that a stream is opened with: it needs one at a time where each operation is waited for.
const FIRST_EVENTS: usize = 2;
/// Events that a stream keeps to itself at most: as many as kernels are queued in a row.
pub(super) const OWN_EVENTS: usize = 32;

pub(super) struct Queue {
    pub(super) counts: Arc<Counts>,
    stream: Owned,
    state: Mutex<State>,
    /// All up to this number are over.
    pub(super) done: AtomicU64,
    /// The last launch.
    pub(super) launch: AtomicU64,
    /// The last operation that ends when a kernel does, its own stream's or another's.
    pub(super) lasting: AtomicU64,
    // Last: its events go back to the device before that goes.
    pub device: Arc<Device>,
}

enum Owned {
    /// Destroyed when the queue is closed.
    Here(Handle<CUstream_st>),
    /// cudarc's.
    There(ManuallyDrop<Arc<CudaStream>>),
}

impl Drop for Owned {
    fn drop(&mut self) {
        // cudarc would call the driver in a fork, too.
        if let Self::There(stream) = self
            && process::is_home()
        {
            // SAFETY: dropped here alone, and used no more.
            unsafe { ManuallyDrop::drop(stream) };
        }
    }
}

#[derive(Default)]
pub(super) struct State {
    /// The last number that was given away.
    pub last: u64,
    /// Numbers and the events that cover all up to them, in order.
    pub events: VecDeque<(u64, Arc<Event>)>,
    /// Those that were reached: this stream's before they are the device's again.
    pub idle: Vec<Arc<Event>>,
    /// What is counted when a number is over.
    pub done: VecDeque<(u64, Done)>,
    /// What goes back when a number is over.
    pub lent: VecDeque<(u64, Piece)>,
    pub failures: Failures,
    /// The last number that failed.
    pub failed: u64,
    /// What the context broke with, and the last number that was over before.
    pub broken: Option<(u64, &'static str, u32)>,
    /// How often in a row the driver did not say whether something is over.
    pub troubles: u32,
    /// What it says instead, where that was too often: call and code.
    pub silent: Option<(&'static str, u32)>,
    /// For host functions: operations of one stream use it one after another. Until it is closed.
    staging: Option<Piece>,
    is_closed: bool,
    /// The driver's stream has gone.
    pub is_destroyed: bool,
}

/// How long an operation may take.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Lasts {
    /// As long as so many bytes do.
    Bytes(u64),
    /// As long as a kernel that others have queued.
    Wait,
    /// As long as it likes.
    Kernel,
}

/// An operation while its calls are made.
pub(super) struct Making<'a> {
    queue: &'a Queue,
    number: u64,
    staging: Option<NonNull<u8>>,
    /// A word, until it is over.
    word: Option<Piece>,
    has_begun: bool,
}

impl Making<'_> {
    /// One call of it.
    pub fn call(&mut self, call: impl FnOnce(CUstream) -> Result<()>) -> Result<()> {
        call(self.queue.handle())?;
        self.has_begun = true;
        Ok(())
    }

    /// Returns the number under which the operation fails, if a call failed after another one was made.
    pub fn failed(&self) -> Option<u64> {
        self.has_begun.then_some(self.number)
    }

    /// [`STAGING`](super::device::STAGING) pinned bytes, which its calls alone use where they come in the stream's order, and the host only in host functions.
    pub fn staging(&self) -> Result<NonNull<u8>> {
        self.staging.ok_or(Error::Closed { what: "stream" })
    }

    /// A pinned word that is its own until it is over: always the same.
    pub fn word(&mut self) -> Result<NonNull<u64>> {
        let word = match self.word.take() {
            Some(word) => word,
            None => self.queue.device.words.take()?,
        };
        Ok(self.word.insert(word).place().cast())
    }
}

impl Queue {
    /// A stream of its own.
    pub fn open(device: &Arc<Device>, counts: &Arc<Counts>) -> Result<Self> {
        let _bound = device.bind()?;
        Self::new(device, counts, || Ok(Owned::Here(device.stream()?)))
    }

    /// cudarc's stream.
    pub fn adopt(device: &Arc<Device>, counts: &Arc<Counts>, stream: Arc<CudaStream>) -> Result<Self> {
        let _bound = device.bind()?;
        Self::new(device, counts, || Ok(Owned::There(ManuallyDrop::new(stream))))
    }

    /// With what its operations will need: what a running kernel would hold up is done now. The context is bound.
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
            Owned::Here(stream) => stream.0,
            Owned::There(stream) => stream.cu_stream(),
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
            // Who waits for what is before it does not wait for it.
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
            // One that fails is met again by who asks.
            let _ = self.record(&mut state);
        }
        if state.events.len() >= MANY {
            // What fails is met again, too.
            let _ = self.look(&mut state);
        }
        Ok(number)
    }

    /// A number that is over when all before it is.
    pub fn mark(&self) -> Result<u64> {
        let mut state = self.state();
        if state.is_closed {
            return Err(Error::Closed { what: "stream" });
        }
        state.last += 1;
        let (number, before) = (state.last, state.last - 1);
        // Nothing was queued for it: the event that covers what is before it covers it.
        match state.events.back_mut() {
            Some((covered, _)) if *covered == before => *covered = number,
            None if self.done.load(Acquire) >= before => self.done.store(number, Release),
            _ => {}
        }
        Ok(number)
    }

    /// The last number that was given away.
    pub fn last(&self) -> u64 {
        self.state().last
    }

    /// Takes no more operations. Waits for those it has, unless a launch or a wait for another stream's is among them.
    /// Whether it was open.
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
        // Where it cannot be bound it may be so already.
        let _bound = self.device.bind();
        let mut state = self.state();
        if let Some(staging) = state.staging.take()
            && self.done.load(Acquire) < last
        {
            state.lent.push_back((last, staging));
        }
        // Without an event for its end the stream must stay, to be asked.
        if self.cover(&mut state, last).is_ok() {
            self.destroy(&mut state);
        }
        true
    }

    /// Gives the driver's stream back, if that has not been done. The context is bound.
    fn destroy(&self, state: &mut State) {
        if let (Owned::Here(stream), false) = (&self.stream, mem::replace(&mut state.is_destroyed, true)) {
            // SAFETY: ours, and nobody queues anything any more. The driver executes what is queued.
            let _ = unsafe { self.device.calls.cuStreamDestroy_v2(stream.0) };
        }
    }

    /// After all of it is over: what could not be given back when it was closed.
    pub fn finish(&self) {
        let mut state = self.state();
        state.idle.clear();
        if !state.is_destroyed {
            // Where it cannot be bound it may be so already.
            let _bound = self.device.bind();
            self.destroy(&mut state);
        }
    }

    pub fn is_closed(&self) -> bool {
        self.state().is_closed
    }

    /// Whether it is closed and all of it is over.
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
