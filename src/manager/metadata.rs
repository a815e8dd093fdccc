//! [`Metadata`]: what is known of a buffer whoever has it.

use core::alloc::Layout;
use core::any::{TypeId, type_name};
use core::panic::Location;
use core::sync::atomic::Ordering::{Acquire, Relaxed};
use core::sync::atomic::{AtomicU64, AtomicUsize};
use core::time::Duration;
use std::boxed::Box;
use std::sync::Arc;

use super::config::BufferConfig;
use crate::error::IdError;
use crate::memory::{Origin, layout};
use crate::{DeviceBytes, Error, Result};

/// What a buffer's elements are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Element {
    id: TypeId,
    pub name: &'static str,
    // INVARIANT: at least 1.
    pub size: usize,
    /// That of their memory: what a fill takes as well.
    pub align: usize,
}

impl Element {
    pub fn of<T: DeviceBytes>() -> Result<Self> {
        const { assert!(size_of::<T>() > 0, "elements of a managed buffer have bytes") };
        Ok(Self { id: TypeId::of::<T>(), name: type_name::<T>(), size: size_of::<T>(), align: layout::<T>(1)?.align() })
    }

    /// So many.
    pub fn layout(&self, len: usize) -> Result<Layout> {
        let asked = || Error::Size {
            what: "size in bytes",
            asked: (len as u64).saturating_mul(self.size as u64),
            least: 0,
            most: isize::MAX as u64,
        };
        let size = len.checked_mul(self.size).ok_or_else(asked)?;
        Layout::from_size_align(size, self.align).map_err(|_| asked())
    }

    /// Refuses another type.
    #[inline]
    pub fn check<T: DeviceBytes>(&self) -> Result<()> {
        if self.id == TypeId::of::<T>() { Ok(()) } else { Err(IdError::Elements { expected: self.name, got: type_name::<T>() }.into()) }
    }
}

/// Times are lower. From here on: the looks that are to date a use, each by its number.
const LOOKS: u64 = 1 << 63;
/// The latest time: 292 years.
pub(super) const LATEST: u64 = LOOKS - 1;
/// Instead of a time: it was used since somebody last looked.
const USED: u64 = u64::MAX;

/// Somebody who dates uses. No two looks of a manager are the same.
#[derive(Clone, Copy)]
pub(super) struct Look(u64);

impl Look {
    pub fn next(looks: &AtomicU64) -> Self {
        // 2^63 are too many for any program.
        Self(LOOKS | looks.fetch_add(1, Relaxed))
    }
}

/// A buffer's name and figures. Whoever has the buffer alone writes them; others read them without waiting, and each for itself.
#[derive(Debug)]
pub(super) struct Metadata {
    pub name: Arc<str>,
    /// The line that created it.
    caller: &'static Location<'static>,
    pub element: Element,
    pub config: BufferConfig,
    created_ns: u64,
    len: AtomicUsize,
    capacity: AtomicUsize,
    resizes: AtomicU64,
    /// A time, a look's number or `USED`.
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
            caller,
            element,
            config,
            created_ns: now_ns,
            len: AtomicUsize::new(len),
            capacity: AtomicUsize::new(capacity),
            resizes: AtomicU64::new(0),
            used_ns: AtomicU64::new(now_ns),
        }
    }

    /// Returns the origin of its blocks.
    pub fn origin(&self) -> Origin {
        Origin { name: Some(Arc::clone(&self.name)), caller: self.caller }
    }

    /// Elements that are live.
    #[inline]
    pub fn len(&self) -> usize {
        self.len.load(Relaxed)
    }

    /// Elements that there is room for.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.capacity.load(Relaxed)
    }

    pub fn set_len(&self, len: usize) {
        self.len.store(len, Relaxed);
    }

    pub fn resized(&self, len: usize, capacity: usize) {
        self.len.store(len, Relaxed);
        self.capacity.store(capacity, Relaxed);
        self.resizes.fetch_add(1, Relaxed);
    }

    /// It is being used. When that was is for the next look to say: a clock would cost more than the lookup.
    #[inline]
    pub fn touch(&self) {
        // Most of the time it says so already, and the line stays shared.
        if self.used_ns.load(Relaxed) != USED {
            self.used_ns.store(USED, Relaxed);
        }
    }

    /// It was used until now.
    pub fn used_at(&self, now_ns: u64) {
        self.used_ns.store(now_ns, Relaxed);
    }

    /// Begins to date a use that has no date, also where an earlier look has not come to an end. The clock is read after this.
    pub fn look(&self, look: Look) {
        let at = self.used_ns.load(Relaxed);
        if at >= LOOKS {
            // Refused, it is another look's, or used just now: then it has no date yet. Acquire, so that the clock is not read before.
            let _ = self.used_ns.compare_exchange(at, look.0, Acquire, Relaxed);
        }
    }

    /// When it was last used, by a clock that was read after [`look`](Self::look): never earlier than it was, so that nothing seems idle for longer than
    /// it is. What was used since has no date yet, and counts as used now.
    pub fn last_used(&self, look: Look, now_ns: u64) -> u64 {
        match self.used_ns.compare_exchange(look.0, now_ns, Relaxed, Relaxed) {
            Err(at) if at < LOOKS => at,
            Ok(_) | Err(_) => now_ns,
        }
    }

    /// The figures, as [`last_used`](Self::last_used).
    pub fn read(&self, look: Look, now_ns: u64) -> BufferStatistics {
        let idle = now_ns.saturating_sub(self.last_used(look, now_ns));
        // A concurrent resize writes the two one after the other.
        let capacity = self.capacity();
        BufferStatistics {
            name: (&*self.name).into(),
            element: self.element.name,
            element_bytes: self.element.size as u64,
            len: self.len().min(capacity) as u64,
            capacity: capacity as u64,
            resizes: self.resizes.load(Relaxed),
            age: Duration::from_nanos(now_ns.saturating_sub(self.created_ns)),
            idle: Duration::from_nanos(idle),
        }
    }
}

/// A buffer in figures.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[doc(alias = "BufferStats")]
pub struct BufferStatistics {
    /// Its name.
    pub name: Box<str>,
    /// Its elements' type.
    pub element: &'static str,
    /// Bytes of an element.
    pub element_bytes: u64,
    /// Elements that are live.
    pub len: u64,
    /// Elements that there is room for.
    pub capacity: u64,
    /// How often it got another block: grew or shrank.
    pub resizes: u64,
    /// How long ago it was created.
    pub age: Duration,
    /// How long it has not been used, at least. Reads are dated by the next look at the figures or [`tick`](super::MemoryManager::tick), everything
    /// else by the clock when it ended.
    pub idle: Duration,
}

impl BufferStatistics {
    /// Bytes of the live elements.
    #[must_use]
    pub const fn used_bytes(&self) -> u64 {
        self.len * self.element_bytes
    }

    /// Bytes that it holds.
    #[must_use]
    pub const fn capacity_bytes(&self) -> u64 {
        self.capacity * self.element_bytes
    }

    /// The part of its elements that is live, from 0 to 1; 1 for a buffer without room.
    #[must_use]
    pub fn utilisation(&self) -> f64 {
        if self.capacity == 0 { 1.0 } else { self.len as f64 / self.capacity as f64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_read_during_a_resize_have_no_more_live_elements_than_capacity() {
        let element = Element::of::<u32>().expect("a layout");
        let metadata = Metadata::new("a".into(), Location::caller(), element, BufferConfig::default(), 4, 4, 0);
        // The first store of a resize to 8 elements.
        metadata.set_len(8);
        let figures = metadata.read(Look::next(&AtomicU64::new(0)), 0);
        assert_eq!((figures.len, figures.capacity, figures.utilisation()), (4, 4, 1.0));
    }
}
