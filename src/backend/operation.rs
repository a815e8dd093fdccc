use core::ptr::NonNull;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use std::boxed::Box;

use ringmem_layouts::image::Entry;

use super::DeviceAddress;
use crate::{Error, Result};

/// Start of a source, target or operand.
#[derive(Clone, Copy, Debug)]
pub enum Place {
    /// In device memory.
    Device(DeviceAddress),
    /// Pinned, managed or pageable.
    Host(NonNull<u8>),
}

// SAFETY: only a number; accessing it is unsafe.
unsafe impl Send for Place {}
// SAFETY: as above.
unsafe impl Sync for Place {}

impl Place {
    pub(crate) fn further(self, bytes: u64) -> Self {
        match self {
            Self::Device(address) => Self::Device(DeviceAddress::new(address.get() + bytes)),
            Self::Host(host) => match NonNull::new(host.as_ptr().wrapping_add(bytes as usize)) {
                Some(further) => Self::Host(further),
                None => self,
            },
        }
    }

    pub(crate) fn address(self) -> u64 {
        match self {
            Self::Device(address) => address.get(),
            Self::Host(host) => host.as_ptr().addr() as u64,
        }
    }
}

/// A copy of `bytes` bytes.
#[derive(Clone, Copy, Debug)]
pub struct Copy {
    /// Target.
    pub to: Place,
    /// Source.
    pub from: Place,
    /// Size in bytes.
    pub bytes: u64,
}

/// A move of managed memory to a device or the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefetch {
    /// Start.
    pub address: DeviceAddress,
    /// Size in bytes.
    pub bytes: u64,
    /// Target device; `None` for the host.
    pub to: Option<u32>,
}

/// The number of a loaded module, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ModuleId(u64);

impl ModuleId {
    /// Returns a number that no module of this process has had.
    #[must_use]
    pub fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Relaxed))
    }
}

/// Memory that a kernel accesses.
#[derive(Clone, Copy, Debug)]
pub struct Operand {
    /// Start.
    pub place: Place,
    /// Size in bytes.
    pub bytes: u64,
    /// The kernel may write to it.
    pub is_written: bool,
}

/// A launch of a kernel.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'a> {
    /// Kernel's module.
    pub module: ModuleId,
    /// Kernel's name in the image.
    pub name: &'a str,
    /// Integers and device addresses.
    pub arguments: &'a [u64],
    /// Number of blocks, at least 1.
    pub groups: u32,
    /// Persistent: resident until the host requests its exit.
    pub stays: bool,
    /// Accessed memory, perhaps incomplete; [tainted](super::Taints) memory is refused. A failed launch taints written ones.
    pub operands: &'a [Operand],
}

pub(crate) fn names(entries: &[Entry]) -> Box<[&'static str]> {
    entries.iter().map(|entry| entry.name).collect()
}

pub(crate) fn entry(entries: &'static [Entry], name: &str, arguments: usize) -> Result<&'static Entry> {
    let Some(entry) = entries.iter().find(|entry| entry.name == name) else {
        return Err(Error::NotFound { what: "kernel", name: name.into(), known: names(entries) });
    };
    if entry.arguments != arguments {
        return Err(Error::Arguments { name: entry.name, expected: entry.arguments, got: arguments });
    }
    Ok(entry)
}
