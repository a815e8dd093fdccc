//! A kernel image as a value: the same functions as PTX for a device and as host code for a host backend.

use core::ptr::NonNull;

use crate::{LayoutDescriptor, set_hash};

/// The layouts that one side was compiled with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abi {
    /// In any order.
    pub layouts: &'static [LayoutDescriptor],
    /// [`set_hash`] of them.
    pub hash: u64,
}

impl Abi {
    /// The ABI of a set of layouts.
    #[must_use]
    pub const fn of(layouts: &'static [LayoutDescriptor]) -> Self {
        Self { layouts, hash: set_hash(layouts) }
    }
}

/// What a backend loads.
#[derive(Clone, Copy, Debug)]
pub struct Image {
    /// PTX text. It carries its ABI hash in the symbol `RINGMEM_ABI`.
    pub ptx: &'static [u8],
    /// The same kernels for a host backend.
    pub host: &'static [Entry],
    /// What both were compiled with.
    pub abi: Abi,
}

/// A kernel that runs on a host thread.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// As in the PTX.
    pub name: &'static str,
    /// How many arguments it takes, each a 64-bit integer or device address.
    pub arguments: usize,
    /// The kernel; returns when it has left.
    ///
    /// # Safety
    ///
    /// The caller passes `arguments` arguments, and what they name is live and shared by the kernel's protocol until the call returns.
    pub run: unsafe fn(&dyn KernelHost, &[u64]),
}

/// What a kernel on a host thread asks of the backend that runs it.
pub trait KernelHost: Sync {
    /// The place of `bytes` bytes at a device address; `None` where they are not mapped.
    fn translate(&self, address: u64, bytes: u64) -> Option<NonNull<u8>>;
    /// A clock that never goes back, nanoseconds.
    fn now_ns(&self) -> u64;
    /// Which group of a launch of several this is: the block.
    fn group(&self) -> u64 {
        0
    }
    /// How many groups the launch has.
    fn groups(&self) -> u64 {
        1
    }
    /// Called in every wait, with how often in a row.
    fn pause(&self, times: u32);
}
