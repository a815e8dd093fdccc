//! `ringmem view`.
//!
//! 1. The page is one offline file; the recording's text is never markup or code.
//! 2. A file is checked before writing; the error names the place.

mod document;
mod head;
mod html;
mod perfetto;
mod pickle;
mod pytorch;

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::ValueEnum;

use super::recorded::{contents, left_out, of_file};
use crate::{Failure, Outcome, counted, opened, output, plain, shown, size};
use document::Document;

pub(super) const EXAMPLES: &str = "\
Examples:
  ringmem view snapshot.pickle --output memory.html
  ringmem view rmm_log.csv --format pytorch > memory.pickle
  ringmem view memory.json --format perfetto > events.json";

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Recorded allocations: a snapshot of PyTorch, a log of RMM, or a snapshot, trace or table of ringmem
    file: PathBuf,
    /// Write to this file; without it, to standard output, which must be no terminal
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Output format
    #[arg(long, value_enum, default_value_t = Format::Html)]
    format: Format,
}

impl Arguments {
    /// Standard output gets a line about the file, not the file.
    pub(super) fn prints_text(&self) -> bool {
        self.output.is_some()
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    /// A page with timeline, segments, fragmentation, holders, stacks and search
    Html,
    /// A pickle for PyTorch's memory_viz
    Pytorch,
    /// Trace events in JSON, for Perfetto and Chrome
    Perfetto,
}

impl Format {
    const fn example(self) -> &'static str {
        match self {
            Self::Html => "memory.html",
            Self::Pytorch => "memory.pickle",
            Self::Perfetto => "events.json",
        }
    }
}

/// Most events, and parts of one kind. Each event takes some hundred bytes here and in a browser.
const EVENTS: usize = 1 << 22;
const PARTS: usize = 1000;

pub(super) fn run(arguments: &Arguments, is_terminal: bool, out: &mut dyn Write) -> Outcome {
    if is_terminal && arguments.output.is_none() {
        let file = arguments.format.example();
        return Err(Failure::Usage(format!("the output is a file, not text for a terminal: use --output {file}, or redirect")));
    }
    let mut source = opened(&arguments.file)?;
    if let Some(path) = &arguments.output
        && source.is_at(path).map_err(Failure::fact)?
    {
        return Err(Failure::Usage(format!("--output {} is {} itself", path.display(), arguments.file.display())));
    }
    let name = shown(Path::new(arguments.file.file_name().unwrap_or_default())).to_string();
    let document = Document::parse(contents(&mut source)?, &name, EVENTS, PARTS).map_err(|fact| of_file(&arguments.file, &fact))?;
    let bytes = match arguments.format {
        Format::Html => html::page(&document, &name),
        Format::Pytorch => Ok(pytorch::pickle(&document)),
        Format::Perfetto => Ok(perfetto::events(&document)),
    }
    .map_err(Failure::fact)?;
    let Some(path) = &arguments.output else { return out.write_all(&bytes).map_err(Failure::Print) };
    output::replace(path, &bytes)?;
    let Document { pools, traces, .. } = &document;
    let slabs = pools.iter().map(|pool| pool.slabs.len() as u64).sum();
    let segments = traces.iter().map(|trace| trace.segments.len() as u64).sum();
    let events = traces.iter().map(|trace| trace.events.len() as u64).sum();
    let parts = [(pools.len() as u64, "pool"), (slabs, "slab"), (segments, "segment"), (events, "event")];
    // Events, or the lack of them, and the other parts that there are.
    let parts: Vec<String> =
        parts.into_iter().filter(|&(count, what)| count > 0 || what == "event").map(|(count, what)| counted(count, what)).collect();
    let left_out = left_out(&document.left_out).map_or_else(String::new, |parts| format!("; left out: {}", plain(&parts)));
    writeln!(out, "{}: {}; {}{left_out}", shown(path), parts.join(", "), size::show(bytes.len() as u64)).map_err(Failure::Print)
}
