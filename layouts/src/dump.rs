//! [`Dump`]: a readable report of a kernel's state.
//!
//! 1. Its values were read earlier, not at one instant.
//! 2. Its last line is the first matching [`Conclusion`], facts before guesses.

use core::fmt;

use crate::attach::Corrupt;
use crate::control::{Command, Fault, State};
use crate::defmt_derive::Format;
use crate::telemetry::Busy;
use crate::watchdog::Verdict;
use crate::{ControlBlock, RingHeader, TelemetryBuffer, Word};

const TRIES: u32 = 16;

/// Head, tail and capacity of a ring.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::dump::Indices;
/// use ringmem::{HostWord, RingHeader, RingLayout};
///
/// let header = RingHeader::<HostWord>::new::<u64>(&RingLayout::of::<u64>(64)?, 100);
/// assert_eq!(Indices::of(&header), Indices { head: 100, tail: 100, capacity: 64 });
/// assert_eq!(Indices { head: 100, tail: 103, capacity: 64 }.fill(), Ok(3));
/// # Ok::<(), ringmem::ring::LayoutError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Format)]
pub struct Indices {
    /// Next slot to pop; free-running.
    pub head: u64,
    /// Next slot to push; free-running.
    pub tail: u64,
    /// Number of slots.
    pub capacity: u64,
}

impl Indices {
    /// Reads the indices of a valid header; inconsistent only if the consumer advances during every attempt.
    #[must_use]
    pub fn of<W: Word>(header: &RingHeader<W>) -> Self {
        let capacity = header.constants.capacity.load();
        let mut head = header.consumer.head.load_acquire();
        let mut tail = header.producer.tail.load_acquire();
        for _ in 0..TRIES {
            let again = header.consumer.head.load_acquire();
            if again == head {
                break;
            }
            head = again;
            tail = header.producer.tail.load_acquire();
        }
        Self { head, tail, capacity }
    }

    /// Returns the number of messages in the ring.
    ///
    /// # Errors
    ///
    /// [`Corrupt`] if it exceeds the capacity.
    pub const fn fill(&self) -> Result<u64, Corrupt> {
        let fill = self.tail.wrapping_sub(self.head);
        if fill > self.capacity { Err(Corrupt { head: self.head, tail: self.tail, capacity: self.capacity }) } else { Ok(fill) }
    }
}

impl fmt::Display for Indices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { head, tail, capacity } = self;
        match self.fill() {
            Ok(fill) => write!(f, "{fill} of {capacity}, producer at {tail}, consumer at {head}"),
            Err(_) => write!(f, "corrupt: producer at {tail}, consumer at {head}, {capacity} slots"),
        }
    }
}

/// The kernel's own rings, if any.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::dump::{Indices, Twins};
///
/// let [input, output] = [7, 9].map(|at| Indices { head: at, tail: at, capacity: 64 });
/// let twins = Twins::Seen([input, output]);
/// assert!(matches!(twins, Twins::Seen([taking, _]) if taking.fill() == Ok(0)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Format)]
pub enum Twins {
    /// Host and kernel share two rings.
    Shared,
    /// The kernel's own rings could not be read.
    Unseen,
    /// The kernel's own rings: input, output.
    Seen([Indices; 2]),
}

/// The host's view of a kernel.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::dump::{Conclusion, Dump, Indices, Twins};
/// # use ringmem::{ControlBlock, watchdog::Verdict};
/// # let control = ControlBlock::<u64> { epoch: 1, state: 1 << 32 | 3, ..zerocopy::FromZeros::new_zeroed() };
/// # let telemetry = Ok(zerocopy::FromZeros::new_zeroed());
/// # let verdict = Verdict::Alive;
///
/// let (input, output) = (Indices { head: 0, tail: 3, capacity: 64 }, Indices { head: 0, tail: 0, capacity: 64 });
/// let dump = Dump { control, telemetry, input, output, twins: Twins::Shared, verdict };
/// assert_eq!(dump.conclusion(), Conclusion::Paused { waiting: 3 });
/// assert!(dump.to_string().contains("3 of 64, producer at 3, consumer at 0"));
/// ```
#[derive(Clone, Copy, Debug, Format)]
pub struct Dump {
    /// The control block.
    pub control: ControlBlock<u64>,
    /// The telemetry, if it could be read.
    pub telemetry: Result<TelemetryBuffer<u64>, Busy>,
    /// The (host's) ring to the kernel.
    pub input: Indices,
    /// The (host's) ring from the kernel.
    pub output: Indices,
    /// The kernel's own rings, if any.
    pub twins: Twins,
    /// The watchdog's verdict.
    pub verdict: Verdict,
}

/// One of the two rings.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::dump::{Conclusion, Side};
///
/// let conclusion = Conclusion::Corrupt(Side::Input);
/// assert_eq!(conclusion.to_string(), "the input ring's indices are corrupt");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Format)]
pub enum Side {
    /// From host to kernel.
    Input,
    /// From kernel to host.
    Output,
}

/// The kernel's condition.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::dump::Conclusion;
///
/// fn advice(conclusion: Conclusion) -> &'static str {
///     match conclusion {
///         Conclusion::OutputFull => "receive",
///         Conclusion::NotActivated | Conclusion::Paused { .. } => "activate",
///         Conclusion::Unmoved { .. } => "flush",
///         _ => "wait",
///     }
/// }
///
/// assert_eq!(advice(Conclusion::Paused { waiting: 3 }), "activate");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Format)]
#[non_exhaustive]
pub enum Conclusion {
    /// The host has ended the epoch; the kernel exits without further stores.
    Abandoned,
    /// An undefined state number.
    UnknownState(u32),
    /// The kernel exited with this fault; `None` if undefined.
    Faulted(Option<Fault>),
    /// The kernel exited on command.
    Terminated,
    /// This ring's indices are impossible.
    Corrupt(Side),
    /// The kernel has written nothing yet.
    NotStarted,
    /// The heartbeat is stale with messages in flight: the kernel hangs in or behind its handler.
    StuckInHandler {
        /// Taken messages not yet counted.
        in_flight: u64,
    },
    /// The heartbeat is stale without messages in flight.
    StandsStill,
    /// The kernel has not acknowledged the last command.
    CommandUnseen(Command),
    /// The kernel waits for its first ACTIVATE.
    NotActivated,
    /// The kernel is paused by command.
    Paused {
        /// Messages in the input ring.
        waiting: u64,
    },
    /// The output ring is full.
    OutputFull,
    /// The kernel processes the rest, then exits.
    Draining {
        /// Messages in the input ring.
        waiting: u64,
    },
    /// The kernel is idle while messages wait in the host's ring.
    Unmoved {
        /// Messages not moved.
        waiting: u64,
    },
    /// The kernel is processing messages.
    Working {
        /// Messages in the input ring.
        waiting: u64,
        /// Taken messages not yet counted.
        in_flight: u64,
    },
    /// The kernel is idle without messages.
    Idle,
}

impl fmt::Display for Conclusion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Abandoned => f.write_str("abandoned: the host ended this launch; the kernel ends without another report"),
            Self::UnknownState(number) => write!(f, "unknown state {number}"),
            Self::Faulted(Some(fault)) => write!(f, "ended with a fault: {fault}"),
            Self::Faulted(None) => f.write_str("ended with an unknown fault"),
            Self::Terminated => f.write_str("ended by command"),
            Self::Corrupt(Side::Input) => f.write_str("the input ring's indices are corrupt"),
            Self::Corrupt(Side::Output) => f.write_str("the output ring's indices are corrupt"),
            Self::NotStarted => f.write_str("not started: launched, no report yet"),
            Self::StuckInHandler { in_flight } => write!(f, "stuck in its handler with {in_flight} messages in flight"),
            Self::StandsStill => f.write_str("no heartbeat and nothing in flight: it ended without a report, or was never scheduled"),
            Self::CommandUnseen(command) => write!(f, "has not acknowledged the command {command}"),
            Self::NotActivated => f.write_str("ready: waits for ACTIVATE"),
            Self::Paused { waiting } => write!(f, "paused by the host: input ring has {waiting} messages, command PAUSE seen"),
            Self::OutputFull => f.write_str("blocked: the output ring is full, the host does not receive"),
            Self::Draining { waiting } => write!(f, "draining: {waiting} messages left"),
            Self::Unmoved { waiting } => write!(f, "idle: {waiting} messages are not flushed to it"),
            Self::Working { waiting, in_flight } => write!(f, "working: {in_flight} messages in flight, {waiting} waiting"),
            Self::Idle => f.write_str("idle: the input ring is empty"),
        }
    }
}

impl Dump {
    /// Returns the kernel's condition.
    #[must_use]
    pub fn conclusion(&self) -> Conclusion {
        let Self { control, input, output, twins, verdict, .. } = self;
        let [taking, giving] = match twins {
            Twins::Seen(twins) => twins.each_ref(),
            Twins::Shared | Twins::Unseen => [input, output],
        };
        let state = match control.kernel_state() {
            _ if u64::from(control.kernel_epoch()) != control.epoch => return Conclusion::Abandoned,
            None => return Conclusion::UnknownState(control.state as u32),
            Some(State::Faulted) => return Conclusion::Faulted(control.faults().1),
            Some(State::Terminated) => return Conclusion::Terminated,
            Some(state) => state,
        };
        let (Ok(_), Ok(arrived)) = (input.fill(), taking.fill()) else { return Conclusion::Corrupt(Side::Input) };
        let (Ok(_), Ok(answers)) = (output.fill(), giving.fill()) else { return Conclusion::Corrupt(Side::Output) };
        let unmoved = input.tail.wrapping_sub(taking.tail);
        if unmoved > input.capacity {
            return Conclusion::Corrupt(Side::Input);
        }
        let waiting = arrived.saturating_add(unmoved);
        let ((sequence, command), in_flight) = (control.given(), control.in_flight);
        match (state, verdict) {
            (State::Created, _) => Conclusion::NotStarted,
            (_, Verdict::Stuck { .. }) if in_flight > 0 => Conclusion::StuckInHandler { in_flight },
            (_, Verdict::Stuck { .. }) => Conclusion::StandsStill,
            _ if u64::from(sequence) != control.command_seen => Conclusion::CommandUnseen(command),
            (State::Ready, _) => Conclusion::NotActivated,
            (State::Paused, _) => Conclusion::Paused { waiting },
            _ if answers == giving.capacity => Conclusion::OutputFull,
            (State::Draining, _) => Conclusion::Draining { waiting },
            _ if arrived == 0 && in_flight == 0 && unmoved > 0 => Conclusion::Unmoved { waiting: unmoved },
            _ if waiting > 0 || in_flight > 0 => Conclusion::Working { waiting, in_flight },
            _ => Conclusion::Idle,
        }
    }
}

impl fmt::Display for Dump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { control, telemetry, input, output, twins, verdict } = self;
        let ((sequence, command), (faults, fault)) = (control.given(), control.faults());
        match control.kernel_state() {
            Some(state) => writeln!(f, "state        {state}")?,
            None => writeln!(f, "state        {}, unknown", control.state as u32)?,
        }
        writeln!(f, "epoch        {} in the kernel, {} set by the host", control.kernel_epoch(), control.epoch)?;
        writeln!(f, "abi          {:#x} in the kernel, {:#x} expected by the host", control.abi_seen, control.abi)?;
        writeln!(f, "command      {command}, number {sequence}, {} seen", control.command_seen)?;
        writeln!(f, "heartbeat    {}, {verdict}", control.heartbeat)?;
        writeln!(f, "messages     {} processed, {} in flight", control.processed, control.in_flight)?;
        match fault {
            Some(fault) => writeln!(f, "faults       {faults}, the last: {fault}")?,
            None if control.error == 0 => writeln!(f, "faults       none")?,
            None => writeln!(f, "faults       {faults}, the last: number {}, unknown", control.error as u32)?,
        }
        match telemetry {
            Ok(record) => {
                let number = record.sequence / 2;
                writeln!(
                    f,
                    "record       {number}, at {} ns: {} processed, {} refused",
                    record.updated_ns, record.processed, record.dropped
                )?;
                match (record.latency_min(), record.latency_mean()) {
                    (Some(least), Some(mean)) => writeln!(f, "latency      {least} to {} ns, mean {mean}", record.latency_max_ns)?,
                    _ => writeln!(f, "latency      of no message yet")?,
                }
            }
            Err(busy) => writeln!(f, "record       none: {busy}")?,
        }
        for (name, host, index) in [("input ring", input, 0), ("output ring", output, 1)] {
            writeln!(f, "{name:<13}{host}")?;
            match twins {
                Twins::Shared => {}
                Twins::Unseen => writeln!(f, "  at kernel  not seen")?,
                Twins::Seen(twins) => writeln!(f, "  at kernel  {}", twins[index])?,
            }
        }
        write!(f, "so           {}", self.conclusion())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::{String, ToString};
    use zerocopy::FromZeros;

    const fn ring(head: u64, fill: u64) -> Indices {
        Indices { head, tail: head.wrapping_add(fill), capacity: 64 }
    }

    fn idle() -> Dump {
        let control = ControlBlock {
            epoch: 3,
            state: 3 << 32 | State::Active as u64,
            command: 2 << 32 | 1,
            command_seen: 2,
            heartbeat: 9,
            ..ControlBlock::new_zeroed()
        };
        Dump {
            control,
            telemetry: Ok(TelemetryBuffer::new_zeroed()),
            input: ring(u64::MAX - 3, 0),
            output: ring(7, 0),
            twins: Twins::Shared,
            verdict: Verdict::Alive,
        }
    }

    fn in_state(state: State) -> Dump {
        let mut dump = idle();
        dump.control.state = 3 << 32 | state as u64;
        dump
    }

    fn moved(input: Indices, twins: [Indices; 2]) -> Dump {
        Dump { input, twins: Twins::Seen(twins), ..idle() }
    }

    fn last_line(dump: &Dump) -> String {
        dump.to_string().lines().last().map(String::from).unwrap_or_default()
    }

    #[test]
    fn each_diagnosis_has_its_sentence() {
        let stuck = Verdict::Stuck { for_ns: 5_000_000_000 };
        let with = |change: &dyn Fn(&mut Dump)| {
            let mut dump = idle();
            change(&mut dump);
            dump
        };
        for (dump, phrase) in [
            (idle(), "idle: the input ring is empty"),
            (with(&|dump| dump.control.epoch = 0), "abandoned"),
            (with(&|dump| dump.control.state = 3 << 32 | 77), "unknown state 77"),
            (
                with(&|dump| (dump.control.state, dump.control.error) = (3 << 32 | 6, 1 << 32 | 6)),
                "ended with a fault: a corrupt ring index",
            ),
            (in_state(State::Faulted), "an unknown fault"),
            (in_state(State::Terminated), "ended by command"),
            (with(&|dump| dump.input = ring(5, 65)), "the input ring's indices are corrupt"),
            (with(&|dump| dump.output = ring(5, u64::MAX)), "the output ring's indices are corrupt"),
            (in_state(State::Created), "not started"),
            (with(&|dump| (dump.verdict, dump.control.in_flight) = (stuck, 4)), "stuck in its handler with 4 messages in flight"),
            (with(&|dump| dump.verdict = stuck), "no heartbeat and nothing in flight"),
            (with(&|dump| dump.control.command = 3 << 32 | 2), "has not acknowledged the command PAUSE"),
            (in_state(State::Ready), "waits for ACTIVATE"),
            (Dump { input: ring(1, 37), ..in_state(State::Paused) }, "paused by the host: input ring has 37 messages, command PAUSE seen"),
            (Dump { output: ring(9, 64), ..in_state(State::Draining) }, "the output ring is full"),
            (Dump { input: ring(1, 12), ..in_state(State::Draining) }, "draining: 12 messages left"),
            (with(&|dump| (dump.input, dump.control.in_flight) = (ring(1, 8), 2)), "working: 2 messages in flight, 8 waiting"),
            (moved(ring(1, 8), [ring(1, 0), ring(7, 0)]), "idle: 8 messages are not flushed to it"),
            (moved(ring(1, 8), [ring(1, 3), ring(7, 0)]), "working: 0 messages in flight, 8 waiting"),
            (moved(ring(9, 0), [ring(5, 4), ring(7, 0)]), "working: 0 messages in flight, 4 waiting"),
            (moved(ring(9, 0), [ring(9, 0), ring(7, 64)]), "the output ring is full"),
            (moved(ring(9, 0), [ring(9, 65), ring(7, 0)]), "the input ring's indices are corrupt"),
            (moved(ring(9, 0), [ring(10, 0), ring(7, 0)]), "the input ring's indices are corrupt"),
            (moved(ring(9, 0), [ring(9, 0), ring(7, u64::MAX)]), "the output ring's indices are corrupt"),
            (Dump { twins: Twins::Unseen, ..idle() }, "idle: the input ring is empty"),
        ] {
            let line = last_line(&dump);
            assert!(line.contains(phrase), "{line}, expected: {phrase}");
        }
    }

    #[test]
    fn a_dump_labels_each_value() {
        let mut dump = idle();
        dump.control.error = 2 << 32 | Fault::Message as u64;
        dump.input = ring(u64::MAX - 3, 5);
        let text = dump.to_string();
        for line in [
            "state        active",
            "epoch        3 in the kernel, 3 set by the host",
            "command      ACTIVATE, number 2, 2 seen",
            "heartbeat    9, alive",
            "faults       2, the last: a message with an invalid request",
            "latency      of no message yet",
            "input ring   5 of 64, producer at 1, consumer at 18446744073709551612",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\nis not in\n{text}");
        }
        assert!(!text.contains("at kernel"), "{text}");
        dump.twins = Twins::Seen([ring(9, 1), ring(7, 2)]);
        let text = dump.to_string();
        let lines: std::vec::Vec<_> = text.lines().skip_while(|line| !line.starts_with("input ring")).take(4).collect();
        assert_eq!(lines[1], "  at kernel  1 of 64, producer at 10, consumer at 9");
        assert_eq!(
            lines[2..],
            ["output ring  0 of 64, producer at 7, consumer at 7", "  at kernel  2 of 64, producer at 9, consumer at 7"]
        );
        dump.twins = Twins::Unseen;
        assert_eq!(dump.to_string().matches("\n  at kernel  not seen\n").count(), 2);
        dump.telemetry = Err(Busy);
        assert!(dump.to_string().contains("record       none: telemetry is being written"));
    }

    #[test]
    fn indices_are_read_from_the_header() {
        use crate::{HostWord, RingLayout};
        let header = RingHeader::<HostWord>::new::<u64>(&RingLayout::of::<u64>(8).unwrap(), 5);
        header.producer.tail.store(11, core::sync::atomic::Ordering::Relaxed);
        let indices = Indices::of(&header);
        assert_eq!((indices, indices.fill().unwrap()), (Indices { head: 5, tail: 11, capacity: 8 }, 6));
    }
}
