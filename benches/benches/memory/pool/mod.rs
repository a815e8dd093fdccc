//! The pool beside what else gives blocks again.

pub mod kinds;

mod cold;
mod cold_kinds;
mod direct;
mod warm;

use ringmem_benches::Workload;

pub use cold::counted;

/// Everything that begins with `pool-` and is timed.
pub fn workloads() -> Vec<Workload> {
    [warm::workloads(), direct::workloads(), cold::workloads()].into_iter().flatten().collect()
}
