//! [`Element`]: the type of the elements of a buffer that a manager stores as bytes.

use core::alloc::Layout;
use core::any::{TypeId, type_name};

use crate::error::IdError;
use crate::memory::align;
use crate::{DeviceBytes, Error, Result};

/// In a word, since each buffer has one: a reference to the facts, which are constants of the type.
#[derive(Clone, Copy, Debug)]
pub(super) struct Element(&'static Facts);

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
        const { assert!(size_of::<T>() > 0, "a manager takes elements that have bytes") };
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
