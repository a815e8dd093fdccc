//! [`Queue`]: a stream of the driver, the operations queued on it, and which of them are complete.
//!
//! 1. Operations have numbers, from 1 on, and complete in that order.
//! 2. A call that fails first fails for its caller, and nothing is queued. If a later call of the same operation fails, the operation, perhaps executed in
//!    part, has a number that fails. So has a publication that is refused because an earlier operation has failed: it makes no call.
//! 3. A broken context completes all operations, with its error.
//! 4. While the driver does not answer, waiters get its error and the operation stays incomplete.
//!
//! # Which operations are complete
//!
//! Events tell: an event is complete after all operations that were queued before it was recorded. Recording one costs about as much as a small copy, so not
//! every operation has one. An event is recorded
//!
//! - after an operation of [`LARGE_BYTES`] bytes or more, and after [`MAX_UNCOVERED`] operations without one,
//! - before an operation of unbounded duration (a kernel, or a wait for another stream's kernel): a wait for an earlier operation must not wait for it,
//! - when a waiter needs one ([`ensure_event`](Queue::ensure_event)).
//!
//! | field | meaning | order |
//! |---|---|---|
//! | `complete` | the last number known to be complete | `complete` <= each number in `events` <= `last` |
//! | `State::events` | recorded events that are not known to be complete, each with the last number that it covers | ascending |
//! | `State::completions`, `State::resources` | what to count and what to return when a number is complete | ascending, above `complete` |
//! | `State::last` | the last number given | |
//! | `State::failed` | the last number that failed | at most `last` |
//! | `last_launch`, `last_unbounded` | the last kernel; the last kernel or wait for another stream | at most `last` |
//!
//! `complete`, `last_launch` and `last_unbounded` are written under the lock of `state` and read without it. A reader that sees a number in `complete` sees
//! everything that the operations have written, unless the context is broken: its acquire pairs with the release in `complete_up_to`, which follows the
//! driver's answer.
//!
//! The lock of `state` is held during all calls of a push and of a query, and while a running host function is stopped, but not during `Event::wait`. If the
//! driver blocks in such a call, all queries, waits, the close and each `Inner::require_slow_launches` wait for it. Host functions take no lock of the queue.
//!
//! # Shared streams
//!
//! A stream of the caller, or one whose handle was lent, has operations of others, which get no number (`is_shared`). There, a number from
//! [`record_position`](Queue::record_position) also stands for what others queued before it. An event recorded before may miss that, so none is taken to
//! cover the number, and to record one at each position would cost a call of the driver per free. The event is recorded when a waiter or query first needs
//! it. That is later, so the event covers at least what the number stands for. Until then the caller must not destroy the stream.
//!
//! Such an event is incomplete for a moment even on an idle stream, so a query asks the whole stream first: if that is idle, all numbers are complete. The
//! close and [`synchronize`](Queue::synchronize) wait for a new position, because the last number may miss operations of others.
//!
//! Kernels of others count nowhere: `last_launch` and `last_unbounded` are numbers of this queue. So a wait for a shared stream counts as unbounded only while
//! a kernel of this backend, or such a wait, is incomplete there. Else no event precedes it, and a wait for an earlier operation may last as long.
//!
//! # Waiting
//!
//! A host function must not call the driver, so it cannot complete operations, and waiters poll: they spin, then yield, and after [`POLL_TIME`] sleep in the
//! driver's own wait for an event, or between polls if they have a deadline. Each poll also counts completions and returns resources, for whichever operations
//! are complete.
//!
//! # What failures leave
//!
//! A failed query completes nothing beyond the answers before it, and is repeated; after more than [`TRIES`] in a row waiters get the error (`no_answer`). A
//! final error (`is_final`) means that the context is broken: all numbers become complete, those above `broken` report its error, host functions are stopped,
//! and pending frees are counted, because the memory is gone with the context. Other completions are not counted: whether the operations above `broken` have
//! happened is unknown. While the process ends, a final error comes without a call, from `process.rs`: all numbers become complete although the device may
//! still execute.
//!
//! A failed record or poll in a push or the close is ignored: the operations stay without an event, and the next push or query tries again. After the close
//! the stream still exists then, since `finish` comes after the last number.

use core::ffi::c_void;
use core::mem::{self, ManuallyDrop};
use core::ptr::NonNull;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicU64};
use core::time::Duration;
use std::boxed::Box;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, LocalKey};
use std::time::Instant;
use std::vec::Vec;

use cudarc::driver::sys::{CUstream, CUstream_st};

use super::Inner;
use super::device::{Bound, Device, TRIES};
use super::driver::{Handle, checked, code, is_final};
use super::lookup::{Cached, ThreadCache};
use super::process;
use super::resources::{Event, PinnedChunk, Stager};
use crate::backend::counters::Counts;
use crate::backend::failures::{Failures, HasUnreported};
use crate::backend::{MemoryLocation, StreamId, Ticket};
use crate::error::OperationFault;
use crate::{Error, Result};

/// An operation of this size takes 5 us or more and gets its own event: earlier waits should not include it.
const LARGE_BYTES: u64 = 64 << 10;
/// Operations without an event.
const MAX_UNCOVERED: u64 = 32;
/// With this number of outstanding events, `push` polls them.
const MAX_EVENTS: usize = 64;
/// Idle events that a device has when a queue is opened: for a kernel, its waits and some large copies.
const STOCKED_EVENTS: usize = 16;
/// Idle events of a new queue: enough if each operation is waited for.
const INITIAL_EVENTS: usize = 2;
/// Idle events that a queue keeps: as many as kernels are usually queued in a row.
const MAX_IDLE_EVENTS: usize = 32;
/// A waiter polls this long before it sleeps: the driver's wake-up is tens of microseconds late, and copying 256 MiB within a device takes about 125.
const POLL_TIME: Duration = Duration::from_micros(300);
/// The close of a stream that is shared with others waits this long.
const CLOSE_TIME: Duration = Duration::from_millis(100);
/// Polls per reading of the clock.
const POLLS_PER_CLOCK: u64 = 8;

pub(super) struct Queue {
    counts: Arc<Counts>,
    stream: Handle<CUstream_st>,
    /// Others may queue operations that have no number here: the stream is adopted, or its handle was lent. Never false again.
    is_shared: AtomicBool,
    state: Mutex<State>,
    complete: AtomicU64,
    last_launch: AtomicU64,
    last_unbounded: AtomicU64,
    // The last field: events and memory of `state` return to the device when they are dropped.
    pub device: Arc<Device>,
}

/// The owner of a queue's stream, until the queue has ended.
enum StreamOwner {
    Device,
    Caller(Kept),
}

/// The value that the caller of an adoption gave. Not dropped in a fork, where its drop might call the driver.
pub(super) struct Kept(ManuallyDrop<Box<dyn Send + Sync>>);

impl Drop for Kept {
    fn drop(&mut self) {
        if !process::is_forked() {
            // SAFETY: the value is dropped only here.
            unsafe { ManuallyDrop::drop(&mut self.0) };
        }
    }
}

/// Memory and functions that an operation uses until it is complete.
#[derive(Default)]
struct Resources {
    chunk: Option<PinnedChunk>,
    stager: Option<Arc<Stager>>,
    functions: Option<Arc<Functions>>,
}

#[derive(Default)]
pub(super) struct State {
    last: u64,
    events: VecDeque<(u64, Arc<Event>)>,
    /// Events for later use.
    idle: Vec<Arc<Event>>,
    completions: VecDeque<(u64, CompletionCount)>,
    resources: VecDeque<(u64, Resources)>,
    failures: Failures,
    failed: u64,
    /// The last number that was complete when the context broke, and the call and the error that showed it.
    broken: Option<(u64, &'static str, u32)>,
    /// Failed queries in a row.
    unanswered: u32,
    /// The driver's error, after too many of them.
    no_answer: Option<(&'static str, u32)>,
    /// Pinned memory for host functions, which run one after another; `None` once closed.
    staging: Option<PinnedChunk>,
    is_closed: bool,
    /// `None` once the queue has ended.
    owner: Option<StreamOwner>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Length {
    /// A copy or a fill of so many bytes.
    Bytes(u64),
    /// A wait for another stream, on which a kernel may run.
    Wait,
    Kernel,
}

/// Makes the driver calls of one operation.
pub(super) struct OpBuilder<'a> {
    queue: &'a Queue,
    number: u64,
    staging: Option<NonNull<u8>>,
    resources: Resources,
    has_begun: bool,
}

impl OpBuilder<'_> {
    pub fn call(&mut self, call: impl FnOnce(CUstream) -> Result<()>) -> Result<()> {
        call(self.queue.handle())?;
        self.has_begun = true;
        Ok(())
    }

    /// After a failed call: the number that fails, if an earlier call has succeeded.
    pub fn failed(&self) -> Option<u64> {
        self.has_begun.then_some(self.number)
    }

    /// Pinned bytes of the operation, in stream order; the host uses them only in host functions.
    pub fn staging(&self) -> Result<NonNull<u8>> {
        self.staging.ok_or(Error::Closed { what: "stream" })
    }

    pub fn stager(&mut self) -> Option<Arc<Stager>> {
        self.resources.stager = self.queue.device.idle_stager();
        self.resources.stager.clone()
    }

    fn functions(&mut self) -> &Arc<Functions> {
        self.resources.functions.get_or_insert_default()
    }

    /// A pinned word, the first of [`fill::MOST`](crate::backend::fill::MOST) bytes; the same at each call, until the operation completes.
    pub fn word(&mut self) -> Result<NonNull<u64>> {
        let word = match self.resources.chunk.take() {
            Some(word) => word,
            None => self.queue.device.words.take()?,
        };
        Ok(self.resources.chunk.insert(word).place().cast())
    }
}

/// What an operation adds to the counters when it is complete. It has two words, so that it is passed in registers.
#[derive(Clone, Copy, Debug)]
pub(super) struct CompletionCount {
    pub kind: Kind,
    pub bytes: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    HostCopy,
    Upload,
    UploadOfPageable,
    Download,
    DownloadToPageable,
    DeviceCopy,
    PeerCopy,
    StagedCopy,
    Fill,
    Publication,
    Prefetch,
    Free,
}

impl CompletionCount {
    pub const PUBLICATION: Self = Self { kind: Kind::Publication, bytes: 0 };

    pub const fn fill(bytes: u64) -> Self {
        Self { kind: Kind::Fill, bytes }
    }

    pub const fn free(bytes: u64) -> Self {
        Self { kind: Kind::Free, bytes }
    }

    pub const fn is_free(self) -> bool {
        matches!(self.kind, Kind::Free)
    }

    pub const fn prefetch(bytes: u64) -> Self {
        Self { kind: Kind::Prefetch, bytes }
    }

    pub fn count(self, counts: &Counts) {
        let counted = match self.kind {
            Kind::HostCopy => &counts.host_copies,
            Kind::Upload => &counts.uploads[0],
            Kind::UploadOfPageable => &counts.uploads[1],
            Kind::Download => &counts.downloads[0],
            Kind::DownloadToPageable => &counts.downloads[1],
            Kind::DeviceCopy => &counts.device_copies,
            Kind::PeerCopy => &counts.peer_copies,
            Kind::StagedCopy => {
                counts.downloads[0].add(self.bytes);
                &counts.uploads[0]
            }
            Kind::Fill => &counts.fills,
            Kind::Publication => {
                counts.publications.fetch_add(1, Relaxed);
                return;
            }
            Kind::Free => {
                counts.of(MemoryLocation::Device).freed(self.bytes);
                return;
            }
            Kind::Prefetch => &counts.prefetches,
        };
        counted.add(self.bytes);
    }
}

/// Orders stores to write-combined memory, which a release store does not.
pub(super) fn drain_stores() {
    // SAFETY: each x86-64 processor has this instruction, which accesses no memory.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        core::arch::x86_64::_mm_sfence();
    }
}

impl Queue {
    pub fn open(device: &Arc<Device>, counts: &Arc<Counts>) -> Result<Self> {
        let _bound = device.bind()?;
        Self::new(device, counts, || Ok((device.take_stream()?, StreamOwner::Device)))
    }

    pub fn adopt(device: &Arc<Device>, counts: &Arc<Counts>, stream: CUstream, keeps: Box<dyn Send + Sync>) -> Result<Self> {
        let _bound = device.bind()?;
        let kept = Kept(ManuallyDrop::new(keeps));
        Self::new(device, counts, || Ok((Handle(stream), StreamOwner::Caller(kept))))
    }

    /// Takes events and staging now: to allocate them later could block behind a kernel.
    fn new(
        device: &Arc<Device>,
        counts: &Arc<Counts>,
        stream: impl FnOnce() -> Result<(Handle<CUstream_st>, StreamOwner)>,
    ) -> Result<Self> {
        let idle = (0..INITIAL_EVENTS).map(|_| device.events.take().map(Arc::new)).collect::<Result<_>>()?;
        device.events.stock(STOCKED_EVENTS)?;
        let staging = Some(device.stagings.take()?);
        let (stream, owner) = stream()?;
        let is_shared = AtomicBool::new(matches!(owner, StreamOwner::Caller(_)));
        let state = Mutex::new(State { staging, idle, owner: Some(owner), ..State::default() });
        let [complete, last_launch, last_unbounded] = [const { AtomicU64::new(0) }; 3];
        let (device, counts) = (Arc::clone(device), Arc::clone(counts));
        Ok(Self { counts, stream, is_shared, state, complete, last_launch, last_unbounded, device })
    }

    pub fn handle(&self) -> CUstream {
        self.stream.0
    }

    /// The handle for other code, which may queue operations on it from now on.
    pub fn lend(&self) -> CUstream {
        self.is_shared.store(true, Relaxed);
        self.handle()
    }

    /// Queues an operation; returns its number.
    pub fn push(&self, length: Length, done: Option<CompletionCount>, build: impl FnOnce(&mut OpBuilder<'_>) -> Result<()>) -> Result<u64> {
        self.push_bound(&self.device.bind()?, self.state(), None, length, done, build)
    }

    /// As [`push`](Self::push), with a bound context and the lock. The operation fails if one from `since` on has failed.
    ///
    /// `build` must not panic: its driver calls may be queued already, and the memory that they use would return for reuse.
    pub fn push_bound(
        &self,
        _bound: &Bound,
        mut state: MutexGuard<'_, State>,
        since: Option<Ticket>,
        length: Length,
        done: Option<CompletionCount>,
        build: impl FnOnce(&mut OpBuilder<'_>) -> Result<()>,
    ) -> Result<u64> {
        if state.is_closed {
            return Err(Error::Closed { what: "stream" });
        }
        if !matches!(length, Length::Bytes(_)) {
            // A wait for an earlier operation must not wait for this one.
            self.record(&mut state)?;
        }
        let staging = state.staging.as_ref().map(PinnedChunk::place);
        let number = state.last + 1;
        let mut op = OpBuilder { queue: self, number, staging, resources: Resources::default(), has_begun: false };
        let built = match since {
            Some(since) if state.failed > 0 && state.failed >= since.number => {
                op.has_begun = true;
                Err(Error::Operation { what: OperationFault::Unpublished, stream: since.stream.get(), number: state.failed })
            }
            _ => build(&mut op),
        };
        let OpBuilder { resources, has_begun, .. } = op;
        if let Err(error) = built {
            if !has_begun {
                return Err(error);
            }
            if let Some(functions) = &resources.functions {
                functions.stop();
            }
            state.failures.add(number, error);
            state.failed = number;
        } else if let Some(done) = done {
            state.completions.push_back((number, done));
        }
        state.last = number;
        if resources.chunk.is_some() || resources.stager.is_some() || resources.functions.is_some() {
            state.resources.push_back((number, resources));
        }
        if length == Length::Kernel {
            self.last_launch.store(number, Release);
        }
        if !matches!(length, Length::Bytes(_)) {
            self.last_unbounded.store(number, Release);
        }
        let covered = state.events.back().map_or_else(|| self.complete.load(Relaxed), |(number, _)| *number);
        if matches!(length, Length::Bytes(LARGE_BYTES..)) || number - covered >= MAX_UNCOVERED {
            let _ = self.record(&mut state);
        }
        if state.events.len() >= MAX_EVENTS {
            let _ = self.poll_events(&mut state);
        }
        Ok(number)
    }

    /// Gives a number to the position after all queued operations. Nothing is queued: the event that covers the operation before covers this number too.
    ///
    /// On a shared stream, it does not: others may have queued operations since. A later event covers the number, recorded when a waiter or query needs it.
    pub fn record_position(&self) -> Result<u64> {
        let mut state = self.state();
        if state.is_closed {
            return Err(Error::Closed { what: "stream" });
        }
        state.last += 1;
        if self.is_shared.load(Relaxed) {
            return Ok(state.last);
        }
        let (number, before) = (state.last, state.last - 1);
        match state.events.back_mut() {
            Some((covered, _)) if *covered == before => *covered = number,
            None if self.complete.load(Acquire) >= before => self.complete.store(number, Release),
            _ => {}
        }
        Ok(number)
    }

    pub fn last(&self) -> u64 {
        self.state().last
    }

    /// Waits for the queued operations, unless one may last; returns true if it was open.
    ///
    /// Once `last` is complete, another thread may `finish` the queue, and its stream may be another queue's. The rest of this call makes no call on the
    /// stream then: a complete number is covered.
    pub fn close(&self) -> bool {
        let is_shared = self.is_shared.load(Relaxed);
        let last = {
            let mut state = self.state();
            if mem::replace(&mut state.is_closed, true) {
                return false;
            }
            // The position after the operations of others, too.
            state.last += u64::from(is_shared);
            state.last
        };
        if !self.may_be_unbounded() {
            // Kernels of others may run forever.
            let _ = self.wait_for(last, is_shared.then_some(CLOSE_TIME));
        }
        let _bound = self.device.bind();
        let mut state = self.state();
        if let Some(staging) = state.staging.take()
            && self.complete.load(Acquire) < last
        {
            state.resources.push_back((last, Resources { chunk: Some(staging), ..Resources::default() }));
        }
        let _ = self.ensure_event(&mut state, last);
        true
    }

    /// Returns events and stream to the device, once everything is complete. Returns the value of an adopted stream, to be dropped without a lock.
    #[must_use]
    pub fn finish(&self) -> Option<Kept> {
        let mut state = self.state();
        state.idle.clear();
        match state.owner.take() {
            Some(StreamOwner::Device) => self.device.return_stream(self.stream),
            Some(StreamOwner::Caller(kept)) => return Some(kept),
            None => {}
        }
        None
    }

    pub fn is_closed(&self) -> bool {
        self.state().is_closed
    }

    pub fn is_ended(&self) -> bool {
        let (is_closed, last) = {
            let state = self.state();
            (state.is_closed, state.last)
        };
        is_closed && self.is_complete(last)
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Completion and waiting.
impl Queue {
    /// Returns true if an operation is complete; asks the driver if that is not known.
    pub fn is_complete(&self, number: u64) -> bool {
        // SYNC POINT: operation over. Pairs with complete_up_to.
        if self.complete.load(Acquire) >= number {
            return true;
        }
        let mut state = self.state();
        match self.query_driver(&mut state, number) {
            Ok(()) => (state.unanswered, state.no_answer) = (0, None),
            Err(error) if is_final(&error) => self.break_context(&mut state, error),
            Err(Error::Driver { call, code, .. }) => {
                state.unanswered = state.unanswered.saturating_add(1);
                state.no_answer = (state.unanswered > TRIES).then_some((call, code));
            }
            Err(_) => {}
        }
        self.complete.load(Acquire) >= number
    }

    /// Asks the driver: first about events, then, if that fails, about the whole stream, which may still answer. On a shared stream, where a position has no
    /// event before the first query, the whole stream comes first: an event would be incomplete for a moment, although the stream is idle.
    fn query_driver(&self, state: &mut State, number: u64) -> Result<()> {
        let _bound = self.device.bind()?;
        if self.is_shared.load(Relaxed) && !self.is_covered(state, number) && matches!(self.query_stream(state), Ok(true)) {
            return Ok(());
        }
        if self.ensure_event(state, number).is_ok() {
            match self.poll_events(state) {
                Err(error) if !is_final(&error) => {}
                answer => return answer,
            }
        }
        self.query_stream(state).map(drop)
    }

    /// Completes all numbers if the stream is idle; returns whether it is.
    fn query_stream(&self, state: &mut State) -> Result<bool> {
        // SAFETY: the stream lives as long as the queue.
        match unsafe { self.device.calls.cuStreamQuery(self.handle()) } {
            Ok(()) => {
                state.events.clear();
                let last = state.last;
                self.complete_up_to(state, last);
                Ok(true)
            }
            Err(Error::Driver { code: code::NOT_READY, .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns an event that covers a number; `None` if it is complete.
    pub fn event(&self, number: u64) -> Result<Option<Arc<Event>>> {
        let _bound = self.device.bind()?;
        let mut state = self.state();
        if self.complete.load(Relaxed) >= number {
            return Ok(None);
        }
        self.ensure_event(&mut state, number)?;
        Ok(state.events.iter().find(|(covered, _)| *covered >= number).map(|(_, event)| Arc::clone(event)))
    }

    pub fn has_kernels(&self) -> bool {
        let last_launch = self.last_launch.load(Acquire);
        last_launch > 0 && !self.is_complete(last_launch)
    }

    pub fn kernels_end_within(&self, timeout: Duration) -> bool {
        self.wait_for(self.last_launch.load(Acquire), Some(timeout)).unwrap_or(false)
    }

    /// Waits without limit for work of its own; kernels of others on a shared stream may run forever.
    pub fn wait_for_all(&self, of_others: Duration) -> bool {
        let limit = self.is_shared.load(Relaxed).then_some(of_others);
        self.wait_for(self.last(), limit).unwrap_or(false)
    }

    pub fn may_be_unbounded(&self) -> bool {
        let last_unbounded = self.last_unbounded.load(Acquire);
        last_unbounded > 0 && !self.is_complete(last_unbounded)
    }

    /// The caller has the lock of `state`, so that the answer stays true until it pushes.
    pub fn has_unbounded_after(&self, number: u64) -> bool {
        self.last_unbounded.load(Relaxed) > number
    }

    /// True if the number completes within `timeout`, or its unreported failure; with `up_to`, the first. A broken context's error is
    /// always returned.
    pub fn wait(&self, number: u64, timeout: Option<Duration>, up_to: bool) -> Result<bool> {
        if !self.wait_for(number, timeout)? {
            return Ok(false);
        }
        self.report(if up_to { 0 } else { number }, number).map(|()| true)
    }

    pub fn has_failed(&self, number: u64) -> bool {
        self.state().failures.have(number)
    }

    pub fn synchronize(&self) -> Result<()> {
        let position = if self.is_shared.load(Relaxed) { self.record_position().ok() } else { None };
        let last = position.unwrap_or_else(|| self.last());
        self.wait_for(last, None)?;
        self.report(0, last)
    }

    /// Returns the driver's error if it does not answer.
    fn check_answers(&self) -> Result<()> {
        self.state().no_answer.map_or(Ok(()), |(call, code)| checked(call, code))
    }

    /// Returns the first unreported error of these numbers, or the broken context's.
    fn report(&self, first: u64, last: u64) -> Result<()> {
        let mut state = self.state();
        state.failures.report(first..=last)?;
        state.check_context(last)
    }

    /// True if the number is complete within `timeout`, false after it, or the driver's error if it does not answer. The error is the one that was seen: the
    /// driver may answer another thread right after it.
    fn wait_for(&self, number: u64, timeout: Option<Duration>) -> Result<bool> {
        if self.is_complete(number) {
            return Ok(true);
        }
        if timeout == Some(Duration::ZERO) {
            return self.check_answers().map(|()| false);
        }
        let begun = Instant::now();
        let mut waited = Duration::ZERO;
        for polls in 1_u64.. {
            if self.is_complete(number) {
                return Ok(true);
            }
            if polls.is_multiple_of(POLLS_PER_CLOCK) || waited >= POLL_TIME {
                waited = begun.elapsed();
                self.check_answers()?;
            }
            let left = timeout.map(|timeout| timeout.saturating_sub(waited));
            if left == Some(Duration::ZERO) {
                return self.check_answers().map(|()| false);
            }
            match Pause::after(polls, waited) {
                Pause::Spin => core::hint::spin_loop(),
                Pause::Yield => thread::yield_now(),
                Pause::Sleep => match left {
                    Some(left) => thread::sleep(left.min(Duration::from_micros(50))),
                    None => {
                        let event = self.event(number).ok().flatten();
                        if event.is_none_or(|event| self.device.bind().and_then(|_bound| event.wait()).is_err()) {
                            thread::yield_now();
                        }
                    }
                },
            }
        }
        Ok(true)
    }

    /// Takes out complete events, oldest first, and completes what they cover.
    fn poll_events(&self, state: &mut State) -> Result<()> {
        let (mut over, mut outcome) = (None, Ok(()));
        while let Some((number, event)) = state.events.front() {
            match event.is_complete() {
                Ok(true) => {
                    over = Some(*number);
                    let complete = state.events.pop_front();
                    // An event that a waiter holds is not recorded again.
                    let own = complete.map(|(_, event)| event).filter(|event| Arc::strong_count(event) == 1);
                    state.idle.extend(own.filter(|_| state.idle.len() < MAX_IDLE_EVENTS));
                }
                Ok(false) => break,
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            }
        }
        // Also before an error: the events that were taken out are the only ones that tell of these numbers. A later event may be one of a kernel.
        if let Some(number) = over {
            self.complete_up_to(state, number);
        }
        outcome
    }

    /// Counts, returns resources, then publishes the number.
    fn complete_up_to(&self, state: &mut State, number: u64) {
        while let Some((_, done)) = state.completions.pop_front_if(|(after, _)| *after <= number) {
            done.count(&self.counts);
        }
        while state.resources.pop_front_if(|(after, _)| *after <= number).is_some() {}
        // SYNC POINT: operation over. Pairs with is_complete.
        self.complete.fetch_max(number, Release);
    }

    /// Completes everything with the error of a broken context.
    fn break_context(&self, state: &mut State, error: Error) {
        if let (Error::Driver { call, code, .. }, None) = (error, state.broken) {
            state.broken = Some((self.complete.load(Relaxed), call, code));
        }
        state.events.clear();
        // Freed memory is lost with the context.
        state.completions.drain(..).filter(|(_, done)| done.is_free()).for_each(|(_, done)| done.count(&self.counts));
        // The driver may run host functions of a broken context still. They must stop before their staging memory is for others, and before their operations'
        // owners get the memory back.
        for (_, Resources { chunk, stager, functions }) in state.resources.drain(..) {
            if let Some(functions) = functions {
                functions.stop();
            }
            drop((chunk, stager));
        }
        self.complete.fetch_max(state.last, Release);
    }

    /// Makes sure that an event covers a number, unless it is complete.
    fn ensure_event(&self, state: &mut State, number: u64) -> Result<()> {
        if self.is_covered(state, number) { Ok(()) } else { self.record(state) }
    }

    /// Whether an event covers a number, or it is complete. Then no call needs the stream, which its owner may have destroyed.
    fn is_covered(&self, state: &State, number: u64) -> bool {
        state.events.back().is_some_and(|&(covered, _)| covered >= number) || self.complete.load(Relaxed) >= number
    }

    /// Records an event after all queued operations, unless one covers them.
    fn record(&self, state: &mut State) -> Result<()> {
        let covered = state.events.back().map_or_else(|| self.complete.load(Relaxed), |&(number, _)| number);
        if covered < state.last {
            let event = match state.idle.pop() {
                Some(event) => event,
                None => Arc::new(self.device.events.take()?),
            };
            event.record(self.handle())?;
            state.events.push_back((state.last, event));
        }
        Ok(())
    }
}

impl State {
    /// Returns the error of a broken context, for numbers that were incomplete when it broke.
    fn check_context(&self, number: u64) -> Result<()> {
        match self.broken {
            Some((over, call, code)) if number > over => checked(call, code),
            _ => Ok(()),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pause {
    Spin,
    Yield,
    Sleep,
}

impl Pause {
    fn after(polls: u64, waited: Duration) -> Self {
        match polls {
            _ if waited >= POLL_TIME => Self::Sleep,
            0..50 => Self::Spin,
            _ => Self::Yield,
        }
    }
}

/// Host functions of one operation. They access the caller's memory only until the operation is complete, even if the context breaks meanwhile; after a
/// failed call of the operation they do nothing.
#[derive(Default)]
struct Functions {
    is_stopped: Mutex<bool>,
}

impl Functions {
    fn run(&self, job: impl FnOnce()) {
        let is_stopped = self.is_stopped();
        if !*is_stopped {
            job();
        }
    }

    /// Waits for a running function; later ones do nothing.
    fn stop(&self) {
        *self.is_stopped() = true;
    }

    fn is_stopped(&self) -> MutexGuard<'_, bool> {
        self.is_stopped.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Queues a host function. It must not call the driver.
    pub(super) fn host(&self, op: &mut OpBuilder<'_>, on: CUstream, job: impl FnOnce() + Send + 'static) -> Result<()> {
        unsafe extern "C" fn run(data: *mut c_void) {
            // SAFETY: `data` is the pointer of `Box::into_raw` below, and the driver calls this function at most once.
            let job = unsafe { Box::from_raw(data.cast::<Box<dyn FnOnce() + Send>>()) };
            job();
            drain_stores();
        }
        let functions = Arc::clone(op.functions());
        let job = move || functions.run(job);
        let data = Box::into_raw(Box::new(Box::new(job) as Box<dyn FnOnce() + Send>));
        // SAFETY: `run` takes its data, which it frees. In a broken context the driver may never call it, and the data leaks.
        let queued = op.call(|_| unsafe { self.calls().cuLaunchHostFunc(on, run, data.cast()) });
        if queued.is_err() {
            // SAFETY: the function was not queued, so the box is still owned here.
            drop(unsafe { Box::from_raw(data) });
        }
        queued
    }
}

impl Cached for Queue {
    type Key = StreamId;

    fn cache() -> &'static LocalKey<ThreadCache<StreamId, Self>> {
        thread_local!(static CACHE: ThreadCache<StreamId, Queue> = const { ThreadCache::new() });
        &CACHE
    }
}

impl HasUnreported for Queue {
    fn unreported(&self) -> u64 {
        self.state().failures.unreported()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_waiter_spins_then_yields_then_sleeps() {
        let us = Duration::from_micros;
        let after = |polls, waited| Pause::after(polls, us(waited));
        assert_eq!(
            [after(1, 0), after(49, 5), after(101, 10), after(1 << 40, 299)],
            [Pause::Spin, Pause::Spin, Pause::Yield, Pause::Yield]
        );
        assert_eq!([after(8, 300), after(1 << 40, 1_000_000)], [Pause::Sleep; 2]);
    }
}
