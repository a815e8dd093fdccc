//! [`Options`]: strategy, capacity and placement of a bridge's rings.

use super::TransferStrategy;
use crate::backend::MemoryLocation;

/// Where a kernel's ring is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The slots, and the header that the kernel polls.
    pub slots: MemoryLocation,
    /// A header of its own for what the kernel publishes, and where; `None` for one header.
    pub peer_header: Option<MemoryLocation>,
}

impl Placement {
    /// All of it in the memory of a device, which is what its kernel polls quickest.
    pub const DEVICE: Self = Self { slots: MemoryLocation::Device, peer_header: None };
    /// In the memory of a device, but for the index that the host polls: that is in pinned memory.
    pub const SPLIT: Self = Self { slots: MemoryLocation::Device, peer_header: Some(MemoryLocation::Pinned) };
    /// All of it in pinned memory.
    pub const PINNED: Self = Self { slots: MemoryLocation::Pinned, peer_header: None };
    /// All of it in managed memory.
    pub const UNIFIED: Self = Self { slots: MemoryLocation::Unified, peer_header: None };
}

/// How a bridge is made.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How messages are moved.
    pub strategy: TransferStrategy,
    /// Where the kernel's rings are, from the host and to it. Where both sides share them, both are in memory that both sides see, with one header.
    pub placement: [Placement; 2],
    /// Slots from the host to the device and back, each a power of two; the near ring and the far one have as many.
    pub capacity: [u64; 2],
    /// Where the indices begin.
    pub start: u64,
}

impl Options {
    /// 1024 slots each way from index 0; where both sides share them in pinned memory, else in the device's, with the indices that the host polls in pinned memory:
    /// where host and kernel do not see each other's stores to that, take [`Placement::DEVICE`].
    #[must_use]
    pub const fn new(strategy: TransferStrategy) -> Self {
        let placement = if strategy.shares() { Placement::PINNED } else { Placement::SPLIT };
        Self { strategy, placement: [placement; 2], capacity: [1024; 2], start: 0 }
    }
}
