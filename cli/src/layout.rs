use std::io::Write;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use ringmem::backend::host::HostBackend;
use ringmem::stream::Module;
use ringmem::streaming::{FileSource, Source};
use ringmem::{Abi, Image, describe};

use super::place::Wanted;
use super::{Failure, Outcome, failed, shown};

pub(super) const EXAMPLES: &str = "\
Examples:
  ringmem layout ControlBlock
  ringmem layout --format c > ringmem.h
  ringmem layout --check ringmem.h";

#[derive(clap::Args)]
pub(super) struct Arguments {
    /// Print only this struct
    name: Option<String>,
    /// Output format
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
    /// Also load the kernels on this backend; fails if they were compiled with different structs
    #[arg(long, value_enum)]
    backend: Option<Wanted>,
    /// The same as --format json
    #[arg(long, conflicts_with = "format")]
    json: bool,
    /// Compare this C header with the output of --format c; fail with the first line that differs
    #[arg(long, value_name = "FILE", conflicts_with_all = ["format", "json"])]
    check: Option<PathBuf>,
}

impl Arguments {
    pub(super) fn prints_text(&self) -> bool {
        self.check.is_some() || !self.json && matches!(self.format, Format::Table)
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    /// Text for a terminal
    Table,
    /// One JSON object
    Json,
    /// Markdown sections
    Markdown,
    /// An SVG picture of the bytes
    Svg,
    /// A header file for C11 and C++11
    C,
    /// Structs for WGSL shaders
    Wgsl,
}

pub(super) fn run(arguments: &Arguments, image: &Image, out: &mut dyn Write, err: &mut dyn Write) -> Outcome {
    if let Some(wanted) = arguments.backend {
        Module::load(&wanted.open(HostBackend::builder(), err)?.backend, image, &image.abi)?;
    }
    let abi = match &arguments.name {
        None => image.abi,
        Some(name) => {
            let layout = image.abi.layouts.iter().find(|layout| layout.name == name).ok_or_else(|| unknown(name, &image.abi))?;
            Abi { layouts: std::slice::from_ref(layout), hash: image.abi.hash }
        }
    };
    if let Some(path) = &arguments.check {
        check(path, &describe::c(&abi).to_string())?;
        return Ok(writeln!(out, "{} matches the layouts of this program", shown(path))?);
    }
    match if arguments.json { Format::Json } else { arguments.format } {
        Format::Table => write!(out, "{}", describe::table(&abi)),
        Format::Json => write!(out, "{}", describe::json(&abi)),
        Format::Markdown => write!(out, "{}", describe::markdown(&abi)),
        Format::Svg => write!(out, "{}", describe::svg(&abi)),
        Format::C => write!(out, "{}", describe::c(&abi)),
        Format::Wgsl => write!(out, "{}", describe::wgsl(&abi)),
    }
    .map_err(Failure::Print)
}

fn check(path: &Path, header: &str) -> Outcome {
    let mut source = FileSource::open(path).map_err(Failure::fact)?;
    let mut bytes = vec![0; source.len().min(2 * header.len() as u64 + LINE) as usize];
    source.read_exact(&mut bytes, 0).and_then(|()| source.check()).map_err(|cause| failed(path, cause))?;
    let text = String::from_utf8_lossy(&bytes);
    let (mut found, mut expected) = (text.lines(), header.lines());
    for number in 1_u64.. {
        let fact = match (found.next(), expected.next()) {
            (None, None) => break,
            (found, expected) if found == expected => continue,
            (Some(found), Some(expected)) => format!("found `{}`, expected `{expected}`", short(found)),
            (Some(found), None) => format!("found `{}`, expected the end of the file", short(found)),
            (None, expected) => format!("found the end of the file, expected `{}`", expected.unwrap_or_default()),
        };
        return Err(Failure::Fact(format!("{}:{number}: {fact}", path.display())));
    }
    Ok(())
}

const LINE: u64 = 200;

fn short(line: &str) -> String {
    line.chars().take(LINE as usize).collect()
}

fn unknown(name: &str, abi: &Abi) -> Failure {
    let names: Vec<&str> = abi.layouts.iter().map(|layout| layout.name).collect();
    Failure::Usage(format!("no struct named {name}: this program has {}; for structs of your own, use ringmem::describe", names.join(", ")))
}
