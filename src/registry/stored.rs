use core::alloc::Layout;
use core::any::{TypeId, type_name};
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;

use super::IdError;
use super::lease::Leased;
use crate::backend::Block;
use crate::memory::{Buffer, Memory, align};
use crate::{DeviceBytes, Error, Result};

/// The type of a buffer's elements, in a word: each buffer of a registry or manager has one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Element(&'static Facts);

#[derive(Debug)]
struct Facts {
    id: TypeId,
    name: fn() -> &'static str,
    // INVARIANT: at least 1.
    size: usize,
    /// Their memory's alignment, which suffices for fills too.
    align: usize,
}

impl Element {
    pub fn of<T: DeviceBytes>() -> Self {
        const { assert!(size_of::<T>() > 0, "a registry takes elements that have bytes") };
        Self(const { &Facts { id: TypeId::of::<T>(), name: type_name::<T>, size: size_of::<T>(), align: align::<T>() } })
    }

    #[inline]
    pub fn name(self) -> &'static str {
        (self.0.name)()
    }

    #[inline]
    pub fn size(self) -> usize {
        self.0.size
    }

    pub fn layout(&self, len: usize) -> Result<Layout> {
        let size = len.checked_mul(self.size()).and_then(|size| Layout::from_size_align(size, self.0.align).ok());
        let asked = (len as u64).saturating_mul(self.size() as u64);
        size.ok_or(Error::Size { what: "size in bytes", asked, least: 0, most: isize::MAX as u64 })
    }

    #[inline]
    pub fn check<T: 'static>(&self) -> Result<()> {
        if self.0.id == TypeId::of::<T>() { Ok(()) } else { Err(IdError::Elements { expected: self.name(), got: type_name::<T>() }.into()) }
    }
}

pub struct Stored<M: Memory> {
    pub(super) buffer: Buffer<u8, M>,
    pub(super) element: Element,
    _counted: Counted,
}

/// Bytes of a registry's statistics, until its drop.
pub(super) struct Counted {
    total: Arc<AtomicU64>,
    bytes: u64,
}

impl Counted {
    pub fn new(total: &Arc<AtomicU64>, bytes: u64) -> Self {
        total.fetch_add(bytes, Relaxed);
        Self { total: Arc::clone(total), bytes }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.total.fetch_sub(self.bytes, Relaxed);
    }
}

impl<M: Memory> Stored<M> {
    pub(super) fn new<T: DeviceBytes>(buffer: Buffer<T, M>, total: &Arc<AtomicU64>) -> Self {
        let (element, counted) = (Element::of::<T>(), Counted::new(total, buffer.size_bytes() as u64));
        // SAFETY: any bytes are whole bytes.
        let buffer = unsafe { buffer.retyped::<u8>() };
        Self { buffer, element, _counted: counted }
    }

    /// # Safety
    ///
    /// It was registered with elements `T`.
    pub(super) unsafe fn into_buffer<T: DeviceBytes>(self) -> Buffer<T, M> {
        // SAFETY: the caller's promise.
        unsafe { self.buffer.retyped::<T>() }
    }
}

impl<M: Memory> Leased for Stored<M> {
    type Memory = M;

    #[inline]
    fn buffer(&self) -> &Buffer<u8, M> {
        &self.buffer
    }
    fn buffer_mut(&mut self) -> &mut Buffer<u8, M> {
        &mut self.buffer
    }
    #[inline]
    fn len<T>(&self) -> usize {
        self.buffer.len() / size_of::<T>()
    }
    unsafe fn put_in(&mut self, block: Block) -> Block {
        // SAFETY: the caller's promise.
        unsafe { self.buffer.put_in(block) }
    }
}
