use core::convert::Infallible;
use core::fmt;

use crate::attach::Corruption;
use crate::defmt_derive::Format;

/// Why nothing was read.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::ring::lossy::{ReadError, Ring};
///
/// let mut ring = Ring::<u32, 2>::new();
/// let (mut writer, mut reader) = ring.split();
/// assert_eq!(reader.pop(), Err(ReadError::Empty));
/// writer.push_slice(&[1, 2, 3, 4]);
/// let lost = reader.pop().unwrap_err();
/// assert_eq!(lost.to_string(), "2 messages were overwritten before they were read");
/// assert_eq!(reader.pop(), Ok(3));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Format)]
pub enum ReadError<C = Infallible> {
    /// Nothing new was published.
    Empty,
    /// Messages were overwritten; the reader continues at the oldest that may be available.
    Overrun {
        /// Number of messages, at least 1.
        lost: u64,
    },
    /// The writer's index went backwards; call [`Reader::skip`](super::Reader::skip).
    Corrupt(C),
}

/// Messages were overwritten before they were read.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::ring::Follow;
/// use ringmem::ring::lossy::{Overrun, Ring};
///
/// let mut ring = Ring::<u32, 2>::new();
/// let (mut writer, mut reader) = ring.split();
/// writer.push_slice(&[1, 2, 3]);
/// assert_eq!(reader.follow(), Ok(Err(Overrun { lost: 1 })));
/// assert_eq!(reader.follow(), Ok(Ok(2)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Format)]
pub struct Overrun {
    /// Number of messages, at least 1.
    pub lost: u64,
}

/// Why there is no latest message.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::ring::lossy::{LatestError, Ring};
///
/// let mut ring = Ring::<u32, 4>::new();
/// let (mut writer, reader) = ring.split();
/// assert_eq!(reader.latest(), Err(LatestError::Empty));
/// writer.push_slice(&[10, 20, 30]);
/// assert_eq!(reader.latest(), Ok((3, 30))); // the third message
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Format)]
pub enum LatestError {
    /// Nothing (new) was published.
    Empty,
    /// Every attempt found it being overwritten.
    Busy,
}

impl<C: fmt::Display> fmt::Display for ReadError<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("ring is empty"),
            Self::Overrun { lost: 1 } => f.write_str("1 message was overwritten before it was read"),
            Self::Overrun { lost } => write!(f, "{lost} messages were overwritten before they were read"),
            Self::Corrupt(corrupt) => corrupt.fmt(f),
        }
    }
}

impl<C: Corruption> core::error::Error for ReadError<C> {}

impl fmt::Display for Overrun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        ReadError::<Infallible>::Overrun { lost: self.lost }.fmt(f)
    }
}

impl core::error::Error for Overrun {}

impl fmt::Display for LatestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "nothing new was written",
            Self::Busy => "the latest message is being overwritten, or its writer died while it wrote",
        })
    }
}

impl core::error::Error for LatestError {}
