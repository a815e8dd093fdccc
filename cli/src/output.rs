//! Files that a command writes. A signal removes the unfinished one.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::{fs, io, mem};

use ringmem::streaming::FileSink;

use super::Failure;

/// The unfinished file of this command, until it is dropped.
pub(crate) struct Partial;

static PARTIAL: Mutex<Option<PathBuf>> = Mutex::new(None);

impl Partial {
    pub(crate) fn create(to: &Path) -> io::Result<(FileSink, Self)> {
        let mut partial = PARTIAL.lock().unwrap_or_else(PoisonError::into_inner);
        let sink = FileSink::create(to)?;
        *partial = sink.temporary().map(Path::to_owned);
        Ok((sink, Self))
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        *PARTIAL.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// Replaces the file at `to`; an error keeps the old one.
pub(crate) fn replace(to: &Path, bytes: &[u8]) -> Result<(), Failure> {
    let (mut sink, _partial) = Partial::create(to).map_err(Failure::fact)?;
    sink.write_all(bytes).and_then(|()| sink.commit()).map_err(Failure::fact)
}

pub(crate) fn remove_partial() {
    let mut partial = PARTIAL.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(path) = partial.take() {
        // If this fails, the next command that writes to this folder removes the file.
        let _ = fs::remove_file(path);
    }
    // Stays locked: no other file is created.
    mem::forget(partial);
}
