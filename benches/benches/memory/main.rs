//! `cargo bench -p ringmem-benches --bench memory -- [--json] [--quick] [NAME]...`: what buffers and memories add to a backend.
//!
//! All on the host backend: its device is simulated, and no figure is a GPU's. The peer is the backend's own verb for the same, called without
//! a buffer, as far as no other is named.
//!
//! | workload | what |
//! |---|---|
//! | `buffer-alloc-drop` | a buffer of 64 bytes in device memory, made and dropped |
//! | `copy-from-64`, `copy-to-64` | 64 bytes to a buffer in device memory and back, blocking |
//! | `fill-64` | 64 bytes of it filled, blocking |
//! | `adaptors` | `buffer-alloc-drop` through each adaptor, beside none |
//! | `alloc-once-vs-loop` | 64 bytes to a pinned buffer of 64 KiB that is made once, or anew for each copy |
//! | `suballocate-100` | 100 pinned buffers of 256 bytes made and dropped, from an arena, or each from the backend |
//! | `tracked-acquire`, `tracked-acquire-2` | 4 KiB out of a pool and back, with every block listed and not, on one thread and on two |
//! | `tracked-frames` | frames of 4 such buffers and 128 operations, whose 2 us each are added and not waited for |
//! | `pool-warm-SIZE` | a block taken and given back, over and over |
//! | `pool-2t` | the same on each of two cores; `twin: one thread` on one |
//! | `pool-foreign-free` | blocks taken on one core and given back on the other, 64 handed over at a time; the limit is to hand over numbers |
//! | `pool-vs-direct-SIZE` | a block taken and given back, or pages mapped and unmapped; `100x` holds a hundred of a megabyte at once |
//! | `pool-cold-rmm` | 100 000 live blocks of up to 64 KiB in a heap of which 97 % is asked for; one is taken or any given back |
//! | `pool-cold-refused` | the same: how many of a thousand requests are refused, counted in the last of the turns |

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
