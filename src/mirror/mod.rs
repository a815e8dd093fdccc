//! [`MirroredBuffer`]: a host copy and a device copy of the same elements, copied only when the side that is used is stale.
//!
//! 1. A read returns the last write, whichever side made it and whichever side reads.
//! 2. Nothing is allocated before it is used, and nothing copied that is valid or about to be overwritten.
//! 3. An error leaves [`state`](MirroredBuffer::state) as it was, and memory that was allocated for the call is given back.
//! 4. Both sides' writes are never merged and never dropped in silence: [`DirtyConflict`](crate::error::MirrorFault::DirtyConflict), until the caller says with
//!    [`discard_host`](MirroredBuffer::discard_host) or [`discard_device`](MirroredBuffer::discard_device) which is to go.
//! 5. What is queued uses memory that the mirror owns and that is freed after its uses. A mirror that is dropped or forgotten with work queued hurts
//!    nobody, and the host has no slice of what a queued operation uses.
//! 6. Every transfer waits for what is queued on its copies, on whatever stream that is.
//! 7. Where host and device share one memory and the host's is one that devices see, one buffer serves both sides and nothing is copied. The states
//!    are the same.
//!
//! All methods take the mirror mutably, so there is nothing that runs beside them: threads share one in a [`Mutex`](std::sync::Mutex), and whoever owns one
//! alone pays for no lock.
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
//! "up" is a copy to the device, "down" one to the host; an empty cell changes nothing. `device_write_only` is `device_mut` without the copy.
//!
//! Read, modify, write: the host writes, a kernel changes that, the host reads.
//!
//! ```
//! # fn main() -> ringmem::Result<()> {
//! use ringmem::backend::host::HostBackend;
//! use ringmem::image::{Entry, KernelHost};
//! use ringmem::memory::{Device, Pinned};
//! use ringmem::mirror::{Access, MirroredBuffer, State};
//! use ringmem::stream::{Module, Stream};
//! use ringmem::{Abi, Image, LAYOUTS};
//!
//! /// Adds one to the first byte.
//! unsafe fn add_one(host: &dyn KernelHost, arguments: &[u64]) {
//!     let Some(place) = host.translate(arguments[0], 1) else { return };
//!     // SAFETY: the launch below is the only one that uses the byte.
//!     unsafe { place.write(place.read() + 1) };
//! }
//!
//! let kernels = &[Entry { name: "add_one", arguments: 1, run: add_one }];
//! let backend = HostBackend::builder().build()?;
//! let module = Module::load(&backend, &Image { ptx: b"", host: kernels, abi: Abi::of(LAYOUTS) }, &Abi::of(LAYOUTS))?;
//! let stream = Stream::new(&backend, 0)?;
//!
//! let mut mirror = MirroredBuffer::<u8, _, _>::new(Pinned::new(&backend, 0), Device::new(&backend, 0), 4)?;
//! mirror.copy_from(&[41, 1, 2, 3])?;
//! let address = mirror.device_on(Access::Update, &stream)?.expect("it has bytes"); // queues the copy up
//! // SAFETY: one byte of the mirror's, which lists the launch at once.
//! let launched = unsafe { stream.launch(&module, "add_one", &[address.get()]) }?;
//! mirror.used_by(&stream)?;
//! assert_eq!(mirror.state(), State::DeviceDirty);
//! assert_eq!(mirror.to_vec()?, [42, 1, 2, 3]); // waits for the kernel, copies down
//! launched.wait()?;
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

use crate::backend::same_backend;
use crate::memory::{Both, Buffer, Device, DeviceReadable, HostReadable, Memory, Origin, Pinned};
use crate::{DeviceBytes, Error, Result};

pub use state::{Access, Side, State};
pub use transfer::{Statistics, Transfers};

use copy::HostCopy;
use queue::Flights;

/// `len` elements on the host and on a device, kept in step.
///
/// `H` is memory that the host sees, pinned or pageable; `D` is memory that devices see: a device's, or a pool of it.
///
/// PyDotCompute calls this type `UnifiedBuffer`. [`memory::UnifiedBuffer`](crate::memory::UnifiedBuffer) is something else: managed memory, with one
/// address and no second copy.
pub struct MirroredBuffer<T, H: Memory = Pinned, D: Memory = Device> {
    host_memory: H,
    device_memory: D,
    /// The line that created it.
    origin: Origin,
    len: usize,
    state: State,
    // INVARIANT: each copy that is there has `len` elements. Where the two sides share memory there is none of the device's.
    host: HostCopy<T, H>,
    device: Option<Buffer<T, D>>,
    /// One buffer serves both sides: the host's.
    is_shared: bool,
    /// The stale side is not what was last written there: a copy over it failed half way, or nobody has written it yet.
    is_torn: bool,
    /// Transfers that were queued and not yet asked for.
    flights: Flights,
    statistics: Statistics,
}

impl<T, H, D> MirroredBuffer<T, H, D>
where
    T: DeviceBytes,
    H: Memory<Visibility: HostReadable> + Clone,
    D: Memory<Visibility: DeviceReadable> + Clone,
{
    /// A mirror of `len` elements. Nothing is allocated: each side's memory is when that side is first used.
    ///
    /// # Errors
    ///
    /// [`Size`](Error::Size) for more bytes than an address can span, [`OtherBackend`](Error::OtherBackend) for memories of two,
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
    /// Which copies are valid. What is queued counts as done.
    #[must_use]
    pub const fn state(&self) -> State {
        self.state
    }

    /// Elements.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of one copy.
    #[must_use]
    pub const fn size_bytes(&self) -> usize {
        // Cannot overflow: it was a layout.
        self.len * size_of::<T>()
    }

    /// Whether the host's copy is there and its pages are really locked into memory.
    ///
    /// [`Options::MUST_PIN`](crate::backend::Options::MUST_PIN) on the host's memory makes anything else an error.
    #[must_use]
    pub fn is_pinned(&self) -> bool {
        self.host.get().is_some_and(Buffer::is_pinned)
    }

    /// Whether one buffer serves both sides, and nothing is ever copied.
    #[must_use]
    pub const fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// What was copied between the two sides so far.
    #[must_use]
    pub const fn statistics(&self) -> Statistics {
        self.statistics
    }

    /// Where the host's copy comes from.
    #[must_use]
    pub const fn host_memory(&self) -> &H {
        &self.host_memory
    }

    /// Where the device's copy comes from.
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
