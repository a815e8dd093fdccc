//! Files that belong to this user alone: what another user may write is not read.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{self, Mode, Stat};
use rustix::process::geteuid;

use crate::sys::file::{self, Accepts};
use crate::{Error, Result};

pub(crate) fn check(stat: &Stat) -> io::Result<()> {
    match (stat.st_uid == geteuid().as_raw(), Mode::from_raw_mode(stat.st_mode).intersects(Mode::RWXG | Mode::RWXO)) {
        (true, false) => Ok(()),
        (false, _) => Err(io::Error::other("it belongs to another user")),
        (true, true) => Err(io::Error::other("other users have access to it: restrict it to its owner (chmod go-rwx)")),
    }
}

/// Returns the file and its size if it is regular and belongs to this user alone. Follows no links.
pub(crate) fn open(path: &Path) -> Result<(OwnedFd, u64)> {
    let failed = |error| Error::of_file("open", path, error);
    let (file, metadata) = file::open(path, Accepts::Own).map_err(failed)?;
    check(&fs::fstat(&file).map_err(|errno| failed(errno.into()))?).map_err(failed)?;
    Ok((file.into(), metadata.len()))
}

/// 0 if unknown.
pub(crate) fn len(file: &OwnedFd) -> u64 {
    fs::fstat(file).map_or(0, |stat| u64::try_from(stat.st_size).unwrap_or(0))
}
