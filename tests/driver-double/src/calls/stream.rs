//! Streams, and the words that they write.

use crate::call::give;
use crate::code::Code;
use crate::operation::Operation;

/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: u32 = 1;
/// `CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER`.
const NO_MEMORY_BARRIER: u32 = 1;

calls! {
    Context fn cuStreamCreate(stream: *mut usize, flags: u32) |driver| {
        if stream.is_null() || flags & !NON_BLOCKING != 0 {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the caller's promise.
        unsafe { give(stream, driver.engine.create(flags & NON_BLOCKING == 0)?) }
    }

    Context fn cuStreamDestroy_v2(stream: usize) |driver| {
        driver.engine.destroy(stream)
    }

    Context fn cuStreamSynchronize(stream: usize) |driver| {
        let ticket = driver.engine.queue(stream, Operation::Mark, None)?;
        driver.engine.wait(&ticket, driver.settings.patience());
        driver.context.check()
    }

    Context fn cuStreamQuery(stream: usize) |driver| {
        driver.engine.query(stream)?.then_some(()).ok_or(Code::NOT_READY)
    }

    Context fn cuStreamWaitEvent(stream: usize, event: usize, flags: u32) |driver| {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let ticket = driver.events.find(event)?.ticket();
        driver.engine.queue(stream, Operation::Mark, ticket).map(drop)
    }

    Context fn cuStreamWriteValue64_v2(stream: usize, address: u64, value: u64, flags: u32) |driver| {
        if !address.is_multiple_of(8) || flags & !NO_MEMORY_BARRIER != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let to = driver.space.resolve(address, 8)?;
        let ordered = flags & NO_MEMORY_BARRIER == 0;
        driver.engine.queue(stream, Operation::Write { to, value, ordered }, None).map(drop)
    }
}
