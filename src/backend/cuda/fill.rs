//! Fills: the calls for a pattern.
//!
//! A pattern that repeats every byte or every 4 aligned bytes is a memset; any other up to 8 bytes is copied once and doubled.

use core::ptr::NonNull;

use cudarc::driver::sys::CUstream;

use super::Inner;
use super::copy::{CompletionCount, Spot, address};
use super::device::Device;
use super::driver;
use crate::Result;
use crate::backend::bytes::aligned;
use crate::backend::fill::filled;
use crate::backend::ranges::Found;
use crate::backend::{Fill, StreamId, Ticket};

impl Inner {
    fn target(&self, fill: &Fill) -> Result<Found> {
        fill.check_size()?;
        let found = self.ranges.end(fill.to, fill.bytes(), "fill")?;
        aligned(address(&found), fill.bytes(), u64::from(fill.size))?;
        Ok(found)
    }

    /// # Safety
    ///
    /// As `Backend::fill_now`.
    pub(super) unsafe fn fill_at_once(&self, fill: &Fill) -> Result<()> {
        driver::check_not_forked("cuMemsetD8Async")?;
        let found = self.target(fill)?;
        if self.is_far(&found)? {
            let home = self.device(found.device)?;
            home.now(|lane| {
                let pattern = Pattern::of(home, fill, address(&found), || Ok(lane.word()))?;
                spread(home, fill, address(&found), pattern, |call| call(lane.stream()))
            })?;
        } else {
            // SAFETY: this many exclusive elements: checked, and the caller's promise.
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
        let found = self.target(fill)?;
        let is_far = self.is_far(&found)?;
        self.write_queued(&queue, on, (fill.to, &found, fill.bytes()), CompletionCount::fill(fill.bytes()), |op| {
            if !is_far {
                let (spot, fill) = (Spot::new(found.place), *fill);
                // SAFETY: as in `fill_at_once`, until complete.
                return self.host(op, queue.handle(), move || unsafe { filled(spot.get(), &fill) });
            }
            let pattern = Pattern::of(&queue.device, fill, address(&found), || op.word())?;
            spread(&queue.device, fill, address(&found), pattern, |call| op.call(call))
        })
    }
}

const fn widened(fill: &Fill) -> u64 {
    match fill.size {
        1 => (fill.pattern & 0xFF) * 0x0101_0101_0101_0101,
        2 => (fill.pattern & 0xFFFF) * 0x0001_0001_0001_0001,
        4 => (fill.pattern & 0xFFFF_FFFF) * 0x0000_0001_0000_0001,
        _ => fill.pattern,
    }
}

enum Pattern {
    Bytes(u8),
    Words(u32),
    /// Pinned: pageable memory could be read after the call returns.
    Seed(NonNull<u64>),
}

impl Pattern {
    fn of(home: &Device, fill: &Fill, to: u64, seed: impl FnOnce() -> Result<NonNull<u64>>) -> Result<Self> {
        let (pattern, bytes) = (widened(fill), fill.bytes());
        let (byte, word) = (pattern as u8, pattern as u32);
        if pattern == u64::from(byte) * 0x0101_0101_0101_0101 {
            return Ok(Self::Bytes(byte));
        }
        let is_repeated = pattern >> 32 == u64::from(word) && to.is_multiple_of(4) && bytes.is_multiple_of(4);
        if is_repeated && home.calls.cuMemsetD32Async.is_some() {
            return Ok(Self::Words(word));
        }
        let place = seed()?;
        // SAFETY: the operation's own word.
        unsafe { place.write(pattern.to_le()) };
        Ok(Self::Seed(place))
    }
}

fn spread(
    home: &Device,
    fill: &Fill,
    to: u64,
    pattern: Pattern,
    mut call: impl FnMut(&mut dyn FnMut(CUstream) -> Result<()>) -> Result<()>,
) -> Result<()> {
    let (calls, bytes) = (home.calls, fill.bytes() as usize);
    let seed = match pattern {
        // SAFETY: this many exclusive bytes: the caller's promise.
        Pattern::Bytes(byte) => return call(&mut |stream| unsafe { calls.cuMemsetD8Async(to, byte, bytes, stream) }),
        // SAFETY: as above; whole words, aligned.
        Pattern::Words(word) => return call(&mut |stream| unsafe { calls.cuMemsetD32Async(to, word, bytes / 4, stream) }),
        Pattern::Seed(seed) => seed,
    };
    let mut written = size_of::<u64>().min(bytes);
    // SAFETY: as above; the seed has as many.
    call(&mut |stream| unsafe { calls.cuMemcpyHtoDAsync_v2(to, seed.as_ptr().cast(), written, stream) })?;
    while written < bytes {
        let more = written.min(bytes - written);
        // SAFETY: as above; the parts do not overlap.
        call(&mut |stream| unsafe { calls.cuMemcpyDtoDAsync_v2(to + written as u64, to, more, stream) })?;
        written += more;
    }
    Ok(())
}
