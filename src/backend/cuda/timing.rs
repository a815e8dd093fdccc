//! [`TimingEvents`]: events with a time, one for each recorded ticket.
//!
//! A timed event belongs to one ticket, and is never reused. It is destroyed when the ticket is forgotten, or with the backend. The driver keeps a pending
//! event until it is complete. A failed creation or record leaves nothing: no ticket exists for it.

use core::ptr;
use core::time::Duration;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys::CUevent_st;
use foldhash::fast::RandomState;

use super::Inner;
use super::device::Device;
use super::driver::{self, Handle, code};
use super::queue::Length;
use crate::backend::{StreamId, Ticket};
use crate::error::OperationFault;
use crate::{Error, Result};

/// Timed events by ticket, until the ticket is forgotten.
#[derive(Default)]
pub(super) struct TimingEvents {
    kept: Mutex<HashMap<Ticket, TimingEvent, RandomState>>,
}

struct TimingEvent {
    event: Handle<CUevent_st>,
    device: Arc<Device>,
}

impl TimingEvents {
    pub fn has(&self, ticket: Ticket) -> bool {
        self.kept().contains_key(&ticket)
    }

    pub fn destroy(&self, device: &Device) {
        self.kept().retain(|_, timing| timing.device.ordinal != device.ordinal);
    }

    fn kept(&self) -> MutexGuard<'_, HashMap<Ticket, TimingEvent, RandomState>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for TimingEvent {
    fn drop(&mut self) {
        let _bound = self.device.bind();
        // SAFETY: the event was created once and is destroyed only here. The driver keeps a pending event until it is complete.
        let _ = unsafe { self.device.calls.cuEventDestroy_v2(self.event.0) };
    }
}

impl Inner {
    pub(super) fn record_timing(&self, stream: StreamId) -> Result<Ticket> {
        const TIMED: u32 = 0;
        let queue = self.stream(stream)?;
        let calls = queue.device.calls;
        let bound = queue.device.bind()?;
        let mut event = ptr::null_mut();
        // SAFETY: the call writes one handle, to a local variable.
        unsafe { calls.cuEventCreate(&raw mut event, TIMED) }?;
        let timing = TimingEvent { event: Handle(event), device: Arc::clone(&queue.device) };
        let record = |stream| {
            // SAFETY: the event was created above, and the queue keeps its stream alive.
            unsafe { calls.cuEventRecord(event, stream) }
        };
        let number = queue.push_bound(&bound, queue.state(), None, Length::Bytes(0), None, |op| op.call(record))?;
        let ticket = Ticket { stream, number };
        self.timing_events.kept().insert(ticket, timing);
        Ok(ticket)
    }

    pub(super) fn elapsed_between(&self, from: Ticket, to: Ticket) -> Result<Duration> {
        driver::check_not_forked("cuEventElapsedTime")?;
        let kept = self.timing_events.kept();
        let (Some(first), Some(second)) = (kept.get(&from), kept.get(&to)) else {
            return Err(Error::Unsupported { what: "the time of a ticket without a recorded event" });
        };
        for ticket in [from, to] {
            if !self.is_complete(ticket) {
                return Err(Error::Operation { what: OperationFault::NotReached, stream: ticket.stream.get(), number: ticket.number });
            }
        }
        let _bound = second.device.bind()?;
        let mut milliseconds = 0.0_f32;
        // SAFETY: both events are in the table, whose lock is held. The call writes one number, to a local variable.
        match unsafe { second.device.calls.cuEventElapsedTime(&raw mut milliseconds, first.event.0, second.event.0) } {
            Ok(()) => Ok(Duration::try_from_secs_f32(milliseconds.max(0.0) / 1e3).unwrap_or_default()),
            Err(Error::Driver { code: code::NOT_READY, .. }) => {
                Err(Error::Operation { what: OperationFault::NotReached, stream: to.stream.get(), number: to.number })
            }
            Err(error) => Err(error),
        }
    }

    pub(super) fn forget_timing(&self, ticket: Ticket) {
        let forgotten = self.timing_events.kept().remove(&ticket);
        // The drop calls the driver.
        drop(forgotten);
    }
}
