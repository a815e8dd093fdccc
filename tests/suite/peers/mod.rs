#![allow(clippy::result_large_err, reason = "what comes back is as large as what went in")]

mod copies;
mod faults;
mod integrity;
mod matrix;
mod panics;
mod spread;
mod staged;
mod strategy;

use std::sync::Arc;
use std::time::Duration;

use crate::LIMIT;
use crate::rig::leak_checked::Clean;
use ringmem::Error;
use ringmem::backend::host::{Builder, Counters, Fault, Faults, HostBackend, Tally, Verb};
use ringmem::copy::Chunked;
use ringmem::memory::{Device, GpuBuffer, Pinned};
use ringmem::peer::{MOST_COPIES, Options, Peers, Strategy};
use ringmem::stream::{Source, Stream, Target};

const STRATEGIES: [Strategy; 4] = [
    Strategy::Direct,
    Strategy::Chunked { chunk: 1000 },
    Strategy::Pipelined { chunk: 1000, depth: 3 },
    Strategy::Staged { chunk: 1000, depth: 3 },
];

const BYTES: usize = 10_100;

type Gpu = GpuBuffer<u8>;

fn two() -> Builder {
    HostBackend::builder().devices(2).device_memory(1 << 20).peer(0, 1)
}

fn build(builder: Builder) -> Clean {
    Clean::build(builder)
}

fn peers(backend: &Arc<HostBackend>) -> Peers {
    Peers::new(Pinned::new(backend, 0)).expect("streams")
}

fn pattern(seed: usize) -> Vec<u8> {
    (seed..seed + BYTES).map(|i| (i * 31 + i / 251) as u8).collect()
}

fn gpu(backend: &Arc<HostBackend>, device: u32, bytes: &[u8]) -> Gpu {
    GpuBuffer::from_slice(Device::new(backend, device), bytes).expect("room")
}

fn with(strategy: Strategy) -> Options {
    Options { strategy: Some(strategy), ..Options::default() }
}

fn done<A: Source, B: Target<Element = A::Element>>(copy: Chunked<A, B>) -> (A, B) {
    copy.wait_timeout(LIMIT).expect("in time").expect("no fault")
}

fn moved(counters: &Counters) -> [Tally; 4] {
    [counters.peer_copies, counters.downloads, counters.uploads, counters.staged]
}

fn moves<R>(backend: &HostBackend, run: impl FnOnce() -> R) -> ([(u64, u64); 4], R) {
    let before = moved(&backend.counters());
    let result = run();
    let after = moved(&backend.counters());
    (std::array::from_fn(|i| (after[i].count - before[i].count, after[i].bytes - before[i].bytes)), result)
}
