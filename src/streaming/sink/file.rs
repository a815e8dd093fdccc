use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf, is_separator};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::{Sink, gap};
use crate::path::{folder_of, named};
use crate::streaming::system::{sync_directory, write_at};

/// A file under a temporary name until [committed](Self::commit).
///
/// An earlier drop removes the temporary file, except in a forked process. A killed process leaves `.NAME.PID-N.ringmem-partial`
/// (without a very long NAME) for the next sink in that directory to remove; live processes lock their files.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::streaming::{FileSink, FileSource, Job, Streamer, Through};
///
/// let backend = HostBackend::builder().build()?;
/// let directory = std::env::temp_dir().join(format!("ringmem-file-sink-{}", std::process::id()));
/// std::fs::create_dir_all(&directory)?;
/// let (from, to) = (directory.join("from"), directory.join("to"));
/// std::fs::write(&from, [7; 100_000])?;
/// let mut streamer = Streamer::builder(&backend, 0).chunk(64 << 10).build()?;
/// let (mut source, mut sink) = (FileSource::open(&from)?, FileSink::create(&to)?);
/// streamer.run(Job::new(&mut source).to(&mut sink), &mut Through)?;
/// assert!(!to.exists()); // not before it is complete and committed
/// sink.commit()?;
/// assert_eq!(std::fs::read(&to)?.len(), 100_000);
/// # std::fs::remove_dir_all(&directory)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct FileSink {
    file: File,
    path: PathBuf,
    temporary: Option<PathBuf>,
    /// Only this process removes the file.
    process: u32,
    end: u64,
}

const SUFFIX: &str = ".ringmem-partial";

impl FileSink {
    /// Creates a file that replaces `path` on commit, with its permissions.
    ///
    /// # Errors
    ///
    /// The system's error, with the path; [`InvalidInput`](io::ErrorKind::InvalidInput) for a dangling link or anything but a regular file.
    pub fn create(path: impl AsRef<Path>) -> io::Result<Self> {
        let path = path.as_ref();
        Self::created(path).map_err(named("create", path))
    }

    fn created(path: &Path) -> io::Result<Self> {
        let refused = |why| Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        // The rename would refuse it after all writes.
        if path.as_os_str().as_encoded_bytes().last().is_some_and(|last| is_separator(char::from(*last))) {
            return refused("names a directory");
        }
        let replaced = match fs::metadata(path) {
            Ok(metadata) if metadata.is_file() => Some(metadata.permissions()),
            Ok(_) => return refused("it exists and is not a regular file"),
            Err(error) if error.kind() == io::ErrorKind::NotFound && path.is_symlink() => return refused("it is a dangling symbolic link"),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let path = if replaced.is_some() { fs::canonicalize(path)? } else { path.to_owned() };
        let (file, temporary) = beside(&path)?;
        let sink = Self { file, path, temporary: Some(temporary), process: process::id(), end: 0 };
        if let Some(permissions) = replaced {
            sink.file.set_permissions(permissions)?;
        }
        Ok(sink)
    }

    /// Returns the temporary path, to remove when a signal ends the program.
    #[must_use]
    pub fn temporary(&self) -> Option<&Path> {
        self.temporary.as_deref()
    }

    /// Returns the bytes written.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.end
    }

    /// Returns true if nothing is written.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.end == 0
    }

    /// Syncs the file to disk, then renames it in one step.
    ///
    /// # Errors
    ///
    /// The system's error, with the path. The named file is unchanged unless only the directory's sync failed.
    pub fn commit(mut self) -> io::Result<()> {
        self.renamed().map_err(named("commit", &self.path))
    }

    fn renamed(&mut self) -> io::Result<()> {
        // A failed write may have left more.
        self.file.set_len(self.end)?;
        self.file.sync_all()?;
        if let Some(temporary) = &self.temporary {
            fs::rename(temporary, &self.path)?;
            self.temporary = None;
        }
        sync_directory(&self.path)
    }
}

impl Sink for FileSink {
    fn write_at(&mut self, bytes: &[u8], at: u64) -> io::Result<usize> {
        if at > self.end {
            return Err(gap(self.end, at));
        }
        let count = write_at(&self.file, bytes, at)?;
        self.end = at + count as u64;
        Ok(count)
    }
}

impl Drop for FileSink {
    fn drop(&mut self) {
        if let Some(temporary) = self.temporary.take().filter(|_| self.process == process::id()) {
            let _ = fs::remove_file(temporary);
        }
    }
}

fn beside(path: &Path) -> io::Result<(File, PathBuf)> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let name = path.file_name().ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "names no file"))?;
    let mut shown = Some(name);
    remove_abandoned(path);
    loop {
        let mut temporary = OsString::from(".");
        if let Some(name) = shown {
            temporary.push(name);
            temporary.push(".");
        }
        temporary.push(std::format!("{}-{}{SUFFIX}", process::id(), NEXT.fetch_add(1, Relaxed)));
        let temporary = path.with_file_name(temporary);
        match OpenOptions::new().write(true).create_new(true).open(&temporary) {
            Ok(file) => {
                // Other processes lock a file before removing it: it stays if it exists after this lock. Without file locks, it is not removed.
                let is_contended = matches!(file.try_lock(), Err(TryLockError::WouldBlock));
                if !is_contended && temporary.exists() {
                    return Ok((file, temporary));
                }
            }
            // Left by a killed process with this number.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) if error.kind() == io::ErrorKind::InvalidFilename && shown.is_some() => shown = None,
            Err(error) => return Err(error),
        }
    }
}

fn remove_abandoned(path: &Path) {
    let directory = folder_of(path);
    let Ok(entries) = fs::read_dir(directory) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        if !is_temporary(name.as_encoded_bytes()) || !entry.file_type().is_ok_and(|kind| kind.is_file()) {
            continue;
        }
        if let Ok(file) = File::open(entry.path())
            && file.try_lock().is_ok()
        {
            let _ = fs::remove_file(entry.path());
        }
    }
}

fn is_temporary(name: &[u8]) -> bool {
    let Some(stem) = name.strip_prefix(b".").and_then(|name| name.strip_suffix(SUFFIX.as_bytes())) else { return false };
    let numbers = stem.rsplit(|&byte| byte == b'.').next().unwrap_or(stem);
    let mut numbers = numbers.split(|&byte| byte == b'-');
    let is_number = |number: Option<&[u8]>| number.is_some_and(|number| !number.is_empty() && number.iter().all(u8::is_ascii_digit));
    is_number(numbers.next()) && is_number(numbers.next()) && numbers.next().is_none()
}
