//! Memory of exactly one ring: a sanitizer detects an access outside.
#![allow(dead_code, reason = "each program uses a part")]

use std::alloc::{Layout, alloc, dealloc};
use std::ptr::NonNull;

use ringmem_layouts::attach::AttachError;
use ringmem_layouts::ring::RingFlags;
use ringmem_layouts::{HostWord, RingHeader, RingLayout, RingMessage};

pub struct Memory {
    pub base: NonNull<u8>,
    pub layout: RingLayout,
}

impl Memory {
    pub fn used(kind: RingFlags, capacity: u64, byte: u8) -> Self {
        Self::full_of(byte, RingLayout::of_kind::<u64>(kind, capacity).unwrap())
    }
    fn full_of(byte: u8, layout: RingLayout) -> Self {
        // SAFETY: not empty: it has a header.
        let base = NonNull::new(unsafe { alloc(Self::allocation(&layout)) }).expect("some memory");
        // SAFETY: the allocation has as many bytes.
        unsafe { base.write_bytes(byte, Self::allocation(&layout).size()) };
        Self { base, layout }
    }
    pub fn formatted<T: RingMessage>(kind: RingFlags, capacity: u64, start: u64) -> Self {
        Self::formatted_over::<T>(0, RingLayout::of_kind::<T>(kind, capacity).unwrap(), start)
    }
    pub fn formatted_over<T: RingMessage>(byte: u8, layout: RingLayout, start: u64) -> Self {
        let memory = Self::full_of(byte, layout);
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
        // SAFETY: initialised words of its layout.
        unsafe { self.base.cast().as_ref() }
    }
    pub fn words(&self) -> &[HostWord] {
        // SAFETY: `full_of` initialised the whole allocation, which holds these words; they are accessed atomically.
        unsafe { NonNull::slice_from_raw_parts(self.base.cast(), self.len().div_ceil(8) as usize).as_ref() }
    }
    pub fn slot(&self, index: u64) -> &[HostWord] {
        let size = self.layout.slot_size() as usize / 8;
        let first = (index & (self.layout.capacity() - 1)) as usize * size + self.layout.slots_offset() as usize / 8;
        &self.words()[first..][..size]
    }
    pub fn attach<E>(&self, from_raw: unsafe fn(NonNull<u8>, u64) -> Result<E, AttachError>) -> Result<E, AttachError> {
        // SAFETY: initialised; tests write words between an end's operations only.
        unsafe { from_raw(self.base, self.len()) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.base.as_ptr(), Self::allocation(&self.layout)) }
    }
}
