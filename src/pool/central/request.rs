//! [`Request`]: what a caller needs of the heap, and [`Refusal`]: why it did not get it.

use super::CLASSED;
use crate::pool::heap::Zone;
use crate::{Error, Result};

/// A request that slabs or an address range serve.
#[derive(Clone, Copy)]
pub(in crate::pool) struct Request {
    /// The block of its class.
    pub class_bytes: u64,
    /// The requested bytes, which suffice if no larger part is free.
    pub bytes: u64,
    pub align: u64,
}

impl Request {
    pub fn zone(&self) -> Zone {
        if self.class_bytes <= CLASSED { Zone::Small } else { Zone::Large }
    }
}

/// What the upstream memory, or the limit, had free when it refused.
#[derive(Clone, Copy, Default)]
pub(super) struct Refusal {
    pub free: u64,
    pub largest: u64,
}

impl Refusal {
    /// Returns the figures of an error that frees may cure, or the error.
    pub fn of(error: Error) -> Result<Self> {
        match error {
            Error::OutOfMemory { free, largest, .. } => Ok(Self { free, largest }),
            Error::Limit { used, limit, .. } => {
                let left = limit.saturating_sub(used);
                Ok(Self { free: left, largest: left })
            }
            Error::Map { .. } => Ok(Self::default()),
            error => Err(error),
        }
    }
}
