//! `cargo bench -p ringmem-benches --bench manager -- [--json] [--quick] [NAME]...`: memory that people name, grow and pass around.
//!
//! All on the host backend: its device is simulated, and no figure is a GPU's.
//!
//! | workload | what |
//! |---|---|
//! | `lookup-id` | a registered buffer is found by its id; `lease` keeps it and gives it back, `contains` only looks; the limit is two additions to a word |
//! | `reference-1m` | 1 MiB is passed on by reference (registered, named, found, taken out), or encoded as bytes |
//! | `defragment` | blocks of 1 MiB are moved together, a KiB of what moves, or copied and nothing else |
//! | `managed-id` | a managed buffer is found by its id, likewise |
//! | `managed-name` | its id is found by its name |
//! | `resize-pooled` | a buffer of a pool with 1 MiB live grows by half, or as much is allocated and 1 MiB is copied |
//! | `resize-direct` | the same on the device itself, which is poisoned when it is allocated and when it is freed: both free the old |
//! | `push` | one element after the other, each by a copy of its own, or 64 KiB at a time; the host's `Vec` beside them |
//! | `push-bytes` | the bytes that a million of those move, from block to block and into it: counted, not timed |

mod named;
mod registry;
mod relocation;

use ringmem_benches::{Wanted, run};

fn main() {
    let groups = [registry::workloads(), relocation::workloads(), named::workloads()];
    run("manager", &Wanted::from_args(), &groups.into_iter().flatten().collect::<Vec<_>>());
}
