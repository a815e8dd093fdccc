use super::completion_count::CompletionCount;
use super::queue::Length;
use super::{CudaBackend, Inner};
use crate::backend::{Block, MemoryLocation, Prefetch, StreamId, Ticket};
use crate::{Error, Result};

/// Advice about managed memory (`CUmem_advise`), which moves and maps pages only.
///
/// ```
/// use ringmem::backend::Block;
/// use ringmem::backend::cuda::{Advice, CudaBackend};
///
/// /// For a table that the device reads often and the host rarely writes.
/// fn advise(backend: &CudaBackend, table: &Block) -> ringmem::Result<()> {
///     backend.advise(table, Advice::Prefer(Some(table.device)))?;
///     backend.advise(table, Advice::ReadMostly)
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Advice {
    /// Each side may keep a copy.
    ReadMostly,
    /// Reverts [`ReadMostly`](Self::ReadMostly).
    NotReadMostly,
    /// Prefers a device, or the host for `None`.
    Prefer(Option<u32>),
    /// Reverts [`Prefer`](Self::Prefer).
    NoPreference,
    /// Maps the pages for a device or the host, without migration.
    MappedBy(Option<u32>),
    /// Reverts [`MappedBy`](Self::MappedBy).
    NotMappedBy(Option<u32>),
}

/// `CU_DEVICE_CPU`.
const HOST: i32 = -1;

impl Inner {
    pub(super) fn prefetch_queued(&self, prefetch: &Prefetch, on: StreamId) -> Result<Ticket> {
        let Prefetch { address, bytes, to } = *prefetch;
        let queue = self.stream(on)?;
        if self.ranges.read().find(address.get(), bytes, false, "prefetch")?.location != MemoryLocation::Unified {
            return Err(Error::Unsupported { what: "a prefetch of memory that is not managed" });
        }
        let target = to.map_or(Ok(&queue.device), |to| self.device(to))?;
        if [&queue.device, target].iter().any(|device| !device.facts.concurrent_managed_access) {
            return Err(Error::Unsupported { what: "a prefetch on a device without concurrent managed access" });
        }
        let to = self.side(to)?;
        let number = queue.push(Length::Bytes(bytes), Some(CompletionCount::prefetch(bytes)), |op| {
            // SAFETY: live managed memory; freeing it waits for this operation.
            op.call(|stream| unsafe { self.calls().cuMemPrefetchAsync(address.get(), bytes as usize, to, stream) })
        })?;
        Ok(Ticket { stream: on, number })
    }

    fn side(&self, device: Option<u32>) -> Result<i32> {
        device.map_or(Ok(HOST), |device| Ok(self.device(device)?.handle))
    }
}

impl CudaBackend {
    /// Advises the driver about a block of managed memory.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](Error::Unsupported) for other memory, [`Foreign`](Error::Foreign) for another backend's,
    /// [`NoDevice`](Error::NoDevice), the driver's error.
    pub fn advise(&self, block: &Block, advice: Advice) -> Result<()> {
        let Some(address) = block.device_address.filter(|_| block.location == MemoryLocation::Unified) else {
            return Err(Error::Unsupported { what: "advice about memory that is not managed" });
        };
        let bytes = block.layout.size() as u64;
        self.inner.ranges.read().find(address.get(), bytes, false, "advise")?;
        let (number, side) = match advice {
            Advice::ReadMostly => (1, None),
            Advice::NotReadMostly => (2, None),
            Advice::Prefer(side) => (3, side),
            Advice::NoPreference => (4, None),
            Advice::MappedBy(side) => (5, side),
            Advice::NotMappedBy(side) => (6, side),
        };
        let (side, home) = (self.inner.side(side)?, self.inner.device(block.device)?);
        let _bound = home.bind()?;
        // SAFETY: live managed memory, just found.
        unsafe { home.calls.cuMemAdvise(address.get(), bytes as usize, number, side) }
    }
}
