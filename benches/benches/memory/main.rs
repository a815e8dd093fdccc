//! `cargo bench -p ringmem-benches --bench memory -- [--json] [--quick] [NAME]...`: overhead of buffers and memories over the host backend.
//!
//! `tracked-frames` adds 2 us per operation without waiting. `pool-cold-*` is a 97 % full heap;
//! `pool-cold-refused` counts refusals per thousand requests.

mod blocks;
mod copies;
mod host;
mod pool;
mod reuse;
mod tracking;

use ringmem_benches::{Wanted, run, run_once};

fn main() {
    let groups = [blocks::workloads(), copies::workloads(), reuse::workloads(), tracking::workloads(), pool::workloads()];
    let wanted = Wanted::from_args();
    run("memory", &wanted, &groups.into_iter().flatten().collect::<Vec<_>>());
    run_once("memory", &wanted, 200_000, &pool::counted());
}
