use std::path::Path;
use std::{fmt, io};

/// "cannot open PATH: No such file or directory".
pub(crate) struct Sentence<'a> {
    pub(crate) action: &'static str,
    pub(crate) path: &'a Path,
    pub(crate) answer: &'a io::Error,
}

impl fmt::Display for Sentence<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {} {}: {}", self.action, self.path.display(), self.answer)
    }
}

/// Keeps the error's kind.
pub(crate) fn named(action: &'static str, path: &Path) -> impl Fn(io::Error) -> io::Error {
    move |answer| io::Error::new(answer.kind(), Sentence { action, path, answer: &answer }.to_string())
}

pub(crate) fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
