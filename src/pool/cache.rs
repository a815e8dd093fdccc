use core::cell::UnsafeCell;
use core::ptr::NonNull;
use std::boxed::Box;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::vec::Vec;

use ringmem_layouts::HostWord;

use super::biased_lock::BiasedLock;
use super::handles::Share;
use crate::backend::{Block, DeviceAddress, Ticket};
use crate::barrier::System;
use crate::stream::Stream;

/// A part of a slab, or a block outside the slabs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub idle: Idle,
    /// Set if that may be incomplete.
    pub used: Option<Ticket>,
}

impl Entry {
    #[inline(always)]
    pub fn of(block: &Block, used: Option<Ticket>) -> Self {
        Self { idle: Idle::new(block.tag, block.device_address, block.host), used }
    }
}

/// An entry without an open use. Three words, copied separately: a wide load of words stored one by one blocks store forwarding.
#[derive(Clone, Copy, Debug)]
pub(super) struct Idle {
    pub tag: u64,
    device_address: u64,
    pub host: Option<NonNull<u8>>,
}

// SAFETY: addresses only; the holder owns the part.
unsafe impl Send for Idle {}

impl Idle {
    /// Not a part's address: these are multiples of more than 1.
    const NOWHERE: u64 = u64::MAX;

    #[inline(always)]
    pub fn new(tag: u64, device_address: Option<DeviceAddress>, host: Option<NonNull<u8>>) -> Self {
        Self { tag, device_address: device_address.map_or(Self::NOWHERE, DeviceAddress::get), host }
    }

    pub fn is_aligned(&self, align: u64) -> bool {
        let is_multiple = |address: u64| address & (align - 1) == 0;
        self.device_address().is_none_or(|address| is_multiple(address.get()))
            && self.host.is_none_or(|host| is_multiple(host.as_ptr().addr() as u64))
    }

    #[inline(always)]
    pub fn device_address(&self) -> Option<DeviceAddress> {
        if self.device_address == Self::NOWHERE { None } else { Some(DeviceAddress::new(self.device_address)) }
    }
}

#[derive(Default)]
pub(super) struct Bin {
    /// Oldest first.
    // INVARIANT: the capacity is 0 or `most`, so pushes never reallocate.
    pub entries: Vec<Entry>,
    pub most: usize,
    pub counted: Counted,
}

impl Bin {
    /// Removes the newest entry of this alignment that a stream may use now.
    pub fn pop(&mut self, align: u64, on: Option<&Stream>) -> Option<Entry> {
        let on = on.map(Stream::id);
        let is_ready = |entry: &Entry| entry.used.is_none_or(|used| Some(used.stream) == on);
        let index = self.entries.iter().rposition(|entry| is_ready(entry) && entry.idle.is_aligned(align))?;
        Some(self.entries.swap_remove(index))
    }

    #[inline(always)]
    pub fn push(&mut self, entry: Entry) -> bool {
        let has_room = self.entries.len() < self.entries.capacity();
        if has_room {
            self.entries.push(entry);
        }
        has_room
    }

    /// Allocates the capacity; returns the remaining one.
    pub fn room(&mut self) -> usize {
        let room = self.most.saturating_sub(self.entries.len());
        self.entries.reserve_exact(room);
        room
    }

    /// Makes room in a full bin: `list` takes entries without open uses from the older half. Returns the half's rest.
    pub fn make_room(&mut self, list: impl FnOnce(&[Entry]) -> usize) -> Vec<Entry> {
        if self.room() > 0 {
            return Vec::new();
        }
        let half = self.most.div_ceil(2);
        let idle = self.entries.iter().take(half).take_while(|entry| entry.used.is_none()).count();
        let listed = self.entries.get(..idle).map_or(0, list);
        let left = self.entries.get(listed..half).unwrap_or_default().to_vec();
        self.entries.drain(..half);
        left
    }
}

/// Counts that change together are not adjacent: a merged load blocks store forwarding.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(super) struct Counted {
    pub hits: u64,
    pub returns: u64,
    pub misses: u64,
    /// Wraps if a thread frees blocks of another.
    pub requested: u64,
}

impl Counted {
    pub const fn requests(&self) -> u64 {
        self.hits + self.misses
    }

    pub fn add(&mut self, other: &Self) {
        self.hits += other.hits;
        self.misses += other.misses;
        self.returns += other.returns;
        self.requested = self.requested.wrapping_add(other.requested);
    }

    #[inline(always)]
    pub fn request(&mut self, bytes: u64, is_hit: bool) {
        *(if is_hit { &mut self.hits } else { &mut self.misses }) += 1;
        self.requested = self.requested.wrapping_add(bytes);
    }

    #[inline(always)]
    pub fn give(&mut self, bytes: u64) {
        self.returns += 1;
        self.requested = self.requested.wrapping_sub(bytes);
    }
}

/// A thread's cache of one pool. Caches share no cache line: each is written constantly.
#[repr(align(128))]
pub(super) struct Cache {
    lock: BiasedLock<HostWord>,
    revokers: Mutex<()>,
    // INVARIANT: accessed by the owner with the lock, or by the revoker while the owner does not have it.
    kept: UnsafeCell<Kept>,
}

pub(super) struct Kept {
    /// By class.
    pub bins: Box<[Bin]>,
    pub handles: Share,
}

// SAFETY: by the invariant of `kept`; the other fields are `Sync`.
unsafe impl Sync for Cache {}

impl Cache {
    pub fn new(most: impl Iterator<Item = usize>, handles: Share) -> Self {
        let bins = most.map(|most| Bin { most, ..Bin::default() }).collect();
        Self { lock: BiasedLock::new(), revokers: Mutex::new(()), kept: UnsafeCell::new(Kept { bins, handles }) }
    }

    /// On the owner's thread. `f` must not access the cache.
    ///
    /// # Safety
    ///
    /// The calling thread owns the cache.
    #[inline(always)]
    pub unsafe fn own<R>(&self, f: impl FnOnce(&mut Kept) -> R) -> R {
        if !self.lock.try_lock::<System>() {
            self.wait_and_lock();
        }
        let unlock = Unlock(&self.lock);
        // SAFETY: the lock is held.
        let result = f(unsafe { &mut *self.kept.get() });
        drop(unlock);
        result
    }

    #[cold]
    #[inline(never)]
    fn wait_and_lock(&self) {
        loop {
            drop(self.revokers.lock().unwrap_or_else(PoisonError::into_inner));
            if self.lock.try_lock::<System>() {
                return;
            }
        }
    }

    /// On another thread. `None` if the bias cannot be revoked.
    pub fn ask<R>(&self, f: impl FnOnce(&mut Kept) -> R) -> Option<R> {
        let _one = self.revokers.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.lock.revoke::<System>() {
            return None;
        }
        let restore = Restore(&self.lock);
        let mut times = 0_u32;
        while !self.lock.is_unlocked() {
            times += 1;
            if times < 100 { core::hint::spin_loop() } else { thread::yield_now() }
        }
        // SAFETY: the bias is revoked, the owner does not hold the lock, and `revokers` excludes other revokers.
        let result = f(unsafe { &mut *self.kept.get() });
        drop(restore);
        Some(result)
    }

    /// # Safety
    ///
    /// No thread is or will be in [`own`](Self::own) or [`ask`](Self::ask), and earlier calls happened before.
    pub unsafe fn alone<R>(&self, f: impl FnOnce(&mut Kept) -> R) -> R {
        // SAFETY: the caller's promise.
        f(unsafe { &mut *self.kept.get() })
    }
}

struct Unlock<'a>(&'a BiasedLock<HostWord>);

impl Drop for Unlock<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.unlock();
    }
}

struct Restore<'a>(&'a BiasedLock<HostWord>);

impl Drop for Restore<'_> {
    fn drop(&mut self) {
        self.0.restore();
    }
}
