//! What a subject has done, as far as checks compare it.

use crate::backend::host::Counters;

/// A backend's own count of what it has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Blocks given, of every kind.
    pub allocations: u64,
    /// Blocks that have gone.
    pub frees: u64,
    /// Bytes of the blocks that have not.
    pub live_bytes: u64,
    /// Copies from host to device.
    pub uploads: u64,
    /// Copies from device to host.
    pub downloads: u64,
    /// Copies that no host memory took part in.
    pub device_copies: u64,
    /// Copies from host to host, managed memory's included.
    pub host_copies: u64,
    /// Fills.
    pub fills: u64,
    /// Kernels begun.
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
