//! `ringmem view`.
//!
//! 1. The page is one offline file; the snapshot's text is never markup or code.
//! 2. A snapshot is checked before writing; the error names the place.

mod document;
mod head;
mod html;
mod perfetto;
mod pickle;
mod pytorch;

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use ringmem::streaming::{FileSource, Source};

use crate::{Failure, Outcome, counted, failed, opened, output, shown, size};
use document::Document;

pub(super) const EXAMPLES: &str = "\
Examples:
  ringmem view memory.json --output memory.html
  ringmem view memory.json --format pytorch > memory.pickle";

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// A snapshot written by `ringmem::snapshot` or by `ringmem replay --snapshot`
    snapshot: PathBuf,
    /// Write to this file instead of standard output
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
    /// A page with slabs, timeline, fragmentation, holders, leaks and search
    Html,
    /// A pickle for PyTorch's memory_viz
    Pytorch,
    /// Trace events in JSON, for Perfetto and Chrome
    Perfetto,
}

/// The largest snapshot in bytes, in events and in parts of one kind. Each event takes some hundred bytes here and in a browser.
const LONGEST: u64 = 1 << 30;
const EVENTS: usize = 1 << 22;
const PARTS: usize = 1000;

pub(super) fn run(arguments: &Arguments, out: &mut dyn Write) -> Outcome {
    let mut source = opened(&arguments.snapshot)?;
    if let Some(path) = &arguments.output
        && source.is_at(path).map_err(Failure::fact)?
    {
        return Err(Failure::Usage(format!("--output {} is {} itself", path.display(), arguments.snapshot.display())));
    }
    let document = read(&mut source)?;
    let bytes = match arguments.format {
        Format::Html => html::page(&document, &shown(Path::new(arguments.snapshot.file_name().unwrap_or_default()))),
        Format::Pytorch => Ok(pytorch::pickle(&document)),
        Format::Perfetto => Ok(perfetto::events(&document)),
    }
    .map_err(Failure::fact)?;
    let Some(path) = &arguments.output else { return out.write_all(&bytes).map_err(Failure::Print) };
    output::replace(path, &bytes)?;
    let slabs = document.pools.iter().map(|pool| pool.slabs.len() as u64).sum();
    let events = document.traces.iter().map(|trace| trace.events.len() as u64).sum();
    let (pools, slabs, events) = (counted(document.pools.len() as u64, "pool"), counted(slabs, "slab"), counted(events, "event"));
    writeln!(out, "{}: {pools}, {slabs}, {events}; {}", shown(path), size::show(bytes.len() as u64)).map_err(Failure::Print)
}

fn of_file(path: &Path, fact: &dyn std::fmt::Display) -> Failure {
    Failure::Fact(format!("{}: {fact}", path.display()))
}

fn read(source: &mut FileSource) -> Result<Document, Failure> {
    let path = source.path().to_owned();
    if source.len() > LONGEST {
        return Err(of_file(&path, &format_args!("a snapshot of more than {}", size::show(LONGEST))));
    }
    let mut bytes = vec![0; source.len() as usize];
    source.read_exact(&mut bytes, 0).and_then(|()| source.check()).map_err(|cause| failed(&path, cause))?;
    Document::parse(&bytes, EVENTS, PARTS).map_err(|fact| of_file(&path, &fact))
}
