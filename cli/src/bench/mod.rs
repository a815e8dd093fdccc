//! `ringmem bench`: measures this machine, each workload against baselines in the same run.

mod copies;
mod files;
mod kernels;
mod pools;
mod table;

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use ringmem::Image;
use ringmem::backend::Backend;
use ringmem::backend::host::HostBackend;
use ringmem::stream::Module;
use table::{Subject, Table, Workload};

use super::place::{Calls, Selection};
use super::progress::Bar;
use super::{Failure, Outcome, absurd, number, size};

pub(super) const EXAMPLES: &str = "\
Examples:
  ringmem bench h2d d2h
  ringmem bench --seconds 1 --json > figures.json";

#[derive(clap::Args)]
pub(super) struct Arguments {
    /// Run only these workloads
    #[arg(value_parser = NAMES)]
    workloads: Vec<String>,
    #[command(flatten)]
    place: Selection,
    /// Size of a large copy
    #[arg(long, default_value = "256MiB", allow_hyphen_values = true, value_parser = size::parse)]
    bytes: u64,
    /// Approximate time per workload, in seconds
    #[arg(long, default_value_t = 4, allow_negative_numbers = true, value_parser = number::whole::<u64>(0..=600))]
    seconds: u64,
    /// Print one JSON object per row
    #[arg(long)]
    pub json: bool,
}

const NAMES: [&str; 21] = [
    "round-trip",
    "round-trip-p99",
    "flagged-trip",
    "messages",
    "accounts",
    "h2d",
    "d2h",
    "d2d",
    "stream",
    "stream-back",
    "flush",
    "flush-16M",
    "flush-large",
    "flush-back",
    "flush-back-large",
    "overlap",
    "pool-64K",
    "pool-1M",
    "pool-100M",
    "pool-1G",
    "messages-8",
];
const BYTES: std::ops::RangeInclusive<u64> = 4096..=8 << 30;

struct Rig {
    backend: Arc<dyn Backend>,
    device: u32,
    module: Module,
    bytes: usize,
    driver: Option<Box<dyn Calls>>,
}

pub(super) fn run(arguments: &Arguments, image: &Image, columns: Option<usize>, out: &mut dyn Write, err: &mut dyn Write) -> Outcome {
    if !BYTES.contains(&arguments.bytes) {
        let [least, most] = [BYTES.start(), BYTES.end()].map(|&bytes| size::show(bytes));
        return Err(Failure::Usage(format!("--bytes {} is not from {least} to {most}", size::show(arguments.bytes))));
    }
    let place = arguments
        .place
        .open(HostBackend::builder().device_memory(3 * arguments.bytes + (3 << 30)), err)
        .map_err(|error| absurd("--bytes", error))?;
    let source = match place.gpus.first() {
        None => "host".to_owned(),
        Some(name) if name.starts_with("ringmem driver double") => "double".to_owned(),
        Some(name) => format!("gpu:{name}"),
    };
    let module = Module::load(&place.backend, image, &ringmem_kernels::ABI)?;
    if let Some(driver) = &place.driver {
        driver.bind()?;
    }
    let rig = Rig { device: 0, module, bytes: arguments.bytes as usize, backend: place.backend, driver: place.driver };
    let is_wanted = |name: &&str| arguments.workloads.is_empty() || arguments.workloads.iter().any(|wanted| wanted == name);
    let names: Vec<&str> = NAMES.into_iter().filter(is_wanted).collect();
    let bar = Bar::new(!arguments.json, Some(100 * names.len() as u64), "{wide_bar} {percent} % {msg}");
    let mut table = Table { out, json: arguments.json, source: &source, columns, bar, done: 0 };
    table.head(rig.backend.name(), &place.why)?;
    let time = Duration::from_secs(arguments.seconds);
    if rig.driver.is_some() && !time.is_zero() {
        kernels::raise_clocks(&rig)?;
    }
    let mut failed = Vec::new();
    for (done, name) in (0..).zip(names) {
        table.done = done;
        let run = |workload: Workload<'_>| table.run(workload, time);
        let measured = match name {
            "h2d" | "d2h" | "d2d" => copies::large(&rig, name, run),
            "stream" | "stream-back" => files::stream(&rig, name, run),
            "flush" | "flush-16M" | "flush-large" | "flush-back" | "flush-back-large" => copies::flush(&rig, name, run),
            "overlap" => copies::overlap(&rig, run),
            "round-trip" | "round-trip-p99" | "flagged-trip" => kernels::round_trip(&rig, name, run),
            "accounts" => kernels::accounts(&rig, run),
            "messages" => kernels::messages(&rig, run),
            "messages-8" => kernels::many(&rig, run),
            pool => pools::warm(&rig, pool, run),
        };
        match measured {
            Ok(()) => {}
            Err(Failure::Print(error)) => return Err(Failure::Print(error)),
            Err(failure) => failed.push(format!("{name}: {failure}")),
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(Failure::Fact(failed.join("; "))) }
}
