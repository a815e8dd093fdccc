//! `cargo bench -p ringmem-benches --bench memory -- [--json] [--quick] [NAME]...`: overhead of buffers and memories over a backend.
//!
//! Everything runs on the host backend: its device is simulated, and no figure is a GPU's. Unless another baseline is named, it is the
//! backend's own operation, called without a buffer.
//!
//! | workload | subject |
//! |---|---|
//! | `buffer-alloc-drop` | a buffer of 64 bytes in device memory, created and dropped |
//! | `copy-from-64`, `copy-to-64` | 64 bytes to a buffer in device memory and back, blocking |
//! | `fill-64` | 64 bytes of it filled, blocking |
//! | `adaptors` | `buffer-alloc-drop` through each adaptor, and through none |
//! | `alloc-once-vs-loop` | 64 bytes copied to a pinned buffer of 64 KiB that is allocated once, or for each copy |
//! | `suballocate-100` | 100 pinned buffers of 256 bytes created and dropped, from an arena, or each from the backend |
//! | `tracked-acquire`, `tracked-acquire-2` | 4 KiB allocated from a pool and freed, with and without tracking, on one thread or two |
//! | `tracked-frames` | frames of 4 such buffers and 128 operations, whose 2 us each are added and not waited for |
//! | `pool-warm-SIZE` | a block repeatedly allocated and freed |
//! | `pool-2t` | the same on each of two cores; `twin: one thread` on one |
//! | `pool-foreign-free` | blocks allocated on one core and freed on the other, handed over 64 at a time; the limit hands over numbers |
//! | `pool-vs-direct-SIZE` | a block allocated and freed, or pages mapped and unmapped; `100x` holds a hundred of a megabyte at once |
//! | `pool-cold-rmm` | 100 000 live blocks of up to 64 KiB in a heap that is 97 % full; one is allocated or a random one freed |
//! | `pool-cold-refused` | the same: refusals per thousand requests, counted in the last turn |

mod blocks;
mod copies;
mod host;
mod pool;
mod reuse;
mod tracking;

use ringmem_benches::{Wanted, run, run_once};

fn main() {
    let groups = [blocks::workloads(), copies::workloads(), reuse::workloads(), tracking::workloads(), pool::workloads()];
    let wanted = Wanted::from_args();
    run("memory", &wanted, &groups.into_iter().flatten().collect::<Vec<_>>());
    run_once("memory", &wanted, 200_000, &pool::counted());
}
