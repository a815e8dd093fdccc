use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use super::{Cause, Source, fill};
use crate::sys::file::{self, Accepts, read_at, same};
use crate::sys::path::named;

/// A regular file, read by `pread`: mapped, it could end the process by shrinking.
///
/// ```
/// use ringmem::streaming::FileSource;
///
/// let path = std::env::temp_dir().join(format!("ringmem-file-source-{}", std::process::id()));
/// std::fs::write(&path, [7; 1000])?;
/// assert_eq!(FileSource::open(&path)?.len(), 1000);
/// # std::fs::remove_file(&path)?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct FileSource {
    file: File,
    path: PathBuf,
    length: u64,
}

impl FileSource {
    /// Opens a regular file, also through symbolic links, without waiting.
    ///
    /// # Errors
    ///
    /// The system's error, with the path; [`IsADirectory`](io::ErrorKind::IsADirectory) or [`InvalidInput`](io::ErrorKind::InvalidInput)
    /// unless regular.
    pub fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        let path = path.as_ref();
        let (file, metadata) = file::open(path, Accepts::Any).map_err(named("open", path))?;
        Ok(Self { file, path: path.to_owned(), length: metadata.len() })
    }

    /// Returns the length at open, in bytes.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.length
    }

    /// Returns true if it was empty at open.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns its path at open.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Fills `buffer` from `at` on.
    ///
    /// # Errors
    ///
    /// [`Cause::Read`]; [`Cause::Truncated`] if the file is shorter.
    pub fn read_exact(&mut self, buffer: &mut [u8], at: u64) -> Result<(), Cause> {
        let filled = fill(self, buffer, at)?;
        if filled < buffer.len() {
            return Err(Cause::Truncated { at: at + filled as u64, promised: self.length });
        }
        Ok(())
    }

    /// Returns true if a path names this file, even by another link; false if missing.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub fn is_at(&self, path: impl AsRef<Path>) -> io::Result<bool> {
        let path = path.as_ref();
        match same(&self.file, &self.path, path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            result => result.map_err(named("look at", path)),
        }
    }
}

impl Source for FileSource {
    fn length(&self) -> Option<u64> {
        Some(self.length)
    }

    fn read_at(&mut self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        read_at(&self.file, buffer, at)
    }

    fn check(&mut self) -> Result<(), Cause> {
        check(&self.file, self.length)
    }
}

/// Fails if a file no longer ends after the length that it reported at first.
pub(super) fn check(file: &File, promised: u64) -> Result<(), Cause> {
    let unreadable = |source| Cause::Read { at: promised, source };
    let now = file.metadata().map_err(unreadable)?.len();
    let goes_on = loop {
        match read_at(file, &mut [0], promised) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            read => break read.map_err(unreadable)? > 0,
        }
    };
    match (now == promised, goes_on) {
        (true, false) => Ok(()),
        (true, true) => Err(Cause::Endless { promised }),
        (false, _) => Err(Cause::Changed { promised, now }),
    }
}
