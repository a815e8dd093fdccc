use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use super::MemoryLocation;

/// Counts of completed operations, each before its waiter returns. They are not read at one instant.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::memory::{Device, GpuBuffer};
///
/// let backend = HostBackend::builder().build()?;
/// let buffer = GpuBuffer::<u32>::from_slice(Device::new(&backend, 0), &[1, 2, 3])?;
/// let counters = backend.counters();
/// assert_eq!((counters.uploads.count, counters.uploads.bytes, counters.device_live.bytes), (1, 12, buffer.size_bytes() as u64));
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Device memory allocated.
    pub device_allocations: Tally,
    /// Device memory freed.
    pub device_frees: Tally,
    /// Device memory held.
    pub device_live: Live,
    /// Pinned memory allocated.
    pub pinned_allocations: Tally,
    /// Pinned memory freed.
    pub pinned_frees: Tally,
    /// Pinned memory held.
    pub pinned_live: Live,
    /// Managed memory allocated.
    pub unified_allocations: Tally,
    /// Managed memory freed.
    pub unified_frees: Tally,
    /// Managed memory held.
    pub unified_live: Live,
    /// Pageable memory allocated.
    pub host_allocations: Tally,
    /// Pageable memory freed.
    pub host_frees: Tally,
    /// Pageable memory held.
    pub host_live: Live,
    /// Host-to-device copies.
    pub uploads: Tally,
    /// Device-to-host copies.
    pub downloads: Tally,
    /// Copies within one device.
    pub device_copies: Tally,
    /// Direct copies between devices; others are a download and an upload.
    pub peer_copies: Tally,
    /// Uploads and downloads of pageable memory.
    pub staged: Tally,
    /// Copies within host and managed memory.
    pub host_copies: Tally,
    /// Fills.
    pub fills: Tally,
    /// Words published.
    pub publications: u64,
    /// Prefetches.
    pub prefetches: Tally,
    /// Managed pages migrated to a device.
    pub pages_in: Tally,
    /// Managed pages migrated away from a device.
    pub pages_out: Tally,
    /// Managed pages evicted from a device.
    pub pages_evicted: Tally,
    /// Kernels started.
    pub launches: u64,
    /// Kernels that panicked.
    pub kernel_panics: u64,
    /// Stream synchronizations.
    pub synchronizations: u64,
    /// Streams opened.
    pub streams: u64,
    /// Peer accesses enabled.
    pub peer_enables: u64,
    /// Peer accesses disabled.
    pub peer_disables: u64,
    /// Errors that no caller got.
    pub unreported: u64,
}

/// A count and its total bytes.
///
/// ```
/// use ringmem::backend::host::{HostBackend, Tally};
/// use ringmem::memory::{Device, GpuBuffer};
///
/// let backend = HostBackend::builder().build()?;
/// let buffer = GpuBuffer::<u32>::from_slice(Device::new(&backend, 0), &[1, 2, 3])?;
/// buffer.slice(1..)?.to_vec()?;
/// assert_eq!(backend.counters().downloads, Tally { count: 1, bytes: 8 });
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Count.
    pub count: u64,
    /// Total bytes.
    pub bytes: u64,
}

impl Tally {
    const fn plus(self, other: Self) -> Self {
        Self { count: self.count + other.count, bytes: self.bytes + other.bytes }
    }
}

/// Bytes held.
///
/// ```
/// use ringmem::backend::host::{HostBackend, Live};
/// use ringmem::memory::{Device, GpuBuffer};
///
/// let backend = HostBackend::builder().build()?;
/// drop(GpuBuffer::<u8>::new(Device::new(&backend, 0), 300)?);
/// let _live = GpuBuffer::<u8>::new(Device::new(&backend, 0), 200)?;
/// assert_eq!(backend.counters().device_live, Live { bytes: 200, peak: 300 });
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Live {
    /// Current bytes.
    pub bytes: u64,
    /// High-water mark.
    pub peak: u64,
}

#[derive(Default)]
pub(crate) struct Counts {
    pub device: Memory,
    pub pinned: Memory,
    pub unified: Memory,
    pub host: Memory,
    pub uploads: [Count; 2],
    pub downloads: [Count; 2],
    pub device_copies: Count,
    pub peer_copies: Count,
    pub host_copies: Count,
    pub fills: Count,
    pub publications: AtomicU64,
    pub prefetches: Count,
    pub pages_in: Count,
    pub pages_out: Count,
    pub pages_evicted: Count,
    pub launches: AtomicU64,
    pub kernel_panics: AtomicU64,
    pub synchronizations: AtomicU64,
    pub streams: AtomicU64,
    pub peer_enables: AtomicU64,
    pub peer_disables: AtomicU64,
    pub unreported: AtomicU64,
}

impl Counts {
    pub fn of(&self, location: MemoryLocation) -> &Memory {
        match location {
            MemoryLocation::Host => &self.host,
            MemoryLocation::Device => &self.device,
            MemoryLocation::Pinned => &self.pinned,
            MemoryLocation::Unified => &self.unified,
        }
    }

    pub fn read(&self) -> Counters {
        let [uploads, downloads] = [&self.uploads, &self.downloads].map(|both| both.each_ref().map(Count::read));
        Counters {
            device_allocations: self.device.allocations.read(),
            device_frees: self.device.frees.read(),
            device_live: self.device.live(),
            pinned_allocations: self.pinned.allocations.read(),
            pinned_frees: self.pinned.frees.read(),
            pinned_live: self.pinned.live(),
            unified_allocations: self.unified.allocations.read(),
            unified_frees: self.unified.frees.read(),
            unified_live: self.unified.live(),
            host_allocations: self.host.allocations.read(),
            host_frees: self.host.frees.read(),
            host_live: self.host.live(),
            uploads: uploads[0].plus(uploads[1]),
            downloads: downloads[0].plus(downloads[1]),
            device_copies: self.device_copies.read(),
            peer_copies: self.peer_copies.read(),
            staged: uploads[1].plus(downloads[1]),
            host_copies: self.host_copies.read(),
            fills: self.fills.read(),
            publications: self.publications.load(Relaxed),
            prefetches: self.prefetches.read(),
            pages_in: self.pages_in.read(),
            pages_out: self.pages_out.read(),
            pages_evicted: self.pages_evicted.read(),
            launches: self.launches.load(Relaxed),
            kernel_panics: self.kernel_panics.load(Relaxed),
            synchronizations: self.synchronizations.load(Relaxed),
            streams: self.streams.load(Relaxed),
            peer_enables: self.peer_enables.load(Relaxed),
            peer_disables: self.peer_disables.load(Relaxed),
            unreported: self.unreported.load(Relaxed),
        }
    }
}

#[derive(Default)]
pub(crate) struct Count {
    count: AtomicU64,
    bytes: AtomicU64,
}

impl Count {
    pub fn add(&self, bytes: u64) {
        self.count.fetch_add(1, Relaxed);
        self.bytes.fetch_add(bytes, Relaxed);
    }

    fn read(&self) -> Tally {
        Tally { count: self.count.load(Relaxed), bytes: self.bytes.load(Relaxed) }
    }
}

#[derive(Default)]
pub(crate) struct Memory {
    allocations: Count,
    frees: Count,
    live: AtomicU64,
    peak: AtomicU64,
}

impl Memory {
    pub fn allocated(&self, bytes: u64) {
        self.allocations.add(bytes);
        let live = self.live.fetch_add(bytes, Relaxed) + bytes;
        if live > self.peak.load(Relaxed) {
            self.peak.fetch_max(live, Relaxed);
        }
    }

    pub fn freed(&self, bytes: u64) {
        self.frees.add(bytes);
        self.live.fetch_sub(bytes, Relaxed);
    }

    #[cfg(feature = "cuda")]
    pub fn live_bytes(&self) -> u64 {
        self.live.load(Relaxed)
    }

    fn live(&self) -> Live {
        Live { bytes: self.live.load(Relaxed), peak: self.peak.load(Relaxed) }
    }
}
