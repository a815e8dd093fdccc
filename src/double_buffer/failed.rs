use crate::Error;
use crate::error::debug_with_causes;

/// A frame that was refused or lost.
///
/// ```
/// use std::time::Duration;
///
/// use ringmem::Error;
/// use ringmem::backend::host::HostBackend;
/// use ringmem::double_buffer::{Failed, Uploads};
/// use ringmem::memory::{Device, GpuBuffer, Pinned};
///
/// let backend = HostBackend::builder().build()?;
/// let mut uploads = Uploads::<u32, _>::new(Pinned::new(&backend, 0), 2, Duration::from_secs(10))?;
/// let mut target = GpuBuffer::<u32>::new(Device::new(&backend, 0), 10)?;
/// let refused = uploads.send(&mut target, ..11, |elements| elements.fill(7));
/// assert!(matches!(refused, Err(Failed { sequence: 1, error: Error::Range { .. } })));
/// assert_eq!(uploads.send(&mut target, ..10, |elements| elements.fill(7))?, 1); // the number is used again
/// # Ok::<(), Error>(())
/// ```
#[derive(thiserror::Error)]
#[error("frame {sequence}: {error}")]
pub struct Failed {
    /// Its number; after a refused frame, the next reuses it.
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

debug_with_causes! { Failed }
