use std::sync::Arc;

use ringmem::backend::Backend;
use ringmem::backend::host::HostBackend;
use ringmem_benches::{job, team};

pub fn backend() -> Arc<dyn Backend> {
    HostBackend::builder().device_memory(1 << 20).build().expect("a backend").erased()
}

pub fn each(times: u64, work: impl FnOnce() + Send) -> f64 {
    team(times, vec![(Some(0), job(work))])
}
