use core::ptr::NonNull;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Acquire, Release};

use crate::{Error, Result};

pub(crate) fn aligned(address: u64, bytes: u64, size: u64) -> Result<()> {
    if address.is_multiple_of(size) {
        return Ok(());
    }
    Err(Error::Cast { bytes, align: 1 << address.trailing_zeros(), size, needed: size })
}

pub(crate) const fn is_word(to: u64, from: u64, bytes: u64) -> bool {
    const WORD: u64 = size_of::<u64>() as u64;
    bytes == WORD && to.is_multiple_of(WORD) && from.is_multiple_of(WORD)
}

/// One aligned word by an acquire load and a release store.
///
/// # Safety
///
/// Both have `bytes` bytes, without overlap. Meanwhile nothing writes the source or accesses the target, except one aligned word, which is
/// writable at both and which others may access as a word.
pub(crate) unsafe fn moved(to: NonNull<u8>, from: NonNull<u8>, bytes: usize) {
    if !is_word(to.as_ptr().addr() as u64, from.as_ptr().addr() as u64, bytes as u64) {
        // SAFETY: the caller promises `bytes` bytes on both sides without overlap, which nothing else uses meanwhile.
        return unsafe { to.copy_from_nonoverlapping(from, bytes) };
    }
    // SAFETY: aligned, valid for reads and writes, and accessed as words.
    let (to, from) = unsafe { (AtomicU64::from_ptr(to.as_ptr().cast()), AtomicU64::from_ptr(from.as_ptr().cast())) };
    // SYNC POINT: published. Pairs with the source's release store and the target's acquire load.
    to.store(from.load(Acquire), Release);
}
