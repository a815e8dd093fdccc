//! All live memory of a backend: what an address may be used for, and what is given back in the end.

use core::alloc::Layout;
use core::ops;
use core::ptr::NonNull;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{PoisonError, RwLock, RwLockReadGuard};
use std::vec::Vec;

use super::{Block, DeviceAddress, MemoryLocation, Options, Place, Request, Taints};
use crate::{Error, Result};

/// INVARIANT: ranges do not overlap, and each is there until it is removed: mapped at its place, or a device's at the address that is its place.
pub(crate) struct Ranges<O> {
    by_address: RwLock<BTreeMap<u64, Range<O>>>,
    taints: Taints,
}

/// One allocation.
pub(crate) struct Range<O> {
    /// As asked for.
    pub layout: Layout,
    pub location: MemoryLocation,
    pub options: Options,
    /// Whose, or near whom.
    pub device: u32,
    /// Where the backend finds it; for a device's memory that the process cannot reach, a number.
    pub place: NonNull<u8>,
    /// What goes when it goes.
    pub owner: O,
    /// Freed, and waiting for its last use: new calls find it gone.
    pub is_dead: bool,
}

/// Where a range is, and what it is.
#[derive(Clone, Copy)]
pub(crate) struct Span {
    pub start: u64,
    pub bytes: u64,
    pub place: NonNull<u8>,
    pub location: MemoryLocation,
    pub device: u32,
}

// SAFETY: the place is a number with provenance; reading or writing through it is unsafe and argued where it is done.
unsafe impl<O: Send> Send for Range<O> {}
// SAFETY: as above.
unsafe impl<O: Sync> Sync for Range<O> {}

/// Where bytes are for a backend, and whose they are.
#[derive(Clone, Copy)]
pub(crate) struct Found {
    pub place: NonNull<u8>,
    pub location: MemoryLocation,
    pub device: u32,
    /// Where its range begins, and how far in it is.
    pub start: u64,
    pub offset: u64,
    /// In no range: pageable memory of the caller's.
    pub in_no_range: bool,
}

/// The ranges, while nobody adds or removes one.
pub(crate) struct Listed<'a, O>(pub(super) RwLockReadGuard<'a, BTreeMap<u64, Range<O>>>);

impl<O> Default for Ranges<O> {
    fn default() -> Self {
        Self { by_address: RwLock::default(), taints: Taints::default() }
    }
}

impl<O> Ranges<O> {
    /// No ranges, of a backend whose operations fail when they are executed.
    pub fn late() -> Self {
        Self { taints: Taints::late(), ..Self::default() }
    }

    pub fn insert(&self, address: u64, range: Range<O>) {
        self.by_address.write().unwrap_or_else(PoisonError::into_inner).insert(address, range);
    }

    /// Marks a block as freed: it is there once. One that is not what was allocated is refused, and what was allocated stays.
    pub fn kill(&self, block: &Block) -> Result<()> {
        let mut ranges = self.by_address.write().unwrap_or_else(PoisonError::into_inner);
        let range = ranges.get_mut(&block.address()).ok_or_else(|| foreign(block))?;
        range.is_live_as(block)?;
        range.is_dead = true;
        Ok(())
    }

    /// Takes out a block that is freed and used by nobody. What [`kill`](Self::kill) refuses is refused.
    pub fn take(&self, block: &Block) -> Result<Range<O>> {
        let mut ranges = self.by_address.write().unwrap_or_else(PoisonError::into_inner);
        let Entry::Occupied(entry) = ranges.entry(block.address()) else { return Err(foreign(block)) };
        entry.get().is_live_as(block)?;
        let range = entry.remove();
        self.forget(block);
        Ok(range)
    }

    /// Takes out a block that was killed, before the memory itself goes.
    pub fn remove(&self, block: &Block) -> Option<Range<O>> {
        let range = self.by_address.write().unwrap_or_else(PoisonError::into_inner).remove(&block.address());
        self.forget(block);
        range
    }

    /// Returns the memory whose contents are invalid.
    pub fn taints(&self) -> &Taints {
        &self.taints
    }

    fn forget(&self, block: &Block) {
        if !Taints::are_none() {
            self.taints.remove_range(block.address(), block.layout.size() as u64);
        }
    }

    /// What a live block was asked to be.
    pub fn options(&self, block: &Block) -> Option<Options> {
        self.read().0.get(&block.address()).filter(|range| !range.is_dead).map(|range| range.options)
    }

    pub fn read(&self) -> Listed<'_, O> {
        Listed(self.by_address.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<O> Listed<'_, O> {
    /// The place of `bytes` bytes at a device's or a managed address, for a call. Dead ranges are there for what was queued before they died.
    pub fn find(&self, address: u64, bytes: u64, dead: bool, call: &'static str) -> Result<Found> {
        let Some((range, offset)) = self.at(address) else { return Err(Error::Foreign { call, address, layouts: None }) };
        range.found(offset, address, bytes, dead, call)
    }

    /// Where one end of a copy is; `queued` is whether it was pageable when it was queued, so that a range which has vanished since is missed.
    pub fn end(&self, place: Place, bytes: u64, queued: Option<bool>, call: &'static str) -> Result<Found> {
        let host = match place {
            Place::Device(address) => return self.find(address.get(), bytes, queued.is_some(), call),
            Place::Host(host) => host,
        };
        let address = host.as_ptr().addr() as u64;
        // What was the caller's when it was queued is so until it is executed.
        match if queued == Some(true) { None } else { self.at(address) } {
            Some((range, offset)) => range.found(offset, address, bytes, queued.is_some(), call),
            None if queued == Some(false) => Err(Error::Foreign { call, address, layouts: None }),
            None => Ok(Found { place: host, location: MemoryLocation::Host, device: 0, start: address, offset: 0, in_no_range: true }),
        }
    }

    /// The range that an address is in, and how far in.
    pub(super) fn at(&self, address: u64) -> Option<(&Range<O>, u64)> {
        let (&start, range) = self.0.range(..=address).next_back()?;
        let offset = address - start;
        (offset < range.bytes()).then_some((range, offset))
    }
}

fn foreign(block: &Block) -> Error {
    Error::Foreign { call: "free", address: block.address(), layouts: None }
}

impl<O> Range<O> {
    /// Returns the live range that was allocated for a request.
    pub fn of(request: &Request, place: NonNull<u8>, owner: O) -> Self {
        let Request { location, device, layout, options } = *request;
        Self { layout, location, options, device, place, owner, is_dead: false }
    }

    /// Returns the block of this range at its address.
    pub fn block(&self, address: u64) -> Block {
        let Self { layout, location, device, place, .. } = *self;
        Block {
            device_address: (location != MemoryLocation::Host).then_some(DeviceAddress::new(address)),
            host: (location != MemoryLocation::Device).then_some(place),
            layout,
            location,
            device,
            is_pinned: location == MemoryLocation::Pinned,
            ready: None,
            tag: 0,
        }
    }

    pub fn bytes(&self) -> u64 {
        self.layout.size() as u64
    }

    /// Refuses a block that was freed, or that is not what was allocated.
    fn is_live_as(&self, block: &Block) -> Result<()> {
        let (expected, got) = ((self.location, self.layout), (block.location, block.layout));
        match (self.is_dead, expected == got) {
            (true, _) => Err(foreign(block)),
            (false, true) => Ok(()),
            (false, false) => Err(Error::Foreign { call: "free", address: block.address(), layouts: Some(Box::new([expected, got])) }),
        }
    }

    /// `bytes` bytes at an address that is `offset` in.
    fn found(&self, offset: u64, address: u64, bytes: u64, dead: bool, call: &'static str) -> Result<Found> {
        if self.is_dead && !dead {
            return Err(Error::Foreign { call, address, layouts: None });
        }
        self.span(address - offset).found(address, bytes)
    }

    pub(super) fn span(&self, start: u64) -> Span {
        Span { start, bytes: self.bytes(), place: self.place, location: self.location, device: self.device }
    }
}

impl Span {
    /// `bytes` bytes at an address that is in it.
    #[inline]
    pub fn found(&self, address: u64, bytes: u64) -> Result<Found> {
        let Self { start, place, location, device, .. } = *self;
        let offset = address - start;
        if bytes > self.bytes - offset {
            return Err(Error::Range { offset, len: bytes, size: self.bytes });
        }
        // No place is beyond the end of the numbers, so this changes none.
        let place = NonNull::new(place.as_ptr().wrapping_add(offset as usize)).unwrap_or(place);
        Ok(Found { place, location, device, start, offset, in_no_range: false })
    }
}

/// Takes one of such out of others, if it is among them.
pub(crate) fn strike(from: &mut Vec<ops::Range<u64>>, one: &ops::Range<u64>) {
    if let Some(index) = from.iter().position(|other| other == one) {
        from.swap_remove(index);
    }
}
