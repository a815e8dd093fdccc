//! [`Config`]: how much memory is kept, pinned and managed, and the small rules that decide about it.
//!
//! It is data: nothing here asks a system or a driver anything. What a figure depends on, such as the machine's memory, is an argument.
//! [`Pools`](crate::pool::Pools) do as it says.
//!
//! ```
//! use ringmem::config::{Config, ConfigError};
//!
//! let config = Config::cuda().with_pool_bytes(1 << 30).validated()?;
//! assert_eq!(config.pooling.max_bytes, 1 << 30);
//! assert!(matches!(config.with_pool_bytes(0).validated(), Err(ConfigError::Bytes { field: "pooling.max_bytes", got: 0, .. })));
//! # Ok::<(), ConfigError>(())
//! ```

use core::time::Duration;

use crate::backend::MemoryLocation;
pub use crate::error::ConfigError;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// The most bytes that any field can have: what an address can span.
const MOST: u64 = isize::MAX as u64;

/// What a program sets once. [`validate`](Self::validate) says whether it makes sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// What is kept instead of freed.
    pub pooling: Pooling,
    /// Page-locked memory.
    pub pinning: Pinning,
    /// Whether managed memory may be used.
    pub managed: bool,
    /// Where a buffer goes for which nobody says otherwise.
    pub location: MemoryLocation,
}

/// What a pool keeps for the next allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pooling {
    /// Whether anything is kept at all.
    pub enabled: bool,
    /// The most bytes that a pool holds, in use or kept; no limit where it is off.
    pub max_bytes: u64,
    /// What is unused for so long is freed.
    pub trim_interval: Duration,
}

/// How much memory may be page-locked: the system misses what is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pinning {
    /// The most bytes, on a machine that has enough.
    pub pool_bytes: u64,
}

impl Config {
    /// Devices with memory of their own: pools of 4 GiB that are trimmed after 5 minutes, 2 GiB of pinned memory, no managed memory.
    pub const fn opencl() -> Self {
        Self {
            pooling: Pooling { enabled: true, max_bytes: 4 * GIB, trim_interval: Duration::from_secs(5 * 60) },
            pinning: Pinning { pool_bytes: 2 * GIB },
            managed: false,
            location: MemoryLocation::Device,
        }
    }

    /// The same with pools of 16 GiB.
    pub const fn cuda() -> Self {
        Self::opencl().with_pool_bytes(16 * GIB)
    }

    /// Host and device share one memory: buffers are managed memory, which both see, and nothing is copied.
    pub const fn metal() -> Self {
        Self::opencl().with_managed(true).with_location(MemoryLocation::Unified)
    }

    /// Simulated devices, whose memory is the process's own: pools of 64 MiB, a quarter of what a device has unless told otherwise.
    pub const fn host() -> Self {
        Self::opencl().with_pool_bytes(64 * MIB)
    }

    /// The same with pools that are on or off.
    #[must_use]
    pub const fn with_pooling(mut self, enabled: bool) -> Self {
        self.pooling.enabled = enabled;
        self
    }

    /// The same with pools that hold so many bytes at most.
    #[must_use]
    pub const fn with_pool_bytes(mut self, bytes: u64) -> Self {
        self.pooling.max_bytes = bytes;
        self
    }

    /// The same with pools that free what was unused for so long.
    #[must_use]
    pub const fn with_trim_interval(mut self, interval: Duration) -> Self {
        self.pooling.trim_interval = interval;
        self
    }

    /// The same with so many bytes of pinned memory at most.
    #[must_use]
    pub const fn with_pinned_bytes(mut self, bytes: u64) -> Self {
        self.pinning.pool_bytes = bytes;
        self
    }

    /// The same with managed memory allowed or not.
    #[must_use]
    pub const fn with_managed(mut self, managed: bool) -> Self {
        self.managed = managed;
        self
    }

    /// The same with buffers in another place.
    #[must_use]
    pub const fn with_location(mut self, location: MemoryLocation) -> Self {
        self.location = location;
        self
    }

    /// Itself, if it makes sense.
    ///
    /// # Errors
    ///
    /// As [`validate`](Self::validate).
    pub fn validated(self) -> Result<Self, ConfigError> {
        self.validate().map(|()| self)
    }

    /// Whether it makes sense. What is off is not looked at.
    ///
    /// # Errors
    ///
    /// The first field that does not, in the order of their declaration.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let Pooling { enabled, max_bytes, trim_interval } = self.pooling;
        if enabled {
            within("pooling.max_bytes", max_bytes, 1)?;
            // Shorter, and every look would empty the pool.
            let least = Duration::from_millis(1);
            if trim_interval < least {
                return Err(ConfigError::Interval { field: "pooling.trim_interval", got: trim_interval, least });
            }
        }
        // None at all is a choice.
        within("pinning.pool_bytes", self.pinning.pool_bytes, 0)?;
        match self.location {
            MemoryLocation::Unified if !self.managed => Err(ConfigError::Location { location: self.location, needs: "managed" }),
            MemoryLocation::Pinned if self.pinning.pool_bytes == 0 => {
                Err(ConfigError::Location { location: self.location, needs: "pinning.pool_bytes" })
            }
            _ => Ok(()),
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self::host()
    }
}

impl Pinning {
    /// How many bytes may be pinned on a machine with so much memory: [`pool_bytes`](Self::pool_bytes), but not more than a quarter of it.
    #[must_use]
    pub const fn budget(&self, ram: u64) -> u64 {
        let quarter = ram / 4;
        if self.pool_bytes < quarter { self.pool_bytes } else { quarter }
    }
}

fn within(field: &'static str, got: u64, least: u64) -> Result<(), ConfigError> {
    if (least..=MOST).contains(&got) { Ok(()) } else { Err(ConfigError::Bytes { field, got, least, most: MOST }) }
}

/// How many bytes may be pinned on a machine with so much memory, unless configured: 2 GiB, but not more than a quarter of it.
#[must_use]
pub const fn pinned_budget(ram: u64) -> u64 {
    Config::opencl().pinning.budget(ram)
}

/// Transfers that pay for pinning a buffer: more than so many.
const TRANSFERS: u64 = 10;

/// Copies up to this size are staged by a CUDA driver and return at once also from pageable memory ("API synchronization behavior" in NVIDIA's
/// driver API reference), so pinning gains them nothing.
const STAGED: u64 = 64 << 10;

/// Whether to pin a buffer of so many bytes that will be copied so often, where so many bytes may still be pinned.
///
/// Locking pages takes longer than a copy of them, so a buffer that is copied up to 10 times is not worth it, nor one of up to 64 KiB.
#[must_use]
pub const fn should_pin(transfers: u64, bytes: u64, budget_left: u64) -> bool {
    transfers > TRANSFERS && bytes > STAGED && bytes <= budget_left
}

/// How large a batch to make where so many bytes are available: as requested, but not more than four fifths of them, rounded down. The rest is for
/// what nobody counted.
#[must_use]
pub const fn batch_size_hint(requested: u64, available: u64) -> u64 {
    // Without a product that could overflow.
    let most = available / 5 * 4 + available % 5 * 4 / 5;
    if requested < most { requested } else { most }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_presets_are_these_and_make_sense() {
        let five_minutes = Duration::from_secs(300);
        let table = [
            (Config::cuda(), 16 * GIB, false, MemoryLocation::Device),
            (Config::opencl(), 4 * GIB, false, MemoryLocation::Device),
            (Config::metal(), 4 * GIB, true, MemoryLocation::Unified),
            (Config::host(), 64 * MIB, false, MemoryLocation::Device),
        ];
        for (config, max_bytes, managed, location) in table {
            let pooling = Pooling { enabled: true, max_bytes, trim_interval: five_minutes };
            assert_eq!(config, Config { pooling, pinning: Pinning { pool_bytes: 2 * GIB }, managed, location });
            assert_eq!(config.validated(), Ok(config));
        }
        assert_eq!(Config::default(), Config::host());
    }

    #[test]
    fn what_makes_no_sense_is_named_with_its_facts() {
        let config = Config::cuda();
        let bytes = |field, got, least| Err(ConfigError::Bytes { field, got, least, most: MOST });
        assert_eq!(config.with_pool_bytes(0).validate(), bytes("pooling.max_bytes", 0, 1));
        assert_eq!(config.with_pool_bytes(MOST + 1).validate(), bytes("pooling.max_bytes", MOST + 1, 1));
        assert_eq!(config.with_pool_bytes(MOST).validate(), Ok(()));
        assert_eq!(config.with_pinned_bytes(u64::MAX).validate(), bytes("pinning.pool_bytes", u64::MAX, 0));
        assert_eq!(config.with_pinned_bytes(0).validate(), Ok(()));
        let least = Duration::from_millis(1);
        let interval = Err(ConfigError::Interval { field: "pooling.trim_interval", got: Duration::ZERO, least });
        assert_eq!(config.with_trim_interval(Duration::ZERO).validate(), interval);
        assert_eq!(config.with_trim_interval(least).validate(), Ok(()));
        let nowhere = |location, needs| Err(ConfigError::Location { location, needs });
        assert_eq!(config.with_location(MemoryLocation::Unified).validate(), nowhere(MemoryLocation::Unified, "managed"));
        let unpinned = config.with_location(MemoryLocation::Pinned).with_pinned_bytes(0);
        assert_eq!(unpinned.validate(), nowhere(MemoryLocation::Pinned, "pinning.pool_bytes"));
        // What is off is not looked at.
        assert_eq!(config.with_pooling(false).with_pool_bytes(0).with_trim_interval(Duration::ZERO).validate(), Ok(()));
    }

    #[test]
    fn the_pinned_budget_is_2_gib_or_a_quarter_of_the_memory() {
        let table = [(0, 0), (3, 0), (4, 1), (GIB, GIB / 4), (8 * GIB - 4, 2 * GIB - 1), (8 * GIB, 2 * GIB), (u64::MAX, 2 * GIB)];
        for (ram, budget) in table {
            assert_eq!(pinned_budget(ram), budget, "of {ram}");
        }
        assert_eq!(Pinning { pool_bytes: 100 }.budget(1000), 100);
        assert_eq!(Pinning { pool_bytes: 100 }.budget(200), 50);
    }

    #[test]
    fn what_is_copied_often_and_large_and_fits_is_pinned() {
        let left = 10 * MIB;
        let table = [
            ((11, MIB, left), true),
            ((10, MIB, left), false),
            ((0, MIB, left), false),
            ((u64::MAX, MIB, left), true),
            ((11, 64 << 10, left), false),
            ((11, (64 << 10) + 1, left), true),
            ((11, 0, left), false),
            ((11, left, left), true),
            ((11, left + 1, left), false),
            ((u64::MAX, u64::MAX, 0), false),
        ];
        for ((transfers, bytes, budget_left), pin) in table {
            assert_eq!(should_pin(transfers, bytes, budget_left), pin, "{transfers} times {bytes} bytes of {budget_left}");
        }
    }

    #[test]
    fn a_batch_is_what_was_requested_or_four_fifths_of_what_there_is() {
        let most = u64::MAX / 5 * 4;
        let table = [
            ((0, 0), 0),
            ((0, 100), 0),
            ((100, 0), 0),
            ((79, 100), 79),
            ((80, 100), 80),
            ((81, 100), 80),
            ((9, 1), 0),
            ((9, 4), 3),
            ((9, 9), 7),
            ((u64::MAX, u64::MAX), most),
            ((u64::MAX, u64::MAX - 1), most - 1),
        ];
        for ((requested, available), hint) in table {
            assert_eq!(batch_size_hint(requested, available), hint, "{requested} of {available}");
        }
    }
}
