//! [`Cache`]: a thread's free blocks of one pool, and its share of the pool's handle count.
//!
//! The owner's thread allocates and frees through its [`Bin`]s, one per size class, under a [`BiasedLock`], which costs it no atomic read-modify-write. Any
//! other thread reaches them through [`Cache::ask`], which revokes the bias for its duration: to flush the cache, to read its counts, or to close its share.
//!
//! A cached block is taken in the heap, and has no other owner. It may have one open use, `used`: work on that stream may still access it, so another
//! stream must not get it before the use completes. Blocks with uses of several streams are never cached.
//!
//! Words that change together at each allocation are laid out so that no wide load reads words that were stored one by one: such a load waits until the
//! stores have left the CPU's store buffer, which costs more than the rest of an allocation.
//!
//! # The tables of a thread
//!
//! [`LOCAL`] owns the thread's caches, found by binary search. [`RECENT`] has the last pools' caches as pointers, indexed by the pool's number, because
//! a thread-local with a destructor costs a registration check at each access. An entry is valid while its pool lives, and the caller of [`with`]
//! holds the pool. Numbers are never reused. An ending thread clears the table before its caches are retired; a forked child clears it too.

use core::cell::{Cell, UnsafeCell};
use core::ptr::{self, NonNull};
use core::time::Duration;
use std::boxed::Box;
use std::sync::{Arc, Mutex, Once, PoisonError, Weak};
use std::thread;
use std::vec::Vec;

use ringmem_layouts::HostWord;

use super::biased_lock::BiasedLock;
use super::handles::Share;
use crate::backend::{Block, DeviceAddress, Ticket};
use crate::stream::Stream;
use crate::sys::barrier::System;
use crate::sys::fork;
use crate::sys::panic::caught;

/// A free block in transfer or in a cache: a part of a slab, or a block outside the slabs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub idle: Idle,
    /// The last use, if it may be incomplete.
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

/// Stands for a use without a reading of the clock. The maximum of all times, so that the latest of several uses is unknown if one is.
pub(super) const UNDATED: u64 = u64::MAX;

/// Frees between two clock reads, at most.
const MOST_UNDATED: u64 = 512;

/// A bin whose frees follow each other more slowly reads the clock at each of them.
const DENSE: Duration = Duration::from_micros(100);

/// A thread's free blocks of one size class.
///
/// All of them have one time, [`since`](Self::since), because a time per block would cost each free. It is the time of a recent free, which reads the
/// clock if it is the first after a flush, if frees are [`DENSE`] or more apart, or else at every 8th, 64th and so on, up to every
/// [`MOST_UNDATED`]th free. So a block that stays at the bottom of a bin in use counts as used. If a thread frees fast, pauses, and its cache is not
/// flushed meanwhile, then up to `MOST_UNDATED - 1` frees after the pause have the time before it.
#[derive(Default)]
pub(super) struct Bin {
    /// Roughly oldest first: a removal within the bin can move the last entry into the gap, and entries of the central list are appended.
    // INVARIANT: the capacity is 0 or `most`, so pushes never reallocate.
    pub entries: Vec<Entry>,
    pub most: usize,
    /// `returns` is ahead by `left`, so that a free changes one word for both.
    counts: Counted,
    /// Frees before the next clock read; -1 after a free that was refused because it must read the clock.
    left: i64,
    /// Frees from the last clock read to the next.
    step: u64,
    /// The time of the entries' last use, by the pool's clock.
    since: u64,
}

impl Bin {
    pub fn counted(&self) -> Counted {
        Counted { returns: self.counts.returns - self.planned(), ..self.counts }
    }

    pub const fn since(&self) -> u64 {
        self.since
    }

    /// For a count that is not a free into this bin.
    pub fn count(&mut self, count: impl FnOnce(&mut Counted)) {
        count(&mut self.counts);
    }

    #[inline(always)]
    pub fn request(&mut self, bytes: u64, is_hit: bool) {
        self.counts.request(bytes, is_hit);
    }

    /// Takes entries whose last use was at `since` at the latest.
    pub fn used(&mut self, since: u64) {
        self.since = self.since.max(since);
    }

    /// Removes all entries, and returns each with the time of its last use. The next free reads the clock.
    pub fn empty(&mut self) -> impl Iterator<Item = (Entry, u64)> + use<> {
        self.plan(0);
        let since = self.since;
        core::mem::take(&mut self.entries).into_iter().map(move |entry| (entry, since))
    }

    /// Returns whether the next free reads the clock. Without a capacity it does, even if frees are planned: a flush came between
    /// [`start_dating`](Self::start_dating) and [`date`](Self::date), which then planned them for an empty bin.
    pub const fn is_due(&self) -> bool {
        self.left <= 0 || self.entries.capacity() == 0
    }

    /// Permits a free that is due; returns the time before it. Until [`date`](Self::date), the time of the entries is unknown. If the clock panics, it stays
    /// so, and the next free reads the clock again.
    pub const fn start_dating(&mut self) -> u64 {
        self.plan(1);
        core::mem::replace(&mut self.since, UNDATED)
    }

    /// Sets the time of the last free, and when to read the clock again. `before` is the time of the previous read.
    pub fn date(&mut self, before: u64, now: u64) {
        let elapsed = now.saturating_sub(before);
        // A clock that stands still does not measure the rate.
        let is_dense = elapsed > 0 && elapsed < self.step.saturating_mul(DENSE.as_nanos() as u64);
        self.step = if is_dense { (self.step * 8).min(MOST_UNDATED) } else { 1 };
        self.since = now;
        self.plan(self.step - 1);
    }

    const fn plan(&mut self, frees: u64) {
        self.counts.returns = self.counts.returns + frees - self.planned();
        self.left = frees.cast_signed();
    }

    const fn planned(&self) -> u64 {
        if self.left > 0 { self.left.cast_unsigned() } else { 0 }
    }

    /// Removes the newest entry of this alignment that a stream may use now.
    pub fn pop(&mut self, align: u64, on: Option<&Stream>) -> Option<Entry> {
        let on = on.map(Stream::id);
        let is_ready = |entry: &Entry| entry.used.is_none_or(|used| Some(used.stream) == on);
        let index = self.entries.iter().rposition(|entry| is_ready(entry) && entry.idle.is_aligned(align))?;
        Some(self.entries.swap_remove(index))
    }

    /// Frees a block of `bytes` requested bytes. Fails without room, or if this free must read the clock. The slow path relies on a success once it has made
    /// room and, for a free that was due, called [`start_dating`](Self::start_dating): it would lose a block that is refused then.
    #[inline(always)]
    pub fn push(&mut self, entry: Entry, bytes: u64) -> bool {
        if self.entries.len() >= self.entries.capacity() {
            return false;
        }
        // One instruction counts, and its sign flag decides: a comparison before it costs three more.
        self.left = self.left.wrapping_sub(1);
        if self.left < 0 {
            return false;
        }
        self.entries.push(entry);
        self.counts.requested = self.counts.requested.wrapping_sub(bytes);
        true
    }

    /// Allocates the capacity; returns the remaining one.
    pub fn room(&mut self) -> usize {
        let room = self.most.saturating_sub(self.entries.len());
        self.entries.reserve_exact(room);
        room
    }

    /// Takes the older half out of a full bin: `list` takes entries without open uses from its beginning, and returns their number. Returns the
    /// rest of the half. Half, so that a thread that only frees spills once per half a bin. `list` shows the entries to other threads before they leave the
    /// bin: the owner holds the cache's lock, so no flush sees them twice.
    pub fn spill(&mut self, list: impl FnOnce(&[Entry]) -> usize) -> Vec<Entry> {
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

/// Counts that a hit or a free changes together are not adjacent: a merged load blocks store forwarding.
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
    pub fn free(&mut self, bytes: u64) {
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
    contents: UnsafeCell<Contents>,
}

pub(super) struct Contents {
    /// By class.
    pub bins: Box<[Bin]>,
    pub handles: Share,
}

// SAFETY: by the invariant of `contents`; the other fields are `Sync`.
unsafe impl Sync for Cache {}

impl Cache {
    pub fn new(most: impl Iterator<Item = usize>, handles: Share) -> Self {
        let bins = most.map(|most| Bin { most, ..Bin::default() }).collect();
        Self { lock: BiasedLock::new(), revokers: Mutex::new(()), contents: UnsafeCell::new(Contents { bins, handles }) }
    }

    /// On the owner's thread. `f` must not access the cache.
    ///
    /// # Safety
    ///
    /// The calling thread owns the cache.
    #[inline(always)]
    pub unsafe fn own<R>(&self, f: impl FnOnce(&mut Contents) -> R) -> R {
        if !self.lock.try_lock::<System>() {
            self.wait_and_lock();
        }
        let unlock = Unlock(&self.lock);
        // SAFETY: the caller's thread owns the cache and has the lock, so no revoker accesses the contents. `f` does not access them again.
        let result = f(unsafe { &mut *self.contents.get() });
        drop(unlock);
        result
    }

    #[cold]
    #[inline(never)]
    fn wait_and_lock(&self) {
        // Each turn waits for one revoker; the next one may come before the owner has the lock.
        loop {
            drop(self.revokers.lock().unwrap_or_else(PoisonError::into_inner));
            if self.lock.try_lock::<System>() {
                return;
            }
        }
    }

    /// On any thread that is not inside [`own`](Self::own) of this cache, where it would wait for itself. `None` if the bias cannot be
    /// revoked: nothing has changed then, and `f` was not called. The caller holds no lock that a closure of [`own`](Self::own) takes, which are a central
    /// list's and that of the pool's state: the owner would wait for it with the cache's lock.
    pub fn ask<R>(&self, f: impl FnOnce(&mut Contents) -> R) -> Option<R> {
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
        let result = f(unsafe { &mut *self.contents.get() });
        drop(restore);
        Some(result)
    }

    /// # Safety
    ///
    /// No thread is or will be in [`own`](Self::own) or [`ask`](Self::ask), and earlier calls happened before.
    pub unsafe fn alone<R>(&self, f: impl FnOnce(&mut Contents) -> R) -> R {
        // SAFETY: the caller promises that no other access is under way, and that earlier ones happened before.
        f(unsafe { &mut *self.contents.get() })
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

/// A pool, as the threads that have a cache of it see it.
pub(super) trait Home: Send + Sync {
    /// Creates a cache for the calling thread.
    fn admit(&self) -> Arc<Cache>;
    /// Takes a cache's entries and counts when its thread ends.
    ///
    /// # Safety
    ///
    /// The calling thread owns the cache and does not use it again.
    unsafe fn retire(&self, cache: &Arc<Cache>);
}

/// The number of the first pool; 0 stands for no pool.
pub(super) const FIRST: u64 = 1;

/// Entries of the recent table.
const RECENT_POOLS: usize = 8;

/// This thread's caches of all pools.
struct Local {
    /// By their pools' numbers, ascending.
    caches: Vec<(u64, Arc<Cache>, Weak<dyn Home>)>,
}

impl Drop for Local {
    fn drop(&mut self) {
        forget();
        for (_, cache, home) in self.caches.drain(..) {
            if let Some(home) = home.upgrade() {
                // A panic in a thread-local destructor would abort. `move`: if the last handle was dropped meanwhile, the pool is dropped here.
                // SAFETY: the calling thread owns the caches in its `LOCAL`; this one was removed from it and is dropped here.
                caught(move || unsafe { home.retire(&cache) });
            }
        }
    }
}

thread_local! {
    static LOCAL: UnsafeCell<Local> = const { UnsafeCell::new(Local { caches: Vec::new() }) };
    /// By pool number modulo the size. Without a destructor, so an access needs no registration check.
    // INVARIANT: an entry whose pool lives has a cache in `LOCAL`, and its pool belongs to this process.
    static RECENT: [Cell<(u64, *const Cache)>; RECENT_POOLS] = const { [const { Cell::new((0, ptr::null())) }; RECENT_POOLS] };
}

/// Runs `f` with this thread's cache of a pool that the caller holds, from the recent table or from `find`. `f` must not reenter this module.
#[inline(always)]
pub(super) fn with<R>(pool: u64, find: impl FnOnce() -> Option<*const Cache>, f: impl FnOnce(&Cache) -> R) -> Option<R> {
    let (number, mut cache) = RECENT.with(|recent| recent[pool as usize % RECENT_POOLS].get());
    if number != pool {
        cache = find()?;
    }
    // SAFETY: the caller holds the pool, so the cache is in `LOCAL` while the thread runs. An ending thread first clears the recent table.
    Some(f(unsafe { &*cache }))
}

/// As [`with`], from the recent table only.
#[inline(always)]
pub(super) fn recent<R>(pool: u64, f: impl FnOnce(&Cache) -> R) -> Option<R> {
    with(pool, || None, f)
}

/// Returns this thread's cache of a pool, created on first use, and enters it in the recent table. `None` if the thread is ending or the pool is dropped.
pub(super) fn find(pool: u64, home: Weak<dyn Home>) -> Option<*const Cache> {
    let look = |local: &UnsafeCell<Local>| {
        // SAFETY: thread-local, without another reference: no call in here reenters.
        let caches = unsafe { &mut (*local.get()).caches };
        match caches.binary_search_by_key(&pool, |&(id, ..)| id) {
            Ok(at) => Some(Arc::as_ptr(&caches[at].1)),
            Err(_) => {
                let cache = home.upgrade()?.admit();
                let place = Arc::as_ptr(&cache);
                caches.retain(|(_, _, home)| home.strong_count() > 0);
                let at = caches.partition_point(|&(id, ..)| id < pool);
                caches.insert(at, (pool, cache, home));
                Some(place)
            }
        }
    };
    let cache = LOCAL.try_with(look).ok().flatten()?;
    static WATCHED: Once = Once::new();
    // Fast paths do not check for a fork.
    // SAFETY: `forget_in_child` only stores to words of the thread.
    WATCHED.call_once(|| unsafe { fork::in_child(forget_in_child) });
    RECENT.with(|recent| recent[pool as usize % RECENT_POOLS].set((pool, cache)));
    Some(cache)
}

/// In a forked child: the pools of the recent table are the parent's.
extern "C" fn forget_in_child() {
    forget();
}

fn forget() {
    RECENT.with(|recent| recent.iter().for_each(|place| place.set((0, ptr::null()))));
}

#[cfg(test)]
mod tests {
    use super::*;

    const MICROSECOND: u64 = 1000;

    struct Frees {
        bin: Bin,
        now: u64,
        count: u64,
    }

    impl Frees {
        fn new() -> Self {
            Self { bin: Bin { most: 2, ..Bin::default() }, now: 0, count: 0 }
        }

        /// Frees blocks, `apart` ns from each other; returns the greatest error of their times and the number of clock reads.
        fn run(&mut self, count: u64, apart: u64) -> (u64, u64) {
            let (mut late, mut reads) = (0, 0);
            for _ in 0..count {
                self.now += apart;
                self.count += 1;
                let entry = Entry { idle: Idle::new(0, None, None), used: None };
                if !self.bin.push(entry, 0) {
                    assert!(self.bin.is_due());
                    assert!(self.bin.room() > 0);
                    let before = self.bin.start_dating();
                    assert!(self.bin.push(entry, 0), "a free with a clock read is permitted");
                    self.bin.date(before, self.now);
                    reads += 1;
                }
                assert_eq!(self.bin.counted().returns, self.count);
                self.bin.entries.pop();
                late = late.max(self.now - self.bin.since());
            }
            (late, reads)
        }
    }

    #[test]
    fn dense_frees_share_a_clock_read_and_sparse_frees_have_one_each() {
        let mut frees = Frees::new();
        assert_eq!(frees.run(10, 100 * MICROSECOND), (0, 10));
        let (late, reads) = frees.run(100_000, 10);
        assert!(late <= MOST_UNDATED * 10 && reads < 100_000 / MOST_UNDATED + 10, "{late} ns, {reads} reads");
        let (late, _) = frees.run(MOST_UNDATED, 200 * MICROSECOND);
        assert!(late < MOST_UNDATED * 200 * MICROSECOND, "{late} ns");
        assert_eq!(frees.run(1000, 200 * MICROSECOND), (0, 1000));
    }

    #[test]
    fn a_clock_that_stands_still_is_read_at_each_free() {
        assert_eq!(Frees::new().run(100, 0), (0, 100));
    }

    #[test]
    fn the_first_free_after_a_flush_reads_the_clock() {
        let mut frees = Frees::new();
        frees.run(10_000, 10);
        let since = frees.bin.since();
        assert!(frees.bin.empty().all(|(_, of)| of == since));
        assert_eq!(frees.run(1, 1_000_000 * MICROSECOND), (0, 1));
        frees.run(10_000, 10);
        frees.bin.empty().for_each(drop);
        // A refill allocates the capacity.
        frees.bin.room();
        assert_eq!(frees.run(1, 1_000_000 * MICROSECOND), (0, 1));
    }
}
