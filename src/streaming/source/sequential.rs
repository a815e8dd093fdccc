//! [`Sequential`]: whatever can be read, from here to its end.

use std::io::{self, Read};

use super::Source;

/// A [`Read`] as a source: a pipe, a socket, a decoder. Its length is known at its end, and it is read once.
///
/// Its byte 0 is the next that it gives. A job that begins later passes over what is before, and what
/// ends there is an error.
#[derive(Debug)]
pub struct Sequential<R> {
    read: R,
    /// Bytes that it has given.
    position: u64,
}

impl<R: Read> Sequential<R> {
    /// Where `read` is now is byte 0.
    pub const fn new(read: R) -> Self {
        Self { read, position: 0 }
    }

    fn take(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.read.read(buffer)?;
        self.position += count as u64;
        Ok(count)
    }
}

impl<R: Read> Source for Sequential<R> {
    fn length(&self) -> Option<u64> {
        None
    }

    fn read_at(&mut self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        if at < self.position {
            return Err(io::Error::new(io::ErrorKind::NotSeekable, "what was read once cannot be read again"));
        }
        // Each step is counted: what fails in the midst is gone on with there.
        while self.position < at && !buffer.is_empty() {
            let before = usize::try_from(at - self.position).unwrap_or(usize::MAX).min(buffer.len());
            if self.take(&mut buffer[..before])? == 0 {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "ended before the byte that was asked for"));
            }
        }
        self.take(buffer)
    }
}
