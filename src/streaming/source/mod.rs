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

/// The origin of a stream's bytes.
///
/// ```
/// use std::io;
///
/// use ringmem::backend::host::HostBackend;
/// use ringmem::streaming::{Job, Source, Streamer, Through};
///
/// struct Zeros(u64);
///
/// impl Source for Zeros {
///     fn length(&self) -> Option<u64> {
///         Some(self.0)
///     }
///     fn read_at(&mut self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
///         let count = buffer.len().min((self.0 - at) as usize);
///         buffer[..count].fill(0);
///         Ok(count)
///     }
/// }
///
/// let backend = HostBackend::builder().build()?;
/// let mut streamer = Streamer::builder(&backend, 0).chunk(64 << 10).build()?;
/// assert_eq!(streamer.run(Job::new(&mut Zeros(100_000)), &mut Through)?.bytes, 100_000);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Source {
    /// Returns the length in bytes, if known.
    fn length(&self) -> Option<u64>;

    /// Reads bytes from offset `at` into `buffer`; returns how many, 0 only at the end.
    ///
    /// # Errors
    ///
    /// The system's error; repeated after [`Interrupted`](io::ErrorKind::Interrupted).
    fn read_at(&mut self, buffer: &mut [u8], at: u64) -> io::Result<usize>;

    /// Checks after the last byte that the length is unchanged.
    ///
    /// # Errors
    ///
    /// [`Cause::Changed`] and [`Cause::Endless`].
    fn check(&mut self) -> Result<(), Cause> {
        Ok(())
    }
}

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

pub(super) fn fill(source: &mut (impl Source + ?Sized), buffer: &mut [u8], at: u64) -> Result<usize, Cause> {
    let mut filled = 0;
    while filled < buffer.len() {
        let at = at + filled as u64;
        match source.read_at(&mut buffer[filled..], at) {
            Ok(0) => break,
            Ok(count) => filled += count.min(buffer.len() - filled),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(source) => return Err(Cause::Read { at, source }),
        }
    }
    Ok(filled)
}
