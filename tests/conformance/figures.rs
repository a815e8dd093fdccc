use ringmem::backend::host::Counters;

/// A backend's own counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Blocks allocated, of every kind.
    pub allocations: u64,
    /// Blocks freed.
    pub frees: u64,
    /// Bytes of live blocks.
    pub live_bytes: u64,
    /// Copies from host to device.
    pub uploads: u64,
    /// Copies from device to host.
    pub downloads: u64,
    /// Copies without host memory.
    pub device_copies: u64,
    /// Copies from host to host, managed memory included.
    pub host_copies: u64,
    /// Fills.
    pub fills: u64,
    /// Kernels launched.
    pub launches: u64,
}

impl From<Counters> for Figures {
    fn from(counters: Counters) -> Self {
        let c = &counters;
        Self {
            allocations: c.device_allocations.count + c.pinned_allocations.count + c.unified_allocations.count + c.host_allocations.count,
            frees: c.device_frees.count + c.pinned_frees.count + c.unified_frees.count + c.host_frees.count,
            live_bytes: c.device_live.bytes + c.pinned_live.bytes + c.unified_live.bytes + c.host_live.bytes,
            uploads: c.uploads.count,
            downloads: c.downloads.count,
            device_copies: c.device_copies.count + c.peer_copies.count,
            host_copies: c.host_copies.count,
            fills: c.fills.count,
            launches: c.launches,
        }
    }
}
