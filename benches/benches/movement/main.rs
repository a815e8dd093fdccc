//! `cargo bench -p ringmem-benches --bench movement -- [--json] [--quick] [NAME]...`: what bridges and streams add to the bytes that they move.
//!
//! All on the host backend: both ends are real memory of this machine, and no figure is a GPU's. Rows of the link model say so.
//!
//! | workload | what | against |
//! |---|---|---|
//! | `flush-64k`, `flush-1m` | a blocking flush of 1024 or 16 384 messages of 64 bytes, to a ring in pinned memory | as many bytes by memcpy |
//! | `flush-one` | a message pushed and flushed | its line copied by the backend |
//! | `flush-32` | 32 messages pushed and flushed, each | their bytes copied by the backend |
//! | `queued-copy` | a copy of 64 bytes queued on a stream, one of 64 under way | queued at the backend itself |
//! | `one-transfer` | 1000 parts of 1000 bytes as one transfer, in the link model | as a thousand |

mod flushes;
mod transfers;

use std::sync::Arc;

use ringmem::backend::Backend;
use ringmem::backend::host::HostBackend;
use ringmem_benches::{Wanted, job, run, team};

/// A backend, and the same as whoever has not chosen one sees it.
fn backend() -> Arc<dyn Backend> {
    HostBackend::builder().device_memory(64 << 20).build().expect("a backend").erased()
}

/// One turn on core 0, in nanoseconds each.
fn each(times: u64, work: impl FnOnce() + Send) -> f64 {
    team(times, vec![(Some(0), job(work))])
}

fn main() {
    let groups = [flushes::workloads(), transfers::workloads()];
    run("movement", &Wanted::from_args(), &groups.into_iter().flatten().collect::<Vec<_>>());
}
