//! What a processor does with memory that calls name: copies and fills, one word as one.

use core::ptr::NonNull;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Acquire, Release};

use super::Fill;
use crate::{Error, Result};

/// Refuses a place of `bytes` bytes that is not aligned to elements of `size`.
pub(crate) fn aligned(address: u64, bytes: u64, size: u64) -> Result<()> {
    if address.is_multiple_of(size) {
        return Ok(());
    }
    Err(Error::Cast { bytes, align: 1 << address.trailing_zeros(), size, needed: size })
}

impl Fill {
    /// Refuses elements that no fill takes.
    pub(crate) fn check_size(&self) -> Result<()> {
        if matches!(self.size, 1 | 2 | 4 | 8) {
            return Ok(());
        }
        Err(Error::Unsupported { what: "a fill with elements of another size than 1, 2, 4 or 8 bytes" })
    }
}

/// Whether a copy is of one word at each end, which others may access meanwhile.
pub(crate) const fn is_word(to: u64, from: u64, bytes: u64) -> bool {
    const WORD: u64 = size_of::<u64>() as u64;
    bytes == WORD && to.is_multiple_of(WORD) && from.is_multiple_of(WORD)
}

/// Copies; one word as one.
///
/// # Safety
///
/// Both places are valid for so many bytes, and apart from each other. If that is one word at each, both are valid for writes, and others may access them as
/// words.
pub(crate) unsafe fn moved(to: NonNull<u8>, from: NonNull<u8>, bytes: usize) {
    if !is_word(to.as_ptr().addr() as u64, from.as_ptr().addr() as u64, bytes as u64) {
        // SAFETY: the caller's promise.
        return unsafe { to.copy_from_nonoverlapping(from, bytes) };
    }
    // SAFETY: valid for reads and writes and aligned for a word; others access it as one.
    let (to, from) = unsafe { (AtomicU64::from_ptr(to.as_ptr().cast()), AtomicU64::from_ptr(from.as_ptr().cast())) };
    // SYNC POINT: published. Pairs with whoever published the source, and whoever acquires the target.
    to.store(from.load(Acquire), Release);
}

/// Fills.
///
/// # Safety
///
/// The place is valid for writes of so many elements, aligned to them and nobody else's. The fill's own place is not looked at.
pub(crate) unsafe fn filled(place: NonNull<u8>, fill: &Fill) {
    let Fill { pattern, size, count, .. } = *fill;
    // SAFETY: the caller's promise.
    unsafe {
        match size {
            1 => place.write_bytes(pattern as u8, count as usize),
            2 => repeat(place.as_ptr().cast(), (pattern as u16).to_le(), count),
            4 => repeat(place.as_ptr().cast(), (pattern as u32).to_le(), count),
            // The element's first byte is the pattern's lowest, whatever the machine's order.
            _ => repeat(place.as_ptr().cast(), pattern.to_le(), count),
        }
    }
}

/// # Safety
///
/// `count` elements at `first` are valid for writes, and it is aligned.
unsafe fn repeat<T: core::marker::Copy>(first: *mut T, value: T, count: u64) {
    for i in 0..count as usize {
        // SAFETY: the caller's promise.
        unsafe { first.add(i).write(value) };
    }
}
