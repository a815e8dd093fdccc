//! Opening and replacing files by names that other users may control.
//!
//! 1. Opening never waits, and opens regular files only. The type is checked before the open, because opening some kinds of file has effects,
//!    and again on the opened file, because the name may refer to another file by then.
//! 2. A replaced name refers to the old or to the new file, complete and on disk. An error leaves the old file.
//! 3. A temporary file is new: no existing file, link or FIFO at its name is opened.
//! 4. A temporary file never grants more than the file that it replaces: it begins with mode 0600. Permissions are copied only from a file of
//!    the same user and group, without set-user-ID, set-group-ID and sticky bits. A name without a file gets a new file's permissions.
//!
//! Directories on the path are trusted: the permission to rename them is the permission to replace the file.

#[cfg_attr(unix, path = "unix.rs")]
#[cfg_attr(windows, path = "windows.rs")]
mod system;

use std::ffi::OsString;
use std::fs::{self, File, Metadata, TryLockError};
use std::io;
use std::path::{Path, PathBuf, absolute, is_separator};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::sys::path::folder_of;

#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) use system::set_length;
pub(crate) use system::{read_at, same};

/// Which files a path may name.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Accepts {
    /// Any regular file, also through symbolic links.
    Any,
    /// A regular file of this user; the path's last component is not a link.
    Own,
}

impl Accepts {
    pub(crate) fn check(self, metadata: &Metadata) -> io::Result<()> {
        let refused = |kind, why| Err(io::Error::new(kind, why));
        match self {
            Self::Own if metadata.is_symlink() => refused(io::ErrorKind::InvalidInput, "it is a symbolic link"),
            Self::Own if !metadata.is_file() => refused(io::ErrorKind::InvalidInput, "it is not a regular file"),
            _ if metadata.is_dir() => refused(io::ErrorKind::IsADirectory, "is a directory, not a regular file"),
            _ if !metadata.is_file() => refused(io::ErrorKind::InvalidInput, "is a FIFO, socket or device, not a regular file"),
            Self::Own if !system::is_own(metadata) => refused(io::ErrorKind::PermissionDenied, "it belongs to another user"),
            Self::Any | Self::Own => Ok(()),
        }
    }
}

/// Opens a file for reading.
pub(crate) fn open(path: &Path, accepts: Accepts) -> io::Result<(File, Metadata)> {
    let named = if accepts == Accepts::Any { fs::metadata(path) } else { fs::symlink_metadata(path) };
    accepts.check(&named?)?;
    let file = system::open(path, accepts == Accepts::Any)?;
    let metadata = file.metadata()?;
    accepts.check(&metadata)?;
    Ok((file, metadata))
}

/// A temporary file that replaces another on [commit](Self::commit), and is removed if dropped before, except in a forked process.
#[derive(Debug)]
pub(crate) struct Replacement {
    file: File,
    /// Opened before the first byte is written: a directory that cannot be synced is an error at creation.
    folder: Option<File>,
    path: PathBuf,
    temporary: Option<PathBuf>,
    /// Only this process removes the file.
    process: u32,
    end: u64,
}

const SUFFIX: &str = ".ringmem-partial";

impl Replacement {
    /// Links are resolved once, here: a link that is planted later is replaced, not followed.
    pub(crate) fn create(path: &Path, accepts: Accepts) -> io::Result<Self> {
        let refused = |why| io::Error::new(io::ErrorKind::InvalidInput, why);
        // The rename would refuse it after all writes.
        let bytes = path.as_os_str().as_encoded_bytes();
        if bytes.strip_suffix(b".").unwrap_or(bytes).last().is_some_and(|last| is_separator(char::from(*last))) {
            return Err(refused("names a directory"));
        }
        let path = match accepts {
            // A later change of the working directory changes nothing.
            Accepts::Own => absolute(path)?,
            Accepts::Any => match fs::canonicalize(path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound && path.is_symlink() => {
                    return Err(refused("it is a dangling symbolic link"));
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => absolute(path)?,
                resolved => resolved?,
            },
        };
        let replaced = match fs::symlink_metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            metadata => Some(metadata?),
        };
        if let Some(replaced) = &replaced
            && let Err(error) = accepts.check(replaced)
        {
            return Err(if accepts == Accepts::Own { error } else { refused("it exists and is not a regular file") });
        }
        let is_private = replaced.is_some() || accepts == Accepts::Own;
        let folder = system::open_folder(folder_of(&path))?;
        let (file, temporary) = create_temporary(&path, is_private)?;
        let replacement = Self { file, folder, path, temporary: Some(temporary), process: process::id(), end: 0 };
        if let Some(replaced) = replaced.filter(|_| accepts == Accepts::Any) {
            system::copy_permissions(&replaced, &replacement.path, &replacement.file)?;
        }
        Ok(replacement)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn temporary(&self) -> Option<&Path> {
        self.temporary.as_deref()
    }

    pub(crate) const fn len(&self) -> u64 {
        self.end
    }

    /// Writes at `at`, at most [`len`](Self::len), and ends the file there.
    pub(crate) fn write_at(&mut self, bytes: &[u8], at: u64) -> io::Result<usize> {
        let count = system::write_at(&self.file, bytes, at)?;
        self.end = at + count as u64;
        Ok(count)
    }

    /// The name refers to the old file unless only the directory's sync fails.
    pub(crate) fn commit(&mut self) -> io::Result<()> {
        // A failed write may have left more.
        self.file.set_len(self.end)?;
        // Before the rename: after a crash, the name would refer to a file without its bytes.
        sync(&self.file)?;
        if let Some(temporary) = &self.temporary {
            fs::rename(temporary, &self.path)?;
            self.temporary = None;
        }
        self.folder.as_ref().map_or(Ok(()), sync_folder)
    }
}

impl io::Write for Replacement {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_at(bytes, self.end)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Replacement {
    fn drop(&mut self) {
        if let Some(temporary) = self.temporary.take().filter(|_| self.process == process::id()) {
            let _ = fs::remove_file(temporary);
        }
    }
}

/// Replaces a file by one with these bytes.
pub(crate) fn replace(path: &Path, bytes: &[u8], accepts: Accepts) -> io::Result<()> {
    let mut replacement = Replacement::create(path, accepts)?;
    io::Write::write_all(&mut replacement, bytes)?;
    replacement.commit()
}

/// Reads a file of this user, of at most `longest` bytes. `None` if there is none. Follows no link at `path`.
///
/// # Errors
///
/// The system's error, and one with the reason for a file that is refused.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub fn read_own(path: &Path, longest: u64) -> io::Result<Option<std::vec::Vec<u8>>> {
    let (file, metadata) = match open(path, Accepts::Own) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let mut bytes = std::vec::Vec::new();
    // The file may grow meanwhile.
    io::Read::read_to_end(&mut io::Read::take(file, longest.saturating_add(1)), &mut bytes)?;
    if bytes.len() as u64 > longest {
        let why = std::format!("it has {} bytes, more than the maximum of {longest}", metadata.len().max(bytes.len() as u64));
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    Ok(Some(bytes))
}

/// Replaces a file of this user by one with these bytes, which only this user may read and write. Follows no link at `path`.
///
/// # Errors
///
/// As [`read_own`]; the old file stays.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub fn replace_own(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace(path, bytes, Accepts::Own)
}

/// Each sync of this module, so that tests observe it and make it fail.
fn sync(file: &File) -> io::Result<()> {
    #[cfg(test)]
    tests::observe_sync(file)?;
    file.sync_all()
}

fn sync_folder(folder: &File) -> io::Result<()> {
    match sync(folder) {
        // Some file systems cannot sync a directory.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
        synced => synced,
    }
}

fn create_temporary(path: &Path, is_private: bool) -> io::Result<(File, PathBuf)> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let name = path.file_name().ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "names no file"))?;
    let mut shown = Some(name);
    remove_abandoned(folder_of(path));
    loop {
        let mut temporary = OsString::from(".");
        if let Some(name) = shown {
            temporary.push(name);
            temporary.push(".");
        }
        temporary.push(std::format!("{}-{}{SUFFIX}", process::id(), NEXT.fetch_add(1, Relaxed)));
        let temporary = path.with_file_name(temporary);
        match system::create(&temporary, is_private) {
            Ok(file) => {
                // Other processes lock a file before removing it: it stays if it exists after this lock. Without file locks, it is not removed.
                let is_contended = matches!(file.try_lock(), Err(TryLockError::WouldBlock));
                if !is_contended && is_at(&file, &temporary) {
                    return Ok((file, temporary));
                }
            }
            // Left by a killed process with this number, or planted.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) if error.kind() == io::ErrorKind::InvalidFilename && shown.is_some() => shown = None,
            Err(error) => return Err(error),
        }
    }
}

fn is_at(file: &File, path: &Path) -> bool {
    same(file, path, path).unwrap_or(false)
}

fn remove_abandoned(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten().filter(|entry| is_temporary(entry.file_name().as_encoded_bytes())) {
        let path = entry.path();
        if let Ok((file, _)) = open(&path, Accepts::Own)
            && file.try_lock().is_ok()
            // Another process may have removed it, and a third one created a file of this name, which has another lock.
            && is_at(&file, &path)
        {
            let _ = fs::remove_file(path);
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

#[cfg(test)]
mod tests;
