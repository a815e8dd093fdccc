//! `cargo bench -p ringmem-benches --bench manager -- [--json] [--quick] [NAME]...`: named and numbered buffers on the host backend. `push-bytes` counts bytes.

mod named;
mod numbered;
mod relocation;

use ringmem_benches::{Wanted, run};

fn main() {
    let groups = [numbered::workloads(), relocation::workloads(), named::workloads()];
    run("manager", &Wanted::from_args(), &groups.into_iter().flatten().collect::<Vec<_>>());
}
