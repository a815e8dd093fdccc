//! [`Error`].

use std::path::{Path, PathBuf};
use std::{fmt, io};

/// Why there is no PTX.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No compiler with the source of `core`: where it was looked for, and what was missing there.
    #[error("no compiler with the source of core:{}\n{}", Lines(.0), crate::INSTALL)]
    NoCompiler(Vec<(&'static str, String)>),
    /// A program that could not be run.
    #[error("{program}: {source}", program = .program.display())]
    Run {
        /// Which.
        program: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A program that ran and failed.
    #[error("`{command}` failed:\n{said}")]
    Failed {
        /// With its arguments.
        command: String,
        /// Its standard error.
        said: String,
    },
    /// The compiler left no PTX where it should.
    #[error("no {name} in {directory}: remove that folder", directory = .directory.display())]
    Nothing {
        /// The file.
        name: String,
        /// Where it was looked for.
        directory: PathBuf,
    },
    /// A file or folder.
    #[error("{path}: {source}", path = .path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        source: io::Error,
    },
    /// Not called by a build script: cargo has not set this variable.
    #[error("{0} is not set: only a build script of cargo's can embed")]
    NoBuildScript(&'static str),
}

impl Error {
    pub(crate) fn file(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::File { path, source }
    }
}

struct Lines<'a>(&'a [(&'static str, String)]);

impl fmt::Display for Lines<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(place, why)| write!(f, "\n  {place}: {why}"))
    }
}
