//! [`TransferStrategy`]: how messages move between host and device.
//!
//! To add one: a variant here, with its name and its place in `for_device`; what it does, in `transport.rs` (`Transport::new`) or, if the rings are shared, in
//! `host_ring.rs` and `ends.rs`; possible combinations, in `options.rs` (`check`); which kernels can have it, in `channel/builder.rs` (`open`). The
//! compiler lists the other places, which name all variants.

use ringmem_layouts::ring::RingFlags;

use crate::MemoryVisibility;
use crate::backend::Capabilities;

/// How a [`RingBufferBridge`](super::RingBufferBridge) moves messages.
///
/// ```
/// use ringmem::MemoryVisibility;
/// use ringmem::backend::Backend;
/// use ringmem::backend::host::HostBackend;
/// use ringmem::bridge::TransferStrategy;
///
/// let backend = HostBackend::builder().build()?;
/// let visibility = MemoryVisibility::detect(&backend, 0)?.visibility;
/// let strategy = TransferStrategy::for_device(visibility, &backend.capabilities(0)?);
/// println!("{}", strategy.name());
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TransferStrategy {
    /// Copies and waits. To pinned memory, the calling thread copies.
    Sync,
    /// Queues copies and the index store on an internal stream. The next flush notices their completion.
    Async,
    /// Copies nothing: host and kernel map one ring.
    Unified,
    /// As [`Unified`](Self::Unified), with a [flag in each slot](crate::ring::flagged) instead of an index: one bus read less. The kernel must
    /// support it.
    Flagged,
    /// As [`Async`](Self::Async), but polls an index at most once per interval.
    DmaPolling {
        /// Microseconds; up to 64 times that while the index stands still.
        poll_interval_us: u32,
    },
}

impl TransferStrategy {
    /// Returns the default for a device's memory visibility: `Unified` for `SystemScope` if the device maps pinned memory; `DmaPolling` every 50 us
    /// for `ExplicitDma`, since each poll is a copy; else `Async`.
    #[must_use]
    pub const fn for_device(visibility: MemoryVisibility, capabilities: &Capabilities) -> Self {
        match visibility {
            MemoryVisibility::SystemScope if capabilities.system_scope => Self::Unified,
            MemoryVisibility::SystemScope | MemoryVisibility::DeviceScope => Self::Async,
            MemoryVisibility::ExplicitDma => Self::DmaPolling { poll_interval_us: 50 },
        }
    }

    #[must_use]
    pub(crate) const fn shares(self) -> bool {
        match self {
            Self::Unified | Self::Flagged => true,
            Self::Sync | Self::Async | Self::DmaPolling { .. } => false,
        }
    }

    /// The kind of the host's and the kernel's rings.
    pub(super) const fn ring_kind(self) -> RingFlags {
        match self {
            Self::Flagged => RingFlags::FLAGGED,
            Self::Sync | Self::Async | Self::Unified | Self::DmaPolling { .. } => RingFlags::SPSC,
        }
    }

    /// Returns its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sync => "sync",
            Self::Async => "async",
            Self::Unified => "unified",
            Self::Flagged => "flagged",
            Self::DmaPolling { .. } => "dma-polling",
        }
    }
}
