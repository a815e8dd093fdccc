//! What a stream executes.

use core::mem;
use core::sync::atomic::Ordering::Relaxed;
use std::boxed::Box;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;

use ringmem_layouts::image::Entry;

use super::queue::Queue;
use super::ranges::Found;
use super::shared::{Group, Shared};
use crate::backend::{Copy, Fill, MemoryLocation, Place};
use crate::{Error, Result};

/// INVARIANT: whoever queued it made the promise of the backend's verb.
pub(super) enum Operation {
    Copy(Copy),
    Fill(Fill),
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
    pub fn execute(self, shared: &Shared) -> Result<()> {
        match self {
            // SAFETY: the invariant. What was freed meanwhile waits for this operation.
            Self::Copy(copy) => unsafe { shared.copy(&copy, true) },
            // SAFETY: as above.
            Self::Fill(fill) => unsafe { shared.fill(&fill, true) },
            Self::Launch(launch) => launch.execute(shared),
            Self::After(stream, number) => {
                // Its failure is its waiter's.
                stream.wait_for(number);
                Ok(())
            }
        }
    }
}

impl Launch {
    fn execute(&self, shared: &Shared) -> Result<()> {
        shared.counts.launches.fetch_add(1, Relaxed);
        let run = |number| {
            let group = Group { shared, number };
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
            Place::Host(place) => Ok(Found { place, location: MemoryLocation::Host, device: 0 }),
        }
    }

    pub fn check_copy(&self, copy: &Copy) -> Result<()> {
        self.find(copy.to, copy.bytes, false, "copy")?;
        self.find(copy.from, copy.bytes, false, "copy").map(drop)
    }

    pub fn check_fill(&self, fill: &Fill) -> Result<()> {
        self.find(fill.to, fill.bytes(), false, "fill").map(drop)
    }

    /// # Safety
    ///
    /// The promise of `Backend::copy_now`.
    pub unsafe fn copy(&self, copy: &Copy, dead: bool) -> Result<()> {
        let to = self.find(copy.to, copy.bytes, dead, "copy")?;
        let from = self.find(copy.from, copy.bytes, dead, "copy")?;
        // SAFETY: both checked for so many bytes, or promised; apart and nobody else's: the caller's promise.
        unsafe { to.place.copy_from_nonoverlapping(from.place, copy.bytes as usize) };
        self.counts.copied(&from, &to).add(copy.bytes);
        Ok(())
    }

    /// # Safety
    ///
    /// The promise of `Backend::fill_now`.
    pub unsafe fn fill(&self, fill: &Fill, dead: bool) -> Result<()> {
        let Found { place, .. } = self.find(fill.to, fill.bytes(), dead, "fill")?;
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
        Ok(())
    }
}

/// # Safety
///
/// `count` elements at `first` are valid for writes.
unsafe fn repeat<T: core::marker::Copy>(first: *mut T, value: T, count: u64) {
    for i in 0..count as usize {
        // SAFETY: the caller's promise. Unaligned where the caller's place is.
        unsafe { first.add(i).write_unaligned(value) };
    }
}

#[cfg(feature = "tracing")]
fn ended(kernel: &Entry, panicked: bool) {
    tracing::debug!(kernel = kernel.name, panicked, "kernel ended");
}

#[cfg(not(feature = "tracing"))]
fn ended(_: &Entry, _: bool) {}
