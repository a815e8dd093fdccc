use std::io::{self, Write};
use std::path::Path;

use super::{Sink, gap};
use crate::sys::file::{Accepts, Replacement};
use crate::sys::path::named;

/// A file under a temporary name until [committed](Self::commit).
///
/// An earlier drop removes the temporary file, except in a forked process. A killed process leaves `.NAME.PID-N.ringmem-partial`
/// (without a very long NAME) for the same user's next sink in that directory to remove; live processes lock their files.
///
/// The new file has the old file's permissions if both have the same user and group, without set-user-ID, set-group-ID and sticky bits. The sink
/// sets the old group if the system permits it. Otherwise only the caller may read and write the new file. Access control lists are not copied.
/// A file under a new name has the permissions of any new file.
///
/// A symbolic link at `path` stays, and the file that it refers to is replaced.
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
pub struct FileSink(Replacement);

impl FileSink {
    /// Creates a file that replaces `path` on commit, with its permissions.
    ///
    /// # Errors
    ///
    /// The system's error, with the path; [`InvalidInput`](io::ErrorKind::InvalidInput) for a dangling link or anything but a regular file.
    pub fn create(path: impl AsRef<Path>) -> io::Result<Self> {
        let path = path.as_ref();
        Replacement::create(path, Accepts::Any).map(Self).map_err(named("create", path))
    }

    /// Returns the temporary path, to remove when a signal ends the program.
    #[must_use]
    pub fn temporary(&self) -> Option<&Path> {
        self.0.temporary()
    }

    /// Returns the bytes written.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.0.len()
    }

    /// Returns true if nothing is written.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Syncs the file to disk, then renames it in one step.
    ///
    /// # Errors
    ///
    /// The system's error, with the path. The named file is unchanged unless only the directory's sync failed.
    pub fn commit(mut self) -> io::Result<()> {
        self.0.commit().map_err(named("commit", self.0.path()))
    }
}

impl Sink for FileSink {
    fn write_at(&mut self, bytes: &[u8], at: u64) -> io::Result<usize> {
        if at > self.len() {
            return Err(gap(self.len(), at));
        }
        self.0.write_at(bytes, at)
    }
}

/// Appends. Errors have the path.
impl Write for FileSink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(named("write", self.0.path()))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}
