//! Queued copies from and to pageable memory, in parts of [`STAGING`] bytes: a host function copies between it and pinned memory, the driver
//! between pinned memory and the device.
//!
//! 1. If the copy has several parts, its host functions run on a second stream and its parts alternate between two stagings: the driver
//!    copies one part while a host function copies the next.
//! 2. Without an idle [`Stager`], both steps run on the caller's stream.
//! 3. The operation is complete when the caller's stream has executed it. The caller's stream may then not wait for the second one, if a
//!    call failed: see `functions.rs`.
//!
//! Each call waits only for work queued before it: streams may share a hardware queue.

use cudarc::driver::sys::{CUstream, CUstream_st};

use super::Inner;
use super::call::Handle;
use super::completion_count::Route;
use super::copy::{Ends, Spot};
use super::device::{Device, STAGING};
use super::event::Event;
use super::pinned_chunks::PinnedChunk;
use super::queue::{OpBuilder, Queue};
use crate::Result;
use crate::backend::bytes::moved;
use crate::backend::ranges::Found;

/// Of [`Stager::events`], after one for each staging.
const FILLED: usize = 2;

pub(super) struct Stager {
    stream: Handle<CUstream_st>,
    staging: PinnedChunk,
    /// The last part has left the staging; the first step of a part is complete.
    events: [Event; FILLED + 1],
}

impl Stager {
    /// The context must be bound.
    pub fn new(device: &Device) -> Result<Self> {
        let event = || device.events.take();
        let (staging, events) = (device.stagings.take()?, [event()?, event()?, event()?]);
        Ok(Self { stream: device.stream()?, staging, events })
    }

    pub const fn stream(&self) -> CUstream {
        self.stream.0
    }
}

impl Inner {
    pub(super) fn copy_staged(&self, op: &mut OpBuilder<'_>, queue: &Queue, ends: &Ends, bytes: usize) -> Result<()> {
        let stager = if bytes > STAGING { op.stager() } else { None };
        let (own, caller) = (op.staging()?, queue.handle());
        let (other, functions) = stager.as_ref().map_or((own, caller), |stager| (stager.staging.place(), stager.stream()));
        let record = |op: &mut OpBuilder<'_>, event: usize, on| match &stager {
            Some(stager) => op.call(|_| stager.events[event].record(on)),
            None => Ok(()),
        };
        let wait = |op: &mut OpBuilder<'_>, event: usize, on| match &stager {
            // SAFETY: both are live. Recording the event again does not change what this call waits for.
            Some(stager) => op.call(|_| unsafe { self.calls().cuStreamWaitEvent(on, stager.events[event].handle(), 0) }),
            None => Ok(()),
        };
        let up = ends.route == Route::Up;
        let (first, second) = if up { (functions, caller) } else { (caller, functions) };
        let mut index = 0;
        if up {
            record(op, FILLED, caller)?;
            wait(op, FILLED, functions)?;
        }
        while index * STAGING < bytes {
            let (staging, half) = ([own, other][index % 2], index % 2);
            let begin = index * STAGING;
            let len = STAGING.min(bytes - begin);
            let [mut to, mut from] = [&ends.to, &ends.from].map(|end| part(end, begin));
            let job = if up { [staging, from.place] } else { [to.place, staging] }.map(Spot::new);
            *(if up { &mut from } else { &mut to }) = Found { place: staging, ..if up { from } else { to } };
            let copy = |op: &mut OpBuilder<'_>| op.call(|_| self.issue(&Ends { to, from, route: ends.route }, len, &queue.device, caller));
            let function = |op: &mut OpBuilder<'_>| {
                // SAFETY: this many bytes, the caller's until the operation is complete; the staging is this part's.
                self.host(op, functions, move || unsafe { moved(job[0].get(), job[1].get(), len) })
            };
            if index >= FILLED {
                wait(op, half, first)?;
            }
            if up {
                function(op)?
            } else {
                copy(op)?
            }
            record(op, FILLED, first)?;
            wait(op, FILLED, second)?;
            if up {
                copy(op)?
            } else {
                function(op)?
            }
            record(op, half, second)?;
            index += 1;
        }
        if up { Ok(()) } else { wait(op, (index - 1) % 2, caller) }
    }
}

fn part(found: &Found, begin: usize) -> Found {
    let place = core::ptr::NonNull::new(found.place.as_ptr().wrapping_add(begin)).unwrap_or(found.place);
    Found { place, ..*found }
}
