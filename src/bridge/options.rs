//! The choices of a user of a bridge: the [strategy](TransferStrategy), where the kernel's rings lie, and their capacity.

use super::strategy::TransferStrategy;
use crate::backend::{Capabilities, MemoryLocation};
use crate::{Error, MemoryVisibility, Result};

/// The memory of a kernel's ring.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::bridge::{Options, Placement, RingBufferBridge, TransferStrategy};
/// use ringmem_kernels::echo::Echo;
///
/// let backend = HostBackend::builder().build()?;
/// let placement = Some([Placement::SPLIT, Placement::DEVICE]);
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
    /// Device memory, which the kernel polls fastest.
    pub const DEVICE: Self = Self { slots: MemoryLocation::Device, peer_header: None };
    /// Device memory; the index for the host's polls is pinned.
    pub const SPLIT: Self = Self { slots: MemoryLocation::Device, peer_header: Some(MemoryLocation::Pinned) };
    /// Pinned memory.
    pub const PINNED: Self = Self { slots: MemoryLocation::Pinned, peer_header: None };
    /// Managed memory.
    pub const UNIFIED: Self = Self { slots: MemoryLocation::Unified, peer_header: None };

    /// Returns the default of bridges and channels: [`PINNED`](Self::PINNED) if both sides use one ring, else [`SPLIT`](Self::SPLIT), with which the host
    /// polls its own memory instead of copying the kernel's index. Where the host does not see a running kernel's stores, [`DEVICE`](Self::DEVICE).
    #[must_use]
    pub const fn default_for(strategy: TransferStrategy, visibility: MemoryVisibility, capabilities: &Capabilities) -> Self {
        match visibility {
            _ if strategy.shares() => Self::PINNED,
            MemoryVisibility::SystemScope if capabilities.system_scope => Self::SPLIT,
            _ => Self::DEVICE,
        }
    }
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
    /// Memory of the kernel's input and output rings; `None` for [`Placement::default_for`] the device. Shared rings are pinned, with one header.
    pub placement: Option<[Placement; 2]>,
    /// Slots to the device and to the host, powers of two.
    pub capacity: [u64; 2],
    /// First index.
    pub start: u64,
}

impl Options {
    /// Returns 1024 slots each way from index 0, placed by default.
    #[must_use]
    pub const fn new(strategy: TransferStrategy) -> Self {
        Self { strategy, placement: None, capacity: [1024; 2], start: 0 }
    }
}

/// Refuses combinations that cannot work.
pub(super) fn check(
    strategy: TransferStrategy,
    visibility: MemoryVisibility,
    placement: &[Placement; 2],
    system_scope: bool,
) -> Result<()> {
    let is_pinned = |placement: &Placement| [Some(placement.slots), placement.peer_header].contains(&Some(MemoryLocation::Pinned));
    let what = if strategy.shares() && visibility == MemoryVisibility::ExplicitDma {
        "a ring that both sides share (`Unified`, `Flagged`), under the visibility `ExplicitDma`"
    } else if strategy.shares() && *placement != [Placement::PINNED; 2] {
        "one ring for both sides in memory that is not pinned"
    } else if !system_scope && placement.iter().any(is_pinned) {
        "a ring in pinned memory, on a device that does not see the host's stores while a kernel runs"
    } else {
        return Ok(());
    };
    Err(Error::Unsupported { what })
}
