//! [`Strategy`]: how the bytes of a copy between devices go.

use crate::Result;
use crate::copy::check_depth;

const MIB: u64 = 1 << 20;
/// From here on a copy goes in chunks.
const LONG: u64 = MIB;
/// Beyond this, several of them are queued at once.
const VERY_LONG: u64 = 64 * MIB;

/// How the bytes of a copy between devices go. Chunks are in bytes; a depth is how many of them are queued at once, from 1 to [`MOST_DEPTH`](crate::copy::MOST_DEPTH).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Strategy {
    /// In one copy, from one device to the other.
    Direct,
    /// Chunk after chunk: whatever else uses the link has its turn between two of them.
    Chunked {
        /// At most so many bytes a copy.
        chunk: u64,
    },
    /// In chunks of which a few are queued, so that the link does not wait for the host between them.
    Pipelined {
        /// At most so many bytes a copy.
        chunk: u64,
        /// Chunks that are queued at once.
        depth: u32,
    },
    /// Over the host's pinned memory: while one chunk leaves it, the next arrives. It takes `chunk * depth` bytes of that.
    Staged {
        /// At most so many bytes a copy.
        chunk: u64,
        /// Chunks that are queued at once. With 1 the two ways of a chunk come one after the other.
        depth: u32,
    },
}

impl Strategy {
    /// For so many bytes, whether or not one of the devices reaches the other, over a link of a rate in bytes per ns (which is GB/s), if it is known.
    ///
    /// | bytes | one reaches the other | neither does |
    /// |---|---|---|
    /// | below 1 MiB | `Direct` | `Staged` |
    /// | to 64 MiB | `Chunked` | `Staged` |
    /// | above | `Pipelined` | `Staged` |
    ///
    /// A chunk is the longest of 4, 8, 16 and 32 MiB that takes about a millisecond, in which a link's latency is lost; 4 MiB where the rate is not
    /// known. There are as many of them at once as the copy has, up to 4.
    ///
    /// ```
    /// use ringmem::peer::Strategy;
    ///
    /// assert_eq!(Strategy::choose(100, true, None), Strategy::Direct);
    /// assert_eq!(Strategy::choose(100 << 20, false, Some(25.0)), Strategy::Staged { chunk: 16 << 20, depth: 4 });
    /// ```
    #[must_use]
    pub fn choose(bytes: u64, reaches: bool, rate: Option<f64>) -> Self {
        let chunk = MIB
            * match rate.unwrap_or_default() {
                32.0.. => 32,
                16.0.. => 16,
                8.0.. => 8,
                _ => 4,
            };
        let depth = bytes.div_ceil(chunk).clamp(1, 4) as u32;
        match bytes {
            _ if !reaches => Self::Staged { chunk, depth },
            ..LONG => Self::Direct,
            LONG..=VERY_LONG => Self::Chunked { chunk },
            _ => Self::Pipelined { chunk, depth },
        }
    }

    /// The longest chunk of a copy of so many bytes in elements of a size, and how many are queued at once.
    pub(super) fn parts(self, bytes: u64, element: u64) -> Result<(u64, usize)> {
        let (chunk, depth) = match self {
            Self::Direct => (bytes.max(element).max(1), 1),
            Self::Chunked { chunk } => (chunk, 1),
            Self::Pipelined { chunk, depth } | Self::Staged { chunk, depth } => (chunk, depth),
        };
        Ok((chunk, check_depth(depth)?))
    }
}
