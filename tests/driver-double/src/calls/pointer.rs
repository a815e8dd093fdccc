use std::ffi::c_void;

use crate::block::{Kind, Span};
use crate::code::{Answer, Code};
use crate::context;
use crate::driver::Driver;
use crate::entry::give;
use crate::managed::NOWHERE;
use crate::virtual_memory::Mapped;

const HOST: u32 = 1;
const DEVICE: u32 = 2;

enum Value {
    Word(u64),
    Number(i32),
    Flag(bool),
}

fn attribute(driver: &Driver, number: u32, address: u64, known: Option<&Span>) -> Answer<Value> {
    let block = known.map(|span| &span.block);
    let is_host = block.is_some_and(|block| matches!(block.kind, Kind::Pinned | Kind::Registered | Kind::Managed));
    let start = block.and_then(|_| driver.space.start(address));
    let reserved = block.and_then(|block| block.mapped.as_ref()).map(Mapped::reserved);
    let word = |word: Option<u64>| Ok(Value::Word(word.unwrap_or(0)));
    match number {
        // Virtual memory belongs to no context.
        1 => word(block.filter(|block| block.mapped.is_none()).map(|block| context::handle(block.device) as u64)),
        2 => {
            let of_host = block.is_some_and(|block| block.kind != Kind::Managed) && is_host;
            Ok(Value::Number(block.map_or(0, |_| if of_host { HOST } else { DEVICE }.cast_signed())))
        }
        3 => word(known.filter(|_| is_host).map_or(block.map(|_| address), |span| match span.block.kind {
            Kind::Managed => Some(address),
            _ => driver.space.device_address(span),
        })),
        4 => match (known, is_host) {
            (Some(_), false) => Err(Code::INVALID_VALUE),
            (known, _) => word(known.map(|span| span.place().addr().get() as u64)),
        },
        7 => word(start.map(|(_, made)| made)),
        8 => Ok(Value::Flag(block.is_some_and(|block| block.kind == Kind::Managed))),
        9 => Ok(Value::Number(block.map_or(NOWHERE, |block| block.device.cast_signed()))),
        // Of a mapping, the range of its reservation.
        11 => word(reserved.map(|(address, _)| address).or(start.map(|(start, _)| start))),
        12 => word(reserved.map(|(_, len)| len).or(block.map(|block| block.len))),
        13 => Ok(Value::Flag(block.is_some())),
        17 => {
            let pool = block.and_then(|block| block.ordered.as_ref()).map(|ordered| &ordered.pool);
            word(pool.map(|pool| driver.pools.handle_of(pool).unwrap_or(0) as u64))
        }
        _ => Err(Code::INVALID_VALUE),
    }
}

/// # Safety
///
/// `place` is null, which is rejected, or valid for a write of the attribute.
unsafe fn write(place: *mut c_void, value: Value) -> Answer {
    match value {
        // SAFETY: the caller promises that `place` is null, which is rejected, or valid for a write of this attribute, a word.
        Value::Word(word) => unsafe { give(place.cast::<u64>(), word) },
        // SAFETY: the caller promises that `place` is null, which is rejected, or valid for a write of this attribute, an `int`.
        Value::Number(number) => unsafe { give(place.cast::<i32>(), number) },
        // SAFETY: the caller promises that `place` is null, which is rejected, or valid for a write of this attribute, C's `bool`.
        Value::Flag(flag) => unsafe { give(place.cast::<u8>(), flag.into()) },
    }
}

calls! {
    Context fn cuMemGetAddressRange_v2(base: *mut u64, bytes: *mut usize, address: u64) |driver| {
        let block = driver.space.listed(address, 1).map_err(|_| Code::NOT_FOUND)?.block;
        let (start, _) = driver.space.start(address).ok_or(Code::NOT_FOUND)?;
        if !base.is_null() {
            // SAFETY: not null; the driver's documentation obliges the caller to pass a `base` that is null or valid for a write.
            unsafe { give(base, start)? };
        }
        if !bytes.is_null() {
            // SAFETY: not null; the driver's documentation obliges the caller to pass `bytes` that are null or valid for a write.
            unsafe { give(bytes, block.len as usize)? };
        }
        Ok(())
    }

    Context fn cuPointerGetAttribute(data: *mut c_void, number: u32, address: u64) |driver| {
        let span = driver.space.listed(address, 1)?;
        // SAFETY: the driver's documentation obliges the caller to pass `data` that are valid for a write of this attribute; null is
        // rejected.
        unsafe { write(data, attribute(driver, number, address, Some(&span))?) }
    }

    Context fn cuPointerGetAttributes(count: u32, numbers: *mut u32, data: *mut *mut c_void, address: u64) |driver| {
        if numbers.is_null() || data.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let span = driver.space.listed(address, 1).ok();
        for i in 0..count as usize {
            // SAFETY: not null; the driver's documentation obliges the caller to pass `count` numbers.
            let number = unsafe { numbers.add(i).read() };
            // SAFETY: not null; the driver's documentation obliges the caller to pass `count` places.
            let place = unsafe { data.add(i).read() };
            // SAFETY: the driver's documentation obliges the caller to pass places that are valid for a write of their attribute; null is
            // rejected.
            unsafe { write(place, attribute(driver, number, address, span.as_ref())?)? };
        }
        Ok(())
    }
}
