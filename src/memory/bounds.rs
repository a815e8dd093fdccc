//! Checks of ranges, lengths and casts of elements.

use core::alloc::Layout;
use core::ops::{Bound, Range, RangeBounds};
use core::ptr::NonNull;
use std::alloc;
use std::vec::Vec;

use crate::{DeviceBytes, Error, Result};

/// Returns `len` zeroed elements in pageable memory.
pub(crate) fn on_the_host<T: DeviceBytes>(len: usize) -> Result<Vec<T>> {
    let short = || Error::Map { bytes: bytes::<T>(len), source: std::io::ErrorKind::OutOfMemory.into() };
    let layout = Layout::array::<T>(len).map_err(|_| short())?;
    if layout.size() == 0 {
        return Ok(std::vec![T::zeroed(); len]);
    }
    // SAFETY: the layout has bytes.
    let first = NonNull::new(unsafe { alloc::alloc_zeroed(layout) }).ok_or_else(short)?;
    // SAFETY: from the global allocator, with the layout of `len` elements; any bytes are valid elements, by the promise of `Layout`.
    Ok(unsafe { Vec::from_raw_parts(first.cast::<T>().as_ptr(), len, len) })
}

/// Returns an error unless the numbers of elements are equal.
pub(crate) fn same_size<T>(expected: usize, got: usize) -> Result<()> {
    if expected == got {
        return Ok(());
    }
    Err(Error::Size { what: "length in bytes", asked: bytes::<T>(got), least: bytes::<T>(expected), most: bytes::<T>(expected) })
}

/// Returns `at + len` if it is within `size` elements.
pub(crate) fn end<T>(at: usize, len: usize, size: usize) -> Result<usize> {
    match at.checked_add(len) {
        Some(end) if end <= size => Ok(end),
        _ => Err(outside::<T>(at, len, size)),
    }
}

/// Returns the range if it is within `size` elements.
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
        // A range without an end starts past the end.
        (Some(start), Some(end)) if start > end && !matches!(range.end_bound(), Bound::Unbounded) => {
            Err(Error::Size { what: "range end in bytes", asked: bytes::<T>(end), least: bytes::<T>(start), most: bytes::<T>(size) })
        }
        (start, end) => {
            let start = start.unwrap_or(usize::MAX);
            Err(outside::<T>(start, end.unwrap_or(usize::MAX).saturating_sub(start), size))
        }
    }
}

fn outside<T>(at: usize, len: usize, size: usize) -> Error {
    Error::Range { offset: bytes::<T>(at), len: bytes::<T>(len), size: bytes::<T>(size) }
}

/// Returns the bytes of the elements, for an error. An element without bytes counts as one.
fn bytes<T>(elements: usize) -> u64 {
    (elements as u64).saturating_mul(size_of::<T>().max(1) as u64)
}

/// Returns the number of `U` in `bytes` bytes at this alignment.
pub(crate) fn recount<U>(bytes: usize, align: usize) -> Result<usize> {
    let (size, needed) = (size_of::<U>(), align_of::<U>());
    if size == 0 || !bytes.is_multiple_of(size) || align < needed {
        return Err(Error::Cast { bytes: bytes as u64, align: align as u64, size: size as u64, needed: needed as u64 });
    }
    Ok(bytes / size)
}
