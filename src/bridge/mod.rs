//! [`RingBufferBridge`]: messages between a host's rings and a kernel's.
//!
//! A ring is quick where whoever polls it polls its own memory. So there are two of a kind, one in the host's memory and one where the kernel
//! wants it, and the bridge moves what stands in one to the same slots of the other, by a [`TransferStrategy`].
//!
//! 1. Every message arrives once, whole and in order: also when the other side is full, when a call fails, when a clock of the user's panics in it, when
//!    the bridge is dropped. What has failed is done again by the next flush.
//! 2. A flush of n messages is one copy, or two where they wrap, and one index word; the index after the messages.
//! 3. A slot is given back when its copy is over, not when it was queued.
//! 4. Nothing here waits for a kernel. A flush that finds nothing, or no room, says 0.
//! 5. What a kernel writes is believed as far as it can be true: an index that claims more is [`Corrupt`](crate::attach::Corrupt).
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
//! // The kernel's ring is full, and nobody takes from it: these wait here, in order.
//! sender.push(Echo { words: [4; 8] }).expect("the first four have gone");
//! assert_eq!((bridge.flush_to_device()?, bridge.pending()), (0, [1, 0]));
//! // Nor has anybody answered.
//! assert_eq!(bridge.flush_to_host()?, 0);
//! assert!(receiver.pop().is_err());
//! # Ok::<(), ringmem::Error>(())
//! ```
//!
//! # With a kernel
//!
//! A [`Channel`](crate::channel::Channel) has a bridge inside, and moves messages as they are sent and received.
//!
//! ```
//! use ringmem::backend::host::HostBackend;
//! use ringmem::bridge::TransferStrategy;
//! use ringmem::channel::{Channel, Options};
//! use ringmem::stream::Module;
//! use ringmem_kernels::echo::Echo;
//! use ringmem_kernels::{ABI, IMAGE};
//!
//! let backend = HostBackend::builder().build()?;
//! let module = Module::load(&backend, &IMAGE, &ABI)?;
//! let options = Options { strategy: Some(TransferStrategy::Async), ..Options::new("echo") };
//! // SAFETY: `echo` takes no arguments of its own.
//! let mut channel = unsafe { Channel::<Echo, Echo>::open(&backend, 0, &module, &options) }?;
//! channel.send(Echo { words: [7; 8] }).expect("room");
//! let answer = loop {
//!     match channel.receive() {
//!         Ok(answer) => break answer,
//!         // Says so if the kernel has left: nothing would ever come.
//!         Err(_) => channel.check()?,
//!     }
//! };
//! assert_eq!(answer.words, [7; 8]);
//! channel.close()?;
//! # Ok::<(), ringmem::Error>(())
//! ```

mod carrier;
mod down;
mod far;
mod lent;
mod metrics;
mod near;
mod pace;
mod pair;
mod pump;
mod strategy;
mod up;

use core::fmt;
use core::sync::atomic::Ordering::SeqCst;
use core::sync::atomic::fence;
use std::boxed::Box;
use std::sync::Arc;

use carrier::Carrier;
use down::Down;
use far::{Far, Line};
use metrics::Counts;
use near::Near;
use up::Up;

use crate::backend::{Backend, MemoryLocation, Ticket, Uses};
use crate::dump::Indices;
use crate::ring::RingFlags;
use crate::stream::Pending;
use crate::{MemoryVisibility, Result, RingMessage};

pub use far::RingAddresses;
pub use metrics::Metrics;
pub use near::{BatchReceiver, BatchSender, Receiver, Sender};
pub(crate) use pump::MOST_FAILURES;
pub use pump::{Pump, Stopped};
pub use strategy::TransferStrategy;

/// Where the ring is that a kernel is an end of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The slots, and the header that the kernel polls.
    pub slots: MemoryLocation,
    /// A header of its own for what the kernel publishes, and where; `None` for one header.
    pub peer_header: Option<MemoryLocation>,
}

/// How a bridge is made.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How messages are moved.
    pub strategy: TransferStrategy,
    /// Where the kernel's rings are, from the host and to it. Where both sides share them, both are in memory that both sides see, with one header.
    pub placement: [Placement; 2],
    /// Slots from the host to the device and back, each a power of two; the near ring and the far one have as many.
    pub capacity: [u64; 2],
    /// Where the indices begin.
    pub start: u64,
}

impl Options {
    /// 1024 slots each way from index 0; where both sides share them in pinned memory, else in the device's, with the indices that the host polls in pinned memory:
    /// where host and kernel do not see each other's stores to that, take [`Placement::DEVICE`].
    #[must_use]
    pub const fn new(strategy: TransferStrategy) -> Self {
        let placement = if strategy.shares() { Placement::PINNED } else { Placement::SPLIT };
        Self { strategy, placement: [placement; 2], capacity: [1024; 2], start: 0 }
    }
}

/// Moves messages `I` from a host's ring to a kernel's, and `O` back.
pub struct RingBufferBridge<I: RingMessage, O: RingMessage> {
    up: Way<Up<I>>,
    down: Way<Down<O>>,
    counts: [Arc<Counts>; 2],
    backend: Arc<dyn Backend>,
    /// To the device and to the host.
    rows: [Row; 2],
    /// Messages that polls have moved to the device since the last that looked for answers.
    unanswered: u64,
}

/// Polls that failed in one direction, since it last got anywhere.
#[derive(Clone, Copy, Default)]
struct Row {
    count: u32,
    /// Where the direction was when the last of them failed.
    at: Mark,
}

/// Where a direction is.
#[derive(Clone, Copy, Default)]
struct Mark {
    /// The index up to which all has arrived.
    arrived: u64,
    /// Looks that were begun.
    looks: u64,
}

impl Row {
    /// Takes note of a poll. One that only waits until a look is due, or until what it queued is over, ends no row; nor does what the other direction does.
    fn note(&mut self, failed: bool, at: Mark, has_got_on: impl FnOnce(Mark) -> bool) {
        if failed {
            *self = Self { count: self.count.saturating_add(1), at };
        } else if self.count > 0 && has_got_on(self.at) {
            self.count = 0;
        }
    }
}

/// One direction.
enum Way<M> {
    /// Both sides map this ring.
    Shared(Arc<Near>),
    Moved(M),
}

/// What a new bridge is: the ends of its users, and itself.
pub struct Opened<I: RingMessage, O: RingMessage> {
    /// Gives messages.
    pub sender: Sender<I>,
    /// Takes answers.
    pub receiver: Receiver<O>,
    /// Moves both.
    pub bridge: RingBufferBridge<I, O>,
}

impl<I: RingMessage, O: RingMessage> RingBufferBridge<I, O> {
    /// Two pairs of rings and what moves messages between them. The kernel is given their [`addresses`](Self::addresses).
    ///
    /// # Errors
    ///
    /// No such ring, no memory, no such device; [`Unsupported`](crate::Error::Unsupported) for a placement that the strategy cannot serve.
    pub fn open<B: Backend + ?Sized>(backend: &Arc<B>, device: u32, options: &Options) -> Result<Opened<I, O>> {
        let backend = &Arc::clone(backend).erased();
        let Options { strategy, placement, capacity, start } = *options;
        let visibility = MemoryVisibility::detect(backend, device)?.visibility;
        strategy.check(visibility, &placement, backend.capabilities(device)?.system_scope)?;
        let counts = [Arc::<Counts>::default(), Arc::default()];
        let kind = if strategy == TransferStrategy::Flagged { RingFlags::FLAGGED } else { RingFlags::SPSC };
        let near_up = Arc::new(Near::new::<I>(backend, device, kind, capacity[0], start)?);
        let near_down = Arc::new(Near::new::<O>(backend, device, kind, capacity[1], start)?);
        // SAFETY: called once for each of these rings; the bridge or the kernel is the other end.
        let (sender, receiver) = unsafe { (Sender::new(&near_up)?, Receiver::new(&near_down)?) };
        if strategy.shares() {
            return Ok(Opened { sender, receiver, bridge: Self::of(Way::Shared(near_up), Way::Shared(near_down), counts, backend) });
        }
        let carrier = |counts: &Arc<Counts>| Carrier::new(backend, device, strategy, Arc::clone(counts));
        let far_up = Far::new::<I>(backend, device, placement[0], capacity[0], start)?;
        let far_down = Far::new::<O>(backend, device, placement[1], capacity[1], start)?;
        // SAFETY: these rings' only other ends are those that were made above, and a kernel.
        let (up, down) =
            unsafe { (Up::new(near_up, far_up, carrier(&counts[0])?)?, Down::new(near_down, far_down, carrier(&counts[1])?)?) };
        Ok(Opened { sender, receiver, bridge: Self::of(Way::Moved(up), Way::Moved(down), counts, backend) })
    }

    fn of(up: Way<Up<I>>, down: Way<Down<O>>, counts: [Arc<Counts>; 2], backend: &Arc<dyn Backend>) -> Self {
        Self { up, down, counts, backend: Arc::clone(backend), rows: <[Row; 2]>::default(), unanswered: 0 }
    }

    /// What a kernel takes: the ring that it consumes from, and the one that it produces into.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::Error::Unsupported) for memory without a device address.
    pub fn addresses(&self) -> Result<[RingAddresses; 2]> {
        let input = match &self.up {
            Way::Shared(near) => near.addresses(),
            Way::Moved(up) => up.pair.far.addresses(),
        }?;
        let output = match &self.down {
            Way::Shared(near) => near.addresses(),
            Way::Moved(down) => down.pair.far.addresses(),
        }?;
        Ok([input, output])
    }

    /// Lists a launch as a use of the kernel's rings: they live until it is over, whatever becomes of this bridge.
    ///
    /// # Errors
    ///
    /// [`Busy`](crate::Error::Busy) for more launches than can be listed.
    pub fn used_by(&mut self, kernel: &Pending<()>) -> Result<()> {
        let Some(ticket) = kernel.ticket() else { return Ok(()) };
        self.used(ticket)
    }

    pub(crate) fn used(&mut self, ticket: Ticket) -> Result<()> {
        let keep = |near: &Arc<Near>| self.backend.keep(Box::new(Arc::clone(near)), &Uses::of(ticket));
        match &mut self.up {
            Way::Shared(near) => keep(near),
            Way::Moved(up) => up.pair.far.used(ticket)?,
        }
        match &mut self.down {
            Way::Shared(near) => keep(near),
            Way::Moved(down) => down.pair.far.used(ticket)?,
        }
        Ok(())
    }

    /// Moves what waits at the host's ring: how many messages it moved, or queued. Where both sides share the ring: how many wait in it.
    ///
    /// # Errors
    ///
    /// What the backend said, or that the kernel's index is corrupt; nothing is lost, and the next flush goes on.
    pub fn flush_to_device(&mut self) -> Result<u64> {
        let (is_paced, moved) = match &mut self.up {
            Way::Shared(near) => return Ok(near.waiting::<I>(&self.counts[0])),
            Way::Moved(up) => (up.pair.carrier.is_paced(), up.flush()?),
        };
        if is_paced {
            self.hurry(moved);
        }
        Ok(moved)
    }

    /// Moves what waits at the kernel's ring: how many messages have arrived. Where both sides share the ring: how many wait in it.
    ///
    /// # Errors
    ///
    /// As [`flush_to_device`](Self::flush_to_device).
    pub fn flush_to_host(&mut self) -> Result<u64> {
        let (is_paced, moved) = match &mut self.down {
            Way::Shared(near) => return Ok(near.waiting::<O>(&self.counts[1])),
            Way::Moved(down) => (down.pair.carrier.is_paced(), down.flush()?),
        };
        if is_paced {
            self.hurry(moved);
        }
        Ok(moved)
    }

    /// What is moved one way makes room and answers the other way.
    const fn hurry(&mut self, moved: u64) {
        if let (Way::Moved(up), Way::Moved(down), 1..) = (&mut self.up, &mut self.down, moved) {
            up.pair.carrier.hurry();
            down.pair.carrier.hurry();
        }
    }

    /// Both: how many messages were moved to the device, and how many have arrived at the host.
    ///
    /// # Errors
    ///
    /// As [`flush_to_device`](Self::flush_to_device); the other direction was flushed all the same.
    pub fn poll(&mut self) -> Result<[u64; 2]> {
        let (up, down) = (self.poll_up(), self.poll_down());
        Ok([up?, down?])
    }

    /// The same by who has just sent. Answers are looked for only where nothing was moved, or the kernel's ring for them may be half full by now, one for each message: it
    /// would wait for room there in vain.
    pub(crate) fn poll_sent(&mut self) -> Result<[u64; 2]> {
        let up = self.poll_up();
        let has_room = match &self.down {
            Way::Shared(_) => true,
            Way::Moved(down) => self.unanswered < down.capacity().div_ceil(2),
        };
        let down = if has_room && matches!(up, Ok(1..)) { Ok(0) } else { self.poll_down() };
        Ok([up?, down?])
    }

    /// The same by who waits for answers: these first. Where nothing waits to be sent, the device is asked for nothing else.
    pub(crate) fn poll_waiting(&mut self) -> Result<[u64; 2]> {
        let (down, up) = (self.poll_down(), self.poll_up());
        Ok([up?, down?])
    }

    fn poll_up(&mut self) -> Result<u64> {
        let moved = self.flush_to_device();
        if let Way::Moved(up) = &self.up {
            self.rows[0].note(moved.is_err(), up.mark(), |since| up.has_got_on(since));
        }
        self.unanswered = self.unanswered.saturating_add(*moved.as_ref().unwrap_or(&0));
        moved
    }

    fn poll_down(&mut self) -> Result<u64> {
        self.unanswered = 0;
        let moved = self.flush_to_host();
        if let Way::Moved(down) = &self.down {
            self.rows[1].note(moved.is_err(), down.mark(), |since| down.has_got_on(since));
        }
        moved
    }

    /// Another try of what has failed before: rows begin anew.
    pub(crate) fn try_again(&mut self) {
        self.rows = Default::default();
    }

    /// Polls that failed in a row, to the device and to the host.
    pub(crate) const fn failing(&self) -> [u32; 2] {
        [self.rows[0].count, self.rows[1].count]
    }

    /// Messages that have not arrived at the kernel's ring, and those that were seen there and have not arrived at the host's.
    #[must_use]
    pub fn pending(&self) -> [u64; 2] {
        let up = match &self.up {
            Way::Shared(_) => 0,
            Way::Moved(up) => up.pending(),
        };
        let down = match &self.down {
            Way::Shared(_) => 0,
            Way::Moved(down) => down.pending(),
        };
        [up, down]
    }

    /// Whether there is something to move: whether the kernel's rings are not the host's.
    pub(crate) const fn moves(&self) -> bool {
        matches!(self.up, Way::Moved(_))
    }

    /// Reads the kernel's index of the input ring. Returns how many messages were sent and the kernel has not taken, and whether the read
    /// succeeded: if it failed, the count uses the last index that was read. `None` if both sides share the ring: the
    /// [sender](Sender::refresh) knows the index then.
    ///
    /// A flush reads the index only if the ring looks full. After this call the next flush can use all slots that the kernel has released.
    pub fn untaken(&mut self) -> Option<(u64, Result<()>)> {
        match &mut self.up {
            Way::Shared(_) => None,
            Way::Moved(up) => {
                let looked = up.look();
                Some((up.untaken(), looked))
            }
        }
    }

    /// Where the ends of the kernel's rings are, if those are not the host's.
    pub(crate) fn twins(&self) -> Option<Result<[Indices; 2]>> {
        let (Way::Moved(up), Way::Moved(down)) = (&self.up, &self.down) else { return None };
        let (input, output) = (up.pair.far_indices(Line::Head), down.pair.far_indices(Line::Tail));
        Some(input.and_then(|input| Ok([input, output?])))
    }

    /// Where the ends of the host's rings are.
    pub(crate) fn indices(&self) -> [Indices; 2] {
        let input = match &self.up {
            Way::Shared(near) => near,
            Way::Moved(up) => &up.pair.near,
        };
        let output = match &self.down {
            Way::Shared(near) => near,
            Way::Moved(down) => &down.pair.near,
        };
        [input.indices::<I>(), output.indices::<O>()]
    }

    /// What has been done, to the device and to the host.
    #[must_use]
    pub fn metrics(&self) -> [Metrics; 2] {
        [self.counts[0].read(), self.counts[1].read()]
    }
}

impl Near {
    fn addresses(&self) -> Result<RingAddresses> {
        let own = self.pages.address()?.get();
        Ok(RingAddresses { own, peer: own, slots: own + self.layout.slots_offset() })
    }

    /// Messages in the ring, when all that the host did before is visible to whoever looks.
    fn waiting<T: RingMessage>(&self, counts: &Counts) -> u64 {
        fence(SeqCst);
        counts.fences.add(1);
        let Indices { head, tail, capacity } = self.indices::<T>();
        tail.wrapping_sub(head).min(capacity)
    }
}

impl<I: RingMessage, O: RingMessage> fmt::Debug for RingBufferBridge<I, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RingBufferBridge").field("pending", &self.pending()).field("metrics", &self.metrics()).finish_non_exhaustive()
    }
}
