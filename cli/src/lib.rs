//! The `ringmem` program as a function, so that a test can pass its own image.
//!
//! 1. Results go to `out`. A failure, or a warning about the environment, is one line on `err` that begins with `ringmem:`.
//! 2. Exit codes: 0 success, 1 failure, 2 invalid arguments.
//! 3. When [`run`] returns, no thread or kernel of the command is running.

mod chart;
mod commands;
#[cfg_attr(not(feature = "cuda"), path = "no_gpu.rs")]
mod gpu;
mod number;
mod output;
mod progress;
mod selection;
mod terminal;

use std::ffi::OsString;
use std::fmt;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::time::Duration;

use clap::Parser;
use clap::error::ErrorKind;
use commands::Command;
use ringmem::__size as size;
use ringmem::error::LimitOf;
use ringmem::streaming::{Cause, FileSource};
use ringmem::{Image, escape};
use terminal::Fit;

pub use terminal::Terminal;

#[derive(Parser)]
#[command(name = "ringmem", version, about = "Checks and measures shared memory, rings, pools and persistent kernels on this machine")]
#[command(after_help = "Exit codes: 0 success, 1 failure, 2 invalid arguments")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug)]
enum Failure {
    Usage(String),
    Fact(String),
    Call(ringmem::Error),
    Print(std::io::Error),
}

type Outcome = Result<(), Failure>;

impl Failure {
    fn fact(fact: impl fmt::Display) -> Self {
        Self::Fact(fact.to_string())
    }
}

impl From<ringmem::Error> for Failure {
    fn from(error: ringmem::Error) -> Self {
        Self::Call(error)
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::Print(error)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(text) | Self::Fact(text) => f.write_str(text),
            Self::Call(error @ ringmem::Error::Limit { of: LimitOf::Pinned, .. }) => {
                write!(f, "{}: raise the limit with --pinned", chain(error))
            }
            Self::Call(error @ ringmem::Error::Staging { .. }) => write!(f, "{}, or raise the limit with --pinned", chain(error)),
            Self::Call(error) => f.write_str(&chain(error)),
            Self::Print(error) => write!(f, "cannot print the answer: {error}"),
        }
    }
}

/// Runs the command in `arguments` with the kernels of `image` and returns the exit code. The first argument is the program name. If `out` is a
/// terminal, text fits its width.
pub fn run(
    arguments: impl IntoIterator<Item = OsString>,
    image: &Image,
    terminal: Option<Terminal>,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> u8 {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let outcome = match Arguments::try_parse_from(&arguments) {
        Ok(Arguments { command }) => match terminal.filter(|_| command.prints_text()) {
            Some(Terminal { columns, .. }) => {
                let mut fit = Fit::new(out, columns);
                command.perform(image, terminal, &mut fit, err).and_then(|()| Ok(fit.flush()?))
            }
            // A pickle has no line end after which its last bytes would be written.
            None => command.perform(image, terminal, out, err).and_then(|()| Ok(out.flush()?)),
        },
        Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            let text = error.render();
            match terminal {
                Some(Terminal { has_colours: true, .. }) => write!(out, "{}", text.ansi()),
                _ => write!(out, "{text}"),
            }
            .map_err(Failure::Print)
        }
        Err(error) => {
            let _ = write!(err, "{}", usage(&error, &arguments));
            return 2;
        }
    };
    match outcome {
        Ok(()) => 0,
        Err(Failure::Print(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => 0,
        Err(failure) => {
            // If `err` is closed too, the exit code reports the failure.
            let _ = writeln!(err, "ringmem: {}", plain(&failure.to_string().replace('\n', " ")));
            if matches!(failure, Failure::Usage(_)) { 2 } else { 1 }
        }
    }
}

/// Removes the command's unfinished file and restores the terminal before a signal ends the process. Prevents new files.
pub fn interrupted() {
    commands::top::restore();
    output::remove_partial();
}

fn chain(error: &dyn std::error::Error) -> String {
    std::iter::successors(Some(error), |error| error.source()).map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// Escapes unprintable characters.
fn plain(text: &str) -> String {
    escape::terminal(text).to_string()
}

/// Returns the JSON of a line of output, with unprintable characters escaped.
fn json_line(object: &serde_json::Value) -> String {
    escape::json_document(&object.to_string()).to_string()
}

/// Opens a file that a command reads twice or at any place.
fn opened(path: &Path) -> Result<FileSource, Failure> {
    FileSource::open(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::InvalidInput => Failure::Fact(format!("{error}; write its contents to a regular file first")),
        _ => Failure::fact(error),
    })
}

fn shown(path: &Path) -> String {
    plain(&path.display().to_string())
}

fn counted(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Attributes an impossible size to its option.
fn absurd(option: &str, error: ringmem::Error) -> Failure {
    match error {
        ringmem::Error::Size { .. } => Failure::Usage(format!("{option}: {error}")),
        ringmem::Error::Map { .. } => Failure::Fact(format!("{option}: {}", chain(&error))),
        error => Failure::Call(error),
    }
}

fn failed(path: &Path, cause: Cause) -> Failure {
    match cause {
        Cause::Device(error) => Failure::Call(error),
        Cause::Read { source, .. } => Failure::Fact(format!("{}: {source}", path.display())),
        Cause::Truncated { .. } | Cause::Changed { .. } | Cause::Endless { .. } => Failure::Fact(format!("{}: {cause}", path.display())),
        Cause::Write { ref source, .. } => Failure::Fact(format!("{}: {cause}: {source}", path.display())),
        _ => Failure::Fact(chain(&cause)),
    }
}

/// Escapes unprintable characters of the arguments in clap's message.
fn usage(error: &clap::Error, arguments: &[OsString]) -> String {
    let text = error.render();
    let is_plain = arguments.iter().all(|argument| argument.to_string_lossy().chars().all(escape::is_printable));
    if is_plain && std::io::stderr().is_terminal() && terminal::has_colours() {
        return text.ansi().to_string();
    }
    text.to_string().lines().map(|line| plain(line) + "\n").collect()
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the percentile `numerator / denominator`; `None` without values.
fn percentile(sorted: &[u64], numerator: usize, denominator: usize) -> Option<u64> {
    let rank = (sorted.len() * numerator).div_ceil(denominator);
    sorted.get(rank.saturating_sub(1)).copied()
}

fn percentiles(sorted: &[u64]) -> serde_json::Value {
    match (percentile(sorted, 50, 100), percentile(sorted, 99, 100)) {
        (Some(p50), Some(p99)) => serde_json::json!({ "p50": p50, "p99": p99 }),
        _ => serde_json::Value::Null,
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::{Arguments, percentile};

    #[test]
    fn every_command_has_examples_that_parse() {
        for command in Arguments::command().get_subcommands() {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let lines: Vec<&str> = help.lines().skip_while(|line| *line != "Examples:").skip(1).collect();
            assert!(!lines.is_empty(), "{} has no examples", command.get_name());
            for line in lines {
                assert!(line.len() <= 60, "{line}");
                let words: Vec<&str> = line.split_whitespace().skip_while(|word| *word != "ringmem").collect();
                assert_eq!(words.get(1), Some(&command.get_name()), "{line}");
                let end = words.iter().position(|word| [">", "|", "<"].contains(word)).unwrap_or(words.len());
                if let Err(error) = Arguments::try_parse_from(&words[..end]) {
                    panic!("{line}: {error}");
                }
            }
        }
    }

    #[test]
    fn a_percentile_is_the_nearest_rank_value() {
        let values: Vec<u64> = (1..=200).collect();
        assert_eq!((percentile(&values, 50, 100), percentile(&values, 99, 100)), (Some(100), Some(198)));
        assert_eq!((percentile(&[7], 50, 100), percentile(&[7], 99, 100)), (Some(7), Some(7)));
        assert_eq!(percentile(&[], 50, 100), None);
    }
}
