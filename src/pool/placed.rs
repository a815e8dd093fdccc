//! [`Placed`]: elements in a memory that was chosen at run time.

use std::vec::Vec;

use super::{PinnedPool, Pool};
use crate::backend::{DeviceAddress, MemoryLocation};
use crate::memory::{Buffer, Device, Host, Unified};
use crate::{DeviceBytes, Result};

/// A buffer where a configuration or a rule has put it. What any of them can do is here; what may be done with one is found by matching.
#[derive(Debug)]
#[non_exhaustive]
pub enum Placed<T> {
    /// In a device's memory.
    Device(Buffer<T, Pool<Device>>),
    /// In page-locked memory.
    Pinned(Buffer<T, PinnedPool>),
    /// In managed memory.
    Unified(Buffer<T, Pool<Unified>>),
    /// In pageable host memory, which no pool keeps.
    Host(Buffer<T, Host>),
}

macro_rules! each {
    ($placed:expr, $buffer:ident => $result:expr) => {
        match $placed {
            Placed::Device($buffer) => $result,
            Placed::Pinned($buffer) => $result,
            Placed::Unified($buffer) => $result,
            Placed::Host($buffer) => $result,
        }
    };
}

impl<T> Placed<T> {
    /// Where it is.
    #[must_use]
    pub const fn location(&self) -> MemoryLocation {
        match self {
            Self::Device(_) => MemoryLocation::Device,
            Self::Pinned(_) => MemoryLocation::Pinned,
            Self::Unified(_) => MemoryLocation::Unified,
            Self::Host(_) => MemoryLocation::Host,
        }
    }

    /// How many elements.
    #[must_use]
    pub fn len(&self) -> usize {
        each!(self, buffer => buffer.len())
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where it begins for kernels; `None` for pageable memory, and without bytes.
    #[must_use]
    pub fn device_address(&self) -> Option<DeviceAddress> {
        match self {
            Self::Device(buffer) => buffer.device_address(),
            Self::Pinned(buffer) => buffer.device_address(),
            Self::Unified(buffer) => buffer.device_address(),
            Self::Host(_) => None,
        }
    }
}

impl<T: DeviceBytes> Placed<T> {
    /// Copies elements in, as many as there are.
    ///
    /// # Errors
    ///
    /// As [`Buffer::copy_from`].
    pub fn copy_from(&mut self, elements: &[T]) -> Result<()> {
        each!(self, buffer => buffer.copy_from(elements))
    }

    /// The elements, copied.
    ///
    /// # Errors
    ///
    /// As [`Buffer::copy_to`].
    pub fn to_vec(&self) -> Result<Vec<T>> {
        each!(self, buffer => buffer.to_vec())
    }
}
