//! [`MessageHeader`]: an optional header before a payload.
//!
//! 1. Every bit pattern is a value, which [`validate`](MessageHeader::validate) checks.
//! 2. The checksum is optional, at build time (feature `checksum`) and per message ([`Flags::HAS_CHECKSUM`]). It detects accidental
//!    corruption only.

use bitflags::bitflags;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::error::HeaderError;
use crate::clock::Stamp;
use crate::format::Format;
use crate::{RingMessage, layout_table};

/// The first word of a header; its last byte is the version.
pub const MAGIC: u32 = u32::from_le_bytes(*b"rmm\x01");

const VERSION_SHIFT: u32 = 24;

bitflags! {
    /// Flags of a message.
    ///
    /// ```
    /// # use ringmem_layouts as ringmem;
    /// use ringmem::message::{Flags, MessageHeader};
    ///
    /// let header = MessageHeader::new(7).with_deadline(5_000).with_error();
    /// let flags = Flags::from_bits_retain(header.flags);
    /// assert!(flags.contains(Flags::HAS_DEADLINE | Flags::ERROR) && !flags.contains(Flags::RESPONSE));
    /// ```
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Flags: u32 {
        /// 3: mask of the [`Priority`] bits.
        const PRIORITY = 3;
        /// 4: `deadline` is set, and not 0.
        const HAS_DEADLINE = 4;
        /// 8: `checksum` is set.
        const HAS_CHECKSUM = 8;
        /// 16: answers the message named by `correlation`.
        const RESPONSE = 16;
        /// 32: reports a failure.
        const ERROR = 32;
    }
}

/// The priority of a message; the greater comes first.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::message::{MessageHeader, Priority};
///
/// let urgent = MessageHeader::new(7).with_priority(Priority::Critical);
/// let usual = MessageHeader::new(7);
/// assert_eq!(usual.priority(), Priority::Normal);
/// assert!(urgent.priority() > usual.priority());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Format)]
#[repr(u32)]
pub enum Priority {
    /// After all others.
    Low = 0,
    /// The default.
    #[default]
    Normal = 1,
    /// Before normal messages.
    High = 2,
    /// Before all others.
    Critical = 3,
}

/// A 64-byte header of a payload.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::message::{HeaderError, MessageHeader, Priority};
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
    /// [`MAGIC`]; 0 if there is no message.
    pub magic: u32,
    /// [`Flags`], including the [`Priority`].
    pub flags: u32,
    /// The sender's identifier of the message.
    pub id: u64,
    /// The `id` of the message that this one answers or belongs to, or 0.
    pub correlation: u64,
    /// Identifier of the sender.
    pub source: u32,
    /// Identifier of the receiver.
    pub destination: u32,
    /// Type of the payload; application-defined.
    pub kind: u32,
    /// Size of the payload in bytes.
    pub payload_length: u32,
    /// Deadline in microseconds of `timestamp`'s clock; 0 if none.
    pub deadline: u64,
    /// [`Stamp::bits`] of the time of sending, or 0.
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
    60 _reserved: u32, "none: zero";
}

/// A header without payload is a signal.
#[diagnostic::do_not_recommend]
impl RingMessage for MessageHeader {
    const KIND: u64 = u64::from_le_bytes(*b"rm.mesg\0");
}

impl MessageHeader {
    /// Creates a header of a kind, without payload; other fields have defaults.
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

    /// Sets the identifier.
    #[must_use]
    pub const fn with_id(self, id: u64) -> Self {
        Self { id, ..self }
    }

    /// Sets sender and receiver.
    #[must_use]
    pub const fn with_route(self, source: u32, destination: u32) -> Self {
        Self { source, destination, ..self }
    }

    /// Sets the priority.
    #[must_use]
    pub const fn with_priority(self, priority: Priority) -> Self {
        Self { flags: self.flags & !Flags::PRIORITY.bits() | priority as u32, ..self }
    }

    /// Sets the deadline in microseconds; 0 removes it.
    #[must_use]
    pub const fn with_deadline(self, deadline: u64) -> Self {
        let flag = if deadline == 0 { 0 } else { Flags::HAS_DEADLINE.bits() };
        Self { deadline, flags: self.flags & !Flags::HAS_DEADLINE.bits() | flag, ..self }
    }

    /// Sets the time of sending.
    #[must_use]
    pub const fn with_stamp(self, stamp: Stamp) -> Self {
        Self { timestamp: stamp.bits(), ..self }
    }

    /// Marks a failure report.
    #[must_use]
    pub const fn with_error(self) -> Self {
        Self { flags: self.flags | Flags::ERROR.bits(), ..self }
    }

    /// Sets the payload length; no checksum.
    #[must_use]
    pub const fn with_payload_length(self, payload_length: u32) -> Self {
        Self { payload_length, ..self }
    }

    /// Makes this message the answer to `request`: copies id (as correlation) and priority, swaps source and destination.
    #[must_use]
    pub const fn reply_to(self, request: &Self) -> Self {
        let flags = self.flags & !Flags::PRIORITY.bits() | request.priority() as u32 | Flags::RESPONSE.bits();
        Self { correlation: request.id, source: request.destination, destination: request.source, flags, ..self }
    }

    /// Returns the priority.
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

    /// Returns whether the deadline has passed.
    #[inline]
    #[must_use]
    pub const fn is_expired(&self, now_us: u64) -> bool {
        self.deadline != 0 && now_us > self.deadline
    }

    /// Returns the time of sending, or zero.
    #[inline]
    #[must_use]
    pub const fn stamp(&self) -> Stamp {
        Stamp::from_bits(self.timestamp)
    }

    /// Checks that these bytes are a header with at most `available` bytes of payload, which is not read.
    ///
    /// # Errors
    ///
    /// [`HeaderError`] of the first failed check.
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

    /// Copies and [validates](Self::validate) the header at the start of `bytes`, at any alignment; returns it with its payload. Only
    /// [`check`](Self::check) verifies the checksum.
    ///
    /// # Errors
    ///
    /// [`HeaderError::TooShort`] for fewer bytes than a header, otherwise as [`validate`](Self::validate).
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), HeaderError> {
        let Ok((header, rest)) = Self::read_from_prefix(bytes) else {
            return Err(HeaderError::TooShort { needed: size_of::<Self>() as u64, got: bytes.len() as u64 });
        };
        header.validate(rest.len())?;
        // In bounds: `validate` has checked the length.
        Ok((header, &rest[..header.payload_length as usize]))
    }
}
