use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::string::{String, ToString};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::vec::Vec;
use std::{env, format, io};

use rustix::fs::{self, AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::shared::{lock, private_file};
use crate::sys::file::set_length;
use crate::sys::fork::Process;
use crate::{Error, Result};

/// A published page; its process may have ended.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::channel::Channel;
/// use ringmem::monitor::{self, Published};
/// use ringmem_kernels::echo::ECHO;
///
/// let backend = HostBackend::builder().build()?;
/// let channel = Channel::builder(ECHO).publish("orders").open(&backend, 0)?;
/// let mut published = monitor::list()?.into_iter();
/// let found = published.find(|one| (one.pid, one.name.as_str()) == (std::process::id(), "orders"));
/// let Some(Published { path, .. }) = found else { panic!("not published") };
/// drop(channel);
/// assert!(!path.exists());
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Published {
    /// Process id.
    pub pid: u32,
    /// Name of the channel.
    pub name: String,
    /// File.
    pub path: PathBuf,
}

/// Returns this user's published pages, by process and name.
///
/// # Errors
///
/// [`Error::System`] if a folder of this user cannot be read, or the process has no free descriptor.
pub fn list() -> Result<Vec<Published>> {
    let mut found = Vec::new();
    for folder in candidates() {
        let failed = |error: io::Error| Error::of_file("read", &folder, error);
        match open(&folder) {
            Ok(_) => found.extend(entries(&folder).map_err(failed)?),
            Err(error) if may_hide_pages(&folder, &error) => return Err(failed(error)),
            Err(_) => {}
        }
    }
    found.sort();
    Ok(found)
}

/// Whether a folder that could not be opened may have pages of this user. A missing folder has none, and another user's neither: no channel of
/// this user publishes there.
fn may_hide_pages(folder: &Path, error: &io::Error) -> bool {
    let is_short = [Errno::MFILE, Errno::NFILE, Errno::NOMEM].iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()));
    is_short || fs::lstat(folder).is_ok_and(|stat| stat.st_uid == geteuid().as_raw())
}

/// Possible folders, best first. A user's processes may differ in `XDG_RUNTIME_DIR`.
fn candidates() -> Vec<PathBuf> {
    let user = geteuid().as_raw();
    let given = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    let mut folders: Vec<_> = given.into_iter().chain([format!("/run/user/{user}").into()]).map(|path| path.join("ringmem")).collect();
    folders.dedup();
    folders.push(format!("/tmp/ringmem-{user}").into());
    folders
}

/// The folder must belong to this user alone.
fn open(path: &Path) -> io::Result<OwnedFd> {
    let folder = fs::open(path, OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    private_file::check(&fs::fstat(&folder)?)?;
    Ok(folder)
}

fn entries(folder: &Path) -> io::Result<Vec<Published>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let parts = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.split_once('-'));
        if let Some((pid, name)) = parts
            && let (Ok(pid), true) = (pid.parse(), is_name(name))
        {
            found.push(Published { pid, name: name.to_string(), path });
        }
    }
    Ok(found)
}

fn is_name(name: &str) -> bool {
    (1..=64).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}

pub(super) fn check_name(name: &str) -> Result<()> {
    if is_name(name) {
        return Ok(());
    }
    let answer = io::Error::new(io::ErrorKind::InvalidInput, "a name has 1 to 64 ASCII letters, digits, dots, hyphens and underscores");
    Err(Error::of_file("publish", name.as_ref(), answer))
}

/// The pages that a process publishes: a file of its number may be of a process in another namespace, or of one that was killed.
struct Own {
    process: Option<Process>,
    paths: BTreeSet<PathBuf>,
}

static OWN: Mutex<Own> = Mutex::new(Own { process: None, paths: BTreeSet::new() });

fn own() -> MutexGuard<'static, Own> {
    let mut own = OWN.lock().unwrap_or_else(PoisonError::into_inner);
    if own.process.as_ref().is_none_or(|process| !process.is_this()) {
        // A fork's parent's are not its own.
        *own = Own { process: Some(Process::this()), paths: BTreeSet::new() };
    }
    own
}

/// Also removes the files of ended processes. The outer error is for a name that this process publishes.
pub(super) fn create(name: &str, contents: &[u8]) -> Result<Result<(PathBuf, OwnedFd)>> {
    let (path, folder) = match made() {
        Ok(made) => made,
        Err(error) => return Ok(Err(error)),
    };
    // Locked: no other thread of this process replaces a stale file.
    let mut own = own();
    for stale in entries(&path).unwrap_or_default() {
        let _ = remove_stale(&folder, &stale.path);
    }
    let path = path.join(format!("{}-{name}", std::process::id()));
    if own.paths.contains(&path) {
        return Err(Error::of_file("create", &path, Errno::EXIST));
    }
    Ok(create_file(&folder, &path, contents).map(|file| {
        own.paths.insert(path.clone());
        (path, file)
    }))
}

/// Removes a page of this process.
pub(super) fn remove(path: &Path) {
    let mut own = own();
    let _ = fs::unlink(path);
    own.paths.remove(path);
}

fn create_file(folder: &OwnedFd, path: &Path, contents: &[u8]) -> Result<OwnedFd> {
    let failed = |errno: Errno| Error::of_file("create", path, errno);
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = fs::openat(folder, path.file_name().unwrap_or_default(), flags, Mode::RUSR | Mode::WUSR).map_err(failed)?;
    // An empty file counts as live.
    let written = lock(&file, libc::F_OFD_SETLK, libc::F_WRLCK, 0).and_then(|_| {
        let file = File::from(file);
        // Beyond the limit of a file's size, the write would end the process.
        set_length(&file, contents.len() as u64)?;
        // Written, not only reserved: a full disk is then an error, not a later signal.
        std::os::unix::fs::FileExt::write_all_at(&file, contents, 0).map(|()| file)
    });
    written.map(OwnedFd::from).map_err(|error| {
        let _ = fs::unlink(path);
        Error::of_file("write", path, error)
    })
}

fn made() -> Result<(PathBuf, OwnedFd)> {
    let mut failed = None;
    for path in candidates() {
        let made = match fs::mkdir(&path, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => open(&path),
            Err(errno) => Err(errno.into()),
        };
        match made {
            Ok(folder) => return Ok((path, folder)),
            Err(error) => {
                let advised = io::Error::new(error.kind(), format!("{error}; set XDG_RUNTIME_DIR to a folder of this user"));
                failed = Some(Error::of_file("create", &path, advised));
            }
        }
    }
    Err(failed.unwrap_or(Error::Unsupported { what: "publication without a folder" }))
}

fn remove_stale(folder: &OwnedFd, path: &Path) -> io::Result<()> {
    let name = path.file_name().unwrap_or_default();
    let file = fs::openat(folder, name, OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?;
    let stat = fs::fstat(&file)?;
    if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile && stat.st_size > 0 && !is_locked(&file) {
        fs::unlinkat(folder, name, AtFlags::empty())?;
    }
    Ok(())
}

/// Its creator holds the lock for life.
pub(super) fn is_locked(file: &impl AsFd) -> bool {
    // Without an answer, the file counts as live.
    !matches!(lock(file, libc::F_OFD_GETLK, libc::F_WRLCK, 0), Ok(libc::F_UNLCK))
}
