//! What a registry has in a slot: a buffer whose element type is known by number.

use core::any::{TypeId, type_name};
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;

use super::IdError;
use crate::DeviceBytes;
use crate::Result;
use crate::fork::Process;
use crate::memory::{Buffer, Memory};

/// What a registry and its buffers share.
pub(super) struct Books {
    pub number: u64,
    /// The one that it is of.
    pub process: Process,
    /// Of all buffers that have not gone.
    pub bytes: AtomicU64,
}

impl Books {
    pub fn new(number: u64) -> Self {
        Self { number, process: Process::this(), bytes: AtomicU64::new(0) }
    }
}

/// A buffer, and what it was before its element type was forgotten.
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

/// Its bytes count as long as this lives.
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

    /// Refuses another element type than it was registered with.
    pub fn is_of<T: 'static>(&self) -> Result<()> {
        let got = Element::of::<T>();
        if self.element.id == got.id {
            return Ok(());
        }
        Err(IdError::Elements { expected: self.element.name, got: got.name }.into())
    }

    /// The buffer, as it was registered.
    ///
    /// # Safety
    ///
    /// It was registered with elements `T`.
    pub unsafe fn into_buffer<T: DeviceBytes>(self) -> Buffer<T, M> {
        // SAFETY: the caller's promise, and the invariant.
        unsafe { self.buffer.retyped::<T>() }
    }

    /// Whose it is.
    pub fn registry(&self) -> u64 {
        self.counted.books.number
    }

    /// Frees it, and says what the driver said.
    pub fn close(self) -> Result<()> {
        self.buffer.close()
    }
}
