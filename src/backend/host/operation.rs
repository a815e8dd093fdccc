//! What a stream executes.

use core::ptr::NonNull;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::boxed::Box;
use std::io;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::vec::Vec;

use ringmem_layouts::image::Entry;

use super::faults::Verb;
use super::link::Route;
use super::log::Facts;
use super::panic::caught;
use super::queue::Queue;
use super::ranges::Found;
use super::shared::{Group, Shared};
use crate::backend::{Copy, Fill, MemoryLocation, Place, Prefetch, StreamId};
use crate::{Error, Result};

/// INVARIANT: whoever queued it made the promise of the backend's verb.
pub(super) enum Operation {
    /// With whether its target and its source are pageable.
    Copy(Copy, [bool; 2]),
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
}

impl Operation {
    /// On the stream's thread.
    pub fn execute(self, shared: &Shared, device: u32, facts: &Facts) -> Result<()> {
        match self {
            // SAFETY: the invariant. What was freed meanwhile waits for this operation.
            Self::Copy(copy, pageable) => unsafe { shared.copy(&copy, Some(pageable), facts.stream) }.map(drop),
            // SAFETY: as above.
            Self::Fill(fill, pageable) => unsafe { shared.fill(&fill, Some(pageable), facts.stream) }.map(drop),
            // SAFETY: as above.
            Self::Publish { word, value, pageable, .. } => unsafe { shared.publish(word, value, Some(pageable)) }.map(drop),
            Self::Prefetch(Prefetch { address, bytes, to }) => {
                let found = shared.ranges.read().find(address.get(), bytes, true, Verb::Prefetch)?;
                shared.touch(&found, bytes, to, facts);
                shared.counts.prefetches.add(bytes);
                Ok(())
            }
            Self::Launch(launch) => launch.execute(shared, device, facts),
            Self::After { stream, number, .. } => {
                // Its failure is its waiter's.
                stream.wait_for(number);
                Ok(())
            }
        }
    }
}

impl Launch {
    fn execute(&self, shared: &Shared, device: u32, facts: &Facts) -> Result<()> {
        let run = |number| {
            let group = Group { shared, device, number, facts };
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
            let others = others.map_err(|source| Error::Thread { source })?;
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
        let to = ranges.end(copy.to, copy.bytes, queued.map(|[to, _]| to), Verb::Copy)?;
        let from = ranges.end(copy.from, copy.bytes, queued.map(|[_, from]| from), Verb::Copy)?;
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
        if !matches!(fill.size, 1 | 2 | 4 | 8) {
            return Err(Error::Unsupported { what: "a fill with elements of another size than 1, 2, 4 or 8 bytes" });
        }
        let found = self.ranges.read().end(fill.to, fill.bytes(), queued, Verb::Fill)?;
        // Also what the host never sees: in an arena a place is aligned as its address is.
        let (size, address) = (u64::from(fill.size), found.place.as_ptr().addr() as u64);
        if !address.is_multiple_of(size) {
            return Err(Error::Cast { bytes: fill.bytes(), align: 1 << address.trailing_zeros(), size, needed: size });
        }
        let route = if found.location == MemoryLocation::Device { Route::Device(found.device) } else { Route::Host };
        Ok((found, route))
    }

    /// # Safety
    ///
    /// The promise of `Backend::copy_now`.
    pub unsafe fn copy(&self, copy: &Copy, queued: Option<[bool; 2]>, stream: Option<StreamId>) -> Result<Route> {
        let (to, from, route) = self.ends(copy, queued)?;
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
        self.counts.copied(route, copy.bytes);
        Ok(route)
    }

    /// Where a word is to be published, and the way there.
    pub fn check_word(&self, word: Place, queued: Option<bool>) -> Result<(Found, Route)> {
        let bytes = size_of::<u64>() as u64;
        let found = self.ranges.read().end(word, bytes, queued, Verb::Publish)?;
        let address = found.place.as_ptr().addr() as u64;
        if !address.is_multiple_of(bytes) {
            return Err(Error::Cast { bytes, align: 1 << address.trailing_zeros(), size: bytes, needed: bytes });
        }
        let route = if found.location == MemoryLocation::Device { Route::Device(found.device) } else { Route::Host };
        Ok((found, route))
    }

    /// # Safety
    ///
    /// The promise of `Backend::publish_now`.
    pub unsafe fn publish(&self, word: Place, value: u64, queued: Option<bool>) -> Result<Route> {
        let (found, route) = self.check_word(word, queued)?;
        // SAFETY: a live word, aligned; others access it as a word too: checked, and the caller's promise.
        let word = unsafe { AtomicU64::from_ptr(found.place.as_ptr().cast()) };
        // SYNC POINT: published. Pairs with whatever acquires that word.
        word.store(value, Release);
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
        unsafe {
            match fill.size {
                1 => place.write_bytes(fill.pattern as u8, fill.count as usize),
                2 => repeat(place.as_ptr().cast(), (fill.pattern as u16).to_le(), fill.count),
                4 => repeat(place.as_ptr().cast(), (fill.pattern as u32).to_le(), fill.count),
                // The element's first byte is the pattern's lowest, whatever the machine's order.
                _ => repeat(place.as_ptr().cast(), fill.pattern.to_le(), fill.count),
            }
        }
        self.counts.fills.add(fill.bytes());
        Ok(route)
    }
}

/// Copies; one word as one.
///
/// # Safety
///
/// Both places are valid for so many bytes, and apart from each other. If that is one word at each, others may access them as words.
unsafe fn moved(to: NonNull<u8>, from: NonNull<u8>, bytes: usize) {
    let is_word = |place: NonNull<u8>| place.as_ptr().addr().is_multiple_of(size_of::<u64>());
    if bytes != size_of::<u64>() || !is_word(to) || !is_word(from) {
        // SAFETY: the caller's promise.
        return unsafe { to.copy_from_nonoverlapping(from, bytes) };
    }
    // SAFETY: valid and aligned for a word; others access it as one.
    let (to, from) = unsafe { (AtomicU64::from_ptr(to.as_ptr().cast()), AtomicU64::from_ptr(from.as_ptr().cast())) };
    // SYNC POINT: published. Pairs with whoever published the source, and whoever acquires the target.
    to.store(from.load(Acquire), Release);
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

/// # Safety
///
/// `count` elements at `first` are valid for writes, and it is aligned.
unsafe fn repeat<T: core::marker::Copy>(first: *mut T, value: T, count: u64) {
    for i in 0..count as usize {
        // SAFETY: the caller's promise.
        unsafe { first.add(i).write(value) };
    }
}

#[cfg(feature = "tracing")]
fn ended(kernel: &Entry, panicked: bool) {
    tracing::debug!(kernel = kernel.name, panicked, "kernel ended");
}

#[cfg(not(feature = "tracing"))]
fn ended(_: &Entry, _: bool) {}
