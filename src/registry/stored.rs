//! [`Stored`]: a registered buffer with its erased element type.

use core::any::{TypeId, type_name};
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;

use super::IdError;
use crate::DeviceBytes;
use crate::Result;
use crate::fork::Process;
use crate::memory::{Buffer, Memory};

/// State shared by a registry and its buffers.
pub(super) struct Books {
    pub number: u64,
    /// The process that created the registry.
    pub process: Process,
    /// The bytes of all buffers that are not freed.
    pub bytes: AtomicU64,
}

impl Books {
    pub fn new(number: u64) -> Self {
        Self { number, process: Process::this(), bytes: AtomicU64::new(0) }
    }
}

/// A buffer and its original element type.
pub(super) struct Stored<M: Memory> {
    /// INVARIANT: a whole number of `element`s, aligned for them.
    pub buffer: Buffer<u8, M>,
    element: Element,
    counted: Counted,
}

#[derive(Clone, Copy)]
struct Element {
    id: TypeId,
    name: &'static str,
}

impl Element {
    fn of<T: 'static>() -> Self {
        Self { id: TypeId::of::<T>(), name: type_name::<T>() }
    }
}

/// Counts the buffer's bytes until it is dropped.
struct Counted {
    books: Arc<Books>,
    bytes: u64,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.books.bytes.fetch_sub(self.bytes, Relaxed);
    }
}

impl<M: Memory> Stored<M> {
    pub fn new<T: DeviceBytes>(buffer: Buffer<T, M>, books: &Arc<Books>) -> Self {
        const { assert!(size_of::<T>() > 0, "a registry takes elements that have bytes") };
        let bytes = buffer.size_bytes() as u64;
        books.bytes.fetch_add(bytes, Relaxed);
        // SAFETY: any bytes are a whole number of bytes.
        let buffer = unsafe { buffer.retyped::<u8>() };
        Self { buffer, element: Element::of::<T>(), counted: Counted { books: Arc::clone(books), bytes } }
    }

    /// Rejects an element type other than the registered one.
    pub fn is_of<T: 'static>(&self) -> Result<()> {
        let got = Element::of::<T>();
        if self.element.id == got.id {
            return Ok(());
        }
        Err(IdError::Elements { expected: self.element.name, got: got.name }.into())
    }

    /// Returns the buffer with its element type.
    ///
    /// # Safety
    ///
    /// It was registered with elements `T`.
    pub unsafe fn into_buffer<T: DeviceBytes>(self) -> Buffer<T, M> {
        // SAFETY: the caller's promise, and the invariant.
        unsafe { self.buffer.retyped::<T>() }
    }

    /// Returns the number of its registry.
    pub fn registry(&self) -> u64 {
        self.counted.books.number
    }

    /// Frees the buffer; returns the driver's error.
    pub fn close(self) -> Result<()> {
        self.buffer.close()
    }
}
