//! [`Block`]: an allocation; [`Span`]: a range of one, or of adjacent mappings.

use std::alloc::{Layout, alloc, dealloc};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, fence};
use std::sync::{Arc, Mutex};

#[cfg(target_os = "linux")]
use crate::backing;
use crate::code::{Answer, Code};
use crate::managed::Managed;
use crate::ordered::Ordered;
use crate::stream::Point;
use crate::virtual_memory::{Mapped, Use};

/// The byte of unwritten and freed memory.
pub const POISON: u8 = 0xDB;

pub const ALIGN: u64 = 4096;
const ALIGN_SMALL: u64 = 512;
/// Smaller host-visible memory is not page-aligned: drivers may sub-allocate it.
const CUT: u64 = 64 << 10;

const WRITE_COMBINED: u32 = 4;

pub const MOST: u64 = 4 << 30;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Device,
    Ordered,
    Mapped,
    Managed,
    Pinned,
    Registered,
    Global,
    Pageable,
}

/// INVARIANT: `len` bytes at `place` are valid for reads and writes while this lives: its own if `owned`, its reservation's if `mapped`, else the
/// caller's by its promise over the ABI. Others access them concurrently, so only through raw pointers and atomics.
pub struct Block {
    place: NonNull<u8>,
    pub len: u64,
    pub kind: Kind,
    pub device: u32,
    pub flags: u32,
    owned: Option<Own>,
    pub ordered: Option<Ordered>,
    pub managed: Option<Managed>,
    pub mapped: Option<Mapped>,
    pub uses: Mutex<Vec<Point>>,
}

// SAFETY: an address and how to free it; every access has its own proof.
unsafe impl Send for Block {}
// SAFETY: an address and how to free it; every access has its own proof.
unsafe impl Sync for Block {}

impl Block {
    pub fn new(kind: Kind, device: u32, len: u64) -> Answer<Self> {
        let bytes = usize::try_from(len).ok().filter(|&bytes| bytes > 0).ok_or(Code::INVALID_VALUE)?;
        if len > MOST {
            return Err(Code::OUT_OF_MEMORY);
        }
        let is_seen = matches!(kind, Kind::Pinned | Kind::Managed);
        let before = if is_seen && len < CUT { ALIGN_SMALL as usize } else { 0 };
        let align = if len < ALIGN && !is_seen { ALIGN_SMALL } else { ALIGN };
        let layout = Layout::from_size_align(bytes + before, align as usize).map_err(|_| Code::OUT_OF_MEMORY)?;
        let own = Own::new(layout, is_seen).ok_or(Code::OUT_OF_MEMORY)?;
        // SAFETY: `layout` has `before` bytes and then `bytes`.
        let place = unsafe { own.base.add(before) };
        let mut block = Self::borrowed(kind, device, place, len);
        block.owned = Some(own);
        if block.has_heap() {
            block.poison();
        }
        Ok(block)
    }

    pub const fn borrowed(kind: Kind, device: u32, place: NonNull<u8>, len: u64) -> Self {
        Self { place, len, kind, device, flags: 0, owned: None, ordered: None, managed: None, mapped: None, uses: Mutex::new(Vec::new()) }
    }

    pub const fn place(&self) -> NonNull<u8> {
        self.place
    }

    pub const fn is_write_combined(&self) -> bool {
        matches!(self.kind, Kind::Pinned) && self.flags & WRITE_COMBINED != 0
    }

    pub const fn is_host(&self) -> bool {
        matches!(self.kind, Kind::Pinned | Kind::Registered | Kind::Pageable)
    }

    /// Pages of its own hold [`POISON`] when they are mapped, and are gone when it is freed.
    fn has_heap(&self) -> bool {
        self.owned.as_ref().is_some_and(|own| !own.is_mapped)
    }

    fn poison(&self) {
        // SAFETY: `len` bytes at `place` are valid for writes, by the invariant; no other code has the block before it is given out or in
        // its drop.
        unsafe { self.place.write_bytes(POISON, self.len as usize) };
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if let Some(own) = &self.owned {
            if self.has_heap() {
                self.poison();
            }
            // SAFETY: of this block, which ends; nothing accesses its memory any more.
            unsafe { own.release() };
        }
    }
}

/// INVARIANT: allocated by `new`, and released once.
struct Own {
    base: NonNull<u8>,
    layout: Layout,
    /// Pages of its own, which a forked child does not have: as memory of a driver.
    is_mapped: bool,
}

impl Own {
    /// `layout` is not of size zero, and at most aligned to a page.
    #[cfg(target_os = "linux")]
    fn new(layout: Layout, is_seen: bool) -> Option<Self> {
        if !is_seen {
            return Self::on_the_heap(layout);
        }
        Some(Self { base: backing::poisoned(layout.size())?, layout, is_mapped: true })
    }

    #[cfg(not(target_os = "linux"))]
    fn new(layout: Layout, _: bool) -> Option<Self> {
        Self::on_the_heap(layout)
    }

    fn on_the_heap(layout: Layout) -> Option<Self> {
        // SAFETY: not of size zero.
        let base = NonNull::new(unsafe { alloc(layout) })?;
        Some(Self { base, layout, is_mapped: false })
    }

    /// # Safety
    ///
    /// Once; nothing accesses the memory any more.
    unsafe fn release(&self) {
        #[cfg(target_os = "linux")]
        if self.is_mapped {
            // SAFETY: mapped with this size, by the invariant; the caller promises that nothing accesses it.
            return unsafe { backing::unmap(self.base, self.layout.size()) };
        }
        // SAFETY: allocated with this layout, by the invariant; the caller promises that nothing accesses it.
        unsafe { dealloc(self.base.as_ptr(), self.layout) };
    }
}

/// INVARIANT: `offset` is at most the first block's length, and `offset + len` at most the length of all blocks. Each block of `rest` is a mapping, and
/// begins on the host where the block before it ends.
#[derive(Clone)]
pub struct Span {
    pub block: Arc<Block>,
    rest: Vec<Arc<Block>>,
    offset: u64,
    pub len: u64,
}

impl Span {
    pub fn new(block: &Arc<Block>, offset: u64, len: u64) -> Option<Self> {
        (offset.checked_add(len)? <= block.len).then(|| Self { block: Arc::clone(block), rest: Vec::new(), offset, len })
    }

    /// Returns a range that begins in the first of these mappings, each of which begins at the address where the one before it ends.
    pub fn across(mut mappings: Vec<Arc<Block>>, offset: u64, len: u64) -> Option<Self> {
        let end = offset.checked_add(len)?;
        let is_within = offset <= mappings.first()?.len && end <= mappings.iter().map(|block| block.len).sum();
        is_within.then(|| Self { block: mappings.remove(0), rest: mappings, offset, len })
    }

    pub fn blocks(&self) -> impl Iterator<Item = &Arc<Block>> {
        std::iter::once(&self.block).chain(&self.rest)
    }

    /// Only mapped memory refuses an access by the device that asks for it: how others share memory is a matter of peers and pools.
    pub fn lets(&self, device: u32, access: Use) -> bool {
        self.blocks().all(|block| block.mapped.as_ref().is_none_or(|mapped| mapped.lets(device, access)))
    }

    pub fn place(&self) -> NonNull<u8> {
        // SAFETY: within the first block or its end, by the invariant.
        unsafe { self.block.place.add(self.offset as usize) }
    }

    pub const fn offset(&self) -> u64 {
        self.offset
    }

    pub fn staged(&self) -> Answer<Self> {
        let block = Arc::new(Block::new(Kind::Pageable, self.block.device, self.len.max(1))?);
        let staged = Self { block, rest: Vec::new(), offset: 0, len: self.len };
        staged.copy_from(self);
        Ok(staged)
    }

    pub fn overlaps(&self, other: &Self) -> bool {
        let (mine, theirs) = (self.place().addr().get(), other.place().addr().get());
        mine < theirs + other.len as usize && theirs < mine + self.len as usize
    }

    pub fn copy_from(&self, source: &Self) {
        let (to, from) = (self.place().as_ptr(), source.place().as_ptr());
        let len = self.len.min(source.len) as usize;
        let alike = (to.addr() ^ from.addr()) & 7 == 0;
        let head = if alike { to.align_offset(8).min(len) } else { len };
        // SAFETY: within both spans; atomics.
        let byte = |i| unsafe { AtomicU8::from_ptr(to.add(i)).store(AtomicU8::from_ptr(from.add(i)).load(Relaxed), Relaxed) };
        // SAFETY: within both spans and aligned after `head` bytes; atomics.
        let word =
            |i| unsafe { AtomicU64::from_ptr(to.add(i).cast()).store(AtomicU64::from_ptr(from.add(i).cast()).load(Relaxed), Relaxed) };
        each_aligned(head, len, byte, word);
    }

    pub fn fill(&self, value: u8) {
        let (to, len) = (self.place().as_ptr(), self.len as usize);
        let head = to.align_offset(8).min(len);
        // SAFETY: within the span; atomics.
        let byte = |i| unsafe { AtomicU8::from_ptr(to.add(i)).store(value, Relaxed) };
        // SAFETY: within the span and aligned after `head` bytes; atomics.
        let word = |i| unsafe { AtomicU64::from_ptr(to.add(i).cast()).store(u64::from_ne_bytes([value; 8]), Relaxed) };
        each_aligned(head, len, byte, word);
    }

    pub fn fill_words(&self, value: u32) {
        let (to, len) = (self.place().as_ptr(), self.len as usize);
        debug_assert!(len.is_multiple_of(4) && to.align_offset(4) == 0);
        fence(SeqCst);
        // SAFETY: within the span, and aligned: `cuMemsetD32Async` checked it; a block's place and address have the same alignment.
        each(0..len, 4, |i| unsafe { AtomicU32::from_ptr(to.add(i).cast()).store(value, Relaxed) });
        fence(SeqCst);
    }

    pub fn write(&self, value: u64, ordered: bool) {
        debug_assert!(self.len == 8 && self.place().align_offset(8) == 0);
        if ordered {
            fence(SeqCst);
        }
        // SAFETY: eight aligned bytes: `cuStreamWriteValue64_v2` checked it; a block's place and address have the same alignment.
        unsafe { AtomicU64::from_ptr(self.place().as_ptr().cast()).store(value, Relaxed) };
    }

    pub fn read(&self) -> u64 {
        debug_assert!(self.len == 8 && self.place().align_offset(8) == 0);
        // SAFETY: eight aligned bytes, by `cuStreamWaitValue64_v2`.
        unsafe { AtomicU64::from_ptr(self.place().as_ptr().cast()).load(SeqCst) }
    }
}

/// Accesses `head` bytes, then words, then the last bytes.
fn each_aligned(head: usize, len: usize, byte: impl Fn(usize), word: impl Fn(usize)) {
    let tail = len - (len - head) % 8;
    fence(SeqCst);
    each(0..head, 1, &byte);
    each(head..tail, 8, word);
    each(tail..len, 1, byte);
    fence(SeqCst);
}

/// An iterator over megabytes would take seconds without optimisation.
fn each(offsets: Range<usize>, step: usize, access: impl Fn(usize)) {
    let mut offset = offsets.start;
    while offset < offsets.end {
        access(offset);
        offset += step;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_moves_exactly_its_bytes_at_every_alignment() {
        for (to, from, len) in [(0, 0, 64), (3, 3, 61), (3, 3, 2), (1, 2, 50), (7, 7, 1), (0, 5, 0), (5, 5, 11)] {
            let [source, target] = [(); 2].map(|()| Arc::new(Block::new(Kind::Device, 0, 128).ok().unwrap()));
            for i in 0..128 {
                Span::new(&source, i, 1).unwrap().fill(i as u8);
            }
            Span::new(&target, to, len).unwrap().copy_from(&Span::new(&source, from, len).unwrap());
            // SAFETY: 128 bytes that no code writes now.
            let bytes = unsafe { std::slice::from_raw_parts(target.place().as_ptr(), 128) };
            for (i, &byte) in (0..).zip(bytes) {
                let expected = if (to..to + len).contains(&i) { (from + i - to) as u8 } else { POISON };
                assert_eq!(byte, expected, "{len} bytes from {from} to {to}, at {i}");
            }
        }
    }
}
