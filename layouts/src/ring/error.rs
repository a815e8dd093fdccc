use core::convert::Infallible;
use core::fmt;

use crate::attach::Corruption;
use crate::defmt_derive::Format;

/// An error of a push, with the value.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::ring::PushError;
///
/// let full: PushError<u32> = PushError::Full(7);
/// assert_eq!((full.to_string(), full.into_inner()), ("ring is full".to_owned(), 7));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Format)]
pub enum PushError<T, C = Infallible> {
    /// The ring is full.
    Full(T),
    /// The other side's index is out of range.
    Corrupt(T, C),
}

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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Format)]
pub enum ReserveError<C = Infallible> {
    /// Too few slots are free now.
    Full {
        /// Free slots.
        free: usize,
    },
    /// The request exceeds the capacity.
    TooLarge {
        /// Slots.
        capacity: usize,
    },
    /// The other side's index is out of range.
    Corrupt(C),
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Format)]
pub enum PopError<C = Infallible> {
    /// The ring is empty.
    Empty,
    /// The other side's index is out of range.
    Corrupt(C),
}

impl<T, C> PushError<T, C> {
    /// Returns the value that was not pushed.
    pub fn into_inner(self) -> T {
        match self {
            Self::Full(value) | Self::Corrupt(value, _) => value,
        }
    }
}

// `unwrap` must work without `T: Debug`.
impl<T, C> fmt::Debug for PushError<T, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full(_) => "Full(..)",
            Self::Corrupt(..) => "Corrupt(..)",
        })
    }
}

impl<T, C: fmt::Display> fmt::Display for PushError<T, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full(_) => f.write_str("ring is full"),
            Self::Corrupt(_, corrupt) => corrupt.fmt(f),
        }
    }
}

impl<T, C: Corruption> core::error::Error for PushError<T, C> {}

impl<C: fmt::Display> fmt::Display for ReserveError<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full { free } => write!(f, "only {free} slots are free"),
            Self::TooLarge { capacity } => write!(f, "the ring has only {capacity} slots"),
            Self::Corrupt(corrupt) => corrupt.fmt(f),
        }
    }
}

impl<C: Corruption> core::error::Error for ReserveError<C> {}

impl<C: fmt::Display> fmt::Display for PopError<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("ring is empty"),
            Self::Corrupt(corrupt) => corrupt.fmt(f),
        }
    }
}

impl<C: Corruption> core::error::Error for PopError<C> {}
