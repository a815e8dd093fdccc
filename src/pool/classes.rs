//! Size classes: octaves, each in equal steps.
//!
//! Octave 0 covers sizes up to the least block: one class with one step, else a class per 256 bytes. Octave `k` covers sizes from `2^(k-1)` to
//! `2^k` times the least block. Above it, a block is at most `1 + 1/steps` times its request, plus 256 bytes.
//!
//! A pool has [`Classes::default`] unless its builder sets others: 4 per power of two, so that a block is at most a quarter too long. A pool over an address
//! range uses those up to 1 MiB alone (`CLASSED` in `central.rs`): a longer block has its exact size there, since it can join any free memory around.

use super::heap::UNIT;
use crate::config::ConfigError;
use crate::{Error, Result};

const LEAST_MOST: u64 = 1 << 32;

/// The size classes of a pool.
///
/// ```
/// use ringmem::pool::Classes;
///
/// let classes = Classes::new(4096, 10, 4)?; // four per power of two, from 4 KiB
/// let class = classes.class_of(5000).expect("below the largest");
/// assert_eq!((classes.size_of(class), classes.largest()), (Some(5120), 2 << 20));
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Classes {
    /// The least block's units, as a power of two.
    min_bits: u32,
    octaves: u32,
    /// INVARIANT: at most `min_bits`.
    step_bits: u32,
    /// Derived: the largest block's bytes, the least one's units, and the offset from octave and step to class, modulo 2^32.
    largest: u64,
    min_units: u64,
    shift: u32,
}

impl Default for Classes {
    /// 96 size classes: 16 up to 4 KiB, one per 256 bytes, then 20 octaves of 4 up to 4 GiB. A pool over an address range uses the 48 up to 1 MiB: its larger
    /// blocks have their exact size.
    fn default() -> Self {
        Self::of(4, 21, 2)
    }
}

impl Classes {
    /// Creates size classes with a least block of `least` bytes, a power of two.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Bytes`] for a least block outside 256 bytes to 4 GiB. [`Error::Unsupported`] unless it is a power of two and `steps` is 1, 2, 4
    /// or 8. [`Error::Size`] for less than 256 bytes times the steps, a largest block above 64 GiB, and more than 255 classes.
    pub fn new(least: u64, octaves: u32, steps: u32) -> Result<Self> {
        if !(UNIT..=LEAST_MOST).contains(&least) {
            return Err(ConfigError::Bytes { field: "smallest block of size classes", got: least, least: UNIT, most: LEAST_MOST }.into());
        }
        if !least.is_power_of_two() {
            return Err(Error::Unsupported { what: "a smallest block whose size is not a power of two" });
        }
        if !matches!(steps, 1 | 2 | 4 | 8) {
            return Err(Error::Unsupported { what: "a number of size classes per power of two other than 1, 2, 4 or 8" });
        }
        let between = |what, asked: u64, least: u64, most: u64| {
            if (least..=most).contains(&asked) { Ok(()) } else { Err(Error::Size { what, asked, least, most }) }
        };
        let min_bits = (least / UNIT).ilog2();
        between("number of octaves", u64::from(octaves), 1, u64::from(29 - min_bits))?;
        between("number of size classes per octave", u64::from(steps), 1, least / UNIT)?;
        let classes = Self::of(min_bits, octaves, steps.ilog2());
        between("number of size classes", classes.count() as u64, 1, Self::MOST)?;
        Ok(classes)
    }

    /// A block's tag has one byte for its class; 255 means none.
    const MOST: u64 = 255;

    const fn of(min_bits: u32, octaves: u32, step_bits: u32) -> Self {
        let small = if step_bits == 0 { 1 } else { 1 << min_bits };
        let shift = 0_u32.wrapping_add(small).wrapping_sub(min_bits << step_bits).wrapping_sub(1 << step_bits);
        Self { min_bits, octaves, step_bits, largest: UNIT << (min_bits + octaves - 1), min_units: 1 << min_bits, shift }
    }

    /// Returns the number of classes.
    #[must_use]
    pub const fn count(&self) -> usize {
        (self.small() + ((self.octaves - 1) << self.step_bits)) as usize
    }

    /// Returns the largest block of a class in bytes.
    #[must_use]
    pub const fn largest(&self) -> u64 {
        self.largest
    }

    /// Returns a request's class: the first with blocks long enough.
    #[must_use]
    pub const fn class_of(&self, bytes: u64) -> Option<usize> {
        if bytes > self.largest {
            return None;
        }
        Some(self.class_to(bytes.saturating_sub(1)))
    }

    /// For a request whose last byte is at `last`, below the largest block.
    #[inline(always)]
    pub(super) const fn class_to(&self, last: u64) -> usize {
        let last = last / UNIT;
        if last < self.min_units {
            return if self.step_bits == 0 { 0 } else { last as usize };
        }
        // `last` is not 0 here, but the compiler cannot prove it.
        let bits = (last | 1).ilog2();
        let step = (last >> (bits - self.step_bits)) as u32;
        self.shift.wrapping_add(bits << self.step_bits).wrapping_add(step) as usize
    }

    /// Returns a class's block size; `None` from [`count`](Self::count) on.
    #[must_use]
    pub const fn size_of(&self, class: usize) -> Option<u64> {
        if class < self.count() { Some(self.bytes_of(class)) } else { None }
    }

    pub(super) const fn bytes_of(&self, class: usize) -> u64 {
        let small = self.small() as usize;
        if class < small {
            return if self.step_bits == 0 { UNIT << self.min_bits } else { (class as u64 + 1) * UNIT };
        }
        let (octave, step) = ((class - small) >> self.step_bits, (class - small) & ((1 << self.step_bits) - 1));
        let whole = UNIT << (self.min_bits + octave as u32);
        whole + (((step as u64 + 1) * whole) >> self.step_bits)
    }

    #[must_use]
    pub(super) const fn class_within(&self, bytes: u64) -> Option<usize> {
        let class = match self.class_of(bytes) {
            Some(class) => class,
            None => return Some(self.count() - 1),
        };
        if self.bytes_of(class) <= bytes { Some(class) } else { class.checked_sub(1) }
    }

    const fn small(&self) -> u32 {
        if self.step_bits == 0 { 1 } else { 1 << self.min_bits }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_has_a_class_within_one_step() {
        for steps in [1, 2, 4, 8] {
            let classes = Classes::new(4096, 21, steps).unwrap();
            assert_eq!(classes.largest(), 4 << 30);
            let mut last = 0;
            let sizes = (0..70_000).chain((17..33).flat_map(|bits| [(1 << bits) - 1, 1 << bits, (1 << bits) + 1, 3 << (bits - 1)]));
            for bytes in sizes.filter(|&bytes| bytes <= classes.largest()) {
                let class = classes.class_of(bytes).unwrap();
                assert!(classes.bytes_of(class) >= bytes, "{bytes} in {class}");
                assert!(class == 0 || classes.bytes_of(class - 1) < bytes, "{bytes} also fit in {}", class - 1);
                if bytes > 4096 {
                    assert!(classes.bytes_of(class) < bytes + bytes / u64::from(steps) + UNIT, "{bytes} in {}", classes.bytes_of(class));
                }
                if bytes < 70_000 {
                    assert!(class >= last);
                    last = class;
                }
                assert_eq!(classes.class_within(classes.bytes_of(class)), Some(class));
            }
            assert_eq!(classes.class_of(classes.largest() + 1), None);
            assert_eq!(classes.class_of(classes.largest()), Some(classes.count() - 1));
        }
    }

    #[test]
    fn one_step_gives_the_21_documented_classes() {
        let classes = Classes::new(4096, 21, 1).unwrap();
        assert_eq!(classes.count(), 21);
        for class in 0..21 {
            assert_eq!(classes.bytes_of(class), 4096 << class);
            assert_eq!(classes.class_of((4096 << class) - 4095), Some(class));
        }
    }

    #[test]
    fn a_class_beyond_the_last_has_no_size() {
        for classes in [Classes::default(), Classes::new(4096, 21, 8).unwrap(), Classes::new(256, 29, 1).unwrap()] {
            let sizes: std::vec::Vec<_> = (0..classes.count()).map_while(|class| classes.size_of(class)).collect();
            assert_eq!((sizes.len(), sizes.last()), (classes.count(), Some(&classes.largest())));
            for beyond in [classes.count(), classes.count() + 1, 1000, usize::MAX] {
                assert_eq!(classes.size_of(beyond), None, "{beyond}");
            }
        }
    }

    #[test]
    fn invalid_classes_are_errors() {
        for (least, octaves, steps) in [
            (128, 21, 4),
            (5000, 21, 4),
            (4096, 0, 4),
            (4096, 26, 4),
            (1 << 20, 5, 2),
            (1 << 16, 2, 4),
            (4096, 21, 3),
            (4096, 21, 16),
            (4096, 21, 0),
            (0, 21, 4),
            (256, 21, 2),
        ] {
            assert!(Classes::new(least, octaves, steps).is_err(), "{least} {octaves} {steps}");
        }
        assert_eq!(Classes::new(4096, 21, 4).unwrap(), Classes::default());
    }
}
