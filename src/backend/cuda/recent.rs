//! Per-thread caches of lookups, read without a lock. A removal changes the table's process-unique [`Stamp`]: an entry with the current
//! stamp is valid. References are weak.

use core::cell::{Cell, RefCell};
use core::ptr::NonNull;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};
use std::thread::LocalKey;

use foldhash::fast::RandomState;

use crate::backend::MemoryLocation;
use crate::backend::ranges::Span;

const MANY: usize = 4;

pub(crate) struct Stamp(AtomicU64);

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
        // SYNC POINT: gone. Pairs with renew.
        self.0.load(Acquire)
    }

    /// Called before the removed entry is freed or its key reused. Entries have a stamp from before their lookup, or under `renew`'s lock.
    pub fn renew(&self) {
        // SYNC POINT: gone. Pairs with now.
        self.0.store(next(), Release);
    }
}

struct Spans {
    rows: [Cell<(u64, Span)>; MANY],
    next: Cell<usize>,
}

thread_local! {
    static SPANS: Spans = const {
        const NONE: Span = Span { start: 0, bytes: 0, place: NonNull::dangling(), shift: 0, location: MemoryLocation::Host, device: 0 };
        Spans { rows: [const { Cell::new((0, NONE)) }; MANY], next: Cell::new(0) }
    };
}

#[inline]
pub(crate) fn span(stamp: u64, address: u64) -> Option<Span> {
    SPANS.with(|spans| {
        let rows = spans.rows.iter().map(Cell::get);
        rows.into_iter().find(|(then, span)| *then == stamp && address.wrapping_sub(span.start) < span.bytes).map(|(_, span)| span)
    })
}

pub(crate) fn remember(stamp: u64, span: Span) {
    SPANS.with(|spans| {
        let next = spans.next.replace((spans.next.get() + 1) % MANY);
        spans.rows[next].set((stamp, span));
    });
}

pub(crate) struct Numbered<K, T> {
    things: RwLock<HashMap<K, Arc<T>, RandomState>>,
    stamp: Stamp,
}

pub(crate) struct Recent<K, T> {
    rows: RefCell<[Row<K, T>; MANY]>,
    next: Cell<usize>,
}

struct Row<K, T> {
    stamp: u64,
    key: Option<K>,
    thing: Weak<T>,
}

pub(crate) trait Remembered: Sized + 'static {
    type Key: Copy + Eq + Hash + 'static;

    fn recent() -> &'static LocalKey<Recent<Self::Key, Self>>;
}

impl<K, T> Recent<K, T> {
    pub const fn new() -> Self {
        Self { rows: RefCell::new([const { Row { stamp: 0, key: None, thing: Weak::new() } }; MANY]), next: Cell::new(0) }
    }
}

impl<T: Remembered> Default for Numbered<T::Key, T> {
    fn default() -> Self {
        Self { things: RwLock::default(), stamp: Stamp::default() }
    }
}

impl<T: Remembered> Numbered<T::Key, T> {
    #[inline]
    pub fn get(&self, key: T::Key) -> Option<Arc<T>> {
        let stamp = self.stamp.now();
        let known = |row: &&Row<T::Key, T>| row.stamp == stamp && row.key == Some(key);
        // Inaccessible while the thread ends.
        let recent = T::recent().try_with(|recent| recent.rows.borrow().iter().find(known).and_then(|row| row.thing.upgrade()));
        recent.ok().flatten().or_else(|| self.look(key))
    }

    #[inline(never)]
    fn look(&self, key: T::Key) -> Option<Arc<T>> {
        let things = self.read();
        let thing = things.get(&key)?;
        let row = Row { stamp: self.stamp.now(), key: Some(key), thing: Arc::downgrade(thing) };
        let _ = T::recent().try_with(|recent| {
            let next = recent.next.replace((recent.next.get() + 1) % MANY);
            recent.rows.borrow_mut()[next] = row;
        });
        Some(Arc::clone(thing))
    }

    #[inline]
    pub fn now(&self) -> u64 {
        self.stamp.now()
    }

    pub fn insert(&self, key: T::Key, thing: Arc<T>) {
        self.write().insert(key, thing);
    }

    pub fn remove(&self, key: T::Key) -> Option<Arc<T>> {
        let mut things = self.write();
        self.stamp.renew();
        things.remove(&key)
    }

    /// `gone` gets each removed entry before other threads observe that.
    pub fn take(&self, mut goes: impl FnMut(&T) -> bool, mut gone: impl FnMut(T::Key, Arc<T>)) {
        let mut things = self.write();
        for (key, thing) in things.extract_if(|_, thing| goes(thing)) {
            self.stamp.renew();
            gone(key, thing);
        }
    }

    pub fn all(&self) -> Vec<Arc<T>> {
        self.read().values().map(Arc::clone).collect()
    }

    fn read(&self) -> RwLockReadGuard<'_, HashMap<T::Key, Arc<T>, RandomState>> {
        self.things.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, HashMap<T::Key, Arc<T>, RandomState>> {
        self.things.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq)]
    struct Thing(u64);

    impl Remembered for Thing {
        type Key = u64;

        fn recent() -> &'static LocalKey<Recent<u64, Self>> {
            thread_local!(static RECENT: Recent<u64, Thing> = const { Recent::new() });
            &RECENT
        }
    }

    #[test]
    fn a_removed_entry_is_not_found_through_a_cache() {
        let things = Numbered::default();
        for key in 0..10 {
            things.insert(key, Arc::new(Thing(key)));
        }
        assert!((0..10).all(|key| things.get(key).as_deref() == Some(&Thing(key))));
        let held = things.get(9);
        assert_eq!(things.remove(9), held);
        assert_eq!(things.get(9), None, "somebody still has it");
        let taken = things.get(8);
        std::thread::scope(|scope| {
            scope.spawn(|| things.take(|thing| thing.0 > 6, |key, thing| assert_eq!(thing.0, key)));
        });
        assert_eq!((7..10).map(|key| things.get(key)).collect::<Vec<_>>(), [None, None, None]);
        assert_eq!((taken.as_deref(), things.all().len()), (Some(&Thing(8)), 7));
    }

    #[test]
    fn caches_keep_no_entry_alive_and_belong_to_one_table() {
        let (things, others) = (Numbered::default(), Numbered::default());
        things.insert(1, Arc::new(Thing(1)));
        assert_eq!((things.get(1).is_some(), others.get(1)), (true, None::<Arc<Thing>>));
        let last = things.get(1).map(|thing| Arc::downgrade(&thing));
        drop(things);
        assert!(last.is_some_and(|last| last.upgrade().is_none()));
    }
}
