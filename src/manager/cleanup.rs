use core::time::Duration;
use std::sync::Arc;
use std::vec::Vec;

use super::names::Named;
use super::{BufferStatistics, MemoryManager};
use crate::memory::Memory;

impl<M: Memory> MemoryManager<M> {
    /// Frees created buffers that are idle for at least `idle`, not leased, not in use by queued work, and for which `goes` returns true. Returns their
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
        if self.table.here().is_err() {
            return Vec::new();
        }
        self.store().names.all().into_iter().filter_map(|named| self.clean(&named, idle, &mut goes)).collect()
    }

    /// Frees one buffer. The conditions are checked twice: `goes` and the clock are the user's code, which may use or free the buffer, so that they run
    /// before the exclusive lease; a use between them and the lease is seen by the second check, and a use after it waits.
    fn clean(&self, named: &Arc<Named>, idle: Duration, goes: &mut impl FnMut(&BufferStatistics) -> bool) -> Option<BufferStatistics> {
        let store = self.store();
        let poll = store.poll();
        named.begin_dating(poll);
        let now = store.now();
        let figures = named.read(poll, now);
        if figures.idle < idle || !goes(&figures) {
            return None;
        }
        let index = named.index()?;
        let entry = self.table.briefly(index).ok()?;
        let figures = named.read(poll, now);
        if figures.idle < idle || entry.counted.is_in_use() {
            return None;
        }
        let (entry, _) = entry.remove().ok()?;
        store.names.free(index);
        drop(entry);
        Some(figures)
    }
}
