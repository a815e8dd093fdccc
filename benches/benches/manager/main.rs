//! `cargo bench -p ringmem-benches --bench manager -- [--json] [--quick] [NAME]...`: named buffers: lookup, growth, references and mirrors.
//!
//! Everything runs on the host backend: its device is simulated, and no figure is a GPU's.
//!
//! | workload | subject |
//! |---|---|
//! | `lookup-id` | a registered buffer is looked up by its id: `lease` and release, or `contains`; limit: two additions to a word |
//! | `reference-1m` | 1 MiB is passed by reference (registered, named, looked up, removed), or encoded as bytes |
//! | `defragment` | blocks of 1 MiB are compacted, per KiB moved, or only copied |
//! | `managed-id` | a managed buffer is looked up by its id, likewise |
//! | `managed-name` | its id is looked up by its name |
//! | `resize-pooled` | a buffer of a pool with 1 MiB live grows by half, or as much is allocated and 1 MiB is copied |
//! | `resize-direct` | the same on the device itself, which poisons memory at allocation and at free: both free the old block |
//! | `push` | elements pushed one by one, each by its own copy, or 64 KiB at a time; the host's `Vec` for comparison |
//! | `push-bytes` | the bytes moved by a million such pushes, between blocks and into them: counted, not timed |

mod named;
mod registry;
mod relocation;

use ringmem_benches::{Wanted, run};

fn main() {
    let groups = [registry::workloads(), relocation::workloads(), named::workloads()];
    run("manager", &Wanted::from_args(), &groups.into_iter().flatten().collect::<Vec<_>>());
}
