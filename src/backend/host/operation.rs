//! What a stream executes.

use core::ptr::NonNull;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Relaxed, Release};
use std::boxed::Box;
use std::io;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::vec::Vec;

use ringmem_layouts::image::Entry;

use super::faults::Verb;
use super::link::Route;
use super::log::Facts;
use super::queue::Queue;
use super::shared::{Group, Shared};
use crate::backend::bytes::{aligned, moved};
use crate::backend::fill::filled;
use crate::backend::panic::caught;
use crate::backend::ranges::Found;
use crate::backend::{Copy, Fill, MemoryLocation, Operand, Place, Prefetch, StreamId, Ticket};
use crate::{Error, Result};

/// INVARIANT: whoever queued it made the promise of the backend's verb.
pub(super) enum Operation {
    /// With its way, and whether its target and its source are pageable: as they were at the call.
    Copy(Copy, Route, [bool; 2]),
    /// With whether its target is pageable.
    Fill(Fill, bool),
    /// With the number of the operation since which nothing may have failed, and whether the word is pageable.
    Publish {
        word: Place,
        value: u64,
        since: u64,
        pageable: bool,
    },
    Prefetch(Prefetch),
    Launch(Launch),
    /// What time it is when it is executed.
    Record(Arc<OnceLock<u64>>),
    /// Waits for an operation of another stream.
    After {
        stream: Arc<Queue>,
        number: u64,
        /// Whether a kernel was before it when this was queued.
        may_last: bool,
    },
}

pub(super) struct Launch {
    pub entry: Entry,
    pub arguments: Box<[u64]>,
    pub groups: u32,
    pub operands: Box<[Operand]>,
}

impl Operation {
    /// Taints the target of this operation, which failed. Pageable memory of the caller is not tracked, and a word that was not published is
    /// unchanged.
    pub fn taint(&self, shared: &Shared, failed: Ticket, error: &Error) {
        let (taints, reached) = (shared.ranges.taints(), |ticket| shared.reached(ticket));
        let add = |place, bytes| {
            if !taints.is_of_previous_owner(place, bytes, failed, reached) {
                taints.add(place, bytes, failed, error);
            }
        };
        match self {
            Self::Copy(copy, _, [false, _]) => add(copy.to, copy.bytes),
            Self::Fill(fill, false) => add(fill.to, fill.bytes()),
            Self::Launch(launch) => {
                launch.operands.iter().filter(|operand| operand.is_written).for_each(|operand| add(operand.place, operand.bytes));
            }
            Self::Copy(..) | Self::Fill(..) | Self::Publish { .. } | Self::Prefetch(_) | Self::Record(_) | Self::After { .. } => {}
        }
    }

    /// Executes the operation on the stream's thread.
    pub fn execute(&self, shared: &Shared, device: u32, facts: &Facts) -> Result<()> {
        match *self {
            // SAFETY: the invariant. What was freed meanwhile waits for this operation.
            Self::Copy(ref copy, route, pageable) => unsafe { shared.copy(copy, Some((route, pageable)), facts.stream) }.map(drop),
            // SAFETY: as above.
            Self::Fill(ref fill, pageable) => unsafe { shared.fill(fill, Some(pageable), facts.stream) }.map(drop),
            // SAFETY: as above.
            Self::Publish { word, value, pageable, .. } => unsafe { shared.publish(word, value, Some(pageable)) }.map(drop),
            Self::Prefetch(Prefetch { address, bytes, to }) => {
                let found = shared.ranges.read().find(address.get(), bytes, true, Verb::Prefetch.name())?;
                shared.touch(&found, bytes, to, facts);
                shared.counts.prefetches.add(bytes);
                Ok(())
            }
            Self::Launch(ref launch) => launch.execute(shared, device, facts),
            Self::Record(ref at) => {
                at.get_or_init(|| shared.now_ns());
                Ok(())
            }
            Self::After { ref stream, number, .. } => {
                // Its failure is its waiter's.
                stream.wait_for(number);
                Ok(())
            }
        }
    }
}

impl Launch {
    fn execute(&self, shared: &Shared, device: u32, facts: &Facts) -> Result<()> {
        self.operands.iter().try_for_each(|operand| shared.ranges.taints().check(operand.place, operand.bytes))?;
        let run = |number| {
            let group = Group { shared, device, number, groups: u64::from(self.groups), facts };
            // SAFETY: the invariant.
            let ended = caught(|| unsafe { (self.entry.run)(&group, &self.arguments) });
            ended.ok_or_else(|| {
                shared.counts.kernel_panics.fetch_add(1, Relaxed);
                Error::KernelPanicked { name: self.entry.name }
            })
        };
        // Groups of one launch run at once, as blocks do: they may wait for each other. So none runs where not all have a thread.
        let all_there = OnceLock::new();
        let outcome = thread::scope(|scope| {
            let start = |number| {
                let all_there = &all_there;
                thread::Builder::new().spawn_scoped(scope, move || if *all_there.wait() { run(number) } else { Ok(()) })
            };
            let others: io::Result<Vec<_>> = (1..u64::from(self.groups)).map(start).collect();
            all_there.get_or_init(|| others.is_ok());
            let others = others.map_err(|source| Error::System { call: "start of a thread", path: None, answer: source })?;
            shared.counts.launches.fetch_add(1, Relaxed);
            let first = run(0);
            others.into_iter().fold(first, |outcome, other| outcome.and(other.join().unwrap_or(Ok(()))))
        });
        ended(&self.entry, outcome.is_err());
        outcome
    }
}

impl Shared {
    /// Both ends of a copy, target first, and the way between them.
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
            // The engine of whichever device reaches the other does it.
            (true, true) if self.peers.reaches(from.device, to.device) || self.peers.reaches(to.device, from.device) => {
                Route::Peer { from: from.device, to: to.device }
            }
            (true, true) => Route::Staged { from: from.device, to: to.device },
        };
        Ok((to, from, route))
    }

    /// The way of a copy, and whether its target and its source are pageable.
    pub fn check_copy(&self, copy: &Copy) -> Result<(Route, [bool; 2])> {
        self.ends(copy, None).map(|(to, from, route)| (route, [to.in_no_range, from.in_no_range]))
    }

    /// The way of a fill, and whether its target is pageable.
    pub fn check_fill(&self, fill: &Fill) -> Result<(Route, bool)> {
        self.target(fill, None).map(|(found, route)| (route, found.in_no_range))
    }

    fn target(&self, fill: &Fill, queued: Option<bool>) -> Result<(Found, Route)> {
        fill.check_size()?;
        let found = self.ranges.read().end(fill.to, fill.bytes(), queued, Verb::Fill.name())?;
        // Also what the host never sees: in an arena a place is aligned as its address is.
        aligned(found.place.as_ptr().addr() as u64, fill.bytes(), u64::from(fill.size))?;
        let route = if found.location == MemoryLocation::Device { Route::Device(found.device) } else { Route::Host };
        Ok((found, route))
    }

    /// # Safety
    ///
    /// The promise of `Backend::copy_now`.
    pub unsafe fn copy(&self, copy: &Copy, queued: Option<(Route, [bool; 2])>, stream: Option<StreamId>) -> Result<Route> {
        let (to, from, route) = self.ends(copy, queued.map(|(_, pageable)| pageable))?;
        self.ranges.taints().check(copy.from, copy.bytes)?;
        // A peer enabled or disabled since the call changes nothing.
        let route = queued.map_or(route, |(route, _)| route);
        for (end, other) in [(&to, &from), (&from, &to)] {
            if end.location == MemoryLocation::Unified {
                let by = (other.location == MemoryLocation::Device).then_some(other.device);
                self.touch(end, copy.bytes, by, &Facts::copy(copy, stream));
            }
        }
        if let Route::Staged { .. } = route {
            // SAFETY: as below.
            unsafe { over_the_host(to.place, from.place, copy.bytes as usize) };
        } else {
            // SAFETY: both checked for so many bytes, or promised; apart and nobody else's: the caller's promise.
            unsafe { moved(to.place, from.place, copy.bytes as usize) };
        }
        self.ranges.taints().remove(copy.to, copy.bytes);
        route.counted(&self.counts, copy.bytes);
        Ok(route)
    }

    /// Flips a bit of what a copy has written, while that is still the copy's own.
    pub fn flip(&self, copied: &Facts, at: u64) {
        let (Some(to), Some(at)) = (copied.to, at.checked_rem(copied.bytes)) else { return };
        // What is in no range is the caller's, of which only an address is known here.
        let Ok(found) = self.ranges.read().find(to, copied.bytes, true, Verb::Copy.name()) else { return };
        // SAFETY: within what was copied.
        let place = unsafe { found.place.add(at as usize) };
        // SAFETY: a byte of the target, which nobody else uses before the copy is over: the copy's promise.
        let byte = unsafe { place.read() };
        // SAFETY: as above.
        unsafe { place.write(byte ^ 1) };
    }

    /// Where a word is to be published, and the way there.
    pub fn check_word(&self, word: Place, queued: Option<bool>) -> Result<(Found, Route)> {
        let bytes = size_of::<u64>() as u64;
        let found = self.ranges.read().end(word, bytes, queued, Verb::Publish.name())?;
        aligned(found.place.as_ptr().addr() as u64, bytes, bytes)?;
        let route = if found.location == MemoryLocation::Device { Route::Device(found.device) } else { Route::Host };
        Ok((found, route))
    }

    /// # Safety
    ///
    /// The promise of `Backend::publish_now`.
    pub unsafe fn publish(&self, place: Place, value: u64, queued: Option<bool>) -> Result<Route> {
        let (found, route) = self.check_word(place, queued)?;
        // SAFETY: a live word, aligned; others access it as a word too: checked, and the caller's promise.
        let word = unsafe { AtomicU64::from_ptr(found.place.as_ptr().cast()) };
        // SYNC POINT: published. Pairs with whatever acquires that word.
        word.store(value, Release);
        self.ranges.taints().remove(place, size_of::<u64>() as u64);
        self.counts.publications.fetch_add(1, Relaxed);
        Ok(route)
    }

    /// # Safety
    ///
    /// The promise of `Backend::fill_now`.
    pub unsafe fn fill(&self, fill: &Fill, queued: Option<bool>, stream: Option<StreamId>) -> Result<Route> {
        let (found, route) = self.target(fill, queued)?;
        if found.location == MemoryLocation::Unified {
            self.touch(&found, fill.bytes(), None, &Facts::fill(fill, stream));
        }
        let place = found.place;
        // SAFETY: so many elements, nobody else's: checked, and the caller's promise.
        unsafe { filled(place, fill) };
        self.ranges.taints().remove(fill.to, fill.bytes());
        self.counts.fills.add(fill.bytes());
        Ok(route)
    }
}

/// Copies from a device to another as it goes without a way between them: into the host's memory, and out of it.
///
/// # Safety
///
/// Both places are valid for so many bytes, apart from each other.
unsafe fn over_the_host(to: NonNull<u8>, from: NonNull<u8>, bytes: usize) {
    const PART: usize = 16 << 10;
    let mut host = [0; PART];
    let host = NonNull::from(&mut host).cast::<u8>();
    for begin in (0..bytes).step_by(PART) {
        let len = PART.min(bytes - begin);
        // SAFETY: `begin` is within so many bytes.
        let (to, from) = unsafe { (to.add(begin), from.add(begin)) };
        // SAFETY: `len` bytes are left, and the array has as many.
        unsafe { host.copy_from_nonoverlapping(from, len) };
        // SAFETY: as above.
        unsafe { to.copy_from_nonoverlapping(host, len) };
    }
}

#[cfg(feature = "tracing")]
fn ended(kernel: &Entry, panicked: bool) {
    tracing::debug!(kernel = kernel.name, panicked, "kernel ended");
}

#[cfg(not(feature = "tracing"))]
fn ended(_: &Entry, _: bool) {}
