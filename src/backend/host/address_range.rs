//! Address ranges of simulated devices: [`Reserved`] addresses of the process, whose parts get memory, lose it, and pass it on.
//!
//! The device addresses of a range are a window of their own, as those of an [`Arena`](super::arena::Arena), and never reused: a process has 2^55 of them.
//! Behind them is a mapping of this process without access rights, at the same offsets. Mapping a part gives it access rights: the kernel adds zeroed pages at
//! the first access. A move is a move of page tables, so the bytes really change their place. The memory of parts is not in the arena, but counts against its
//! capacity.
//!
//! Linux alone can move pages within a reservation, since 5.7; other systems have no address ranges.

use core::mem;
use core::ptr::NonNull;
use std::boxed::Box;

use super::HostBackend;
use super::arena::{ALIGN, MOST, POISON, window};
use super::faults::{Struck, Verb};
use super::inner::Owner;
use super::log::{Facts, Phase};
use super::mapping::Mapping;
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
            // SAFETY: as above.
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

/// Addresses that are inaccessible, except the parts that have memory.
///
/// Every address stays mapped, with or without access: an unmapped one could become part of another mapping of the process, which a later call would then
/// change. A call that replaces a mapping and fails may leave it unmapped. So after such a failure the caller forgets the [`Place`]: it is never occupied
/// again, and keeps the whole reservation for good.
pub(super) struct Reserved(Mapping);

impl Reserved {
    fn new(len: usize) -> Result<Self> {
        Mapping::by(len, ALIGN as usize, system::reserve).map(Self)
    }

    /// # Safety
    ///
    /// `offset` is within the addresses.
    unsafe fn place(&self, offset: usize) -> NonNull<u8> {
        // SAFETY: the caller promises an offset within the mapping.
        unsafe { self.0.place().0.add(offset) }
    }

    /// # Safety
    ///
    /// The part is within the addresses, exclusive to the caller, and a multiple of the page size.
    unsafe fn commit(&self, offset: usize, len: usize) -> Result<()> {
        // SAFETY: the caller promises a part of the addresses, which are mapped.
        unsafe { system::commit(self.place(offset), len) }.map_err(|source| Error::Map { bytes: len as u64, source })
    }

    /// Takes the memory of a part, and the access to it. False if the system refuses: the caller forgets the place.
    ///
    /// # Safety
    ///
    /// As [`commit`](Self::commit), and unused.
    #[must_use]
    pub unsafe fn decommit(&self, offset: usize, len: usize) -> bool {
        // SAFETY: the caller promises a part of the addresses, which are mapped, and that nothing uses its bytes.
        unsafe { system::decommit(self.place(offset), len) }.is_ok()
    }

    /// Moves the memory of a part to another. The first stays accessible, without memory; after an error, the caller forgets the second.
    ///
    /// # Safety
    ///
    /// As [`decommit`](Self::decommit), for both parts, which do not overlap.
    unsafe fn shift(&self, from: u64, to: u64, len: u64) -> Result<()> {
        // SAFETY: the caller promises parts of the addresses, which are mapped, and that nothing uses their bytes.
        let moved = unsafe { system::shift(self.place(from as usize), self.place(to as usize), len as usize) };
        moved.map_err(|source| Error::Map { bytes: len, source })
    }
}

/// Returns the size of a page in bytes, if parts of reserved addresses can get and lose memory.
pub(super) fn page_size() -> Option<u64> {
    system::page_size()
}

#[cfg(target_os = "linux")]
mod system {
    use core::ptr::{self, NonNull};
    use std::io;

    use rustix::io::Errno;
    use rustix::mm::{MapFlags, MprotectFlags, MremapFlags, ProtFlags, mmap_anonymous, mprotect, mremap_fixed};

    pub fn page_size() -> Option<u64> {
        Some(rustix::param::page_size() as u64)
    }

    pub fn reserve(len: usize) -> io::Result<NonNull<u8>> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: no address is requested, so no mapping is replaced.
        let place = unsafe { mmap_anonymous(ptr::null_mut(), len, ProtFlags::empty(), flags)? };
        NonNull::new(place.cast()).ok_or(io::Error::from(Errno::NOMEM))
    }

    /// # Safety
    ///
    /// A part of one `reserve`.
    pub unsafe fn commit(place: NonNull<u8>, len: usize) -> io::Result<()> {
        // SAFETY: the caller promises a part of one `reserve`, to which no reference exists.
        unsafe { mprotect(place.as_ptr().cast(), len, MprotectFlags::READ | MprotectFlags::WRITE) }?;
        Ok(())
    }

    /// A new mapping: an advice to drop the pages would leave the offset of a moved mapping, and the next part here would be several mappings, which Linux before
    /// 6.17 does not move at once.
    ///
    /// # Safety
    ///
    /// A part of one `reserve`, whose bytes nothing uses.
    pub unsafe fn decommit(place: NonNull<u8>, len: usize) -> io::Result<()> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        // SAFETY: the caller promises a part of one `reserve`, whose bytes nothing uses: its mapping may be replaced.
        unsafe { mmap_anonymous(place.as_ptr().cast(), len, ProtFlags::empty(), flags) }?;
        Ok(())
    }

    /// # Safety
    ///
    /// Two parts of one `reserve`, without overlap, whose bytes nothing uses.
    pub unsafe fn shift(from: NonNull<u8>, to: NonNull<u8>, len: usize) -> io::Result<()> {
        // By number: rustix has no name for it over libc, which the sanitizers need.
        let flags = MremapFlags::MAYMOVE | MremapFlags::from_bits_retain(libc::MREMAP_DONTUNMAP as u32);
        // SAFETY: the caller promises two parts of one `reserve`: the target replaces a mapping of the caller's. With `DONTUNMAP`, the source stays mapped,
        // without memory.
        unsafe { mremap_fixed(from.as_ptr().cast(), len, len, flags, to.as_ptr().cast()) }?;
        Ok(())
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    use core::ptr::NonNull;
    use std::io;

    pub fn page_size() -> Option<u64> {
        None
    }

    pub fn reserve(_: usize) -> io::Result<NonNull<u8>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub unsafe fn commit(_: NonNull<u8>, _: usize) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub unsafe fn decommit(_: NonNull<u8>, _: usize) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub unsafe fn shift(_: NonNull<u8>, _: NonNull<u8>, _: usize) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}
