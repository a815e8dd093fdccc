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
    /// Slots from host to kernel, a power of two.
    pub input_capacity: u64,
    /// Slots from kernel to host, a power of two.
    pub output_capacity: u64,
    /// Most messages that the kernel pops at once.
    pub batch: u64,
    /// The kernel's longest wait before a fault.
    pub idle: Duration,
    /// First index of both rings.
    pub start: u64,
    /// How messages move; `None` for the [device's default](TransferStrategy::for_device). [`Flagged`](TransferStrategy::Flagged) needs a
    /// suitable kernel.
    pub strategy: Option<TransferStrategy>,
    /// Memory of the kernel's input and output rings, unless shared. With a second header, arguments from the fifth on are the input ring's
    /// peer header and slots, then the output ring's.
    pub placement: [Placement; 2],
    /// How long without a heartbeat [`watch`](super::Channel::watch) reports the kernel as stuck: more than the longest batch.
    pub stuck_after: Duration,
    /// How long to wait for the kernel's start, acknowledgement or end.
    pub timeout: Duration,
    /// Publishes the figures under this name: see [`Builder::publish`](super::Builder::publish).
    pub publish: Option<&'a str>,
}

impl<'a> Options<'a> {
    /// Returns the defaults: 1024 slots per ring, in device memory unless shared; the device's strategy; batches of 128, idle 60 s, indices
    /// from 0, stuck after 1 s, timeout 10 s.
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
            timeout: Duration::from_secs(10),
            publish: None,
        }
    }
}
