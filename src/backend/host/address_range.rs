//! Address ranges of simulated devices: [`Reserved`] addresses of the process, whose parts get memory, lose it, and pass it on.
//!
//! The device addresses of a range are a window of their own, as those of an [`Arena`](super::arena::Arena), and never reused: a process has 2^55 of them.
//! Behind them is a mapping of this process without access rights, at the same offsets. Mapping a part gives it access rights: the kernel adds zeroed pages at
//! the first access. A move is a move of page tables, so the bytes really change their place. The memory of parts is not in the arena, but counts against its
//! capacity.
//!
//! Systems other than Linux have no address ranges.

use core::mem;
use std::boxed::Box;

use super::HostBackend;
use super::arena::{ALIGN, MOST, POISON, window};
use super::faults::{Struck, Verb};
use super::inner::Owner;
use super::log::{Facts, Phase};
use super::reserved::Reserved;
use crate::backend::ranges::Range;
use crate::backend::{Address, AddressRange, Block, DeviceAddress, MemoryLocation};
use crate::sys::panic::both;
use crate::{Error, Result};

impl HostBackend {
    pub(super) fn reserve_addresses(&self, device: u32, bytes: u64) -> Result<AddressRange> {
        self.inner.arena(device)?;
        let Some(granularity) = self.inner.capabilities.mapping_granularity else {
            return Err(Error::Unsupported { what: "an address range" });
        };
        let most = MOST.min((isize::MAX as u64).saturating_sub(ALIGN)) / granularity * granularity;
        if bytes == 0 || bytes > most {
            return Err(Error::Size { what: "size in bytes", asked: bytes, least: 1, most });
        }
        let bytes = bytes.next_multiple_of(granularity);
        let reserved = Reserved::new(bytes as usize)?;
        let address = DeviceAddress::new(window(bytes)?);
        Ok(AddressRange::new(self.inner.id, device, address, bytes, granularity, Box::new(reserved)))
    }

    /// With too little memory, or where a block's free is due, waits for due frees and retries.
    pub(super) fn map_or_wait(&self, range: &AddressRange, offset: u64, bytes: u64, facts: &Facts) -> Result<Block> {
        let outcome = self.map_part(range, offset, bytes, facts);
        if let Err(Error::OutOfMemory { .. } | Error::Busy { .. }) = outcome {
            self.inner.deferred.catch_up(&self.inner);
            return self.map_part(range, offset, bytes, facts);
        }
        outcome
    }

    fn map_part(&self, range: &AddressRange, offset: u64, bytes: u64, facts: &Facts) -> Result<Block> {
        let (inner, reserved) = (&self.inner, range.held::<Reserved>(self.inner.id)?);
        let place = range.occupy(offset, bytes)?;
        let (request, address) = (range.request(bytes)?, place.address().get());
        let arena = inner.arena(range.device())?;
        inner.take_from_pages(facts, |evicted| arena.take_mapped(bytes, evicted), |()| arena.give_mapped(bytes))?;
        // SAFETY: `place` occupies the part, which is within the addresses, in units of at least a page.
        if let Err(error) = unsafe { reserved.commit(offset as usize, bytes as usize) } {
            arena.give_mapped(bytes);
            return Err(error);
        }
        // SAFETY: within the addresses.
        let start = unsafe { reserved.place(offset as usize) };
        if arena.poisons {
            // SAFETY: the part has memory, which no one else uses.
            unsafe { start.write_bytes(POISON, bytes as usize) };
        }
        let part = Range { joins: true, ..Range::of(&request, start, Owner::Part(place)) };
        let block = part.block(address);
        inner.ranges.insert(address, part);
        inner.counts.of(MemoryLocation::Device).allocated(bytes);
        Ok(block)
    }

    /// As [`map_or_wait`](Self::map_or_wait), for the target.
    ///
    /// # Safety
    ///
    /// Nothing uses the block.
    pub(super) unsafe fn move_or_wait(&self, block: &mut Block, offset: u64) -> Result<()> {
        // SAFETY: the caller promises that nothing uses the block.
        let outcome = unsafe { self.move_part(block, offset) };
        if let Err(Error::Busy { .. }) = outcome {
            self.inner.deferred.catch_up(&self.inner);
            // SAFETY: the caller promises that nothing uses the block.
            return unsafe { self.move_part(block, offset) };
        }
        outcome
    }

    /// # Safety
    ///
    /// Nothing uses the block.
    unsafe fn move_part(&self, block: &mut Block, offset: u64) -> Result<()> {
        let (inner, from, bytes) = (&self.inner, block.address(), block.layout.size() as u64);
        let foreign = || Error::Foreign { call: Verb::Remap.name(), address: from, layouts: None };
        let range = match inner.ranges.read().0.get(&from).filter(|listed| !listed.is_dead).map(|listed| &listed.owner) {
            Some(Owner::Part(place)) => place.range().clone(),
            _ => return Err(foreign()),
        };
        let reserved = range.held::<Reserved>(inner.id)?;
        let target = range.occupy(offset, bytes)?;
        let [from, to] = [DeviceAddress::new(from), target.address()].map(Address::Device);
        // Around the removal from the list, which forgets the block's taints.
        inner.ranges.taints().carry(from, to, bytes, || {
            let listed = inner.ranges.take(block).map_err(|_| foreign())?;
            let Owner::Part(source) = listed.owner else { return Err(foreign()) };
            let list = |address: Address, start, place| {
                inner.ranges.insert(address.get(), Range { place: start, owner: Owner::Part(place), ..listed });
            };
            // SAFETY: both places are occupied, by the block alone and by `target`, and not listed; the caller promises that nothing uses the block.
            if let Err(error) = unsafe { reserved.shift(source.offset(), offset, bytes) } {
                list(from, listed.place, source);
                // The kernel may have unmapped it: it is never used again.
                mem::forget(target);
                return Err(error);
            }
            // SAFETY: occupied by `source`, whose memory has moved.
            if unsafe { !reserved.decommit(source.offset() as usize, bytes as usize) } {
                mem::forget(source);
            }
            // SAFETY: within the addresses.
            list(to, unsafe { reserved.place(offset as usize) }, target);
            Ok(())
        })?;
        block.device_address = Some(DeviceAddress::new(to.get()));
        Ok(())
    }

    /// Runs a call that returns a new block. After a panic of the user's clock, the caller gets no block: it is freed.
    pub(super) fn call_for_block(
        &self,
        facts: &Facts,
        run: impl FnOnce() -> Result<Block>,
        fault: impl FnOnce(&Struck) -> Error,
    ) -> Result<Block> {
        let inner = &self.inner;
        let outcome = match inner.plan.next(facts.verb) {
            None => run(),
            Some(struck) => Err(fault(&struck)),
        };
        let (facts, is_ok) = (Facts { to: outcome.as_ref().ok().map(Block::address), ..*facts }, outcome.is_ok());
        let give = |has_panicked: bool| match &outcome {
            Ok(block) if has_panicked => inner.ranges.take(block).map(|range| inner.release(block.address(), range)),
            _ => Ok(()),
        };
        both(|| inner.log(&facts, Phase::Called, None, is_ok), give)?;
        outcome
    }
}
