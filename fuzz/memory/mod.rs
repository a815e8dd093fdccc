use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::fmt::Debug;
use std::ptr::NonNull;

use arbitrary::Arbitrary;
use ringmem_layouts::attach::AttachError;
use ringmem_layouts::{HostWord, RingHeader, RingLayout, RingMessage, Word};

#[derive(Arbitrary, Clone, Copy, Debug)]
pub enum Message {
    Byte,
    Word,
    Odd,
    Words,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
pub enum Start {
    Near(u8),
    NearTheEnd(u8),
    Any(u64),
}

impl Start {
    pub fn index(self) -> u64 {
        match self {
            Self::Near(steps) => steps.into(),
            Self::NearTheEnd(steps) => u64::MAX - u64::from(steps),
            Self::Any(start) => start,
        }
    }
}

#[derive(Arbitrary, Clone, Copy, Debug)]
pub enum Number {
    Near(i8),
    Any(u64),
}

pub trait Numbered: RingMessage + PartialEq + Debug {
    fn numbered(number: u64) -> Self;
}

impl Numbered for u8 {
    fn numbered(number: u64) -> Self {
        number as u8
    }
}

impl Numbered for u64 {
    fn numbered(number: u64) -> Self {
        number
    }
}

impl Numbered for [u8; 5] {
    fn numbered(number: u64) -> Self {
        let byte = number as u8;
        [byte, !byte, byte ^ 0x55, byte.wrapping_mul(3), byte.rotate_left(1)]
    }
}

impl Numbered for [u64; 9] {
    fn numbered(number: u64) -> Self {
        std::array::from_fn(|place| number << 8 | place as u64)
    }
}

pub struct Memory {
    base: NonNull<u8>,
    allocation: Layout,
}

impl Memory {
    pub fn formatted<T: RingMessage>(layout: &RingLayout, start: u64, before: u8) -> Self {
        let allocation = Layout::from_size_align(layout.size() as usize, layout.align() as usize).unwrap();
        // SAFETY: not empty: there is a header.
        let base = NonNull::new(unsafe { alloc_zeroed(allocation) }).expect("some memory");
        // SAFETY: that many bytes live there.
        unsafe { base.write_bytes(before, allocation.size()) };
        let memory = Self { base, allocation };
        // SAFETY: nothing is attached yet.
        unsafe { memory.header().format::<T>(layout, start) };
        memory
    }
    pub fn header(&self) -> &RingHeader<HostWord> {
        // SAFETY: aligned and long enough by its layout, initialised, atomic words.
        unsafe { self.base.cast().as_ref() }
    }
    pub fn words(&self) -> &[HostWord] {
        // SAFETY: header and slots are words.
        unsafe { NonNull::slice_from_raw_parts(self.base.cast(), self.allocation.size() / 8).as_ref() }
    }
    pub fn attach<E>(&self, end: unsafe fn(NonNull<u8>, u64) -> Result<E, AttachError>) -> Result<E, AttachError> {
        // SAFETY: that many initialised bytes live there; one thread, which writes words.
        unsafe { end(self.base, self.allocation.size() as u64) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.base.as_ptr(), self.allocation) }
    }
}

pub fn store(word: &HostWord, number: Number) {
    let value = match number {
        Number::Near(step) => Word::load(word).wrapping_add_signed(step.into()),
        Number::Any(value) => value,
    };
    Word::store(word, value);
}
