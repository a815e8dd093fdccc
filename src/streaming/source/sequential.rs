use std::io::{self, Read};

use super::Source;

/// A [`Read`], such as a pipe or socket, read once. Offset 0 is its current position; later jobs skip bytes.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::streaming::{Job, Sequential, Streamer, Through};
///
/// let backend = HostBackend::builder().build()?;
/// let mut streamer = Streamer::builder(&backend, 0).chunk(64 << 10).build()?;
/// let mut pipe = Sequential::new(std::io::repeat(7).take(100_000)); // any `Read`
/// # use std::io::Read;
/// let mut sink = Vec::new();
/// assert_eq!(streamer.run(Job::new(&mut pipe).to(&mut sink), &mut Through)?.bytes, 100_000);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Sequential<R> {
    read: R,
    position: u64,
}

impl<R: Read> Sequential<R> {
    /// Creates a source at the current position of `read`.
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
            return Err(io::Error::new(io::ErrorKind::NotSeekable, "a sequential source cannot be read again before its current position"));
        }
        // A repeated call continues after a failure.
        while self.position < at && !buffer.is_empty() {
            let before = usize::try_from(at - self.position).unwrap_or(usize::MAX).min(buffer.len());
            if self.take(&mut buffer[..before])? == 0 {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "ended before the byte that was asked for"));
            }
        }
        self.take(buffer)
    }
}
