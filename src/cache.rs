//! [`LruCache`]: a thread-safe cache of computed values that evicts the least recently used value.
//!
//! 1. It never exceeds its capacity.
//! 2. One thread computes the value of a missing key; others that request it wait. Other keys do not wait. A key that is evicted while its value is computed
//!    is computed again.
//! 3. A failed computation is not cached. Its place is taken before, by an eviction.
//! 4. A hit clones the value. Put large values into an [`Arc`].
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

type Entry<V> = Arc<Mutex<Option<V>>>;

/// A cache of computed values, for any number of threads.
///
/// ```
/// use std::num::NonZeroUsize;
///
/// use ringmem::cache::LruCache;
///
/// let cache: LruCache<u32, u32> = LruCache::new(NonZeroUsize::MIN); // one entry
/// assert!(cache.get_or_try_insert_with(&1, |_| Err("not ready")).is_err() && !cache.contains(&1)); // failures are not cached
/// assert_eq!([2, 3].map(|key| cache.get_or_insert_with(&key, |key| key * key)), [4, 9]);
/// assert!(cache.contains(&3) && !cache.contains(&2));
/// ```
#[doc(alias = "LabelMappingCache")]
pub struct LruCache<K, V> {
    entries: Mutex<lru::LruCache<K, Entry<V>>>,
    // A bounded map allocates its whole capacity at once.
    capacity: NonZeroUsize,
    hits: AtomicU64,
    misses: AtomicU64,
    evictions: AtomicU64,
}

/// Counters of a cache, exact while no other thread uses it.
///
/// ```
/// use std::num::NonZeroUsize;
///
/// use ringmem::cache::LruCache;
///
/// let cache: LruCache<u32, u32> = LruCache::new(NonZeroUsize::MIN); // one entry
/// for key in [1, 1, 2, 2] {
///     cache.get_or_insert_with(&key, |key| key * key);
/// }
/// let statistics = cache.statistics();
/// assert_eq!((statistics.hits, statistics.misses, statistics.evictions, statistics.len), (2, 2, 1, 1));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Requests that found a value or waited for another thread's.
    pub hits: u64,
    /// Requests that computed a value, failures included.
    pub misses: u64,
    /// Evicted entries.
    pub evictions: u64,
    /// Present entries.
    pub len: usize,
}

impl Statistics {
    /// Returns the share of hits; 0 before the first request.
    #[must_use]
    pub fn hit_rate(&self) -> f64 {
        let looks = self.hits + self.misses;
        if looks == 0 { 0.0 } else { self.hits as f64 / looks as f64 }
    }
}

impl<K: Hash + Eq, V: Clone> LruCache<K, V> {
    /// Creates an empty cache.
    #[must_use]
    pub fn new(capacity: NonZeroUsize) -> Self {
        let counts = [const { AtomicU64::new(0) }; 3];
        let [hits, misses, evictions] = counts;
        Self { entries: Mutex::new(lru::LruCache::unbounded()), capacity, hits, misses, evictions }
    }

    /// Returns a key's value, computed if it is not cached. `compute` deadlocks if it requests the same key.
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

    /// As [`get_or_insert_with`](Self::get_or_insert_with), for a computation that can fail.
    ///
    /// # Errors
    ///
    /// The error of `compute`; nothing is cached.
    pub fn get_or_try_insert_with<Q, E>(&self, key: &Q, compute: impl FnOnce(&Q) -> Result<V, E>) -> Result<V, E>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let visit = Visit { cache: self, key, entry: self.entry(key), is_in_vain: Cell::new(false) };
        let mut value = visit.entry.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(value) = &*value {
            self.hits.fetch_add(1, Relaxed);
            return Ok(value.clone());
        }
        self.misses.fetch_add(1, Relaxed);
        visit.is_in_vain.set(true);
        let computed = compute(key)?;
        // The clone may panic.
        *value = Some(computed.clone());
        visit.is_in_vain.set(false);
        Ok(computed)
    }

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
        // The drop may run user code.
        drop(evicted);
        entry
    }

    /// Returns true for a key with an entry. Not a use.
    pub fn contains<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.entries().contains(key)
    }

    /// Removes a key; returns true if present.
    pub fn remove<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        let removed = self.entries().pop_entry(key);
        removed.is_some()
    }

    /// Returns the counters.
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

/// Removes an entry that is still empty at the end (failure or panic), unless other requests hold it.
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
        // Under the lock and before the check, so that one of two failing requests is the last. Runs no user code: the map holds the entry.
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
