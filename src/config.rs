//! [`Config`]: limits and options of pooled, pinned and managed memory, applied by [`Pools`](crate::pool::Pools).
//!
//! ```
//! use ringmem::config::{Config, ConfigError};
//!
//! let config = Config::cuda().with_pool_bytes(1 << 30);
//! config.validate()?;
//! assert_eq!(config.pooling.max_bytes, 1 << 30);
//! assert!(matches!(config.with_pool_bytes(0).validate(), Err(ConfigError::Bytes { field: "pooling.max_bytes", got: 0, .. })));
//! # Ok::<(), ConfigError>(())
//! ```

use core::time::Duration;
use std::borrow::ToOwned;
use std::vec::Vec;

pub use crate::error::ConfigError;
use crate::location::MemoryLocation;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

const MOST: u64 = isize::MAX as u64;

/// Memory options of a program.
///
/// ```
/// use ringmem::backend::MemoryLocation;
/// use ringmem::config::Config;
///
/// let config = Config::host().with_managed(true).with_location(MemoryLocation::Unified);
/// assert_eq!(config.validate(), Ok(()));
/// assert!(config.with_managed(false).validate().is_err()); // unified memory is managed
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Options of pools.
    pub pooling: Pooling,
    /// Limits of page-locked memory.
    pub pinning: Pinning,
    /// Managed memory is allowed.
    pub managed: bool,
    /// Default location of buffers.
    pub location: MemoryLocation,
}

/// Options of a pool.
///
/// ```
/// use std::time::Duration;
///
/// use ringmem::config::{Config, Pooling};
///
/// let pooling = Pooling { trim_interval: Duration::from_secs(60), ..Config::cuda().pooling };
/// assert_eq!((pooling.enabled, pooling.max_bytes), (true, 16 << 30));
/// assert_eq!(Config { pooling, ..Config::cuda() }.validate(), Ok(()));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pooling {
    /// Freed memory is kept for later allocations.
    pub enabled: bool,
    /// Most bytes that a pool reserves, live or idle.
    pub max_bytes: u64,
    /// Idle time after which [`Pools::maintain`](crate::pool::Pools::maintain) frees memory.
    pub trim_interval: Duration,
}

/// Limits of page-locked memory, a system resource.
///
/// ```
/// use ringmem::config::Pinning;
///
/// let pinning = Pinning { pool_bytes: 4 << 30 };
/// assert_eq!(pinning.budget(64 << 30), 4 << 30);
/// assert_eq!(pinning.budget(8 << 30), 2 << 30); // a quarter of the machine's memory
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pinning {
    /// Most bytes. [`budget`](Self::budget) also limits them to a quarter of the machine's memory.
    pub pool_bytes: u64,
}

impl Config {
    /// Returns the preset for devices with their own memory: pools of 4 GiB, trimmed after 5 minutes; 2 GiB pinned; no managed memory.
    pub const fn opencl() -> Self {
        Self {
            pooling: Pooling { enabled: true, max_bytes: 4 * GIB, trim_interval: Duration::from_secs(5 * 60) },
            pinning: Pinning { pool_bytes: 2 * GIB },
            managed: false,
            location: MemoryLocation::Device,
        }
    }

    /// Returns [`opencl`](Self::opencl) with pools of 16 GiB.
    pub const fn cuda() -> Self {
        Self::opencl().with_pool_bytes(16 * GIB)
    }

    /// Returns the preset for devices that share host memory: managed memory.
    pub const fn metal() -> Self {
        Self::opencl().with_managed(true).with_location(MemoryLocation::Unified)
    }

    /// Returns the preset for simulated devices: pools of 64 MiB.
    pub const fn host() -> Self {
        Self::opencl().with_pool_bytes(64 * MIB)
    }

    /// Sets [`Pooling::enabled`].
    #[must_use]
    pub const fn with_pooling(mut self, enabled: bool) -> Self {
        self.pooling.enabled = enabled;
        self
    }

    /// Sets [`Pooling::max_bytes`].
    #[must_use]
    pub const fn with_pool_bytes(mut self, bytes: u64) -> Self {
        self.pooling.max_bytes = bytes;
        self
    }

    /// Sets [`Pooling::trim_interval`].
    #[must_use]
    pub const fn with_trim_interval(mut self, interval: Duration) -> Self {
        self.pooling.trim_interval = interval;
        self
    }

    /// Sets [`Pinning::pool_bytes`].
    #[must_use]
    pub const fn with_pinned_bytes(mut self, bytes: u64) -> Self {
        self.pinning.pool_bytes = bytes;
        self
    }

    /// Sets [`managed`](Self::managed).
    #[must_use]
    pub const fn with_managed(mut self, managed: bool) -> Self {
        self.managed = managed;
        self
    }

    /// Sets [`location`](Self::location).
    #[must_use]
    pub const fn with_location(mut self, location: MemoryLocation) -> Self {
        self.location = location;
        self
    }

    /// Applies a setting by its name in DotCompute. Does not [validate](Self::validate) the result.
    ///
    /// | name | values | sets |
    /// |---|---|---|
    /// | `MemoryPooling.Enabled` | `true`, `false` | `pooling.enabled` |
    /// | `MemoryPooling.MaxPoolSizeBytes` | bytes | `pooling.max_bytes` |
    /// | `MemoryPooling.TrimInterval` | `HH:MM:SS` | `pooling.trim_interval` |
    /// | `CUDA.PinnedMemoryPoolSize` | bytes | `pinning.pool_bytes` |
    /// | `CUDA.EnableManagedMemory` | `true`, `false` | `managed` |
    /// | `Metal.UseSharedMemory` | `true`, `false` | `location`: unified, with `managed`; or device |
    /// | `Metal.ResourceStorageMode`, `Metal.StorageMode` | `Shared`, `Private` | as `UseSharedMemory` = `true`, `false` |
    /// | `OpenCL.UseZeroCopyBuffers` | `true`, `false` | `location`: pinned or device |
    ///
    /// # Errors
    ///
    /// [`ConfigError::Setting`] with the reason: an unknown name, a malformed value, or a setting that would have no effect, such as
    /// `OpenCL.PreferReadWriteBuffers`: every buffer is readable and writable.
    ///
    /// ```
    /// use ringmem::config::Config;
    ///
    /// let config = Config::cuda().with_setting("CUDA.PinnedMemoryPoolSize", "1073741824")?.with_setting("CUDA.EnableManagedMemory", "true")?;
    /// assert_eq!((config.pinning.pool_bytes, config.managed), (1 << 30, true));
    /// let error = config.with_setting("Metal.StorageMode", "Managed").expect_err("one copy only");
    /// assert!(error.to_string().starts_with("invalid setting Metal.StorageMode = Managed: a buffer has one copy"));
    /// # Ok::<(), ringmem::config::ConfigError>(())
    /// ```
    #[doc(alias("MaxPoolSizeBytes", "TrimInterval", "PinnedMemoryPoolSize", "EnableManagedMemory", "UseSharedMemory"))]
    #[doc(alias("ResourceStorageMode", "StorageMode", "UseZeroCopyBuffers"))]
    pub fn with_setting(self, name: &str, value: &str) -> Result<Self, ConfigError> {
        let shared = |is_shared| match is_shared {
            true => self.with_managed(true).with_location(MemoryLocation::Unified),
            false => self.with_location(MemoryLocation::Device),
        };
        match name {
            "MemoryPooling.Enabled" => boolean(value).map(|on| self.with_pooling(on)),
            "MemoryPooling.MaxPoolSizeBytes" => bytes(value).map(|bytes| self.with_pool_bytes(bytes)),
            "MemoryPooling.TrimInterval" => interval(value).map(|interval| self.with_trim_interval(interval)),
            "CUDA.PinnedMemoryPoolSize" => bytes(value).map(|bytes| self.with_pinned_bytes(bytes)),
            "CUDA.EnableManagedMemory" => boolean(value).map(|on| self.with_managed(on)),
            "Metal.UseSharedMemory" => boolean(value).map(shared),
            "Metal.ResourceStorageMode" | "Metal.StorageMode" => match value {
                "Shared" => Ok(shared(true)),
                "Private" => Ok(shared(false)),
                "Managed" => Err("a buffer has one copy; use `MirroredBuffer` for a host and a device copy"),
                "Memoryless" => Err("memoryless storage is for render targets only"),
                _ => Err("expected Shared or Private"),
            },
            "OpenCL.UseZeroCopyBuffers" => boolean(value).map(|on| match on {
                true => self.with_location(MemoryLocation::Pinned),
                false => self.with_location(MemoryLocation::Device),
            }),
            "OpenCL.PreferReadWriteBuffers" => {
                Err("every buffer is readable and writable, and a `&Buffer` is read-only; remove the setting")
            }
            _ => Err("unknown name; `Config::with_setting` lists the known ones"),
        }
        .map_err(|reason| ConfigError::Setting { name: name.to_owned(), value: value.to_owned(), reason })
    }

    /// Checks the configuration. Ignores the options of pools if pooling is disabled.
    ///
    /// # Errors
    ///
    /// The first invalid field, in order of declaration.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let Pooling { enabled, max_bytes, trim_interval } = self.pooling;
        if enabled {
            within("pooling.max_bytes", max_bytes, 1)?;
            // With a shorter interval, every trim would empty the pool.
            let least = Duration::from_millis(1);
            if trim_interval < least {
                return Err(ConfigError::Interval { field: "pooling.trim_interval", got: trim_interval, least });
            }
        }
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
    /// Returns the bytes of `ram` that may be pinned: [`pool_bytes`](Self::pool_bytes), at most a quarter.
    #[must_use]
    pub const fn budget(&self, ram: u64) -> u64 {
        let quarter = ram / 4;
        if self.pool_bytes < quarter { self.pool_bytes } else { quarter }
    }
}

fn boolean(value: &str) -> Result<bool, &'static str> {
    // .NET writes `True`, JSON `true`.
    match value {
        "true" | "True" => Ok(true),
        "false" | "False" => Ok(false),
        _ => Err("expected true or false"),
    }
}

fn bytes(value: &str) -> Result<u64, &'static str> {
    value.parse().map_err(|_| "expected a whole number of bytes below 2^64")
}

fn interval(value: &str) -> Result<Duration, &'static str> {
    let is_two_digits = |part: &&str| part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_digit());
    let parts: Vec<u64> = value.split(':').filter(is_two_digits).filter_map(|part| part.parse().ok()).collect();
    match parts[..] {
        [hours @ 0..24, minutes @ 0..60, seconds @ 0..60] if value.len() == 8 => {
            Ok(Duration::from_secs((hours * 60 + minutes) * 60 + seconds))
        }
        _ => Err("expected HH:MM:SS, below 24 hours"),
    }
}

fn within(field: &'static str, got: u64, least: u64) -> Result<(), ConfigError> {
    if (least..=MOST).contains(&got) { Ok(()) } else { Err(ConfigError::Bytes { field, got, least, most: MOST }) }
}

const TRANSFERS: u64 = 10;

/// CUDA stages pageable copies up to this size and returns at once ("API synchronization behavior" in NVIDIA's driver API reference).
const STAGED: u64 = 64 << 10;

/// Returns true if pinning `bytes` bytes pays for `transfers` copies, within `budget_left` bytes: for more than 10 copies and more than 64 KiB,
/// because locking takes longer than copying.
#[must_use]
pub const fn should_pin(transfers: u64, bytes: u64, budget_left: u64) -> bool {
    transfers > TRANSFERS && bytes > STAGED && bytes <= budget_left
}

/// Returns a batch size: `requested`, at most four fifths of `available`.
#[must_use]
pub const fn batch_size_hint(requested: u64, available: u64) -> u64 {
    // Not `available * 4 / 5`, whose product can overflow.
    let most = available / 5 * 4 + available % 5 * 4 / 5;
    if requested < most { requested } else { most }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_presets_have_their_values_and_are_valid() {
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
            assert_eq!(config.validate(), Ok(()));
        }
        assert_eq!(Config::default(), Config::host());
    }

    #[test]
    fn invalid_settings_are_named_in_the_error() {
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
        assert_eq!(config.with_pooling(false).with_pool_bytes(0).with_trim_interval(Duration::ZERO).validate(), Ok(()));
    }

    #[test]
    fn a_setting_changes_its_field_alone() {
        let config = Config::cuda();
        let (unified, pinned) =
            (config.with_managed(true).with_location(MemoryLocation::Unified), config.with_location(MemoryLocation::Pinned));
        let table = [
            ("MemoryPooling.Enabled", "False", config.with_pooling(false)),
            ("MemoryPooling.MaxPoolSizeBytes", "4096", config.with_pool_bytes(4096)),
            ("MemoryPooling.TrimInterval", "01:02:03", config.with_trim_interval(Duration::from_secs(3723))),
            ("CUDA.PinnedMemoryPoolSize", "0", config.with_pinned_bytes(0)),
            ("CUDA.EnableManagedMemory", "true", config.with_managed(true)),
            ("Metal.UseSharedMemory", "true", unified),
            ("Metal.ResourceStorageMode", "Shared", unified),
            ("Metal.StorageMode", "Private", config),
            ("OpenCL.UseZeroCopyBuffers", "True", pinned),
        ];
        for (name, value, expected) in table {
            assert_eq!(config.with_setting(name, value), Ok(expected), "{name} = {value}");
        }
        for setting in [("Metal.UseSharedMemory", "false"), ("Metal.StorageMode", "Private")] {
            assert_eq!(unified.with_setting(setting.0, setting.1), Ok(unified.with_location(MemoryLocation::Device)));
        }
        assert_eq!(pinned.with_setting("OpenCL.UseZeroCopyBuffers", "false"), Ok(config));
    }

    #[test]
    fn a_refused_setting_is_named_with_its_value_and_the_reason() {
        let table = [
            ("CUDA.PinnedMemoryPool", "1", "unknown name"),
            ("MemoryPooling.Enabled", "yes", "expected true or false"),
            ("MemoryPooling.MaxPoolSizeBytes", "-1", "expected a whole number"),
            ("CUDA.PinnedMemoryPoolSize", "18446744073709551616", "expected a whole number"),
            ("MemoryPooling.TrimInterval", "300", "expected HH:MM:SS"),
            ("MemoryPooling.TrimInterval", "24:00:00", "expected HH:MM:SS"),
            ("MemoryPooling.TrimInterval", "00:60:00", "expected HH:MM:SS"),
            ("MemoryPooling.TrimInterval", "00:00:60", "expected HH:MM:SS"),
            ("MemoryPooling.TrimInterval", "0:+5:000", "expected HH:MM:SS"),
            ("MemoryPooling.TrimInterval", "00:00:01:", "expected HH:MM:SS"),
            ("Metal.StorageMode", "Managed", "a buffer has one copy"),
            ("Metal.StorageMode", "Memoryless", "memoryless storage is for render targets"),
            ("Metal.StorageMode", "shared", "expected Shared or Private"),
            ("OpenCL.PreferReadWriteBuffers", "true", "every buffer is readable"),
            ("OpenCL.PreferReadWriteBuffers", "false", "every buffer is readable"),
        ];
        for (name, value, expected) in table {
            match Config::host().with_setting(name, value) {
                Err(ConfigError::Setting { name: got, value: given, reason }) => {
                    assert_eq!((&*got, &*given), (name, value));
                    assert!(reason.starts_with(expected), "{name} = {value}: {reason}");
                }
                more => panic!("{name} = {value}: {more:?}"),
            }
        }
    }

    #[test]
    fn the_pinned_budget_is_2_gib_or_a_quarter_of_the_memory() {
        let table = [(0, 0), (3, 0), (4, 1), (GIB, GIB / 4), (8 * GIB - 4, 2 * GIB - 1), (8 * GIB, 2 * GIB), (u64::MAX, 2 * GIB)];
        for (ram, budget) in table {
            assert_eq!(Config::default().pinning.budget(ram), budget, "of {ram}");
        }
        assert_eq!(Pinning { pool_bytes: 100 }.budget(1000), 100);
        assert_eq!(Pinning { pool_bytes: 100 }.budget(200), 50);
    }

    #[test]
    fn large_frequent_copies_that_fit_are_pinned() {
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
    fn a_batch_is_the_request_or_four_fifths_of_the_available() {
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
