//! Hybrid logical time: stamps that follow the clock on the wall where they can, and only each other where they cannot.
//!
//! 1. [`HybridClock`] is one word that any number of threads and processes share. No two stamps of it are equal, and a call that happens
//!    before another gets the lesser one.
//! 2. [`tick`] is the same step for who has a clock of their own: one lane of a kernel, one thread.
//! 3. The time is always an argument, in microseconds: nothing here reads a clock.
//! 4. Stamps order themselves and nothing else: who gets a later one has not thereby seen what the earlier one's owner wrote.
//!
//! Source: Kulkarni et al., "Logical Physical Clocks" (2014), with the counter below the time so that one comparison orders two
//! stamps and a full counter carries into the time instead of repeating a stamp.

mod stamp;

use core::fmt;

use zerocopy::{FromBytes, Immutable, KnownLayout};

pub use stamp::{COUNTER_BITS, LAST_US, Stamp};

use crate::{RmwWord, layout_table};

/// The stamp after `last` at `now_us` microseconds: always greater than `last`, and not behind the time.
///
/// ```
/// use ringmem_layouts::clock::tick;
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

/// A clock in one word of shared memory, 8 bytes; zeroed, it has given no stamp. With `W = u64` it is a snapshot.
///
/// Give it a cache line of its own ([`crate::CacheLineAligned`]) where several tick.
///
/// # Why no stamp is given twice
///
/// Two operations change the word: an addition of 1, and a compare-exchange from a value below a floor to that floor. Both leave a greater
/// value than they found, so the values of the word, in the one order in which all agree that it was changed, rise strictly. Each stamp is
/// the value that one of these changes left, and each change is one call's. So no two stamps are equal; and since a call that happens
/// before another changes the word before it, stamps follow whatever order the program has. (It takes 2^60 stamps after [`LAST_US`], or
/// somebody else who writes the word, to come to the end of the numbers.)
///
/// # How far ahead of the time
///
/// A number that its caller does not take lies below that caller's floor. So above the greatest time that any call was told, or any stamp
/// that was merged, lie only stamps that were given, one after the other: 4096 of them are one microsecond. Who ticks no faster than that
/// is never ahead; who does is ahead by what is too many, and even again when the time has caught up.
///
/// ```
/// use ringmem_layouts::clock::HybridClock;
/// use ringmem_layouts::{HostWord, Word};
///
/// let clock = HybridClock { last: HostWord::new(0) };
/// let sent = clock.tick(1_700_000_000_000_000);
/// assert_eq!((sent.physical_us(), sent.counter()), (1_700_000_000_000_000, 0));
///
/// // Received where the clock on the wall is 40 us behind: still after what was sent.
/// let elsewhere = HybridClock { last: HostWord::new(0) };
/// let received = elsewhere.merge(sent, 1_699_999_999_999_960, 500)?;
/// assert!(received > sent);
/// # Ok::<(), ringmem_layouts::clock::Drift>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, Immutable, KnownLayout)]
#[repr(C, align(8))]
pub struct HybridClock<W> {
    /// [`Stamp::bits`] of the last. Everybody of one coherence domain, by read-modify-write; it never goes back.
    pub last: W,
}

layout_table! {
    impl<W> HybridClock<W>: size 8, align 8;
    0 last: W, "everybody, by read-modify-write";
}

// SAFETY: one word of plain data, if `W` is plain data.
#[cfg(feature = "cust")]
unsafe impl<W: cust_core::DeviceCopy> cust_core::DeviceCopy for HybridClock<W> {}

impl<W: RmwWord> HybridClock<W> {
    /// A stamp greater than all before it, and not behind `now_us`. A time that steps back is passed over.
    #[inline]
    #[must_use]
    pub fn tick(&self, now_us: u64) -> Stamp {
        self.above(Stamp::at(now_us).bits())
    }

    /// The stamp of receiving what was sent at `remote`: greater than it, and as [`tick`](Self::tick).
    ///
    /// # Errors
    ///
    /// [`Drift`] for a stamp more than `most_ahead_us` ahead of `now_us`, or past [`LAST_US`]; the clock is as it was. Without such a bound one
    /// peer whose clock is wrong would take everybody with it for good.
    #[inline]
    pub fn merge(&self, remote: Stamp, now_us: u64, most_ahead_us: u64) -> Result<Stamp, Drift> {
        if remote.physical_us() > now_us.saturating_add(most_ahead_us).min(LAST_US) {
            return Err(Drift { remote, now_us, most_ahead_us });
        }
        Ok(self.above(Stamp::at(now_us).bits().max(remote.bits() + 1)))
    }

    /// The last stamp, or a number after it that nobody took: no stamp that was given before is greater.
    #[inline]
    #[must_use]
    pub fn last(&self) -> Stamp {
        Stamp::from_bits(self.last.load())
    }

    /// One addition where the time has not moved on; a look first would be one more journey of a line that others want.
    #[inline]
    fn above(&self, floor: u64) -> Stamp {
        let mut given = self.last.fetch_add(1).wrapping_add(1);
        while given < floor {
            given = match self.last.compare_exchange(given, floor) {
                Ok(_) => floor,
                // Still below, so not taken: it is only where the next try begins.
                Err(found) if found < floor => found,
                Err(_) => self.last.fetch_add(1).wrapping_add(1),
            };
        }
        Stamp::from_bits(given)
    }
}

/// A stamp from too far in the future.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Drift {
    /// As received.
    pub remote: Stamp,
    /// The time here, microseconds.
    pub now_us: u64,
    /// How far ahead was allowed, microseconds.
    pub most_ahead_us: u64,
}

impl fmt::Display for Drift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { remote, now_us, most_ahead_us } = self;
        let ahead = remote.physical_us().saturating_sub(*now_us);
        write!(f, "stamp {remote} is {ahead} us ahead of {now_us}: {most_ahead_us} us are allowed, and nothing past {LAST_US}")
    }
}

impl core::error::Error for Drift {}
