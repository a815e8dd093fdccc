use std::fs::{File, Metadata, OpenOptions, canonicalize};
use std::io;
use std::os::windows::fs::FileExt;
use std::path::Path;

/// No name of a regular file waits, and links need a privilege.
pub fn open(path: &Path, _follows_links: bool) -> io::Result<File> {
    File::open(path)
}

/// The directory's permissions apply.
pub fn create(path: &Path, _is_private: bool) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).open(path)
}

/// A directory cannot be opened as a file.
pub fn open_folder(_: &Path) -> io::Result<Option<File>> {
    Ok(None)
}

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

/// Owners are not compared.
pub fn is_own(_: &Metadata) -> bool {
    true
}

/// Copies the read-only attribute.
pub fn copy_permissions(replaced: &Metadata, _: &Path, new: &File) -> io::Result<()> {
    new.set_permissions(replaced.permissions())
}
