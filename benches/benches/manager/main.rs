//! `cargo bench -p ringmem-benches --bench manager -- [--json] [--quick] [NAME]...`: named and numbered buffers and mirrors on the host backend. `push-bytes` counts bytes.

mod mirror;
mod named;
mod numbered;
mod relocation;

use ringmem_benches::{Wanted, run};

fn main() {
    let groups = [numbered::workloads(), relocation::workloads(), named::workloads(), mirror::workloads()];
    run("manager", &Wanted::from_args(), &groups.into_iter().flatten().collect::<Vec<_>>());
}
