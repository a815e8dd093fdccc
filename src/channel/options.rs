use core::time::Duration;

use crate::bridge::{Placement, TransferStrategy};
use crate::telemetry::STUCK_AFTER_NS;

/// Settings of a channel, with the kernel of [`open_raw`](super::Channel::open_raw).
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::channel::{Channel, Options};
/// use ringmem::stream::Module;
/// use ringmem_kernels::echo::Echo;
///
/// let backend = HostBackend::builder().build()?;
/// let module = Module::load(&backend, &ringmem_kernels::IMAGE, &ringmem_kernels::ABI)?;
/// let options = Options { input_capacity: 64, batch: 16, ..Options::new("echo") };
/// // SAFETY: `echo` takes no further arguments.
/// let mut channel = unsafe { Channel::<Echo, Echo>::open_raw(&backend, 0, &module, &options) }?;
/// channel.send(Echo { words: [7; 8] })?;
/// assert_eq!(channel.recv()?.words, [7; 8]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Options<'a> {
    /// Entry point in the image.
    pub kernel: &'a str,
    /// Arguments after the four of every persistent kernel.
    pub arguments: &'a [u64],
    /// As [`Builder::input_capacity`](super::Builder::input_capacity).
    pub input_capacity: u64,
    /// As [`Builder::output_capacity`](super::Builder::output_capacity).
    pub output_capacity: u64,
    /// As [`Builder::batch`](super::Builder::batch).
    pub batch: u64,
    /// As [`Builder::idle`](super::Builder::idle).
    pub idle: Duration,
    /// First index of both rings.
    pub start: u64,
    /// How messages move; `None` for the [device's default](TransferStrategy::for_device). [`Flagged`](TransferStrategy::Flagged) needs a
    /// suitable kernel.
    pub strategy: Option<TransferStrategy>,
    /// As [`Builder::placement`](super::Builder::placement); `None` for [`Placement::default_for`] the device.
    pub placement: Option<[Placement; 2]>,
    /// As [`Builder::stuck_after`](super::Builder::stuck_after).
    pub stuck_after: Duration,
    /// As [`Builder::timeout`](super::Builder::timeout).
    pub timeout: Duration,
    /// As [`Builder::recv_timeout`](super::Builder::recv_timeout); `None` for no limit.
    pub recv_timeout: Option<Duration>,
    /// As [`Builder::publish`](super::Builder::publish).
    pub publish: Option<&'a str>,
}

impl<'a> Options<'a> {
    /// Returns the defaults: 1024 slots per ring, the device's placement and strategy; batches of 128, idle 60 s, indices
    /// from 0, stuck after 1 s, timeout 10 s, no limit of `recv`.
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
            placement: None,
            stuck_after: Duration::from_nanos(STUCK_AFTER_NS),
            timeout: Duration::from_secs(10),
            recv_timeout: None,
            publish: None,
        }
    }
}
