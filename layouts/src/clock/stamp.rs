use core::fmt;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::format::Format;
use crate::{Layout, LayoutDescriptor};

/// Bits of the counter.
pub const COUNTER_BITS: u32 = 12;

/// The latest physical time, in microseconds since 1970: in the year 2103. Later times count as this one.
pub const LAST_US: u64 = (1 << 52) - (1 << 48) - 1;

/// A timestamp of a [`HybridClock`](super::HybridClock); the smaller one is earlier.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::clock::Stamp;
///
/// let stamp = Stamp::at(1_000); // microseconds
/// assert_eq!((stamp.physical_us(), stamp.counter()), (1_000, 0));
/// assert!(stamp < Stamp::at(1_001));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, FromBytes, IntoBytes, Immutable, KnownLayout, Format)]
#[repr(transparent)]
pub struct Stamp(u64);

// SAFETY: transparent over a `u64`.
#[diagnostic::do_not_recommend]
unsafe impl Layout for Stamp {
    const DESCRIPTOR: LayoutDescriptor = u64::DESCRIPTOR;
}

impl Stamp {
    /// Returns the first stamp of a microsecond, at most of [`LAST_US`].
    #[inline]
    #[must_use]
    pub const fn at(now_us: u64) -> Self {
        let now_us = if now_us < LAST_US { now_us } else { LAST_US };
        Self(now_us << COUNTER_BITS)
    }

    /// Creates a stamp from its bits.
    #[inline]
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// Returns the bits: microseconds in the high 52, the counter in the low 12.
    #[inline]
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Returns the microseconds.
    #[inline]
    #[must_use]
    pub const fn physical_us(self) -> u64 {
        self.0 >> COUNTER_BITS
    }

    /// Returns the position among the stamps of one microsecond, from 0.
    #[inline]
    #[must_use]
    pub const fn counter(self) -> u32 {
        (self.0 & ((1 << COUNTER_BITS) - 1)) as u32
    }
}

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{}", self.physical_us(), self.counter())
    }
}
