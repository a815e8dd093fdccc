//! [`Terminal`]: the terminal on standard output. Only text for people is fitted to it.

use std::io::{self, IsTerminal, Write};

use terminal_size::{Width, terminal_size_of};
use textwrap::{Options, WordSplitter, WrapAlgorithm};

/// A terminal that shows the output.
#[derive(Clone, Copy, Debug)]
pub struct Terminal {
    /// Width in columns.
    pub columns: usize,
    /// Whether help is printed in colours.
    pub has_colours: bool,
}

impl Terminal {
    /// Returns the terminal on standard output; `None` for a file or a pipe.
    #[must_use]
    pub fn of_stdout() -> Option<Self> {
        let stdout = io::stdout();
        let columns = terminal_size_of(&stdout).map_or(80, |(Width(columns), _)| usize::from(columns));
        stdout.is_terminal().then(|| Self { columns, has_colours: has_colours() })
    }
}

/// Source: <https://no-color.org>.
pub(crate) fn has_colours() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()) && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Breaks long lines between words; the rest begins below the second column.
pub(crate) struct Fit<'a> {
    out: &'a mut dyn Write,
    columns: usize,
    line: Vec<u8>,
}

impl<'a> Fit<'a> {
    pub fn new(out: &'a mut dyn Write, columns: usize) -> Self {
        Self { out, columns, line: Vec::new() }
    }
}

impl Write for Fit<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for piece in bytes.split_inclusive(|&byte| byte == b'\n') {
            self.line.extend_from_slice(piece);
            if piece.ends_with(b"\n") {
                let line = std::mem::take(&mut self.line);
                self.out.write_all(fitted(String::from_utf8_lossy(&line).trim_end_matches('\n'), self.columns).as_bytes())?;
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.write_all(&std::mem::take(&mut self.line))?;
        self.out.flush()
    }
}

pub(crate) fn fitted(line: &str, columns: usize) -> String {
    let indent = line.len() - line.trim_start().len();
    let second = line[indent..].find("  ").map(|at| line.len() - line[indent + at..].trim_start().len());
    // Leaves half of the width for the text.
    let hang = " ".repeat(second.filter(|&second| second <= columns / 2).unwrap_or(indent + 2).min(columns / 2));
    // Hyphens are parts of names and options.
    let options =
        Options::new(columns).subsequent_indent(&hang).word_splitter(WordSplitter::NoHyphenation).wrap_algorithm(WrapAlgorithm::FirstFit);
    textwrap::wrap(line, options).into_iter().fold(String::new(), |lines, line| lines + &line + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(text: &str, columns: usize) -> String {
        let mut out = Vec::new();
        let mut fit = Fit::new(&mut out, columns);
        text.bytes().for_each(|byte| fit.write_all(&[byte]).unwrap());
        fit.flush().unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn values_continue_below_values() {
        let text = "visibility  system: the device sees memory\n";
        assert_eq!(written(text, 30), "visibility  system: the device\n            sees memory\n");
        assert_eq!(written("  time  one two three\n", 16), "  time  one two\n        three\n");
        assert_eq!(written("  one two three four\n", 12), "  one two\n    three\n    four\n");
    }

    #[test]
    fn lines_that_fit_are_unchanged() {
        for text in ["", "\n", "  |█ ▁\n\n  +----\n", "no end of line", "ends at 12 c\n"] {
            assert_eq!(written(text, 12), text);
        }
    }

    #[test]
    fn no_line_is_wider_than_the_terminal() {
        let text =
            "a label that takes half the width  and its value\nmemory  0123456789012345678901234567890123456789\n漢字漢字漢字漢字漢字\n";
        for columns in 4..60 {
            for line in written(text, columns).lines() {
                assert!(textwrap::core::display_width(line) <= columns, "{columns}: {line:?}");
            }
        }
    }
}
