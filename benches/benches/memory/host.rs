//! What is measured, and how.

use std::sync::Arc;

use ringmem::backend::Backend;
use ringmem::backend::host::HostBackend;
use ringmem_benches::{job, team};

/// A backend, and the same as whoever has not chosen one sees it.
pub fn backend() -> Arc<dyn Backend> {
    HostBackend::builder().device_memory(1 << 20).build().expect("a backend").erased()
}

/// One turn on core 0, in nanoseconds each.
pub fn each(times: u64, work: impl FnOnce() + Send) -> f64 {
    team(times, vec![(Some(0), job(work))])
}
