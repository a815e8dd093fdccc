//! `cargo bench -p ringmem-benches --bench memory -- [--json] [--quick] [NAME]...`: what buffers and memories add to a backend.
//!
//! All on the host backend: its device is simulated, and no figure is a GPU's. The peer is the backend's own verb for the same, called without
//! a buffer, as far as no other is named.
//!
//! | workload | what |
//! |---|---|
//! | `buffer-alloc-drop` | a buffer of 64 bytes in device memory, made and dropped |
//! | `copy-from-64`, `copy-to-64` | 64 bytes to a buffer in device memory and back, blocking |
//! | `adaptors` | `buffer-alloc-drop` through each adaptor, beside none |
//! | `alloc-once-vs-loop` | 64 bytes to a pinned buffer of 64 KiB that is made once, or anew for each copy |
//! | `suballocate-100` | 100 pinned buffers of 256 bytes made and dropped, from an arena, or each from the backend |
//! | `tracked-acquire`, `tracked-acquire-2` | 4 KiB out of a pool and back, with every block listed and not, on one thread and on two |
//! | `tracked-frames` | frames of 4 such buffers and 128 operations, whose 2 us each are added and not waited for |

mod blocks;
mod copies;
mod reuse;
mod tracking;

use std::sync::Arc;

use ringmem::backend::Backend;
use ringmem::backend::host::HostBackend;
use ringmem_benches::{Wanted, job, run, team};

/// A backend, and the same as whoever has not chosen one sees it.
fn backend() -> Arc<dyn Backend> {
    HostBackend::builder().device_memory(1 << 20).build().expect("a backend").erased()
}

/// One turn on core 0, in nanoseconds each.
fn each(times: u64, work: impl FnOnce() + Send) -> f64 {
    team(times, vec![(Some(0), job(work))])
}

fn main() {
    let groups = [blocks::workloads(), copies::workloads(), reuse::workloads(), tracking::workloads()];
    run("memory", &Wanted::from_args(), &groups.into_iter().flatten().collect::<Vec<_>>());
}
