//! [`LruCache`]: what was computed for a key, for so many keys; the key that was used least recently gives way.
//!
//! 1. It never has more entries than its capacity, and an insertion makes one entry give way, no more.
//! 2. A key that several threads ask for at once is computed by one of them; the others wait for that one only. Other keys are not kept
//!    waiting. Where the key gives way meanwhile, who asks for it then computes it again.
//! 3. What could not be computed is not kept: the next who asks tries again, and so does who has waited.
//! 4. A look that finds something clones neither key nor entry, but for the value that it gives: for large ones put in an [`Arc`].
//!
//! ```
//! use std::num::NonZeroUsize;
//!
//! use ringmem::cache::LruCache;
//!
//! let cache: LruCache<String, usize> = LruCache::new(NonZeroUsize::new(1000).unwrap());
//! assert_eq!(cache.get_or_insert_with("positions", |key| key.len()), 9);
//! assert_eq!(cache.get_or_insert_with("positions", |_| unreachable!()), 9);
//! assert_eq!(cache.statistics().hit_rate(), 0.5);
//! ```

use core::borrow::Borrow;
use core::cell::Cell;
use core::convert::Infallible;
use core::fmt;
use core::hash::Hash;
use core::mem;
use core::num::NonZeroUsize;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use std::borrow::ToOwned;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A value, once it has been computed: by who has the lock.
type Entry<V> = Arc<Mutex<Option<V>>>;

/// So many keys and what was computed for them, for any number of threads.
pub struct LruCache<K, V> {
    entries: Mutex<lru::LruCache<K, Entry<V>>>,
    // The map itself has no bound: one that has takes room for all at once.
    capacity: NonZeroUsize,
    hits: AtomicU64,
    misses: AtomicU64,
    evictions: AtomicU64,
}

/// How often a cache had what it was asked for. Exact while no other thread uses it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Looks that found a value, or waited until another had computed it.
    pub hits: u64,
    /// Looks that computed one, also in vain.
    pub misses: u64,
    /// Entries that gave way to others.
    pub evictions: u64,
    /// Entries.
    pub len: usize,
}

impl Statistics {
    /// The part of the looks that found a value; 0 before the first.
    #[must_use]
    pub fn hit_rate(&self) -> f64 {
        let looks = self.hits + self.misses;
        if looks == 0 { 0.0 } else { self.hits as f64 / looks as f64 }
    }
}

impl<K: Hash + Eq, V: Clone> LruCache<K, V> {
    /// An empty cache of `capacity` entries.
    #[must_use]
    pub fn new(capacity: NonZeroUsize) -> Self {
        let counts = [const { AtomicU64::new(0) }; 3];
        let [hits, misses, evictions] = counts;
        Self { entries: Mutex::new(lru::LruCache::unbounded()), capacity, hits, misses, evictions }
    }

    /// What is there for a key, or what `compute` makes of it. It is not asked for the same key from within: that would wait for itself.
    pub fn get_or_insert_with<Q>(&self, key: &Q, compute: impl FnOnce(&Q) -> V) -> V
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let computed = self.get_or_try_insert_with(key, |key| Ok::<V, Infallible>(compute(key)));
        match computed {
            Ok(value) => value,
        }
    }

    /// What is there for a key, or what `compute` makes of it, if it does. It is not asked for the same key from within.
    ///
    /// # Errors
    ///
    /// What `compute` failed with: then nothing is kept.
    pub fn get_or_try_insert_with<Q, E>(&self, key: &Q, compute: impl FnOnce(&Q) -> Result<V, E>) -> Result<V, E>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let visit = Visit { cache: self, key, entry: self.entry(key), is_in_vain: Cell::new(false) };
        // Poisoned where computing panicked, and then empty.
        let mut value = visit.entry.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(value) = &*value {
            self.hits.fetch_add(1, Relaxed);
            return Ok(value.clone());
        }
        self.misses.fetch_add(1, Relaxed);
        visit.is_in_vain.set(true);
        let computed = compute(key)?;
        // A clone may panic, too.
        *value = Some(computed.clone());
        visit.is_in_vain.set(false);
        Ok(computed)
    }

    /// The place for a key's value, the most recently used from now on.
    fn entry<Q>(&self, key: &Q) -> Entry<V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let mut entries = self.entries();
        if let Some(entry) = entries.get(key) {
            return Arc::clone(entry);
        }
        let (key, entry) = (key.to_owned(), Entry::default());
        let evicted = if entries.len() < self.capacity.get() { None } else { entries.pop_lru() };
        entries.put(key, Arc::clone(&entry));
        self.evictions.fetch_add(u64::from(evicted.is_some()), Relaxed);
        drop(entries);
        // Not under the lock: what is dropped is the user's.
        drop(evicted);
        entry
    }

    /// Whether there is an entry for a key. Neither counts nor makes it a recent one.
    pub fn contains<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.entries().contains(key)
    }

    /// Forgets a key: whether there was an entry.
    pub fn remove<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        let removed = self.entries().pop_entry(key);
        removed.is_some()
    }

    /// How often it had what it was asked for.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        let len = self.entries().len();
        let [hits, misses, evictions] = [&self.hits, &self.misses, &self.evictions].map(|count| count.load(Relaxed));
        Statistics { hits, misses, evictions, len }
    }

    fn entries(&self) -> MutexGuard<'_, lru::LruCache<K, Entry<V>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A look at an entry. One that has computed in vain, failing or panicking, takes the entry out when it ends, but not from others who look at it: the
/// next of them fills it, or the last takes it out.
struct Visit<'a, K: Hash + Eq + Borrow<Q>, V: Clone, Q: Hash + Eq + ?Sized> {
    cache: &'a LruCache<K, V>,
    key: &'a Q,
    entry: Entry<V>,
    is_in_vain: Cell<bool>,
}

impl<K: Hash + Eq + Borrow<Q>, V: Clone, Q: Hash + Eq + ?Sized> Drop for Visit<'_, K, V, Q> {
    fn drop(&mut self) {
        if !self.is_in_vain.get() {
            return;
        }
        let mut entries = self.cache.entries();
        let Some(entry) = entries.peek_mut(self.key).filter(|entry| Arc::ptr_eq(entry, &self.entry)) else { return };
        // Under the lock, and before counting: of two that fail, one is the last. The map has it still, so nothing of the user's is dropped here.
        drop(mem::take(&mut self.entry));
        let is_empty = |value: &mut Mutex<Option<V>>| value.get_mut().unwrap_or_else(PoisonError::into_inner).is_none();
        let removed = if Arc::get_mut(entry).is_some_and(is_empty) { entries.pop_entry(self.key) } else { None };
        drop(entries);
        drop(removed);
    }
}

impl<K: Hash + Eq, V: Clone> fmt::Debug for LruCache<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LruCache").field(&self.statistics()).finish()
    }
}
