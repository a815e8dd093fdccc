//! Memory of exactly one ring, accessed through pointers.

use std::alloc::{Layout, alloc, dealloc};
use std::ptr::NonNull;

use ringmem_layouts::ring::RingFlags;
use ringmem_layouts::{HostWord, RingHeader, RingLayout, RingMessage};

pub struct Memory {
    pub base: NonNull<u8>,
    pub layout: RingLayout,
}

impl Memory {
    #[allow(dead_code, reason = "for those who format it themselves")]
    pub fn used(kind: RingFlags, capacity: u64, byte: u8) -> Self {
        Self::full_of(byte, RingLayout::of_kind::<u64>(kind, capacity).unwrap())
    }
    fn full_of(byte: u8, layout: RingLayout) -> Self {
        // SAFETY: not empty: there is a header.
        let base = NonNull::new(unsafe { alloc(Self::allocation(&layout)) }).expect("some memory");
        // SAFETY: that many bytes live there.
        unsafe { base.write_bytes(byte, Self::allocation(&layout).size()) };
        Self { base, layout }
    }
    pub fn formatted<T: RingMessage>(kind: RingFlags, capacity: u64, start: u64) -> Self {
        let memory = Self::full_of(0, RingLayout::of_kind::<T>(kind, capacity).unwrap());
        // SAFETY: nothing is attached yet.
        unsafe { memory.header().format::<T>(&memory.layout, start) };
        memory
    }
    pub fn len(&self) -> u64 {
        self.layout.size()
    }
    fn allocation(layout: &RingLayout) -> Layout {
        Layout::from_size_align(layout.size().next_multiple_of(8) as usize, layout.align() as usize).unwrap()
    }
    pub fn header(&self) -> &RingHeader<HostWord> {
        // SAFETY: aligned and long enough by its layout, initialised, atomic words.
        unsafe { self.base.cast().as_ref() }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.base.as_ptr(), Self::allocation(&self.layout)) }
    }
}
