//! [`RingBufferBridge`]: moves messages between rings in host and device memory.
//!
//! Polling is fast only in local memory, so each direction has a ring on each side. A flush copies messages between them by a
//! [`TransferStrategy`].
//!
//! Use a bridge with kernels that you launch, a [`Channel`](crate::channel::Channel) for a persistent kernel, [`stream`](crate::stream) for
//! buffers, and [`ring`](crate::ring) between threads.
//!
//! 1. Messages arrive whole, in order and at most once; none is lost while the bridge lives.
//! 2. A flush is one copy (two where messages wrap) and one index store; it never waits for a kernel.
//! 3. A slot is released when its copy is complete.
//! 4. An index of the kernel outside the ring is [`Corrupt`](crate::attach::Corrupt).
//!
//! A bridge launches no kernel, encodes no message and has no thread: flush it, `poll` it, or use a [`Pump`].
//!
//! # A bridge by itself
//!
//! ```
//! use ringmem::backend::host::HostBackend;
//! use ringmem::bridge::{Opened, Options, RingBufferBridge, TransferStrategy};
//! use ringmem_kernels::echo::Echo;
//!
//! let backend = HostBackend::builder().build()?;
//! let options = Options { capacity: [4; 2], ..Options::new(TransferStrategy::Sync) };
//! let Opened { mut sender, mut receiver, mut bridge } = RingBufferBridge::<Echo, Echo>::open(&backend, 0, &options)?;
//! // A kernel is launched with these, and the launch listed with `used_by`.
//! let [input, output] = bridge.addresses()?;
//! assert_ne!(input, output);
//!
//! for id in 0..4 {
//!     sender.push(Echo { words: [id; 8] }).expect("room");
//! }
//! assert_eq!(bridge.flush_to_device()?, 4);
//! // The kernel's ring is full and no kernel pops from it: later messages wait here, in order.
//! sender.push(Echo { words: [4; 8] }).expect("the first four were moved");
//! assert_eq!((bridge.flush_to_device()?, bridge.pending()), (0, [1, 0]));
//! // There are no answers.
//! assert_eq!(bridge.flush_to_host()?, 0);
//! assert!(receiver.pop().is_err());
//! # Ok::<(), ringmem::Error>(())
//! ```
//!
//! # With a kernel
//!
//! ```
//! use ringmem::backend::host::HostBackend;
//! use ringmem::bridge::TransferStrategy;
//! use ringmem::channel::Channel;
//! use ringmem_kernels::echo::{ECHO, Echo};
//!
//! let backend = HostBackend::builder().build()?;
//! let mut channel = Channel::builder(ECHO).strategy(TransferStrategy::Async).open(&backend, 0)?;
//! channel.send(Echo { words: [7; 8] })?;
//! assert_eq!(channel.recv()?.words, [7; 8]);
//! channel.close()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod device_ring;
mod direction;
mod ends;
mod host_ring;
mod metrics;
mod options;
mod pump;
mod strategy;
mod transport;

use core::fmt;
use std::sync::Arc;

use device_ring::Line;
use direction::{Direction, Transfer};
use host_ring::HostRing;

use crate::backend::{Backend, Ticket};
use crate::dump::Indices;
use crate::ring::spsc::{Consumer, Producer};
use crate::stream::Pending;
use crate::{Host, MemoryVisibility, Result, RingMessage};

pub use device_ring::RingAddresses;
pub use ends::{BatchReceiver, BatchSender, Receiver, Sender};
pub use metrics::Metrics;
pub use options::{Options, Placement};
pub(crate) use pump::{MOST_FAILURES, SLEEP};
pub use pump::{Pump, Stopped};
pub use strategy::TransferStrategy;

/// Moves messages `I` from a host's ring to a kernel's, and answers `O` back.
///
/// In a forked process, use neither it nor its ends, nor a future that waits for one: a driver's memory is not mapped there. Drops of them all change nothing.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::bridge::{Opened, Options, RingBufferBridge, TransferStrategy};
/// use ringmem_kernels::echo::Echo;
///
/// let backend = HostBackend::builder().build()?;
/// let options = Options::new(TransferStrategy::Sync);
/// let Opened { mut sender, mut bridge, .. } = RingBufferBridge::<Echo, Echo>::open(&backend, 0, &options)?;
/// sender.push_slice(&[Echo { words: [7; 8] }; 10]).expect("a valid index");
/// assert_eq!(bridge.pending(), [10, 0]);
/// assert_eq!(bridge.poll()?, [10, 0]); // ten messages up, no answers
/// # Ok::<(), ringmem::Error>(())
/// ```
pub struct RingBufferBridge<I: RingMessage, O: RingMessage> {
    to_device: Direction<Consumer<'static, I, Host>>,
    to_host: Direction<Producer<'static, O, Host>>,
    backend: Arc<dyn Backend>,
    unanswered: u64,
}

/// A new bridge and the user's ends of its rings.
///
/// ```
/// use std::thread;
///
/// use ringmem::backend::host::HostBackend;
/// use ringmem::bridge::{Opened, Options, RingBufferBridge, TransferStrategy};
/// use ringmem_kernels::echo::Echo;
///
/// let backend = HostBackend::builder().build()?;
/// let options = Options::new(TransferStrategy::Sync);
/// let Opened { mut sender, receiver, mut bridge } = RingBufferBridge::<Echo, Echo>::open(&backend, 0, &options)?;
/// thread::spawn(move || sender.push(Echo { words: [7; 8] }).expect("room")).join().unwrap(); // each can move to its own thread
/// assert_eq!(bridge.flush_to_device()?, 1);
/// # drop(receiver);
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Debug)]
pub struct Opened<I: RingMessage, O: RingMessage> {
    /// Pushes messages.
    pub sender: Sender<I>,
    /// Pops answers.
    pub receiver: Receiver<O>,
    /// Moves both.
    pub bridge: RingBufferBridge<I, O>,
}

impl<I: RingMessage, O: RingMessage> RingBufferBridge<I, O> {
    /// Allocates the rings.
    ///
    /// # Errors
    ///
    /// An invalid ring, no memory or device; [`Unsupported`](crate::Error::Unsupported) for a placement unfit for the strategy.
    pub fn open<B: Backend + ?Sized>(backend: &Arc<B>, device: u32, options: &Options) -> Result<Opened<I, O>> {
        let backend = Arc::clone(backend).erased();
        let visibility = MemoryVisibility::detect(&backend, device)?.visibility;
        Self::open_on(&backend, device, options, visibility)
    }

    /// As [`open`](Self::open), for a caller that has detected the device's visibility.
    pub(crate) fn open_on(
        backend: &Arc<dyn Backend>,
        device: u32,
        options: &Options,
        visibility: MemoryVisibility,
    ) -> Result<Opened<I, O>> {
        let Options { strategy, placement, capacity, start } = *options;
        let capabilities = backend.capabilities(device)?;
        let placement = placement.unwrap_or([Placement::default_for(strategy, visibility, &capabilities); 2]);
        options::check(strategy, visibility, &placement, capabilities.system_scope)?;
        let kind = strategy.ring_kind();
        let input = Arc::new(HostRing::new::<I>(backend, device, kind, capacity[0], start)?);
        let output = Arc::new(HostRing::new::<O>(backend, device, kind, capacity[1], start)?);
        // SAFETY: once for each ring; the other end is the bridge's or the kernel's.
        let (sender, receiver) = unsafe { (Sender::new(&input)?, Receiver::new(&output)?) };
        // SAFETY: once for each ring; the other ends are the sender and the receiver.
        let (to_device, to_host) = unsafe {
            let to_device = Direction::open(backend, device, strategy, placement[0], input, start)?;
            (to_device, Direction::open(backend, device, strategy, placement[1], output, start)?)
        };
        Ok(Opened { sender, receiver, bridge: Self { to_device, to_host, backend: Arc::clone(backend), unanswered: 0 } })
    }

    /// Returns the addresses of the kernel's input and output rings.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::Error::Unsupported) for memory without a device address.
    pub fn addresses(&self) -> Result<[RingAddresses; 2]> {
        Ok([self.to_device.addresses()?, self.to_host.addresses()?])
    }

    /// Keeps the kernel's rings until its launch is complete.
    ///
    /// # Errors
    ///
    /// [`Busy`](crate::Error::Busy) with too many listed launches.
    pub fn used_by(&mut self, kernel: &Pending<()>) -> Result<()> {
        let Some(ticket) = kernel.ticket() else { return Ok(()) };
        self.used(ticket)
    }

    pub(crate) fn used(&mut self, ticket: Ticket) -> Result<()> {
        self.to_device.used(&*self.backend, ticket)?;
        self.to_host.used(&*self.backend, ticket)
    }

    /// Moves messages to the kernel's ring; returns how many, or the number in a shared ring.
    ///
    /// # Errors
    ///
    /// The backend's error, or [`Attach`](crate::Error::Attach) for a corrupt index; the next flush repeats the failed part.
    pub fn flush_to_device(&mut self) -> Result<u64> {
        let moved = self.to_device.flush()?;
        self.unanswered = self.unanswered.saturating_add(moved);
        if moved > 0 {
            self.hurry();
        }
        Ok(moved)
    }

    /// Moves messages to the host's ring; returns how many arrived, or the number in a shared ring.
    ///
    /// # Errors
    ///
    /// As [`flush_to_device`](Self::flush_to_device).
    pub fn flush_to_host(&mut self) -> Result<u64> {
        self.unanswered = 0;
        let moved = self.to_host.flush()?;
        if moved > 0 {
            self.hurry();
        }
        Ok(moved)
    }

    /// Polls soon, even if the indices have stood still for long.
    pub(crate) const fn hurry(&mut self) {
        if let (Some(up), Some(down)) = (&mut self.to_device.transfer, &mut self.to_host.transfer) {
            up.rings.transport.hurry();
            down.rings.transport.hurry();
        }
    }

    /// Flushes both directions, answers first; returns the counts to device and host.
    ///
    /// # Errors
    ///
    /// As [`flush_to_device`](Self::flush_to_device); the other direction is still flushed.
    pub fn poll(&mut self) -> Result<[u64; 2]> {
        let (down, up) = (self.flush_to_host(), self.flush_to_device());
        Ok([up?, down?])
    }

    /// Polls for answers only as the page of `channel` says: with a full output ring, the kernel would wait.
    pub(crate) fn flush_sent(&mut self) -> Result<()> {
        let up = self.flush_to_device();
        let has_room = self.to_host.transfer.as_ref().is_none_or(|down| self.unanswered < down.capacity().div_ceil(2));
        let down = if has_room && matches!(up, Ok(1..)) { Ok(0) } else { self.flush_to_host() };
        up.and(down).map(drop)
    }

    pub(crate) fn try_again(&mut self) {
        self.to_device.transfer.iter_mut().for_each(Transfer::forget_failures);
        self.to_host.transfer.iter_mut().for_each(Transfer::forget_failures);
    }

    pub(crate) fn failing(&self) -> [u32; 2] {
        [self.to_device.failing(), self.to_host.failing()]
    }

    /// Returns the messages not yet at the kernel's ring, and the seen answers not yet at the host's.
    #[must_use]
    pub fn pending(&self) -> [u64; 2] {
        [self.to_device.pending(), self.to_host.pending()]
    }

    pub(crate) const fn moves(&self) -> bool {
        self.to_device.transfer.is_some()
    }

    /// Polls the kernel's input index; returns the messages it has not popped, and the poll's result: after an error, the count is older.
    /// `None` for shared rings: use [`Sender::refresh`].
    pub fn untaken(&mut self) -> Option<(usize, Result<()>)> {
        let up = self.to_device.transfer.as_mut()?;
        let polled = up.poll(Line::Head);
        Some((up.untaken(), polled))
    }

    pub(crate) fn twins(&self) -> Option<Result<[Indices; 2]>> {
        let (input, output) = (
            self.to_device.transfer.as_ref()?.rings.device_indices(Line::Head),
            self.to_host.transfer.as_ref()?.rings.device_indices(Line::Tail),
        );
        Some(input.and_then(|input| Ok([input, output?])))
    }

    pub(crate) fn indices(&self) -> [Indices; 2] {
        [self.to_device.indices(), self.to_host.indices()]
    }

    /// Returns the counters to the device and to the host.
    #[must_use]
    pub fn metrics(&self) -> [Metrics; 2] {
        [self.to_device.metrics(), self.to_host.metrics()]
    }
}

impl<I: RingMessage, O: RingMessage> fmt::Debug for RingBufferBridge<I, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RingBufferBridge").field("pending", &self.pending()).field("metrics", &self.metrics()).finish_non_exhaustive()
    }
}
