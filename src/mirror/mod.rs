//! [`MirroredBuffer`]: a host copy and a device copy of the same elements, updated at use.
//!
//! It is for data that both sides change in turn. Use [`double_buffer`](crate::double_buffer) for frames,
//! [`UnifiedBuffer`](crate::memory::UnifiedBuffer) for managed memory.
//!
//! 1. A read returns the last write of either side.
//! 2. Memory is allocated at first use. A side that is valid or about to be overwritten is not updated.
//! 3. A failed call leaves [`state`](MirroredBuffer::state) unchanged and frees what it allocated.
//! 4. Writes of both sides are never merged or silently lost: calls return [`DirtyConflict`](crate::error::MirrorFault::DirtyConflict)
//!    until [`discard_host`](MirroredBuffer::discard_host) or [`discard_device`](MirroredBuffer::discard_device).
//! 5. A mirror dropped with work queued is freed after its uses, a forgotten one never. The host has no slice of memory that queued work
//!    uses.
//! 6. Transfers are ordered after all queued work on both copies, on any stream.
//! 7. If the device shares mapped host memory, one buffer serves both sides, without copies. Its writes cannot be discarded: the call is an
//!    error, and a call of [`synchronize`](MirroredBuffer::synchronize) ends a conflict.
//!
//! All methods take `&mut self`: share a mirror in a [`Mutex`](std::sync::Mutex).
//!
//! | state | `host` | `host_mut` | `device` | `device_mut` | `copy_from`, `fill` |
//! |---|---|---|---|---|---|
//! | `Uninitialized` | `HostOnly`, zeroed | `HostDirty`, zeroed | `Synchronized`, zeroed | `DeviceOnly`, zeroed | `HostDirty` |
//! | `HostOnly` | | `HostDirty` | `Synchronized`, up | `DeviceDirty`, up | `HostDirty` |
//! | `DeviceOnly` | `Synchronized`, down | `HostDirty`, down | | `DeviceDirty` | `HostDirty` |
//! | `Synchronized` | | `HostDirty` | | `DeviceDirty` | `HostDirty` |
//! | `HostDirty` | | | `Synchronized`, up | `DeviceDirty`, up | |
//! | `DeviceDirty` | `Synchronized`, down | `HostDirty`, down | | | `HostDirty` |
//!
//! "up" copies to the device, "down" to the host; an empty cell changes nothing. `device_write_only` is `device_mut` without the copy.
//!
//! ```
//! use ringmem::backend::host::HostBackend;
//! use ringmem::memory::{Device, Pinned};
//! use ringmem::mirror::{MirroredBuffer, State};
//! use ringmem::stream::Stream;
//! use ringmem_kernels::kernels;
//!
//! kernels! {
//!     grid fn scale(data: &mut f32, factor: f32) {
//!         *data *= factor;
//!     }
//! }
//!
//! # fn main() -> ringmem::Result<()> {
//! let backend = HostBackend::builder().build()?;
//! let stream = Stream::new(&backend, 0)?;
//! let mut mirror = MirroredBuffer::<f32, _, _>::new(Pinned::new(&backend, 0), Device::new(&backend, 0), 4)?;
//! mirror.copy_from(&[1.0, 2.0, 3.0, 4.0])?;
//! stream.run(SCALE, (mirror.device_mut()?, 1.5))?; // copies up
//! assert_eq!(mirror.state(), State::DeviceDirty);
//! assert_eq!(mirror.to_vec()?, [1.5, 3.0, 4.5, 6.0]); // copies down
//! assert_eq!((mirror.statistics().to_device.count, mirror.statistics().to_host.count), (1, 1));
//! # Ok(())
//! # }
//! ```

mod copy;
mod device;
mod host;
mod queue;
mod state;
mod sync;
mod transfer;

use core::alloc::Layout;
use core::any::TypeId;
use core::fmt;

use crate::backend::{Block, Uses, same_backend};
use crate::memory::{Both, Buffer, Device, DeviceReadable, HostReadable, Memory, Origin, Pinned};
use crate::{DeviceBytes, Error, Result};

pub use state::{Access, Side, State};
pub use transfer::{Statistics, Transfers};

use copy::HostCopy;
use queue::Flights;

/// `len` elements with a copy on the host and one on a device.
///
/// `H` is pinned or pageable memory; `D` is device memory or a pool.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::memory::{Device, Pinned};
/// use ringmem::mirror::MirroredBuffer;
///
/// let backend = HostBackend::builder().build()?;
/// let mut mirror = MirroredBuffer::<u32, _, _>::new(Pinned::new(&backend, 0), Device::new(&backend, 0), 4)?;
/// mirror.host_mut()?.copy_from_slice(&[1, 2, 3, 4]);
/// mirror.device_mut()?.slice(..2)?.fill(7)?; // copies to the device first
/// assert_eq!(mirror.host()?, [7, 7, 3, 4]); // copies to the host
/// # Ok::<(), ringmem::Error>(())
/// ```
pub struct MirroredBuffer<T, H: Memory = Pinned, D: Memory = Device> {
    host_memory: H,
    device_memory: D,
    origin: Origin,
    len: usize,
    state: State,
    // INVARIANT: each existing copy has `len` elements. If the sides share memory, the device has none.
    host: HostCopy<T, H>,
    device: Option<Buffer<T, D>>,
    is_shared: bool,
    /// The stale side lacks its last contents: a copy over it failed, or nothing was written.
    is_torn: bool,
    flights: Flights,
    statistics: Statistics,
}

impl<T, H, D> MirroredBuffer<T, H, D>
where
    T: DeviceBytes,
    H: Memory<Visibility: HostReadable> + Clone,
    D: Memory<Visibility: DeviceReadable> + Clone,
{
    /// Creates a mirror without allocating.
    ///
    /// # Errors
    ///
    /// [`Size`](Error::Size) beyond the address space, [`OtherBackend`](Error::OtherBackend) for two backends,
    /// [`NoDevice`](Error::NoDevice).
    #[track_caller]
    pub fn new(host: H, device: D, len: usize) -> Result<Self> {
        if Layout::array::<T>(len).is_err() {
            let asked = (len as u64).saturating_mul(size_of::<T>() as u64);
            return Err(Error::Size { what: "size in bytes", asked, least: 0, most: isize::MAX as u64 });
        }
        same_backend(&**device.backend(), &**host.backend())?;
        let is_seen_by_both = TypeId::of::<H::Visibility>() == TypeId::of::<Both>();
        let is_shared = is_seen_by_both && device.backend().capabilities(device.device())?.shared_memory;
        Ok(Self {
            host_memory: host,
            device_memory: device,
            origin: Origin::here(),
            len,
            state: State::Uninitialized,
            host: HostCopy::none(),
            device: None,
            is_shared,
            is_torn: false,
            flights: Flights::default(),
            statistics: Statistics::default(),
        })
    }
}

impl<T, H: Memory, D: Memory> MirroredBuffer<T, H, D> {
    /// Returns which copies are valid, with queued transfers as complete.
    #[must_use]
    pub const fn state(&self) -> State {
        self.state
    }

    /// Returns the number of elements.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns true if empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the bytes of one copy.
    #[must_use]
    pub const fn size_bytes(&self) -> usize {
        self.len * size_of::<T>()
    }

    /// Returns whether the host's copy exists and is page-locked. [`Options::MUST_PIN`](crate::backend::Options::MUST_PIN) makes failed pinning
    /// an error.
    #[must_use]
    pub fn is_pinned(&self) -> bool {
        self.host.get().is_some_and(Buffer::is_pinned)
    }

    /// Returns whether one buffer serves both sides.
    #[must_use]
    pub const fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// Returns the transfers so far.
    #[must_use]
    pub const fn statistics(&self) -> Statistics {
        self.statistics
    }

    /// Returns the device's copy, or the one of both sides, and its uses.
    pub(crate) fn main_copy(&self) -> Option<(Block, Uses)> {
        match self.host.get().filter(|_| self.is_shared) {
            Some(shared) => Some((shared.block(), *shared.uses())),
            None => self.device.as_ref().map(|device| (device.block(), *device.uses())),
        }
    }

    /// Returns the host copy's memory.
    #[must_use]
    pub const fn host_memory(&self) -> &H {
        &self.host_memory
    }

    /// Returns the device copy's memory.
    #[must_use]
    pub const fn device_memory(&self) -> &D {
        &self.device_memory
    }
}

impl<T, H: Memory, D: Memory> fmt::Debug for MirroredBuffer<T, H, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MirroredBuffer")
            .field("state", &self.state)
            .field("len", &self.len)
            .field("host", &self.host.get())
            .field("device", &self.device)
            .field("is_shared", &self.is_shared)
            .finish_non_exhaustive()
    }
}
