//! `cargo bench -p ringmem-benches --bench movement -- [--json] [--quick] [NAME]...`: overhead of bridges and streams over their bytes.
//!
//! `cuda-*` run on the driver double, others on the host backend, some in the link model's time.

mod devices;
mod driver;
mod flushes;
mod frames;
mod stream;
mod transfers;

use std::sync::Arc;

use ringmem::backend::Backend;
use ringmem::backend::host::HostBackend;
use ringmem_benches::{Wanted, job, run, team};

fn backend() -> Arc<dyn Backend> {
    HostBackend::builder().device_memory(64 << 20).build().expect("a backend").erased()
}

fn each(times: u64, work: impl FnOnce() + Send) -> f64 {
    team(times, vec![(Some(0), job(work))])
}

fn main() {
    let groups = [flushes::workloads(), transfers::workloads(), devices::workloads(), frames::workloads(), stream::workloads()];
    let wanted = Wanted::from_args();
    let calls = driver::workloads(&wanted);
    run("movement", &wanted, &groups.into_iter().flatten().chain(calls).collect::<Vec<_>>());
}
