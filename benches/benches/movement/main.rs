//! `cargo bench -p ringmem-benches --bench movement -- [--json] [--quick] [NAME]...`: overhead of bridges and streams over the bytes that
//! they move.
//!
//! Everything runs on the host backend except the last rows. Both ends are real memory of this machine, and no figure is a GPU's. Rows of
//! the link model and of the driver double are marked.
//!
//! | workload | subject | against |
//! |---|---|---|
//! | `flush-64k`, `flush-1m` | a blocking flush of 1024 or 16 384 messages of 64 bytes | memcpy; the smaller one also with a fence |
//! | `flush-one` | a message pushed and flushed | its line copied by the backend |
//! | `flush-32` | 32 messages pushed and flushed together | their bytes copied by the backend |
//! | `queued-copy` | a copy of 64 bytes queued on a stream, up to 64 in flight | queued on the backend directly |
//! | `one-wait` | the calls that wait for ten completed copies of 64 bytes: the pure cost of waiting | a wait after each |
//! | `one-wait-blocked` | how long the host is blocked in a wait for ten such copies that were just queued | a wait after each |
//! | `one-transfer` | 1000 parts of 1000 bytes as one transfer, in the link model | a thousand transfers |
//! | `coalesced` | the same parts, out of order, through a coalescer, in the link model | a thousand transfers |
//! | `coalesced-host` | writes of 64 bytes through a coalescer that is flushed every 1000 | each copied by the backend |
//! | `chained` | two kernels of 15 us each on data that stays on the device, in the link model | a copy there and back around each kernel, 30 us |
//! | `split-64k` | 64 KiB that begin 20 bytes into a page, split into head, body and tail | one piece |
//! | `peer-vs-staged` | 64 MiB between two peer devices, in the link model | staged through the host, one direction after the other |
//! | `staged-pipelined` | the same staged through the host, both directions at once, in the link model | one direction after the other |
//! | `pinned-vs-pageable` | 64 MiB to a device from pinned memory, in the link model | from pageable memory |
//! | `frames-overlap` | computing and reading back frames concurrently, equally long, in the link model | computing alone |
//! | `frames-blocked` | how long a reader with half as much work is blocked, in the link model | waiting for the kernel, then for a copy |
//! | `frames-pinned` | a frame in pinned slots, concurrent with the work, in the link model | into pageable memory at half the rate, waited for |
//! | `uploads-overlap` | a frame filled, uploaded and processed, each equally long, in the link model | computing alone |
//! | `stream-overlap` | 64 chunks read, transferred and processed, three in flight, in the link model | one in flight |
//! | `stream-slowest` | the same | the duration of one of the three equal stages |
//! | `cuda-copy`, `cuda-fill`, `cuda-launch`, `cuda-record` | the CUDA backend's call, on the driver double | the double's own functions |
//! | `cuda-wait` | a wait for completed work | an event recorded and waited for |
//! | `cuda-alloc-free` | 64 KiB allocated from a pool and freed, both waited for | the four calls |

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
