use core::fmt;

use crate::defmt_derive::Format;
use bitflags::bitflags;

bitflags! {
    /// A command from the host. Of several bits the strongest wins: TERMINATE, DRAIN, PAUSE, ACTIVATE.
    ///
    /// ```
    /// # use ringmem_layouts as ringmem;
    /// use ringmem::ControlBlock;
    /// use ringmem::control::Command;
    ///
    /// let block = ControlBlock::<u64> { command: 3 << 32 | 2, ..zerocopy::FromZeros::new_zeroed() };
    /// assert_eq!(block.given(), (3, Command::PAUSE)); // the third command
    /// assert_eq!((Command::PAUSE | Command::DRAIN).to_string(), "PAUSE | DRAIN");
    /// ```
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Command: u32 {
        /// 1: process messages.
        const ACTIVATE = 1;
        /// 2: stop taking messages until ACTIVATE.
        const PAUSE = 2;
        /// 4: process the messages in the input ring, then exit.
        const DRAIN = 4;
        /// 8: exit after the current batch.
        const TERMINATE = 8;
    }

    /// Capabilities that host and kernel agreed on.
    ///
    /// ```
    /// # use ringmem_layouts as ringmem;
    /// use ringmem::ControlBlock;
    /// use ringmem::control::Capabilities;
    ///
    /// let block = ControlBlock::<u64> { capabilities: 5, ..zerocopy::FromZeros::new_zeroed() };
    /// let capabilities = Capabilities::from_bits_retain(block.capabilities);
    /// assert_eq!(capabilities, Capabilities::SYSTEM_SCOPE | Capabilities::TELEMETRY);
    /// ```
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Capabilities: u64 {
        /// 1: each side sees the other's system-scope words while a kernel runs.
        const SYSTEM_SCOPE = 1;
        /// 2: read-modify-writes of both sides are atomic.
        const SYSTEM_ATOMICS = 2;
        /// 4: there is a `TelemetryBuffer`.
        const TELEMETRY = 4;
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() { f.write_str("nothing") } else { bitflags::parser::to_writer(self, f) }
    }
}

/// The state of a kernel.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::control::State;
///
/// assert!(State::Terminated.has_ended() && !State::Active.has_ended());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Format)]
#[repr(u32)]
pub enum State {
    /// The block is prepared.
    Created = 0,
    /// The kernel has attached to its rings.
    Ready = 1,
    /// The kernel processes messages.
    Active = 2,
    /// The kernel takes no messages.
    Paused = 3,
    /// The kernel processes the remaining messages.
    Draining = 4,
    /// The kernel has exited.
    Terminated = 5,
    /// The kernel has exited with the fault in `error`.
    Faulted = 6,
}

impl State {
    /// All states, by number.
    pub const ALL: [Self; 7] = [Self::Created, Self::Ready, Self::Active, Self::Paused, Self::Draining, Self::Terminated, Self::Faulted];

    /// Returns the state in a `state` word; `None` if undefined.
    #[must_use]
    pub const fn from_word(word: u64) -> Option<Self> {
        match word as u32 {
            0 => Some(Self::Created),
            1 => Some(Self::Ready),
            2 => Some(Self::Active),
            3 => Some(Self::Paused),
            4 => Some(Self::Draining),
            5 => Some(Self::Terminated),
            6 => Some(Self::Faulted),
            _ => None,
        }
    }

    /// Returns whether this state may become `next`.
    #[must_use]
    pub const fn may_become(self, next: Self) -> bool {
        matches!(
            (self, next),
            (Self::Created, Self::Ready)
                | (Self::Ready, Self::Active)
                | (Self::Active, Self::Paused)
                | (Self::Paused, Self::Active)
                | (Self::Active | Self::Paused, Self::Draining | Self::Terminated)
                | (Self::Draining, Self::Terminated)
                | (_, Self::Faulted)
        )
    }

    /// Returns whether a kernel in this state has exited.
    #[must_use]
    pub const fn has_ended(self) -> bool {
        matches!(self, Self::Terminated | Self::Faulted)
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Created => "created",
            Self::Ready => "ready",
            Self::Active => "active",
            Self::Paused => "paused",
            Self::Draining => "draining",
            Self::Terminated => "terminated",
            Self::Faulted => "faulted",
        })
    }
}

/// A fault of a kernel, in `error`.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::ControlBlock;
/// use ringmem::control::Fault;
///
/// let block = ControlBlock::<u64> { error: 2 << 32 | 6, ..zerocopy::FromZeros::new_zeroed() };
/// assert_eq!(block.faults(), (2, Some(Fault::Corrupt))); // the second fault
/// assert_eq!(Fault::Corrupt.to_string(), "a corrupt ring index");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Format)]
#[repr(u32)]
pub enum Fault {
    /// The block's ABI hash is not the kernel's.
    Abi = 1,
    /// An unmapped or misaligned address.
    Address = 2,
    /// A ring's constants differ from the kernel's.
    Ring = 3,
    /// A command with an unknown bit.
    UnknownCommand = 4,
    /// A command that the state does not allow; ignored.
    RefusedCommand = 5,
    /// An index of the host that claims more messages than the ring holds.
    Corrupt = 6,
    /// An invalid request; answered as refused, counted in `dropped`.
    Message = 7,
    /// No message, command or free slot before the kernel's deadline.
    Deadline = 8,
    /// A panic.
    Panic = 9,
}

impl Fault {
    /// Returns the fault in an `error` word; `None` if none or undefined.
    #[must_use]
    pub const fn from_word(word: u64) -> Option<Self> {
        match word as u32 {
            1 => Some(Self::Abi),
            2 => Some(Self::Address),
            3 => Some(Self::Ring),
            4 => Some(Self::UnknownCommand),
            5 => Some(Self::RefusedCommand),
            6 => Some(Self::Corrupt),
            7 => Some(Self::Message),
            8 => Some(Self::Deadline),
            9 => Some(Self::Panic),
            _ => None,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Abi => "compiled with other layouts",
            Self::Address => "an address that is not mapped or misaligned",
            Self::Ring => "a ring of another geometry or kind",
            Self::UnknownCommand => "an unknown command",
            Self::RefusedCommand => "a command that the state does not allow",
            Self::Corrupt => "a corrupt ring index",
            Self::Message => "a message with an invalid request",
            Self::Deadline => "no message, or no free slot, within the idle limit",
            Self::Panic => "a panic",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_numbers_round_trip_through_words() {
        for (number, state) in State::ALL.into_iter().enumerate() {
            assert_eq!(state as usize, number);
            assert_eq!(State::from_word(7 << 32 | number as u64), Some(state));
        }
        assert_eq!(State::from_word(7), None);
        assert_eq!(Command::all().bits(), 15);
    }

    #[test]
    fn flags_print_names_and_unknown_bits_as_hex() {
        let odd = Command::from_bits_retain(2 | 0x40);
        assert_eq!(std::format!("{odd:?}, {odd}, {}", Command::empty()), "Command(PAUSE | 0x40), PAUSE | 0x40, nothing");
    }

    #[test]
    fn only_the_listed_state_transitions_are_legal() {
        use State::*;
        let legal = [
            (Created, Ready),
            (Ready, Active),
            (Active, Paused),
            (Paused, Active),
            (Active, Draining),
            (Paused, Draining),
            (Draining, Terminated),
            (Active, Terminated),
            (Paused, Terminated),
        ];
        for from in State::ALL {
            for to in State::ALL {
                let expected = to == Faulted || legal.contains(&(from, to));
                assert_eq!(from.may_become(to), expected, "{from:?} -> {to:?}");
            }
        }
    }
}
