//! [`Stamp`]: 52 bits of microseconds above 12 bits of counter.

use core::fmt;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::{Layout, LayoutDescriptor};

/// Bits of the counter.
pub const COUNTER_BITS: u32 = 12;

/// The latest time that a stamp is made from, microseconds: from 1970 on, some day in 2103. A later time counts as this one. The eight years
/// that 52 bits hold beyond it are for stamps that only count: 2^60 of them.
pub const LAST_US: u64 = (1 << 52) - (1 << 48) - 1;

/// A moment of a [`HybridClock`](super::HybridClock); the lesser came first. Zero is before all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[repr(transparent)]
pub struct Stamp(u64);

/// As its bits: a word.
// SAFETY: transparent over a `u64`.
unsafe impl Layout for Stamp {
    const DESCRIPTOR: LayoutDescriptor = u64::DESCRIPTOR;
}

impl Stamp {
    /// The first stamp of a microsecond; of [`LAST_US`] for a later one.
    #[inline]
    #[must_use]
    pub const fn at(now_us: u64) -> Self {
        let now_us = if now_us < LAST_US { now_us } else { LAST_US };
        Self(now_us << COUNTER_BITS)
    }

    /// A stamp as it travels.
    #[inline]
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// As it travels: microseconds in the high 52 bits, counter in the low 12.
    #[inline]
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Microseconds.
    #[inline]
    #[must_use]
    pub const fn physical_us(self) -> u64 {
        self.0 >> COUNTER_BITS
    }

    /// Which stamp of its microsecond, from 0.
    #[inline]
    #[must_use]
    pub const fn counter(self) -> u32 {
        (self.0 & ((1 << COUNTER_BITS) - 1)) as u32
    }
}

/// Microseconds, then the counter: `1700000000000000+3`.
impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{}", self.physical_us(), self.counter())
    }
}
