use std::ffi::c_void;

use crate::attributes::{CONCURRENT_MANAGED_ACCESS, MANAGED_MEMORY};
use crate::block::{Block, Kind, Span};
use crate::calls::pool::{LOCATION_DEVICE, Location};
use crate::code::{Answer, Code};
use crate::driver::Driver;
use crate::entry::give;
use crate::managed::{HOST, Managed, NOWHERE, Page};
use crate::operation::Operation;

const LOCATION_HOST: u32 = 2;
const ATTACH: [u32; 2] = [1, 2];
const ATTACH_SINGLE: u32 = 4;

fn managed(driver: &Driver, address: u64, bytes: usize) -> Answer<Span> {
    let span = driver.space.resolve(address, bytes as u64)?;
    if span.block.managed.is_some() && bytes > 0 { Ok(span) } else { Err(Code::INVALID_VALUE) }
}

fn change(span: &Span, change: impl Fn(&mut Page)) {
    if let Some(managed) = &span.block.managed {
        managed.change(span.offset(), span.len, change);
    }
}

fn place(driver: &Driver, device: i32) -> Answer<i32> {
    if device != HOST {
        driver.device(device)?;
        driver.demand(CONCURRENT_MANAGED_ACCESS).map_err(|_| Code::INVALID_DEVICE)?;
    }
    Ok(device)
}

fn place_of(driver: &Driver, location: Location) -> Answer<i32> {
    match location.kind {
        LOCATION_DEVICE => place(driver, location.id),
        LOCATION_HOST..=4 => Ok(HOST),
        _ => Err(Code::INVALID_VALUE),
    }
}

fn prefetch(driver: &Driver, address: u64, bytes: usize, to: i32, stream: usize) -> Answer {
    let span = managed(driver, address, bytes)?;
    driver.demand(CONCURRENT_MANAGED_ACCESS).map_err(|_| Code::INVALID_DEVICE)?;
    driver.engine.queue(stream, Operation::Mark(Some(span.clone())), None)?;
    change(&span, |page| page.prefetched = to);
    Ok(())
}

fn advise(driver: &Driver, address: u64, bytes: usize, advice: u32, to: impl Fn() -> Answer<i32>) -> Answer {
    let span = managed(driver, address, bytes)?;
    match advice {
        1 | 2 => change(&span, |page| page.read_mostly = advice == 1),
        3 => {
            let to = to()?;
            change(&span, |page| page.preferred = to);
        }
        4 => change(&span, |page| page.preferred = NOWHERE),
        5 | 6 => {
            let by = to()?;
            change(&span, |page| page.accessed(by, advice == 5));
        }
        _ => return Err(Code::INVALID_VALUE),
    }
    driver.settings.attributes.has(MANAGED_MEMORY).then_some(()).ok_or(Code::NOT_SUPPORTED)
}

fn number(managed: &Managed, offset: u64, len: u64, attribute: u32) -> Answer<i32> {
    let kind = |place: i32| match place {
        HOST => LOCATION_HOST as i32,
        NOWHERE => 0,
        _ => LOCATION_DEVICE as i32,
    };
    let preferred = || managed.agreed(offset, len, |page| page.preferred).unwrap_or(NOWHERE);
    let prefetched = || managed.agreed(offset, len, |page| page.prefetched).unwrap_or(NOWHERE);
    Ok(match attribute {
        1 => i32::from(managed.agreed(offset, len, |page| page.read_mostly).unwrap_or(false)),
        2 => preferred(),
        4 => prefetched(),
        5 => kind(preferred()),
        6 => preferred().max(0),
        7 => kind(prefetched()),
        8 => prefetched().max(0),
        _ => return Err(Code::INVALID_VALUE),
    })
}

const ACCESSED_BY: u32 = 3;

calls! {
    Context fn cuMemAllocManaged(address: *mut u64, bytes: usize, flags: u32) |driver| {
        driver.demand(MANAGED_MEMORY)?;
        if address.is_null() || !ATTACH.contains(&flags) {
            return Err(Code::INVALID_VALUE);
        }
        let mut block = Block::new(Kind::Managed, driver.current()?.ordinal, bytes as u64)?;
        block.managed = Some(Managed::new(bytes as u64));
        // SAFETY: not null; the driver's documentation obliges the caller to pass an `address` that is valid for a write.
        unsafe { give(address, driver.space.place_host(block)) }
    }

    Context fn cuMemPrefetchAsync(address: u64, bytes: usize, device: i32, stream: usize) |driver| {
        prefetch(driver, address, bytes, place(driver, device)?, stream)
    }

    Context fn cuMemPrefetchAsync_v2(address: u64, bytes: usize, location: Location, flags: u32, stream: usize) |driver| {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        prefetch(driver, address, bytes, place_of(driver, location)?, stream)
    }

    Context fn cuMemAdvise(address: u64, bytes: usize, advice: u32, device: i32) |driver| {
        advise(driver, address, bytes, advice, || place(driver, device))
    }

    Context fn cuMemAdvise_v2(address: u64, bytes: usize, advice: u32, location: Location) |driver| {
        advise(driver, address, bytes, advice, || place_of(driver, location))
    }

    Context fn cuStreamAttachMemAsync(stream: usize, address: u64, bytes: usize, flags: u32) |driver| {
        let span = managed(driver, address, bytes.max(1))?;
        let is_whole = span.offset() == 0 && (bytes == 0 || bytes as u64 == span.block.len);
        let is_known = ATTACH.contains(&flags) || (flags == ATTACH_SINGLE && stream != 0);
        if !is_whole || !is_known {
            return Err(Code::INVALID_VALUE);
        }
        driver.engine.queue(stream, Operation::Mark(Some(span)), None).map(drop)
    }

    Context fn cuMemRangeGetAttribute(data: *mut c_void, size: usize, attribute: u32, address: u64, bytes: usize) |driver| {
        let span = managed(driver, address, bytes)?;
        let known = span.block.managed.as_ref().ok_or(Code::INVALID_VALUE)?;
        let list = if attribute == ACCESSED_BY {
            let (mut devices, mut host) = (u64::MAX, true);
            for offset in (span.offset()..span.offset() + span.len).step_by(crate::block::ALIGN as usize) {
                let (of_page, by_host) = known.agreed(offset, 1, |page| page.accessed_by).unwrap_or_default();
                (devices, host) = (devices & of_page, host && by_host);
            }
            let devices = (0..64).filter(move |device| devices >> device & 1 == 1);
            devices.chain(host.then_some(HOST)).collect()
        } else if size == 4 {
            vec![number(known, span.offset(), span.len, attribute)?]
        } else {
            return Err(Code::INVALID_VALUE);
        };
        if size == 0 || !size.is_multiple_of(4) {
            return Err(Code::INVALID_VALUE);
        }
        for i in 0..size / 4 {
            // SAFETY: within the caller's bytes.
            unsafe { give(data.cast::<i32>().wrapping_add(i), list.get(i).copied().unwrap_or(NOWHERE))? };
        }
        Ok(())
    }
}
