use std::io::{self, Stdin};
use std::path::Path;

use ringmem::streaming::{Cause, FileSource, Sequential, Source};

use crate::{Failure, failed};

const STANDARD: &str = "-";

/// A file is read again for the comparison. Standard input is compared as it is read.
pub(super) enum Input {
    File(FileSource),
    Standard(Sequential<Stdin>),
}

impl Input {
    pub fn open(path: &Path) -> Result<Self, Failure> {
        if path == STANDARD {
            return Ok(Self::Standard(Sequential::new(io::stdin())));
        }
        FileSource::open(path).map(Self::File).map_err(|error| match error.kind() {
            io::ErrorKind::InvalidInput => {
                let name = path.display();
                Failure::Fact(format!("{error}; stream it through standard input: `ringmem stream - < {name}`"))
            }
            _ => Failure::fact(error),
        })
    }

    pub fn length(&self) -> Option<u64> {
        match self {
            Self::File(file) => Some(file.len()),
            Self::Standard(_) => None,
        }
    }

    pub fn name(&self) -> &Path {
        match self {
            Self::File(file) => file.path(),
            Self::Standard(_) => Path::new("standard input"),
        }
    }

    pub fn is_at(&self, path: &Path) -> io::Result<bool> {
        match self {
            Self::File(file) => file.is_at(path),
            Self::Standard(_) => Ok(false),
        }
    }

    pub fn seen<'a>(&'a mut self, see: &'a mut dyn FnMut(&[u8])) -> Seen<'a> {
        Seen { input: self, see }
    }

    pub fn see_again(&mut self, see: &mut dyn FnMut(&[u8])) -> Result<(), Cause> {
        let Self::File(file) = self else { return Ok(()) };
        let mut buffer = vec![0; 1 << 20];
        let mut offset = 0;
        while offset < file.len() {
            let length = (file.len() - offset).min(buffer.len() as u64) as usize;
            file.read_exact(&mut buffer[..length], offset)?;
            see(&buffer[..length]);
            offset += length as u64;
        }
        file.check()
    }

    pub fn failed(&self, cause: Cause) -> Failure {
        failed(self.name(), cause)
    }
}

pub(super) struct Seen<'a> {
    input: &'a mut Input,
    see: &'a mut dyn FnMut(&[u8]),
}

impl Seen<'_> {
    pub fn failed(&self, cause: Cause) -> Failure {
        self.input.failed(cause)
    }
}

impl Source for Seen<'_> {
    fn length(&self) -> Option<u64> {
        self.input.length()
    }

    fn read_at(&mut self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        match self.input {
            Input::File(file) => file.read_at(buffer, at),
            Input::Standard(input) => {
                let count = input.read_at(buffer, at)?;
                (self.see)(&buffer[..count]);
                Ok(count)
            }
        }
    }

    fn check(&mut self) -> Result<(), Cause> {
        match self.input {
            Input::File(file) => file.check(),
            Input::Standard(_) => Ok(()),
        }
    }
}
