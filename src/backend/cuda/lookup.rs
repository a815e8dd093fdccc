//! Lookup tables with a cache per thread: [`CachedTable`] for streams and modules, [`Ranges`] for live memory. A hit takes no lock.
//!
//! Each table has a [`Stamp`]: a number that no table of the process has had before. A thread's cache has [`ROWS`] rows, each with the stamp of its table.
//!
//! 1. A row is valid while the table's stamp is the row's. So a row of another table, or from before a removal, never matches.
//! 2. A removal renews the stamp before the entry is freed or its key is reused. A thread that still reads the old stamp finds the entry, as it would have just
//!    before the removal.
//! 3. A row's stamp was read before its lookup, or under the lock under which it is renewed. So if the entry is removed between lookup and caching, the row is
//!    stale at once.
//! 4. Only entries that were found are cached: an insertion does not renew the stamp.
//! 5. The rows of [`CachedTable`] are weak references: a cache keeps nothing alive.
//!
//! [`Ranges::kill`] renews the stamp, [`Ranges::remove`] does not need to: a range is dead before it is removed, and dead ranges are not cached.

use core::cell::{Cell, RefCell};
use core::ptr::NonNull;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};
use std::thread::LocalKey;
use std::vec::Vec;

use foldhash::fast::RandomState;

use crate::Result;
use crate::backend::ranges::{self, Found, Listed, Range, Span};
use crate::backend::{Address, Block, MemoryLocation, Taints};

const ROWS: usize = 4;

struct Stamp(AtomicU64);

impl Default for Stamp {
    fn default() -> Self {
        Self(AtomicU64::new(next()))
    }
}

fn next() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Relaxed) + 1
}

impl Stamp {
    pub fn now(&self) -> u64 {
        // SYNC POINT: removal. Pairs with renew.
        self.0.load(Acquire)
    }

    /// Makes all rows of the table stale. The caller frees or reuses what it removes only afterwards.
    fn renew(&self) {
        // SYNC POINT: removal. Pairs with now.
        self.0.store(next(), Release);
    }
}

struct Spans {
    rows: [Cell<(u64, Span)>; ROWS],
    next: Cell<usize>,
}

thread_local! {
    static SPANS: Spans = const {
        const NONE: Span = Span { start: 0, bytes: 0, place: NonNull::dangling(), shift: 0, location: MemoryLocation::Host, device: 0 };
        Spans { rows: [const { Cell::new((0, NONE)) }; ROWS], next: Cell::new(0) }
    };
}

#[inline]
fn cached_span(stamp: u64, address: u64) -> Option<Span> {
    SPANS.with(|spans| {
        let rows = spans.rows.iter().map(Cell::get);
        rows.into_iter().find(|(then, span)| *then == stamp && address.wrapping_sub(span.start) < span.bytes).map(|(_, span)| span)
    })
}

fn cache_span(stamp: u64, span: Span) {
    SPANS.with(|spans| {
        let next = spans.next.replace((spans.next.get() + 1) % ROWS);
        spans.rows[next].set((stamp, span));
    });
}

pub(super) struct CachedTable<K, T> {
    entries: RwLock<HashMap<K, Arc<T>, RandomState>>,
    stamp: Stamp,
}

pub(super) struct ThreadCache<K, T> {
    rows: RefCell<[Row<K, T>; ROWS]>,
    next: Cell<usize>,
}

struct Row<K, T> {
    stamp: u64,
    key: Option<K>,
    entry: Weak<T>,
}

pub(super) trait Cached: Sized + 'static {
    type Key: Copy + Eq + Hash + 'static;

    fn cache() -> &'static LocalKey<ThreadCache<Self::Key, Self>>;
}

impl<K, T> ThreadCache<K, T> {
    pub const fn new() -> Self {
        Self { rows: RefCell::new([const { Row { stamp: 0, key: None, entry: Weak::new() } }; ROWS]), next: Cell::new(0) }
    }
}

impl<T: Cached> Default for CachedTable<T::Key, T> {
    fn default() -> Self {
        Self { entries: RwLock::default(), stamp: Stamp::default() }
    }
}

impl<T: Cached> CachedTable<T::Key, T> {
    #[inline]
    pub fn get(&self, key: T::Key) -> Option<Arc<T>> {
        let stamp = self.stamp.now();
        let known = |row: &&Row<T::Key, T>| row.stamp == stamp && row.key == Some(key);
        // Inaccessible while the thread ends.
        let recent = T::cache().try_with(|recent| recent.rows.borrow().iter().find(known).and_then(|row| row.entry.upgrade()));
        recent.ok().flatten().or_else(|| self.look_up(key))
    }

    #[inline(never)]
    fn look_up(&self, key: T::Key) -> Option<Arc<T>> {
        let entries = self.read();
        let entry = entries.get(&key)?;
        let row = Row { stamp: self.stamp.now(), key: Some(key), entry: Arc::downgrade(entry) };
        let _ = T::cache().try_with(|recent| {
            let next = recent.next.replace((recent.next.get() + 1) % ROWS);
            recent.rows.borrow_mut()[next] = row;
        });
        Some(Arc::clone(entry))
    }

    #[inline]
    pub fn now(&self) -> u64 {
        self.stamp.now()
    }

    pub fn insert(&self, key: T::Key, entry: Arc<T>) {
        self.write().insert(key, entry);
    }

    pub fn remove(&self, key: T::Key) -> Option<Arc<T>> {
        let mut entries = self.write();
        self.stamp.renew();
        entries.remove(&key)
    }

    /// Passes each removed entry to `removed` under the lock, so before another thread can observe the removal.
    pub fn take(&self, mut is_removed: impl FnMut(&T) -> bool, mut removed: impl FnMut(T::Key, Arc<T>)) {
        let mut entries = self.write();
        for (key, entry) in entries.extract_if(|_, entry| is_removed(entry)) {
            self.stamp.renew();
            removed(key, entry);
        }
    }

    pub fn all(&self) -> Vec<Arc<T>> {
        self.read().values().map(Arc::clone).collect()
    }

    fn read(&self) -> RwLockReadGuard<'_, HashMap<T::Key, Arc<T>, RandomState>> {
        self.entries.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, HashMap<T::Key, Arc<T>, RandomState>> {
        self.entries.write().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) struct Ranges<O> {
    ranges: ranges::Ranges<O>,
    stamp: Stamp,
}

impl<O> Default for Ranges<O> {
    fn default() -> Self {
        Self { ranges: ranges::Ranges::default(), stamp: Stamp::default() }
    }
}

impl<O> Ranges<O> {
    pub fn insert(&self, address: u64, range: Range<O>) {
        self.ranges.insert(address, range);
    }

    pub fn kill(&self, block: &Block) -> Result<()> {
        self.ranges.kill(block)?;
        self.stamp.renew();
        Ok(())
    }

    pub fn remove(&self, block: &Block) -> Option<Range<O>> {
        self.ranges.remove(block)
    }

    pub fn taints(&self) -> &Taints {
        self.ranges.taints()
    }

    pub fn read(&self) -> Listed<'_, O> {
        self.ranges.read()
    }

    /// Host addresses outside are pageable memory.
    // Inlined to stay in registers.
    #[inline(always)]
    pub fn end(&self, at: Address, bytes: u64, call: &'static str) -> Result<Found> {
        let address = at.get();
        // A cached span of mapped memory may be shorter than it is now.
        match cached_span(self.stamp.now(), address) {
            Some(span) if bytes <= span.bytes - (address - span.start) => span.found(address, bytes),
            _ => self.look_up(at, address, bytes, call),
        }
    }

    #[inline(never)]
    fn look_up(&self, at: Address, address: u64, bytes: u64, call: &'static str) -> Result<Found> {
        let stamp = self.stamp.now();
        let ranges = self.read();
        if let Some((range, offset)) = ranges.at(address).filter(|(range, _)| !range.is_dead) {
            let span = if range.joins {
                ranges.joined(range, address - offset, offset.saturating_add(bytes), false)
            } else {
                range.span(address - offset)
            };
            cache_span(stamp, span);
        }
        ranges.end(at, bytes, None, call)
    }
}

impl<O> Listed<'_, O> {
    pub(super) fn owner(&self, block: &Block) -> Option<&O> {
        self.0.get(&block.address()).filter(|range| range.layout == block.layout).map(|range| &range.owner)
    }

    pub(super) fn live_owner(&self, block: &Block) -> Option<&O> {
        self.0.get(&block.address()).filter(|range| !range.is_dead && range.layout == block.layout).map(|range| &range.owner)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&u64, &Range<O>)> {
        self.0.iter()
    }

    pub(super) fn overlaps(&self, address: u64, bytes: u64) -> bool {
        let before = self.0.range(..address.saturating_add(bytes)).next_back();
        before.is_some_and(|(&start, range)| start.saturating_add(range.bytes()) > address)
    }
}

#[cfg(test)]
mod tests {
    use core::alloc::Layout;

    use super::*;
    use crate::Error;
    use crate::backend::{DeviceAddress, Options};

    #[derive(Debug, PartialEq)]
    struct Thing(u64);

    impl Cached for Thing {
        type Key = u64;

        fn cache() -> &'static LocalKey<ThreadCache<u64, Self>> {
            thread_local!(static CACHE: ThreadCache<u64, Thing> = const { ThreadCache::new() });
            &CACHE
        }
    }

    #[test]
    fn a_removed_entry_is_not_found_through_a_cache() {
        let entries = CachedTable::default();
        for key in 0..10 {
            entries.insert(key, Arc::new(Thing(key)));
        }
        assert!((0..10).all(|key| entries.get(key).as_deref() == Some(&Thing(key))));
        let held = entries.get(9);
        assert_eq!(entries.remove(9), held);
        assert_eq!(entries.get(9), None, "somebody still has it");
        let taken = entries.get(8);
        std::thread::scope(|scope| {
            scope.spawn(|| entries.take(|entry| entry.0 > 6, |key, entry| assert_eq!(entry.0, key)));
        });
        assert_eq!((7..10).map(|key| entries.get(key)).collect::<Vec<_>>(), [None, None, None]);
        assert_eq!((taken.as_deref(), entries.all().len()), (Some(&Thing(8)), 7));
    }

    #[test]
    fn caches_keep_no_entry_alive_and_belong_to_one_table() {
        let (entries, others) = (CachedTable::default(), CachedTable::default());
        entries.insert(1, Arc::new(Thing(1)));
        assert_eq!((entries.get(1).is_some(), others.get(1)), (true, None::<Arc<Thing>>));
        let last = entries.get(1).map(|entry| Arc::downgrade(&entry));
        drop(entries);
        assert!(last.is_some_and(|last| last.upgrade().is_none()));
    }

    const START: u64 = 0x1000;

    fn layout(bytes: usize) -> Layout {
        Layout::from_size_align(bytes, 1).expect("a layout")
    }

    fn range(bytes: usize) -> Range<()> {
        let (options, place) = (Options::empty(), NonNull::without_provenance(core::num::NonZero::new(START as usize).expect("not 0")));
        Range {
            layout: layout(bytes),
            location: MemoryLocation::Device,
            options,
            device: 0,
            place,
            shift: 0,
            owner: (),
            is_dead: false,
            joins: false,
        }
    }

    fn block(bytes: usize) -> Block {
        Block {
            device_address: Some(DeviceAddress::new(START)),
            host: None,
            layout: layout(bytes),
            location: MemoryLocation::Device,
            device: 0,
            is_pinned: false,
            ready: None,
            tag: 0,
        }
    }

    fn found(ranges: &Ranges<()>, offset: u64, bytes: u64) -> Result<u64> {
        ranges.end(Address::Device(DeviceAddress::new(START + offset)), bytes, "copy").map(|found| found.offset)
    }

    #[test]
    fn a_freed_range_is_not_found_by_a_thread_that_cached_it() {
        let ranges = Ranges::default();
        ranges.insert(START, range(100));
        for _ in 0..3 {
            assert!(matches!(found(&ranges, 60, 40), Ok(60)));
            assert!(matches!(found(&ranges, 60, 41), Err(Error::Range { offset: 60, len: 41, size: 100, .. })));
            assert!(matches!(found(&ranges, 100, 1), Err(Error::Foreign { .. })));
        }
        std::thread::scope(|scope| {
            scope.spawn(|| ranges.kill(&block(100)).expect("it is there"));
        });
        assert!(matches!(found(&ranges, 60, 40), Err(Error::Foreign { call: "copy", .. })), "dead");
        ranges.remove(&block(100)).expect("it was killed");
        ranges.insert(START, range(50));
        assert!(matches!(found(&ranges, 60, 40), Err(Error::Foreign { .. })), "another, shorter one is there now");
        assert!(matches!(found(&ranges, 10, 40), Ok(10)));
        ranges.kill(&block(50)).expect("it is there");
        assert!(matches!(found(&ranges, 10, 40), Err(Error::Foreign { .. })), "dead");
    }

    #[test]
    fn cached_ranges_of_one_backend_are_not_used_for_another() {
        let (ranges, others) = (Ranges::default(), Ranges::default());
        ranges.insert(START, range(100));
        assert!(matches!((found(&ranges, 0, 1), found(&others, 0, 1)), (Ok(0), Err(Error::Foreign { .. }))));
        drop(ranges);
        let later = Ranges::default();
        assert!(found(&later, 0, 1).is_err());
    }
}
