//! Kernels for `tests/conformance` on devices that run PTX.

use core::ptr::NonNull;

use ringmem_layouts::kernel::DevicePointer;
use ringmem_layouts::{Machine, Word};

use crate::Lanes;

#[cfg(not(target_os = "cuda"))]
pub use crate::kernel_list::{HOLD, INCREMENT};

/// Limit of [`hold`], longer than any check.
const LONGEST_NS: u64 = 90_000_000_000;

/// Stores 1 to the first word, and exits when the second is not 0. Only lane 0 works.
///
/// # Safety
///
/// Two words at the address are live until this returns, and accessed elsewhere only as words.
#[inline(always)]
pub unsafe fn hold<M: Machine, L: Lanes>(machine: &M, lanes: &L, words: DevicePointer<[u64; 2]>) {
    let Some(place) = machine.at(words.address(), 2 * size_of::<M::Word>() as u64, align_of::<M::Word>() as u64) else { return };
    if lanes.lane() != 0 {
        return;
    }
    // SAFETY: `at` mapped the two words and aligned them to a word; the caller promises that they are live and accessed only as words until
    // this returns.
    let [runs, leave] = unsafe { place.cast::<[M::Word; 2]>().as_ref() };
    // SYNC POINT: the kernel runs. Pairs with the host's acquire load.
    M::Word::publish_all([(runs, 1)]);
    let begun = lanes.now_ns();
    let mut times: u32 = 0;
    // SYNC POINT: the kernel may leave. Pairs with the host's release store.
    while leave.load_acquire() == 0 && lanes.now_ns().saturating_sub(begun) < LONGEST_NS {
        lanes.pause(times);
        times = times.saturating_add(1);
    }
}

/// Adds 1 to each of `count` bytes, wrapping. For launches of one group.
///
/// # Safety
///
/// The bytes at the address are initialised, live until this returns, and not accessed elsewhere; no other group runs this on them.
#[inline(always)]
pub unsafe fn increment<M: Machine, L: Lanes>(machine: &M, lanes: &L, bytes: DevicePointer<u8>, count: u64) {
    let Some(first): Option<NonNull<u8>> = machine.at(bytes.address(), count, 1) else { return };
    let mut i = u64::from(lanes.lane());
    while i < count {
        // SAFETY: within the bytes.
        let byte = unsafe { first.add(i as usize) };
        // SAFETY: the caller promises that the byte is initialised, live and not accessed elsewhere; index `i` belongs to this lane alone.
        let value = unsafe { byte.read() };
        // SAFETY: the byte that was read above; the caller promises that it is live and not accessed elsewhere, and `i` is this lane's
        // alone.
        unsafe { byte.write(value.wrapping_add(1)) };
        i += u64::from(lanes.width());
    }
}
