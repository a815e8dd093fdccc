use core::fmt;

use crate::attach::Corrupt;

/// An error of a push, with the value.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::ring::PushError;
///
/// assert_eq!(PushError::Full(7).into_inner(), 7);
/// assert_eq!(PushError::Full(7).to_string(), "ring is full");
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum PushError<T> {
    /// The ring is full.
    Full(T),
    /// The other side's index is out of range; see `refresh`.
    Corrupt(T),
}

/// The ring is full; the value is returned. For ends that [own](super::Owned) their ring, which cannot be corrupt.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::ring::{Full, spsc};
///
/// let (mut producer, _consumer) = spsc::bounded::<u32>(1);
/// producer.push(1)?;
/// let Err(Full(value)) = producer.push(2) else { unreachable!("one slot") };
/// assert_eq!(value, 2);
/// # Ok::<(), Full<u32>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Full<T>(pub T);

/// The ring is empty. For ends that [own](super::Owned) their ring, which cannot be corrupt.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::ring::{Empty, mpmc};
///
/// let (producer, mut consumer) = mpmc::bounded::<u32>(4);
/// assert_eq!(consumer.pop(), Err(Empty));
/// drop(producer);
/// assert!(consumer.end().is_disconnected());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Empty;

// `unwrap` must work without `T: Debug`.
impl<T> fmt::Debug for Full<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Full(..)")
    }
}

impl<T> fmt::Display for Full<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ring is full")
    }
}

impl<T> core::error::Error for Full<T> {}

impl fmt::Display for Empty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ring is empty")
    }
}

impl core::error::Error for Empty {}

/// Why no slots were granted.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::ring::{ReserveError, spsc};
///
/// let mut ring = spsc::Ring::<u32, 4>::new();
/// let (mut producer, _consumer) = ring.split();
/// producer.reserve(3)?.fill([1, 2, 3]);
/// assert_eq!(producer.reserve(2).err(), Some(ReserveError::Full { free: 1 }));
/// assert_eq!(producer.reserve(5).err(), Some(ReserveError::TooLarge { capacity: 4 }));
/// # Ok::<(), ReserveError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum ReserveError {
    /// Too few slots are free now.
    Full {
        /// Free slots.
        free: u64,
    },
    /// The request exceeds the capacity.
    TooLarge {
        /// Slots.
        capacity: u64,
    },
    /// The other side's index is out of range.
    Corrupt(Corrupt),
}

/// Why nothing was popped.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::ring::{PopError, spsc};
///
/// let mut ring = spsc::Ring::<u32, 4>::new();
/// let (mut producer, mut consumer) = ring.split();
/// producer.push(7).unwrap();
/// assert_eq!(consumer.pop()?, 7);
/// assert_eq!(consumer.pop(), Err(PopError::Empty));
/// # Ok::<(), PopError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum PopError {
    /// The ring is empty.
    Empty,
    /// The other side's index is out of range.
    Corrupt(Corrupt),
}

impl<T> PushError<T> {
    /// Returns the value that was not pushed.
    pub fn into_inner(self) -> T {
        match self {
            Self::Full(value) | Self::Corrupt(value) => value,
        }
    }
}

// `unwrap` must work without `T: Debug`.
impl<T> fmt::Debug for PushError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full(_) => "Full(..)",
            Self::Corrupt(_) => "Corrupt(..)",
        })
    }
}

impl<T> fmt::Display for PushError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full(_) => "ring is full",
            Self::Corrupt(_) => "ring is corrupt: the consumer's index claims what cannot be",
        })
    }
}

impl<T> core::error::Error for PushError<T> {}

impl fmt::Display for ReserveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full { free } => write!(f, "only {free} slots are free"),
            Self::TooLarge { capacity } => write!(f, "the ring has only {capacity} slots"),
            Self::Corrupt(corrupt) => corrupt.fmt(f),
        }
    }
}

impl core::error::Error for ReserveError {}

impl fmt::Display for PopError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("ring is empty"),
            Self::Corrupt(corrupt) => corrupt.fmt(f),
        }
    }
}

impl core::error::Error for PopError {}
