//! A stream's thread: it executes operations in order, and completes each before the next begins.
//!
//! After an operation the thread 1. completes its number, 2. wakes tasks, 3. frees deferred blocks, whose last use the operation may have been. A failed
//! operation *taints* the memory that it should have written, so that a later read of it fails instead of returning old bytes; the stream goes on. After a
//! panic outside a kernel, whose effects are unknown, the stream is broken: later operations fail unexecuted, but waits for other streams are kept, because
//! operations after them rely on their order.

use core::ptr::NonNull;
use core::sync::atomic::Ordering::{Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicU64};
use std::format;
use std::io;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, OnceLock, PoisonError};
use std::thread;

use super::faults::Verb;
use super::group::{self, Assembly, Group};
use super::inner::Inner;
use super::link::Route;
use super::log::{Facts, Phase};
use super::queue::{IS_STREAM, Item, Launch, Numbered, Operation, Queue};
use crate::backend::bytes::{aligned, moved};
use crate::backend::fill::filled;
use crate::backend::ranges::Found;
use crate::backend::{Address, Copy, Fill, MemoryLocation, Prefetch, StreamId, Ticket};
use crate::error::OperationFault;
use crate::sys::panic::caught;
use crate::trace::event;
use crate::{Error, Result};

impl Queue {
    /// Opens a stream with its thread. Listed in `inner` until its last operation is executed.
    pub fn open(inner: &Arc<Inner>, device: u32) -> Result<StreamId> {
        let id = StreamId::next();
        let (queue, operations) = Self::new(device);
        let run = {
            let (inner, queue) = (Arc::clone(inner), Arc::clone(&queue));
            move || queue.run(&inner, id, &operations)
        };
        let thread = thread::Builder::new().name(format!("ringmem-{}", id.get())).spawn(run);
        queue.set_thread(thread.map_err(no_thread)?);
        inner.streams.write().unwrap_or_else(PoisonError::into_inner).insert(id, queue);
        inner.counts.streams.fetch_add(1, Relaxed);
        Ok(id)
    }

    fn run(&self, inner: &Inner, id: StreamId, operations: &Receiver<Numbered>) {
        IS_STREAM.set(true);
        let mut is_broken = false;
        let mut last_failed = 0;
        let mut next = operations.recv().ok();
        while let Some((number, item)) = next {
            let outcome = item.map_or(Ok(()), |item| self.execute(inner, Ticket { stream: id, number }, item, &mut is_broken, last_failed));
            if outcome.is_err() {
                last_failed = number;
            }
            next = self.complete(number, outcome, operations);
            self.wake(&inner.counts);
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

    /// Executes an operation, or fails it: by an injected fault, or because the stream is broken. After a panic outside a kernel, later operations fail
    /// unexecuted.
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
                (Some(error), wait @ Operation::StreamWait { .. }) => wait.execute(inner, self.device, &facts).and(Err(error)),
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
}

impl Operation {
    /// Pageable memory is not tracked; an unpublished word is unchanged.
    pub fn taint(&self, inner: &Inner, failed: Ticket, error: &Error) {
        let (taints, is_complete) = (inner.ranges.taints(), |ticket| inner.is_complete(ticket));
        let add = |place, bytes| taints.add_executed(place, bytes, failed, error, is_complete);
        match self {
            Self::Copy(copy, _, [false, _]) => add(copy.to, copy.bytes),
            Self::Fill(fill, false) => add(fill.to, fill.bytes()),
            Self::Launch(launch) => {
                launch.operands.iter().filter(|operand| operand.is_written).for_each(|operand| add(operand.address, operand.bytes));
            }
            Self::Copy(..) | Self::Fill(..) | Self::Publish { .. } | Self::Prefetch(_) | Self::Record(_) | Self::StreamWait { .. } => {}
        }
    }

    pub fn execute(&self, inner: &Inner, device: u32, facts: &Facts) -> Result<()> {
        match *self {
            // SAFETY: by the invariant the caller of `Backend::copy` promised that, until this is executed, both ends have all bytes, without overlap, nothing
            // else writes the source or accesses the target, and a source of one word is writable. A block freed meanwhile stays mapped.
            Self::Copy(ref copy, route, pageable) => unsafe { inner.copy(copy, Some((route, pageable)), facts.stream) }.map(drop),
            // SAFETY: by the invariant the caller of `Backend::fill` promised that the place has all elements, exclusively until this is executed. A block
            // freed meanwhile stays mapped.
            Self::Fill(ref fill, pageable) => unsafe { inner.fill(fill, Some(pageable), facts.stream) }.map(drop),
            // SAFETY: by the invariant the caller of `Backend::publish` promised 8 bytes, which others access only as a word until this is executed. A block
            // freed meanwhile stays mapped.
            Self::Publish { word, value, pageable, .. } => unsafe { inner.publish(word, value, Some(pageable)) }.map(drop),
            Self::Prefetch(Prefetch { address, bytes, to }) => {
                let found = inner.ranges.read().find(address.get(), bytes, true, Verb::Prefetch.name())?;
                inner.touch(&found, bytes, to, facts);
                inner.counts.prefetches.add(bytes);
                Ok(())
            }
            Self::Launch(ref launch) => launch.execute(inner, device, facts),
            Self::Record(ref at) => {
                at.get_or_init(|| inner.now_ns());
                Ok(())
            }
            Self::StreamWait { ref stream, number, .. } => {
                stream.wait_for(number);
                Ok(())
            }
        }
    }
}

fn no_thread(source: io::Error) -> Error {
    Error::System { call: "start of a thread", path: None, answer: source }
}

impl Launch {
    fn execute(&self, inner: &Inner, device: u32, facts: &Facts) -> Result<()> {
        self.operands.iter().try_for_each(|operand| inner.ranges.taints().check(operand.address, operand.bytes))?;
        let groups = u64::from(self.groups);
        let assembly = Assembly::new(groups);
        let run = |number| {
            let group =
                Group { inner, device, number, groups, warps: self.warps, facts, assembly: &assembly, has_arrived: AtomicBool::new(false) };
            // SAFETY: by the invariant the caller of `Backend::launch` promises the kernel's arguments, and live memory until it has ended. `group::run` passes
            // a lane of each number to one thread.
            let ended = caught(|| unsafe { (self.entry.run)(&group, &self.arguments) });
            assembly.leave(&group.has_arrived);
            ended.ok_or_else(|| {
                inner.counts.kernel_panics.fetch_add(1, Relaxed);
                Error::KernelPanicked { name: self.entry.name }
            })
        };
        // Groups may wait for each other, so all need a thread.
        let gate = OnceLock::new();
        let outcome = thread::scope(|scope| {
            let others = group::start(scope, 1..groups, &gate, run);
            gate.get_or_init(|| others.is_ok());
            let others = others.map_err(no_thread)?;
            inner.counts.launches.fetch_add(1, Relaxed);
            let first = run(0);
            others.into_iter().fold(first, |outcome, other| outcome.and(other.join().ok().flatten().unwrap_or(Ok(()))))
        });
        let outcome = match assembly.into_failure() {
            Some(source) => {
                inner.counts.launches.fetch_sub(1, Relaxed);
                Err(no_thread(source))
            }
            None => outcome,
        };
        event!(debug, kernel = self.entry.name, panicked = outcome.is_err(), "kernel ended");
        outcome
    }
}

impl Inner {
    fn ends(&self, copy: &Copy, queued: Option<[bool; 2]>) -> Result<(Found, Found, Route)> {
        let ranges = self.ranges.read();
        let to = ranges.end(copy.to, copy.bytes, queued.map(|[to, _]| to), Verb::Copy.name())?;
        let from = ranges.end(copy.from, copy.bytes, queued.map(|[_, from]| from), Verb::Copy.name())?;
        drop(ranges);
        let pageable = |host: &Found| host.location == MemoryLocation::Host;
        let route = match (from.location == MemoryLocation::Device, to.location == MemoryLocation::Device) {
            (false, false) => Route::Host,
            (false, true) => Route::Upload { to: to.device, pageable: pageable(&from) },
            (true, false) => Route::Download { from: from.device, pageable: pageable(&to) },
            (true, true) if from.device == to.device => Route::Device(to.device),
            (true, true) if self.peers.reaches(from.device, to.device) || self.peers.reaches(to.device, from.device) => {
                Route::Peer { from: from.device, to: to.device }
            }
            (true, true) => Route::Staged { from: from.device, to: to.device },
        };
        Ok((to, from, route))
    }

    pub fn check_copy(&self, copy: &Copy) -> Result<(Route, [bool; 2])> {
        self.ends(copy, None).map(|(to, from, route)| (route, [to.in_no_range, from.in_no_range]))
    }

    pub fn check_fill(&self, fill: &Fill) -> Result<(Route, bool)> {
        self.target(fill, None).map(|(found, route)| (route, found.in_no_range))
    }

    fn target(&self, fill: &Fill, queued: Option<bool>) -> Result<(Found, Route)> {
        fill.check_size()?;
        let found = self.ranges.read().end(fill.to, fill.bytes(), queued, Verb::Fill.name())?;
        // Also for device memory: its places are aligned as its addresses.
        fill.check_alignment(found.place.as_ptr().addr() as u64)?;
        let route = if found.location == MemoryLocation::Device { Route::Device(found.device) } else { Route::Host };
        Ok((found, route))
    }

    /// # Safety
    ///
    /// As `Backend::copy_now`.
    pub unsafe fn copy(&self, copy: &Copy, queued: Option<(Route, [bool; 2])>, stream: Option<StreamId>) -> Result<Route> {
        let (to, from, route) = self.ends(copy, queued.map(|(_, pageable)| pageable))?;
        self.ranges.taints().check(copy.from, copy.bytes)?;
        let route = queued.map_or(route, |(route, _)| route);
        for (end, other) in [(&to, &from), (&from, &to)] {
            if end.location == MemoryLocation::Unified {
                let by = (other.location == MemoryLocation::Device).then_some(other.device);
                self.touch(end, copy.bytes, by, &Facts::copy(copy, stream));
            }
        }
        if let Route::Staged { .. } = route {
            // SAFETY: `ends` found this many bytes on both sides, or the caller promises them; the caller also promises no overlap and no
            // other use meanwhile.
            unsafe { over_the_host(to.place, from.place, copy.bytes as usize) };
        } else {
            // SAFETY: `ends` found this many bytes on both sides, or the caller promises them; the caller also promises no overlap and no
            // other use meanwhile.
            unsafe { moved(to.place, from.place, copy.bytes as usize) };
        }
        self.ranges.taints().remove(copy.to, copy.bytes);
        route.counted(&self.counts, copy.bytes);
        Ok(route)
    }

    pub fn flip(&self, copied: &Facts, at: u64) {
        let (Some(to), Some(at)) = (copied.to, at.checked_rem(copied.bytes)) else { return };
        // Memory outside every range is the caller's.
        let Ok(found) = self.ranges.read().find(to, copied.bytes, true, Verb::Copy.name()) else { return };
        // SAFETY: within the copied bytes; by the promise of the copy nothing else uses them before it is complete.
        let place = unsafe { found.place.add(at as usize) };
        // SAFETY: unused before the copy is complete: the copy's promise.
        let byte = unsafe { place.read() };
        // SAFETY: the byte that was read above; nothing else uses it before the copy is complete.
        unsafe { place.write(byte ^ 1) };
    }

    pub fn check_word(&self, word: Address, queued: Option<bool>) -> Result<(Found, Route)> {
        let bytes = size_of::<u64>() as u64;
        let found = self.ranges.read().end(word, bytes, queued, Verb::Publish.name())?;
        aligned(found.place.as_ptr().addr() as u64, bytes, bytes)?;
        let route = if found.location == MemoryLocation::Device { Route::Device(found.device) } else { Route::Host };
        Ok((found, route))
    }

    /// # Safety
    ///
    /// As `Backend::publish_now`.
    pub unsafe fn publish(&self, address: Address, value: u64, queued: Option<bool>) -> Result<Route> {
        let (found, route) = self.check_word(address, queued)?;
        // SAFETY: `check_word` found a live, aligned word, or the caller promises it; the caller also promises that others access it only
        // as a word.
        let word = unsafe { AtomicU64::from_ptr(found.place.as_ptr().cast()) };
        // SYNC POINT: published. Pairs with every acquire load of that word.
        word.store(value, Release);
        self.ranges.taints().remove(address, size_of::<u64>() as u64);
        self.counts.publications.fetch_add(1, Relaxed);
        Ok(route)
    }

    /// # Safety
    ///
    /// As `Backend::fill_now`.
    pub unsafe fn fill(&self, fill: &Fill, queued: Option<bool>, stream: Option<StreamId>) -> Result<Route> {
        let (found, route) = self.target(fill, queued)?;
        if found.location == MemoryLocation::Unified {
            self.touch(&found, fill.bytes(), None, &Facts::fill(fill, stream));
        }
        let place = found.place;
        // SAFETY: `target` checked the alignment, and found this many bytes or the caller promises them; the caller also promises all
        // elements exclusively.
        unsafe { filled(place, fill) };
        self.ranges.taints().remove(fill.to, fill.bytes());
        self.counts.fills.add(fill.bytes());
        Ok(route)
    }
}

/// # Safety
///
/// Both have this many bytes, without overlap. Meanwhile nothing else writes the source or accesses the target.
unsafe fn over_the_host(to: NonNull<u8>, from: NonNull<u8>, bytes: usize) {
    const PART: usize = 16 << 10;
    let mut host = [0; PART];
    let host = NonNull::from(&mut host).cast::<u8>();
    for begin in (0..bytes).step_by(PART) {
        let len = PART.min(bytes - begin);
        // SAFETY: `begin` is less than `bytes`.
        let (to, from) = unsafe { (to.add(begin), from.add(begin)) };
        // SAFETY: `len` bytes are left; the array has as many.
        unsafe { host.copy_from_nonoverlapping(from, len) };
        // SAFETY: `len` bytes are left in the target, which nothing else accesses; the array has as many.
        unsafe { to.copy_from_nonoverlapping(host, len) };
    }
}
