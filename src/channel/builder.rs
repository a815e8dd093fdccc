use core::time::Duration;
use std::boxed::Box;
use std::sync::Arc;

use super::{Channel, Options, Shape};
use crate::backend::Backend;
use crate::bridge::{Placement, TransferStrategy};
use crate::kernel::{Persistent, Rings};
use crate::stream::Module;
use crate::{Error, Result, RingMessage};

/// Settings of a channel to a [`Persistent`] kernel; defaults as in [`Options::new`].
///
/// ```
/// use std::time::Duration;
///
/// use ringmem::backend::host::HostBackend;
/// use ringmem::channel::Channel;
/// use ringmem_kernels::echo::{ECHO, Echo};
///
/// let backend = HostBackend::builder().build()?;
/// let mut channel = Channel::builder(ECHO)
///     .input_capacity(256)
///     .output_capacity(256)
///     .batch(32)
///     .timeout(Duration::from_secs(1))
///     .open(&backend, 0)?;
/// channel.send(Echo { words: [7; 8] })?;
/// assert_eq!(channel.recv()?.words, [7; 8]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "it opens no channel until `open`"]
pub struct Builder<I, O> {
    kernel: Persistent<I, O>,
    options: Options<'static>,
    name: Option<Box<str>>,
    groups: u32,
    warps: u32,
}

impl<I: RingMessage, O: RingMessage> Builder<I, O> {
    pub(super) fn new(kernel: Persistent<I, O>) -> Self {
        let strategy = (kernel.rings() == Rings::FlagPerSlot).then_some(TransferStrategy::Flagged);
        Self { options: Options { strategy, ..Options::new(kernel.name()) }, kernel, name: None, groups: 1, warps: 1 }
    }

    /// Sets the slots towards the kernel, a power of two.
    pub const fn input_capacity(mut self, slots: u64) -> Self {
        self.options.input_capacity = slots;
        self
    }

    /// Sets the slots from the kernel, a power of two.
    pub const fn output_capacity(mut self, slots: u64) -> Self {
        self.options.output_capacity = slots;
        self
    }

    /// Sets the most messages that the kernel pops at once.
    pub const fn batch(mut self, messages: u64) -> Self {
        self.options.batch = messages;
        self
    }

    /// Sets how many groups (blocks of one warp) answer messages at the same time, for a kernel that is declared as `grouped fn`; 1 by default.
    ///
    /// The groups share the two rings, so that answers still come in the order of their messages; a slow message holds up later ones. Each takes an equal part
    /// of the waiting messages, at least as many as a warp has lanes and at most a [`batch`](Self::batch), and polls the input ring itself while it is idle. A
    /// kernel's state is each group's own. Latencies in the [telemetry](Channel::telemetry) are those of group 0; its other figures, the counters and
    /// [`restart`](Channel::restart) include all groups. All groups must be resident at once. `open` returns [`Error::Size`] with the number that fits an idle
    /// device, [`Error::Residency`] with the number that fits now, or [`Error::Unsupported`] for another kind of kernel.
    ///
    /// ```
    /// use ringmem::backend::host::HostBackend;
    /// use ringmem::channel::Channel;
    /// use ringmem_kernels::echo::{ECHO_GROUPED, Echo};
    ///
    /// let backend = HostBackend::builder().build()?;
    /// let mut channel = Channel::builder(ECHO_GROUPED).groups(4).open(&backend, 0)?;
    /// for id in 0..100 {
    ///     channel.send(Echo { words: [id; 8] })?;
    /// }
    /// assert!(channel.iter().take(100).map(|answer| answer.words[0]).eq(0..100));
    /// assert_eq!(channel.close()?.control.processed, 100);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub const fn groups(mut self, groups: u32) -> Self {
        self.groups = groups;
        self
    }

    /// Sets of how many warps the kernel's block consists, from 1 to 32, for a kernel that is declared as `block fn`; 1 by default.
    ///
    /// The lanes of all warps divide each batch among them: a [`batch`](Self::batch) should have a message for each, 32 a warp. One lane polls the ring and
    /// publishes the answers. This shortens the time of large batches, whose messages take long, on one multiprocessor; each batch waits at five barriers
    /// of the block. [`groups`](Self::groups) use several multiprocessors. `open` returns [`Error::Size`] with the number of warps that the kernel's registers
    /// allow: 12 for the one below on an H100, from ptxas's count of registers. It returns [`Error::Residency`] if the block does not fit now, and
    /// [`Error::Unsupported`] for another kind of kernel. On a simulated device one thread acts as all lanes, unless each is a
    /// [thread](crate::backend::host::Builder::thread_per_lane).
    ///
    /// ```
    /// use ringmem::backend::host::HostBackend;
    /// use ringmem::channel::Channel;
    /// use ringmem_kernels::echo::{ECHO_BLOCK, Echo};
    ///
    /// let backend = HostBackend::builder().thread_per_lane(true).build()?;
    /// let mut channel = Channel::builder(ECHO_BLOCK).warps(2).open(&backend, 0)?;
    /// for id in 0..100 {
    ///     channel.send(Echo { words: [id; 8] })?;
    /// }
    /// assert!(channel.iter().take(100).map(|answer| answer.words[0]).eq(0..100));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub const fn warps(mut self, warps: u32) -> Self {
        self.warps = warps;
        self
    }

    /// Sets the kernel's longest wait before it faults.
    pub const fn idle(mut self, limit: Duration) -> Self {
        self.options.idle = limit;
        self
    }

    /// Sets how messages move.
    pub const fn strategy(mut self, strategy: TransferStrategy) -> Self {
        self.options.strategy = Some(strategy);
        self
    }

    /// Sets the memory of the kernel's input and output rings. Shared rings are pinned whatever it says.
    pub const fn placement(mut self, placement: [Placement; 2]) -> Self {
        self.options.placement = Some(placement);
        self
    }

    /// Sets how long without a heartbeat [`watch`](Channel::watch) reports the kernel as stuck: more than the longest batch.
    pub const fn stuck_after(mut self, limit: Duration) -> Self {
        self.options.stuck_after = limit;
        self
    }

    /// Sets how long to wait for room in a send, and for the kernel's start, acknowledgement or end.
    pub const fn timeout(mut self, limit: Duration) -> Self {
        self.options.timeout = limit;
        self
    }

    /// Sets how long [`recv`](Channel::recv), [`recv_async`](Channel::recv_async) and the iterator and stream of answers wait for an answer; without
    /// it, until the kernel has left. [`recv_timeout`](Channel::recv_timeout) has its own limit.
    pub const fn recv_timeout(mut self, limit: Duration) -> Self {
        self.options.recv_timeout = Some(limit);
        self
    }

    /// Publishes the figures for this user's `ringmem top`, under a name of 1 to 64 ASCII letters, digits, dots, hyphens and underscores.
    /// Linux only; see the module `monitor`.
    ///
    /// Opening returns [`Error::System`] for another name, or one in use in this process. If the file cannot be created, the channel opens
    /// without it, and [`Channel::unpublished`] returns the reason.
    pub fn publish(mut self, name: impl Into<Box<str>>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Loads and launches the kernel, and waits until it is active.
    ///
    /// # Errors
    ///
    /// As [`Channel::open`].
    pub fn open<B: Backend + ?Sized>(self, backend: &Arc<B>, device: u32) -> Result<Channel<I, O>> {
        let Self { kernel, options, name, groups, warps } = self;
        let options = Options { publish: name.as_deref(), ..options };
        let is_flagged = options.strategy == Some(TransferStrategy::Flagged);
        let is_grouped = kernel.rings() == Rings::OfGroups;
        if groups != 1 && !is_grouped {
            return Err(Error::Unsupported { what: "Builder::groups for a kernel that is not declared as `grouped fn`" });
        }
        if warps != 1 && kernel.rings() != Rings::OfBlock {
            return Err(Error::Unsupported { what: "Builder::warps for a kernel that is not declared as `block fn`" });
        }
        if is_flagged != (kernel.rings() == Rings::FlagPerSlot) {
            return Err(Error::Unsupported {
                what: match is_flagged {
                    true => "TransferStrategy::Flagged for a kernel that is not declared as `flagged fn`",
                    false => "any strategy but TransferStrategy::Flagged for a kernel that is declared as `flagged fn`",
                },
            });
        }
        if backend.capabilities(device)?.excludes_host_slices() {
            return Err(Error::Unsupported {
                what: "Channel::open on a device without concurrent managed access (use Channel::open_raw, and hold no host slice of managed memory)",
            });
        }
        let module = Module::load(backend, kernel.image(), &kernel.image().abi)?;
        let shape = Shape { groups: is_grouped.then_some(groups), warps, is_raw: false };
        // SAFETY: `Persistent` promises that the kernel uses only its control block, telemetry and rings, and the counters of its groups. Managed memory was
        // checked.
        unsafe { Channel::open_with(&Arc::clone(backend).erased(), device, &module, &options, shape) }
    }
}
