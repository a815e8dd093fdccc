//! [`Moments`]: timed events in streams.

use core::ptr;
use core::time::Duration;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys::CUevent_st;
use foldhash::fast::RandomState;

use super::Shared;
use super::call::Handle;
use super::code::number;
use super::device::Device;
use super::process;
use super::queue::Lasts;
use crate::backend::{StreamId, Ticket};
use crate::error::OperationFault;
use crate::{Error, Result};

#[derive(Default)]
pub(super) struct Moments {
    kept: Mutex<HashMap<Ticket, Moment, RandomState>>,
}

struct Moment {
    event: Handle<CUevent_st>,
    device: Arc<Device>,
}

impl Moments {
    pub fn has(&self, ticket: Ticket) -> bool {
        self.kept().contains_key(&ticket)
    }

    pub fn give_back(&self, device: &Device) {
        self.kept().retain(|_, moment| moment.device.ordinal != device.ordinal);
    }

    fn kept(&self) -> MutexGuard<'_, HashMap<Ticket, Moment, RandomState>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Moment {
    fn drop(&mut self) {
        let _bound = self.device.bind();
        // SAFETY: created once; the driver releases a pending event at its completion.
        let _ = unsafe { self.device.calls.cuEventDestroy_v2(self.event.0) };
    }
}

impl Shared {
    pub(super) fn record_moment(&self, stream: StreamId) -> Result<Ticket> {
        const TIMED: u32 = 0;
        let queue = self.stream(stream)?;
        let calls = queue.device.calls;
        let bound = queue.device.bind()?;
        let mut event = ptr::null_mut();
        // SAFETY: writes one handle.
        unsafe { calls.cuEventCreate(&raw mut event, TIMED) }?;
        let moment = Moment { event: Handle(event), device: Arc::clone(&queue.device) };
        let record = |stream| {
            // SAFETY: a live event and stream.
            unsafe { calls.cuEventRecord(event, stream) }
        };
        let number = queue.push_bound(&bound, queue.state(), None, Lasts::Bytes(0), None, |making| making.call(record))?;
        let ticket = Ticket { stream, number };
        self.moments.kept().insert(ticket, moment);
        Ok(ticket)
    }

    pub(super) fn elapsed_between(&self, from: Ticket, to: Ticket) -> Result<Duration> {
        process::takes_locks("cuEventElapsedTime")?;
        let kept = self.moments.kept();
        let (Some(first), Some(second)) = (kept.get(&from), kept.get(&to)) else {
            return Err(Error::Unsupported { what: "the time of a ticket without a recorded event" });
        };
        for ticket in [from, to] {
            if !self.is_reached(ticket) {
                return Err(Error::Operation { what: OperationFault::NotReached, stream: ticket.stream.get(), number: ticket.number });
            }
        }
        let _bound = second.device.bind()?;
        let mut milliseconds = 0.0_f32;
        // SAFETY: live events; writes one number.
        match unsafe { second.device.calls.cuEventElapsedTime(&raw mut milliseconds, first.event.0, second.event.0) } {
            Ok(()) => Ok(Duration::try_from_secs_f32(milliseconds.max(0.0) / 1e3).unwrap_or_default()),
            Err(Error::Driver { code: number::NOT_READY, .. }) => {
                Err(Error::Operation { what: OperationFault::NotReached, stream: to.stream.get(), number: to.number })
            }
            Err(error) => Err(error),
        }
    }

    pub(super) fn forget_moment(&self, ticket: Ticket) {
        let forgotten = self.moments.kept().remove(&ticket);
        // The drop calls the driver.
        drop(forgotten);
    }
}
