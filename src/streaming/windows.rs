use std::fs::{File, canonicalize};
use std::io;
use std::os::windows::fs::FileExt;
use std::path::Path;

pub fn read_at(file: &File, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    file.seek_read(buffer, at)
}

pub fn write_at(file: &File, bytes: &[u8], at: u64) -> io::Result<usize> {
    file.seek_write(bytes, at)
}

/// Without inode numbers, other links are not recognised.
pub fn same(_: &File, path: &Path, other: &Path) -> io::Result<bool> {
    Ok(canonicalize(path)? == canonicalize(other)?)
}

/// A directory cannot be opened as a file.
pub fn sync_directory(_: &Path) -> io::Result<()> {
    Ok(())
}
