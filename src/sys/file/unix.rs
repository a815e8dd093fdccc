use std::fs::{File, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{OFlags, fchown};
use rustix::io::Errno;
use rustix::process::{Gid, Resource, geteuid, getrlimit};

fn flags(flags: OFlags) -> i32 {
    flags.bits().cast_signed()
}

/// The standard library adds `O_CLOEXEC`.
pub fn open(path: &Path, follows_links: bool) -> io::Result<File> {
    let never_waits = OFlags::NONBLOCK | OFlags::NOCTTY;
    let links = if follows_links { OFlags::empty() } else { OFlags::NOFOLLOW };
    OpenOptions::new().read(true).custom_flags(flags(never_waits | links)).open(path)
}

/// `O_EXCL` follows no link.
pub fn create(path: &Path, is_private: bool) -> io::Result<File> {
    let mode = if is_private { 0o600 } else { 0o666 };
    OpenOptions::new().write(true).create_new(true).mode(mode).custom_flags(flags(OFlags::NOFOLLOW)).open(path)
}

pub fn open_folder(path: &Path) -> io::Result<Option<File>> {
    OpenOptions::new().read(true).custom_flags(flags(OFlags::DIRECTORY)).open(path).map(Some)
}

pub fn read_at(file: &File, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    file.read_at(buffer, at)
}

pub fn write_at(file: &File, bytes: &[u8], at: u64) -> io::Result<usize> {
    file.write_at(&bytes[..within_limit(at, bytes.len())?], at)
}

/// Returns how many of `length` bytes from `at` on the file size limit permits.
fn within_limit(at: u64, length: usize) -> io::Result<usize> {
    let left = size_limit().saturating_sub(at);
    match usize::try_from(left).unwrap_or(usize::MAX).min(length) {
        0 if length > 0 => Err(Errno::FBIG.into()),
        count => Ok(count),
    }
}

/// `RLIMIT_FSIZE`. At a write or truncation beyond it, the system first sends `SIGXFSZ`, which ends a process that does not ignore it.
fn size_limit() -> u64 {
    getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX)
}

/// Sets the length of a new file; beyond the file size limit, an error without a signal.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub fn set_length(file: &impl std::os::fd::AsFd, length: u64) -> Result<(), Errno> {
    if length > size_limit() {
        return Err(Errno::FBIG);
    }
    rustix::fs::ftruncate(file, length)
}

pub fn same(file: &File, _: &Path, other: &Path) -> io::Result<bool> {
    let [ours, theirs] = [file.metadata()?, std::fs::metadata(other)?].map(|metadata| (metadata.dev(), metadata.ino()));
    Ok(ours == theirs)
}

pub fn is_own(metadata: &Metadata) -> bool {
    metadata.uid() == geteuid().as_raw()
}

/// Copies what `replaced`, at `path`, grants to other users, unless `new` belongs to another user or group.
pub fn copy_permissions(replaced: &Metadata, path: &Path, new: &File) -> io::Result<()> {
    let created = new.metadata()?;
    if created.uid() != replaced.uid() {
        return Ok(());
    }
    // A file of several users needs its group. The system lets its owner set a group only with this process's membership.
    if created.gid() != replaced.gid() && fchown(new, None, Some(Gid::from_raw(replaced.gid()))).is_err() {
        return Ok(());
    }
    acl::remove(new)?;
    let group = if acl::exists(path) { 0 } else { 0o070 };
    new.set_permissions(Permissions::from_mode(replaced.mode() & (0o707 | group)))
}

/// Access control lists. With one, the mode's bits of the group are the most that the list grants to any user or group: the group itself may have
/// less.
#[cfg(any(target_os = "linux", target_os = "android"))]
mod acl {
    use std::fs::File;
    use std::io;
    use std::path::Path;

    use rustix::fs::{fremovexattr, lgetxattr};
    use rustix::io::Errno;

    pub const NAME: &str = "system.posix_acl_access";

    pub fn exists(path: &Path) -> bool {
        lgetxattr(path, NAME, &mut [0_u8; 0]).is_ok()
    }

    /// Removes the list that a new file inherits from its directory.
    pub fn remove(file: &File) -> io::Result<()> {
        match fremovexattr(file, NAME) {
            Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// The lists of other systems are no part of the mode.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
mod acl {
    pub fn exists(_: &std::path::Path) -> bool {
        false
    }

    pub fn remove(_: &std::fs::File) -> std::io::Result<()> {
        Ok(())
    }
}
