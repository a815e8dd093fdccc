use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use crate::path::folder_of;

pub fn read_at(file: &File, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    file.read_at(buffer, at)
}

pub fn write_at(file: &File, bytes: &[u8], at: u64) -> io::Result<usize> {
    file.write_at(bytes, at)
}

pub fn same(file: &File, _: &Path, other: &Path) -> io::Result<bool> {
    let [ours, theirs] = [file.metadata()?, std::fs::metadata(other)?].map(|metadata| (metadata.dev(), metadata.ino()));
    Ok(ours == theirs)
}

pub fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(folder_of(path))?.sync_all()
}
