//! Copies and fills. Those without a stream go through the legacy one; between device addresses and for fills they do not wait.

use std::ffi::c_void;

use crate::code::Answer;
use crate::driver::Driver;
use crate::operation::Operation;

fn upload(driver: &Driver, to: u64, from: *const c_void, bytes: usize, stream: usize, wait: bool) -> Answer {
    let from = driver.space.host(from.cast(), bytes as u64)?;
    let ticket = driver.engine.copy(stream, driver.space.resolve(to, bytes as u64)?, from, driver.settings.deadline)?;
    if wait {
        driver.engine.wait(&ticket, driver.settings.deadline);
    }
    Ok(())
}

fn download(driver: &Driver, to: *mut c_void, from: u64, bytes: usize, stream: usize, wait: bool) -> Answer {
    let to = driver.space.host(to.cast_const().cast(), bytes as u64)?;
    let ticket = driver.engine.copy(stream, to, driver.space.resolve(from, bytes as u64)?, driver.settings.deadline)?;
    if wait {
        driver.engine.wait(&ticket, driver.settings.deadline);
    }
    Ok(())
}

fn within(driver: &Driver, to: u64, from: u64, bytes: usize, stream: usize) -> Answer {
    let (to, from) = (driver.space.resolve(to, bytes as u64)?, driver.space.resolve(from, bytes as u64)?);
    driver.engine.copy(stream, to, from, driver.settings.deadline).map(drop)
}

fn fill(driver: &Driver, to: u64, byte: u8, bytes: usize, stream: usize) -> Answer {
    let to = driver.space.resolve(to, bytes as u64)?;
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
}
