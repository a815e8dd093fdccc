//! [`AttachError`]: memory without the expected layout.

use crate::defmt_derive::Format;
use core::convert::Infallible;
use core::{error, fmt};

/// Why memory from another process or device cannot be used.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// # use core::ptr::NonNull;
/// # use ringmem::{CacheLineAligned, Host};
/// use ringmem::attach::AttachError;
/// use ringmem::ring::spsc::Consumer;
///
/// let mut memory = CacheLineAligned::new([0_u64; 64]);
/// let base = NonNull::from(&mut memory).cast();
/// // SAFETY: 512 initialised bytes that nothing else accesses.
/// let refused = unsafe { Consumer::<u64, Host>::from_raw(base, 512) }.unwrap_err();
/// assert!(matches!(refused, AttachError::Magic { got: 0, .. })); // no ring was formatted here
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Format)]
#[non_exhaustive]
pub enum AttachError {
    /// The address is null or not a multiple of `align`.
    Misaligned {
        /// The address.
        address: u64,
        /// Required alignment in bytes.
        align: u64,
    },
    /// The memory is shorter than its contents.
    TooSmall {
        /// Bytes needed.
        needed: u64,
        /// Bytes available.
        got: u64,
    },
    /// No header of this kind, or an incomplete one.
    Magic {
        /// The expected magic.
        expected: u64,
        /// The value found.
        got: u64,
    },
    /// Another version of the format.
    Version {
        /// This crate's version.
        expected: u64,
        /// The version found.
        got: u64,
    },
    /// Compiled with different layouts.
    Abi {
        /// This program's ABI hash.
        expected: u64,
        /// The ABI hash found.
        got: u64,
    },
    /// Messages, or the ring, of another kind.
    Kind {
        /// The kind expected.
        expected: u64,
        /// The kind found.
        got: u64,
    },
    /// No power of two, too large, not that of the other header, or 1 in a mailbox.
    Capacity {
        /// The capacity found.
        got: u64,
    },
    /// Slots of another size.
    SlotSize {
        /// Bytes expected.
        expected: u64,
        /// Bytes found.
        got: u64,
    },
    /// An offset is misaligned or out of bounds.
    Offset {
        /// Bytes from the header.
        got: u64,
    },
    /// More entries than a region can have.
    Count {
        /// The count found.
        got: u64,
    },
    /// Impossible indices.
    Corrupt(Corrupt),
}

/// A peer's index that claims more messages than the ring holds.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::attach::Corrupt;
/// use ringmem::dump::Indices;
///
/// let indices = Indices { head: 5, tail: 90, capacity: 64 };
/// let corrupt = Corrupt { head: 5, tail: 90, capacity: 64 };
/// assert_eq!(indices.fill(), Err(corrupt));
/// assert_eq!(corrupt.to_string(), "ring is corrupt: tail 90 is not within 64 slots of head 5");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Format)]
pub struct Corrupt {
    /// The consumer's index.
    pub head: u64,
    /// The producer's index.
    pub tail: u64,
    /// Number of slots.
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
            Self::TooSmall { needed, got } => write!(f, "region too small: {got} bytes, {needed} needed"),
            Self::Magic { expected, got } => write!(f, "not formatted: magic is {got:#018x}, expected {expected:#018x}"),
            Self::Version { expected, got } => write!(f, "version {got}, expected {expected}"),
            Self::Abi { expected, got } => {
                write!(
                    f,
                    "type mismatch: ABI {got:#018x}, expected {expected:#018x}; compile both sides with the same definition of the type"
                )
            }
            Self::Kind { expected, got } => write!(f, "messages of kind {got}, expected {expected}"),
            Self::Capacity { got } => {
                write!(
                    f,
                    "invalid capacity {got}: it must be a power of two that fits the memory, equal in both headers, and not 1 in a mailbox"
                )
            }
            Self::SlotSize { expected, got } => write!(f, "slots of {got} bytes, expected {expected}"),
            Self::Offset { got } => write!(f, "invalid offset {got}: misaligned or out of bounds"),
            Self::Count { got } => write!(f, "{got} entries: more than a region can have"),
            Self::Corrupt(Corrupt { head, tail, capacity }) => {
                write!(f, "ring is corrupt: head {head} and tail {tail} are invalid for {capacity} slots")
            }
        }
    }
}

impl error::Error for AttachError {}
impl error::Error for Corrupt {}

/// The error of an index outside the ring: [`Corrupt`], or [`Infallible`] if only ends in this process write the ring.
///
/// Errors of rings take it as a parameter. With `Infallible`, a `match` needs no arm for `Corrupt`:
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::ring::spsc::{PopError, Ring};
///
/// let mut ring = Ring::<u32, 4>::new();
/// let (_producer, mut consumer) = ring.split();
/// let popped = match consumer.pop() {
///     Ok(value) => Some(value),
///     Err(PopError::Empty) => None,
/// };
/// assert_eq!(popped, None);
/// ```
///
/// ```compile_fail,E0004
/// # use ringmem_layouts as ringmem;
/// use ringmem::Host;
/// use ringmem::ring::spsc::{Consumer, PopError};
///
/// fn pop(consumer: &mut Consumer<'_, u32, Host>) -> Option<u32> {
///     match consumer.pop() {
///         Ok(value) => Some(value),
///         Err(PopError::Empty) => None, // the memory is foreign: and if it is corrupt?
///     }
/// }
/// ```
pub trait Corruption: error::Error + Copy + Eq + Into<Corrupt> + Send + Sync + Sealed + 'static {
    /// Returns the error. `Infallible` returns `otherwise`, so that an end stays sound.
    #[doc(hidden)]
    fn found<T>(corrupt: Corrupt, otherwise: T) -> Result<T, Self>;
}

impl Corruption for Corrupt {
    #[inline(always)]
    fn found<T>(corrupt: Corrupt, _: T) -> Result<T, Self> {
        Err(corrupt)
    }
}

impl Corruption for Infallible {
    #[inline(always)]
    fn found<T>(_: Corrupt, otherwise: T) -> Result<T, Self> {
        Ok(otherwise)
    }
}

impl From<Infallible> for Corrupt {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

use sealed::Sealed;

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Corrupt {}
    impl Sealed for core::convert::Infallible {}
}
