//! Copies: the driver call for each pair of memory locations.
//!
//! Between host memories the processor copies, when queued in a host function: the driver's own copy blocks the caller. Pageable memory is staged:
//! see `staged.rs`. Without host functions, a pageable source is read at the call, and a queued copy to pageable memory blocks.
//!
//! A blocking copy of one word uses the lane's pinned word: the host then accesses memory by one load or store. Managed memory that the
//! host must not access counts as device memory.

use core::ptr::NonNull;

use cudarc::driver::sys::CUstream;

use super::Inner;
use super::completion_count::{CompletionCount, Route};
use super::device::Device;
use super::process;
use super::queue::{Length, OpBuilder, Queue};
use crate::Result;
use crate::backend::bytes::{is_word, moved};
use crate::backend::ranges::Found;
use crate::backend::{Copy, MemoryLocation, Place, StreamId, Ticket};

pub(super) struct Ends {
    pub to: Found,
    pub from: Found,
    pub route: Route,
}

impl Ends {
    fn is_pageable(&self) -> bool {
        [&self.to, &self.from].iter().any(|end| end.location == MemoryLocation::Host)
    }

    pub fn done(&self, bytes: u64) -> CompletionCount {
        CompletionCount::copy(self.route, self.is_pageable(), bytes)
    }
}

pub(super) fn address(found: &Found) -> u64 {
    found.place.as_ptr().addr() as u64
}

pub(super) fn device_address(found: &Found) -> u64 {
    address(found).wrapping_add(found.shift)
}

impl Inner {
    #[inline(always)]
    pub(super) fn ends(&self, copy: &Copy) -> Result<Ends> {
        let to = self.ranges.end(copy.to, copy.bytes, "copy")?;
        let from = self.ranges.end(copy.from, copy.bytes, "copy")?;
        self.ranges.taints().check(copy.from, copy.bytes)?;
        let route = match (self.is_far(&from)?, self.is_far(&to)?) {
            (false, false) => Route::Host,
            (false, true) => Route::Up,
            (true, false) => Route::Down,
            (true, true) if from.device == to.device => Route::Device,
            (true, true) if self.reach_each_other(from.device, to.device) => Route::Peer,
            (true, true) => Route::Staged,
        };
        Ok(Ends { to, from, route })
    }

    /// True if only the driver may access the memory.
    pub(super) fn is_far(&self, found: &Found) -> Result<bool> {
        Ok(match found.location {
            MemoryLocation::Device => true,
            MemoryLocation::Unified => !self.device(found.device)?.facts.concurrent_managed_access,
            MemoryLocation::Pinned | MemoryLocation::Host => false,
        })
    }

    pub(super) fn issue(&self, ends: &Ends, bytes: usize, home: &Device, stream: CUstream) -> Result<()> {
        let Ends { to, from, route } = ends;
        let (target, source) = (device_address(to), device_address(from));
        let calls = home.calls;
        // SAFETY: both ends live for this many bytes until complete: found, or the caller's promise. A host end has its host address.
        unsafe {
            match route {
                Route::Host | Route::Up => calls.cuMemcpyHtoDAsync_v2(target, from.place.as_ptr().cast(), bytes, stream),
                Route::Down => calls.cuMemcpyDtoHAsync_v2(to.place.as_ptr().cast(), source, bytes, stream),
                Route::Device => calls.cuMemcpyDtoDAsync_v2(target, source, bytes, stream),
                Route::Peer | Route::Staged => {
                    let [to, from] = [self.device(to.device)?.context(), self.device(from.device)?.context()];
                    calls.cuMemcpyPeerAsync(target, to.0, source, from.0, bytes, stream)
                }
            }
        }
    }

    /// # Safety
    ///
    /// As `Backend::copy_now`.
    pub(super) unsafe fn copy_at_once(&self, copy: &Copy) -> Result<()> {
        process::takes_locks("cuMemcpyHtoDAsync_v2")?;
        let ends = self.ends(copy)?;
        let bytes = copy.bytes as usize;
        let word = is_word(address(&ends.to), address(&ends.from), copy.bytes);
        match ends.route {
            Route::Host => {
                drain();
                // SAFETY: this many bytes: checked, or promised. No overlap, no access but as one word: the caller's promise.
                unsafe { moved(ends.to.place, ends.from.place, bytes) };
                drain();
            }
            Route::Up if word => self.device(ends.to.device)?.now(|lane| {
                // SAFETY: the caller's promise; this thread's word.
                unsafe { moved(lane.word().cast(), ends.from.place, bytes) };
                // SAFETY: a live device word; the lane's lives until synchronised.
                unsafe { self.calls().cuMemcpyHtoDAsync_v2(address(&ends.to), lane.word().as_ptr().cast(), bytes, lane.stream()) }
            })?,
            Route::Down if word => self.device(ends.from.device)?.now(|lane| {
                // SAFETY: as above.
                unsafe { self.calls().cuMemcpyDtoHAsync_v2(lane.word().as_ptr().cast(), address(&ends.from), bytes, lane.stream()) }?;
                // SAFETY: the lane's own stream.
                unsafe { self.calls().cuStreamSynchronize(lane.stream()) }?;
                // SAFETY: the caller's promise; this thread's word, already written.
                unsafe { moved(ends.to.place, lane.word().cast(), bytes) };
                Ok(())
            })?,
            _ => {
                let home = self.device(if ends.route == Route::Up { ends.to.device } else { ends.from.device })?;
                home.now(|lane| self.issue(&ends, bytes, home, lane.stream()))?;
            }
        }
        self.ranges.taints().remove(copy.to, copy.bytes);
        ends.done(copy.bytes).count(&self.counts);
        Ok(())
    }

    /// # Safety
    ///
    /// As `Backend::copy`.
    pub(super) unsafe fn copy_queued(&self, copy: &Copy, on: StreamId) -> Result<Ticket> {
        let queue = self.stream(on)?;
        let ends = self.ends(copy)?;
        let bytes = copy.bytes as usize;
        self.write_queued(&queue, on, (copy.to, &ends.to, copy.bytes), ends.done(copy.bytes), |op| {
            let calls = queue.device.calls;
            let by_host = ends.route == Route::Host || ends.is_pageable();
            if !by_host || calls.cuLaunchHostFunc.is_none() && !(ends.route == Route::Host && ends.is_pageable()) {
                return op.call(|stream| self.issue(&ends, bytes, &queue.device, stream));
            }
            let (to, from) = (Spot(ends.to.place), Spot(ends.from.place));
            if ends.route == Route::Host {
                // SAFETY: as in `copy_at_once`, until complete.
                return self.host(op, queue.handle(), move || unsafe { moved(to.get(), from.get(), bytes) });
            }
            self.copy_staged(op, &queue, &ends, bytes)
        })
    }

    pub(super) fn write_queued(
        &self,
        queue: &Queue,
        on: StreamId,
        (to, found, bytes): (Place, &Found, u64),
        done: CompletionCount,
        make: impl FnOnce(&mut OpBuilder<'_>) -> Result<()>,
    ) -> Result<Ticket> {
        let taints = self.ranges.taints();
        let number = queue.push(Length::Bytes(bytes), Some(done), |op| {
            let made = make(op);
            match (&made, op.failed()) {
                (Ok(()), _) => taints.remove(to, bytes),
                (Err(error), Some(number)) if !found.in_no_range => taints.add(to, bytes, Ticket { stream: on, number }, error),
                (Err(_), _) => {}
            }
            made
        })?;
        Ok(Ticket { stream: on, number })
    }
}

#[derive(Clone, Copy)]
pub(super) struct Spot(NonNull<u8>);

// SAFETY: only a number; each dereference has its own argument.
unsafe impl Send for Spot {}

impl Spot {
    pub const fn new(place: NonNull<u8>) -> Self {
        Self(place)
    }

    pub const fn get(self) -> NonNull<u8> {
        self.0
    }
}

/// Orders stores to write-combined memory, which a release store does not.
pub(super) fn drain() {
    // SAFETY: always present on this architecture.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        core::arch::x86_64::_mm_sfence();
    }
}
