//! Why memory was not taken for what it was said to be.

use core::fmt;

/// Facts about memory that somebody else laid out and that cannot be used as asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum AttachError {
    /// The address is null or not a multiple of `align`.
    Misaligned {
        /// The address.
        address: u64,
        /// Bytes.
        align: u64,
    },
    /// The memory ends before what it should hold.
    TooSmall {
        /// Bytes.
        needed: u64,
        /// Bytes.
        got: u64,
    },
    /// No header of this kind, or not yet.
    Magic {
        /// What a header of this kind begins with.
        expected: u64,
        /// What stands there.
        got: u64,
    },
    /// Another version of the format.
    Version {
        /// Ours.
        expected: u64,
        /// Theirs.
        got: u64,
    },
    /// Compiled with other layouts.
    Abi {
        /// Ours.
        expected: u64,
        /// Theirs.
        got: u64,
    },
    /// Messages of the same layout, but of another kind.
    Kind {
        /// Ours.
        expected: u64,
        /// Theirs.
        got: u64,
    },
    /// Not a power of two, more slots than an address space holds, or another number than the ring's other header says.
    Capacity {
        /// As found.
        got: u64,
    },
    /// Slots of another size.
    SlotSize {
        /// Bytes.
        expected: u64,
        /// Bytes.
        got: u64,
    },
    /// An offset that is misaligned or points outside.
    Offset {
        /// Bytes from the header.
        got: u64,
    },
    /// More entries than a region may have.
    Count {
        /// As found.
        got: u64,
    },
    /// Indices that no sequence of pushes and pops gives.
    Corrupt(Corrupt),
}

/// An index of the other side claims more than the ring can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Corrupt {
    /// The consumer's index.
    pub head: u64,
    /// The producer's index.
    pub tail: u64,
    /// Slots.
    pub capacity: u64,
}

impl fmt::Display for Corrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { head, tail, capacity } = self;
        write!(f, "ring is corrupt: tail {tail} is not within {capacity} slots of head {head}")
    }
}

impl fmt::Display for AttachError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Misaligned { address, align } => write!(f, "address {address:#x} is null or not a multiple of {align}"),
            Self::TooSmall { needed, got } => write!(f, "{needed} bytes needed, {got} there"),
            Self::Magic { expected, got } => write!(f, "magic {got:#018x}, not {expected:#018x}: nothing was laid out here"),
            Self::Version { expected, got } => write!(f, "version {got}, not {expected}"),
            Self::Abi { expected, got } => write!(f, "compiled with other layouts: ABI {got:#018x}, not {expected:#018x}"),
            Self::Kind { expected, got } => write!(f, "messages of kind {got}, not {expected}"),
            Self::Capacity { got } => write!(f, "a capacity of {got} is not a power of two that fits memory and both headers"),
            Self::SlotSize { expected, got } => write!(f, "slots of {got} bytes, not {expected}"),
            Self::Offset { got } => write!(f, "offset {got} is misaligned or outside"),
            Self::Count { got } => write!(f, "{got} entries are more than a region has"),
            Self::Corrupt(Corrupt { head, tail, capacity }) => {
                write!(f, "ring is corrupt: head {head} and tail {tail} are no indices of these {capacity} slots")
            }
        }
    }
}

impl core::error::Error for AttachError {}
impl core::error::Error for Corrupt {}
