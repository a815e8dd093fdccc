use core::panic::Location;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use core::time::Duration;
use std::boxed::Box;
use std::sync::Arc;

use super::config::BufferConfig;
use crate::memory::Origin;
use crate::registry::slots::Index;
use crate::registry::stored::Element;

/// Times are below this value; from this value on, numbers of polls.
const LOOKS: u64 = 1 << 63;
pub(super) const LATEST: u64 = LOOKS - 1;
/// Used since the last poll.
const USED: u64 = u64::MAX;

/// A poll that dates uses, by its number.
#[derive(Clone, Copy)]
pub(super) struct Look(u64);

impl Look {
    pub fn next(looks: &AtomicU64) -> Self {
        Self(LOOKS | looks.fetch_add(1, Relaxed))
    }
}

/// Written under the exclusive lease; each figure is read without waiting.
#[derive(Debug)]
pub(super) struct Metadata {
    pub name: Arc<str>,
    /// The bits of the buffer's index; 0, which is no index, during its creation.
    index: AtomicU64,
    caller: &'static Location<'static>,
    pub element: Element,
    pub config: BufferConfig,
    created_ns: u64,
    len: AtomicUsize,
    capacity: AtomicUsize,
    resizes: AtomicU64,
    is_fallback: AtomicBool,
    /// A time, a poll's number, or `USED`.
    used_ns: AtomicU64,
}

impl Metadata {
    pub fn new(
        name: Arc<str>,
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
            config,
            created_ns: now_ns,
            len: AtomicUsize::new(len),
            capacity: AtomicUsize::new(capacity),
            resizes: AtomicU64::new(0),
            is_fallback: AtomicBool::new(false),
            used_ns: AtomicU64::new(now_ns),
        }
    }

    /// `None` during the creation.
    #[inline]
    pub fn index(&self) -> Option<Index> {
        // SYNC POINT: buffer created. Pairs with set_index.
        let bits = self.index.load(Acquire);
        (bits != 0).then(|| Index::from_bits(bits))
    }

    pub fn set_index(&self, index: Index) {
        // SYNC POINT: buffer created. Pairs with index: a caller that finds the index finds its slot filled.
        self.index.store(index.bits(), Release);
    }

    pub fn origin(&self) -> Origin {
        Origin { name: Some(Arc::clone(&self.name)), caller: self.caller }
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

    pub fn set_fallback(&self, is_fallback: bool) {
        self.is_fallback.store(is_fallback, Relaxed);
    }

    pub fn resized(&self, len: usize, capacity: usize) {
        self.len.store(len, Relaxed);
        self.capacity.store(capacity, Relaxed);
        self.resizes.fetch_add(1, Relaxed);
    }

    /// The next poll dates the use: reading a clock would cost more than the lookup.
    #[inline]
    pub fn touch(&self) {
        // Usually set: then the cache line stays shared.
        if self.used_ns.load(Relaxed) != USED {
            self.used_ns.store(USED, Relaxed);
        }
    }

    pub fn used_at(&self, now_ns: u64) {
        self.used_ns.store(now_ns, Relaxed);
    }

    /// Begins to date a use; the clock is read afterwards.
    pub fn look(&self, look: Look) {
        let at = self.used_ns.load(Relaxed);
        if at >= LOOKS {
            // On failure, another poll dates the use, or it is newer. Acquire: the clock is not read earlier.
            let _ = self.used_ns.compare_exchange(at, look.0, Acquire, Relaxed);
        }
    }

    /// By a clock read after [`look`](Self::look). Never too early; a use since then counts as now.
    pub fn last_used(&self, look: Look, now_ns: u64) -> u64 {
        match self.used_ns.compare_exchange(look.0, now_ns, Relaxed, Relaxed) {
            Err(at) if at < LOOKS => at,
            Ok(_) | Err(_) => now_ns,
        }
    }

    pub fn read(&self, look: Look, now_ns: u64) -> BufferStatistics {
        let idle = now_ns.saturating_sub(self.last_used(look, now_ns));
        // A concurrent resize writes length and capacity in sequence.
        let capacity = self.capacity();
        BufferStatistics {
            name: (&*self.name).into(),
            element: self.element.name(),
            element_bytes: self.element.size() as u64,
            len: self.len().min(capacity) as u64,
            capacity: capacity as u64,
            resizes: self.resizes.load(Relaxed),
            is_fallback: self.is_fallback(),
            age: Duration::from_nanos(now_ns.saturating_sub(self.created_ns)),
            idle: Duration::from_nanos(idle),
        }
    }
}

/// A buffer's figures.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::manager::{BufferConfig, MemoryManager};
/// use ringmem::memory::Device;
///
/// let backend = HostBackend::builder().build()?;
/// let manager = MemoryManager::new(Device::new(&backend, 0));
/// manager.create::<f32>("weights", 100, BufferConfig::new())?;
/// let figures = &manager.statistics().buffers[0];
/// assert_eq!((figures.name.as_ref(), figures.element, figures.used_bytes()), ("weights", "f32", 400));
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[doc(alias = "BufferStats")]
pub struct BufferStatistics {
    /// Name.
    pub name: Box<str>,
    /// Element type's name.
    pub element: &'static str,
    /// Bytes of an element.
    pub element_bytes: u64,
    /// Live elements.
    pub len: u64,
    /// Capacity in elements.
    pub capacity: u64,
    /// Replaced blocks.
    pub resizes: u64,
    /// The block is of the [fallback memory](super::Builder::fallback).
    pub is_fallback: bool,
    /// Time since creation.
    pub age: Duration,
    /// Time since the last use, as a lower bound: a read counts at the next poll or [`tick`](super::MemoryManager::tick).
    pub idle: Duration,
}

impl BufferStatistics {
    /// Returns the live elements' bytes.
    #[must_use]
    pub const fn used_bytes(&self) -> u64 {
        self.len * self.element_bytes
    }

    /// Returns the capacity's bytes.
    #[must_use]
    pub const fn capacity_bytes(&self) -> u64 {
        self.capacity * self.element_bytes
    }

    /// Returns the live share of the capacity: 0 to 1; 1 without capacity.
    #[must_use]
    pub fn utilisation(&self) -> f64 {
        if self.capacity == 0 { 1.0 } else { self.len as f64 / self.capacity as f64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_read_during_a_resize_has_len_within_capacity() {
        let element = Element::of::<u32>();
        let metadata = Metadata::new("a".into(), Location::caller(), element, BufferConfig::default(), 4, 4, 0);
        metadata.set_len(8);
        let figures = metadata.read(Look::next(&AtomicU64::new(0)), 0);
        assert_eq!((figures.len, figures.capacity, figures.utilisation()), (4, 4, 1.0));
    }
}
