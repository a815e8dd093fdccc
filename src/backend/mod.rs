//! Backends: who gives memory, moves bytes and runs kernels.
//!
//! 1. Device memory has addresses, not references: the host never reads it, it downloads it.
//! 2. What an asynchronous operation needs is passed by value and comes back when the operation is done, so nothing that a caller
//!    forgets or drops can be freed under it.
//! 3. Bad input is an error before anything is queued.
//!
//! There is one so far: [`host`], whose device is simulated. With the feature `cuda`, `cuda` asks for a driver.

use core::fmt;

#[cfg(feature = "cuda")]
pub mod cuda;
pub mod host;

/// A place in a device's memory. The host cannot follow it: it is a number, not a pointer, and not convertible to one.
///
/// ```compile_fail
/// fn read(address: ringmem::backend::DeviceAddress) -> u8 {
///     *address
/// }
/// ```
/// ```compile_fail
/// fn pointer(address: ringmem::backend::DeviceAddress) -> *const u8 {
///     address as *const u8
/// }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct DeviceAddress(u64);

impl DeviceAddress {
    pub(crate) const fn new(address: u64) -> Self {
        Self(address)
    }

    /// The number, as kernels take it.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The address `bytes` further on; `None` past the end of the numbers. Whether anything is there is not checked.
    #[must_use]
    pub const fn offset(self, bytes: u64) -> Option<Self> {
        match self.0.checked_add(bytes) {
            Some(address) => Some(Self(address)),
            None => None,
        }
    }
}

impl fmt::Debug for DeviceAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceAddress({:#018x})", self.0)
    }
}

/// A device's memory, in bytes. What is used is the difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// All of it.
    pub total: u64,
    /// What no allocation holds; not necessarily in one piece.
    pub free: u64,
}
