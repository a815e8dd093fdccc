use core::time::Duration;
use std::sync::Arc;
use std::vec::Vec;

use super::metadata::Metadata;
use super::{BufferStatistics, MemoryManager};
use crate::memory::Memory;

impl<M: Memory> MemoryManager<M> {
    /// Frees buffers that are idle for at least `idle`, not leased, not in use by queued work, and for which `goes` returns true. Returns their
    /// figures, ordered by name.
    ///
    /// Reads since the last poll count as a use [now](Self::tick). The backend counts errors of frees. A concurrent lease request waits for the
    /// check.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use ringmem::backend::host::HostBackend;
    /// use ringmem::manager::{BufferConfig, MemoryManager};
    /// use ringmem::memory::Device;
    ///
    /// let backend = HostBackend::builder().build()?;
    /// let manager = MemoryManager::new(Device::new(&backend, 0));
    /// manager.create::<u32>("counts", 1000, BufferConfig::new())?;
    /// let freed = manager.cleanup(Duration::ZERO, |figures| figures.utilisation() < 0.99);
    /// assert_eq!(freed[0].name.as_ref(), "counts");
    /// # Ok::<(), ringmem::Error>(())
    /// ```
    pub fn cleanup(&self, idle: Duration, mut goes: impl FnMut(&BufferStatistics) -> bool) -> Vec<BufferStatistics> {
        if self.slots.here().is_err() {
            return Vec::new();
        }
        self.shared.names.all().into_iter().filter_map(|metadata| self.clean(&metadata, idle, &mut goes)).collect()
    }

    fn clean(
        &self,
        metadata: &Arc<Metadata>,
        idle: Duration,
        goes: &mut impl FnMut(&BufferStatistics) -> bool,
    ) -> Option<BufferStatistics> {
        let shared = &*self.shared;
        let look = shared.look();
        metadata.look(look);
        let now = shared.now();
        let figures = metadata.read(look, now);
        if figures.idle < idle || !goes(&figures) {
            return None;
        }
        // No user code runs meanwhile.
        let entry = self.slots.briefly(metadata.index()?).ok()?;
        let figures = metadata.read(look, now);
        if figures.idle < idle || entry.held.is_in_use() {
            return None;
        }
        let (entry, _) = entry.remove().ok()?;
        shared.names.free(metadata);
        shared.counts.freed();
        drop(entry);
        Some(figures)
    }
}
