//! [`Channel`]: a running persistent kernel, its control block and telemetry, and a [bridge] with a ring of messages and a ring of answers.
//!
//! Messages have a fixed size. To launch the kernel yourself, use a [`RingBufferBridge`]; for kernels that end, a [`Stream`]; for more bytes than the device
//! has memory, [`streaming`](crate::streaming).
//!
//! 1. Opening allocates pinned memory and the rings, and waits for the kernel. The memory is freed after the kernel has left.
//! 2. An ended kernel can be relaunched on the same rings, as a new epoch, with its unanswered messages.
//!
//! Unless host and kernel share the rings, a call has to move messages between the host's rings and the kernel's. These do: [`flush`](Channel::flush), a send
//! of one message, a receive that finds no answer, and [`input_waiting`](Channel::input_waiting) and [`output_waiting`](Channel::output_waiting). Those
//! of slices, in place or in batches do not, which their documentation says. A send also brings answers if it moved nothing, if the ring was full, or if the
//! output ring may be half full, counted as if each message had one answer.
//!
//! In a forked process all calls fail, with [`Unsupported`](Error::Unsupported) if they return an [`Error`], or do nothing, and a drop leaves the kernel to the
//! parent: a driver's memory is not mapped there. The exceptions are ends that [`send_batch`](Channel::send_batch) and [`recv_batch`](Channel::recv_batch)
//! lend: use none there.
//!
//! A channel does not correlate answers, encode messages or restart kernels by itself.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use ringmem::backend::host::HostBackend;
//! use ringmem::channel::Channel;
//! use ringmem_kernels::echo::{ECHO, Echo};
//!
//! let backend = HostBackend::builder().build()?;
//! let mut channel = Channel::open(&backend, 0, ECHO)?;
//! channel.send(Echo { words: [7; 8] })?;
//! assert_eq!(channel.recv()?.words, [7; 8]);
//! assert_eq!(channel.close()?.control.processed, 1);
//! # Ok(())
//! # }
//! ```

mod builder;
#[cfg(feature = "futures")]
mod duplex;
mod error;
mod kernel;
mod messages;
mod options;
mod published;

use core::mem::{forget, take};
use core::ptr::NonNull;
use std::boxed::Box;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};
use std::vec::Vec;

use crate::backend::{Backend, MemoryLocation, Uses};
use crate::bridge::{self, Opened, Receiver, RingBufferBridge, Sender, TransferStrategy};
use crate::control::{Capabilities, Command, HostSide, Launch, SecondHeader, Shared, State};
use crate::kernel::Persistent;
use crate::memory::{Page, Pages, Pinned, PinnedBuffer};
use crate::region::{Plan, kind};
use crate::ring::groups::Groups;
use crate::stream::{Module, Pending, Stream};
use crate::sys::fork::Process;
use crate::telemetry;
use crate::trace::event;
use crate::watchdog::Watchdog;
use crate::{ControlBlock, Error, HostWord, MemoryVisibility, Result, RingMessage, TelemetryBuffer};

pub use builder::Builder;
#[cfg(feature = "futures")]
pub use duplex::Duplex;
pub use error::{ReceiveError, SendError};
pub use kernel::Closed;
pub use options::Options;
use published::Published;

/// A running kernel that pops messages `I` and pushes answers `O`.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::channel::Channel;
/// use ringmem_kernels::echo::{ECHO, Echo};
///
/// let backend = HostBackend::builder().build()?;
/// let mut channel = Channel::open(&backend, 0, ECHO)?;
/// for id in 0..3 {
///     channel.send(Echo { words: [id; 8] })?;
/// }
/// let answers: Vec<u64> = channel.iter().take(3).map(|answer| answer.words[0]).collect();
/// assert_eq!(answers, [0, 1, 2]);
/// assert_eq!(channel.close()?.control.processed, 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Channel<I: RingMessage, O: RingMessage> {
    sender: Sender<I>,
    receiver: Receiver<O>,
    bridge: RingBufferBridge<I, O>,
    // INVARIANT: 'static stands for the lifetime of `region`, dropped after these. None is handed out.
    control: HostSide<'static, HostWord>,
    block: &'static Shared<HostWord>,
    telemetry: &'static telemetry::Shared<HostWord>,
    opened: Instant,
    watchdog: Watchdog,
    timeout: Duration,
    recv_limit: Option<Duration>,
    launch: Relaunch,
    kernel: Option<Pending<()>>,
    kept: Vec<Box<dyn Send>>,
    published: Published,
    process: Process,
    /// When a send last asked the driver whether the kernel has returned.
    asked: Instant,
    /// [`Groups`], for a grouped kernel.
    shared: Option<Pages>,
    region: PinnedBuffer<Page>,
    stream: Stream,
}

struct Relaunch {
    module: Module,
    kernel: Box<str>,
    shape: Shape,
    arguments: Vec<u64>,
    prepared: Launch,
}

#[derive(Clone, Copy)]
struct Shape {
    /// The number of groups of a `grouped fn`, whose first argument after the four is the address of [`Groups`]; `None` for another kernel, which has one
    /// group.
    groups: Option<u32>,
    /// The warps of each group; several for a `block fn`.
    warps: u32,
    /// The caller of `open_raw` promises how the kernel uses memory; else [`Persistent`] does.
    is_raw: bool,
}

impl Shape {
    const RAW: Self = Self { groups: None, warps: 1, is_raw: true };
}

impl Relaunch {
    /// Gives the launch an epoch of its own, for some 2^32 launches, and prepares the control block and the telemetry for it.
    ///
    /// # Safety
    ///
    /// No kernel runs on these, and until the value returned is dropped nothing else on the host writes to the block.
    unsafe fn prepare<'a>(&mut self, block: &'a Shared<HostWord>, telemetry: &telemetry::Shared<HostWord>) -> HostSide<'a, HostWord> {
        static EPOCH: AtomicU32 = AtomicU32::new(0);

        // 0 means "no launch".
        self.prepared.epoch = EPOCH.fetch_add(1, Relaxed).checked_add(1).unwrap_or(1);
        if let Some(epoch) = self.arguments.get_mut(1) {
            *epoch = u64::from(self.prepared.epoch);
        }
        // SAFETY: no kernel writes there, as the caller promises.
        unsafe { telemetry.reset() };
        // SAFETY: the caller promises that no kernel runs on the block, and that only the value returned writes the host's line.
        unsafe { HostSide::prepare(block, &self.prepared) }
    }
}

impl<I: RingMessage, O: RingMessage> Channel<I, O> {
    /// Loads and launches a kernel with default settings, and waits until it is active.
    ///
    /// # Errors
    ///
    /// - The backend's error, for short memory or an invalid image; [`Error::Abi`] for other layouts.
    /// - [`Error::Residency`], or the launch's error.
    /// - [`Error::Kernel`] if it faulted, returned or timed out.
    /// - [`Error::Unsupported`] without mutually visible pinned memory. Also for a device without concurrent access to managed memory: there, use
    ///   [`open_raw`](Self::open_raw).
    pub fn open<B: Backend + ?Sized>(backend: &Arc<B>, device: u32, kernel: Persistent<I, O>) -> Result<Self> {
        Self::builder(kernel).open(backend, device)
    }

    /// Returns a builder.
    pub fn builder(kernel: Persistent<I, O>) -> Builder<I, O> {
        Builder::new(kernel)
    }

    /// Launches a kernel by name, with its own arguments, and waits until it is active.
    ///
    /// # Errors
    ///
    /// - As [`open`](Self::open), and the backend's error for an invalid capacity or an unknown kernel.
    ///
    /// # Safety
    ///
    /// The kernel is written for one block of one warp. Until it has left, even if this fails:
    ///
    /// - memory in `options.arguments` is live and used as the kernel documents: let the channel [`keep_alive`](Self::keep_alive) it;
    /// - without [`concurrent_managed_access`](crate::backend::Capabilities::concurrent_managed_access), there is no host slice of managed
    ///   memory.
    pub unsafe fn open_raw<B: Backend + ?Sized>(backend: &Arc<B>, device: u32, module: &Module, options: &Options<'_>) -> Result<Self> {
        // SAFETY: until the kernel has left, even if this fails, the caller promises live memory in the arguments, used as the kernel documents, and, without
        // concurrent managed access, no host slice of managed memory. The kernel is written for one block of one warp.
        unsafe { Self::open_with(&Arc::clone(backend).erased(), device, module, options, Shape::RAW) }
    }

    /// # Safety
    ///
    /// As [`open_raw`](Self::open_raw), but the kernel is written for `shape`.
    unsafe fn open_with(backend: &Arc<dyn Backend>, device: u32, module: &Module, options: &Options<'_>, shape: Shape) -> Result<Self> {
        let capabilities = backend.capabilities(device)?;
        if !capabilities.system_scope {
            return Err(Error::Unsupported {
                what: "a channel on a device that does not see the host's stores to pinned memory while a kernel runs",
            });
        }
        let mut plan = Plan::new();
        let control_at = plan.place(kind::CONTROL, size_of::<ControlBlock<u64>>() as u64, 128)?;
        let telemetry_at = plan.place(kind::TELEMETRY, size_of::<TelemetryBuffer<u64>>() as u64, 128)?;
        let pages = plan.size().div_ceil(size_of::<Page>() as u64);
        let memory = Pinned::new(backend, device);
        let region = PinnedBuffer::<Page>::new(memory, usize::try_from(pages).unwrap_or(usize::MAX))?;
        let (Some(base), Some(address)) = (region.as_ptr().map(NonNull::cast::<u8>), region.device_address()) else {
            return Err(Error::Unsupported { what: "pinned memory without a host or a device address" });
        };
        let address = address.get();
        let abi = module.abi().hash;
        // SAFETY: the region is as long as the plan, and not shared yet.
        unsafe { plan.write::<HostWord>(base, region.size_bytes() as u64, abi) }?;
        // SAFETY: aligned, within the region, which outlives the borrows: see the fields.
        let (block, telemetry) = unsafe {
            let at = |offset: u64| base.add(offset as usize);
            (at(control_at).cast::<Shared<HostWord>>().as_ref(), at(telemetry_at).cast::<telemetry::Shared<HostWord>>().as_ref())
        };

        let visibility = MemoryVisibility::detect(backend, device)?.visibility;
        let strategy = options.strategy.unwrap_or_else(|| TransferStrategy::for_device(visibility, &capabilities));
        let placement = options.placement.filter(|_| !strategy.shares());
        let capacity = [options.input_capacity, options.output_capacity];
        let bridged = bridge::Options { strategy, placement, capacity, start: options.start };
        let Opened { sender, receiver, bridge } = RingBufferBridge::open_on(backend, device, &bridged, visibility)?;
        let [input, output] = bridge.addresses()?;
        let prepared = Launch {
            abi,
            capabilities: Capabilities::SYSTEM_SCOPE | Capabilities::TELEMETRY,
            epoch: 0,
            input_ring: input.own,
            output_ring: output.own,
            second_headers: [input, output]
                .map(|ring| (ring.peer != ring.own).then_some(SecondHeader { address: ring.peer, is_polled: false })),
            telemetry: address + telemetry_at,
        };
        let mut arguments = std::vec![address + control_at, 0, nanoseconds(options.idle), options.batch];
        let mut shared = None;
        if shape.groups.is_some() {
            // In device memory, where the groups reserve by read-modify-writes. Each launch begins the counters anew.
            let mut pages = Pages::new(backend, device, MemoryLocation::Device, size_of::<Groups<u64>>() as u64)?;
            pages.copy_from(&[Page { bytes: [0; 4096] }])?;
            arguments.push(pages.address()?.get());
            shared = Some(pages);
        }
        arguments.extend_from_slice(options.arguments);
        let mut launch = Relaunch { module: module.clone(), kernel: options.kernel.into(), shape, arguments, prepared };
        // SAFETY: no kernel runs on this new region; only this channel writes the host's line.
        let control = unsafe { launch.prepare(block, telemetry) };
        let mut channel = Self {
            sender,
            receiver,
            bridge,
            control,
            block,
            telemetry,
            opened: Instant::now(),
            watchdog: Watchdog::new(nanoseconds(options.stuck_after)),
            timeout: options.timeout,
            recv_limit: options.recv_timeout,
            launch,
            kernel: None,
            kept: Vec::new(),
            published: Published::new(options)?,
            process: Process::this(),
            asked: Instant::now(),
            shared,
            region,
            stream: Stream::new(backend, device)?,
        };
        // SAFETY: until the kernel has left, even if this fails, the caller promises live memory in the arguments, used as the kernel documents, and, without
        // concurrent managed access, no host slice of managed memory. The channel is new: no kernel runs on its memory, which was prepared above for this
        // launch.
        unsafe { channel.start() }?;
        Ok(channel)
    }

    /// # Safety
    ///
    /// As [`open_raw`](Self::open_raw); no kernel runs on this channel's memory, which is [prepared](Relaunch::prepare) for one launch.
    unsafe fn start(&mut self) -> Result<()> {
        let Relaunch { module, kernel, shape, arguments, .. } = &self.launch;
        let (groups, warps) = (shape.groups.unwrap_or(1), shape.warps);
        // SAFETY: region and rings hold all that the control block names, and list the launch below; the caller promises that other memory
        // in the arguments stays live and is used as the kernel documents, and that no host slice of managed memory is in the way. The kernel is
        // written for this shape: `Builder::open` has checked it, or the caller of `open_raw` promises it.
        let kernel = unsafe { self.stream.queue_launch(module, kernel, arguments, [groups, warps], true) }?;
        let ticket = kernel.ticket();
        // First, so that the drop terminates the kernel if a later step fails.
        self.kernel = Some(kernel);
        if let Some(ticket) = ticket {
            self.region.used(ticket);
            self.bridge.used(ticket)?;
            self.shared.as_mut().map_or(Ok(()), |shared| shared.used(ticket))?;
        }
        self.watch();
        self.command(Command::ACTIVATE)?;
        self.wait(|channel| channel.state() == Some(State::Active))?;
        event!(debug, kernel = &*self.launch.kernel, epoch = self.launch.prepared.epoch, "kernel active");
        Ok(())
    }

    /// Relaunches an ended kernel on the same rings, from the first unanswered message.
    ///
    /// # Errors
    ///
    /// [`Busy`](Error::Busy) if it has not ended, or has not returned from its last state within the [`timeout`](Options::timeout);
    /// [`Unsupported`](Error::Unsupported) after [`open_raw`](Self::open_raw), or in a forked process; else as [`open`](Self::open).
    pub fn restart(&mut self) -> Result<()> {
        if self.launch.shape.is_raw {
            return Err(Error::Unsupported { what: "Channel::restart after Channel::open_raw (use Channel::restart_raw)" });
        }
        // SAFETY: not raw, so `Builder::open` opened it: `Persistent` promises that the kernel uses only its control block, telemetry,
        // rings and the counters of its groups, and managed memory was checked.
        unsafe { self.restart_raw() }
    }

    /// As [`restart`](Self::restart), after [`open_raw`](Self::open_raw).
    ///
    /// # Errors
    ///
    /// As [`restart`](Self::restart); else as [`open_raw`](Self::open_raw).
    ///
    /// # Safety
    ///
    /// As [`open_raw`](Self::open_raw), for the new launch.
    pub unsafe fn restart_raw(&mut self) -> Result<()> {
        if !self.process.is_this() {
            return Err(self.fault(Duration::ZERO));
        }
        self.wait_for_return();
        if !self.has_returned() {
            return Err(Error::Busy { what: "the kernel has not ended" });
        }
        drop(self.kernel.take());
        // SAFETY: the old kernel has returned; only this channel writes the host's line.
        self.control = unsafe { self.launch.prepare(self.block, self.telemetry) };
        // SAFETY: until the new launch has left, even if this fails, the caller promises live memory in the arguments, used as the kernel documents, and,
        // without concurrent managed access, no host slice of managed memory. The old kernel has returned, so none runs on this channel's memory, which was
        // prepared above for this launch.
        unsafe { self.start() }
    }
}

impl<I: RingMessage, O: RingMessage> Channel<I, O> {
    /// Returns the counters of its bridge, to the kernel and to the host.
    ///
    /// ```
    /// use ringmem::backend::host::HostBackend;
    /// use ringmem::channel::Channel;
    /// use ringmem_kernels::echo::{ECHO, Echo};
    ///
    /// let backend = HostBackend::builder().build()?;
    /// let mut channel = Channel::open(&backend, 0, ECHO)?;
    /// channel.send(Echo { words: [7; 8] })?;
    /// channel.recv()?;
    /// assert_eq!(channel.metrics().map(|direction| direction.messages), [1, 1]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn metrics(&self) -> [bridge::Metrics; 2] {
        self.bridge.metrics()
    }
}

fn pause(times: &mut u32) {
    *times = times.saturating_add(1);
    if *times < 100 { std::thread::yield_now() } else { std::thread::sleep(Duration::from_micros(50)) }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// As [`dump`](Channel::dump), without a verdict or the kernel's rings.
impl<I: RingMessage, O: RingMessage> fmt::Debug for Channel<I, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.process.is_this() {
            return f.debug_struct("Channel").finish_non_exhaustive();
        }
        let [input, output] = self.bridge.indices();
        f.debug_struct("Channel")
            .field("control", &self.control)
            .field("telemetry", self.telemetry)
            .field("input", &input)
            .field("output", &output)
            .finish_non_exhaustive()
    }
}

impl<I: RingMessage, O: RingMessage> Drop for Channel<I, O> {
    fn drop(&mut self) {
        let Some(kernel) = self.kernel.take() else { return };
        // A forked process has neither the kernel nor, with a driver, its memory: both are the parent's.
        if !self.process.is_this() {
            forget((kernel, take(&mut self.kept)));
            return;
        }
        if !kernel.is_done() {
            self.control.command(Command::TERMINATE);
            let begun = Instant::now();
            while !kernel.is_done() && begun.elapsed() < self.timeout {
                std::thread::sleep(Duration::from_micros(50));
            }
        }
        if !kernel.is_done() {
            self.control.abandon();
            if let Some(ticket) = kernel.ticket() {
                self.stream.backend().keep(Box::new(take(&mut self.kept)), &Uses::of(ticket), None);
            }
        }
    }
}
