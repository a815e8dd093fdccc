pub mod kinds;

mod cold;
mod cold_kinds;
mod direct;
mod warm;

use ringmem_benches::Workload;

pub use cold::counted;

pub fn workloads() -> Vec<Workload> {
    [warm::workloads(), direct::workloads(), cold::workloads()].into_iter().flatten().collect()
}
