//! [`Queue`]: a stream, and which of its operations are complete.
//!
//! 1. An event covers all operations up to its number; one is recorded after each large operation, [`RUN`] small ones or another library's
//!    kernel, before each of unbounded duration, and on demand.
//! 2. A call that fails first fails for its caller. After a later failure the operation, perhaps executed in part, has a failing number. A
//!    broken context completes everything with its error.
//! 3. While the driver does not answer, waiters get its error and the operation stays incomplete.

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
use super::functions::Functions;
use super::pieces::Piece;
use super::process;
use super::recent::{Recent, Remembered};
use super::staged::Stager;
use super::tally::Done;
use crate::backend::counters::Counts;
use crate::backend::ended::Untold;
use crate::backend::failures::Failures;
use crate::backend::{StreamId, Ticket};
use crate::error::OperationFault;
use crate::{Error, Result};

/// An operation of this size takes 5 us or more and gets its own event: earlier waits should not include it.
const LARGE: u64 = 64 << 10;
const RUN: u64 = 32;
/// Outstanding events at which `push` polls.
const MANY: usize = 64;
/// For a kernel, its waits and some large copies.
const EVENTS: usize = 16;
/// Enough if each operation is waited for.
const FIRST_EVENTS: usize = 2;
/// The kernels usually queued in a row.
pub(super) const OWN_EVENTS: usize = 32;

pub(super) struct Queue {
    pub(super) counts: Arc<Counts>,
    stream: Owned,
    state: Mutex<State>,
    pub(super) done: AtomicU64,
    pub(super) launch: AtomicU64,
    /// Last kernel, or wait for another stream.
    pub(super) lasting: AtomicU64,
    // Last: the events of `state` return to the device.
    pub device: Arc<Device>,
}

enum Owned {
    /// Returns to the device once the queue is over.
    Here(Handle<CUstream_st>),
    /// Adopted.
    There { stream: Handle<CUstream_st>, keeps: ManuallyDrop<Box<dyn Send + Sync>> },
}

impl Drop for Owned {
    fn drop(&mut self) {
        // Even in a fork, its owner might call the driver.
        if let Self::There { keeps, .. } = self
            && process::is_home()
        {
            // SAFETY: dropped only here.
            unsafe { ManuallyDrop::drop(keeps) };
        }
    }
}

/// Of one operation; returned at completion.
#[derive(Default)]
pub(super) struct Lent {
    piece: Option<Piece>,
    stager: Option<Arc<Stager>>,
    pub functions: Option<Arc<Functions>>,
}

#[derive(Default)]
pub(super) struct State {
    pub last: u64,
    pub events: VecDeque<(u64, Arc<Event>)>,
    pub idle: Vec<Arc<Event>>,
    pub done: VecDeque<(u64, Done)>,
    pub lent: VecDeque<(u64, Lent)>,
    pub failures: Failures,
    pub failed: u64,
    /// Error that broke the context, and the last complete number.
    pub broken: Option<(u64, &'static str, u32)>,
    pub troubles: u32,
    /// Driver's error, after too many [`troubles`](Self::troubles).
    pub silent: Option<(&'static str, u32)>,
    /// For host functions, which run in order; `None` once closed.
    staging: Option<Piece>,
    pub is_closed: bool,
    is_finished: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Lasts {
    Bytes(u64),
    /// Bounded by another stream's kernel.
    Wait,
    Kernel,
}

pub(super) struct Making<'a> {
    queue: &'a Queue,
    number: u64,
    staging: Option<NonNull<u8>>,
    lent: Lent,
    has_begun: bool,
}

impl Making<'_> {
    pub fn call(&mut self, call: impl FnOnce(CUstream) -> Result<()>) -> Result<()> {
        call(self.queue.handle())?;
        self.has_begun = true;
        Ok(())
    }

    /// Returns the number that fails, if a call failed after another.
    pub fn failed(&self) -> Option<u64> {
        self.has_begun.then_some(self.number)
    }

    /// Pinned bytes of the operation, in stream order; the host uses them only in host functions.
    pub fn staging(&self) -> Result<NonNull<u8>> {
        self.staging.ok_or(Error::Closed { what: "stream" })
    }

    pub fn stager(&mut self) -> Option<Arc<Stager>> {
        self.lent.stager = self.queue.device.idle_stager();
        self.lent.stager.clone()
    }

    pub fn functions(&mut self) -> &Arc<Functions> {
        self.lent.functions.get_or_insert_default()
    }

    /// The same word at each call, until the operation completes.
    pub fn word(&mut self) -> Result<NonNull<u64>> {
        let word = match self.lent.piece.take() {
            Some(word) => word,
            None => self.queue.device.words.take()?,
        };
        Ok(self.lent.piece.insert(word).place().cast())
    }
}

impl Queue {
    pub fn open(device: &Arc<Device>, counts: &Arc<Counts>) -> Result<Self> {
        let _bound = device.bind()?;
        Self::new(device, counts, || Ok(Owned::Here(device.take_stream()?)))
    }

    pub fn adopt(device: &Arc<Device>, counts: &Arc<Counts>, stream: CUstream, keeps: Box<dyn Send + Sync>) -> Result<Self> {
        let _bound = device.bind()?;
        Self::new(device, counts, || Ok(Owned::There { stream: Handle(stream), keeps: ManuallyDrop::new(keeps) }))
    }

    /// Allocates now: later it could block behind a kernel.
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

    pub fn push(&self, lasts: Lasts, done: Option<Done>, make: impl FnOnce(&mut Making<'_>) -> Result<()>) -> Result<u64> {
        self.push_bound(&self.device.bind()?, self.state(), None, lasts, done, make)
    }

    /// Fails if an operation from `since` on has failed.
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
        let mut making = Making { queue: self, number, staging, lent: Lent::default(), has_begun: false };
        let made = match since {
            Some(since) if state.failed > 0 && state.failed >= since.number => {
                making.has_begun = true;
                Err(Error::Operation { what: OperationFault::Unpublished, stream: since.stream.get(), number: state.failed })
            }
            _ => make(&mut making),
        };
        let Making { lent, has_begun, .. } = making;
        if let Err(error) = made {
            if !has_begun {
                return Err(error);
            }
            if let Some(functions) = &lent.functions {
                functions.stop();
            }
            state.failures.add(number, error);
            state.failed = number;
        } else if let Some(done) = done {
            state.done.push_back((number, done));
        }
        state.last = number;
        if lent.piece.is_some() || lent.stager.is_some() || lent.functions.is_some() {
            state.lent.push_back((number, lent));
        }
        if lasts == Lasts::Kernel {
            self.launch.store(number, Release);
        }
        if !matches!(lasts, Lasts::Bytes(_)) {
            self.lasting.store(number, Release);
        }
        let covered = state.events.back().map_or_else(|| self.done.load(Relaxed), |(number, _)| *number);
        if matches!(lasts, Lasts::Bytes(LARGE..)) || number - covered >= RUN {
            let _ = self.record(&mut state);
        }
        if state.events.len() >= MANY {
            let _ = self.look(&mut state);
        }
        Ok(number)
    }

    pub fn mark(&self) -> Result<u64> {
        let mut state = self.state();
        if state.is_closed {
            return Err(Error::Closed { what: "stream" });
        }
        state.last += 1;
        let (number, before) = (state.last, state.last - 1);
        // Nothing was queued: the earlier event covers it too.
        match state.events.back_mut() {
            Some((covered, _)) if *covered == before => *covered = number,
            None if self.done.load(Acquire) >= before => self.done.store(number, Release),
            _ => {}
        }
        Ok(number)
    }

    pub fn last(&self) -> u64 {
        self.state().last
    }

    /// Waits for the queued operations, unless one may last; returns true if it was open.
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
        let _bound = self.device.bind();
        let mut state = self.state();
        if let Some(staging) = state.staging.take()
            && self.done.load(Acquire) < last
        {
            state.lent.push_back((last, Lent { piece: Some(staging), ..Lent::default() }));
        }
        let _ = self.cover(&mut state, last);
        true
    }

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
