//! `cargo bench -p ringmem-benches --bench instructions -- [--json] [NAME]...`: instruction counts of short operations. A compare-exchange counts as
//! one.
//!
//! A twin is a copy of the SPSC ring without one part, which costs `ringmem` less the twin.

#[allow(dead_code)]
#[path = "../memory/blocks.rs"]
mod blocks;
#[allow(dead_code)]
#[path = "../memory/copies.rs"]
mod copies;
#[path = "../movement/driver.rs"]
mod driver;
#[path = "../memory/host.rs"]
mod host;

#[allow(dead_code)]
#[path = "../rings/iceoryx.rs"]
mod iceoryx;
#[allow(dead_code)]
#[path = "../rings/kind.rs"]
mod kind;
#[allow(dead_code)]
#[path = "../memory/pool/kinds.rs"]
mod kinds;
#[allow(dead_code)]
#[path = "../rings/many_kinds.rs"]
mod many_kinds;
#[allow(dead_code)]
#[path = "../rings/ours.rs"]
mod ours;
#[allow(dead_code)]
#[path = "../rings/plain.rs"]
mod plain;
#[allow(dead_code)]
#[path = "../rings/spsc_kinds.rs"]
mod spsc_kinds;

mod many;
mod memory;
mod one;
mod pool;
mod twin;
mod work;

use ringmem_benches::{Wanted, Workload, count, job, team};

const CAPACITY: usize = 1024;

fn each(times: u64, work: impl FnOnce() + Send) -> f64 {
    team(times, vec![(Some(0), job(work))])
}

fn main() {
    let wanted = Wanted::from_args();
    let verb = |verb: Workload| verb.within.map(|_| Workload { unit: "instructions/call", aim_added_ns: None, ..verb });
    let verbs = driver::workloads(&wanted).into_iter().filter_map(verb).collect();
    let groups = [one::workloads(), vec![many::workload()], pool::workloads(), memory::workloads(), verbs];
    count("instructions", &wanted, &groups.into_iter().flatten().collect::<Vec<_>>());
}
