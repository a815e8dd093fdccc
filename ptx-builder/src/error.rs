use std::path::{Path, PathBuf};
use std::{fmt, io};

/// Why there is no PTX.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No compiler with the source of `core`: the places searched, and what each lacks.
    #[error("no compiler with the source of core:{}\n{}", Lines(.0), crate::INSTALL)]
    NoCompiler(Vec<(&'static str, String)>),
    /// A program did not run.
    #[error("{program}: {source}", program = .program.display())]
    Run {
        /// The program.
        program: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A program failed.
    #[error("`{command}` failed:\n{said}")]
    Failed {
        /// The command line.
        command: String,
        /// Its standard error.
        said: String,
    },
    /// The PTX is missing.
    #[error("no {name} in {directory}: remove that folder", directory = .directory.display())]
    Nothing {
        /// The file name.
        name: String,
        /// The directory searched.
        directory: PathBuf,
    },
    /// The manifest's workspace has no such package, or the package no library.
    #[error("no package {name} to compile in {manifest}: {why}", manifest = .manifest.display())]
    NoPackage {
        /// The package.
        name: String,
        /// The manifest.
        manifest: PathBuf,
        /// The cause.
        why: String,
    },
    /// The target directory's path has a comma, which separates outputs in rustc's `--emit`.
    #[error("{path}: rustc cannot write to a path with a comma: use another target directory", path = .0.display())]
    Comma(PathBuf),
    /// A driver would refuse the PTX.
    #[error("no driver would load {path}:{}", Faults(.faults), path = .path.display())]
    Unusable {
        /// The PTX.
        path: PathBuf,
        /// Its faults.
        faults: Vec<String>,
    },
    /// The name for an embedded file is not that of a file in `OUT_DIR`.
    #[error("cannot embed as {0}: name a file, without a folder")]
    Name(String),
    /// A file or folder is not accessible.
    #[error("{path}: {source}", path = .path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Not in a build script: this variable is not set.
    #[error("{0} is not set: only a build script of cargo's can embed")]
    NoBuildScript(&'static str),
}

/// Like `Display`: cargo prints it when a build script returns this error.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
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

struct Faults<'a>(&'a [String]);

impl fmt::Display for Faults<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|fault| write!(f, "\n  {fault}"))
    }
}
