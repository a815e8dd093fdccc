//! [`Input`]: the bytes of a file or of standard input, and the host's computation of the same for comparison.
//!
//! A file is streamed without the host's part, whose time would count as the device's, and then read again for it. Standard input cannot be read twice: the
//! host's part sees it meanwhile.

use std::io::{self, Stdin};
use std::path::Path;

use ringmem::streaming::{Cause, FileSource, Sequential, Source};

use crate::{Failure, failed};

const STANDARD: &str = "-";

/// The host's part: sees all bytes once, in order.
pub(super) trait Reference {
    fn see(&mut self, bytes: &[u8]);
}

pub(super) struct Input<R> {
    opened: Opened,
    pub reference: R,
}

enum Opened {
    File(FileSource),
    Standard(Sequential<Stdin>),
}

impl<R: Reference> Input<R> {
    pub fn open(path: &Path, reference: R) -> Result<Self, Failure> {
        let opened = if path == STANDARD {
            Opened::Standard(Sequential::new(io::stdin()))
        } else {
            let file = FileSource::open(path).map_err(|error| match error.kind() {
                io::ErrorKind::InvalidInput => {
                    let name = path.display();
                    Failure::Fact(format!("{error}; stream it through standard input: `ringmem stream - < {name}`"))
                }
                _ => Failure::fact(error),
            })?;
            Opened::File(file)
        };
        Ok(Self { opened, reference })
    }

    pub fn name(&self) -> &Path {
        match &self.opened {
            Opened::File(file) => file.path(),
            Opened::Standard(_) => Path::new("standard input"),
        }
    }

    pub fn is_at(&self, path: &Path) -> io::Result<bool> {
        match &self.opened {
            Opened::File(file) => file.is_at(path),
            Opened::Standard(_) => Ok(false),
        }
    }

    /// After the stream: shows the bytes of a file to the host's part.
    pub fn compare(&mut self) -> Result<(), Failure> {
        self.see_file().map_err(|cause| self.failed(cause))
    }

    fn see_file(&mut self) -> Result<(), Cause> {
        let Opened::File(file) = &mut self.opened else { return Ok(()) };
        let mut buffer = vec![0; 1 << 20];
        let mut offset = 0;
        while offset < file.len() {
            let length = (file.len() - offset).min(buffer.len() as u64) as usize;
            file.read_exact(&mut buffer[..length], offset)?;
            self.reference.see(&buffer[..length]);
            offset += length as u64;
        }
        file.check()
    }

    pub fn failed(&self, cause: Cause) -> Failure {
        failed(self.name(), cause)
    }
}

impl<R: Reference> Source for Input<R> {
    fn length(&self) -> Option<u64> {
        match &self.opened {
            Opened::File(file) => Some(file.len()),
            Opened::Standard(_) => None,
        }
    }

    fn read_at(&mut self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        match &mut self.opened {
            Opened::File(file) => file.read_at(buffer, at),
            Opened::Standard(input) => {
                let count = input.read_at(buffer, at)?;
                self.reference.see(&buffer[..count]);
                Ok(count)
            }
        }
    }

    fn check(&mut self) -> Result<(), Cause> {
        match &mut self.opened {
            Opened::File(file) => file.check(),
            Opened::Standard(_) => Ok(()),
        }
    }
}
