use core::time::Duration;
use std::string::String;

use ringmem_layouts::ring::LayoutError;

use crate::location::MemoryLocation;

/// An invalid configuration.
///
/// ```
/// use ringmem::config::{Config, ConfigError};
///
/// let error = Config::host().with_pool_bytes(0).validate().expect_err("no bytes");
/// assert!(matches!(error, ConfigError::Bytes { field: "pooling.max_bytes", got: 0, .. }));
/// ```
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A number of bytes out of range.
    #[error("invalid {field}: got {got} bytes, expected {least} to {most}")]
    Bytes {
        /// Path in [`Config`](crate::config::Config) or [`BufferConfig`](crate::manager::BufferConfig).
        field: &'static str,
        /// Given value.
        got: u64,
        /// Smallest valid value.
        least: u64,
        /// Largest valid value.
        most: u64,
    },
    /// A time that is too short.
    #[error("invalid {field}: got {got:?}, expected at least {least:?}")]
    Interval {
        /// Path in [`Config`](crate::config::Config).
        field: &'static str,
        /// Given value.
        got: Duration,
        /// Smallest valid value.
        least: Duration,
    },
    /// A rate that is not positive.
    #[error("invalid {field}: got {got} GB/s, expected more than 0")]
    Rate {
        /// Path in [`Link`](crate::backend::host::Link).
        field: &'static str,
        /// Given value.
        got: f64,
    },
    /// A growth factor below 1, or with denominator 0.
    #[error("invalid growth: got {numerator} / {denominator}, expected at least 1")]
    Growth {
        /// Its numerator.
        numerator: u32,
        /// Its denominator.
        denominator: u32,
    },
    /// An element size that differs from the configuration's.
    #[error("invalid bytes_per_element: got {wanted}, an element of this buffer has {got} bytes")]
    Element {
        /// Bytes in [`BufferConfig`](crate::manager::BufferConfig).
        wanted: u32,
        /// Bytes of the buffer's.
        got: u64,
    },
    /// A disabled location.
    #[error("invalid location: {location:?} needs {needs}, which is off")]
    Location {
        /// Location.
        location: MemoryLocation,
        /// Disabled option's path in [`Config`](crate::config::Config).
        needs: &'static str,
    },
    /// A named setting that is unknown, malformed or has no counterpart.
    #[error("invalid setting {name} = {value}: {reason}")]
    Setting {
        /// Given name.
        name: String,
        /// Given value.
        value: String,
        /// Why it is refused.
        reason: &'static str,
    },
    /// Invalid ring geometry.
    #[error(transparent)]
    Ring(#[from] LayoutError),
}
