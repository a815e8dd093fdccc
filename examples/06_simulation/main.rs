//! A simulation that grows from a thousand nodes to a million: thirteen buffers grow together, over a pool with a memory limit.
//! A reference on the host checks the results.
//!
//! `cargo run --release --features std --example 06_simulation`; `-- --nodes N` sets the final size, `-- --snapshot FILE` writes a memory snapshot
//! for `ringmem view`.

mod fields;
mod simulation;
mod step;

use std::error::Error;
use std::ffi::OsString;

use ringmem::backend::host::HostBackend;
use simulation::{Memory, Simulation};
use step::{BUFFERS, NODE_BYTES};

const LEAST: usize = 1000;
const MIB: f64 = (1 << 20) as f64;

fn arguments() -> Result<(usize, Option<OsString>), Box<dyn Error>> {
    let (mut nodes, mut snapshot) = (1_000_000, None);
    let mut arguments = std::env::args_os().skip(1);
    while let Some(option) = arguments.next() {
        match (option.to_str(), arguments.next()) {
            (Some("--nodes"), Some(value)) => nodes = value.to_str().ok_or("--nodes: not a number")?.parse::<u32>()? as usize,
            (Some("--snapshot"), Some(file)) => snapshot = Some(file),
            _ => return Err("usage: 06_simulation [--nodes N] [--snapshot FILE]".into()),
        }
    }
    Ok((nodes, snapshot))
}

fn main() -> Result<(), Box<dyn Error>> {
    let (most, snapshot) = arguments()?;
    if most < 2 * LEAST {
        return Err(format!("at least {} nodes: it begins with half of them", 2 * LEAST).into());
    }
    // While a group grows, its old and new blocks coexist: doubling needs 3 times the current bytes, which
    // fits; tripling needs 4 times, which does not.
    let limit = most as u64 * NODE_BYTES * 18 / 5;
    let backend = HostBackend::builder().device_memory(4 * limit).build()?;
    let mut simulation = Simulation::new(&backend, limit)?;
    let mut rows = Vec::new();

    let mut next = LEAST;
    while simulation.nodes() < most {
        simulation.grow(next)?;
        simulation.advance()?;
        simulation.check()?;
        rows.push((next, "", simulation.memory()));
        next = (next * 2).min(most);
    }
    println!("grown to {most} nodes: after each of {} growths {BUFFERS} checksums as those of a plain run", rows.len());

    let mut more = 2 * most;
    loop {
        let (asked, shape) = (most + more, simulation.shape());
        match simulation.grow(asked) {
            Ok(()) => break,
            Err(error @ ringmem::Error::OutOfMemory { .. }) => {
                println!("refused: {asked} nodes: {error}");
                assert_eq!(simulation.shape(), shape);
                simulation.check()?;
                rows.push((most, ", refused", simulation.memory()));
                more /= 2;
            }
            Err(error) => return Err(error.into()),
        }
    }
    simulation.advance()?;
    simulation.check()?;
    rows.push((simulation.nodes(), "", simulation.memory()));
    simulation.trim();
    rows.push((simulation.nodes(), ", trimmed", simulation.memory()));
    println!("gone on with {} nodes: as the plain run", simulation.nodes());

    chart(&rows, limit);
    if let Some(file) = snapshot {
        simulation.snapshot().write(file)?;
    }
    let freed = simulation.close();
    let counters = backend.counters();
    let live = counters.device_live.bytes + counters.pinned_live.bytes;
    println!("freed: {freed} buffers, {live} bytes live at the end");
    assert_eq!(live, 0);
    Ok(())
}

fn chart(rows: &[(usize, &str, Memory)], limit: u64) {
    const COLUMNS: u64 = 60;
    println!("  nodes  memory over time, of {:.1} MiB: # the buffers, . what the pool keeps", limit as f64 / MIB);
    for (nodes, note, Memory { live, kept }) in rows {
        let [buffers, both] = [*live, live + kept].map(|bytes| (bytes * COLUMNS).div_ceil(limit) as usize);
        let bar = "#".repeat(buffers) + &".".repeat(both - buffers);
        println!("{nodes:>7} |{bar:<60}| {:.1} + {:.1} MiB{note}", *live as f64 / MIB, *kept as f64 / MIB);
    }
}
