//! Which frame was not had, and why.

use crate::Error;

/// A frame that was refused or lost, and no other.
#[derive(Debug, thiserror::Error)]
#[error("frame {sequence}: {error}")]
pub struct Failed {
    /// Which; of one that was refused, the number that the next one has instead.
    pub sequence: u64,
    /// Why.
    #[source]
    pub error: Error,
}

impl From<Failed> for Error {
    fn from(failed: Failed) -> Self {
        failed.error
    }
}
