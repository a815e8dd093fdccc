//! `cargo bench -p ringmem-benches --bench rings -- [--json] [--quick] [NAME]...`: our rings against other crates.
//!
//! Capacity 1024, `try` operations with one spin on failure, every message checked by its receiver. Our rows begin with `ringmem`. A
//! competitor takes part if its interface can do the work, and is called by the fastest way that it offers.
//!
//! | workload | subject |
//! |---|---|
//! | `spsc-N` | one thread pushes messages of N bytes, another pops them, each published; `peek` and `poll` read all available messages in place |
//! | `spsc-N-batch` | the same, but ours publishes and releases every 16 or 64; the ratio is to single operations, so a `poll` is shown without one |
//! | `batch32-64` | 32 messages of 64 bytes at a time, written and read in place or copied |
//! | `oneshot-N` | one thread makes a ring, pushes and pops |
//! | `oneshot-N-moved` | the same with ends that were moved to it in a box |
//! | `rtt-p50`, `rtt-p99` | round trips through two rings |
//! | `mpsc-2-1`, `mpmc-2-2` | numbers of producers and consumers, on two cores |
//! | `mpmc-pairs` | two threads, each pushes and pops on the same queue |
//! | `enqueue-2` | two threads only push |
//! | `framed` | messages of 8 to 256 bytes |
//! | `counters` | two threads count in adjacent words, with and without a cache line each |

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
