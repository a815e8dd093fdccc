use crate::format::Format;
use core::fmt;

/// An invalid header, or a payload that does not match it.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::message::{HeaderError, MessageHeader};
///
/// let header = MessageHeader::new(7).with_payload_length(64);
/// assert_eq!(header.validate(64), Ok(()));
/// assert_eq!(header.validate(32), Err(HeaderError::Length { claimed: 64, available: 32 }));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Format)]
#[non_exhaustive]
pub enum HeaderError {
    /// All bytes are zero: no message was written.
    Empty,
    /// Fewer bytes than a header.
    TooShort {
        /// Bytes of a header.
        needed: u64,
        /// Bytes available.
        got: u64,
    },
    /// The bytes are not a header.
    Magic {
        /// The expected magic.
        expected: u32,
        /// The value found.
        got: u32,
    },
    /// Another version of the format.
    Version {
        /// This crate's version.
        expected: u32,
        /// The version found.
        got: u32,
    },
    /// A flag that is unknown or contradicts `deadline` or `checksum`.
    Flags {
        /// The value found.
        got: u32,
    },
    /// A reserved field is not zero.
    Reserved {
        /// The value found.
        got: u32,
    },
    /// The payload length does not match the bytes available.
    Length {
        /// The length in the header.
        claimed: u32,
        /// The bytes available, or to be sent.
        available: u64,
    },
    /// The message has no checksum.
    Unsealed,
    /// Header or payload has changed after sealing.
    Checksum {
        /// The checksum of the bytes.
        expected: u32,
        /// The checksum in the header.
        got: u32,
    },
}

impl fmt::Display for HeaderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("no message header: all bytes are zero"),
            Self::TooShort { needed, got } => write!(f, "message too short: {got} bytes, the header has {needed}"),
            Self::Magic { expected, got } => write!(f, "not a message: magic is {got:#010x}, expected {expected:#010x}"),
            Self::Version { expected, got } => write!(f, "message version {got}, expected {expected}"),
            Self::Flags { got } => write!(f, "flags {got:#b} are unknown or contradict deadline or checksum"),
            Self::Reserved { got } => write!(f, "reserved field is {got:#x}, expected zero"),
            Self::Length { claimed, available } => write!(f, "message claims {claimed} bytes of payload, {available} available"),
            Self::Unsealed => f.write_str("message has no checksum"),
            Self::Checksum { expected, got } => write!(f, "checksum mismatch: message says {got:#010x}, its bytes have {expected:#010x}"),
        }
    }
}

impl core::error::Error for HeaderError {}
