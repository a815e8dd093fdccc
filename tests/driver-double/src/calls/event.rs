use std::sync::{Arc, OnceLock};

use crate::code::{Answer, Code};
use crate::driver::Driver;
use crate::entry::give;
use crate::event::{Event, FLAGS, Recording};
use crate::operation::Operation;

fn elapsed(driver: &Driver, start: usize, end: usize) -> Answer<f32> {
    let (start, end) = (driver.events.find(start)?, driver.events.find(end)?);
    let (start, end) = (start.is_complete()?, end.is_complete()?);
    let before = start.saturating_duration_since(end).as_secs_f32();
    Ok((end.saturating_duration_since(start).as_secs_f32() - before) * 1e3)
}

calls! {
    Context fn cuEventCreate(event: *mut usize, flags: u32) |driver| {
        if event.is_null() || flags & !FLAGS != 0 {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: not null; the driver's documentation obliges the caller to pass an `event` that is valid for a write.
        unsafe { give(event, driver.events.insert(Event::new(driver.current()?.ordinal, flags))) }
    }

    Context fn cuEventRecord(event: usize, stream: usize) |driver| {
        let event = driver.events.find(event)?;
        if driver.engine.stream(stream)?.device != event.device {
            return Err(Code::INVALID_HANDLE);
        }
        let at = Arc::new(OnceLock::new());
        let ticket = driver.engine.queue(stream, Operation::Stamp(Arc::clone(&at)), None)?;
        event.record(Recording { ticket, at });
        Ok(())
    }

    Context fn cuEventQuery(event: usize) |driver| {
        let done = driver.events.find(event)?.ticket().is_none_or(|ticket| ticket.query());
        done.then_some(()).ok_or(Code::NOT_READY)
    }

    Context fn cuEventSynchronize(event: usize) |driver| {
        if let Some(ticket) = driver.events.find(event)?.ticket() {
            driver.engine.wait(&ticket, driver.settings.patience());
        }
        driver.settle();
        driver.current()?.context.check()
    }

    Context fn cuEventElapsedTime(milliseconds: *mut f32, start: usize, end: usize) |driver| {
        // SAFETY: the driver's documentation obliges the caller to pass `milliseconds` that are valid for a write; null is rejected.
        unsafe { give(milliseconds, elapsed(driver, start, end)?) }
    }

    Context fn cuEventElapsedTime_v2(milliseconds: *mut f32, start: usize, end: usize) |driver| {
        // SAFETY: the driver's documentation obliges the caller to pass `milliseconds` that are valid for a write; null is rejected.
        unsafe { give(milliseconds, elapsed(driver, start, end)?) }
    }

    Context fn cuEventDestroy_v2(event: usize) |driver| {
        driver.events.remove(event).map(drop)
    }
}
