use super::TransferStrategy;
use crate::backend::MemoryLocation;

/// The memory of a kernel's ring.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::bridge::{Options, Placement, RingBufferBridge, TransferStrategy};
/// use ringmem_kernels::echo::Echo;
///
/// let backend = HostBackend::builder().build()?;
/// let placement = [Placement::SPLIT, Placement::DEVICE];
/// let options = Options { placement, ..Options::new(TransferStrategy::Sync) };
/// let [input, output] = RingBufferBridge::<Echo, Echo>::open(&backend, 0, &options)?.bridge.addresses()?;
/// assert!(input.own != input.peer && output.own == output.peer); // two headers, and one
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Slots, and the header that the kernel polls.
    pub slots: MemoryLocation,
    /// A second header that the kernel publishes to.
    pub peer_header: Option<MemoryLocation>,
}

impl Placement {
    /// The default of bridges and channels: [`SPLIT`](Self::SPLIT), or [`PINNED`](Self::PINNED) if both sides use one ring. The host then polls its
    /// own memory instead of copying the kernel's index. A bridge without mutually visible pinned memory needs [`DEVICE`](Self::DEVICE).
    #[must_use]
    pub const fn default_for(strategy: TransferStrategy) -> Self {
        if strategy.shares() { Self::PINNED } else { Self::SPLIT }
    }

    /// Device memory, which the kernel polls fastest.
    pub const DEVICE: Self = Self { slots: MemoryLocation::Device, peer_header: None };
    /// Device memory; the index for the host's polls is pinned.
    pub const SPLIT: Self = Self { slots: MemoryLocation::Device, peer_header: Some(MemoryLocation::Pinned) };
    /// Pinned memory.
    pub const PINNED: Self = Self { slots: MemoryLocation::Pinned, peer_header: None };
    /// Managed memory.
    pub const UNIFIED: Self = Self { slots: MemoryLocation::Unified, peer_header: None };
}

/// Settings of a bridge.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::bridge::{Options, RingBufferBridge, TransferStrategy};
/// use ringmem_kernels::echo::Echo;
///
/// let backend = HostBackend::builder().build()?;
/// let options = Options { capacity: [256, 64], ..Options::new(TransferStrategy::Async) };
/// let opened = RingBufferBridge::<Echo, Echo>::open(&backend, 0, &options)?;
/// assert_eq!((opened.sender.capacity(), opened.receiver.capacity()), (256, 64));
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How messages move.
    pub strategy: TransferStrategy,
    /// Memory of the kernel's input and output rings; shared ones are pinned, with one header.
    pub placement: [Placement; 2],
    /// Slots to the device and to the host, powers of two.
    pub capacity: [u64; 2],
    /// First index.
    pub start: u64,
}

impl Options {
    /// Returns 1024 slots each way from index 0, placed by [`Placement::default_for`].
    #[must_use]
    pub const fn new(strategy: TransferStrategy) -> Self {
        Self { strategy, placement: [Placement::default_for(strategy); 2], capacity: [1024; 2], start: 0 }
    }
}
