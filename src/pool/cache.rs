//! A thread's own blocks: taken and given back without a lock, and by others when they ask.

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

/// A part of a slab, ready to be a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub idle: Idle,
    /// Its last use, if that may still be open.
    pub used: Option<Ticket>,
}

impl Entry {
    #[inline(always)]
    pub fn of(block: &Block, used: Option<Ticket>) -> Self {
        Self { idle: Idle::new(block.tag, block.device_address, block.host), used }
    }
}

/// One that nobody uses. Three words, each moved by itself: what one processor writes another may read, and what is written word by word is
/// not quick to be read in pairs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Idle {
    /// What the pool knows it by.
    pub tag: u64,
    /// `NOWHERE` for none.
    device_address: u64,
    pub host: Option<NonNull<u8>>,
}

// SAFETY: numbers; whoever has it has the part.
unsafe impl Send for Idle {}

impl Idle {
    /// No part begins there: it would have one byte.
    const NOWHERE: u64 = u64::MAX;

    #[inline(always)]
    pub fn new(tag: u64, device_address: Option<DeviceAddress>, host: Option<NonNull<u8>>) -> Self {
        Self { tag, device_address: device_address.map_or(Self::NOWHERE, DeviceAddress::get), host }
    }

    /// Returns whether its addresses are multiples of `align`, a power of two.
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

/// What a thread has of one class, and what it has done with it.
#[derive(Default)]
pub(super) struct Bin {
    /// The newest is the last.
    // INVARIANT: room for none or for `most`, so that it never grows.
    pub entries: Vec<Entry>,
    /// How many entries there may be.
    pub most: usize,
    pub counted: Counted,
}

impl Bin {
    /// Removes and returns the newest entry with this alignment that may be used on a stream now.
    pub fn pop(&mut self, align: u64, on: Option<&Stream>) -> Option<Entry> {
        let on = on.map(Stream::id);
        let is_ready = |entry: &Entry| entry.used.is_none_or(|used| Some(used.stream) == on);
        let index = self.entries.iter().rposition(|entry| is_ready(entry) && entry.idle.is_aligned(align))?;
        Some(self.entries.swap_remove(index))
    }

    /// Adds an entry: whether there was room.
    #[inline(always)]
    pub fn push(&mut self, entry: Entry) -> bool {
        let has_room = self.entries.len() < self.entries.capacity();
        if has_room {
            self.entries.push(entry);
        }
        has_room
    }

    /// How many may be added.
    pub fn room(&mut self) -> usize {
        let room = self.most.saturating_sub(self.entries.len());
        self.entries.reserve_exact(room);
        room
    }

    /// Where there is no room, has the older half listed, and takes out what was not; where there never was any, makes some. `list` says
    /// how many it took of those that nobody uses.
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

/// A class's counts. In this order, what is counted together does not lie together: two words that one access writes and two read, or the
/// other way round, keep a processor waiting.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(super) struct Counted {
    /// Requests that a cached block served.
    pub hits: u64,
    pub returns: u64,
    /// The other requests.
    pub misses: u64,
    /// Bytes asked for, less those given back; wraps where one thread frees what another took.
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

    /// One request of so many bytes.
    #[inline(always)]
    pub fn request(&mut self, bytes: u64, is_hit: bool) {
        *(if is_hit { &mut self.hits } else { &mut self.misses }) += 1;
        self.requested = self.requested.wrapping_add(bytes);
    }

    /// One block that is given back.
    #[inline(always)]
    pub fn give(&mut self, bytes: u64) {
        self.returns += 1;
        self.requested = self.requested.wrapping_sub(bytes);
    }
}

/// A thread's cache of one pool. Its lines are no other's: two threads' caches are written all the time.
#[repr(align(128))]
pub(super) struct Cache {
    lock: BiasedLock<HostWord>,
    /// Held by the revoker.
    revokers: Mutex<()>,
    // INVARIANT: touched by the owner while it holds the lock, or by the revoker while the owner does not.
    kept: UnsafeCell<Kept>,
}

/// What a thread has of a pool.
pub(super) struct Kept {
    /// By class.
    pub bins: Box<[Bin]>,
    pub handles: Share,
}

// SAFETY: the invariant of `kept`; everything else is shared by its own accesses.
unsafe impl Sync for Cache {}

impl Cache {
    /// One that keeps so many entries of each class at most.
    pub fn new(most: impl Iterator<Item = usize>, handles: Share) -> Self {
        let bins = most.map(|most| Bin { most, ..Bin::default() }).collect();
        Self { lock: BiasedLock::new(), revokers: Mutex::new(()), kept: UnsafeCell::new(Kept { bins, handles }) }
    }

    /// What it has, for the thread whose cache it is. `f` calls nothing that comes back here.
    ///
    /// # Safety
    ///
    /// The calling thread is the cache's.
    #[inline(always)]
    pub unsafe fn own<R>(&self, f: impl FnOnce(&mut Kept) -> R) -> R {
        while !self.lock.try_lock::<System>() {
            self.wait();
        }
        let unlock = Unlock(&self.lock);
        // SAFETY: the lock is held.
        let result = f(unsafe { &mut *self.kept.get() });
        drop(unlock);
        result
    }

    /// Until the revoker has done.
    #[cold]
    fn wait(&self) {
        drop(self.revokers.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// The same for another thread, while the cache's own is away; `None` where it cannot be told to stay away.
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
        // SAFETY: revoked, and the owner does not hold the lock; other revokers wait for the lock.
        let result = f(unsafe { &mut *self.kept.get() });
        drop(restore);
        Some(result)
    }

    /// The same when no thread can come to them any more.
    ///
    /// # Safety
    ///
    /// No thread is in [`own`](Self::own) or [`ask`](Self::ask) or will be, and what they did there happened before.
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
