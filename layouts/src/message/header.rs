//! [`MessageHeader`]: an envelope for those who want one.
//!
//! 1. Plain integers, since it travels as payload: inside a slot of a ring, or before the bytes of a frame. Any bytes are a value, all zero is
//!    nothing, and what they mean is asked of [`validate`](MessageHeader::validate).
//! 2. The checksum is optional, in the build (feature `checksum`) and in each message ([`Flags::HAS_CHECKSUM`]).
//! 3. It finds accidents. Who can write a message can write its checksum too: it is no signature.
//!
//! Source of the checksum: CRC-32C, Castagnoli's polynomial 0x1EDC6F41, as RFC 3720 (iSCSI) has it.

use bitflags::bitflags;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::error::HeaderError;
use crate::clock::Stamp;
use crate::{RingMessage, layout_table};

/// What a header begins with; the last byte is the format's version.
pub const MAGIC: u32 = u32::from_le_bytes(*b"rmm\x01");

/// The bits of [`MAGIC`] that are the version.
const VERSION_SHIFT: u32 = 24;

bitflags! {
    /// What a message is besides its kind.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Flags: u32 {
        /// 3: the bits of [`Priority`].
        const PRIORITY = 3;
        /// 4: `deadline` is one, and not 0.
        const HAS_DEADLINE = 4;
        /// 8: `checksum` is one.
        const HAS_CHECKSUM = 8;
        /// 16: answers the message that `correlation` names.
        const RESPONSE = 16;
        /// 32: tells of a failure.
        const ERROR = 32;
    }
}

/// Which goes first; the greater before the lesser.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[repr(u32)]
pub enum Priority {
    /// 0: when there is nothing else.
    Low = 0,
    /// 1: what a new header has.
    #[default]
    Normal = 1,
    /// 2: before the others.
    High = 2,
    /// 3: before everything.
    Critical = 3,
}

/// 64 bytes before a payload. Written by the sender, whole, before it is published.
///
/// ```
/// use ringmem_layouts::message::{HeaderError, MessageHeader, Priority};
///
/// let request = MessageHeader::new(7).with_id(1).with_route(10, 20).with_priority(Priority::High).with_deadline(5_000);
/// assert_eq!(request.validate(0), Ok(()));
/// assert!(request.is_expired(5_001) && !request.is_expired(5_000));
///
/// let answer = MessageHeader::new(8).reply_to(&request);
/// assert_eq!((answer.correlation, answer.source, answer.destination), (1, 20, 10));
///
/// let nothing = MessageHeader::default();
/// assert_eq!(nothing.validate(0), Err(HeaderError::Empty));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(8))]
pub struct MessageHeader {
    /// [`MAGIC`]; 0 where there is no message.
    pub magic: u32,
    /// [`Flags`], the [`Priority`] among them.
    pub flags: u32,
    /// The sender's name for this message.
    pub id: u64,
    /// The `id` of the message that this one answers or belongs to; 0 for none.
    pub correlation: u64,
    /// Who sends.
    pub source: u32,
    /// Who is meant.
    pub destination: u32,
    /// What the payload is, in the users' numbering.
    pub kind: u32,
    /// Bytes that follow.
    pub payload_length: u32,
    /// Microseconds of the clock that `timestamp` is of; 0 for none.
    pub deadline: u64,
    /// [`Stamp::bits`] of when it was sent; 0 for not stamped.
    pub timestamp: u64,
    /// CRC-32C of these 64 bytes with this field zero, then of the payload; 0 without [`Flags::HAS_CHECKSUM`].
    pub checksum: u32,
    /// Zero.
    pub _reserved: u32,
}

layout_table! {
    MessageHeader: size 64, align 8;
    0  magic: u32, "sender";
    4  flags: u32, "sender";
    8  id: u64, "sender";
    16 correlation: u64, "sender";
    24 source: u32, "sender";
    28 destination: u32, "sender";
    32 kind: u32, "sender";
    36 payload_length: u32, "sender";
    40 deadline: u64, "sender";
    48 timestamp: u64, "sender";
    56 checksum: u32, "sender";
    60 _reserved: u32, "nobody: zero";
}

// SAFETY: 64 bytes of plain integers without padding or pointers.
#[cfg(feature = "cust")]
unsafe impl cust_core::DeviceCopy for MessageHeader {}

/// A header alone is a message too: a signal.
impl RingMessage for MessageHeader {
    const KIND: u64 = u64::from_le_bytes(*b"rm.mesg\0");
}

impl MessageHeader {
    /// A message of a kind, without payload and with nothing else set.
    #[must_use]
    pub const fn new(kind: u32) -> Self {
        Self {
            magic: MAGIC,
            flags: Priority::Normal as u32,
            id: 0,
            correlation: 0,
            source: 0,
            destination: 0,
            kind,
            payload_length: 0,
            deadline: 0,
            timestamp: 0,
            checksum: 0,
            _reserved: 0,
        }
    }

    /// The sender's name for it.
    #[must_use]
    pub const fn with_id(self, id: u64) -> Self {
        Self { id, ..self }
    }

    /// From whom to whom.
    #[must_use]
    pub const fn with_route(self, source: u32, destination: u32) -> Self {
        Self { source, destination, ..self }
    }

    /// Which goes first.
    #[must_use]
    pub const fn with_priority(self, priority: Priority) -> Self {
        Self { flags: self.flags & !Flags::PRIORITY.bits() | priority as u32, ..self }
    }

    /// Of no use after these microseconds; 0 takes the deadline back.
    #[must_use]
    pub const fn with_deadline(self, deadline: u64) -> Self {
        let flag = if deadline == 0 { 0 } else { Flags::HAS_DEADLINE.bits() };
        Self { deadline, flags: self.flags & !Flags::HAS_DEADLINE.bits() | flag, ..self }
    }

    /// When it is sent.
    #[must_use]
    pub const fn with_stamp(self, stamp: Stamp) -> Self {
        Self { timestamp: stamp.bits(), ..self }
    }

    /// Tells of a failure.
    #[must_use]
    pub const fn with_error(self) -> Self {
        Self { flags: self.flags | Flags::ERROR.bits(), ..self }
    }

    /// So many bytes follow. Without a checksum this is all that a header says of its payload.
    #[must_use]
    pub const fn with_payload_length(self, payload_length: u32) -> Self {
        Self { payload_length, ..self }
    }

    /// Answers a request: the way back, its id as correlation, its priority.
    #[must_use]
    pub const fn reply_to(self, request: &Self) -> Self {
        let flags = self.flags & !Flags::PRIORITY.bits() | request.priority() as u32 | Flags::RESPONSE.bits();
        Self { correlation: request.id, source: request.destination, destination: request.source, flags, ..self }
    }

    /// Which goes first.
    #[inline]
    #[must_use]
    pub const fn priority(&self) -> Priority {
        match self.flags & Flags::PRIORITY.bits() {
            0 => Priority::Low,
            1 => Priority::Normal,
            2 => Priority::High,
            _ => Priority::Critical,
        }
    }

    /// Whether it has a deadline that is over.
    #[inline]
    #[must_use]
    pub const fn is_expired(&self, now_us: u64) -> bool {
        self.deadline != 0 && now_us > self.deadline
    }

    /// When it was sent; zero for not stamped.
    #[inline]
    #[must_use]
    pub const fn stamp(&self) -> Stamp {
        Stamp::from_bits(self.timestamp)
    }

    /// Whether these bytes are a header, with `available` bytes after it. The payload is not looked at.
    ///
    /// # Errors
    ///
    /// [`HeaderError`] with the first thing that is wrong.
    #[inline]
    pub const fn validate(&self, available: usize) -> Result<(), HeaderError> {
        let flags = self.flags;
        if self.magic != MAGIC {
            return Err(self.no_header());
        }
        if flags & !Flags::all().bits() != 0
            || (flags & Flags::HAS_DEADLINE.bits() != 0) != (self.deadline != 0)
            || (flags & Flags::HAS_CHECKSUM.bits() == 0 && self.checksum != 0)
        {
            return Err(HeaderError::Flags { got: flags });
        }
        if self._reserved != 0 {
            return Err(HeaderError::Reserved { got: self._reserved });
        }
        if self.payload_length as usize > available {
            return Err(HeaderError::Length { claimed: self.payload_length, available: available as u64 });
        }
        Ok(())
    }

    #[cold]
    const fn no_header(&self) -> HeaderError {
        if self.magic == 0 {
            HeaderError::Empty
        } else if (self.magic ^ MAGIC) << (32 - VERSION_SHIFT) == 0 {
            HeaderError::Version { expected: MAGIC >> VERSION_SHIFT, got: self.magic >> VERSION_SHIFT }
        } else {
            HeaderError::Magic { expected: MAGIC, got: self.magic }
        }
    }

    /// The header at the start of bytes of any alignment, copied out and [validated](Self::validate), and its payload. A checksum is compared
    /// only by [`check`](Self::check).
    ///
    /// # Errors
    ///
    /// [`HeaderError::TooShort`] for less than a header, else as [`validate`](Self::validate).
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), HeaderError> {
        let Ok((header, rest)) = Self::read_from_prefix(bytes) else {
            return Err(HeaderError::TooShort { needed: size_of::<Self>() as u64, got: bytes.len() as u64 });
        };
        header.validate(rest.len())?;
        // Within: validated just now.
        Ok((header, &rest[..header.payload_length as usize]))
    }
}
