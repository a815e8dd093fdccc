//! [`ConfigError`]: the invalid field of a configuration.

use core::time::Duration;

use ringmem_layouts::ring::LayoutError;

use crate::backend::MemoryLocation;

/// An invalid configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A number of bytes out of range.
    #[error("{field} is {got} bytes where {least} to {most} are possible")]
    Bytes {
        /// The path of the field in [`Config`](crate::config::Config) or [`BufferConfig`](crate::manager::BufferConfig).
        field: &'static str,
        /// The given value.
        got: u64,
        /// The smallest valid value.
        least: u64,
        /// The largest valid value.
        most: u64,
    },
    /// A time that is too short.
    #[error("{field} is {got:?} where at least {least:?} is possible")]
    Interval {
        /// The path of the field in [`Config`](crate::config::Config).
        field: &'static str,
        /// The given value.
        got: Duration,
        /// The smallest valid value.
        least: Duration,
    },
    /// A growth factor below 1, or with denominator 0.
    #[error("growth is {numerator} / {denominator} where at least 1 is possible")]
    Growth {
        /// The numerator of the factor.
        numerator: u32,
        /// The denominator of the factor.
        denominator: u32,
    },
    /// A buffer whose element size differs from its configuration.
    #[error("bytes_per_element is {wanted}, and an element of this buffer has {got} bytes")]
    Element {
        /// The element size in [`BufferConfig`](crate::manager::BufferConfig).
        wanted: u32,
        /// The element size of the buffer, in bytes.
        got: u64,
    },
    /// A location that the configuration disables.
    #[error("location is {location:?}, and {needs} is off")]
    Location {
        /// The configured location.
        location: MemoryLocation,
        /// The disabled option: its path in [`Config`](crate::config::Config).
        needs: &'static str,
    },
    /// Invalid ring geometry.
    #[error(transparent)]
    Ring(#[from] LayoutError),
}
