//! [`Card`]: what is known of a buffer whoever has it.

use core::alloc::Layout;
use core::any::{TypeId, type_name};
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU64, AtomicUsize};
use core::time::Duration;
use std::boxed::Box;

use super::config::BufferConfig;
use crate::memory::layout;
use crate::registry::IdError;
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
        let asked = || Error::Size { asked: (len as u64).saturating_mul(self.size as u64), least: 0, most: isize::MAX as u64 };
        let size = len.checked_mul(self.size).ok_or_else(asked)?;
        Layout::from_size_align(size, self.align).map_err(|_| asked())
    }

    /// Refuses another type.
    #[inline]
    pub fn check<T: DeviceBytes>(&self) -> Result<()> {
        if self.id == TypeId::of::<T>() { Ok(()) } else { Err(IdError::Elements { expected: self.name, got: type_name::<T>() }.into()) }
    }
}

/// Instead of a time: it was used since somebody last looked.
const USED: u64 = u64::MAX;

/// A buffer's name and figures. Whoever has the buffer alone writes them; others read them without waiting, and each for itself.
#[derive(Debug)]
pub(super) struct Card {
    pub name: Box<str>,
    pub element: Element,
    pub config: BufferConfig,
    created_ns: u64,
    len: AtomicUsize,
    capacity: AtomicUsize,
    resizes: AtomicU64,
    used_ns: AtomicU64,
}

impl Card {
    pub fn new(name: &str, element: Element, config: BufferConfig, len: usize, capacity: usize, now_ns: u64) -> Self {
        Self {
            name: name.into(),
            element,
            config,
            created_ns: now_ns,
            len: AtomicUsize::new(len),
            capacity: AtomicUsize::new(capacity),
            resizes: AtomicU64::new(0),
            used_ns: AtomicU64::new(now_ns),
        }
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
        self.used_ns.store(now_ns.min(USED - 1), Relaxed);
    }

    /// When it was last used: never earlier than it was, so that nothing seems idle for longer than it is.
    pub fn last_used(&self, now_ns: u64) -> u64 {
        match self.used_ns.compare_exchange(USED, now_ns.min(USED - 1), Relaxed, Relaxed) {
            Ok(_) => now_ns,
            Err(at) => at,
        }
    }

    pub fn read(&self, now_ns: u64) -> BufferStatistics {
        let idle = now_ns.saturating_sub(self.last_used(now_ns));
        BufferStatistics {
            name: self.name.clone(),
            element: self.element.name,
            element_bytes: self.element.size as u64,
            len: self.len() as u64,
            capacity: self.capacity() as u64,
            resizes: self.resizes.load(Relaxed),
            age: Duration::from_nanos(now_ns.saturating_sub(self.created_ns)),
            idle: Duration::from_nanos(idle),
        }
    }
}

/// A buffer in figures.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
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
