use core::convert::Infallible;
use core::fmt;

use crate::attach::Corruption;
use crate::defmt_derive::Format;

/// An error of a push.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::ring::framed::{PushError, Ring};
///
/// let mut ring = Ring::<64>::new();
/// let (mut producer, _consumer) = ring.split();
/// assert_eq!(producer.push(&[0; 25]), Err(PushError::TooLarge { largest: 24, asked: 25 })); // never fits
/// producer.push(&[0; 24])?;
/// producer.push(&[0; 24])?;
/// assert_eq!(producer.push(b""), Err(PushError::Full)); // fits later
/// # Ok::<(), PushError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Format)]
pub enum PushError<C = Infallible> {
    /// Not enough contiguous room now.
    Full,
    /// Longer than any message of this ring.
    TooLarge {
        /// Bytes of the largest message.
        largest: usize,
        /// Bytes of this message.
        asked: usize,
    },
    /// The consumer's index is out of range.
    Corrupt(C),
}

impl<C: fmt::Display> fmt::Display for PushError<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full => f.write_str("ring is full"),
            Self::TooLarge { largest, asked } => write!(f, "message too large: {asked} bytes, at most {largest}"),
            Self::Corrupt(corrupt) => corrupt.fmt(f),
        }
    }
}

impl<C: Corruption> core::error::Error for PushError<C> {}

/// An error of a pop.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::ring::framed::{PopError, Ring};
///
/// let mut ring = Ring::<64>::new();
/// let (mut producer, mut consumer) = ring.split();
/// producer.push(b"hello").unwrap();
/// let mut message = vec![];
/// if let Err(PopError::TooSmall { needed }) = consumer.pop(&mut message) {
///     message.resize(needed, 0);
/// }
/// assert_eq!((consumer.pop(&mut message)?, &*message), (5, &b"hello"[..]));
/// # Ok::<(), PopError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Format)]
pub enum PopError<C = Infallible> {
    /// The ring is empty.
    Empty,
    /// The message, which stays, is longer than the buffer.
    TooSmall {
        /// Bytes of the message.
        needed: usize,
    },
    /// The producer's index is out of range.
    Corrupt(C),
    /// An invalid length or marker; later messages are lost.
    BadFrame {
        /// Index of the word.
        index: u64,
        /// Its value.
        word: u64,
        /// The ring's indices.
        indices: C,
    },
}

impl<C: fmt::Display> fmt::Display for PopError<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("ring is empty"),
            Self::TooSmall { needed } => write!(f, "buffer too small: the next message has {needed} bytes"),
            Self::Corrupt(corrupt) => corrupt.fmt(f),
            Self::BadFrame { index, word, .. } => write!(f, "ring is corrupt: word {index} is {word:#x}, not a valid message length"),
        }
    }
}

impl<C: Corruption> core::error::Error for PopError<C> {}
