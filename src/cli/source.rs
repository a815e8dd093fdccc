//! [`Source`]: a regular file whose length at open is what it promised.
//!
//! 1. Only `pread`, never a mapping: a mapped file that shrinks would end the process.
//! 2. A file that ends early, goes on after its length, or changes its length is an error that names both lengths.

use std::fs::File;
use std::path::{Path, PathBuf};

use super::Failure;

pub(super) struct Source {
    file: File,
    path: PathBuf,
    length: u64,
}

impl Source {
    /// Opens a regular file; never waits, as a FIFO would.
    pub(super) fn open(path: &Path) -> Result<Self, Failure> {
        let fact = |error: std::io::Error| Failure::Fact(format!("{}: {error}", path.display()));
        // Asked first, because opening some kinds of file has effects.
        let kind = |metadata: &std::fs::Metadata| {
            if metadata.is_dir() {
                Err(Failure::Fact(format!("{}: is a directory, not a regular file", path.display())))
            } else if !metadata.is_file() {
                Err(Failure::Fact(format!("{}: is a FIFO, socket or device, not a regular file", path.display())))
            } else {
                Ok(())
            }
        };
        kind(&std::fs::metadata(path).map_err(fact)?)?;
        let file = File::open(path).map_err(fact)?;
        let metadata = file.metadata().map_err(fact)?;
        kind(&metadata)?;
        Ok(Self { file, path: path.to_owned(), length: metadata.len() })
    }

    /// Bytes, as promised at open.
    pub(super) fn length(&self) -> u64 {
        self.length
    }

    /// Fills `buffer` from `offset`; both are within the length.
    pub(super) fn read(&self, mut buffer: &mut [u8], mut offset: u64) -> Result<(), Failure> {
        while !buffer.is_empty() {
            match self.read_some(buffer, offset)? {
                0 => {
                    return Err(Failure::Fact(format!(
                        "{}: ended at byte {offset}, but was {} bytes long when it was opened",
                        self.path.display(),
                        self.length
                    )));
                }
                count => {
                    buffer = &mut buffer[count..];
                    offset += count as u64;
                }
            }
        }
        Ok(())
    }

    /// Whether the file still is what it promised: says so, or what it is now.
    pub(super) fn check(&self) -> Result<(), Failure> {
        let now = self.file.metadata().map_err(|error| self.fact(&error))?.len();
        let more = self.read_some(&mut [0], self.length)? > 0;
        if more && now == self.length {
            return Err(Failure::Fact(format!(
                "{}: says that it is {} bytes long, but goes on after them: not a file on a disk",
                self.path.display(),
                self.length
            )));
        }
        if now != self.length {
            return Err(Failure::Fact(format!(
                "{}: was {} bytes long when it was opened and {now} after it was read",
                self.path.display(),
                self.length
            )));
        }
        Ok(())
    }

    fn read_some(&self, buffer: &mut [u8], offset: u64) -> Result<usize, Failure> {
        loop {
            match read_at(&self.file, buffer, offset) {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                result => return result.map_err(|error| self.fact(&error)),
            }
        }
    }

    fn fact(&self, error: &std::io::Error) -> Failure {
        Failure::Fact(format!("{}: {error}", self.path.display()))
    }
}

#[cfg(unix)]
fn read_at(file: &File, buffer: &mut [u8], offset: u64) -> std::io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, buffer, offset)
}

#[cfg(windows)]
fn read_at(file: &File, buffer: &mut [u8], offset: u64) -> std::io::Result<usize> {
    std::os::windows::fs::FileExt::seek_read(file, buffer, offset)
}
