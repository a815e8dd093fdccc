//! 1. Arithmetic is on integers: a floating-point factor loses elements above 2^24 or 2^53.
//! 2. A capacity is whole elements. `min_bytes` rounds up; `max_bytes` rounds down and takes precedence.
//! 3. Growing one by one from 1 to n elements takes at most ⌈log(n) / log(growth)⌉ steps.

use crate::config::ConfigError;
use crate::{Error, Result};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// The growth policy of a buffer; [`validate`](Self::validate) checks it.
///
/// ```
/// use ringmem::manager::{BufferConfig, Growth};
///
/// let config = BufferConfig::new().with_growth(Growth::new(3, 2)).with_bytes(4096, 1 << 20);
/// config.validate()?;
/// // A buffer of 1024 floats that needs one more grows by half.
/// assert_eq!(config.capacity(1024, 1025, 4)?, 1536);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferConfig {
    /// Element size in bytes; `None` for any.
    pub bytes_per_element: Option<u32>,
    /// Growth factor.
    pub growth: Growth,
    /// Minimum size in bytes, from the first allocation on.
    pub min_bytes: u64,
    /// Maximum size in bytes.
    pub max_bytes: u64,
    /// Whether transfers may be queued.
    pub is_async: bool,
}

/// A factor of at least 1, as a ratio.
///
/// ```
/// use ringmem::manager::Growth;
///
/// assert_eq!(Growth::new(3, 2).of(1001), 1502); // rounded up
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Growth {
    /// Numerator.
    pub numerator: u32,
    /// Denominator.
    pub denominator: u32,
}

impl Growth {
    /// Returns `numerator / denominator`.
    #[must_use]
    pub const fn new(numerator: u32, denominator: u32) -> Self {
        Self { numerator, denominator }
    }

    /// Returns `capacity × self`, rounded up, saturating.
    #[must_use]
    pub const fn of(self, capacity: u64) -> u64 {
        if self.denominator == 0 {
            return u64::MAX;
        }
        let grown = (capacity as u128 * self.numerator as u128).div_ceil(self.denominator as u128);
        if grown > u64::MAX as u128 { u64::MAX } else { grown as u64 }
    }
}

impl BufferConfig {
    /// Positions, three `f32` per node: growth 1.3, 4 KiB to 512 MiB, queued transfers.
    #[must_use]
    pub const fn positions() -> Self {
        Self { bytes_per_element: Some(12), growth: Growth::new(13, 10), min_bytes: 4 * KIB, max_bytes: 512 * MIB, is_async: true }
    }

    /// Velocities: as [`positions`](Self::positions).
    #[must_use]
    pub const fn velocities() -> Self {
        Self::positions()
    }

    /// Forces: as [`positions`](Self::positions).
    #[must_use]
    pub const fn forces() -> Self {
        Self::positions()
    }

    /// Edges of 32 bytes: growth 2, 8 KiB to 2 GiB.
    #[must_use]
    pub const fn edges() -> Self {
        Self { bytes_per_element: Some(32), growth: Growth::new(2, 1), min_bytes: 8 * KIB, max_bytes: 2048 * MIB, is_async: false }
    }

    /// Cells of 8 bytes: growth 1.5, 2 KiB to 256 MiB.
    #[must_use]
    pub const fn grid() -> Self {
        Self { bytes_per_element: Some(8), growth: Growth::new(3, 2), min_bytes: 2 * KIB, max_bytes: 256 * MIB, is_async: false }
    }

    /// Any element: growth 1.5, 4 KiB to 1 GiB.
    #[must_use]
    pub const fn new() -> Self {
        Self { bytes_per_element: None, growth: Growth::new(3, 2), min_bytes: 4 * KIB, max_bytes: 1024 * MIB, is_async: false }
    }

    /// Sets the growth factor.
    #[must_use]
    pub const fn with_growth(mut self, growth: Growth) -> Self {
        self.growth = growth;
        self
    }

    /// Sets the minimum and maximum size in bytes.
    #[must_use]
    pub const fn with_bytes(mut self, min: u64, max: u64) -> Self {
        self.min_bytes = min;
        self.max_bytes = max;
        self
    }

    /// Sets [`is_async`](Self::is_async).
    #[must_use]
    pub const fn with_async(mut self, is_async: bool) -> Self {
        self.is_async = is_async;
        self
    }

    /// Checks the configuration.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Growth`] for a factor below 1 or a denominator of 0; [`ConfigError::Bytes`] for a size of 0 or a maximum below the minimum.
    pub const fn validate(&self) -> Result<(), ConfigError> {
        let Self { bytes_per_element, growth: Growth { numerator, denominator }, min_bytes, max_bytes, is_async: _ } = *self;
        if denominator == 0 || numerator < denominator {
            return Err(ConfigError::Growth { numerator, denominator });
        }
        if max_bytes == 0 {
            return Err(ConfigError::Bytes { field: "max_bytes", got: 0, least: 1, most: u64::MAX });
        }
        if min_bytes > max_bytes {
            return Err(ConfigError::Bytes { field: "min_bytes", got: min_bytes, least: 0, most: max_bytes });
        }
        match bytes_per_element {
            Some(0) => Err(ConfigError::Bytes { field: "bytes_per_element", got: 0, least: 1, most: max_bytes }),
            Some(bytes) if bytes as u64 > max_bytes => {
                Err(ConfigError::Bytes { field: "bytes_per_element", got: bytes as u64, least: 1, most: max_bytes })
            }
            _ => Ok(()),
        }
    }

    pub(super) const fn most(&self) -> u64 {
        if self.max_bytes > isize::MAX as u64 { isize::MAX as u64 } else { self.max_bytes }
    }

    const fn bounds(&self, size: u64) -> (u64, u64) {
        let (least, most) = (self.min_bytes.div_ceil(size), self.most() / size);
        (if least < most { least } else { most }, most)
    }

    /// Returns the capacity, in elements of `size` bytes, for `needed` elements: `held` if that suffices.
    ///
    /// # Errors
    ///
    /// [`Size`](Error::Size) for more than `max_bytes`.
    pub fn capacity(&self, held: u64, needed: u64, size: u64) -> Result<u64> {
        let least = self.capacity_exact(needed, size)?;
        if least <= held {
            return Ok(held);
        }
        let (_, most) = self.bounds(size.max(1));
        Ok(least.max(self.growth.of(held)).min(most))
    }

    pub(super) fn capacity_exact(&self, needed: u64, size: u64) -> Result<u64> {
        let size = size.max(1);
        let (least, most) = self.bounds(size);
        if needed > most {
            return Err(Error::Size {
                what: "size in bytes",
                asked: needed.saturating_mul(size),
                least: self.min_bytes,
                most: self.most(),
            });
        }
        Ok(needed.max(least))
    }
}

impl Default for BufferConfig {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn the_presets_have_their_values_and_are_valid() {
        let node = (Some(12), 1.3, 4 * KIB, 512 * MIB, true);
        let table = [
            (BufferConfig::positions(), node),
            (BufferConfig::velocities(), node),
            (BufferConfig::forces(), node),
            (BufferConfig::edges(), (Some(32), 2.0, 8 * KIB, 2 * GIB, false)),
            (BufferConfig::grid(), (Some(8), 1.5, 2 * KIB, 256 * MIB, false)),
            (BufferConfig::default(), (None, 1.5, 4 * KIB, GIB, false)),
        ];
        for (config, expected) in table {
            let Growth { numerator, denominator } = config.growth;
            let factor = f64::from(numerator) / f64::from(denominator);
            assert_eq!((config.bytes_per_element, factor, config.min_bytes, config.max_bytes, config.is_async), expected);
            assert_eq!(config.validate(), Ok(()));
        }
    }

    #[test]
    fn invalid_settings_are_named_in_the_error() {
        let config = BufferConfig::new();
        let growth = |numerator, denominator| Err(ConfigError::Growth { numerator, denominator });
        assert_eq!(config.with_growth(Growth::new(1, 0)).validate(), growth(1, 0));
        assert_eq!(config.with_growth(Growth::new(99, 100)).validate(), growth(99, 100));
        assert_eq!(config.with_growth(Growth::new(100, 100)).validate(), Ok(()));
        let bytes = |field, got, least, most| Err(ConfigError::Bytes { field, got, least, most });
        assert_eq!(config.with_bytes(0, 0).validate(), bytes("max_bytes", 0, 1, u64::MAX));
        assert_eq!(config.with_bytes(9, 8).validate(), bytes("min_bytes", 9, 0, 8));
        assert_eq!(config.with_bytes(8, 8).validate(), Ok(()));
        assert_eq!(BufferConfig { bytes_per_element: Some(0), ..config }.validate(), bytes("bytes_per_element", 0, 1, GIB));
        assert_eq!(BufferConfig { bytes_per_element: Some(9), ..config.with_bytes(0, 8) }.validate(), bytes("bytes_per_element", 9, 1, 8));
    }

    #[test]
    fn the_address_space_bounds_the_capacity() {
        let config = BufferConfig::new().with_bytes(0, u64::MAX);
        let most = isize::MAX as u64 / 3;
        assert_eq!(config.capacity(most - 1, most, 3).expect("it can be spanned"), most);
        let refused = |needed| match config.capacity(0, needed, 3) {
            Err(Error::Size { asked, least, most, .. }) => (asked, least, most),
            other => panic!("{other:?}"),
        };
        assert_eq!(refused(most + 1), (3 * (most + 1), 0, isize::MAX as u64));
        assert_eq!(refused(u64::MAX), (u64::MAX, 0, isize::MAX as u64), "what was asked for is not among what is possible");
    }

    #[test]
    fn elements_without_bytes_count_as_one_byte() {
        let config = BufferConfig::new().with_bytes(10, 100).with_growth(Growth::new(2, 1));
        for (held, needed) in [(0, 1), (10, 11), (60, 61), (11, 11)] {
            let [none, one] = [0, 1].map(|size| config.capacity(held, needed, size).expect("within"));
            assert_eq!(none, one, "{needed} where there is room for {held}");
        }
        assert!(matches!(config.capacity(0, 101, 0), Err(Error::Size { asked: 101, .. })));
    }

    #[test]
    fn growth_is_exact_beyond_floating_point() {
        let third = Growth::new(4, 3);
        assert_eq!(third.of((1 << 24) + 1), 22_369_623); // no f32 is 2^24 + 1
        assert_eq!(third.of((1 << 53) + 1), 12_009_599_006_321_324); // nor any f64 2^53 + 1
        assert_eq!(Growth::new(u32::MAX, 1).of(u64::MAX), u64::MAX);
        assert_eq!(Growth::new(1, 1).of(u64::MAX), u64::MAX);
    }

    fn configs() -> impl Strategy<Value = BufferConfig> {
        let growth = (1..1000_u32, 0..3000_u32).prop_map(|(denominator, more)| Growth::new(denominator + more, denominator));
        (growth, 0..1_u64 << 20, 0..1_u64 << 40)
            .prop_map(|(growth, min, more)| BufferConfig::new().with_growth(growth).with_bytes(min, (min + more).max(1)))
    }

    fn elements() -> impl Strategy<Value = u64> {
        (0..41_u32, any::<u64>()).prop_map(|(bits, number)| number & ((1 << bits) - 1))
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_capacity_suffices_within_bounds_and_grows_by_the_factor(
            config in configs(), held in elements(), needed in elements(), size in 1..100_u64,
        ) {
            prop_assert_eq!(config.validate(), Ok(()));
            let most = config.max_bytes / size;
            let held = held.min(most);
            match config.capacity(held, needed, size) {
                Err(Error::Size { asked, least, most: max, .. }) => {
                    prop_assert!(needed > most);
                    prop_assert_eq!((asked, least, max), (needed * size, config.min_bytes, config.max_bytes));
                }
                Err(other) => prop_assert!(false, "{other}"),
                Ok(capacity) => {
                    prop_assert!(capacity >= needed && capacity <= most);
                    prop_assert!(capacity * size >= config.min_bytes || capacity == most);
                    prop_assert!(capacity == held || capacity * u64::from(config.growth.denominator) >= held * u64::from(config.growth.numerator)
                        || capacity == most);
                    prop_assert!(capacity == held || capacity <= needed.max(config.min_bytes.div_ceil(size)).max(config.growth.of(held)));
                }
            }
        }

        #[test]
        fn growth_to_a_million_takes_logarithmically_many_steps(denominator in 1..50_u32, more in 1..100_u32, size in 1..64_u64) {
            let growth = Growth::new(denominator + more, denominator);
            let config = BufferConfig::new().with_growth(growth).with_bytes(0, u64::MAX);
            let (mut capacity, mut steps) = (1, 0);
            while capacity < 1_000_000 {
                prop_assert_eq!(config.capacity(capacity, capacity, size).ok(), Some(capacity));
                capacity = config.capacity(capacity, capacity + 1, size).expect("no bound");
                steps += 1;
            }
            let factor = f64::from(growth.numerator) / f64::from(growth.denominator);
            prop_assert!(f64::from(steps) <= (1e6_f64.ln() / factor.ln()).ceil() + 1.0, "{steps} steps of {factor}");
        }
    }
}
