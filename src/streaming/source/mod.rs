//! [`Source`]: where a stream's bytes come from.

mod file;
#[cfg(unix)]
mod mapped;
mod sequential;

use std::io;

use super::Cause;

pub use file::FileSource;
#[cfg(unix)]
pub use mapped::Mapped;
pub use sequential::Sequential;

/// Where a stream's bytes come from.
pub trait Source {
    /// Bytes in all, where that is known before the end.
    fn length(&self) -> Option<u64>;

    /// Reads into the beginning of `buffer` what begins at byte `at`; how many bytes. None only at the end.
    ///
    /// # Errors
    ///
    /// The system's answer. [`Interrupted`](io::ErrorKind::Interrupted) is tried again.
    fn read_at(&mut self, buffer: &mut [u8], at: u64) -> io::Result<usize>;

    /// Whether it still is what it promised: asked when its last byte has been read.
    ///
    /// # Errors
    ///
    /// [`Cause::Changed`] and [`Cause::Endless`].
    fn check(&mut self) -> Result<(), Cause> {
        Ok(())
    }
}

/// Memory that is there already.
impl Source for &[u8] {
    fn length(&self) -> Option<u64> {
        Some(self.len() as u64)
    }

    fn read_at(&mut self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        let rest = usize::try_from(at).ok().and_then(|at| self.get(at..)).unwrap_or_default();
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }
}

/// Fills the buffer from byte `at` on, or as far as there is something; how many bytes.
pub(super) fn fill(source: &mut (impl Source + ?Sized), buffer: &mut [u8], at: u64) -> Result<usize, Cause> {
    let mut filled = 0;
    while filled < buffer.len() {
        let at = at + filled as u64;
        match source.read_at(&mut buffer[filled..], at) {
            Ok(0) => break,
            // Who says more than there was room for has not written it.
            Ok(count) => filled += count.min(buffer.len() - filled),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(source) => return Err(Cause::Read { at, source }),
        }
    }
    Ok(filled)
}
