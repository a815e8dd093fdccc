//! [`Source`]: a regular file, and what goes wrong with it said with its name.

use std::path::Path;

use ringmem::streaming::{Cause, FileSource};

use super::{Failure, chain};

pub(super) struct Source {
    /// What a stream reads.
    pub(super) file: FileSource,
}

impl Source {
    /// Opens a regular file; never waits, as a FIFO would.
    pub(super) fn open(path: &Path) -> Result<Self, Failure> {
        let file = FileSource::open(path).map_err(|error| Failure::Fact(error.to_string()))?;
        Ok(Self { file })
    }

    /// Bytes, as promised at open.
    pub(super) const fn length(&self) -> u64 {
        self.file.len()
    }

    /// Fills `buffer` from `offset`; both are within the length.
    pub(super) fn read(&mut self, buffer: &mut [u8], offset: u64) -> Result<(), Failure> {
        self.file.read_exact(buffer, offset).map_err(|cause| failed(self.file.path(), cause))
    }

    /// Whether the file still is what it promised: says so, or what it is now.
    pub(super) fn check(&mut self) -> Result<(), Failure> {
        ringmem::streaming::Source::check(&mut self.file).map_err(|cause| failed(self.file.path(), cause))
    }
}

/// What has stopped a stream from or to a file of this name.
pub(super) fn failed(path: &Path, cause: Cause) -> Failure {
    match cause {
        Cause::Device(error) => Failure::Call(error),
        Cause::Read { source, .. } => Failure::Fact(format!("{}: {source}", path.display())),
        Cause::Truncated { .. } | Cause::Changed { .. } | Cause::Endless { .. } => Failure::Fact(format!("{}: {cause}", path.display())),
        Cause::Write { ref source, .. } => Failure::Fact(format!("{}: {cause}: {source}", path.display())),
        _ => Failure::Fact(chain(&cause)),
    }
}
