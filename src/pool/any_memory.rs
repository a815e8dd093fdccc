use core::alloc::Layout;
use std::sync::Arc;

use super::{PinnedPool, Pool};
use crate::Result;
use crate::backend::{Backend, Block, Uses};
use crate::memory::{AtRunTime, Device, Host, Memory, Unified};
use crate::stream::Stream;

/// The memory that a configuration or a rule selected. Its buffers have the operations that buffers have in every memory.
///
/// ```
/// # fn main() -> ringmem::Result<()> {
/// use ringmem::backend::host::HostBackend;
/// use ringmem::config::Config;
/// use ringmem::pool::Pools;
///
/// let backend = HostBackend::builder().build()?;
/// let pools = Pools::new(&backend, 0, &Config::host())?;
/// let mut buffer = pools.buffer::<u32>(1000)?;
/// buffer.fill(7)?;
/// buffer.update(|elements| elements[10] = 0)?; // in place if the host can access the memory, else in a copy
/// assert_eq!(buffer.slice(8..12)?.to_vec()?, [7, 7, 0, 7]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum AnyMemory {
    /// A device's memory.
    Device(Pool<Device>),
    /// Page-locked memory.
    Pinned(PinnedPool),
    /// Managed memory.
    Unified(Pool<Unified>),
    /// Pageable host memory, which is not pooled.
    Host(Host),
}

macro_rules! each {
    ($any:expr, $memory:ident => $result:expr) => {
        match $any {
            Self::Device($memory) => $result,
            Self::Pinned($memory) => $result,
            Self::Unified($memory) => $result,
            Self::Host($memory) => $result,
        }
    };
}

// SAFETY: blocks are the selected memory's, unchanged: of its backend, with the requested size and alignment, without overlap, and with the addresses and
// initialised bytes that their location requires.
unsafe impl Memory for AnyMemory {
    type Visibility = AtRunTime;

    fn alloc(&self, layout: Layout, on: Option<&Stream>) -> Result<Block> {
        each!(self, memory => memory.alloc(layout, on))
    }

    unsafe fn free(&self, block: &Block, uses: &Uses) -> Result<()> {
        // SAFETY: the caller gives up a block of the selected memory, in use by `uses` at most; the same variant allocated it.
        each!(self, memory => unsafe { memory.free(block, uses) })
    }

    fn backend(&self) -> &Arc<dyn Backend> {
        each!(self, memory => memory.backend())
    }

    fn device(&self) -> u32 {
        each!(self, memory => memory.device())
    }

    fn min_align(&self) -> usize {
        each!(self, memory => memory.min_align())
    }
}
