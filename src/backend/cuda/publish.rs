//! Published words. The stream stores the word last, or copies it where the device cannot store.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Release;

use super::Inner;
use super::completion_count::{CompletionCount, Route};
use super::copy::{Ends, Spot, address, device_address, drain};
use super::process;
use super::queue::Length;
use crate::Result;
use crate::backend::bytes::{aligned, is_word};
use crate::backend::ranges::Found;
use crate::backend::{Copy, MemoryLocation, Place, StreamId, Ticket};

/// Earlier operations of the stream are visible before the word.
const WITH_BARRIER: u32 = 0;

impl Inner {
    fn word(&self, word: Place) -> Result<Found> {
        let bytes = size_of::<u64>() as u64;
        let found = self.ranges.end(word, bytes, "publish")?;
        aligned(address(&found), bytes, bytes)?;
        Ok(found)
    }

    /// # Safety
    ///
    /// As `Backend::publish_now`.
    pub(super) unsafe fn publish_at_once(&self, word: Place, value: u64) -> Result<()> {
        process::takes_locks("cuStreamWriteValue64_v2")?;
        let found = self.word(word)?;
        if self.is_far(&found)? {
            let home = self.device(found.device)?;
            home.now(|lane| {
                if home.facts.writes_words && found.location != MemoryLocation::Unified {
                    // SAFETY: a live, aligned device word: checked, and the caller's promise.
                    return unsafe { home.calls.cuStreamWriteValue64_v2(lane.stream(), device_address(&found), value, WITH_BARRIER) };
                }
                // SAFETY: the lane's own word.
                unsafe { lane.word().write(value) };
                // SAFETY: as above; synchronised before another thread uses the lane.
                unsafe {
                    home.calls.cuMemcpyHtoDAsync_v2(device_address(&found), lane.word().as_ptr().cast(), size_of::<u64>(), lane.stream())
                }
            })?;
        } else {
            store(Spot::new(found.place), value);
        }
        CompletionCount::PUBLICATION.count(&self.counts);
        Ok(())
    }

    /// # Safety
    ///
    /// As `Backend::publish`.
    pub(super) unsafe fn publish_queued(&self, word: Place, value: u64, since: u64, on: StreamId) -> Result<Ticket> {
        let queue = self.stream(on)?;
        let found = self.word(word)?;
        let (bytes, is_far) = (size_of::<u64>(), self.is_far(&found)?);
        let since = Some(Ticket { stream: on, number: since });
        let number = queue.push_bound(
            &queue.device.bind()?,
            queue.state(),
            since,
            Length::Bytes(bytes as u64),
            Some(CompletionCount::PUBLICATION),
            |op| {
                let device = &queue.device;
                let is_managed = found.location == MemoryLocation::Unified;
                if found.location == MemoryLocation::Host || is_managed && !is_far {
                    let spot = Spot::new(found.place);
                    return self.host(op, queue.handle(), move || store(spot, value));
                }
                if device.facts.writes_words && !is_managed {
                    // SAFETY: a live, aligned word that the device sees: checked, and the caller's promise.
                    return op.call(|stream| unsafe {
                        device.calls.cuStreamWriteValue64_v2(stream, device_address(&found), value, WITH_BARRIER)
                    });
                }
                let own = op.word()?;
                // SAFETY: the operation's own word.
                unsafe { own.write(value) };
                // SAFETY: as above, until it is complete.
                op.call(|stream| unsafe { device.calls.cuMemcpyHtoDAsync_v2(device_address(&found), own.as_ptr().cast(), bytes, stream) })
            },
        )?;
        Ok(Ticket { stream: on, number })
    }

    /// # Safety
    ///
    /// As `Backend::copy_and_publish_now`.
    pub(super) unsafe fn copy_and_publish_at_once(&self, copies: &[Copy], word: Place, value: u64) -> Result<()> {
        process::takes_locks("cuStreamWriteValue64_v2")?;
        let found = self.word(word)?;
        let home = if found.location == MemoryLocation::Device { Some(self.device(found.device)?) } else { None };
        let mut ends = [None, None];
        for (ends, copy) in ends.iter_mut().zip(copies) {
            *ends = Some((self.ends(copy)?, copy.bytes));
        }
        // Needs the lane's own word.
        let is_alike = |(ends, bytes): &(Ends, u64)| {
            let is_home = match ends.route {
                Route::Up => ends.to.device == found.device,
                Route::Down => ends.from.device == found.device,
                _ => false,
            };
            is_home && !is_word(address(&ends.to), address(&ends.from), *bytes)
        };
        let in_order = home.filter(|home| home.facts.writes_words && copies.len() <= ends.len() && ends.iter().flatten().all(is_alike));
        let Some(home) = in_order else {
            for copy in copies {
                // SAFETY: the caller's promise.
                unsafe { self.copy_at_once(copy) }?;
            }
            // SAFETY: the caller's promise.
            return unsafe { self.publish_at_once(word, value) };
        };
        home.now(|lane| {
            for (ends, bytes) in ends.iter().flatten() {
                self.issue(ends, *bytes as usize, home, lane.stream())?;
            }
            // SAFETY: as in `publish_at_once`.
            unsafe { home.calls.cuStreamWriteValue64_v2(lane.stream(), device_address(&found), value, WITH_BARRIER) }
        })?;
        copies.iter().for_each(|copy| self.ranges.taints().remove(copy.to, copy.bytes));
        ends.iter().flatten().for_each(|(ends, bytes)| ends.done(*bytes).count(&self.counts));
        CompletionCount::PUBLICATION.count(&self.counts);
        Ok(())
    }
}

/// The caller checked that the word is live and aligned; others access it as a word.
fn store(spot: Spot, value: u64) {
    drain();
    // SAFETY: see the function's comment.
    let word = unsafe { AtomicU64::from_ptr(spot.get().as_ptr().cast()) };
    // SYNC POINT: published. Pairs with every acquire load of that word.
    word.store(value, Release);
}
