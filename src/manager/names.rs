//! [`Names`]: the created buffers by name, and [`Named`]: the facts of each, which are read without a lease.
//!
//! 1. A name is in use from before its buffer's creation until the removal of the buffer, also if leases keep the buffer's memory.
//! 2. A name is found only after its buffer is in the table.
//! 3. Each lock is held for a map operation. No value is dropped and no foreign code runs under it.
//!
//! # Structure
//!
//! The *shards* map names to [`Named`]. Insertion there takes a name. `slots` maps a slot's number to the [`Named`] of the buffer that was put there last:
//! the caller that removes a buffer has only its number, since an exclusive lease may hide the entry.
//!
//! # Order of steps
//!
//! *Creation*: [`take`](Names::take) the name; allocate; then, under the lock of `slots`, insert the entry in the table, store the [`Named`] in `slots`, and
//! set its index, from which on [`find`](Names::find) returns it. With the index set before the insertion, a lookup by name would return a number
//! without a buffer. With the insertion outside the lock, a removal could come between it and the store in `slots`, find nothing there, and leave the
//! name of a removed buffer in use.
//!
//! *Removal*: remove the entry from the table, then [`free`](Names::free) the name of its index. In the reverse order, another thread could create a
//! buffer of this name while the first one still grants leases. Between the two steps, the slot may be reused: by a registered buffer, which does not change
//! `slots`, or by a created one, which finds the earlier [`Named`] in `slots` and frees its name.
//!
//! A creation that fails or panics frees its name in the drop of [`Taken`].

use core::borrow::Borrow;
use core::hash::{Hash, Hasher};
use core::panic::Location;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};
use core::time::Duration;
use std::boxed::Box;
use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::vec::Vec;

use foldhash::fast::RandomState;

use super::config::{BufferConfig, Growth};
use super::element::Element;
use super::numbers::Index;
use super::statistics::BufferStatistics;
use crate::memory::Origin;
use crate::{Error, Result};

/// Times are below this value; from this value on, numbers of polls.
const POLLS: u64 = 1 << 63;
pub(super) const LATEST: u64 = POLLS - 1;
/// The buffer was used since the last poll.
const USED: u64 = u64::MAX;

/// A poll that dates uses, by its number.
#[derive(Clone, Copy)]
pub(super) struct Poll(u64);

impl Poll {
    pub fn next(polls: &AtomicU64) -> Self {
        Self(POLLS | polls.fetch_add(1, Relaxed))
    }
}

/// The name, configuration and figures of a created buffer. Written under the buffer's exclusive lease; each figure is read without waiting.
///
/// Each created buffer has one, however small, so that it stores nothing twice: see [`config`](Self::config).
///
/// # Dating of uses
///
/// A read of a clock would cost more than the lookup, so that the end of a lease only marks the buffer as used: `used_ns` is [`USED`]. A poll
/// ([`tick`](super::MemoryManager::tick), `statistics`, `cleanup`) dates it in two steps: [`begin_dating`](Self::begin_dating) replaces [`USED`] by the
/// poll's number, then the caller reads the clock, then [`last_used`](Self::last_used) replaces the number by that time. A use between these steps
/// stores [`USED`] again, so that the second step fails: the use counts as now. With the clock read before the first step, a use in between would be dated
/// too early, and its buffer could be freed as idle.
#[derive(Debug)]
pub(super) struct Named {
    pub name: Box<str>,
    /// The bits of the buffer's index; 0, which is no index, during its creation.
    index: AtomicU64,
    caller: &'static Location<'static>,
    pub element: Element,
    growth: Growth,
    min_bytes: u64,
    max_bytes: u64,
    created_ns: u64,
    len: AtomicUsize,
    capacity: AtomicUsize,
    resizes: AtomicU32,
    /// The present block is of the fallback memory.
    is_fallback: AtomicBool,
    // INVARIANT: if the configuration has an element size, it is the element's.
    has_element_size: bool,
    pub is_async: bool,
    /// A time, a poll's number, or `USED`.
    used_ns: AtomicU64,
}

impl Named {
    /// The configuration's element size, if it has one, is that of `element`.
    pub fn new(
        name: Box<str>,
        caller: &'static Location<'static>,
        element: Element,
        config: BufferConfig,
        len: usize,
        capacity: usize,
        now_ns: u64,
    ) -> Self {
        Self {
            name,
            index: AtomicU64::new(0),
            caller,
            element,
            growth: config.growth,
            min_bytes: config.min_bytes,
            max_bytes: config.max_bytes,
            created_ns: now_ns,
            len: AtomicUsize::new(len),
            capacity: AtomicUsize::new(capacity),
            resizes: AtomicU32::new(0),
            is_fallback: AtomicBool::new(false),
            has_element_size: config.bytes_per_element.is_some(),
            is_async: config.is_async,
            used_ns: AtomicU64::new(now_ns),
        }
    }

    /// Returns `None` during the creation.
    #[inline]
    pub fn index(&self) -> Option<Index> {
        // SYNC POINT: buffer created. Pairs with set_index.
        let bits = self.index.load(Acquire);
        (bits != 0).then(|| Index::from_bits(bits))
    }

    fn set_index(&self, index: Index) {
        // SYNC POINT: buffer created. Pairs with index: a caller that finds the index finds its slot filled.
        self.index.store(index.bits(), Release);
    }

    /// Returns the configuration of the creation.
    pub fn config(&self) -> BufferConfig {
        BufferConfig {
            bytes_per_element: self.has_element_size.then(|| self.element.size() as u32),
            growth: self.growth,
            min_bytes: self.min_bytes,
            max_bytes: self.max_bytes,
            is_async: self.is_async,
        }
    }

    pub fn origin(&self) -> Origin {
        // Copied for each new block, so that a name needs no reference count.
        Origin { name: Some((&*self.name).into()), caller: self.caller }
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.len.load(Relaxed)
    }

    #[inline]
    pub fn capacity(&self) -> usize {
        self.capacity.load(Relaxed)
    }

    pub fn set_len(&self, len: usize) {
        self.len.store(len, Relaxed);
    }

    pub fn is_fallback(&self) -> bool {
        self.is_fallback.load(Relaxed)
    }

    /// Sets whether the first block is of the fallback memory.
    pub fn set_first_block(&self, is_fallback: bool) {
        self.is_fallback.store(is_fallback, Relaxed);
    }

    pub fn set_new_block(&self, len: usize, capacity: usize, is_fallback: bool) {
        self.len.store(len, Relaxed);
        self.capacity.store(capacity, Relaxed);
        self.is_fallback.store(is_fallback, Relaxed);
        // Only the exclusive lease writes.
        self.resizes.store(self.resizes.load(Relaxed).saturating_add(1), Relaxed);
    }

    /// Marks the buffer as used; the next poll dates the use.
    #[inline]
    pub fn touch(&self) {
        // Usually it is set already: then the cache line stays shared.
        if self.used_ns.load(Relaxed) != USED {
            self.used_ns.store(USED, Relaxed);
        }
    }

    pub fn used_at(&self, now_ns: u64) {
        self.used_ns.store(now_ns, Relaxed);
    }

    /// Begins to date a use; the caller reads the clock afterwards.
    pub fn begin_dating(&self, poll: Poll) {
        let at = self.used_ns.load(Relaxed);
        if at >= POLLS {
            // On failure, another poll dates the use, or it is newer. Acquire: the clock is not read earlier.
            let _ = self.used_ns.compare_exchange(at, poll.0, Acquire, Relaxed);
        }
    }

    /// Dates the use by a clock read after [`begin_dating`](Self::begin_dating). Never too early; a use since then counts as now.
    pub fn last_used(&self, poll: Poll, now_ns: u64) -> u64 {
        match self.used_ns.compare_exchange(poll.0, now_ns, Relaxed, Relaxed) {
            Err(at) if at < POLLS => at,
            Ok(_) | Err(_) => now_ns,
        }
    }

    pub fn read(&self, poll: Poll, now_ns: u64) -> BufferStatistics {
        let idle = now_ns.saturating_sub(self.last_used(poll, now_ns));
        // A concurrent resize writes length and capacity in sequence.
        let capacity = self.capacity();
        BufferStatistics {
            name: self.name.clone(),
            element: self.element.name(),
            element_bytes: self.element.size() as u64,
            len: self.len().min(capacity) as u64,
            capacity: capacity as u64,
            resizes: u64::from(self.resizes.load(Relaxed)),
            is_fallback: self.is_fallback(),
            age: Duration::from_nanos(now_ns.saturating_sub(self.created_ns)),
            idle: Duration::from_nanos(idle),
        }
    }
}

/// Maps, against contention. A power of two.
const SHARDS: usize = 16;

type Shard = HashSet<ByName, RandomState>;

/// Compared and hashed by the name, which is stored once.
#[derive(Clone, Debug)]
struct ByName(Arc<Named>);

impl Borrow<str> for ByName {
    fn borrow(&self) -> &str {
        &self.0.name
    }
}

impl Hash for ByName {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.name.hash(state);
    }
}

impl PartialEq for ByName {
    fn eq(&self, other: &Self) -> bool {
        self.0.name == other.0.name
    }
}

impl Eq for ByName {}

#[derive(Debug, Default)]
pub(super) struct Names {
    shards: [RwLock<Shard>; SHARDS],
    /// By the number of the slot.
    // INVARIANT: the buffer of each element's index was in the table before this lock was released. A shard is locked under this lock, never the reverse.
    slots: Mutex<Vec<Option<Arc<Named>>>>,
}

/// A taken name, which no caller finds before [`give`](Self::give). It is free again if this is dropped without.
#[must_use]
pub(super) struct Taken<'a> {
    names: &'a Names,
    named: &'a Arc<Named>,
}

impl Names {
    pub fn take<'a>(&'a self, named: &'a Arc<Named>) -> Result<Taken<'a>> {
        if !self.write(&named.name).insert(ByName(Arc::clone(named))) {
            return Err(Error::AlreadyExists { name: (&*named.name).into(), configs: None });
        }
        Ok(Taken { names: self, named })
    }

    pub fn find<R>(&self, name: &str, read: impl FnOnce(Index, &Arc<Named>) -> R) -> Option<R> {
        let shard = self.read(name);
        let ByName(named) = shard.get(name)?;
        Some(read(named.index()?, named))
    }

    /// Frees the name of a buffer that the caller has removed from the table, if it had one.
    pub fn free(&self, index: Index) {
        let mut slots = self.slots();
        let Some(slot) = slots.get_mut(index.index as usize) else { return };
        let Some(named) = slot.take_if(|named| named.index() == Some(index)) else { return };
        drop(slots);
        self.free_name(&named);
    }

    fn free_name(&self, named: &Arc<Named>) {
        let mut shard = self.write(&named.name);
        // The name may have a new buffer already.
        if shard.get(&*named.name).is_some_and(|ByName(other)| Arc::ptr_eq(other, named)) {
            shard.remove(&*named.name);
        }
    }

    /// Ordered by name, not of one instant. Each has an index.
    pub fn all(&self) -> Vec<Arc<Named>> {
        let mut all = Vec::new();
        self.each(|named| all.push(Arc::clone(named)));
        all.sort_unstable_by(|a: &Arc<Named>, b| a.name.cmp(&b.name));
        all
    }

    /// `visit` calls no user code.
    pub fn each(&self, mut visit: impl FnMut(&Arc<Named>)) {
        for shard in &self.shards {
            let shard = shard.read().unwrap_or_else(PoisonError::into_inner);
            shard.iter().filter(|ByName(named)| named.index().is_some()).for_each(|ByName(named)| visit(named));
        }
    }

    fn slots(&self) -> MutexGuard<'_, Vec<Option<Arc<Named>>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self, name: &str) -> RwLockReadGuard<'_, Shard> {
        self.shard(name).read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, name: &str) -> RwLockWriteGuard<'_, Shard> {
        self.shard(name).write().unwrap_or_else(PoisonError::into_inner)
    }

    fn shard(&self, name: &str) -> &RwLock<Shard> {
        // The map hashes the whole name. The last letter often distinguishes names.
        let last = name.as_bytes().last().copied().unwrap_or(0);
        &self.shards[(usize::from(last) ^ name.len()) % SHARDS]
    }
}

impl Taken<'_> {
    /// Inserts the buffer with `insert`, which returns its index, and lets lookups find it.
    ///
    /// # Errors
    ///
    /// The error of `insert`; the name is free again.
    pub fn give<E>(self, insert: impl FnOnce() -> Result<Index, E>) -> Result<Index, E> {
        let mut slots = self.names.slots();
        let index = insert()?;
        let slot = index.index as usize;
        if slots.len() <= slot {
            slots.resize_with(slot + 1, || None);
        }
        self.named.set_index(index);
        if let Some(earlier) = slots[slot].replace(Arc::clone(self.named)) {
            // Its buffer was removed, since the slot was vacant.
            self.names.free_name(&earlier);
        }
        Ok(index)
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if self.named.index().is_none() {
            self.names.write(&self.named.name).remove(&*self.named.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> Arc<Named> {
        Arc::new(Named::new(name.into(), Location::caller(), Element::of::<u32>(), BufferConfig::default(), 4, 4, 0))
    }

    #[test]
    fn a_configuration_is_returned_as_it_was_given() {
        let given = BufferConfig::new().with_growth(Growth::new(7, 5)).with_bytes(3, 9000).with_async(true);
        for config in [given, BufferConfig { bytes_per_element: Some(4), is_async: false, ..given }] {
            let named = Named::new("a".into(), Location::caller(), Element::of::<u32>(), config, 4, 4, 0);
            assert_eq!(named.config(), config);
        }
    }

    #[test]
    fn figures_read_during_a_resize_have_len_within_capacity() {
        let named = named("a");
        named.set_len(8);
        let figures = named.read(Poll::next(&AtomicU64::new(0)), 0);
        assert_eq!((figures.len, figures.capacity, figures.utilisation()), (4, 4, 1.0));
    }

    #[test]
    fn a_reused_slot_frees_the_name_of_the_removed_buffer() {
        let names = Names::default();
        let (old, new) = (named("old"), named("new"));
        let at = |generation| move || Ok::<_, Error>(Index { index: 3, generation });
        names.take(&old).expect("unused").give(at(1)).expect("inserted");
        assert_eq!(names.find("old", |index, _| index.generation), Some(1));
        // The buffer was removed from the table, but its name not yet freed.
        names.take(&new).expect("unused").give(at(2)).expect("inserted");
        assert!(names.find("old", |_, _| ()).is_none(), "the name is free");
        names.free(Index { index: 3, generation: 1 });
        assert_eq!(names.find("new", |index, _| index.generation), Some(2), "of another buffer");
        names.free(Index { index: 3, generation: 2 });
        names.take(&named("new")).map(drop).expect("the name is free");
    }
}
