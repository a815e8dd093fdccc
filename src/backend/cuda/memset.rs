//! Fills by elements of 1, 2, 4, 8 or 16 bytes on CUDA: memsets, or copies. `src/backend/fill.rs` divides fills by other elements into copies, for all
//! backends.
//!
//! | element | memory | calls of the driver |
//! |---|---|---|
//! | any | that the host may access | none: this thread fills it; for a queued fill a host function |
//! | that repeats every byte | other | `cuMemsetD8Async` |
//! | that repeats every 4 bytes, if the target has whole, aligned words | other | `cuMemsetD32Async`, if the driver has it |
//! | any other, such as four `f32` | other | a copy of at most 16 bytes (the seed) to the start, then copies on the device, each at most doubling the written part |
//!
//! The seed is pinned memory: the driver may read pageable memory after the call. It belongs to the internal stream or to the operation until the fill is
//! complete. If a call of one queued [`Fill`] fails after another one, the range is tainted (`write_queued` in `copy.rs`); a blocking fill returns the error
//! with the range partly written.

use core::ptr::NonNull;

use cudarc::driver::sys::CUstream;

use super::Inner;
use super::copy::{HostAddress, address};
use super::device::Device;
use super::driver;
use super::queue::CompletionCount;
use crate::Result;
use crate::backend::fill::{MOST, filled};
use crate::backend::ranges::Found;
use crate::backend::{Address, DeviceAddress, Fill, StreamId, Ticket};

const SEED_BYTES: u64 = MOST as u64;

impl Inner {
    fn find_target(&self, fill: &Fill) -> Result<Found> {
        fill.check_size()?;
        let found = self.ranges.end(fill.to, fill.bytes(), "fill")?;
        fill.check_alignment(address(&found))?;
        Ok(found)
    }

    /// # Safety
    ///
    /// As `Backend::fill_now`.
    pub(super) unsafe fn fill_now(&self, fill: &Fill) -> Result<()> {
        driver::check_not_forked("cuMemsetD8Async")?;
        let found = self.find_target(fill)?;
        if self.is_driver_only(&found)? {
            let home = self.device(found.device)?;
            home.run_and_wait(|internal| {
                let pattern = Pattern::of(home, fill, address(&found), || Ok(internal.word()))?;
                // SAFETY: `find_target` found this many bytes in a live range. The caller promises exclusive access until this returns, and
                // `run_and_wait` returns when the fill is complete.
                unsafe { fill_by_driver(home, fill, address(&found), pattern, |call| call(internal.stream())) }
            })?;
        } else {
            // SAFETY: `find_target` found this many aligned bytes in a live range, or the caller promises them for its pageable memory. The caller promises
            // exclusive access until this returns.
            unsafe { filled(found.place, fill) };
        }
        self.ranges.taints().remove(fill.to, fill.bytes());
        CompletionCount::fill(fill.bytes()).count(&self.counts);
        Ok(())
    }

    /// # Safety
    ///
    /// As `Backend::fill`.
    pub(super) unsafe fn fill_queued(&self, fill: &Fill, on: StreamId) -> Result<Ticket> {
        let queue = self.stream(on)?;
        let found = self.find_target(fill)?;
        let is_driver_only = self.is_driver_only(&found)?;
        self.write_queued(&queue, on, (fill.to, &found, fill.bytes()), CompletionCount::fill(fill.bytes()), |op| {
            if !is_driver_only {
                let (target, fill) = (HostAddress::new(found.place), *fill);
                // SAFETY: `find_target` found this many aligned bytes in a live range, or the caller promises them for its pageable memory. The caller
                // promises exclusive access until the fill is executed, and the queue runs no host function of a complete operation.
                return self.host(op, queue.handle(), move || unsafe { filled(target.get(), &fill) });
            }
            let pattern = Pattern::of(&queue.device, fill, address(&found), || op.word())?;
            // SAFETY: `find_target` found this many bytes in a live range. The caller promises exclusive access until the fill is executed.
            unsafe { fill_by_driver(&queue.device, fill, address(&found), pattern, |call| op.call(call)) }
        })
    }
}

/// The low `bytes` bytes of a pattern, a power of two, repeated to 16.
const fn repeated(pattern: u128, bytes: u8) -> u128 {
    let mut bits = 8 * bytes as u32;
    let mut whole = pattern & (u128::MAX >> (u128::BITS - bits));
    while bits < u128::BITS {
        whole |= whole << bits;
        bits *= 2;
    }
    whole
}

enum Pattern {
    Bytes(u8),
    Words(u32),
    /// Pinned: pageable memory could be read after the call returns.
    Seed(NonNull<u8>),
}

impl Pattern {
    /// `seed` returns pinned bytes, as many as a seed has.
    fn of(home: &Device, fill: &Fill, to: u64, seed: impl FnOnce() -> Result<NonNull<u64>>) -> Result<Self> {
        let pattern = repeated(fill.pattern, fill.size);
        if pattern == repeated(pattern, 1) {
            return Ok(Self::Bytes(pattern as u8));
        }
        let has_words = to.is_multiple_of(4) && fill.bytes().is_multiple_of(4) && home.calls.cuMemsetD32Async.is_some();
        if has_words && pattern == repeated(pattern, 4) {
            return Ok(Self::Words(pattern as u32));
        }
        let place = seed()?.cast::<[u8; MOST]>();
        // SAFETY: `seed` returns `MOST` bytes that are exclusive to this operation until it is complete.
        unsafe { place.write(pattern.to_le_bytes()) };
        Ok(Self::Seed(place.cast()))
    }
}

/// `call` makes each of the driver's calls, in order.
///
/// # Safety
///
/// The target has all elements, exclusively until the fill is complete, and so has a seed its 16 bytes.
unsafe fn fill_by_driver(
    home: &Device,
    fill: &Fill,
    to: u64,
    pattern: Pattern,
    mut call: impl FnMut(&mut dyn FnMut(CUstream) -> Result<()>) -> Result<()>,
) -> Result<()> {
    let (calls, bytes) = (home.calls, fill.bytes() as usize);
    let seed = match pattern {
        // SAFETY: the target has this many exclusive bytes until the fill is complete: the caller's promise.
        Pattern::Bytes(byte) => return call(&mut |stream| unsafe { calls.cuMemsetD8Async(to, byte, bytes, stream) }),
        // SAFETY: the target has this many exclusive bytes until the fill is complete: the caller's promise. `Pattern::of` returns words only for whole,
        // aligned ones.
        Pattern::Words(word) => return call(&mut |stream| unsafe { calls.cuMemsetD32Async(to, word, bytes / 4, stream) }),
        Pattern::Seed(seed) => seed,
    };
    let first = bytes.min(SEED_BYTES as usize);
    // SAFETY: the target has this many exclusive bytes until the fill is complete, and the seed has as many: the caller's promise.
    call(&mut |stream| unsafe { calls.cuMemcpyHtoDAsync_v2(to, seed.as_ptr().cast(), first, stream) })?;
    let (end, seeds) = (to + fill.bytes(), fill.bytes().div_ceil(SEED_BYTES));
    for copy in Address::Device(DeviceAddress::new(to)).doublings(SEED_BYTES, seeds) {
        let (to, from) = (copy.to.get(), copy.from.get());
        // The last seed may be cut: shorter elements need not fill it.
        let len = copy.bytes.min(end - to) as usize;
        // SAFETY: both ranges are within the target, which is exclusive until the fill is complete: the caller's promise. They do not overlap.
        call(&mut |stream| unsafe { calls.cuMemcpyDtoDAsync_v2(to, from, len, stream) })?;
    }
    Ok(())
}
