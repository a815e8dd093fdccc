//! Fills and published words: the driver call that writes each.
//!
//! A [`Fill`] whose pattern repeats every byte or every 4 aligned bytes is one memset. Any other pattern, of up to 8 bytes, is copied once and doubled.
//! `backend/fill.rs` says how wider elements are filled. The stream itself publishes a word, after all earlier operations; a device without that
//! operation copies a word that belongs to the operation.

use core::ptr::NonNull;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Release;

use cudarc::driver::sys::CUstream;

use super::Shared;
use super::copy::{Spot, address, drain};
use super::device::Device;
use super::process;
use super::queue::Lasts;
use super::tally::Done;
use crate::Result;
use crate::backend::bytes::aligned;
use crate::backend::fill::filled;
use crate::backend::ranges::Found;
use crate::backend::{Fill, MemoryLocation, Place, StreamId, Ticket};

/// The default of `cuStreamWriteValue64_v2`: what is before it in the stream is visible before it.
pub(super) const WITH_BARRIER: u32 = 0;

impl Shared {
    fn target(&self, fill: &Fill) -> Result<Found> {
        fill.check_size()?;
        let found = self.ranges.end(fill.to, fill.bytes(), "fill")?;
        aligned(address(&found), fill.bytes(), u64::from(fill.size))?;
        Ok(found)
    }

    /// # Safety
    ///
    /// The promise of `Backend::fill_now`.
    pub(super) unsafe fn fill_at_once(&self, fill: &Fill) -> Result<()> {
        process::takes_locks("cuMemsetD8Async")?;
        let found = self.target(fill)?;
        if self.is_far(&found)? {
            let home = self.device(found.device)?;
            home.now(|lane| {
                let pattern = Pattern::of(home, fill, address(&found), || Ok(lane.word()))?;
                spread(home, fill, address(&found), pattern, |call| call(lane.stream()))
            })?;
        } else {
            // SAFETY: so many elements, nobody else's: checked, and the caller's promise.
            unsafe { filled(found.place, fill) };
        }
        self.ranges.taints().remove(fill.to, fill.bytes());
        Done::fill(fill.bytes()).count(&self.counts);
        Ok(())
    }

    /// # Safety
    ///
    /// The promise of `Backend::fill`.
    pub(super) unsafe fn fill_queued(&self, fill: &Fill, on: StreamId) -> Result<Ticket> {
        let queue = self.stream(on)?;
        let found = self.target(fill)?;
        let is_far = self.is_far(&found)?;
        self.write_queued(&queue, on, (fill.to, &found, fill.bytes()), Done::fill(fill.bytes()), |making| {
            if !is_far {
                let (spot, fill) = (Spot::new(found.place), *fill);
                // SAFETY: so many elements until this is over, nobody else's: checked, and the caller's promise.
                return self.host(making, move || unsafe { filled(spot.get(), &fill) });
            }
            let pattern = Pattern::of(&queue.device, fill, address(&found), || making.word())?;
            spread(&queue.device, fill, address(&found), pattern, |call| making.call(call))
        })
    }

    /// Where a word is to be published.
    pub(super) fn word(&self, word: Place) -> Result<Found> {
        let bytes = size_of::<u64>() as u64;
        let found = self.ranges.end(word, bytes, "publish")?;
        aligned(address(&found), bytes, bytes)?;
        Ok(found)
    }

    /// # Safety
    ///
    /// The promise of `Backend::publish_now`.
    pub(super) unsafe fn publish_at_once(&self, word: Place, value: u64) -> Result<()> {
        process::takes_locks("cuStreamWriteValue64_v2")?;
        let found = self.word(word)?;
        if self.is_far(&found)? {
            let home = self.device(found.device)?;
            home.now(|lane| {
                if home.facts.writes_words && found.location != MemoryLocation::Unified {
                    // SAFETY: a live word of the device, aligned: checked, and the caller's promise.
                    return unsafe { home.calls.cuStreamWriteValue64_v2(lane.stream(), address(&found), value, WITH_BARRIER) };
                }
                // SAFETY: the lane's own word.
                unsafe { lane.word().write(value) };
                // SAFETY: as above; the lane is synchronised before anybody else has it.
                unsafe { home.calls.cuMemcpyHtoDAsync_v2(address(&found), lane.word().as_ptr().cast(), size_of::<u64>(), lane.stream()) }
            })?;
        } else {
            store(Spot::new(found.place), value);
        }
        Done::PUBLICATION.count(&self.counts);
        Ok(())
    }

    /// # Safety
    ///
    /// The promise of `Backend::publish`.
    pub(super) unsafe fn publish_queued(&self, word: Place, value: u64, since: u64, on: StreamId) -> Result<Ticket> {
        let queue = self.stream(on)?;
        let found = self.word(word)?;
        let (bytes, is_far) = (size_of::<u64>(), self.is_far(&found)?);
        let number = queue.push_since(
            Some(Ticket { stream: on, number: since }),
            Lasts::Bytes(bytes as u64),
            Some(Done::PUBLICATION),
            |making| {
                let device = &queue.device;
                let is_managed = found.location == MemoryLocation::Unified;
                if found.location == MemoryLocation::Host || is_managed && !is_far {
                    let spot = Spot::new(found.place);
                    return self.host(making, move || store(spot, value));
                }
                if device.facts.writes_words && !is_managed {
                    // SAFETY: a live word that the device sees, aligned: checked, and the caller's promise.
                    return making
                        .call(|stream| unsafe { device.calls.cuStreamWriteValue64_v2(stream, address(&found), value, WITH_BARRIER) });
                }
                let own = making.word()?;
                // SAFETY: this operation's own.
                unsafe { own.write(value) };
                // SAFETY: as above; the word is this operation's until it is over.
                making.call(|stream| unsafe { device.calls.cuMemcpyHtoDAsync_v2(address(&found), own.as_ptr().cast(), bytes, stream) })
            },
        )?;
        Ok(Ticket { stream: on, number })
    }
}

/// Stores a word that others may be reading.
///
/// It is live and aligned, and others access it as a word: whoever calls this has checked the one, and was promised the other.
fn store(spot: Spot, value: u64) {
    drain();
    // SAFETY: as the function says.
    let word = unsafe { AtomicU64::from_ptr(spot.get().as_ptr().cast()) };
    // SYNC POINT: published. Pairs with whatever acquires that word.
    word.store(value, Release);
}

/// A pattern in eight bytes, the element's again and again.
const fn widened(fill: &Fill) -> u64 {
    match fill.size {
        1 => (fill.pattern & 0xFF) * 0x0101_0101_0101_0101,
        2 => (fill.pattern & 0xFFFF) * 0x0001_0001_0001_0001,
        4 => (fill.pattern & 0xFFFF_FFFF) * 0x0000_0001_0000_0001,
        _ => fill.pattern,
    }
}

/// How a driver is told what to fill with.
enum Pattern {
    Bytes(u8),
    Words(u32),
    /// Pinned memory with eight bytes that are copied; pageable memory may be read later than the call.
    Seed(NonNull<u64>),
}

impl Pattern {
    /// `seed` gives pinned memory that is the operation's own until it is over.
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
        // SAFETY: eight bytes, aligned, the operation's own.
        unsafe { place.write(pattern.to_le()) };
        Ok(Self::Seed(place))
    }
}

/// Makes the calls that fill memory which a device sees.
fn spread(
    home: &Device,
    fill: &Fill,
    to: u64,
    pattern: Pattern,
    mut call: impl FnMut(&mut dyn FnMut(CUstream) -> Result<()>) -> Result<()>,
) -> Result<()> {
    let (calls, bytes) = (home.calls, fill.bytes() as usize);
    let seed = match pattern {
        // SAFETY: so many bytes, live and nobody else's: the caller's promise, here and below.
        Pattern::Bytes(byte) => return call(&mut |stream| unsafe { calls.cuMemsetD8Async(to, byte, bytes, stream) }),
        // SAFETY: as above; whole words, aligned.
        Pattern::Words(word) => return call(&mut |stream| unsafe { calls.cuMemsetD32Async(to, word, bytes / 4, stream) }),
        Pattern::Seed(seed) => seed,
    };
    let mut written = size_of::<u64>().min(bytes);
    // SAFETY: as above; the seed has so many bytes.
    call(&mut |stream| unsafe { calls.cuMemcpyHtoDAsync_v2(to, seed.as_ptr().cast(), written, stream) })?;
    while written < bytes {
        let more = written.min(bytes - written);
        // SAFETY: as above; what is written and what is not are apart.
        call(&mut |stream| unsafe { calls.cuMemcpyDtoDAsync_v2(to + written as u64, to, more, stream) })?;
        written += more;
    }
    Ok(())
}
