//! The kernel itself: what it is doing, what it is told, and how it ends.

use core::mem::replace;
use std::boxed::Box;
use std::time::{Duration, Instant};

use super::{Channel, PATIENCE, nanoseconds, pause};
use crate::bridge::MOST_FAILURES;
use crate::control::{Command, Fault, State};
use crate::dump::{Dump, Twins};
use crate::stream::Pending;
use crate::telemetry::Busy;
use crate::watchdog::Verdict;
use crate::{ControlBlock, Error, Rejected, Result, RingMessage, TelemetryBuffer};

/// What a kernel left behind.
#[derive(Clone, Copy, Debug)]
pub struct Closed {
    /// The control block, after the kernel has left.
    pub control: ControlBlock<u64>,
    /// The telemetry, after the kernel has left.
    pub telemetry: TelemetryBuffer<u64>,
}

impl<I: RingMessage, O: RingMessage> Channel<I, O> {
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

    /// Reads everything about the kernel that the host can see, to be printed: what it is doing, and why it does not answer.
    ///
    /// The verdict is that of [`watch`](Self::watch). It moves no message and waits for nothing, so it works on a kernel that is stuck. If the kernel's rings are
    /// not the host's, it shows both.
    ///
    /// # Errors
    ///
    /// The dump without the kernel's rings, and why they could not be read.
    #[allow(clippy::result_large_err, reason = "the dump is as large without the kernel's rings")]
    pub fn dump(&mut self) -> Result<Dump, Rejected<Dump>> {
        let control = self.control.snapshot();
        let verdict = self.watchdog.look(&control, nanoseconds(self.opened.elapsed()));
        // The host's first: what has been moved since can only be further on at the kernel's.
        let [input, output] = self.bridge.indices();
        let (twins, failed) = match self.bridge.twins() {
            None => (Twins::Shared, None),
            Some(Ok(seen)) => (Twins::Seen(seen), None),
            Some(Err(error)) => (Twins::Unseen, Some(error)),
        };
        let dump = Dump { control, telemetry: self.telemetry.snapshot(), input, output, twins, verdict };
        match failed {
            None => Ok(dump),
            Some(error) => Err(Rejected { error, value: dump }),
        }
    }

    /// Gives a command and waits until the kernel has acted on it. Flushes meanwhile; one that fails is repeated by the next flush.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`] if it has left, or did not answer in time.
    pub fn command(&mut self, command: Command) -> Result<()> {
        // The kernel may wait for room before it reads the command.
        let _ = self.flush();
        self.control.command(command);
        self.wait(|channel| channel.control.acknowledged())
    }

    /// Holds on to what the kernel uses, such as the memory that its arguments name, until the kernel has left, also if this is dropped before.
    pub fn keep(&mut self, value: impl Send + 'static) {
        self.kept.push(Box::new(value));
    }

    /// Returns an error if the kernel has left: for a loop that waits for answers.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`] with state and fault; before, once, the error of its launch, if the kernel has not reported how it ended.
    pub fn check(&mut self) -> Result<()> {
        if self.has_left() { Err(self.fault(Duration::ZERO)) } else { Ok(()) }
    }

    /// Whether the kernel has left, or says that it leaves.
    pub(super) fn has_left(&self) -> bool {
        self.state().is_none_or(State::has_ended) || self.kernel.as_ref().is_none_or(Pending::is_done)
    }

    /// Lets the kernel answer all that was sent, also where it is paused, and waits until it has left. Its answers can still be received; it waits for
    /// room for them, so receive as many as do not fit before. It has ten seconds from the last message on that it has counted as processed. One that was told to end before answers no more, and that is no failure: what it did not take is there
    /// for a [`restart`](Self::restart).
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`] if it faulted or did not leave in time; what moving messages to it keeps failing with.
    pub fn drain(&mut self) -> Result<()> {
        self.drain_with(|_| {})
    }

    /// Again and again while it waits, calls `meanwhile`.
    fn drain_with(&mut self, meanwhile: impl Fn(&mut Self)) -> Result<()> {
        if self.state() == Some(State::Paused) {
            // Else it makes no room at its own ring for what waits at the host's.
            self.control.command(Command::ACTIVATE);
        }
        // What has not arrived there would not be drained.
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
            return Err(failed.unwrap_or_else(|| self.fault(Duration::ZERO)));
        }
        // Not waited for alone: a kernel that is ending already reads no command any more.
        self.control.command(Command::DRAIN);
        self.wait_while(&mut gets_on, |channel| channel.state() == Some(State::Terminated)).map(drop)
    }

    /// [`drain`](Self::drain)s a kernel that has not ended yet, and gives the last look at it. Receive what you want of the answers
    /// before: those that are left are dropped to make room, and the rings end here, with what a kernel that was told to end did not take.
    ///
    /// # Errors
    ///
    /// As [`drain`](Self::drain); the kernel's own error if it broke; [`Error::Busy`] if it left in the middle of a telemetry record.
    pub fn close(mut self) -> Result<Closed> {
        self.drain_with(|channel| while channel.receiver.pop().is_ok() {})?;
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
        let what = "the kernel left in the middle of a telemetry record";
        let telemetry = self.telemetry.snapshot().map_err(|Busy| Error::Busy { what })?;
        Ok(Closed { control: self.control(), telemetry })
    }

    /// Flushes until `done`, the kernel has left, or patience is over.
    pub(super) fn wait(&mut self, done: impl Fn(&Self) -> bool) -> Result<()> {
        self.wait_while(|_| false, done).map(drop)
    }

    /// As [`wait`](Self::wait); patience begins anew whenever it `gets_on`. Returns the error of the last flush, if flushes still fail.
    fn wait_while(&mut self, mut gets_on: impl FnMut(&mut Self) -> bool, done: impl Fn(&Self) -> bool) -> Result<Option<Error>> {
        let mut begun = Instant::now();
        let mut times = 0_u32;
        let mut failed = None;
        while !done(self) {
            failed = self.flush().err().or_else(|| failed.filter(|_| self.bridge.failing() != [0; 2]));
            if gets_on(self) {
                begun = Instant::now();
            }
            // The fact may have come true while we looked at the state, or did not run.
            if (self.has_left() || begun.elapsed() > PATIENCE) && !done(self) {
                return Err(self.fault(begun.elapsed()));
            }
            pause(&mut times);
        }
        Ok(failed)
    }

    /// Why the kernel does not go on: where it has not said how it ended, what its launch failed with, once.
    pub(super) fn fault(&mut self, waited: Duration) -> Error {
        // Before the look at the block: what it wrote there last is there then.
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
        Error::Kernel { state, is_over, fault, faults, waited }
    }
}
