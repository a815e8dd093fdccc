//! Memory that kernels use: one buffer type over any [`Memory`].
//!
//! 1. [`Buffer<T, M>`](Buffer) owns elements; what may be done with it follows from `M::Visibility` when it is compiled. Reading device memory from
//!    the host does not compile.
//! 2. What outlives its call takes buffers by value and gives them back ([`Stream`]). What takes a borrow has ended when it returns.
//! 3. A buffer that is dropped with work queued on it is freed after that work; one that is forgotten is never freed. Neither is ever wrong.
//! 4. A mismatch is an error before any call of the backend.
//! 5. Elements are [`DeviceBytes`](crate::DeviceBytes): any bytes are valid, and nothing points.
//! 6. No bytes, no calls: a buffer without bytes is valid and asks no backend for anything.
//!
//! Adaptors: [`Limited`], [`Logged`], [`Failing`], [`Statistics`], [`Aligned`], [`Tracked`], [`Arena`]. Each is a [`Memory`] over another, forwards
//! its visibility and its [alignment](Memory::least_align), and composes with every other in any order, as [`Pool`](crate::pool::Pool) does.
//! `Arc<dyn Memory<Visibility = V>>` is also a memory, chosen at run time; its visibility is still checked at compile time. So is `&'static M`, for a
//! program that keeps its memory as long as it runs: buffers of it count no owner. If the upstream memory fails to free a block, the adaptor still
//! removes the block from its accounting.

/// The facts of the upstream memory, as an adaptor's own.
macro_rules! of_upstream {
    ($($field:ident).+) => {
        fn backend(&self) -> &std::sync::Arc<dyn crate::backend::Backend> {
            self.$($field).+.backend()
        }

        fn device(&self) -> u32 {
            self.$($field).+.device()
        }

        fn least_align(&self) -> usize {
            self.$($field).+.least_align()
        }
    };
}
pub(crate) use of_upstream;

mod aligned;
mod arena;
mod bounds;
mod budget;
mod buffer;
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
use crate::backend::{Backend, Block, Uses};
use crate::stream::Stream;

pub use aligned::Aligned;
pub use arena::Arena;
pub(crate) use bounds::{end, on_the_host, range, same_size};
pub use budget::{Budget, Reservation};
pub use buffer::Buffer;
pub(crate) use buffer::layout;
pub use failing::{Failing, When};
pub use kinds::{Device, Host, Pinned, Unified};
pub use limited::Limited;
pub use logged::Logged;
pub(crate) use origin::Origin;
pub(crate) use pages::{Page, Pages};
pub use prefetching::Prefetching;
pub use slice::{Slice, SliceMut};
pub use statistics::{Figures, Scope, Statistics};
pub use trace::{Event, Outcome, Trace, TraceError};
pub use tracked::{AtExit, Leak, Named, Report, Tracked};
pub(crate) use view::View;
pub use visibility::{Both, DeviceOnly, DeviceReadable, HostOnly, HostReadable, Visibility};

/// Elements in a device's memory.
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
pub type GpuBuffer<T> = Buffer<T, Device>;
/// Elements in page-locked host memory.
pub type PinnedBuffer<T> = Buffer<T, Pinned>;
/// Elements in managed memory: one address on both sides.
pub type UnifiedBuffer<T> = Buffer<T, Unified>;

/// Who gives memory and takes it back.
///
/// # Safety
///
/// An implementation gives blocks that are as long and aligned as asked for, at a host address exactly where `Visibility` is [`HostReadable`] and
/// initialised there, at a device address exactly where it is [`DeviceReadable`], of the backend that [`backend`](Self::backend) names, and nobody else's until they are freed.
pub unsafe trait Memory: Send + Sync + 'static {
    /// Who may touch the bytes.
    type Visibility: Visibility;

    /// Memory for a layout of at least one byte. On a stream, it may be used there at once, elsewhere after [`Block::ready`].
    ///
    /// By this declaration every implementation is `#[track_caller]`: an adaptor that calls the memory below in its own `alloc`, and in no closure there,
    /// passes on where it was called from. So does `dyn Memory`.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`](crate::Error::OutOfMemory), or what the backend or an adaptor refuses.
    #[track_caller]
    fn alloc(&self, layout: Layout, on: Option<&Stream>) -> Result<Block>;

    /// Takes a block back; it is reused or freed after every use that is listed.
    ///
    /// # Errors
    ///
    /// What the driver said. The block is gone all the same.
    ///
    /// # Safety
    ///
    /// The block is of this memory, is given back once, and only the operations that `uses` names still use it.
    unsafe fn free(&self, block: Block, uses: &Uses) -> Result<()>;

    /// Who copies and fills it.
    fn backend(&self) -> &Arc<dyn Backend>;

    /// Whose memory it is, or near whom: an ordinal.
    fn device(&self) -> u32;

    /// Returns the minimum alignment of every block in bytes: a power of two, 1 unless an [`Aligned`] is among the memories below.
    ///
    /// An adaptor returns that of the memory below. A memory that divides its blocks, as [`Arena`] and [`Pool`](crate::pool::Pool) do, gives each
    /// part this alignment. An adaptor that does not forward it loses the alignment of an `Aligned` below a pool or an arena.
    fn least_align(&self) -> usize {
        1
    }
}

/// The largest alignment of a layout that is not empty.
pub(crate) const LARGEST_ALIGN: usize = 1 << (usize::BITS - 2);

/// Returns the largest size of a layout with an alignment, a power of two up to [`LARGEST_ALIGN`]: rounded up to it, an address still spans it.
pub(crate) const fn most_bytes(align: usize) -> usize {
    isize::MAX as usize - (align - 1)
}

/// Returns an error unless an alignment is a power of two up to [`LARGEST_ALIGN`].
///
/// # Errors
///
/// [`Align`](crate::Error::Align).
pub(crate) fn check_align(align: usize) -> Result<()> {
    if align.is_power_of_two() && align <= LARGEST_ALIGN {
        Ok(())
    } else {
        Err(crate::Error::Align { asked: align as u64, most: LARGEST_ALIGN as u64 })
    }
}

/// Returns the layout with its alignment raised to at least `align`.
///
/// # Errors
///
/// [`Size`](crate::Error::Size) if an address cannot span that many bytes at that alignment.
#[inline(always)]
pub(crate) fn raised(layout: Layout, align: usize) -> Result<Layout> {
    if layout.align() >= align { Ok(layout) } else { aligned_to(layout, align) }
}

#[cold]
fn aligned_to(layout: Layout, align: usize) -> Result<Layout> {
    let refused = |_| crate::Error::Size { what: "size in bytes", asked: layout.size() as u64, least: 1, most: most_bytes(align) as u64 };
    layout.align_to(align).map_err(refused)
}

macro_rules! forwards {
    ($($pointer:ty),*) => {$(
        // SAFETY: what it points to makes the promise.
        unsafe impl<M: Memory + ?Sized> Memory for $pointer {
            type Visibility = M::Visibility;

            #[inline(always)]
            fn alloc(&self, layout: Layout, on: Option<&Stream>) -> Result<Block> {
                (**self).alloc(layout, on)
            }
            #[inline(always)]
            unsafe fn free(&self, block: Block, uses: &Uses) -> Result<()> {
                // SAFETY: the caller's promise.
                unsafe { (**self).free(block, uses) }
            }
            fn backend(&self) -> &Arc<dyn Backend> {
                (**self).backend()
            }
            fn device(&self) -> u32 {
                (**self).device()
            }
            fn least_align(&self) -> usize {
                (**self).least_align()
            }
        }
    )*};
}
forwards!(Arc<M>, Box<M>, &'static M);
