//! [`ConfigError`]: the field of a configuration that is refused.

use core::time::Duration;

use ringmem_layouts::ring::LayoutError;

use crate::backend::MemoryLocation;

/// An invalid configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A number of bytes out of its range.
    #[error("{field} is {got} bytes where {least} to {most} are possible")]
    Bytes {
        /// Its path in [`Config`](crate::config::Config) or [`BufferConfig`](crate::manager::BufferConfig).
        field: &'static str,
        /// The given value.
        got: u64,
        /// The least that it can be.
        least: u64,
        /// The most that it can be.
        most: u64,
    },
    /// A time that is too short.
    #[error("{field} is {got:?} where at least {least:?} is possible")]
    Interval {
        /// Its path in [`Config`](crate::config::Config).
        field: &'static str,
        /// The given value.
        got: Duration,
        /// The least that it can be.
        least: Duration,
    },
    /// A growth below 1, or over 0.
    #[error("growth is {numerator} / {denominator} where at least 1 is possible")]
    Growth {
        /// So many
        numerator: u32,
        /// for so many.
        denominator: u32,
    },
    /// A buffer of other elements than its configuration is for.
    #[error("bytes_per_element is {wanted}, and an element of this buffer has {got} bytes")]
    Element {
        /// What [`BufferConfig`](crate::manager::BufferConfig) says.
        wanted: u32,
        /// The bytes of an element.
        got: u64,
    },
    /// Buffers were to go where there may be none.
    #[error("location is {location:?}, and {needs} is off")]
    Location {
        /// Where they were to go.
        location: MemoryLocation,
        /// What that needs: its path in [`Config`](crate::config::Config).
        needs: &'static str,
    },
    /// A ring of impossible geometry.
    #[error(transparent)]
    Ring(#[from] LayoutError),
}
