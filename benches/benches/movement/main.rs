//! `cargo bench -p ringmem-benches --bench movement -- [--json] [--quick] [NAME]...`: what bridges and streams add to the bytes that they move.
//!
//! All on the host backend but for the last rows: both ends are real memory of this machine, and no figure is a GPU's. Rows of the link model and of the driver
//! double say so.
//!
//! | workload | what | against |
//! |---|---|---|
//! | `flush-64k`, `flush-1m` | a blocking flush of 1024 or 16 384 messages of 64 bytes, to a ring in pinned memory | as many bytes by memcpy; the shorter one also by memcpy and a fence, which waits until they are stored |
//! | `flush-one` | a message pushed and flushed | its line copied by the backend |
//! | `flush-32` | 32 messages pushed and flushed, each | their bytes copied by the backend |
//! | `queued-copy` | a copy of 64 bytes queued on a stream, one of 64 under way | queued at the backend itself |
//! | `one-wait` | the calls that wait for ten copies of 64 bytes which are done: what waiting adds to the work | a wait after each |
//! | `one-wait-blocked` | how long the host is in a wait for ten such copies that have just been queued | a wait after each |
//! | `one-transfer` | 1000 parts of 1000 bytes as one transfer, in the link model | as a thousand |
//! | `coalesced` | the same parts, out of order, through a coalescer, in the link model | as a thousand |
//! | `coalesced-host` | writes of 64 bytes through a coalescer that is flushed after each 1000 | each copied by the backend |
//! | `chained` | two kernels on what stays on the device, 15 us each, in the link model | with the bytes there and back around each, 30 us |
//! | `split-64k` | 64 KiB that begin 20 bytes into a page, as head, body and tail | in one piece |
//! | `peer-vs-staged` | 64 MiB from device to device past the host, in the link model | over it, way after way |
//! | `staged-pipelined` | the same over the host, both ways at once, in the link model | way after way |
//! | `pinned-vs-pageable` | 64 MiB to a device from pinned memory, in the link model | from pageable |
//! | `frames-overlap` | a frame computed and read back while the next is computed, in the link model; both take equally long | computing alone, the longer of the two |
//! | `frames-blocked` | how long its reader is blocked that has half as much to do, in the link model | waiting for the kernel, then for a copy |
//! | `frames-pinned` | a frame in pinned slots beside the work, in the link model | into pageable memory at half the rate, waited for |
//! | `uploads-overlap` | a frame filled, uploaded and worked on, each as long, in the link model | computing alone |
//! | `stream-overlap` | 64 chunks read, transferred and worked on, three under way, in the link model | one under way |
//! | `stream-slowest` | the same | what one of the three equal stages takes |
//! | `cuda-copy`, `cuda-fill`, `cuda-launch`, `cuda-record` | the CUDA backend's verb, the time in the call, on the driver double | the double's functions that it calls, by their pointers: for a launch an event before it, too |
//! | `cuda-wait` | a wait for what is done | an event recorded and waited for |
//! | `cuda-alloc-free` | 64 KiB of a pool and back, both waited for | the four calls |

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

/// A backend, and the same as whoever has not chosen one sees it.
fn backend() -> Arc<dyn Backend> {
    HostBackend::builder().device_memory(64 << 20).build().expect("a backend").erased()
}

/// One turn on core 0, in nanoseconds each.
fn each(times: u64, work: impl FnOnce() + Send) -> f64 {
    team(times, vec![(Some(0), job(work))])
}

fn main() {
    let groups = [flushes::workloads(), transfers::workloads(), devices::workloads(), frames::workloads(), stream::workloads()];
    let wanted = Wanted::from_args();
    let calls = driver::workloads(&wanted);
    run("movement", &wanted, &groups.into_iter().flatten().chain(calls).collect::<Vec<_>>());
}
