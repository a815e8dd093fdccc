//! A backend's live memory: resolves addresses, and owns each allocation.

use core::alloc::Layout;
use core::ptr::NonNull;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{PoisonError, RwLock, RwLockReadGuard};
use std::vec::Vec;

use super::{Address, Block, DeviceAddress, MemoryLocation, Options, Request, Taints};
use crate::{Error, Result};

/// INVARIANT: ranges do not overlap, and stay mapped, or allocated at their device address, until removed.
pub(crate) struct Ranges<O> {
    by_address: RwLock<BTreeMap<u64, Range<O>>>,
    taints: Taints,
}

pub(crate) struct Range<O> {
    pub layout: Layout,
    pub location: MemoryLocation,
    pub options: Options,
    pub device: u32,
    /// Only a number if the process cannot access it.
    pub place: NonNull<u8>,
    /// Device minus host address, wrapping; not 0 only for write-combined and some registered memory.
    pub shift: u64,
    pub owner: O,
    /// Freed, but in use: hidden from new calls.
    pub is_dead: bool,
    /// Mapped in an address range: one range with the mapped ranges next to it.
    pub joins: bool,
}

#[derive(Clone, Copy)]
pub(crate) struct Span {
    pub start: u64,
    pub bytes: u64,
    pub place: NonNull<u8>,
    pub shift: u64,
    pub location: MemoryLocation,
    pub device: u32,
}

// SAFETY: only a number; each access has its own argument.
unsafe impl<O: Send> Send for Range<O> {}
// SAFETY: only a number; each access has its own argument.
unsafe impl<O: Sync> Sync for Range<O> {}

#[derive(Clone, Copy)]
pub(crate) struct Found {
    pub place: NonNull<u8>,
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "host and devices have the same addresses"))]
    pub shift: u64,
    pub location: MemoryLocation,
    pub device: u32,
    pub start: u64,
    pub offset: u64,
    /// Pageable memory of the caller.
    pub in_no_range: bool,
}

pub(crate) struct Listed<'a, O>(pub(super) RwLockReadGuard<'a, BTreeMap<u64, Range<O>>>);

impl<O> Default for Ranges<O> {
    fn default() -> Self {
        Self { by_address: RwLock::default(), taints: Taints::default() }
    }
}

impl<O> Ranges<O> {
    pub fn late() -> Self {
        Self { taints: Taints::late(), ..Self::default() }
    }

    pub fn insert(&self, address: u64, range: Range<O>) {
        self.by_address.write().unwrap_or_else(PoisonError::into_inner).insert(address, range);
    }

    /// Fails, changing nothing, unless the block is live as allocated.
    pub fn kill(&self, block: &Block) -> Result<()> {
        let mut ranges = self.by_address.write().unwrap_or_else(PoisonError::into_inner);
        let range = ranges.get_mut(&block.address()).ok_or_else(|| foreign(block))?;
        range.is_live_as(block)?;
        range.is_dead = true;
        Ok(())
    }

    /// For an unused block, as [`kill`](Self::kill).
    pub fn take(&self, block: &Block) -> Result<Range<O>> {
        let mut ranges = self.by_address.write().unwrap_or_else(PoisonError::into_inner);
        let Entry::Occupied(entry) = ranges.entry(block.address()) else { return Err(foreign(block)) };
        entry.get().is_live_as(block)?;
        let range = entry.remove();
        self.forget(block);
        Ok(range)
    }

    pub fn remove(&self, block: &Block) -> Option<Range<O>> {
        let range = self.by_address.write().unwrap_or_else(PoisonError::into_inner).remove(&block.address());
        self.forget(block);
        range
    }

    pub fn taints(&self) -> &Taints {
        &self.taints
    }

    fn forget(&self, block: &Block) {
        if !Taints::are_none() {
            self.taints.remove_range(block.address(), block.layout.size() as u64);
        }
    }

    pub fn options(&self, block: &Block) -> Option<Options> {
        self.read().0.get(&block.address()).filter(|range| !range.is_dead).map(|range| range.options)
    }

    pub fn read(&self) -> Listed<'_, O> {
        Listed(self.by_address.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<O> Listed<'_, O> {
    /// `dead` includes freed ranges.
    pub fn find(&self, address: u64, bytes: u64, dead: bool, call: &'static str) -> Result<Found> {
        let Some((range, offset)) = self.at(address) else { return Err(Error::Foreign { call, address, layouts: None }) };
        self.found(range, offset, address, bytes, dead, call)
    }

    #[inline]
    fn found(&self, range: &Range<O>, offset: u64, address: u64, bytes: u64, dead: bool, call: &'static str) -> Result<Found> {
        if range.is_dead && !dead {
            return Err(Error::Foreign { call, address, layouts: None });
        }
        if range.joins && bytes > range.bytes() - offset {
            return self.joined(range, address - offset, offset.saturating_add(bytes), dead).found(address, bytes);
        }
        range.span(address - offset).found(address, bytes)
    }

    /// Returns the span of a range, continued over mapped ranges next to it up to `len` bytes.
    #[cold]
    #[inline(never)]
    pub(super) fn joined(&self, range: &Range<O>, start: u64, len: u64, dead: bool) -> Span {
        let mut span = range.span(start);
        if !range.joins || span.bytes >= len {
            return span;
        }
        for (&next, range) in self.0.range(start + span.bytes..) {
            let place = span.place.as_ptr().wrapping_add(span.bytes as usize);
            let continues = range.joins && next == start + span.bytes && range.place.as_ptr() == place && range.device == span.device;
            if span.bytes >= len || !continues || (range.is_dead && !dead) {
                break;
            }
            span.bytes += range.bytes();
        }
        span
    }

    /// `queued`: whether the end was pageable then. A range removed since is an error.
    pub fn end(&self, at: Address, bytes: u64, queued: Option<bool>, call: &'static str) -> Result<Found> {
        let host = match at {
            Address::Device(address) => return self.find(address.get(), bytes, queued.is_some(), call),
            Address::Host(host) => host,
        };
        let address = host.as_ptr().addr() as u64;
        match if queued == Some(true) { None } else { self.at(address) } {
            Some((range, offset)) => self.found(range, offset, address, bytes, queued.is_some(), call),
            None if queued == Some(false) => Err(Error::Foreign { call, address, layouts: None }),
            None => {
                Ok(Found { place: host, shift: 0, location: MemoryLocation::Host, device: 0, start: address, offset: 0, in_no_range: true })
            }
        }
    }

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
    pub fn of(request: &Request, place: NonNull<u8>, owner: O) -> Self {
        let Request { location, device, layout, options } = *request;
        Self { layout, location, options, device, place, shift: 0, owner, is_dead: false, joins: false }
    }

    pub fn block(&self, address: u64) -> Block {
        let Self { layout, location, device, place, shift, .. } = *self;
        Block {
            device_address: (location != MemoryLocation::Host).then_some(DeviceAddress::new(address.wrapping_add(shift))),
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

    fn is_live_as(&self, block: &Block) -> Result<()> {
        let (expected, got) = ((self.location, self.layout), (block.location, block.layout));
        match (self.is_dead, expected == got) {
            (true, _) => Err(foreign(block)),
            (false, true) => Ok(()),
            (false, false) => Err(Error::Foreign { call: "free", address: block.address(), layouts: Some(Box::new([expected, got])) }),
        }
    }

    pub(super) fn span(&self, start: u64) -> Span {
        Span { start, bytes: self.bytes(), place: self.place, shift: self.shift, location: self.location, device: self.device }
    }
}

impl Span {
    #[inline]
    pub fn found(&self, address: u64, bytes: u64) -> Result<Found> {
        let Self { start, place, shift, location, device, .. } = *self;
        let offset = address - start;
        if bytes > self.bytes - offset {
            return Err(Error::Range { offset, len: bytes, size: self.bytes, element_bytes: 1 });
        }
        // No range wraps, so the place is never null.
        let place = NonNull::new(place.as_ptr().wrapping_add(offset as usize)).unwrap_or(place);
        Ok(Found { place, shift, location, device, start, offset, in_no_range: false })
    }
}

pub(crate) fn strike<T: PartialEq>(from: &mut Vec<T>, one: &T) {
    if let Some(index) = from.iter().position(|other| other == one) {
        from.swap_remove(index);
    }
}
