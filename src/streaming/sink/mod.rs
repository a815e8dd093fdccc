//! [`Sink`]: where a stream's bytes go.

mod file;

use std::io;
use std::vec::Vec;

pub use file::FileSink;

/// Where a stream's bytes go: in order, without a gap. What a failed write had begun may come again.
pub trait Sink {
    /// Writes some of the bytes, which belong at byte `at` of the whole; how many, at least one.
    ///
    /// # Errors
    ///
    /// The system's answer, and nothing was written. [`Interrupted`](io::ErrorKind::Interrupted) is tried again.
    fn write_at(&mut self, bytes: &[u8], at: u64) -> io::Result<usize>;
}

/// Memory: what is there already may be written again, and it grows at its end.
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

/// Bytes that would leave some before them unwritten.
fn gap(end: u64, at: u64) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, std::format!("bytes {end} to {at} were never written"))
}
