//! What a stream executes.

use core::mem;
use core::ptr::NonNull;
use core::sync::atomic::Ordering::Relaxed;
use std::boxed::Box;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;

use ringmem_layouts::image::Entry;

use super::faults::Verb;
use super::link::Route;
use super::log::Facts;
use super::queue::Queue;
use super::ranges::Found;
use super::shared::{Group, Shared};
use crate::backend::{Copy, Fill, MemoryLocation, Place, Prefetch};
use crate::{Error, Result};

/// INVARIANT: whoever queued it made the promise of the backend's verb.
pub(super) enum Operation {
    Copy(Copy),
    Fill(Fill),
    Prefetch(Prefetch),
    Launch(Launch),
    /// Waits for an operation of another stream.
    After(Arc<Queue>, u64),
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
            Self::Copy(copy) => unsafe { shared.copy(&copy, true, facts) }.map(drop),
            // SAFETY: as above.
            Self::Fill(fill) => unsafe { shared.fill(&fill, true, facts) }.map(drop),
            Self::Prefetch(Prefetch { address, bytes, to }) => {
                let found = shared.ranges.find(address.get(), bytes, true, Verb::Prefetch.name())?;
                shared.touch(&found, bytes, to, facts);
                shared.counts.prefetches.add(bytes);
                Ok(())
            }
            Self::Launch(launch) => launch.execute(shared, device, facts),
            Self::After(stream, number) => {
                // Its failure is its waiter's.
                stream.wait_for(number);
                Ok(())
            }
        }
    }
}

impl Launch {
    fn execute(&self, shared: &Shared, device: u32, facts: &Facts) -> Result<()> {
        shared.counts.launches.fetch_add(1, Relaxed);
        let run = |number| {
            let group = Group { shared, device, number, facts };
            // SAFETY: the invariant.
            let ended = catch_unwind(AssertUnwindSafe(|| unsafe { (self.entry.run)(&group, &self.arguments) }));
            ended.map_err(|payload| {
                // What was thrown may throw when it is dropped, and what that throws is not tried again.
                catch_unwind(AssertUnwindSafe(|| drop(payload))).unwrap_or_else(mem::forget);
                shared.counts.kernel_panics.fetch_add(1, Relaxed);
                Error::KernelPanicked { name: self.entry.name }
            })
        };
        // Groups of one launch run at once, as blocks do.
        let outcome = thread::scope(|scope| {
            let others: std::vec::Vec<_> = (1..u64::from(self.groups)).map(|number| scope.spawn(move || run(number))).collect();
            let first = run(0);
            others.into_iter().fold(first, |outcome, other| outcome.and(other.join().unwrap_or(Ok(()))))
        });
        ended(&self.entry, outcome.is_err());
        outcome
    }
}

impl Shared {
    /// Where an end of a copy is.
    fn find(&self, place: Place, bytes: u64, dead: bool, call: &'static str) -> Result<Found> {
        match place {
            Place::Device(address) => self.ranges.find(address.get(), bytes, dead, call),
            // Pageable memory of the caller's is in no range.
            Place::Host(place) if self.ranges.is_listed(place) => self.ranges.find(place.as_ptr().addr() as u64, bytes, dead, call),
            Place::Host(place) => {
                Ok(Found { place, location: MemoryLocation::Host, device: 0, start: place.as_ptr().addr() as u64, offset: 0 })
            }
        }
    }

    /// Both ends of a copy, target first, and the way between them.
    fn ends(&self, copy: &Copy, dead: bool) -> Result<(Found, Found, Route)> {
        let to = self.find(copy.to, copy.bytes, dead, Verb::Copy.name())?;
        let from = self.find(copy.from, copy.bytes, dead, Verb::Copy.name())?;
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

    pub fn check_copy(&self, copy: &Copy) -> Result<Route> {
        self.ends(copy, false).map(|(_, _, route)| route)
    }

    pub fn check_fill(&self, fill: &Fill) -> Result<Route> {
        self.target(fill, false).map(|(_, route)| route)
    }

    fn target(&self, fill: &Fill, dead: bool) -> Result<(Found, Route)> {
        if !matches!(fill.size, 1 | 2 | 4 | 8) {
            return Err(Error::Unsupported { what: "a fill with elements of another size than 1, 2, 4 or 8 bytes" });
        }
        let found = self.find(fill.to, fill.bytes(), dead, Verb::Fill.name())?;
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
    pub unsafe fn copy(&self, copy: &Copy, dead: bool, facts: &Facts) -> Result<Route> {
        let (to, from, route) = self.ends(copy, dead)?;
        for (end, other) in [(&to, &from), (&from, &to)] {
            if end.location == MemoryLocation::Unified {
                self.touch(end, copy.bytes, (other.location == MemoryLocation::Device).then_some(other.device), facts);
            }
        }
        if let Route::Staged { .. } = route {
            // SAFETY: as below.
            unsafe { over_the_host(to.place, from.place, copy.bytes as usize) };
        } else {
            // SAFETY: both checked for so many bytes, or promised; apart and nobody else's: the caller's promise.
            unsafe { to.place.copy_from_nonoverlapping(from.place, copy.bytes as usize) };
        }
        self.counts.copied(route, copy.bytes);
        Ok(route)
    }

    /// # Safety
    ///
    /// The promise of `Backend::fill_now`.
    pub unsafe fn fill(&self, fill: &Fill, dead: bool, facts: &Facts) -> Result<Route> {
        let (found, route) = self.target(fill, dead)?;
        if found.location == MemoryLocation::Unified {
            self.touch(&found, fill.bytes(), None, facts);
        }
        let place = found.place;
        // SAFETY: so many elements, nobody else's: checked, and the caller's promise.
        unsafe {
            match fill.size {
                1 => place.write_bytes(fill.pattern as u8, fill.count as usize),
                2 => repeat(place.as_ptr().cast(), fill.pattern as u16, fill.count),
                4 => repeat(place.as_ptr().cast(), fill.pattern as u32, fill.count),
                _ => repeat(place.as_ptr().cast(), fill.pattern, fill.count),
            }
        }
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
