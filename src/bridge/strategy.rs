//! How messages get from a ring to its twin.

/// How a [`RingBufferBridge`](super::RingBufferBridge) moves messages.
///
/// | strategy | a flush | who notices that a transfer is over |
/// |---|---|---|
/// | `Sync` | copies and waits | the flush |
/// | `Async` | queues copies, and the index after them | the next flush |
/// | `DmaPolling` | as `Async`, but looks at most once an interval, which grows while nothing comes | the next flush that looks |
/// | `Unified` | copies nothing: both sides map one ring | nobody needs to |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TransferStrategy {
    /// Blocking copies.
    Sync,
    /// Copies queued on a stream of the bridge's own.
    Async,
    /// One ring in memory that both sides see.
    Unified,
    /// Queued copies, and looks at the device's indices no more often than this.
    DmaPolling {
        /// Microseconds between two looks, at least; up to 64 times as many while nothing comes.
        poll_interval_us: u32,
    },
}
