//! `ringmem layout`: prints the layout of every shared struct.

use std::io::Write;

use clap::ValueEnum;
use ringmem::backend::host::HostBackend;
use ringmem::stream::Module;
use ringmem::{Abi, Image, describe};

use super::place::Wanted;
use super::{Failure, Outcome};

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
    match if arguments.json { Format::Json } else { arguments.format } {
        Format::Table => write!(out, "{}", describe::table(&abi)),
        Format::Json => write!(out, "{}", describe::json(&abi)),
        Format::Markdown => write!(out, "{}", describe::markdown(&abi)),
        Format::Svg => write!(out, "{}", describe::svg(&abi)),
        Format::C => write!(out, "{}", describe::c(&abi)),
    }
    .map_err(Failure::Print)
}

fn unknown(name: &str, abi: &Abi) -> Failure {
    let names: Vec<&str> = abi.layouts.iter().map(|layout| layout.name).collect();
    Failure::Usage(format!("no struct is named {name}; there are {}", names.join(", ")))
}
