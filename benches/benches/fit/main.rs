//! `cargo bench -p ringmem-benches --bench fit -- [--json] [--quick] [NAME]...`: what allocators reserve for the allocations of programs.
//!
//! The programs are generated; `RINGMEM_TRACES` names a folder, as an absolute path, of traces recorded by a `Logged` memory, `*.trace`, which are replayed
//! too. Each row is one of:
//!
//! - `reserved/live`: the most reserved bytes over the most live bytes, as requested;
//! - `calls`: pieces of memory allocated, mapped, moved and freed, each of which is one or some calls of a driver;
//! - `ns/call`: of an allocation or free, from an empty allocator to the trace's end. Models of other allocators have none.

mod subjects;
mod traces;

use std::path::PathBuf;
use std::time::Instant;

use ringmem_benches::{Wanted, pin, print_row};

use subjects::{Modelled, Offset, Ours, Rmm, Subject};
use traces::{Operation, Operations};

struct Replayed {
    reserved: f64,
    calls: f64,
    nanos: f64,
}

fn replay<S: Subject>(operations: &Operations, mut subject: S) -> Replayed {
    let mut held: Vec<Option<S::Block>> = (0..operations.blocks()).map(|_| None).collect();
    let begun = Instant::now();
    for operation in &operations.all {
        match *operation {
            Operation::Take { block, bytes } => held[block] = Some(subject.take(bytes)),
            Operation::Give { block } => subject.give(held[block].take().expect("live")),
        }
    }
    let nanos = begun.elapsed().as_nanos() as f64 / operations.all.len() as f64;
    Replayed { reserved: subject.peak() as f64 / operations.peak as f64, calls: subject.calls() as f64, nanos }
}

/// Name, source of the figures, one replay.
type Row = (&'static str, &'static str, fn(&Operations) -> Replayed);

const HOST: &str = "host";
const MODEL: &str = "model";

const SUBJECTS: [Row; 7] = [
    ("ringmem Pool", HOST, |operations| replay(operations, Ours::default())),
    ("ringmem Pool, slabs", HOST, |operations| replay(operations, Ours::slabs())),
    ("ringmem Pool, exact", HOST, |operations| replay(operations, Ours::exact())),
    ("offset-allocator", HOST, |operations| replay(operations, Offset::new())),
    ("RMM's pool", MODEL, |operations| replay(operations, Rmm::new())),
    ("PyTorch", MODEL, |operations| replay(operations, Modelled::pytorch())),
    ("PyTorch, expandable", MODEL, |operations| replay(operations, Modelled::expandable())),
];

fn recorded() -> Result<Vec<Operations>, String> {
    let Some(folder) = std::env::var_os("RINGMEM_TRACES").map(PathBuf::from) else { return Ok(Vec::new()) };
    let fact = |error: std::io::Error| format!("RINGMEM_TRACES: {}: {error}", folder.display());
    let mut paths = Vec::new();
    for entry in folder.read_dir().map_err(fact)? {
        let path = entry.map_err(fact)?.path();
        if path.extension().is_some_and(|extension| extension == "trace") {
            paths.push(path);
        }
    }
    paths.sort();
    paths.iter().map(|path| traces::recorded(path)).collect()
}

fn main() -> Result<(), String> {
    let wanted = Wanted::from_args();
    pin(0);
    let turns = if wanted.quick { 3 } else { 11 };
    for operations in recorded()?.into_iter().chain(traces::generated()).filter(|operations| wanted.wants(&operations.name)) {
        let mut samples: Vec<Vec<Replayed>> = SUBJECTS.iter().map(|_| Vec::new()).collect();
        for _ in 0..turns {
            for ((_, source, subject), samples) in SUBJECTS.iter().zip(&mut samples) {
                if *source == HOST || samples.is_empty() {
                    samples.push(subject(&operations));
                }
            }
        }
        for ((name, source, _), samples) in SUBJECTS.iter().zip(samples) {
            let row = |unit, of: fn(&Replayed) -> f64| {
                print_row("fit", wanted.json, &operations.name, name, unit, source, samples.iter().map(of).collect());
            };
            row("reserved/live", |replayed| replayed.reserved);
            row("calls", |replayed| replayed.calls);
            if *source == HOST {
                row("ns/call", |replayed| replayed.nanos);
            }
        }
    }
    Ok(())
}
