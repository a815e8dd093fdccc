//! Why bytes are no message.

use core::fmt;

/// Facts about a header, or about a payload that is not its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum HeaderError {
    /// All that tells a header apart is zero: no message was written here.
    Empty,
    /// Fewer bytes than a header has.
    TooShort {
        /// Bytes.
        needed: u64,
        /// Bytes.
        got: u64,
    },
    /// Something else.
    Magic {
        /// What a header begins with.
        expected: u32,
        /// What stands there.
        got: u32,
    },
    /// A header of another version of the format.
    Version {
        /// Ours.
        expected: u32,
        /// Theirs.
        got: u32,
    },
    /// An unknown flag, or one that `deadline` or `checksum` contradicts.
    Flags {
        /// As found.
        got: u32,
    },
    /// What must be zero is not.
    Reserved {
        /// As found.
        got: u32,
    },
    /// Another number of bytes than there are.
    Length {
        /// By the header.
        claimed: u32,
        /// There, or to be sent.
        available: u64,
    },
    /// A checksum is asked for and there is none.
    Unsealed,
    /// Changed on the way.
    Checksum {
        /// Of what arrived.
        expected: u32,
        /// By the header.
        got: u32,
    },
}

impl fmt::Display for HeaderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("no message was written here"),
            Self::TooShort { needed, got } => write!(f, "a header has {needed} bytes, {got} there"),
            Self::Magic { expected, got } => write!(f, "magic {got:#010x}, not {expected:#010x}: no message"),
            Self::Version { expected, got } => write!(f, "a message of version {got}, not {expected}"),
            Self::Flags { got } => write!(f, "flags {got:#b} are unknown or contradict deadline or checksum"),
            Self::Reserved { got } => write!(f, "{got:#x} where zero must be"),
            Self::Length { claimed, available } => write!(f, "a payload of {claimed} bytes, and {available} are there"),
            Self::Unsealed => f.write_str("a message without a checksum"),
            Self::Checksum { expected, got } => write!(f, "checksum {got:#010x}, and what arrived has {expected:#010x}"),
        }
    }
}

impl core::error::Error for HeaderError {}
