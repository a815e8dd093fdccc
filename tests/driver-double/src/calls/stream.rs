use std::ffi::c_void;

use crate::attributes::{CAN_FLUSH_REMOTE_WRITES, CAN_USE_STREAM_WORDS};
use crate::block::{Kind, Span};
use crate::code::{Answer, Code};
use crate::driver::Driver;
use crate::entry::give;
use crate::host_function::HostFunction;
use crate::operation::Operation;
use crate::virtual_memory::Use;
use crate::wait_value::{Condition, FLUSH};

const NON_BLOCKING: u32 = 1;
const NO_MEMORY_BARRIER: u32 = 1;

/// # Safety
///
/// `stream` is null, which is rejected, or valid for a write.
unsafe fn create(driver: &Driver, stream: *mut usize, flags: u32) -> Answer {
    if stream.is_null() || flags & !NON_BLOCKING != 0 {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: not null; the caller promises that `stream` is valid for a write.
    unsafe { give(stream, driver.engine.create(driver.current()?.ordinal, flags & NON_BLOCKING == 0)?) }
}

fn word(driver: &Driver, stream: usize, address: u64, access: Use) -> Answer<Span> {
    let span = driver.resolve(stream, address, 8, access)?;
    if address.is_multiple_of(8) && span.block.kind != Kind::Managed { Ok(span) } else { Err(Code::INVALID_VALUE) }
}

calls! {
    Context fn cuStreamCreate(stream: *mut usize, flags: u32) |driver| {
        // SAFETY: the driver's documentation obliges the caller to pass a `stream` that is valid for a write; null is rejected.
        unsafe { create(driver, stream, flags) }
    }

    Context fn cuStreamCreateWithPriority(stream: *mut usize, flags: u32, _priority: i32) |driver| {
        // SAFETY: the driver's documentation obliges the caller to pass a `stream` that is valid for a write; null is rejected.
        unsafe { create(driver, stream, flags) }
    }

    Context fn cuStreamGetCtx(stream: usize, context: *mut usize) |driver| {
        // SAFETY: the driver's documentation obliges the caller to pass a `context` that is valid for a write; null is rejected.
        unsafe { give(context, crate::context::handle(driver.engine.stream(stream)?.device)) }
    }

    Context fn cuStreamGetId(stream: usize, id: *mut u64) |driver| {
        // SAFETY: the driver's documentation obliges the caller to pass an `id` that is valid for a write; null is rejected.
        unsafe { give(id, driver.engine.stream(stream)?.id) }
    }

    Context fn cuLaunchHostFunc(stream: usize, function: Option<unsafe extern "C" fn(*mut c_void)>, data: *mut c_void) |driver| {
        let function = function.ok_or(Code::INVALID_VALUE)?;
        driver.engine.queue(stream, Operation::Call(HostFunction { function, data }), None).map(drop)
    }

    Context fn cuStreamWaitValue64_v2(stream: usize, address: u64, value: u64, flags: u32) |driver| {
        driver.demand(CAN_USE_STREAM_WORDS)?;
        let condition = Condition::new(flags, value)?;
        if flags & FLUSH != 0 {
            driver.demand(CAN_FLUSH_REMOTE_WRITES)?;
        }
        let of = word(driver, stream, address, Use::Read)?;
        driver.engine.queue(stream, Operation::Wait { of, condition }, None).map(drop)
    }

    Context fn cuStreamDestroy_v2(stream: usize) |driver| {
        driver.engine.destroy(stream)
    }

    Context fn cuStreamSynchronize(stream: usize) |driver| {
        let ticket = driver.engine.queue(stream, Operation::Mark(None), None)?;
        driver.engine.wait(&ticket, driver.settings.patience());
        driver.settle();
        driver.current()?.context.check()
    }

    Context fn cuStreamQuery(stream: usize) |driver| {
        driver.engine.query(stream)?.then_some(()).ok_or(Code::NOT_READY)
    }

    Context fn cuStreamWaitEvent(stream: usize, event: usize, flags: u32) |driver| {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let ticket = driver.events.find(event)?.ticket();
        driver.engine.queue(stream, Operation::Mark(None), ticket).map(drop)
    }

    Context fn cuStreamWriteValue64_v2(stream: usize, address: u64, value: u64, flags: u32) |driver| {
        driver.demand(CAN_USE_STREAM_WORDS)?;
        if flags & !NO_MEMORY_BARRIER != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let to = word(driver, stream, address, Use::Write)?;
        let ordered = flags & NO_MEMORY_BARRIER == 0;
        driver.engine.queue(stream, Operation::Write { to, value, ordered }, None).map(drop)
    }
}
