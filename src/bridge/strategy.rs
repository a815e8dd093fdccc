//! How messages get from a ring to its twin.

use super::Placement;
use crate::backend::{Capabilities, MemoryLocation};
use crate::{Error, MemoryVisibility, Result};

/// How a [`RingBufferBridge`](super::RingBufferBridge) moves messages.
///
/// | strategy | a flush | who notices that a transfer is over |
/// |---|---|---|
/// | `Sync` | copies and waits; to a ring in pinned memory this thread copies, without the backend | the flush |
/// | `Async` | queues copies, and the index after them | the next flush |
/// | `DmaPolling` | as `Async`, but any flush looks at an index at most once an interval, which grows while nothing comes | the next flush |
/// | `Unified` | copies nothing: both sides map one ring | nobody needs to |
/// | `Flagged` | as `Unified`, with a [flag in each slot](crate::ring::flagged): for kernels between such rings | nobody needs to |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TransferStrategy {
    /// Blocking copies.
    Sync,
    /// Copies queued on a stream of the bridge's own.
    Async,
    /// One ring in memory that both sides see.
    Unified,
    /// As [`Unified`](Self::Unified), but a flag in each slot and no index to poll: across a bus a message takes one read less each way. Never chosen
    /// unasked, since the kernel must be one for such rings.
    Flagged,
    /// Queued copies, and looks at each of the device's two indices no more often than this, whatever moves messages or asks what waits: a flush that may not look goes by the
    /// last look. A [dump](crate::channel::Channel::dump) looks at once.
    DmaPolling {
        /// Microseconds between two looks, at least; up to 64 times as many while nothing is moved.
        poll_interval_us: u32,
    },
}

impl TransferStrategy {
    /// What suits a device, by what its host sees of it.
    ///
    /// | visibility | device | strategy |
    /// |---|---|---|
    /// | `SystemScope` | sees pinned memory | `Unified` |
    /// | `SystemScope` | does not | `Async` |
    /// | `DeviceScope` | | `Async` |
    /// | `ExplicitDma` | | `DmaPolling`, every 50 us: each look is a transfer |
    #[must_use]
    pub const fn for_device(visibility: MemoryVisibility, capabilities: &Capabilities) -> Self {
        match visibility {
            MemoryVisibility::SystemScope if capabilities.system_scope => Self::Unified,
            MemoryVisibility::SystemScope | MemoryVisibility::DeviceScope => Self::Async,
            MemoryVisibility::ExplicitDma => Self::DmaPolling { poll_interval_us: 50 },
        }
    }

    /// Whether both sides map one ring, so that nothing is moved.
    #[must_use]
    pub(crate) const fn shares(self) -> bool {
        matches!(self, Self::Unified | Self::Flagged)
    }

    /// Whether messages can be moved this way between a host and a device that see so much of each other.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](Error::Unsupported): one ring for both where nothing is shared or the ring is not in pinned memory, and an index or slots in pinned
    /// memory where host and kernel do not see each other's stores to it.
    pub(super) fn check(self, visibility: MemoryVisibility, placement: &[Placement; 2], system_scope: bool) -> Result<()> {
        let is_pinned = |placement: &Placement| [Some(placement.slots), placement.peer_header].contains(&Some(MemoryLocation::Pinned));
        let what = match self {
            _ if self.shares() && visibility == MemoryVisibility::ExplicitDma => "one ring for both sides, where they share no memory",
            _ if self.shares() && *placement != [Placement::PINNED; 2] => "one ring for both sides in memory that is not pinned",
            _ if !system_scope && placement.iter().any(is_pinned) => {
                "a ring in pinned memory, where host and device do not see each other's stores while a kernel runs"
            }
            _ => return Ok(()),
        };
        Err(Error::Unsupported { what })
    }

    /// Its name in a word.
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
