use crate::Result;
use crate::copy::check_depth;

const MIB: u64 = 1 << 20;
const LONG: u64 = MIB;
const VERY_LONG: u64 = 64 * MIB;

/// The path of a copy between devices. Chunks are in bytes; depths from 1 to [`MOST_DEPTH`](crate::copy::MOST_DEPTH).
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
    /// Chunk after chunk, interleaving with other traffic.
    Chunked {
        /// Maximum bytes per chunk.
        chunk: u64,
    },
    /// Several chunks queued: the link does not wait for the host.
    Pipelined {
        /// Maximum bytes per chunk.
        chunk: u64,
        /// Chunks queued at once.
        depth: u32,
    },
    /// Through pinned host memory of `chunk * depth` bytes; a download overlaps the previous upload.
    Staged {
        /// Maximum bytes per chunk.
        chunk: u64,
        /// Chunks queued at once; 1 for no overlap.
        depth: u32,
    },
}

impl Strategy {
    /// Chooses by bytes, access in either direction, and the link's rate in bytes per ns, if known.
    ///
    /// Without access, `Staged`. With access, `Direct` below 1 MiB, `Chunked` to 64 MiB, and `Pipelined` above.
    ///
    /// A chunk of 4 (rate unknown), 8, 16 or 32 MiB takes about a millisecond, much more than the latency. The depth is the number of chunks,
    /// at most 4.
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

    pub(super) fn parts(self, bytes: u64, element: u64) -> Result<(u64, usize)> {
        let (chunk, depth) = match self {
            Self::Direct => (bytes.max(element).max(1), 1),
            Self::Chunked { chunk } => (chunk, 1),
            Self::Pipelined { chunk, depth } | Self::Staged { chunk, depth } => (chunk, depth),
        };
        Ok((chunk, check_depth(depth)?))
    }
}
