//! A simulation that grows from a thousand nodes to a million: thirteen buffers grown together, over a pool
//! with a memory limit, and compared with a reference on the host.
//!
//! `cargo run --release --features std --example 06_simulation`, and `-- --nodes N` for another final size.

mod fields;
mod simulation;
mod step;

use std::error::Error;

use ringmem::backend::host::HostBackend;
use simulation::{Memory, Simulation};
use step::{BUFFERS, NODE_BYTES};

const LEAST: usize = 1000;
const MIB: f64 = (1 << 20) as f64;

fn nodes() -> Result<usize, Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => Ok(1_000_000),
        ["--nodes", nodes] => Ok(nodes.parse::<u32>()? as usize),
        _ => Err("usage: 06_simulation [--nodes N]".into()),
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let most = nodes()?;
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
        let (asked, shape, trimmed) = (most + more, simulation.shape(), simulation.trimmed());
        match simulation.grow(asked) {
            Ok(()) => break,
            Err(error @ ringmem::Error::OutOfMemory { .. }) => {
                println!("refused: {asked} nodes, after {} slabs had gone back to the device: {error}", simulation.trimmed() - trimmed);
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
    println!("gone on with {} nodes: as the plain run", simulation.nodes());

    chart(&rows, limit);
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
