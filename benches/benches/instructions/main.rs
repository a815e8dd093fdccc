//! `cargo bench -p ringmem-benches --bench instructions -- [--json] [NAME]...`: instruction counts of operations too short for a clock.
//!
//! One thread, capacity 1024. Ends, values and results are opaque to the compiler; the limit is a loop without a ring. A twin is a copy of
//! the SPSC ring with one part omitted: the cost of that part is `ringmem` less the twin. `twin: of ringmem` omits nothing and must have
//! the count of `ringmem`; otherwise the twins are invalid.
//!
//! | workload | subject |
//! |---|---|
//! | `push-pop-N` | pushes a message of N bytes and pops it; the ends stay in registers |
//! | `burst-N` | pushes 64 and pops 64 |
//! | `called-8` | as `push-pop-8`, but the ends stay in memory and each operation is a function call |
//! | `waiting-8` | the bare ring, and its ends in `ringmem::wait` |
//! | `mpmc-push-pop-8` | MPMC and MPSC rings; `claim 32` claims 32 slots with one compare-exchange |
//! | `pool-SIZE` | a block of a pool allocated and freed, with a word written to it and read |
//! | `buffer-alloc-drop`, `copy-from-64`, `copy-to-64`, `fill-64` | those of the bench `memory`, on the host backend |
//! | `cuda-copy`, `cuda-fill`, `cuda-launch`, `cuda-record` | from the bench `movement`, on the driver double: the calling thread only |
//!
//! Instruction counts are not times: a compare-exchange counts as one instruction.

// From the `memory` bench.
#[allow(dead_code)]
#[path = "../memory/blocks.rs"]
mod blocks;
#[allow(dead_code)]
#[path = "../memory/copies.rs"]
mod copies;
// From the `movement` bench.
#[path = "../movement/driver.rs"]
mod driver;
#[path = "../memory/host.rs"]
mod host;

// The kinds of the `rings` bench, some of which are unused here.
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
