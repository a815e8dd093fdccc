//! [`Channel`]: a running persistent kernel and the two rings to it.
//!
//! 1. Opening it lays out a region of pinned memory (control block, telemetry, a table of contents) and a [bridge] with both
//!    rings, launches the kernel and waits until it is ready.
//! 2. While it is open, only the protocols touch that memory, and the host's part of them goes through this value.
//! 3. The memory is given back only when the kernel has left, also if the channel is dropped before.
//! 4. A kernel that has ended can be launched again on the same rings, as another epoch: what it had not answered is still there.
//!
//! Only [`receive_timeout`](Channel::receive_timeout) waits for messages: else a ring that is full or empty says so. Where the kernel's rings are not the host's, sending and receiving
//! move messages between them; a batch moves when it is [flushed](Channel::flush), or with whatever is done next.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//!
//! use ringmem::backend::host::HostBackend;
//! use ringmem::channel::{Channel, Options};
//! use ringmem::stream::Module;
//! use ringmem_kernels::{ABI, IMAGE, echo::Echo};
//!
//! let backend = HostBackend::builder().build()?;
//! let module = Module::load(&backend, &IMAGE, &ABI)?;
//! // SAFETY: `echo` takes no arguments of its own: it uses nothing but the channel's memory.
//! let mut channel = unsafe { Channel::<Echo, Echo>::open(&backend, 0, &module, &Options::new("echo")) }?;
//! channel.send(Echo { words: [7; 8] })?;
//! assert_eq!(channel.receive_timeout(Duration::from_secs(10))?.words, [7; 8]);
//! assert_eq!(channel.close()?.control.processed, 1);
//! # Ok(())
//! # }
//! ```

mod options;

use core::mem::take;
use core::ptr::NonNull;
use std::boxed::Box;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};
use std::vec::Vec;

use crate::attach::{AttachError, Corrupt};
use crate::backend::{Backend, Uses};
use crate::bridge::{self, Opened, Placement, Receiver, RingBufferBridge, Sender, TransferStrategy};
use crate::control::{Capabilities, Command, Fault, HostSide, Launch, Shared, State};
use crate::dump::{Dump, Indices, Twins};
use crate::memory::{Page, Pinned, PinnedBuffer};
use crate::region::{Plan, kind};
use crate::ring::spsc::{BatchConsumer, BatchProducer, PopError, PushError};
use crate::stream::{Module, Pending, Stream};
use crate::telemetry::{self, Busy};
use crate::watchdog::{Verdict, Watchdog};
use crate::{ControlBlock, Error, Host, HostWord, MemoryVisibility, Result, RingMessage, TelemetryBuffer};

pub use options::Options;

/// A running kernel that takes `I` and answers `O`.
pub struct Channel<I: RingMessage, O: RingMessage> {
    sender: Sender<I>,
    receiver: Receiver<O>,
    bridge: RingBufferBridge<I, O>,
    // These borrow from `region`, which is declared after them and so dropped after them. Their `'static` is this struct's secret: none is
    // handed out.
    control: HostSide<'static, HostWord>,
    block: &'static Shared<HostWord>,
    telemetry: &'static telemetry::Shared<HostWord>,
    opened: Instant,
    watchdog: Watchdog,
    /// What the last flush failed with; the next one does it again.
    trouble: Option<Error>,
    launch: Relaunch,
    kernel: Option<Pending<()>>,
    kept: Vec<Box<dyn Send>>,
    region: PinnedBuffer<Page>,
    stream: Stream,
}

/// What a kernel is launched with, again and again.
struct Relaunch {
    module: Module,
    kernel: Box<str>,
    arguments: Vec<u64>,
    prepared: Launch,
}

/// What a kernel left behind.
#[derive(Clone, Copy, Debug)]
pub struct Closed {
    /// The control block, after the kernel has left.
    pub control: ControlBlock<u64>,
    /// The telemetry, after the kernel has left.
    pub telemetry: TelemetryBuffer<u64>,
}

/// How long a channel waits for a kernel to start, to obey and to leave.
const PATIENCE: Duration = Duration::from_secs(10);

impl<I: RingMessage, O: RingMessage> Channel<I, O> {
    /// Launches a kernel and waits until it takes messages.
    ///
    /// # Errors
    ///
    /// No such ring, no memory, no such kernel; [`Error::Kernel`] if it faulted or did not start in time.
    ///
    /// # Safety
    ///
    /// What `options.arguments` name is live, and used as the kernel says, until the kernel has left: let the channel [`keep`](Self::keep) it.
    /// Also where this fails: then a kernel that did not obey may still run.
    pub unsafe fn open<B: Backend + ?Sized>(backend: &Arc<B>, device: u32, module: &Module, options: &Options<'_>) -> Result<Self> {
        let mut plan = Plan::new();
        let control_at = plan.place(kind::CONTROL, size_of::<ControlBlock<u64>>() as u64, 128)?;
        let telemetry_at = plan.place(kind::TELEMETRY, size_of::<TelemetryBuffer<u64>>() as u64, 128)?;
        let pages = plan.size().div_ceil(size_of::<Page>() as u64);
        let backend = &Arc::clone(backend).erased();
        let memory = Pinned::<dyn Backend>::new(backend, device);
        let region = PinnedBuffer::<Page>::new(memory, usize::try_from(pages).unwrap_or(usize::MAX))?;
        let (Some(base), Some(address)) = (region.as_ptr().map(NonNull::cast::<u8>), region.device_address()) else {
            return Err(Error::Unsupported { what: "pinned memory at an address of the device" });
        };
        let address = address.get();
        let abi = module.abi().hash;
        // SAFETY: the region is as long as the plan, and nobody else has it yet.
        unsafe { plan.write::<HostWord>(base, region.size_bytes() as u64, abi) }?;
        // SAFETY: each offset is within the region, placed there for this purpose and aligned for it. The region outlives all of
        // these borrows: see the fields.
        let (block, telemetry) = unsafe {
            let at = |offset: u64| base.add(offset as usize);
            (at(control_at).cast::<Shared<HostWord>>().as_ref(), at(telemetry_at).cast::<telemetry::Shared<HostWord>>().as_ref())
        };

        let strategy = match options.strategy {
            Some(strategy) => strategy,
            None => TransferStrategy::for_device(MemoryVisibility::detect(backend, device)?.visibility, &backend.capabilities(device)?),
        };
        let placement = if strategy == TransferStrategy::Unified { [Placement::PINNED; 2] } else { options.placement };
        let capacity = [options.input_capacity, options.output_capacity];
        let bridged = bridge::Options { strategy, placement, capacity, start: options.start };
        let Opened { sender, receiver, bridge } = RingBufferBridge::open(backend, device, &bridged)?;
        let [input, output] = bridge.addresses()?;
        let prepared = Launch {
            abi,
            capabilities: Capabilities::SYSTEM_SCOPE | Capabilities::TELEMETRY,
            epoch: 0,
            input_ring: input.own,
            output_ring: output.own,
            telemetry: address + telemetry_at,
        };
        let mut arguments = std::vec![address + control_at, 0, nanoseconds(options.idle), options.batch];
        if placement.iter().any(|placement| placement.peer_header.is_some()) {
            arguments.extend([input.peer, input.slots, output.peer, output.slots]);
        }
        arguments.extend_from_slice(options.arguments);
        // SAFETY: no kernel runs on this block yet, and only this channel writes the host's line.
        let control = unsafe { HostSide::prepare(block, &prepared) };
        let mut channel = Self {
            sender,
            receiver,
            bridge,
            control,
            block,
            telemetry,
            opened: Instant::now(),
            watchdog: Watchdog::new(nanoseconds(options.stuck_after)),
            trouble: None,
            launch: Relaunch { module: module.clone(), kernel: options.kernel.into(), arguments, prepared },
            kernel: None,
            kept: Vec::new(),
            region,
            stream: Stream::new(backend, device)?,
        };
        // SAFETY: the caller's promise.
        unsafe { channel.start() }?;
        Ok(channel)
    }

    /// Launches the kernel as a new epoch and waits until it takes messages.
    ///
    /// # Safety
    ///
    /// That of `open`; no kernel runs on this channel's memory.
    unsafe fn start(&mut self) -> Result<()> {
        static EPOCH: AtomicU32 = AtomicU32::new(0);

        let Relaunch { module, kernel, arguments, prepared } = &mut self.launch;
        // 0 means "no launch".
        prepared.epoch = EPOCH.fetch_add(1, Relaxed).checked_add(1).unwrap_or(1);
        if let Some(epoch) = arguments.get_mut(1) {
            *epoch = u64::from(prepared.epoch);
        }
        // SAFETY: no kernel runs on this block, and only this channel writes the host's line.
        self.control = unsafe { HostSide::prepare(self.block, prepared) };
        // SAFETY: no kernel writes there.
        unsafe { self.telemetry.reset() };
        // SAFETY: the region and the rings, which hold all that the control block names, list the launch as a use below, and this channel keeps
        // them; the rest is the caller's promise.
        let kernel = unsafe { self.stream.launch(module, kernel, arguments) }?;
        let ticket = kernel.ticket();
        // First of all: whatever fails from here on, it is told to leave when this is dropped.
        self.kernel = Some(kernel);
        if let Some(ticket) = ticket {
            self.region.used(ticket);
            self.bridge.used(ticket)?;
        }
        self.watch();
        self.command(Command::ACTIVATE)?;
        self.wait(|channel| channel.state() == Some(State::Active))
    }

    /// Launches a kernel that has ended again, as a new epoch, on the same rings: it goes on with the first message that was not answered.
    ///
    /// # Errors
    ///
    /// [`Busy`](Error::Busy) if it has not left; as [`open`](Self::open).
    ///
    /// # Safety
    ///
    /// The promise of [`open`](Self::open), for the new launch.
    pub unsafe fn restart(&mut self) -> Result<()> {
        if self.kernel.as_ref().is_some_and(|kernel| !kernel.is_done()) {
            return Err(Error::Busy { what: "the kernel has not left" });
        }
        // How the last one ended was told by its state, or is of no more interest.
        drop(self.kernel.take());
        // SAFETY: the caller's promise; none runs.
        unsafe { self.start() }
    }

    /// Sends a message; never waits.
    ///
    /// # Errors
    ///
    /// The message, if the ring is full or corrupt.
    pub fn send(&mut self, message: I) -> Result<(), PushError<I>> {
        let sent = match self.sender.push(message) {
            Err(PushError::Full(back)) if self.bridge.moves() => {
                self.pass();
                self.sender.push(back)
            }
            sent => sent,
        };
        self.pass();
        sent
    }

    /// Receives an answer; never waits.
    ///
    /// # Errors
    ///
    /// [`PopError`]: there is none yet, or the ring is corrupt.
    pub fn receive(&mut self) -> Result<O, PopError> {
        match self.receiver.pop() {
            Err(PopError::Empty) if self.bridge.moves() => {
                self.pass();
                self.receiver.pop()
            }
            received => received,
        }
    }

    /// Receives an answer, and waits for it no longer than `timeout`.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`]: it has left and all its answers were received, or the time is up. What moving messages failed with; [`Error::Attach`] for a ring
    /// that is corrupt.
    pub fn receive_timeout(&mut self, timeout: Duration) -> Result<O> {
        let begun = Instant::now();
        let (mut times, mut looks) = (0, None);
        loop {
            match self.receive() {
                Ok(answer) => return Ok(answer),
                Err(PopError::Corrupt(corrupt)) => return Err(AttachError::Corrupt(corrupt).into()),
                Err(PopError::Empty) => {}
            }
            // What it had published when it left may have been on its way then.
            if looks.is_some_and(|looks| self.bridge.has_brought_all(looks)) || begun.elapsed() > timeout {
                return Err(self.trouble.take().unwrap_or_else(|| self.fault(begun.elapsed())));
            }
            if looks.is_none() && self.has_left() {
                looks = Some(self.bridge.looks());
            } else {
                pause(&mut times);
            }
        }
    }

    /// Sends without publishing each message: see [`Producer::batch`](crate::ring::spsc::Producer::batch). Then [`flush`](Self::flush).
    pub fn send_batch(&mut self, every: u64) -> BatchProducer<'_, 'static, I, Host> {
        self.sender.batch(every)
    }

    /// Receives without releasing each slot: see [`Consumer::batch`](crate::ring::spsc::Consumer::batch). [`flush`](Self::flush) before, for
    /// what is under way.
    pub fn receive_batch(&mut self, every: u64) -> BatchConsumer<'_, 'static, O, Host> {
        self.receiver.batch(every)
    }

    /// Moves messages between the host's rings and the kernel's, where they are not the same; how many, each way.
    ///
    /// # Errors
    ///
    /// What the backend said. Nothing is lost: the next flush does it again.
    pub fn flush(&mut self) -> Result<[u64; 2]> {
        if !self.bridge.moves() {
            return Ok([0; 2]);
        }
        self.trouble = None;
        self.bridge.poll()
    }

    /// Flushes, and keeps an error for [`check`](Self::check).
    fn pass(&mut self) {
        if self.bridge.moves() {
            self.trouble = self.bridge.poll().err();
        }
    }

    /// Index of the next message to be sent and of the next answer to be received.
    #[must_use]
    pub const fn indices(&self) -> (u64, u64) {
        (self.sender.tail(), self.receiver.head())
    }

    /// Messages that the kernel has not taken yet, as far as this end has looked.
    ///
    /// # Errors
    ///
    /// [`Corrupt`] if its index claims what cannot be.
    pub fn input_waiting(&mut self) -> Result<u64, Corrupt> {
        // Whoever asks only this moves messages too: what was sent may have come when no look was due.
        self.pass();
        if let Some((untaken, looked)) = self.bridge.untaken() {
            if let Err(error) = looked {
                self.trouble = Some(error);
            }
            return Ok(untaken);
        }
        Ok(self.sender.capacity() - self.sender.refresh()?)
    }

    /// Answers that have arrived and have not been received yet.
    ///
    /// # Errors
    ///
    /// [`Corrupt`] if the kernel's index claims what cannot be.
    pub fn output_waiting(&mut self) -> Result<u64, Corrupt> {
        self.receiver.refresh()
    }

    /// The kernel's state; `None` for a number that no kernel writes.
    #[must_use]
    pub fn state(&self) -> Option<State> {
        self.control.state()
    }

    /// One look at each word of the control block.
    #[must_use]
    pub fn control(&self) -> ControlBlock<u64> {
        self.control.snapshot()
    }

    /// One moment of the telemetry.
    ///
    /// # Errors
    ///
    /// [`Busy`]: it was being written for as long as was tried.
    pub fn telemetry(&self) -> Result<TelemetryBuffer<u64>, Busy> {
        self.telemetry.snapshot()
    }

    /// Looks at the kernel's heart: whether it has beaten since the last look, which was the last call of this or of
    /// [`dump`](Self::dump), or opening.
    pub fn watch(&mut self) -> Verdict {
        self.watchdog.look(&self.control.snapshot(), nanoseconds(self.opened.elapsed()))
    }

    /// Everything about the kernel that can be seen from here, to be printed: what it is doing, and why it does not answer.
    ///
    /// Its verdict is that of [`watch`](Self::watch). It moves nothing and waits for nothing, also not for a kernel that is stuck. Where the kernel's rings are
    /// not the host's, both are shown; what a look at the kernel's failed with, [`check`](Self::check) says.
    pub fn dump(&mut self) -> Dump {
        let control = self.control.snapshot();
        let verdict = self.watchdog.look(&control, nanoseconds(self.opened.elapsed()));
        // The host's first: what has been moved since can only be further on at the kernel's.
        let [input, output] = self.bridge.headers().map(Indices::of);
        let twins = match self.bridge.twins() {
            None => Twins::Shared,
            Some(Ok(seen)) => Twins::Seen(seen),
            Some(Err(error)) => {
                self.trouble = Some(error);
                Twins::Unseen
            }
        };
        Dump { control, telemetry: self.telemetry.snapshot(), input, output, twins, verdict }
    }

    /// Gives a command and waits until the kernel has acted on it.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`] if it has left, or did not answer in time.
    pub fn command(&mut self, command: Command) -> Result<()> {
        self.pass();
        self.control.command(command);
        self.wait(|channel| channel.control.acknowledged())
    }

    /// Holds on to what the kernel uses, such as the memory that its arguments name, until the kernel has left, also if this is dropped before.
    pub fn keep(&mut self, value: impl Send + 'static) {
        self.kept.push(Box::new(value));
    }

    /// What the kernel says of itself if it has left of its own accord, or what moving messages failed with: for a loop that waits for answers.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`] with state and fault; what the last flush failed with, once: the next one does it again.
    pub fn check(&mut self) -> Result<()> {
        if let Some(trouble) = self.trouble.take() {
            return Err(trouble);
        }
        if self.has_left() { Err(self.fault(Duration::ZERO)) } else { Ok(()) }
    }

    /// Whether the kernel has left, or says that it leaves.
    fn has_left(&self) -> bool {
        self.state().is_none_or(State::has_ended) || self.kernel.as_ref().is_none_or(Pending::is_done)
    }

    /// Lets the kernel answer what is in the input ring and waits until it has left. Its answers can still be received; it waits for
    /// room for them, so receive as many as do not fit before.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`] if it faulted or did not leave in time.
    pub fn drain(&mut self) -> Result<()> {
        // What has not arrived there would not be drained.
        self.wait(|channel| channel.bridge.pending()[0] == 0)?;
        // Not waited for alone: a kernel that is ending already reads no command any more.
        self.control.command(Command::DRAIN);
        self.wait(|channel| channel.state() == Some(State::Terminated))
    }

    /// [`drain`](Self::drain)s a kernel that has not ended yet, and gives the last look at it. Receive what you want of the answers
    /// before: the rings end here.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`] if it faulted or did not leave in time, the kernel's own error if it broke.
    pub fn close(mut self) -> Result<Closed> {
        self.drain()?;
        if let Some(kernel) = self.kernel.take() {
            match kernel.wait_timeout(PATIENCE) {
                Ok(ended) => ended?,
                // It has said that it leaves, and has not left.
                Err(kernel) => {
                    self.kernel = Some(kernel);
                    return Err(self.fault(PATIENCE));
                }
            }
        }
        let telemetry = self.telemetry.snapshot().map_err(|_| self.fault(Duration::ZERO))?;
        Ok(Closed { control: self.control(), telemetry })
    }

    /// Waits for a fact, until the kernel has left or patience is over.
    fn wait(&mut self, done: impl Fn(&Self) -> bool) -> Result<()> {
        let begun = Instant::now();
        let mut times = 0_u32;
        while !done(self) {
            self.pass();
            // The fact may have come true while we looked at the state.
            if self.has_left() && !done(self) || begun.elapsed() > PATIENCE {
                return Err(self.fault(begun.elapsed()));
            }
            pause(&mut times);
        }
        Ok(())
    }

    fn fault(&self, waited: Duration) -> Error {
        let control = self.control();
        let (faults, fault): (u32, Option<Fault>) = control.faults();
        Error::Kernel { state: control.kernel_state(), fault, faults, waited }
    }
}

/// Between two looks of who waits.
fn pause(times: &mut u32) {
    *times = times.saturating_add(1);
    if *times < 100 { std::thread::yield_now() } else { std::thread::sleep(Duration::from_micros(50)) }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// What [`dump`](Channel::dump) shows, without a verdict; the ends as they are.
impl<I: RingMessage, O: RingMessage> fmt::Debug for Channel<I, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [input, output] = self.bridge.headers().map(Indices::of);
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
        if !kernel.is_done() {
            self.control.command(Command::TERMINATE);
            let begun = Instant::now();
            while !kernel.is_done() && begun.elapsed() < PATIENCE {
                std::thread::sleep(Duration::from_micros(50));
            }
        }
        if !kernel.is_done() {
            // The region lists the launch as a use, so it lives for as long as the kernel writes there.
            self.control.abandon();
            if let Some(ticket) = kernel.ticket() {
                self.stream.backend().keep(Box::new(take(&mut self.kept)), &Uses::of(ticket));
            }
        }
    }
}
