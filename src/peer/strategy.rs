//! [`Strategy`]: the path of a copy between devices.

use crate::Result;
use crate::copy::check_depth;

const MIB: u64 = 1 << 20;
/// From this size on, a copy is split into chunks.
const LONG: u64 = MIB;
/// Above this size, several chunks are queued at once.
const VERY_LONG: u64 = 64 * MIB;

/// The path of a copy between devices. Chunks are in bytes; a depth is the number of chunks queued at once, from 1 to
/// [`MOST_DEPTH`](crate::copy::MOST_DEPTH).
///
/// ```
/// use ringmem::peer::Strategy;
///
/// assert_eq!(Strategy::choose(1000, true, None), Strategy::Direct);
/// assert!(matches!(Strategy::choose(1 << 30, true, None), Strategy::Pipelined { .. }));
/// assert!(matches!(Strategy::choose(1 << 30, false, None), Strategy::Staged { .. }));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Strategy {
    /// One copy from device to device.
    Direct,
    /// Chunk after chunk, so that other traffic on the link can interleave.
    Chunked {
        /// The maximum bytes per chunk.
        chunk: u64,
    },
    /// Chunks, several of them queued, so that the link does not wait for the host.
    Pipelined {
        /// The maximum bytes per chunk.
        chunk: u64,
        /// The number of chunks queued at once.
        depth: u32,
    },
    /// Through pinned host memory, with the download of one chunk overlapping the upload of the previous. Takes `chunk * depth` bytes.
    Staged {
        /// The maximum bytes per chunk.
        chunk: u64,
        /// The number of chunks queued at once. With 1, download and upload do not overlap.
        depth: u32,
    },
}

impl Strategy {
    /// Chooses by the number of bytes, by whether one of the devices can access the other, and by the link's rate in bytes per ns (GB/s), if known.
    ///
    /// | bytes | access | no access |
    /// |---|---|---|
    /// | below 1 MiB | `Direct` | `Staged` |
    /// | to 64 MiB | `Chunked` | `Staged` |
    /// | above | `Pipelined` | `Staged` |
    ///
    /// A chunk is the longest of 4, 8, 16 and 32 MiB that takes about a millisecond, in which a link's latency is negligible; 4 MiB if the rate is
    /// unknown. The depth is the number of chunks of the copy, at most 4.
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

    /// Returns the chunk size of a copy of `bytes` bytes with elements of `element` bytes, and the depth.
    pub(super) fn parts(self, bytes: u64, element: u64) -> Result<(u64, usize)> {
        let (chunk, depth) = match self {
            Self::Direct => (bytes.max(element).max(1), 1),
            Self::Chunked { chunk } => (chunk, 1),
            Self::Pipelined { chunk, depth } | Self::Staged { chunk, depth } => (chunk, depth),
        };
        Ok((chunk, check_depth(depth)?))
    }
}
