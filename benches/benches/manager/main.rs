//! `cargo bench -p ringmem-benches --bench manager -- [--json] [--quick] [NAME]...`: named buffers on the host backend. `push-bytes` counts bytes.

mod named;
mod registry;
mod relocation;

use ringmem_benches::{Wanted, run};

fn main() {
    let groups = [registry::workloads(), relocation::workloads(), named::workloads()];
    run("manager", &Wanted::from_args(), &groups.into_iter().flatten().collect::<Vec<_>>());
}
