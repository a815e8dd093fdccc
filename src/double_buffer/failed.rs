//! [`Failed`].

use crate::Error;

/// A frame that was refused or lost.
#[derive(Debug, thiserror::Error)]
#[error("frame {sequence}: {error}")]
pub struct Failed {
    /// Its number, which the next frame reuses after a refused one.
    pub sequence: u64,
    /// The error.
    #[source]
    pub error: Error,
}

impl From<Failed> for Error {
    fn from(failed: Failed) -> Self {
        failed.error
    }
}
