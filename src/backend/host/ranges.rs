//! All live memory of a backend: what an address may be used for, and what is given back in the end.

use core::alloc::Layout;
use core::ptr::NonNull;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use super::faults::Verb;
use super::mapping::{self, Mapping};
use super::shared::Shared;
use crate::backend::{Block, MemoryLocation, Options, Place};
use crate::{Error, Result};

/// INVARIANT: ranges do not overlap, and each is mapped at its place until it is removed.
#[derive(Default)]
pub(super) struct Ranges {
    by_address: RwLock<BTreeMap<u64, Range>>,
}

/// One allocation.
pub(super) struct Range {
    /// As asked for.
    pub layout: Layout,
    pub location: MemoryLocation,
    pub options: Options,
    /// Whose, or near whom.
    pub device: u32,
    pub place: mapping::Place,
    pub owner: Owner,
    /// Freed, and waiting for its last use: new calls find it gone.
    pub is_dead: bool,
}

/// What goes when a range goes.
pub(super) enum Owner {
    /// A part of the device's arena, from an offset on.
    Arena(u64),
    Mapping(#[allow(dead_code, reason = "to be dropped")] Mapping),
}

/// Where bytes are for the host backend, and whose they are.
#[derive(Clone, Copy)]
pub(super) struct Found {
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
pub(super) struct Listed<'a>(RwLockReadGuard<'a, BTreeMap<u64, Range>>);

impl Ranges {
    pub fn insert(&self, address: u64, range: Range) {
        self.by_address.write().unwrap_or_else(PoisonError::into_inner).insert(address, range);
    }

    /// Marks a block as freed: it is there once. One that is not what was allocated is refused, and what was allocated stays.
    pub fn kill(&self, block: &Block) -> Result<()> {
        let mut ranges = self.by_address.write().unwrap_or_else(PoisonError::into_inner);
        let range = ranges.get_mut(&address(block)).ok_or_else(|| foreign(block))?;
        range.is_live_as(block)?;
        range.is_dead = true;
        Ok(())
    }

    /// Takes out a block that is freed and used by nobody. What [`kill`](Self::kill) refuses is refused.
    pub fn take(&self, block: &Block) -> Result<Range> {
        let mut ranges = self.by_address.write().unwrap_or_else(PoisonError::into_inner);
        let Entry::Occupied(entry) = ranges.entry(address(block)) else { return Err(foreign(block)) };
        entry.get().is_live_as(block)?;
        Ok(entry.remove())
    }

    /// Takes out a block that was killed, before the memory itself goes.
    pub fn remove(&self, block: &Block) -> Option<Range> {
        self.by_address.write().unwrap_or_else(PoisonError::into_inner).remove(&address(block))
    }

    /// What a live block was asked to be.
    pub fn options(&self, block: &Block) -> Option<Options> {
        self.read().0.get(&address(block)).filter(|range| !range.is_dead).map(|range| range.options)
    }

    pub fn read(&self) -> Listed<'_> {
        Listed(self.by_address.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Listed<'_> {
    /// The place of `bytes` bytes at a device's or a managed address, for a call. Dead ranges are there for what was queued before they died.
    pub fn find(&self, address: u64, bytes: u64, dead: bool, call: Verb) -> Result<Found> {
        let Some((range, offset)) = self.at(address) else { return Err(Error::Foreign { call: call.name(), address }) };
        range.found(offset, address, bytes, dead, call)
    }

    /// Where one end of a copy is; `queued` is whether it was pageable when it was queued, so that a range which has vanished since is missed.
    pub fn end(&self, place: Place, bytes: u64, queued: Option<bool>, call: Verb) -> Result<Found> {
        let host = match place {
            Place::Device(address) => return self.find(address.get(), bytes, queued.is_some(), call),
            Place::Host(host) => host,
        };
        let address = host.as_ptr().addr() as u64;
        // What was the caller's when it was queued is so until it is executed.
        match if queued == Some(true) { None } else { self.at(address) } {
            Some((range, offset)) => range.found(offset, address, bytes, queued.is_some(), call),
            None if queued == Some(false) => Err(Error::Foreign { call: call.name(), address }),
            None => Ok(Found { place: host, location: MemoryLocation::Host, device: 0, start: address, offset: 0, in_no_range: true }),
        }
    }

    /// The range that an address is in, and how far in.
    fn at(&self, address: u64) -> Option<(&Range, u64)> {
        let (&start, range) = self.0.range(..=address).next_back()?;
        let offset = address - start;
        (offset < range.bytes()).then_some((range, offset))
    }
}

fn foreign(block: &Block) -> Error {
    Error::Foreign { call: Verb::Free.name(), address: address(block) }
}

impl Range {
    pub fn bytes(&self) -> u64 {
        self.layout.size() as u64
    }

    /// Refuses a block that was freed, or that is not what was allocated.
    fn is_live_as(&self, block: &Block) -> Result<()> {
        let (expected, got) = ((self.location, self.layout), (block.location, block.layout));
        match (self.is_dead, expected == got) {
            (true, _) => Err(foreign(block)),
            (false, true) => Ok(()),
            (false, false) => Err(Error::WrongBlock { address: address(block), expected, got }),
        }
    }

    /// `bytes` bytes at an address that is `offset` in.
    fn found(&self, offset: u64, address: u64, bytes: u64, dead: bool, call: Verb) -> Result<Found> {
        if self.is_dead && !dead {
            return Err(Error::Foreign { call: call.name(), address });
        }
        if bytes > self.bytes() - offset {
            return Err(Error::Range { offset, len: bytes, size: self.bytes() });
        }
        // SAFETY: `offset` is within the range, which is mapped while it is listed.
        let place = unsafe { self.place.0.add(offset as usize) };
        Ok(Found { place, location: self.location, device: self.device, start: address - offset, offset, in_no_range: false })
    }

    pub fn give_back(self, shared: &Shared) {
        if self.location == MemoryLocation::Pinned {
            shared.budget.give(self.bytes());
        }
        if let Owner::Arena(offset) = self.owner
            && let Ok(arena) = shared.arena(self.device)
        {
            // SAFETY: taken for this range, which was listed once and has just been removed; its uses are over, and a kernel that still used it would
            // break its launch's promise.
            unsafe { arena.give(offset, self.bytes()) };
        }
    }
}

/// What a block is listed under.
pub(super) fn address(block: &Block) -> u64 {
    match (block.host, block.device_address) {
        (Some(host), _) => host.as_ptr().addr() as u64,
        (None, address) => address.map_or(0, |address| address.get()),
    }
}
