//! Memory for kernels: one buffer type over any [`Memory`].
//!
//! 1. [`Buffer<T, M>`](Buffer) owns elements. `M::Visibility` decides at compile time which methods it has.
//! 2. An operation that outlives its call takes buffers by value and returns them ([`Stream`]). An operation that borrows them is complete when it
//!    returns.
//! 3. A dropped buffer is freed after the operations queued on it, a forgotten one never. Both are sound.
//! 4. Mismatches are errors before any backend call.
//! 5. Elements are [`DeviceBytes`](crate::DeviceBytes): any bytes are valid, and none are pointers.
//! 6. A buffer without bytes is valid and calls no backend.
//!
//! The adaptors [`Limited`], [`Logged`], [`Failing`], [`Statistics`], [`Aligned`], [`Tracked`], [`Prefetching`], [`Arena`] and
//! [`Pool`](crate::pool::Pool) compose in any order. If the memory below fails to free a block, they still count it as freed. `Arc<dyn
//! Memory<Visibility = V>>` is a memory chosen at run time; with `&'static M`, buffers hold no reference count.

macro_rules! of_upstream {
    ($($field:ident).+) => {
        fn backend(&self) -> &std::sync::Arc<dyn crate::backend::Backend> {
            self.$($field).+.backend()
        }

        fn device(&self) -> u32 {
            self.$($field).+.device()
        }

        fn min_align(&self) -> usize {
            self.$($field).+.min_align()
        }
    };
}
pub(crate) use of_upstream;

mod aligned;
mod arena;
mod bounds;
mod budget;
mod buffer;
mod compact;
mod contents;
mod failing;
mod kinds;
mod limited;
mod listed;
mod logged;
mod map;
mod origin;
mod pages;
mod prefetching;
mod slice;
mod statistics;
mod trace;
mod tracked;
mod view;
mod visibility;

use core::alloc::Layout;
use std::boxed::Box;
use std::sync::Arc;

use crate::Result;
use crate::backend::{AddressRange, Backend, Block, Uses};
use crate::stream::Stream;

pub use aligned::Aligned;
pub use arena::Arena;
pub(crate) use bounds::{end, on_the_host, range, same_len};
pub use budget::{Budget, Reservation};
pub use buffer::Buffer;
pub(crate) use buffer::{align, layout};
pub use failing::{Failing, When};
pub use kinds::{Device, Host, Pinned, Unified};
pub use limited::Limited;
pub(crate) use logged::now_ns;
pub use logged::{Call, Logged};
pub(crate) use origin::Origin;
pub(crate) use pages::{Page, Pages};
pub use prefetching::Prefetching;
pub use slice::{Slice, SliceMut};
pub use statistics::{Figures, Scope, Statistics};
pub use trace::{Event, Outcome, Trace, TraceError};
pub use tracked::{AtExit, Leak, Named, Report, Tracked};
pub(crate) use view::View;
pub use visibility::{AtRunTime, Both, DeviceOnly, DeviceReadable, HostOnly, HostReadable, Visibility};

/// Elements in device memory.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::memory::{Device, GpuBuffer};
///
/// struct Field {
///     positions: GpuBuffer<[f32; 3]>,
/// }
///
/// # fn main() -> ringmem::Result<()> {
/// let backend = HostBackend::builder().build()?; // or any other
/// let mut field = Field { positions: GpuBuffer::new(Device::new(&backend, 0), 1000)? };
/// field.positions.fill([1.0, 2.0, 3.0])?;
/// # Ok(())
/// # }
/// ```
#[doc(alias("CudaSlice", "DeviceBuffer", "device_uvector"))]
pub type GpuBuffer<T> = Buffer<T, Device>;
/// Elements in page-locked host memory.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::memory::{Pinned, PinnedBuffer};
///
/// let backend = HostBackend::builder().build()?;
/// let mut buffer = PinnedBuffer::<u32>::from_slice(Pinned::new(&backend, 0), &[3, 1, 2])?;
/// buffer.as_mut_slice()?.sort(); // in place
/// assert_eq!(buffer.as_slice()?, [1, 2, 3]);
/// # Ok::<(), ringmem::Error>(())
/// ```
#[doc(alias("LockedBuffer", "PinnedHostSlice"))]
pub type PinnedBuffer<T> = Buffer<T, Pinned>;
/// Elements in managed memory: one address for host and devices.
///
/// PyDotCompute's `UnifiedBuffer` is a [`MirroredBuffer`](crate::mirror::MirroredBuffer) here.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::memory::{Unified, UnifiedBuffer};
///
/// fn mean(values: &UnifiedBuffer<f32>) -> ringmem::Result<f32> {
///     Ok(values.as_slice()?.iter().sum::<f32>() / values.len() as f32)
/// }
///
/// let backend = HostBackend::builder().build()?;
/// let values = UnifiedBuffer::from_slice(Unified::new(&backend, 0), &[1.0, 2.0, 6.0])?;
/// assert_eq!(mean(&values)?, 3.0); // without a copy
/// # Ok::<(), ringmem::Error>(())
/// ```
#[doc(alias = "UnifiedSlice")]
pub type UnifiedBuffer<T> = Buffer<T, Unified>;

/// An allocator.
///
/// # Safety
///
/// Its blocks are of [`backend`](Self::backend), have the requested size and alignment, and overlap no other live block. They have a host address and
/// are initialised if `Visibility` is [`HostReadable`]; they have a device address if it is [`DeviceReadable`]; with [`AtRunTime`], as the block's
/// location says. They have no other address.
///
/// ```
/// use std::sync::Arc;
///
/// use ringmem::backend::host::HostBackend;
/// use ringmem::memory::{Buffer, Device, DeviceOnly, Limited, Memory};
///
/// let backend = HostBackend::builder().build()?;
/// // Chosen at run time; the visibility stays part of the type.
/// let memory: Arc<dyn Memory<Visibility = DeviceOnly>> = Arc::new(Limited::new(Device::new(&backend, 0), 1 << 20));
/// assert_eq!(Buffer::<u64, _>::new(memory, 100)?.size_bytes(), 800);
/// # Ok::<(), ringmem::Error>(())
/// ```
#[doc(alias = "GpuAllocator")]
pub unsafe trait Memory: Send + Sync + 'static {
    /// The sides that can access the bytes.
    type Visibility: Visibility;

    /// Allocates at least one byte. With a stream, the block may be used there at once, elsewhere after [`Block::ready`].
    ///
    /// Every implementation is `#[track_caller]`: an adaptor forwards the caller's location to its upstream memory, if called outside closures.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`](crate::Error::OutOfMemory), or the backend's or an adaptor's error.
    #[track_caller]
    fn alloc(&self, layout: Layout, on: Option<&Stream>) -> Result<Block>;

    /// Frees a block after its listed uses.
    ///
    /// # Errors
    ///
    /// The driver's error; the block is freed anyway.
    ///
    /// # Safety
    ///
    /// The block is of this memory and freed once; only the operations in `uses` still use it.
    unsafe fn free(&self, block: &Block, uses: &Uses) -> Result<()>;

    /// Returns the backend of its blocks.
    fn backend(&self) -> &Arc<dyn Backend>;

    /// Returns the device that owns the memory or is near it.
    fn device(&self) -> u32;

    /// Returns the minimum alignment of every block in bytes, a power of two.
    ///
    /// Adaptors must forward it: [`Arena`] and [`Pool`](crate::pool::Pool) rely on it for an upstream [`Aligned`].
    fn min_align(&self) -> usize {
        1
    }

    /// Returns the [granularity](crate::backend::Capabilities::mapping_granularity) of [mapped](Self::map) blocks, if these may stand for this memory's own:
    /// a [`Pool`](crate::pool::Pool) over it maps blocks into an address range of [`device`](Self::device), and [frees](Self::free) them here.
    ///
    /// `None`, the default, for a memory whose blocks are not plain device memory, or that does not see mapped blocks and must.
    fn mapping_granularity(&self) -> Option<u64> {
        None
    }

    /// Returns a number of bytes above which [`map`](Self::map) cannot serve, if it is known. A pool asks before it maps many blocks for one request: each
    /// would have to be given back if the last is refused.
    fn mappable(&self) -> Option<u64> {
        None
    }

    /// Allocates a block at an offset of an address range of [`device`](Self::device), if there is a [granularity](Self::mapping_granularity).
    ///
    /// # Errors
    ///
    /// As [`Backend::map`], and an adaptor's error.
    fn map(&self, range: &AddressRange, offset: u64, bytes: u64) -> Result<Block> {
        self.backend().map(range, offset, bytes)
    }

    /// Moves a mapped block of this memory.
    ///
    /// # Errors
    ///
    /// As [`Backend::remap`].
    ///
    /// # Safety
    ///
    /// As [`Backend::remap`], except that a memory which knows uses that its blocks do not list waits for these.
    unsafe fn remap(&self, block: &mut Block, offset: u64) -> Result<()> {
        // SAFETY: nothing uses the block: the caller's promise.
        unsafe { self.backend().remap(block, offset) }
    }
}

/// `Layout` requires a size of at most `isize::MAX`, rounded up to the alignment.
pub(crate) const fn max_bytes(align: usize) -> usize {
    isize::MAX as usize - (align - 1)
}

/// Refuses an alignment that no block of the memory's device can have. Each error thereby states the one largest alignment.
pub(crate) fn check_align<M: Memory + ?Sized>(memory: &M, align: u64) -> Result<()> {
    let most = memory.backend().capabilities(memory.device())?.largest_align;
    if align.is_power_of_two() && align <= most { Ok(()) } else { Err(crate::Error::Align { asked: align, most }) }
}

#[inline(always)]
pub(crate) fn raised(layout: Layout, align: usize) -> Result<Layout> {
    if layout.align() >= align { Ok(layout) } else { aligned_to(layout, align) }
}

#[cold]
fn aligned_to(layout: Layout, align: usize) -> Result<Layout> {
    let refused = |_| crate::Error::Size { what: "size in bytes", asked: layout.size() as u64, least: 1, most: max_bytes(align) as u64 };
    layout.align_to(align).map_err(refused)
}

macro_rules! forwards {
    ($($pointer:ty),*) => {$(
        // SAFETY: each call is forwarded to the target, whose blocks and promises these are.
        unsafe impl<M: Memory + ?Sized> Memory for $pointer {
            type Visibility = M::Visibility;

            #[inline(always)]
            fn alloc(&self, layout: Layout, on: Option<&Stream>) -> Result<Block> {
                (**self).alloc(layout, on)
            }
            #[inline(always)]
            unsafe fn free(&self, block: &Block, uses: &Uses) -> Result<()> {
                // SAFETY: the caller promises that the block is of this memory and freed once, with its uses; this memory is the one that
                // is pointed to.
                unsafe { (**self).free(block, uses) }
            }
            fn backend(&self) -> &Arc<dyn Backend> {
                (**self).backend()
            }
            fn device(&self) -> u32 {
                (**self).device()
            }
            fn min_align(&self) -> usize {
                (**self).min_align()
            }
            fn mapping_granularity(&self) -> Option<u64> {
                (**self).mapping_granularity()
            }
            fn mappable(&self) -> Option<u64> {
                (**self).mappable()
            }
            fn map(&self, range: &AddressRange, offset: u64, bytes: u64) -> Result<Block> {
                (**self).map(range, offset, bytes)
            }
            unsafe fn remap(&self, block: &mut Block, offset: u64) -> Result<()> {
                // SAFETY: the caller promises that nothing uses the block, now or later at its old address, except uses that the pointer's target, this memory,
                // knows and waits for.
                unsafe { (**self).remap(block, offset) }
            }
        }
    )*};
}
forwards!(Arc<M>, Box<M>, &'static M);
