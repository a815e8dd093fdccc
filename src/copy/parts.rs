//! Ranges and lengths in units of a power of two of bytes, for vector loads or direct I/O.
//!
//! No copy of this crate gains by it (workload `split-64k` of the bench `movement`).

use core::ops::Range;

use crate::align::{align_down, align_up};

/// A range in three: `body` is whole units; `head` and `tail` are less than one.
///
/// ```
/// use ringmem::copy::{padded, split};
///
/// // Elements 3 to 1000 of a buffer of u32 that begins at a multiple of 4096 bytes.
/// let parts = split::<u32>(3..1000, 64).expect("64 is a power of two");
/// println!("{parts:?}");
/// assert_eq!(padded::<u32>(1000, 4096), Some(1024));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parts {
    /// Before the first whole unit; else everything.
    pub head: Range<usize>,
    /// Whole units.
    pub body: Range<usize>,
    /// After the last whole unit.
    pub tail: Range<usize>,
}

/// Returns the number of `T` between multiples of `align` bytes; `None` for an invalid alignment.
#[must_use]
pub const fn period<T>(align: u64) -> Option<usize> {
    if !align.is_power_of_two() {
        return None;
    }
    let shared = (size_of::<T>() as u64).trailing_zeros();
    let period = if shared >= align.trailing_zeros() { 1 } else { align >> shared };
    if period > usize::MAX as u64 { None } else { Some(period as usize) }
}

/// Returns the least number of `T`, at least `len`, in whole units of `align` bytes, if any.
///
/// ```
/// use ringmem::copy::padded;
/// // Whole pages of floats.
/// assert_eq!(padded::<f32>(1000, 4096), Some((1000 + 1023) & !1023));
/// ```
#[must_use]
pub const fn padded<T>(len: usize, align: u64) -> Option<usize> {
    let Some(period) = period::<T>(align) else { return None };
    match align_up(len as u64, period as u64) {
        Some(padded) if padded <= usize::MAX as u64 => Some(padded as usize),
        _ => None,
    }
}

/// Splits a range of `T`, counted from a multiple of `align` bytes; `None` for an invalid range or alignment.
///
/// ```
/// use ringmem::copy::split;
/// let parts = split::<f32>(5..200, 256).expect("a power of two");
/// assert_eq!((parts.head, parts.body, parts.tail), (5..64, 64..192, 192..200));
/// ```
#[must_use]
pub const fn split<T>(range: Range<usize>, align: u64) -> Option<Parts> {
    let (start, end) = (range.start, range.end);
    let Some(period) = period::<T>(align) else { return None };
    if start > end {
        return None;
    }
    let (Some(first), Some(last)) = (align_up(start as u64, period as u64), align_down(end as u64, period as u64)) else {
        return Some(Parts { head: start..end, body: end..end, tail: end..end });
    };
    if first > last {
        return Some(Parts { head: start..end, body: end..end, tail: end..end });
    }
    let (first, last) = (first as usize, last as usize);
    Some(Parts { head: start..first, body: first..last, tail: last..end })
}
