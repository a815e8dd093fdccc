//! Allocations and frees, through the cache of the calling thread.
//!
//! # An allocation
//!
//! 1. *Fast*, [`Pool::take_newest`]: this thread's newest block of the class, if it has no open use and needs no preparation. No mutex, no call of the
//!    backend. The newest, because its memory is most likely in the CPU caches, and because a stack touches one end only.
//! 2. *Slow*, [`Pool::allocate`]: a block that the request's stream may use at once, although its use is incomplete (work on one stream is ordered);
//!    then the oldest block, if its use is complete; then the class's central list; then pending blocks and the heap, see `central/growth.rs`.
//!
//! # A free
//!
//! 1. *Fast*, [`Pool::cache`]: onto the bin, if no work uses the block, the bin has room, and no clock read is due.
//! 2. *Slow*, [`Pool::free_slow`]: a use by one stream is cached with the block. A full bin spills its older half. Other blocks go to `central/free.rs`.

use core::alloc::Layout;
use std::sync::{Arc, Weak};
use std::vec::Vec;

use super::Pool;
use super::cache::{self, Bin, Cache, Counted, Entry, Idle};
use super::central::{Central, InTransit, Request};
use super::tag::Tag;
use crate::Result;
use crate::backend::{Block, Uses};
use crate::memory::Memory;
use crate::stream::Stream;

impl<M: Memory> Pool<M> {
    /// Takes this thread's newest cached block, without an open use or preparation. Copies word by word, as [`Idle`] requires.
    #[inline(always)]
    pub(super) fn take_newest(&self, layout: Layout) -> Option<Idle> {
        let shared = &*self.shared;
        let take = |bin: &mut Bin| {
            let [.., Entry { used: None, idle }] = bin.entries.as_slice() else { return None };
            let idle = *idle;
            bin.entries.pop();
            bin.request(layout.size() as u64, true);
            Some(idle)
        };
        self.bin(shared.plain_class_of(layout)?, take).flatten()
    }

    /// The slow path. If `waits`, may wait for frees and call the callback.
    #[inline(never)]
    pub(super) fn allocate(&self, layout: Layout, on: Option<&Stream>, waits: bool) -> Result<(Entry, Layout)> {
        let shared = self.here()?;
        let layout = shared.raised(layout)?;
        let Some(class) = shared.class_of(layout) else { return Ok((shared.allocate_direct(layout, on, waits)?, layout)) };
        let (requested, align) = (layout.size() as u64, layout.align() as u64);
        let cached = if shared.is_cached(requested) { self.take_cached(class, align, on) } else { None };
        let request = || Request { class_bytes: shared.class_bytes(class, requested), bytes: requested, align };
        let (entry, is_hit) = cached.map_or_else(|| shared.find(&request(), on, waits), |entry| Ok((entry, true)))?;
        let (entry, is_direct) = (shared.with_contents(entry, layout, on)?, Tag(entry.idle.tag).is_direct());
        // A direct block is already counted.
        if !is_direct {
            self.count(class, |counted| counted.request(requested, is_hit));
        }
        Ok((entry, layout))
    }

    fn take_cached(&self, class: usize, align: u64, on: Option<&Stream>) -> Option<Entry> {
        let newest = self.bin(class, |bin| bin.pop(align, on)).flatten();
        newest.or_else(|| self.take_oldest(class, align)).or_else(|| self.take_listed(class, align, on))
    }

    /// Takes the oldest entry with this alignment, if its last use is complete. If not, newer ones are not either, mostly. The backend is asked
    /// without the cache's lock, so the entry is then found again: a flush may have taken it.
    fn take_oldest(&self, class: usize, align: u64) -> Option<Entry> {
        let find = |bin: &mut Bin| bin.entries.iter().find(|entry| entry.idle.is_aligned(align)).copied();
        let oldest = self.bin(class, find).flatten()?;
        if oldest.used.is_some_and(|ticket| !self.shared.memory.backend().is_complete(ticket)) {
            return None;
        }
        let take = |bin: &mut Bin| {
            let index = bin.entries.iter().position(|entry| (entry.idle.tag, entry.used) == (oldest.idle.tag, oldest.used))?;
            Some(bin.entries.remove(index))
        };
        let entry = self.bin(class, take).flatten()?;
        Some(Entry { used: None, ..entry })
    }

    /// Refills the bin's half from the central list, so that the next requests need no lock.
    fn take_listed(&self, class: usize, align: u64, on: Option<&Stream>) -> Option<Entry> {
        if !self.shared.has_listed(class) {
            return None;
        }
        let fill = |bin: &mut Bin| {
            let count = bin.room().min(bin.most.div_ceil(2));
            let since = self.shared.unlist(class, count, &mut bin.entries);
            bin.used(since);
            bin.pop(align, on)
        };
        self.bin(class, fill).flatten()
    }

    /// For blocks without open uses. Fails without room, or if this free must read the clock.
    #[inline(always)]
    pub(super) fn cache(&self, block: &Block) -> bool {
        let push = |bin: &mut Bin| bin.push(Entry::of(block, None), block.layout.size() as u64);
        self.bin(Tag(block.tag).class(), push) == Some(true)
    }

    /// The slow path: a block in use, without a class, for a full bin, with a clock read, or on an ending thread.
    ///
    /// # Safety
    ///
    /// The caller owns the block, which this pool allocated, and gives it up. Only `uses` may still use it.
    #[inline(never)]
    pub(super) unsafe fn free_slow(&self, block: &Block, uses: &Uses) -> Result<()> {
        if !self.shared.process.is_this() {
            return Ok(());
        }
        if Tag(block.tag).is_direct() {
            // SAFETY: the caller gives up a block of this pool, in use by `uses` at most; its tag says that it is direct.
            return unsafe { self.shared.free_direct(block, uses) };
        }
        let (class, requested) = (Tag(block.tag).class(), block.layout.size() as u64);
        let used = uses.only();
        let push = |bin: &mut Bin| {
            let (is_due, since) = (bin.is_due(), bin.since());
            let (older, transit) = self.spill(class, bin);
            let before = is_due.then(|| bin.start_dating());
            bin.push(Entry::of(block, used), requested);
            (older, since, transit, before)
        };
        let is_shared = used.is_none() && !uses.is_empty();
        match if is_shared || class >= self.shared.class_count() { None } else { self.bin(class, push) } {
            Some((older, since, transit, before)) => {
                if let Some(transit) = transit {
                    self.shared.free_spilled(class, older, since, transit);
                }
                if let Some(before) = before {
                    self.date(class, before);
                }
            }
            None => {
                self.count(class, |counted| counted.free(requested));
                self.shared.free_one(uses, &Entry::of(block, None));
            }
        }
        Ok(())
    }

    /// Reads the clock for the bin's last free. The block is in the bin already: a clock that panics loses nothing.
    fn date(&self, class: usize, before: u64) {
        if let Some(now) = self.shared.now() {
            self.bin(class, |bin| bin.date(before, now));
        }
    }

    /// Takes the older half out of a full bin. This thread is in transit until the caller has [freed](Central::free_spilled) it.
    fn spill(&self, class: usize, bin: &mut Bin) -> (Vec<Entry>, Option<InTransit<'_, M>>) {
        let since = bin.since();
        let older = bin.spill(|entries| self.shared.list(class, entries, since));
        let transit = if older.is_empty() { None } else { Some(self.shared.start_transit()) };
        (older, transit)
    }

    /// In this thread's cache, else in the shared counts; blocks without a class count for class 0.
    fn count(&self, class: usize, count: impl Fn(&mut Counted)) {
        let class = if class < self.shared.class_count() { class } else { 0 };
        if self.bin(class, |bin| bin.count(&count)).is_none() {
            self.shared.count(class, count);
        }
    }

    /// `f` must not access the cache.
    #[inline(always)]
    fn bin<R>(&self, class: usize, f: impl FnOnce(&mut Bin) -> R) -> Option<R> {
        let find = || self.find_cache();
        // SAFETY: `cache::with` passes the calling thread's cache, and `f`, which has only the bin, does not access it.
        let run = |cache: &Cache| unsafe { cache.own(|contents| contents.bins.get_mut(class).map(f)) };
        cache::with(self.shared.id, find, run).flatten()
    }

    #[cold]
    fn find_cache(&self) -> Option<*const Cache> {
        if !self.shared.process.is_this() {
            return None;
        }
        let home: Weak<Central<M>> = Arc::downgrade(&self.shared);
        cache::find(self.shared.id, home)
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;
    use std::sync::{Mutex, mpsc};
    use std::thread;

    use super::*;
    use crate::Error;
    use crate::backend::host::HostBackend;
    use crate::error::Unavailable;
    use crate::memory::{Buffer, Device, DeviceOnly, of_upstream};

    const LIMIT: Duration = Duration::from_secs(60);

    /// Allocates once the test permits it.
    struct Gated {
        memory: Device,
        begun: mpsc::Sender<()>,
        permitted: Mutex<mpsc::Receiver<()>>,
    }

    // SAFETY: the device's blocks.
    unsafe impl Memory for Gated {
        type Visibility = DeviceOnly;

        fn alloc(&self, layout: Layout, on: Option<&Stream>) -> Result<Block> {
            self.begun.send(()).expect("the test receives");
            self.permitted.lock().expect("no panic").recv_timeout(LIMIT).expect("a permit");
            self.memory.alloc(layout, on)
        }
        unsafe fn free(&self, block: &Block, uses: &Uses) -> Result<()> {
            // SAFETY: the caller promises that the block is of this memory and freed once, with its uses; blocks are the device's, unchanged.
            unsafe { self.memory.free(block, uses) }
        }
        of_upstream!(memory);
    }

    #[test]
    fn a_request_ends_although_the_upstream_allocation_waits_for_it() {
        const BYTES: u64 = 1 << 20;
        let backend = HostBackend::builder().device_memory(8 << 20).build().expect("a backend");
        let ((begun, has_begun), (permit, permitted)) = (mpsc::channel(), mpsc::channel());
        let memory = Gated { memory: Device::new(&backend, 0), begun, permitted: Mutex::new(permitted) };
        let mut builder = Pool::builder(memory).limit(BYTES).slab(BYTES).patience(Duration::ZERO);
        builder.options.growth_patience = Duration::from_millis(10);
        let pool = builder.build().expect("a pool");
        let request = || {
            let ((sender, receiver), pool) = (mpsc::channel(), pool.clone());
            thread::spawn(move || sender.send(Buffer::<u8, _>::new(pool, BYTES as usize)));
            receiver
        };
        let first = request();
        has_begun.recv_timeout(LIMIT).expect("a slab is missing");
        let refused = request().recv_timeout(LIMIT).expect("the wait is bounded").map(drop).expect_err("the limit is reserved");
        let Error::OutOfMemory { unavailable: Some(unavailable), .. } = &refused else { panic!("{refused}") };
        let Unavailable::Allocation { bytes, age } = **unavailable else { panic!("{refused}") };
        assert!((bytes, age >= Duration::from_millis(10)) == (BYTES, true), "{refused}");
        assert!(refused.to_string().contains("upstream memory has not returned from an allocation of 1 MiB"), "{refused}");
        permit.send(()).expect("it waits");
        let block = first.recv_timeout(LIMIT).expect("in time").expect("a slab");
        let full = Buffer::<u8, _>::new(pool.clone(), 1).map(drop).expect_err("no room");
        assert!(matches!(full, Error::OutOfMemory { unavailable: None, .. }), "{full}");
        drop(block);
    }

    #[test]
    fn a_request_waits_for_blocks_in_transfer_from_a_thread_cache() {
        let backend = HostBackend::builder().device_memory(8 << 20).build().expect("a backend");
        let builder = Pool::builder(Device::new(&backend, 0)).limit(8 << 20).slab(8 << 20).patience(Duration::from_secs(3600));
        let pool = builder.build().expect("a pool");
        let give = |bytes| Buffer::<u8, _>::new(pool.clone(), bytes).expect("room");
        let (blocks, last) = ([(); 8].map(|()| give(1 << 20)), Layout::from_size_align(1 << 20, 1).expect("a layout"));
        drop(blocks);
        let class = pool.shared.class_of(last).expect("one of slabs");
        let (older, transit) = pool.bin(class, |bin| pool.spill(class, bin)).expect("a thread that runs");
        assert!(!older.is_empty(), "it was full, and so was the central free list");
        let (sender, receiver) = mpsc::channel();
        let theirs = pool.clone();
        thread::spawn(move || sender.send(Buffer::<u8, _>::new(theirs, 8 << 20).map(drop)));
        let early = receiver.recv_timeout(Duration::from_millis(50));
        pool.shared.free_spilled(class, older, 0, transit.expect("it is said"));
        let got = early.unwrap_or_else(|_| receiver.recv_timeout(Duration::from_secs(60)).expect("in time"));
        got.expect("all blocks were given back");
    }
}
