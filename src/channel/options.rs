//! How a channel is made.

use core::time::Duration;

use crate::bridge::{Placement, TransferStrategy};
use crate::telemetry::STUCK_AFTER_NS;

/// How a channel is made.
#[derive(Clone, Debug)]
pub struct Options<'a> {
    /// Entry of the image.
    pub kernel: &'a str,
    /// What the kernel takes after the four arguments of every persistent kernel.
    pub arguments: &'a [u64],
    /// Slots from host to kernel, a power of two.
    pub input_capacity: u64,
    /// Slots from kernel to host, a power of two.
    pub output_capacity: u64,
    /// Messages that the kernel takes together at most.
    pub batch: u64,
    /// How long the kernel waits for a message, a command or room before it leaves with a fault.
    pub idle: Duration,
    /// Where both rings' indices begin.
    pub start: u64,
    /// How messages get to the kernel and back; `None` for what suits the device: one ring in pinned memory where both sides see it at once.
    /// A [`Flagged`](TransferStrategy::Flagged) one needs a kernel such as `echo_flagged`: each kind of kernel refuses the other's rings.
    pub strategy: Option<TransferStrategy>,
    /// Where the rings are that the kernel sees, from the host and to it, where they are not one with the host's. With
    /// a header of its own for what the kernel publishes, its arguments from the fifth on are
    /// the input ring's peer header and slots and the output ring's.
    pub placement: [Placement; 2],
    /// How long the kernel's heart may stand still before [`watch`](super::Channel::watch) calls it stuck: longer than its longest batch takes.
    pub stuck_after: Duration,
}

impl<'a> Options<'a> {
    /// 1024 slots each way, batches of up to 128, a minute of patience, indices from 0, a second for a heartbeat.
    #[must_use]
    pub const fn new(kernel: &'a str) -> Self {
        Self {
            kernel,
            arguments: &[],
            input_capacity: 1024,
            output_capacity: 1024,
            batch: 128,
            idle: Duration::from_secs(60),
            start: 0,
            strategy: None,
            placement: [Placement::DEVICE; 2],
            stuck_after: Duration::from_nanos(STUCK_AFTER_NS),
        }
    }
}
