#![allow(dead_code, reason = "each test uses a part")]

use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};

use ringmem_layouts::image::KernelHost;

pub struct Memory {
    words: Box<[AtomicU64]>,
}

impl Memory {
    pub fn zeroed(words: usize) -> Self {
        Self::filled(words, 0)
    }

    pub fn filled(words: usize, value: u64) -> Self {
        Self { words: (0..words + 16).map(|_| AtomicU64::new(value)).collect() }
    }

    pub fn address(&self) -> u64 {
        (self.words.as_ptr().expose_provenance() as u64).next_multiple_of(128)
    }

    fn place(&self, at: usize) -> &AtomicU64 {
        let first = (self.address() - self.words.as_ptr().addr() as u64) / 8;
        &self.words[first as usize + at]
    }

    pub fn word(&self, at: usize) -> u64 {
        self.place(at).load(Acquire)
    }

    pub fn set(&self, at: usize, value: u64) {
        self.place(at).store(value, Release);
    }
}

impl KernelHost for Memory {
    fn translate(&self, address: u64, bytes: u64) -> Option<NonNull<u8>> {
        let base = self.words.as_ptr().addr() as u64;
        let offset = address.checked_sub(base)?;
        (offset.checked_add(bytes)? <= self.words.len() as u64 * 8).then_some(())?;
        NonNull::new(std::ptr::with_exposed_provenance_mut(usize::try_from(address).ok()?))
    }
    fn now_ns(&self) -> u64 {
        0
    }
    fn pause(&self, _: u32) {
        std::thread::yield_now();
    }
}

pub struct Block<'a> {
    pub memory: &'a Memory,
    pub group: u64,
    pub groups: u64,
}

impl KernelHost for Block<'_> {
    fn translate(&self, address: u64, bytes: u64) -> Option<NonNull<u8>> {
        self.memory.translate(address, bytes)
    }
    fn now_ns(&self) -> u64 {
        0
    }
    fn group(&self) -> u64 {
        self.group
    }
    fn groups(&self) -> u64 {
        self.groups
    }
    fn pause(&self, _: u32) {
        std::thread::yield_now();
    }
}
