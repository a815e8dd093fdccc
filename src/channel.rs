//! [`Channel`]: a running persistent kernel and the two rings to it.
//!
//! 1. Opening it lays out one region of pinned memory (control block, telemetry, both rings, a table of contents), launches the
//!    kernel and waits until it is ready.
//! 2. While it is open, only the rings' protocol touches that region, and the host's part of it goes through this value.
//! 3. The memory is given back only when the kernel has left, also if the channel is dropped before.
//!
//! It does not wait for messages: a ring that is full or empty says so.

use core::mem::take;
use core::ptr::NonNull;
use std::boxed::Box;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};
use std::vec::Vec;

use crate::attach::Corrupt;
use crate::backend::{Backend, Uses};
use crate::control::{Capabilities, Command, Fault, HostSide, Launch, Shared, State};
use crate::dump::{Dump, Indices};
use crate::memory::{Page, Pinned, PinnedBuffer};
use crate::region::{Plan, kind};
use crate::ring::spsc::{BatchConsumer, BatchProducer, Consumer, PopError, Producer, PushError};
use crate::stream::{Module, Pending, Stream};
use crate::telemetry::{self, Busy, STUCK_AFTER_NS};
use crate::watchdog::{Verdict, Watchdog};
use crate::{ControlBlock, Error, Host, HostWord, Result, RingHeader, RingLayout, RingMessage, TelemetryBuffer};

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
    /// How long the kernel's heart may stand still before [`Channel::watch`] calls it stuck: longer than its longest batch takes.
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
            stuck_after: Duration::from_nanos(STUCK_AFTER_NS),
        }
    }
}

/// A running kernel that takes `I` and answers `O`.
pub struct Channel<I: RingMessage, O: RingMessage> {
    // These borrow from `_region`, which is declared after them and so dropped after them. Their `'static` is this struct's secret: an
    // endpoint that got out could be swapped with another's and outlive its memory, so none is handed out.
    sender: Producer<'static, I, Host>,
    receiver: Consumer<'static, O, Host>,
    control: HostSide<'static, HostWord>,
    telemetry: &'static telemetry::Shared<HostWord>,
    /// The input ring's and the output ring's.
    headers: [&'static RingHeader<HostWord>; 2],
    opened: Instant,
    watchdog: Watchdog,
    kernel: Option<Pending<()>>,
    kept: Vec<Box<dyn Send>>,
    _region: PinnedBuffer<Page>,
    _stream: Stream,
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
        static EPOCH: AtomicU32 = AtomicU32::new(0);

        let input = RingLayout::of::<I>(options.input_capacity)?;
        let output = RingLayout::of::<O>(options.output_capacity)?;
        let mut plan = Plan::new();
        let control_at = plan.place(kind::CONTROL, size_of::<ControlBlock<u64>>() as u64, 128)?;
        let telemetry_at = plan.place(kind::TELEMETRY, size_of::<TelemetryBuffer<u64>>() as u64, 128)?;
        let input_at = plan.place(kind::INPUT_RING, input.size(), input.align())?;
        let output_at = plan.place(kind::OUTPUT_RING, output.size(), output.align())?;
        for asked in [input.align(), output.align()] {
            let most = align_of::<Page>() as u64;
            if asked > most {
                return Err(Error::Align { asked, most });
            }
        }
        let pages = plan.size().div_ceil(size_of::<Page>() as u64);
        let memory = Pinned::<dyn Backend>::new(&Arc::clone(backend).erased(), device);
        let mut region = PinnedBuffer::<Page>::new(memory, usize::try_from(pages).unwrap_or(usize::MAX))?;
        let (Some(base), Some(address)) = (region.as_ptr().map(NonNull::cast::<u8>), region.device_address()) else {
            return Err(Error::Unsupported { what: "pinned memory at an address of the device" });
        };
        let address = address.get();
        let abi = module.abi().hash;

        // SAFETY: the region is as long as the plan, and nobody else has it yet.
        unsafe { plan.write::<HostWord>(base, region.size_bytes() as u64, abi) }?;
        // SAFETY: each offset is within the region, placed there for this purpose and aligned for it: pages are aligned to
        // as much as any of them asks, checked above. The region outlives all of these borrows: see the fields.
        let (control, telemetry, headers, input_place, output_place) = unsafe {
            let at = |offset: u64| base.add(offset as usize);
            let headers: [&RingHeader<HostWord>; 2] = [at(input_at).cast().as_ref(), at(output_at).cast().as_ref()];
            headers[0].format::<I>(&input, options.start);
            headers[1].format::<O>(&output, options.start);
            (
                at(control_at).cast::<Shared<HostWord>>().as_ref(),
                at(telemetry_at).cast::<telemetry::Shared<HostWord>>().as_ref(),
                headers,
                at(input_at),
                at(output_at),
            )
        };
        // SAFETY: this channel is the input ring's only producer and the output ring's only consumer; the kernel is the other end.
        let (sender, receiver) =
            unsafe { (Producer::from_raw(input_place, input.size())?, Consumer::from_raw(output_place, output.size())?) };
        // 0 means "no launch".
        let epoch = EPOCH.fetch_add(1, Relaxed).checked_add(1).unwrap_or(1);
        let launch = Launch {
            abi,
            capabilities: Capabilities::SYSTEM_SCOPE | Capabilities::TELEMETRY,
            epoch,
            input_ring: address + input_at,
            output_ring: address + output_at,
            telemetry: address + telemetry_at,
        };
        // SAFETY: no kernel runs on this block yet, and only this channel writes the host's line.
        let control = unsafe { HostSide::prepare(control, &launch) };

        let idle_ns = nanoseconds(options.idle);
        let mut arguments = std::vec![address + control_at, u64::from(epoch), idle_ns, options.batch];
        arguments.extend_from_slice(options.arguments);
        let stream = Stream::new(backend, device)?;
        // SAFETY: the region, which holds all that the control block names, lists the launch as a use below, and this channel keeps it; the rest is the
        // caller's promise.
        let kernel = unsafe { stream.launch(module, options.kernel, &arguments) }?;
        if let Some(ticket) = kernel.ticket() {
            region.used(ticket);
        }
        let mut channel = Self {
            sender,
            receiver,
            control,
            telemetry,
            headers,
            opened: Instant::now(),
            watchdog: Watchdog::new(nanoseconds(options.stuck_after)),
            kernel: Some(kernel),
            kept: Vec::new(),
            _region: region,
            _stream: stream,
        };
        channel.watch();
        channel.command(Command::ACTIVATE)?;
        channel.wait(|channel| channel.state() == Some(State::Active))?;
        Ok(channel)
    }

    /// Sends a message; never waits.
    ///
    /// # Errors
    ///
    /// The message, if the ring is full or corrupt.
    pub fn send(&mut self, message: I) -> Result<(), PushError<I>> {
        self.sender.push(message)
    }

    /// Receives an answer; never waits.
    ///
    /// # Errors
    ///
    /// [`PopError`]: there is none yet, or the ring is corrupt.
    pub fn receive(&mut self) -> Result<O, PopError> {
        self.receiver.pop()
    }

    /// Sends without publishing each message: see [`Producer::batch`].
    pub fn send_batch(&mut self, every: u64) -> BatchProducer<'_, 'static, I, Host> {
        self.sender.batch(every)
    }

    /// Receives without releasing each slot: see [`Consumer::batch`].
    pub fn receive_batch(&mut self, every: u64) -> BatchConsumer<'_, 'static, O, Host> {
        self.receiver.batch(every)
    }

    /// Index of the next message to be sent and of the next answer to be received.
    #[must_use]
    pub const fn indices(&self) -> (u64, u64) {
        (self.sender.tail(), self.receiver.head())
    }

    /// Messages that the kernel has not taken yet.
    ///
    /// # Errors
    ///
    /// [`Corrupt`] if its index claims what cannot be.
    pub fn input_waiting(&mut self) -> Result<u64, Corrupt> {
        Ok(self.sender.capacity() - self.sender.refresh()?)
    }

    /// Answers that have not been received yet.
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
    /// Its verdict is that of [`watch`](Self::watch). It waits for nothing, also not for a kernel that is stuck.
    pub fn dump(&mut self) -> Dump {
        let control = self.control.snapshot();
        let verdict = self.watchdog.look(&control, nanoseconds(self.opened.elapsed()));
        let [input, output] = self.headers.map(Indices::of);
        Dump { control, telemetry: self.telemetry.snapshot(), input, output, verdict }
    }

    /// Gives a command and waits until the kernel has acted on it.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`] if it has left, or did not answer in time.
    pub fn command(&mut self, command: Command) -> Result<()> {
        self.control.command(command);
        self.wait(|channel| channel.control.acknowledged())
    }

    /// Holds on to what the kernel uses, such as the memory that its arguments name, until the kernel has left, also if this is dropped before.
    pub fn keep(&mut self, value: impl Send + 'static) {
        self.kept.push(Box::new(value));
    }

    /// What the kernel says of itself if it has left of its own accord: for a loop that waits for answers.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`] with state and fault.
    pub fn check(&self) -> Result<()> {
        let ended = self.state().is_none_or(State::has_ended) || self.kernel.as_ref().is_none_or(Pending::is_done);
        if ended { Err(self.fault(Duration::ZERO)) } else { Ok(()) }
    }

    /// Lets the kernel answer what is in the input ring and waits until it has left. Its answers can still be received; it waits for
    /// room for them, so receive as many as do not fit before.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`] if it faulted or did not leave in time.
    pub fn drain(&mut self) -> Result<()> {
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
    fn wait(&self, done: impl Fn(&Self) -> bool) -> Result<()> {
        let begun = Instant::now();
        let mut times = 0_u32;
        while !done(self) {
            let left = self.state().is_none_or(State::has_ended) || self.kernel.as_ref().is_none_or(Pending::is_done);
            // The fact may have come true while we looked at the state.
            if left && !done(self) || begun.elapsed() > PATIENCE {
                return Err(self.fault(begun.elapsed()));
            }
            times = times.saturating_add(1);
            if times < 100 { std::thread::yield_now() } else { std::thread::sleep(Duration::from_micros(50)) }
        }
        Ok(())
    }

    fn fault(&self, waited: Duration) -> Error {
        let control = self.control();
        let (faults, fault): (u32, Option<Fault>) = control.faults();
        Error::Kernel { state: control.kernel_state(), fault, faults, waited }
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// What [`dump`](Channel::dump) shows, without a verdict; the ends as they are.
impl<I: RingMessage, O: RingMessage> fmt::Debug for Channel<I, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [input, output] = self.headers.map(Indices::of);
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
                self._stream.backend().keep(Box::new(take(&mut self.kept)), &Uses::of(ticket));
            }
        }
    }
}
