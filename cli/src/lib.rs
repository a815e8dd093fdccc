//! The `ringmem` program as a function, so that a test can pass an image of its own.
//!
//! 1. Results go to `out`. A failure is one line on `err` that begins with `ringmem:`. A warning about the environment is such a line too.
//! 2. Exit codes: 0 success, 1 failure, 2 invalid arguments.
//! 3. No thread or kernel of a command is running when [`run`] returns.

mod bench;
mod chart;
mod demo;
mod doctor;
#[cfg(feature = "cuda")]
mod gpu;
#[cfg(not(feature = "cuda"))]
#[path = "no_gpu.rs"]
mod gpu;
mod layout;
mod new;
mod place;
mod replay;
mod size;
mod stream;

use std::ffi::OsString;
use std::fmt;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};
use ringmem::Image;
use ringmem::streaming::Cause;

#[derive(Parser)]
#[command(name = "ringmem", version, about = "Memory that a CPU and a GPU share while a kernel keeps running")]
struct Arguments {
    #[command(subcommand)]
    command: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Stream a file through device memory and a persistent kernel; print its histogram and checksum, or write what becomes of it
    Stream(stream::Arguments),
    /// Send messages to a persistent kernel and back
    Demo(demo::Arguments),
    /// Print the bytes of every shared struct
    Layout(layout::Arguments),
    /// Say what this machine has, who sees what on it, and what to do about what is short
    #[command(after_help = "RINGMEM_VISIBILITY=system, device or dma in the environment overrules who sees what, for every command")]
    Doctor(doctor::Arguments),
    /// Measure copies, pools and messages on this machine, each beside its peer
    Bench(bench::Arguments),
    /// Run a trace of allocations on a pool; print hits, peak, fragmentation, waste and time
    Replay(replay::Arguments),
    /// Create a package with a shared struct, a kernel, a host program and a test
    New(new::Arguments),
}

/// Why a command failed.
#[derive(Debug)]
enum Failure {
    /// The arguments make no sense.
    Usage(String),
    /// A fact in words.
    Fact(String),
    /// What a call said.
    Call(ringmem::Error),
    /// The answer could not be printed.
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
            Self::Call(error) => f.write_str(&chain(error)),
            Self::Print(error) => write!(f, "cannot print the answer: {error}"),
        }
    }
}

/// Runs the command in `arguments`, of which the first is the name of the program, with the kernels of `image`. Returns the exit code.
pub fn run(arguments: impl IntoIterator<Item = OsString>, image: &Image, out: &mut dyn Write, err: &mut dyn Write) -> u8 {
    let outcome = match Arguments::try_parse_from(arguments) {
        Ok(Arguments { command }) => match command {
            Verb::Stream(arguments) => stream::run(&arguments, image, out, err),
            Verb::Demo(arguments) => demo::run(&arguments, image, out, err),
            Verb::Layout(arguments) => layout::run(&arguments, image, out, err),
            Verb::Doctor(arguments) => doctor::run(&arguments, out),
            Verb::Bench(arguments) => bench::run(&arguments, image, out, err),
            Verb::Replay(arguments) => replay::run(&arguments, out),
            Verb::New(arguments) => new::run(&arguments, out),
        },
        Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            write!(out, "{}", error.render()).map_err(Failure::Print)
        }
        Err(error) => Err(Failure::Usage(first_line(&error))),
    };
    match outcome {
        Ok(()) => 0,
        // The reader has left: there is nobody to tell.
        Err(Failure::Print(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => 0,
        Err(failure) => {
            // Where even the error stream is gone, the exit code says it.
            let _ = writeln!(err, "ringmem: {}", plain(&failure.to_string().replace('\n', " ")));
            if matches!(failure, Failure::Usage(_)) { 2 } else { 1 }
        }
    }
}

/// Removes the unfinished file of the running command before a signal ends the process. No command can create another file after it.
pub fn interrupted() {
    stream::copy::remove_partial();
}

/// An error and what caused it.
fn chain(error: &dyn std::error::Error) -> String {
    std::iter::successors(Some(error), |error| error.source()).map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// What others have written, a file's name perhaps, without what a terminal would obey.
fn plain(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() { shown.extend(c.escape_default()) } else { shown.push(c) }
    }
    shown
}

/// A file's name, as it may be printed.
fn shown(path: &Path) -> String {
    plain(&path.display().to_string())
}

/// So many of something.
fn counted(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// A size that cannot be, or that the system does not have, is the fault of the option that gave it.
fn absurd(option: &str, error: ringmem::Error) -> Failure {
    match error {
        ringmem::Error::Size { .. } => Failure::Usage(format!("{option}: {error}")),
        ringmem::Error::Map { .. } => Failure::Fact(format!("{option}: {}", chain(&error))),
        error => Failure::Call(error),
    }
}

/// Names the file in an error of a stream from or to it.
fn failed(path: &Path, cause: Cause) -> Failure {
    match cause {
        Cause::Device(error) => Failure::Call(error),
        Cause::Read { source, .. } => Failure::Fact(format!("{}: {source}", path.display())),
        Cause::Truncated { .. } | Cause::Changed { .. } | Cause::Endless { .. } => Failure::Fact(format!("{}: {cause}", path.display())),
        Cause::Write { ref source, .. } => Failure::Fact(format!("{}: {cause}: {source}", path.display())),
        _ => Failure::Fact(chain(&cause)),
    }
}

/// clap's message without its advice.
fn first_line(error: &clap::Error) -> String {
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        let command = Arguments::command();
        let names: Vec<_> = command.get_subcommands().map(clap::Command::get_name).collect();
        return format!("missing command: one of {} (ringmem --help)", names.join(", "));
    }
    let text = error.render().to_string();
    let paragraph = text.split("\n\n").next().unwrap_or_default();
    let line = paragraph.split_whitespace().collect::<Vec<_>>().join(" ");
    line.strip_prefix("error: ").unwrap_or(&line).to_owned()
}

/// Nanoseconds that fit a number of JSON.
fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The `numerator`-th part in `denominator` of sorted values; `None` without values.
fn percentile(sorted: &[u64], numerator: usize, denominator: usize) -> Option<u64> {
    let rank = (sorted.len() * numerator).div_ceil(denominator);
    sorted.get(rank.saturating_sub(1)).copied()
}

/// Percentiles as JSON: an object, or null without values.
fn percentiles(sorted: &[u64]) -> serde_json::Value {
    match (percentile(sorted, 50, 100), percentile(sorted, 99, 100)) {
        (Some(p50), Some(p99)) => serde_json::json!({ "p50": p50, "p99": p99 }),
        _ => serde_json::Value::Null,
    }
}

#[cfg(test)]
mod tests {
    use super::percentile;

    #[test]
    fn a_percentile_is_the_least_value_that_so_many_do_not_exceed() {
        let values: Vec<u64> = (1..=200).collect();
        assert_eq!((percentile(&values, 50, 100), percentile(&values, 99, 100)), (Some(100), Some(198)));
        assert_eq!((percentile(&[7], 50, 100), percentile(&[7], 99, 100)), (Some(7), Some(7)));
        assert_eq!(percentile(&[], 50, 100), None);
    }
}
