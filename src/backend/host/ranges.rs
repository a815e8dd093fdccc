//! All live memory of a backend: what an address may be used for, and what is given back in the end.

use core::alloc::Layout;
use core::ptr::NonNull;
use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock};

use super::mapping::{Mapping, Place};
use super::shared::Shared;
use crate::backend::{Block, MemoryLocation, Options};
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
    pub place: Place,
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
}

impl Ranges {
    pub fn insert(&self, address: u64, range: Range) {
        self.by_address.write().unwrap_or_else(PoisonError::into_inner).insert(address, range);
    }

    /// Marks a block as freed: it is there once. One that is not what was allocated is refused, and what was allocated stays.
    pub fn kill(&self, block: &Block, call: &'static str) -> Result<()> {
        let address = address(block);
        let mut ranges = self.by_address.write().unwrap_or_else(PoisonError::into_inner);
        match ranges.get_mut(&address) {
            Some(range) if !range.is_dead => {
                let (expected, got) = ((range.location, range.layout), (block.location, block.layout));
                if expected != got {
                    return Err(Error::WrongBlock { address, expected, got });
                }
                range.is_dead = true;
                Ok(())
            }
            _ => Err(Error::Foreign { call, address }),
        }
    }

    /// Before the memory itself goes.
    pub fn remove(&self, block: &Block) -> Option<Range> {
        self.by_address.write().unwrap_or_else(PoisonError::into_inner).remove(&address(block))
    }

    /// What a live block was asked to be.
    pub fn options(&self, block: &Block) -> Option<Options> {
        let ranges = self.by_address.read().unwrap_or_else(PoisonError::into_inner);
        ranges.get(&address(block)).filter(|range| !range.is_dead).map(|range| range.options)
    }

    /// The place of `bytes` bytes at a device's or a managed address, for `call`. Dead ranges are there for what was queued before they died.
    pub fn find(&self, address: u64, bytes: u64, dead: bool, call: &'static str) -> Result<Found> {
        let found = self.with(address, |range, offset| {
            if range.is_dead && !dead {
                return Err(Error::Foreign { call, address });
            }
            let place = range.at(offset, bytes).ok_or(Error::Range { offset, len: bytes, size: range.bytes() })?;
            Ok(Found { place, location: range.location, device: range.device, start: address - offset, offset })
        });
        found.unwrap_or(Err(Error::Foreign { call, address }))
    }

    /// The range that an address is in, and how far in.
    fn with<R>(&self, address: u64, look: impl FnOnce(&Range, u64) -> R) -> Option<R> {
        let ranges = self.by_address.read().unwrap_or_else(PoisonError::into_inner);
        let (&start, range) = ranges.range(..=address).next_back()?;
        let offset = address - start;
        (offset < range.bytes()).then(|| look(range, offset))
    }

    /// Whether the host's bytes at a pointer are in a range.
    pub fn is_listed(&self, pointer: NonNull<u8>) -> bool {
        self.with(pointer.as_ptr().addr() as u64, |_, _| ()).is_some()
    }
}

impl Range {
    pub fn bytes(&self) -> u64 {
        self.layout.size() as u64
    }

    fn at(&self, offset: u64, bytes: u64) -> Option<NonNull<u8>> {
        let fits = bytes <= self.bytes() - offset;
        // SAFETY: `offset` is within the range, which is mapped while it is listed.
        fits.then(|| unsafe { self.place.0.add(offset as usize) })
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
