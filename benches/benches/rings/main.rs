//! `cargo bench -p ringmem-benches --bench rings -- [--json] [--quick] [NAME]...`: our rings (`ringmem`) against other crates' fastest calls.
//! Capacity 1024; receivers check every message. `oneshot-*` uses one thread; `-moved` boxed ends.

mod batch;
mod counters;
mod framed;
mod iceoryx;
mod kind;
mod limits;
mod many;
mod many_kinds;
mod ours;
mod plain;
mod rtt;
mod spsc;
mod spsc_kinds;

use ringmem_benches::{Wanted, run};

const CAPACITY: usize = 1024;

fn main() {
    let groups =
        [spsc::workloads(), vec![batch::workload()], rtt::workloads(), many::workloads(), vec![framed::workload(), counters::workload()]];
    run("rings", &Wanted::from_args(), &groups.into_iter().flatten().collect::<Vec<_>>());
}
