use core::alloc::Layout;
use std::sync::Arc;

use super::{Memory, check_align, max_bytes};
use crate::backend::{Backend, Block, Uses};
use crate::stream::Stream;
use crate::{Error, Result};

/// Raises the alignment of each request, and optionally its size, for texture rows or huge pages.
///
/// A pool or arena above keeps the alignment, not the size. A buffer keeps the requested length.
///
/// ```
/// # fn main() -> ringmem::Result<()> {
/// use ringmem::backend::host::HostBackend;
/// use ringmem::memory::{Aligned, Buffer, Device};
///
/// let backend = HostBackend::builder().build()?;
/// let memory = Aligned::new(Device::new(&backend, 0), 512)?.rounding(256)?;
/// let bytes = Buffer::<u8, _>::new(memory, 800)?;
/// assert_eq!(backend.counters().device_live.bytes, 1024);
/// assert_eq!(bytes.cast::<u64>()?.len(), 100);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Aligned<M> {
    memory: M,
    /// INVARIANT: a power of two.
    align: usize,
    /// INVARIANT: from 1 to the largest layout of this alignment.
    multiple: usize,
}

impl<M: Memory> Aligned<M> {
    /// Aligns blocks to at least `align` bytes.
    ///
    /// # Errors
    ///
    /// [`Align`](Error::Align) unless `align` is a power of two up to the device's
    /// [largest](crate::backend::Capabilities::largest_align), [`NoDevice`](Error::NoDevice).
    pub fn new(memory: M, align: usize) -> Result<Self> {
        check_align(&memory, align as u64)?;
        Ok(Self { memory, align, multiple: 1 })
    }

    /// Rounds every size up to a multiple of this many bytes.
    ///
    /// # Errors
    ///
    /// [`Size`](Error::Size) for 0, or more bytes than a block of this alignment can have.
    pub fn rounding(mut self, multiple: usize) -> Result<Self> {
        let most = max_bytes(self.align);
        if multiple == 0 || multiple > most {
            return Err(Error::Size { what: "size multiple", asked: multiple as u64, least: 1, most: most as u64 });
        }
        self.multiple = multiple;
        Ok(self)
    }

    /// Returns the upstream memory.
    #[must_use]
    pub const fn inner(&self) -> &M {
        &self.memory
    }

    /// Idempotent, so that `free` finds the upstream layout.
    fn raised(&self, layout: Layout) -> Result<Layout> {
        let (rounded, align) = (layout.size().checked_next_multiple_of(self.multiple), layout.align().max(self.align));
        rounded.and_then(|size| Layout::from_size_align(size, align).ok()).ok_or_else(|| {
            if let Err(error) = check_align(&self.memory, align as u64) {
                return error;
            }
            // At a larger alignment than this memory's, no multiple may fit: the alignment is the error.
            let (asked, most) = (layout.size() as u64, max_bytes(align) / self.multiple * self.multiple);
            match most {
                0 => Error::Align { asked: align as u64, most: self.align as u64 },
                most => Error::Size { what: "size in bytes", asked, least: 1, most: most as u64 },
            }
        })
    }
}

// SAFETY: each block is an upstream block of at least the size and alignment of its layout.
unsafe impl<M: Memory> Memory for Aligned<M> {
    type Visibility = M::Visibility;

    fn alloc(&self, layout: Layout, on: Option<&Stream>) -> Result<Block> {
        let raised = self.raised(layout)?;
        let mut block = self.memory.alloc(raised, on)?;
        block.layout = Layout::from_size_align(layout.size(), raised.align()).unwrap_or(layout);
        Ok(block)
    }

    unsafe fn free(&self, block: &Block, uses: &Uses) -> Result<()> {
        let block = Block { layout: self.raised(block.layout).unwrap_or(block.layout), ..*block };
        // SAFETY: the caller promises that the block is of this memory and freed once, with its uses; with the raised layout it is the
        // upstream memory's block.
        unsafe { self.memory.free(&block, uses) }
    }

    fn backend(&self) -> &Arc<dyn Backend> {
        self.memory.backend()
    }

    fn device(&self) -> u32 {
        self.memory.device()
    }

    fn min_align(&self) -> usize {
        self.align.max(self.memory.min_align())
    }
}
