use core::mem::replace;
use std::boxed::Box;
use std::time::{Duration, Instant};

use zerocopy::FromZeros as _;

use super::{Channel, nanoseconds, pause};
use crate::bridge::MOST_FAILURES;
use crate::control::{Command, Fault, State};
use crate::dump::{Dump, Twins};
use crate::stream::Pending;
use crate::telemetry::Busy;
use crate::trace::event;
use crate::watchdog::Verdict;
use crate::{ControlBlock, Error, Rejected, Result, RingMessage, TelemetryBuffer};

/// The last state of an ended kernel.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::channel::Channel;
/// use ringmem::control::State;
/// use ringmem_kernels::echo::{ECHO, Echo};
///
/// let backend = HostBackend::builder().build()?;
/// let mut channel = Channel::open(&backend, 0, ECHO)?;
/// channel.send(Echo { words: [7; 8] })?;
/// let closed = channel.close()?;
/// assert_eq!((closed.control.processed, closed.telemetry.processed), (1, 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Closed {
    /// Control block.
    pub control: ControlBlock<u64>,
    /// Telemetry.
    pub telemetry: TelemetryBuffer<u64>,
}

impl<I: RingMessage, O: RingMessage> Channel<I, O> {
    /// Returns the kernel's state; `None` for an unknown number, and in a forked process.
    #[must_use]
    pub fn state(&self) -> Option<State> {
        if self.process.is_this() { self.control.state() } else { None }
    }

    /// Returns a copy of the control block, each word loaded once; zeros in a forked process.
    #[must_use]
    pub fn control(&self) -> ControlBlock<u64> {
        if self.process.is_this() { self.control.snapshot() } else { ControlBlock::new_zeroed() }
    }

    /// Returns a consistent snapshot of the telemetry.
    ///
    /// # Errors
    ///
    /// [`Busy`] if each attempt met a write, and in a forked process.
    pub fn telemetry(&self) -> Result<TelemetryBuffer<u64>, Busy> {
        if self.process.is_this() { self.telemetry.snapshot() } else { Err(Busy) }
    }

    /// Returns whether the heartbeat has changed since the last call, [`dump`](Self::dump), or launch; in a forked process,
    /// [`OtherEpoch`](Verdict::OtherEpoch).
    pub fn watch(&mut self) -> Verdict {
        self.sample();
        self.judge(&self.control())
    }

    fn judge(&mut self, control: &ControlBlock<u64>) -> Verdict {
        if self.process.is_this() { self.watchdog.check(control, nanoseconds(self.opened.elapsed())) } else { Verdict::OtherEpoch }
    }

    /// Reads control block, telemetry, ring indices and the [`watch`](Self::watch) verdict, for printing. Moves and waits for nothing, so it
    /// works on a stuck kernel.
    ///
    /// # Errors
    ///
    /// The dump without the kernel's rings, and the reason.
    #[allow(clippy::result_large_err, reason = "the dump is as large without the kernel's rings")]
    pub fn dump(&mut self) -> Result<Dump, Rejected<Dump>> {
        self.sample();
        let control = self.control();
        let verdict = self.judge(&control);
        // The host's first: the kernel's can only be further on.
        let [input, output] = self.bridge.indices();
        let (twins, failed) = match self.bridge.twins() {
            None => (Twins::Shared, None),
            Some(Ok(seen)) => (Twins::Seen(seen), None),
            Some(Err(error)) => (Twins::Unseen, Some(error)),
        };
        let dump = Dump { control, telemetry: self.telemetry(), input, output, twins, verdict };
        match failed {
            None => Ok(dump),
            Some(error) => Err(Rejected { error, value: dump }),
        }
    }

    /// Sends a command and waits for its acknowledgement, flushing meanwhile.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`] if the kernel has left or times out; the last flush's error if it persists until then.
    pub fn command(&mut self, command: Command) -> Result<()> {
        self.check_process()?;
        let _ = self.flush();
        self.control.command(command);
        self.wait(|channel| channel.control.acknowledged())?;
        event!(debug, kernel = &*self.launch.kernel, command = ?command, state = ?self.state(), "command acknowledged");
        self.sample();
        Ok(())
    }

    /// Keeps a value until the kernel has left, even after the channel's drop.
    pub fn keep_alive(&mut self, value: impl Send + 'static) {
        self.kept.push(Box::new(value));
    }

    /// Fails if the kernel has left, for loops over [`try_recv`](Self::try_recv).
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`]; once the launch's error, if the kernel did not report its end.
    pub fn check(&mut self) -> Result<()> {
        if self.has_left() { Err(self.fault(Duration::ZERO)) } else { Ok(()) }
    }

    /// True in a forked process too: the kernel is the parent's.
    pub(super) fn has_left(&self) -> bool {
        self.state().is_none_or(State::has_ended) || self.has_returned()
    }

    pub(super) fn has_returned(&self) -> bool {
        self.kernel.as_ref().is_none_or(Pending::is_done)
    }

    /// Whether the kernel has stored its last state, but its launch runs on. A kernel stores that state before it returns, so this is a matter of
    /// microseconds, unless the kernel is stuck on its way out. Until it returns, its memory is in use and [`restart`](Self::restart) impossible:
    /// whatever waits for the kernel waits for its return too, up to the channel's timeout.
    pub(super) fn is_returning(&self) -> bool {
        self.process.is_this() && !self.has_returned() && self.state().is_some_and(State::has_ended)
    }

    pub(super) fn wait_for_return(&self) {
        let (begun, mut times) = (Instant::now(), 0);
        while self.is_returning() && begun.elapsed() <= self.timeout {
            pause(&mut times);
        }
    }

    /// As [`fault`](Self::fault), once the kernel has returned.
    pub(super) fn fault_on_return(&mut self, waited: Duration) -> Error {
        self.wait_for_return();
        self.fault(waited)
    }

    /// Lets the kernel answer all sent messages, even if paused, and waits until it has left.
    ///
    /// Receive answers that do not fit before; the others later. The deadline is the [`timeout`](super::Options::timeout) after the last
    /// processed message. A terminated kernel's unpopped messages stay for [`restart`](Self::restart).
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`] if it faulted or timed out; [`Error::Busy`] if it timed out with a full output ring: receive answers and drain again;
    /// the last flush's error if it persists.
    pub fn drain(&mut self) -> Result<()> {
        let drained = self.drain_with(|_| {});
        let [_, output] = self.bridge.indices();
        match drained {
            Err(Error::Kernel { is_over: false, .. }) if output.tail.wrapping_sub(output.head) == output.capacity => {
                Err(Error::Busy { what: "the output ring is full of answers; receive them, then drain again" })
            }
            drained => drained,
        }
    }

    /// A paused kernel pops nothing, so a full ring would stay full. A forked process leaves the parent's kernel alone.
    pub(super) fn activate_if_paused(&mut self) {
        if self.process.is_this() && self.state() == Some(State::Paused) {
            self.control.command(Command::ACTIVATE);
        }
    }

    fn drain_with(&mut self, meanwhile: impl Fn(&mut Self)) -> Result<()> {
        self.check_process()?;
        self.activate_if_paused();
        self.bridge.try_again();
        let has_gone = |channel: &Self| channel.bridge.pending()[0] == 0 || channel.state() == Some(State::Terminated);
        let mut processed = self.control().processed;
        let mut gets_on = |channel: &mut Self| {
            meanwhile(channel);
            let before = replace(&mut processed, channel.control().processed);
            processed != before
        };
        let failed = self.wait_while(&mut gets_on, |channel| has_gone(channel) || channel.bridge.failing()[0] >= MOST_FAILURES)?;
        if !has_gone(self) {
            return Err(failed.unwrap_or_else(|| self.fault_on_return(Duration::ZERO)));
        }
        // An ending kernel acknowledges no command.
        self.control.command(Command::DRAIN);
        self.wait_while(&mut gets_on, |channel| channel.state() == Some(State::Terminated)).map(drop)
    }

    /// [`drain`](Self::drain)s the kernel and returns its last state; drops unreceived answers and unpopped messages.
    ///
    /// # Errors
    ///
    /// As [`drain`](Self::drain); the kernel's own error; [`Error::Busy`] if it left within a telemetry record.
    pub fn close(mut self) -> Result<Closed> {
        self.drain_with(|channel| while channel.receiver.pop().is_ok() {})?;
        if let Some(kernel) = self.kernel.take() {
            match kernel.wait_timeout(self.timeout) {
                Ok(ended) => ended?,
                Err(kernel) => {
                    self.kernel = Some(kernel);
                    return Err(self.fault(self.timeout));
                }
            }
        }
        let what = "the kernel left in the middle of a telemetry record";
        let telemetry = self.telemetry.snapshot().map_err(|Busy| Error::Busy { what })?;
        let control = self.control();
        event!(debug, kernel = &*self.launch.kernel, state = ?control.kernel_state(), processed = control.processed, "kernel has left");
        Ok(Closed { control, telemetry })
    }

    pub(super) fn wait(&mut self, done: impl Fn(&Self) -> bool) -> Result<()> {
        self.wait_while(|_| false, done).map(drop)
    }

    /// Each success of `gets_on` restarts the time. Returns the last flush's error, if it persists.
    fn wait_while(&mut self, mut gets_on: impl FnMut(&mut Self) -> bool, done: impl Fn(&Self) -> bool) -> Result<Option<Error>> {
        let mut begun = Instant::now();
        let mut times = 0_u32;
        let mut failed = None;
        while !done(self) {
            failed = self.flush().err().or_else(|| failed.filter(|_| self.bridge.failing() != [0; 2]));
            if gets_on(self) {
                begun = Instant::now();
            }
            let has_left = self.has_left();
            if (has_left || begun.elapsed() > self.timeout) && !done(self) {
                // A kernel that waits for messages to be moved is not at fault.
                return Err(failed.filter(|_| !has_left).unwrap_or_else(|| self.fault_on_return(begun.elapsed())));
            }
            pause(&mut times);
        }
        Ok(failed)
    }

    /// Fails in a forked process: the kernel is the parent's, and a driver's pinned memory is not mapped there.
    pub(super) fn check_process(&self) -> Result<()> {
        if self.process.is_this() { Ok(()) } else { Err(Error::Unsupported { what: "a channel of the parent process after fork" }) }
    }

    /// The launch's error, once, if the state does not say how it ended.
    pub(super) fn fault(&mut self, waited: Duration) -> Error {
        if let Err(error) = self.check_process() {
            return error;
        }
        // Before the block is read: the last store is then visible.
        let is_over = self.kernel.as_ref().is_none_or(Pending::is_done);
        let control = self.control();
        let state = control.kernel_state();
        if is_over && !state.is_some_and(State::has_ended) {
            match self.kernel.take().map(Pending::try_take) {
                Some(Ok(Err(failed))) => return failed.error,
                Some(Err(kernel)) => self.kernel = Some(kernel),
                Some(Ok(Ok(()))) | None => {}
            }
        }
        let (faults, fault): (u32, Option<Fault>) = control.faults();
        event!(warn, kernel = &*self.launch.kernel, state = ?state, fault = ?fault, faults, "kernel does not continue");
        Error::Kernel { state, is_over, fault, faults, waited }
    }
}
