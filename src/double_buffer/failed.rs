//! [`Failed`]: the number and the error of a frame that was refused or lost.

use crate::Error;

/// A frame that was refused or lost.
#[derive(Debug, thiserror::Error)]
#[error("frame {sequence}: {error}")]
pub struct Failed {
    /// Its number. The next frame gets the number of a refused one.
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
