mod file;

use std::io;
use std::vec::Vec;

pub use file::FileSink;

/// A target of bytes, in order without gaps; bytes may be rewritten after a failure.
///
/// ```
/// use std::io;
///
/// use ringmem::backend::host::HostBackend;
/// use ringmem::streaming::{Job, Sink, Streamer, Through};
///
/// struct Sum(u64);
///
/// impl Sink for Sum {
///     fn write_at(&mut self, bytes: &[u8], _at: u64) -> io::Result<usize> {
///         self.0 += bytes.iter().copied().map(u64::from).sum::<u64>();
///         Ok(bytes.len())
///     }
/// }
///
/// let backend = HostBackend::builder().build()?;
/// let mut sum = Sum(0);
/// Streamer::builder(&backend, 0).chunk(4096).build()?.run(Job::new(&mut &[1_u8; 10_000][..]).to(&mut sum), &mut Through)?;
/// assert_eq!(sum.0, 10_000);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Sink {
    /// Writes bytes at offset `at`; returns how many, at least one.
    ///
    /// # Errors
    ///
    /// The system's error; nothing was written. After [`Interrupted`](io::ErrorKind::Interrupted), the caller repeats.
    fn write_at(&mut self, bytes: &[u8], at: u64) -> io::Result<usize>;
}

impl Sink for Vec<u8> {
    fn write_at(&mut self, bytes: &[u8], at: u64) -> io::Result<usize> {
        let at = usize::try_from(at).map_err(|_| io::ErrorKind::OutOfMemory)?;
        if at > self.len() {
            return Err(gap(self.len() as u64, at as u64));
        }
        self.truncate(at);
        self.try_reserve(bytes.len()).map_err(|_| io::ErrorKind::OutOfMemory)?;
        self.extend_from_slice(bytes);
        Ok(bytes.len())
    }
}

fn gap(end: u64, at: u64) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, std::format!("bytes {end} to {at} were never written"))
}
