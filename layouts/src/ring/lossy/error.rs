//! Why a lossy ring did not give.

use core::fmt;

use crate::attach::Corrupt;

/// Why nothing was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum ReadError {
    /// Nothing new.
    Empty,
    /// Messages were overwritten before they were read. The reader continues at the oldest message that may be available.
    Overrun {
        /// Messages, at least 1.
        lost: u64,
    },
    /// The writer's index went backwards; the reader stays where it is until [`Reader::skip`](super::Reader::skip).
    Corrupt(Corrupt),
}

/// Messages were overwritten before their reader came to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Overrun {
    /// How many, at least 1.
    pub lost: u64,
}

/// Why there is no latest message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum LatestError {
    /// Nothing was ever written, or nothing new.
    Empty,
    /// It was being overwritten for as long as was tried.
    Busy,
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("ring is empty"),
            Self::Overrun { lost } => write!(f, "{lost} messages were overwritten before they were read"),
            Self::Corrupt(corrupt) => corrupt.fmt(f),
        }
    }
}

impl core::error::Error for ReadError {}

impl fmt::Display for Overrun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        ReadError::Overrun { lost: self.lost }.fmt(f)
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
