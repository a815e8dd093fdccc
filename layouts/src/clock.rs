//! Hybrid logical clocks: timestamps that follow physical time, unique and ordered even if it stalls or steps back.
//!
//! 1. [`HybridClock`] is one word for threads and processes; its stamps are unique and follow the happens-before order of the calls.
//! 2. Time is an argument, in microseconds.
//! 3. Stamps do not synchronise memory.
//!
//! Source: Kulkarni et al., "Logical Physical Clocks" (2014). A full counter carries into the time.

mod stamp;

use core::fmt;

use crate::format::Format;
use zerocopy::{FromBytes, Immutable, KnownLayout};

pub use stamp::{COUNTER_BITS, LAST_US, Stamp};

use crate::{RmwWord, layout_table};

/// Returns the stamp after `last` at `now_us` microseconds: greater than `last`, and not behind the time.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::clock::tick;
/// let first = tick(0, 5);
/// assert!(tick(first, 5) > first);
/// assert!(tick(first, 3) > first, "a clock that steps back does not");
/// ```
#[must_use]
pub const fn tick(last: u64, now_us: u64) -> u64 {
    let physical = Stamp::at(now_us).bits();
    let logical = last.wrapping_add(1);
    if physical > logical { physical } else { logical }
}

/// A clock in one word of shared memory; zeroed, it has issued no stamp.
///
/// If several threads tick it, give it its own cache line ([`crate::CacheLineAligned`]).
///
/// Above 4096 ticks per microsecond, a clock runs ahead by the excess, until the time catches up.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::HostWord;
/// use ringmem::clock::HybridClock;
///
/// let clock = HybridClock { last: HostWord::new(0) };
/// let sent = clock.tick(1_700_000_000_000_000);
/// assert_eq!((sent.physical_us(), sent.counter()), (1_700_000_000_000_000, 0));
///
/// // Received where the clock on the wall is 40 us behind: still after what was sent.
/// let elsewhere = HybridClock { last: HostWord::new(0) };
/// let received = elsewhere.merge(sent, 1_699_999_999_999_960, 500)?;
/// assert!(received > sent);
/// # Ok::<(), ringmem::clock::Drift>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, Immutable, KnownLayout)]
#[repr(C, align(8))]
pub struct HybridClock<W = u64> {
    /// [`Stamp::bits`] of the last stamp; never decreases. Written by every agent of one coherence domain, by read-modify-write.
    pub last: W,
}

layout_table! {
    impl<W> HybridClock<W>: size 8, align 8;
    0 last: W, "everybody, by read-modify-write";
}

impl<W: RmwWord> HybridClock<W> {
    /// Returns a stamp greater than all before it and not behind `now_us`.
    #[inline]
    #[must_use]
    pub fn tick(&self, now_us: u64) -> Stamp {
        self.above(Stamp::at(now_us).bits())
    }

    /// Returns the stamp of receiving a message stamped `remote`: greater than `remote`, otherwise as [`tick`](Self::tick).
    ///
    /// # Errors
    ///
    /// [`Drift`] if `remote` is more than `most_ahead_us` ahead of `now_us`, or past [`LAST_US`]: one wrong clock would advance all others.
    #[inline]
    pub fn merge(&self, remote: Stamp, now_us: u64, most_ahead_us: u64) -> Result<Stamp, Drift> {
        if remote.physical_us() > now_us.saturating_add(most_ahead_us).min(LAST_US) {
            return Err(Drift { remote, now_us, most_ahead_us });
        }
        Ok(self.above(Stamp::at(now_us).bits().max(remote.bits() + 1)))
    }

    /// Returns the last stamp, or a skipped value after it; no earlier stamp is greater.
    #[inline]
    #[must_use]
    pub fn last(&self) -> Stamp {
        Stamp::from_bits(self.last.load())
    }

    // Stamps are unique: both operations increase the word, and each stamp is the value after one of them.
    #[inline]
    fn above(&self, floor: u64) -> Stamp {
        let mut given = self.last.fetch_add(1).wrapping_add(1);
        while given < floor {
            given = match self.last.compare_exchange(given, floor) {
                Ok(_) => floor,
                Err(found) if found < floor => found,
                Err(_) => self.last.fetch_add(1).wrapping_add(1),
            };
        }
        Stamp::from_bits(given)
    }
}

/// A stamp from too far in the future.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::HostWord;
/// use ringmem::clock::{Drift, HybridClock, Stamp};
///
/// let clock = HybridClock { last: HostWord::new(0) };
/// let drift = Drift { remote: Stamp::at(2_000), now_us: 1_000, most_ahead_us: 500 };
/// assert_eq!(clock.merge(Stamp::at(2_000), 1_000, 500), Err(drift));
/// assert_eq!(clock.last(), Stamp::from_bits(0)); // unchanged
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Format)]
pub struct Drift {
    /// The stamp received.
    pub remote: Stamp,
    /// The local time in microseconds.
    pub now_us: u64,
    /// The allowed lead in microseconds.
    pub most_ahead_us: u64,
}

impl fmt::Display for Drift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { remote, now_us, most_ahead_us } = self;
        let ahead = remote.physical_us().saturating_sub(*now_us);
        write!(
            f,
            "stamp {remote} is {ahead} us ahead of the local time, {now_us} us: at most {most_ahead_us} us ahead is allowed, and no stamp after {LAST_US} us"
        )
    }
}

impl core::error::Error for Drift {}
