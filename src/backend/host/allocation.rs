use std::io;

use super::HostBackend;
use super::arena::ALIGN;
use super::inner::Owner;
use super::log::Facts;
use super::mapping::Mapping;
use crate::backend::ranges::Range;
use crate::backend::{Block, DeviceAddress, MemoryLocation, Options, Request, StreamId};
use crate::error::LimitOf;
use crate::{Error, Result};

impl HostBackend {
    /// With too little memory, waits for due frees and retries.
    pub(super) fn give_or_wait(&self, request: &Request, on: Option<StreamId>) -> Result<Block> {
        let outcome = self.give(request, on);
        if let Err(Error::OutOfMemory { .. } | Error::Limit { of: LimitOf::Pinned, .. }) = outcome {
            self.inner.deferred.catch_up(&self.inner);
            return self.give(request, on);
        }
        outcome
    }

    fn give(&self, request: &Request, on: Option<StreamId>) -> Result<Block> {
        let Request { location, device, layout, options } = *request;
        if let Some(on) = on {
            self.stream(on)?;
        }
        self.inner.arena(device)?;
        options.check(location)?;
        if location == MemoryLocation::Unified && !self.inner.capabilities.unified {
            return Err(Error::Unsupported { what: "managed memory" });
        }
        let (range, address, is_pinned) = match location {
            MemoryLocation::Device => self.carve(request, on)?,
            MemoryLocation::Pinned | MemoryLocation::Host | MemoryLocation::Unified => self.map(request)?,
        };
        let block = Block { is_pinned, ..range.block(address.get()) };
        self.inner.ranges.insert(address.get(), range);
        self.inner.counts.of(location).allocated(layout.size() as u64);
        Ok(block)
    }

    fn carve(&self, request: &Request, on: Option<StreamId>) -> Result<(Range<Owner>, DeviceAddress, bool)> {
        let Request { device, layout, options, .. } = *request;
        let arena = self.inner.arena(device)?;
        let (bytes, align) = (layout.size() as u64, layout.align() as u64);
        let offset = match arena.take(bytes, align)? {
            Some(offset) => offset,
            None => {
                let take = |evicted: &mut _| arena.take_from_pages(bytes, align, evicted);
                // SAFETY: just allocated, with this size, and unused.
                let give = |offset: &u64| unsafe { arena.give(*offset, bytes) };
                self.inner.take_from_pages(&Facts::allocation(request, on), take, give)?
            }
        };
        // SAFETY: just allocated, with this size.
        unsafe { if options.contains(Options::ZEROED) { arena.overwrite(offset, bytes, 0) } else { arena.poison(offset, bytes) } };
        // SAFETY: just allocated.
        let place = unsafe { arena.place(offset) };
        Ok((Range::of(request, place.0, Owner::Arena(offset)), arena.address(offset), false))
    }

    fn map(&self, request: &Request) -> Result<(Range<Owner>, DeviceAddress, bool)> {
        let Request { location, layout, options, .. } = *request;
        if layout.align() as u64 > ALIGN {
            return Err(Error::Align { asked: layout.align() as u64, most: ALIGN });
        }
        let mapping = Mapping::new(layout.size(), layout.align())?;
        let mut is_pinned = false;
        if location == MemoryLocation::Pinned {
            self.inner.budget.take(layout.size() as u64)?;
            is_pinned = mapping.lock();
            if options.contains(Options::MUST_PIN) && !is_pinned {
                self.inner.budget.give(layout.size() as u64);
                return Err(Error::Unsupported { what: "locking that many pages (raise `ulimit -l`, or allocate without MUST_PIN)" });
            }
        }
        let place = mapping.place().0;
        let address = DeviceAddress::new(place.addr().get() as u64);
        Ok((Range::of(request, place, Owner::Mapping(mapping)), address, is_pinned))
    }

    pub(super) fn shortage(&self, request: &Request) -> Error {
        let bytes = request.layout.size() as u64;
        match (request.location, self.inner.arena(request.device)) {
            (_, Err(error)) => error,
            (MemoryLocation::Host | MemoryLocation::Pinned, Ok(_)) => Error::Map { bytes, source: io::ErrorKind::OutOfMemory.into() },
            (MemoryLocation::Device | MemoryLocation::Unified, Ok(arena)) => arena.shortage(bytes, request.layout.align() as u64),
        }
    }
}
