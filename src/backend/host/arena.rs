//! Device memory: a mapping of the capacity, and a window of unmapped addresses.
//!
//! 1. Offset 0 is aligned to [`ALIGN`] in both.
//! 2. Bytes are accessed through raw pointers: a kernel may be writing them.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

use super::mapping::{HostPointer, Mapping};
use crate::backend::counters::Live;
use crate::backend::{DeviceAddress, MemoryInfo};
use crate::first_fit::{FirstFit, Shortage};
use crate::{Error, Result};

/// The content of device memory before its first write and after its free.
pub const POISON: u8 = 0xDB;

pub(super) const ALIGN: u64 = 2 << 20;
pub(super) const MOST: u64 = 1 << 40;

/// Never reused, and separated by gaps. On x86-64, bit 63 without bit 61 makes an address non-canonical; on AArch64, which ignores the top
/// byte, bit 55 makes it a kernel's.
const WINDOWS: u64 = 0xD080_0000_0000_0000;
const WINDOWS_SIZE: u64 = 1 << 55;

pub(super) struct Arena {
    capacity: u64,
    window: u64,
    space: Mutex<Space>,
    /// Bytes of a page of managed memory.
    page: u64,
    /// Device memory is overwritten when allocated and freed.
    pub poisons: bool,
    place: HostPointer,
    /// INVARIANT: contains `capacity` bytes from `place` on.
    _mapping: Mapping,
}

/// INVARIANT: while the lock is free, allocations, mapped bytes and pages together do not exceed the capacity.
struct Space {
    free_list: FirstFit,
    /// Bytes of address ranges that have memory: not in the mapping, but of the capacity.
    mapped: u64,
    pages: Pages,
    peak: u64,
}

impl Space {
    /// Bytes without an allocation, including those of pages.
    fn free(&self) -> u64 {
        self.free_list.free() - self.mapped
    }

    fn shortage(&self, align: u64) -> Shortage {
        let Shortage { largest, .. } = self.free_list.shortage(align);
        Shortage { free: self.free(), largest: largest.min(self.free()) }
    }
}

impl Arena {
    pub fn new(capacity: u64, page: u64, poisons: bool) -> Result<Self> {
        let most = MOST.min((isize::MAX as u64).saturating_sub(ALIGN));
        if capacity == 0 || capacity > most {
            return Err(Error::Size { what: "size in bytes", asked: capacity, least: 1, most });
        }
        let mapping = Mapping::sparse((capacity + ALIGN) as usize)?;
        let base = mapping.place().0;
        let padding = base.align_offset(ALIGN as usize);
        // SAFETY: `padding` is below `ALIGN`; the mapping is longer.
        let place = HostPointer(unsafe { base.add(padding) });
        let space = Mutex::new(Space { free_list: FirstFit::new(capacity), mapped: 0, pages: Pages::default(), peak: 0 });
        Ok(Self { capacity, window: window(capacity)?, space, page, place, poisons, _mapping: mapping })
    }

    pub fn info(&self) -> MemoryInfo {
        MemoryInfo { total: self.capacity, free: self.capacity - self.held(&self.space()) }
    }

    pub fn largest_free(&self, freeable: &[(DeviceAddress, u64)]) -> u64 {
        let ranges = freeable.iter().filter_map(|&(address, bytes)| Some((address.get().checked_sub(self.window)?, bytes)));
        let ranges = ranges.filter(|(offset, _)| *offset < self.capacity);
        let space = self.space();
        // Parts of address ranges, too: their memory is of no place in the arena.
        let free = space.free() + freeable.iter().map(|(_, bytes)| bytes).sum::<u64>();
        space.free_list.longest_with(ranges).min(free)
    }

    pub fn occupied(&self) -> Live {
        let space = self.space();
        Live { bytes: self.held(&space), peak: space.peak }
    }

    pub fn address(&self, offset: u64) -> DeviceAddress {
        DeviceAddress::new(self.window + offset)
    }

    /// # Safety
    ///
    /// At most the capacity.
    pub unsafe fn place(&self, offset: u64) -> HostPointer {
        // SAFETY: the caller promises an offset of at most the capacity; by the invariant of `_mapping` that many bytes are mapped from
        // `place` on.
        HostPointer(unsafe { self.place.0.add(offset as usize) })
    }

    /// `None` if [`take_from_pages`](Self::take_from_pages) must evict pages first.
    pub fn take(&self, bytes: u64, align: u64) -> Result<Option<u64>> {
        if bytes == 0 {
            return Err(Error::Size { what: "size in bytes", asked: 0, least: 1, most: self.capacity });
        }
        if !align.is_power_of_two() || align > ALIGN {
            return Err(Error::Align { asked: align, most: ALIGN });
        }
        let mut space = self.space();
        if space.pages.count() > 0 && bytes > self.capacity - self.held(&space) {
            return Ok(None);
        }
        self.reserve(&mut space, bytes, align, &mut Vec::new()).map(Some)
    }

    pub fn take_from_pages(&self, bytes: u64, align: u64, evicted: &mut Vec<u64>) -> Result<u64> {
        self.reserve(&mut self.space(), bytes, align, evicted)
    }

    fn reserve(&self, space: &mut Space, bytes: u64, align: u64, evicted: &mut Vec<u64>) -> Result<u64> {
        let offset = space.free_list.allocate(bytes, align).map_err(|_| self.short(space, bytes, align))?;
        let mut held = self.held(space);
        if held > self.capacity {
            if !self.make_room(space, evicted) {
                space.free_list.release(offset, bytes);
                return Err(self.short(space, bytes, align));
            }
            held = self.held(space);
        }
        space.peak = space.peak.max(held);
        Ok(offset)
    }

    #[cold]
    fn short(&self, space: &Space, requested: u64, align: u64) -> Error {
        let Shortage { free, largest } = space.shortage(align);
        Error::OutOfMemory { requested, free, largest, limit: None, unavailable: None }
    }

    /// Evicts pages until the capacity suffices. False, without effects, if even all of them would not do.
    #[cold]
    fn make_room(&self, space: &mut Space, evicted: &mut Vec<u64>) -> bool {
        if self.held(space) - space.pages.count() * self.page > self.capacity {
            return false;
        }
        while self.held(space) > self.capacity
            && let Some(page) = space.pages.oldest()
        {
            evicted.push(page);
        }
        true
    }

    /// Takes memory for a part of an address range.
    pub fn take_mapped(&self, bytes: u64, evicted: &mut Vec<u64>) -> Result<()> {
        let mut space = self.space();
        let free = space.free();
        if bytes > free {
            return Err(Error::OutOfMemory { requested: bytes, free, largest: free, limit: None, unavailable: None });
        }
        space.mapped += bytes;
        self.make_room(&mut space, evicted);
        space.peak = space.peak.max(self.held(&space));
        Ok(())
    }

    pub fn give_mapped(&self, bytes: u64) {
        self.space().mapped -= bytes;
    }

    pub fn shortage(&self, requested: u64, align: u64) -> Error {
        self.short(&self.space(), requested, if align.is_power_of_two() { align } else { 1 })
    }

    /// False if the page was resident already, or without room.
    pub fn admit(&self, page: u64, evicted: &mut Vec<u64>) -> bool {
        let mut space = self.space();
        if space.pages.touch(page) {
            return false;
        }
        while self.held(&space) + self.page > self.capacity {
            match space.pages.oldest() {
                Some(oldest) => evicted.push(oldest),
                None => return false,
            }
        }
        space.pages.insert(page);
        space.peak = space.peak.max(self.held(&space));
        true
    }

    pub fn expel(&self, page: u64) -> bool {
        self.space().pages.remove(page)
    }

    /// Bytes that mapped memory can have: pages give way.
    pub fn mappable(&self) -> u64 {
        self.space().free()
    }

    fn held(&self, space: &Space) -> u64 {
        self.capacity - space.free_list.free() + space.mapped + space.pages.count() * self.page
    }

    fn space(&self) -> MutexGuard<'_, Space> {
        self.space.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// # Safety
    ///
    /// [`take`](Self::take) allocated these bytes; they are freed once and unused.
    pub unsafe fn give(&self, offset: u64, bytes: u64) {
        // SAFETY: `take` allocated these bytes, so they are within the capacity; the caller promises that they are unused.
        unsafe { self.poison(offset, bytes) };
        self.space().free_list.release(offset, bytes);
    }

    /// # Safety
    ///
    /// As [`overwrite`](Self::overwrite).
    pub unsafe fn poison(&self, offset: u64, bytes: u64) {
        if self.poisons {
            // SAFETY: the caller promises that the bytes are within the capacity, and exclusive.
            unsafe { self.overwrite(offset, bytes, POISON) };
        }
    }

    /// Outside the lock: this is slow.
    ///
    /// # Safety
    ///
    /// The bytes are within the capacity, and exclusive.
    pub unsafe fn overwrite(&self, offset: u64, bytes: u64, byte: u8) {
        // SAFETY: the caller promises bytes within the capacity, so the offset is too.
        let place = unsafe { self.place(offset) };
        // SAFETY: the caller promises `bytes` exclusive bytes within the capacity, which the mapping contains.
        unsafe { place.0.write_bytes(byte, bytes as usize) };
    }
}

/// The resident pages of managed memory, by their last touch.
///
/// INVARIANT: the maps have the same pages.
#[derive(Default)]
struct Pages {
    touched: HashMap<u64, u64>,
    by_touch: BTreeMap<u64, u64>,
    touches: u64,
}

impl Pages {
    fn count(&self) -> u64 {
        self.touched.len() as u64
    }

    fn touch(&mut self, page: u64) -> bool {
        let is_here = self.remove(page);
        if is_here {
            self.insert(page);
        }
        is_here
    }

    fn insert(&mut self, page: u64) {
        self.touches += 1;
        self.touched.insert(page, self.touches);
        self.by_touch.insert(self.touches, page);
    }

    fn remove(&mut self, page: u64) -> bool {
        let touch = self.touched.remove(&page);
        if let Some(touch) = touch {
            self.by_touch.remove(&touch);
        }
        touch.is_some()
    }

    fn oldest(&mut self) -> Option<u64> {
        let (_, page) = self.by_touch.pop_first()?;
        self.touched.remove(&page);
        Some(page)
    }
}

pub(super) fn window(capacity: u64) -> Result<u64> {
    static TAKEN: AtomicU64 = AtomicU64::new(0);
    let size = capacity.next_multiple_of(ALIGN) + ALIGN;
    let take = |taken: u64| taken.checked_add(size).filter(|&taken| taken <= WINDOWS_SIZE);
    match TAKEN.fetch_update(Relaxed, Relaxed, take) {
        Ok(taken) => Ok(WINDOWS + taken),
        Err(taken) => {
            Err(Error::Size { what: "size in bytes", asked: capacity, least: 1, most: (WINDOWS_SIZE - taken).saturating_sub(ALIGN) })
        }
    }
}
