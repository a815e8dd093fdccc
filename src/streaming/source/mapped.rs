use core::ptr::{self, NonNull};
use core::slice;
use std::fs::File;
use std::io;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::file::check;
use super::{Cause, Source};
use crate::sys::file::Accepts;

/// A file mapped one chunk at a time, so that only a chunk counts as the process's memory. For mappings faster than `pread`; a
/// [`FileSource`](super::FileSource) is safe.
///
/// ```
/// use std::io::Write;
///
/// use ringmem::backend::host::HostBackend;
/// use ringmem::streaming::{Job, Mapped, Streamer, Through};
///
/// let backend = HostBackend::builder().build()?;
/// let mut file = tempfile::tempfile()?;
/// file.write_all(&[7; 100_000])?;
/// // SAFETY: no other process has the file.
/// let mut source = unsafe { Mapped::new(file)? };
/// let mut sink = Vec::new();
/// Streamer::builder(&backend, 0).chunk(64 << 10).build()?.run(Job::new(&mut source).to(&mut sink), &mut Through)?;
/// assert_eq!(sink, [7; 100_000]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Mapped {
    file: File,
    length: u64,
}

/// A multiple of every page size.
const GRAIN: u64 = 64 << 10;

impl Mapped {
    /// Reads a file from its beginning.
    ///
    /// # Errors
    ///
    /// The system's error; [`InvalidInput`](io::ErrorKind::InvalidInput) or [`IsADirectory`](io::ErrorKind::IsADirectory) unless regular.
    ///
    /// # Safety
    ///
    /// While this lives, no process shortens the file (`SIGBUS`) or writes bytes that are being read.
    pub unsafe fn new(file: File) -> io::Result<Self> {
        let metadata = file.metadata()?;
        Accepts::Any.check(&metadata)?;
        Ok(Self { file, length: metadata.len() })
    }
}

impl Source for Mapped {
    fn length(&self) -> Option<u64> {
        Some(self.length)
    }

    fn read_at(&mut self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        // A file shortened before ends there, without a signal.
        let there = self.file.metadata()?.len().min(self.length).saturating_sub(at);
        let count = buffer.len().min(usize::try_from(there).unwrap_or(usize::MAX));
        if count == 0 {
            return Ok(0);
        }
        let before = (at % GRAIN) as usize;
        let window = Window::new(&self.file, at - before as u64, before + count)?;
        buffer[..count].copy_from_slice(&window.bytes()[before..]);
        Ok(count)
    }

    fn check(&mut self) -> Result<(), Cause> {
        check(&self.file, self.length)
    }
}

struct Window {
    /// INVARIANT: `len` mapped bytes begin here; they were in the file when it was mapped.
    place: NonNull<u8>,
    len: usize,
}

impl Window {
    fn new(file: &File, at: u64, len: usize) -> io::Result<Self> {
        // SAFETY: no address is requested, so no mapping is replaced.
        let place = unsafe { mmap(ptr::null_mut(), len, ProtFlags::READ, MapFlags::PRIVATE, file, at) }?;
        let place = NonNull::new(place.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { place, len })
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: by the invariant `len` bytes are mapped from `place` on; the caller of `Mapped::new` promises that no process shortens
        // the file or writes them meanwhile.
        unsafe { slice::from_raw_parts(self.place.as_ptr(), self.len) }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: mapped with this length, unmapped only here; `bytes` borrows this.
        let result = unsafe { munmap(self.place.as_ptr().cast(), self.len) };
        debug_assert!(result.is_ok());
    }
}
