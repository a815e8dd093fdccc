use core::ptr::NonNull;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use std::boxed::Box;

use ringmem_layouts::image::Entry;

use super::DeviceAddress;
use crate::{Error, Result};

/// Start of a source, target or operand.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::backend::{Address, Backend};
/// use ringmem::memory::{Pinned, PinnedBuffer};
///
/// let backend = HostBackend::builder().build()?;
/// let word = PinnedBuffer::<u64>::new(Pinned::new(&backend, 0), 1)?;
/// let address = Address::Host(word.as_ptr().expect("it has bytes").cast());
/// // SAFETY: a word of the buffer, which nothing else accesses.
/// unsafe { backend.publish_now(address, 7) }?;
/// assert_eq!(word.as_slice()?, [7]);
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub enum Address {
    /// In device memory.
    Device(DeviceAddress),
    /// Pinned, managed or pageable.
    Host(NonNull<u8>),
}

// SAFETY: only a number; accessing it is unsafe.
unsafe impl Send for Address {}
// SAFETY: only a number; accessing it is unsafe.
unsafe impl Sync for Address {}

impl Address {
    pub(crate) fn further(self, bytes: u64) -> Self {
        match self {
            Self::Device(address) => Self::Device(DeviceAddress::new(address.get() + bytes)),
            Self::Host(host) => match NonNull::new(host.as_ptr().wrapping_add(bytes as usize)) {
                Some(further) => Self::Host(further),
                None => self,
            },
        }
    }

    pub(crate) fn get(self) -> u64 {
        match self {
            Self::Device(address) => address.get(),
            Self::Host(host) => host.as_ptr().addr() as u64,
        }
    }
}

/// A copy of `bytes` bytes.
///
/// ```
/// use std::ptr::NonNull;
///
/// use ringmem::backend::host::HostBackend;
/// use ringmem::backend::{Address, Backend, Copy};
/// use ringmem::memory::{Device, GpuBuffer};
///
/// let backend = HostBackend::builder().build()?;
/// let (device, mut host) = (GpuBuffer::<u8>::from_slice(Device::new(&backend, 0), &[1, 2, 3])?, [0_u8; 3]);
/// let (to, from) = (Address::Host(NonNull::from(&mut host).cast()), Address::Device(device.device_address().expect("it has bytes")));
/// // SAFETY: both have three bytes, which nothing else accesses.
/// unsafe { backend.copy_now(&Copy { to, from, bytes: 3 }) }?;
/// assert_eq!(host, [1, 2, 3]);
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Copy {
    /// Target.
    pub to: Address,
    /// Source.
    pub from: Address,
    /// Size in bytes.
    pub bytes: u64,
}

/// A move of managed memory to a device or the host.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::backend::{Backend, Prefetch};
/// use ringmem::memory::{Unified, UnifiedBuffer};
/// use ringmem::stream::Stream;
///
/// let backend = HostBackend::builder().build()?;
/// let (stream, buffer) = (Stream::new(&backend, 0)?, UnifiedBuffer::<u8>::new(Unified::new(&backend, 0), 5000)?);
/// let address = buffer.device_address().expect("it has bytes");
/// backend.prefetch(&Prefetch { address, bytes: 5000, to: Some(0) }, stream.id())?;
/// stream.synchronize()?;
/// assert_eq!(backend.counters().prefetches.bytes, 5000);
/// # Ok::<(), ringmem::Error>(())
/// ```
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
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::backend::{Backend, ModuleId};
///
/// let backend = HostBackend::builder().build()?;
/// let module: ModuleId = backend.load(&ringmem_kernels::IMAGE, &ringmem_kernels::ABI)?;
/// assert_ne!(module, ModuleId::next());
/// backend.unload(module);
/// # Ok::<(), ringmem::Error>(())
/// ```
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
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::backend::{Address, Operand};
/// use ringmem::memory::{Device, GpuBuffer};
///
/// /// A buffer that a kernel reads.
/// fn input<T>(buffer: &GpuBuffer<T>) -> Option<Operand> {
///     let address = Address::Device(buffer.device_address()?);
///     Some(Operand { address, bytes: buffer.size_bytes() as u64, is_written: false })
/// }
///
/// let backend = HostBackend::builder().build()?;
/// assert_eq!(input(&GpuBuffer::<f32>::new(Device::new(&backend, 0), 100)?).map(|operand| operand.bytes), Some(400));
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Operand {
    /// Start.
    pub address: Address,
    /// Size in bytes.
    pub bytes: u64,
    /// The kernel may write to it.
    pub is_written: bool,
}

/// A launch of a kernel.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::backend::{Backend, Launch};
/// use ringmem::memory::{Device, GpuBuffer};
/// use ringmem::stream::Stream;
///
/// let backend = HostBackend::builder().build()?;
/// let (stream, module) = (Stream::new(&backend, 0)?, backend.load(&ringmem_kernels::IMAGE, &ringmem_kernels::ABI)?);
/// let bytes = GpuBuffer::<u8>::from_slice(Device::new(&backend, 0), &[1, 2, 3])?;
/// let arguments = &[bytes.device_address().expect("it has bytes").get(), 3];
/// let launch = Launch { module, name: "increment", arguments, groups: 1, warps: 1, stays: false, operands: &[], elements: None };
/// // SAFETY: `increment` uses the three bytes of the buffer, which outlives the launch.
/// let ticket = unsafe { backend.launch(&launch, stream.id()) }?;
/// backend.wait(ticket, None)?;
/// assert_eq!(bytes.to_vec()?, [2, 3, 4]);
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Launch<'a> {
    /// Kernel's module.
    pub module: ModuleId,
    /// Kernel's name in the image.
    pub name: &'a str,
    /// Integers and device addresses.
    pub arguments: &'a [u64],
    /// Number of groups (blocks), at least 1.
    pub groups: u32,
    /// Number of warps of each group, from 1 to [`MOST_WARPS`](Self::MOST_WARPS). More than one only for a kernel that takes them: a `block fn` of `kernels!`.
    pub warps: u32,
    /// Persistent: resident until the host requests its exit.
    pub stays: bool,
    /// Accessed memory, perhaps incomplete; [tainted](super::Taints) memory is refused. A failed launch taints written ones.
    pub operands: &'a [Operand],
    /// Calls the kernel for elements: blocks and threads follow from their number, and `groups` and `warps` are not used.
    pub elements: Option<Elements<'a>>,
}

impl Launch<'_> {
    /// The most warps of a group, on every device.
    pub const MOST_WARPS: u32 = 32;

    pub(crate) fn check_warps(&self) -> Result<()> {
        if !(1..=Self::MOST_WARPS).contains(&self.warps) {
            return Err(Error::Size { what: "warps of a group", asked: self.warps.into(), least: 1, most: Self::MOST_WARPS.into() });
        }
        Ok(())
    }
}

/// The elements of a launch over buffers. See [`grid`](crate::grid).
#[derive(Clone, Copy, Debug)]
pub struct Elements<'a> {
    /// Number of elements.
    pub count: u64,
    /// Threads of a block, a multiple of 32 from 64 to 1024; 0 for as many as give the highest occupancy.
    pub threads: u32,
    /// Number of blocks; 0 for as many as run at once, if there are enough elements.
    pub blocks: u32,
    /// Words of each parameter of the kernel; their sum is the number of `arguments`.
    pub words: &'a [u8],
}

impl Elements<'_> {
    /// Threads of a block at least: more than a warp, by which the device code tells these kernels from others.
    pub(crate) const LEAST_THREADS: u32 = 64;
    /// Threads of a block at most, on every device.
    pub(crate) const MOST_THREADS: u32 = 1024;

    pub(crate) fn check(&self) -> Result<()> {
        let Self { threads, .. } = *self;
        if threads > 0 && !((Self::LEAST_THREADS..=Self::MOST_THREADS).contains(&threads) && threads.is_multiple_of(32)) {
            let [asked, least, most] = [threads, Self::LEAST_THREADS, Self::MOST_THREADS].map(u64::from);
            return Err(Error::Size { what: "threads of a block, in multiples of 32", asked, least, most });
        }
        Ok(())
    }
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
