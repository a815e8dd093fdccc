//! What the words of a control block mean: commands, capabilities, states, faults, each with its number.

use core::fmt;

use bitflags::bitflags;

bitflags! {
    /// What the host asks for. With several bits the strongest wins: TERMINATE, DRAIN, PAUSE, ACTIVATE. An unknown bit is a fault.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Command: u32 {
        /// 1: take messages.
        const ACTIVATE = 1;
        /// 2: take none until ACTIVATE.
        const PAUSE = 2;
        /// 4: answer what is in the input ring, then end.
        const DRAIN = 4;
        /// 8: end after the batch at hand.
        const TERMINATE = 8;
    }

    /// What host and kernel agreed on before launch.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Capabilities: u64 {
        /// 1: system-scope loads and stores of a word are visible to the other side while a kernel runs.
        const SYSTEM_SCOPE = 1;
        /// 2: read-modify-write operations of both sides on one word are atomic.
        const SYSTEM_ATOMICS = 2;
        /// 4: a `TelemetryBuffer` is there.
        const TELEMETRY = 4;
    }
}

/// By name; what has no name as a number.
impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() { f.write_str("nothing") } else { bitflags::parser::to_writer(self, f) }
    }
}

/// Where a kernel is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[repr(u32)]
pub enum State {
    /// 0: the host has prepared the block.
    Created = 0,
    /// 1: the kernel runs and has attached its rings.
    Ready = 1,
    /// 2: it takes messages.
    Active = 2,
    /// 3: it takes none.
    Paused = 3,
    /// 4: it answers what is left.
    Draining = 4,
    /// 5: it has left.
    Terminated = 5,
    /// 6: it has left because of what `error` says.
    Faulted = 6,
}

impl State {
    /// All of them, each at its own number.
    pub const ALL: [Self; 7] = [Self::Created, Self::Ready, Self::Active, Self::Paused, Self::Draining, Self::Terminated, Self::Faulted];

    /// The state of the low 32 bits of the `state` word; `None` for a number that no kernel writes.
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

    /// Whether a kernel may go from this state to `next`.
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

    /// Whether a kernel in this state has left.
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

/// What went wrong in a kernel: the low 32 bits of `error`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[repr(u32)]
pub enum Fault {
    /// 1: the block asks for another ABI.
    Abi = 1,
    /// 2: an address in the block or in the arguments is not mapped or misaligned.
    Address = 2,
    /// 3: a ring's constants are not what this kernel was compiled with.
    Ring = 3,
    /// 4: a command with an unknown bit.
    UnknownCommand = 4,
    /// 5: a command that its state does not allow; noted, not followed.
    RefusedCommand = 5,
    /// 6: an index of the host claims more than the ring holds.
    Corrupt = 6,
    /// 7: a message that asks for what is not there; answered as refused, counted in `dropped`.
    Message = 7,
    /// 8: neither message nor command for as long as the kernel was told to wait.
    Deadline = 8,
    /// 9: a panic.
    Panic = 9,
}

impl Fault {
    /// The fault of the low 32 bits of the `error` word; `None` for 0 and for numbers that no kernel writes.
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
            Self::Message => "a message that asks for what is not there",
            Self::Deadline => "nothing to do until the deadline",
            Self::Panic => "a panic",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_states_match_the_documents() {
        for (number, state) in State::ALL.into_iter().enumerate() {
            assert_eq!(state as usize, number);
            assert_eq!(State::from_word(7 << 32 | number as u64), Some(state));
        }
        assert_eq!(State::from_word(7), None);
        assert_eq!(Command::all().bits(), 15);
    }

    #[test]
    fn flags_are_shown_by_name_and_what_has_none_as_a_number() {
        let odd = Command::from_bits_retain(2 | 0x40);
        assert_eq!(std::format!("{odd:?}, {odd}, {}", Command::empty()), "Command(PAUSE | 0x40), PAUSE | 0x40, nothing");
    }

    #[test]
    fn the_legal_steps_are_exactly_these() {
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
