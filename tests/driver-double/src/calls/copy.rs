//! Copies and fills. Without a stream they use the legacy one; fills and copies between device addresses do not wait.

use std::ffi::c_void;

use crate::code::{Answer, Code};
use crate::driver::Driver;
use crate::operation::Operation;
use crate::stream::Ticket;
use crate::virtual_memory::Use;

fn upload(driver: &Driver, to: u64, from: *const c_void, bytes: usize, stream: usize, wait: bool) -> Answer {
    let from = driver.space.host(from.cast(), bytes as u64)?;
    let ticket = driver.engine.copy(stream, driver.resolve(stream, to, bytes as u64, Use::Write)?, from, driver.settings.deadline)?;
    if wait {
        driver.engine.wait(&ticket, driver.settings.deadline);
    }
    Ok(())
}

fn download(driver: &Driver, to: *mut c_void, from: u64, bytes: usize, stream: usize, wait: bool) -> Answer {
    let to = driver.space.host(to.cast_const().cast(), bytes as u64)?;
    let ticket = driver.engine.copy(stream, to, driver.resolve(stream, from, bytes as u64, Use::Read)?, driver.settings.deadline)?;
    if wait {
        driver.engine.wait(&ticket, driver.settings.deadline);
    }
    Ok(())
}

fn within(driver: &Driver, to: u64, from: u64, bytes: usize, stream: usize) -> Answer {
    let to = driver.resolve(stream, to, bytes as u64, Use::Write)?;
    let from = driver.resolve(stream, from, bytes as u64, Use::Read)?;
    driver.engine.copy(stream, to, from, driver.settings.deadline).map(drop)
}

fn across(
    driver: &Driver,
    (to, to_context): (u64, usize),
    (from, from_context): (u64, usize),
    bytes: usize,
    stream: usize,
) -> Answer<Ticket> {
    let ends = [(to, to_context, Use::Write), (from, from_context, Use::Read)].map(|(address, context, access)| {
        let (device, span) = (driver.device_of(context)?.ordinal, driver.space.resolve(address, bytes as u64)?);
        let is_of_device = span.blocks().all(|block| block.device == device);
        if is_of_device && span.lets(device, access) { Ok(span) } else { Err(Code::INVALID_VALUE) }
    });
    let [to, from] = ends;
    driver.engine.copy(stream, to?, from?, driver.settings.deadline)
}

fn fill(driver: &Driver, to: u64, byte: u8, bytes: usize, stream: usize) -> Answer {
    let to = driver.resolve(stream, to, bytes as u64, Use::Write)?;
    driver.engine.queue(stream, Operation::Fill { to, byte }, None).map(drop)
}

calls! {
    Context fn cuMemcpyHtoD_v2(to: u64, from: *const c_void, bytes: usize) |driver| {
        upload(driver, to, from, bytes, 0, true)
    }

    Context fn cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, bytes: usize, stream: usize) |driver| {
        upload(driver, to, from, bytes, stream, false)
    }

    Context fn cuMemcpyDtoH_v2(to: *mut c_void, from: u64, bytes: usize) |driver| {
        download(driver, to, from, bytes, 0, true)
    }

    Context fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, bytes: usize, stream: usize) |driver| {
        download(driver, to, from, bytes, stream, false)
    }

    Context fn cuMemcpyDtoD_v2(to: u64, from: u64, bytes: usize) |driver| {
        within(driver, to, from, bytes, 0)
    }

    Context fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: usize) |driver| {
        within(driver, to, from, bytes, stream)
    }

    Context fn cuMemsetD8_v2(to: u64, byte: u8, bytes: usize) |driver| {
        fill(driver, to, byte, bytes, 0)
    }

    Context fn cuMemsetD8Async(to: u64, byte: u8, bytes: usize, stream: usize) |driver| {
        fill(driver, to, byte, bytes, stream)
    }

    Context fn cuMemsetD32Async(to: u64, value: u32, count: usize, stream: usize) |driver| {
        let bytes = count.checked_mul(4).ok_or(Code::INVALID_VALUE)?;
        let to = driver.resolve(stream, to, bytes as u64, Use::Write)?;
        if to.place().addr().get() & 3 != 0 {
            return Err(Code::INVALID_VALUE);
        }
        driver.engine.queue(stream, Operation::FillWords { to, value }, None).map(drop)
    }

    Context fn cuMemcpyPeer(to: u64, to_context: usize, from: u64, from_context: usize, bytes: usize) |driver| {
        across(driver, (to, to_context), (from, from_context), bytes, 0).map(drop)
    }

    Context fn cuMemcpyPeerAsync(to: u64, to_context: usize, from: u64, from_context: usize, bytes: usize, stream: usize) |driver| {
        across(driver, (to, to_context), (from, from_context), bytes, stream).map(drop)
    }
}
