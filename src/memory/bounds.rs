use core::alloc::Layout;
use core::ops::{Bound, Range, RangeBounds};
use core::ptr::NonNull;
use std::alloc;
use std::vec::Vec;

use crate::{DeviceBytes, Error, Result};

/// Without memory: an error, not an abort.
pub(crate) fn on_the_host<T: DeviceBytes>(len: usize) -> Result<Vec<T>> {
    let short = || Error::Map { bytes: (len as u64).saturating_mul(size_of::<T>() as u64), source: std::io::ErrorKind::OutOfMemory.into() };
    let layout = Layout::array::<T>(len).map_err(|_| short())?;
    if layout.size() == 0 {
        return Ok(std::vec![T::zeroed(); len]);
    }
    // SAFETY: the layout has bytes.
    let first = NonNull::new(unsafe { alloc::alloc_zeroed(layout) }).ok_or_else(short)?;
    // SAFETY: allocated with this layout; any bytes are valid elements.
    Ok(unsafe { Vec::from_raw_parts(first.cast::<T>().as_ptr(), len, len) })
}

pub(crate) fn same_len(expected: usize, got: usize) -> Result<()> {
    if expected == got {
        return Ok(());
    }
    Err(Error::Size { what: "length in elements", asked: got as u64, least: expected as u64, most: expected as u64 })
}

pub(crate) fn end<T>(at: usize, len: usize, size: usize) -> Result<usize> {
    match at.checked_add(len) {
        Some(end) if end <= size => Ok(end),
        _ => Err(outside::<T>(at, len, size)),
    }
}

pub(crate) fn range<T>(range: impl RangeBounds<usize>, size: usize) -> Result<Range<usize>> {
    let start = match range.start_bound() {
        Bound::Included(&start) => Some(start),
        Bound::Excluded(&start) => start.checked_add(1),
        Bound::Unbounded => Some(0),
    };
    let end = match range.end_bound() {
        Bound::Included(&end) => end.checked_add(1),
        Bound::Excluded(&end) => Some(end),
        Bound::Unbounded => Some(size),
    };
    match (start, end) {
        (Some(start), Some(end)) if start <= end && end <= size => Ok(start..end),
        (Some(start), Some(end)) if start > end && start <= size => {
            Err(Error::Size { what: "range end", asked: end as u64, least: start as u64, most: size as u64 })
        }
        (start, end) => {
            let start = start.unwrap_or(usize::MAX);
            Err(outside::<T>(start, end.unwrap_or(usize::MAX).saturating_sub(start), size))
        }
    }
}

fn outside<T>(at: usize, len: usize, size: usize) -> Error {
    Error::Range { offset: at as u64, len: len as u64, size: size as u64, element_bytes: size_of::<T>() as u64 }
}

pub(crate) fn recount<U>(bytes: usize, align: usize) -> Result<usize> {
    let (size, needed) = (size_of::<U>(), align_of::<U>());
    if size == 0 || !bytes.is_multiple_of(size) || align < needed {
        return Err(Error::Cast { bytes: bytes as u64, align: align as u64, size: size as u64, needed: needed as u64 });
    }
    Ok(bytes / size)
}
