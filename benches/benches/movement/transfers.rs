//! What streams add to queued transfers, and what many small ones cost.

use std::sync::Arc;

use ringmem::backend::host::{HostBackend, Link};
use ringmem::backend::{Copy, Place};
use ringmem::memory::{Device, GpuBuffer, Pinned, PinnedBuffer};
use ringmem::stream::Stream;
use ringmem_benches::{LINK_MODEL, Workload};

use crate::{backend, each};

/// Copies under way when the host waits.
const UNDER_WAY: u64 = 64;

fn queued(copies: u64) -> f64 {
    let backend = backend();
    let stream = Stream::new(&backend, 0).expect("a stream");
    let buffer = || PinnedBuffer::<u64>::new(Pinned::new(&backend, 0), 8).expect("room");
    let mut both = (buffer(), GpuBuffer::<u64>::new(Device::new(&backend, 0), 8).expect("room"));
    let rounds = copies.div_ceil(UNDER_WAY);
    each(rounds * UNDER_WAY, || {
        for _ in 0..rounds {
            for _ in 0..UNDER_WAY {
                both = stream.copy(both.0, both.1).expect("it is queued").ordered();
            }
            stream.synchronize().expect("no fault");
        }
    })
}

fn bare(copies: u64) -> f64 {
    let backend = backend();
    let stream = Stream::new(&backend, 0).expect("a stream");
    let from = PinnedBuffer::<u64>::new(Pinned::new(&backend, 0), 8).expect("room");
    let to = GpuBuffer::<u64>::new(Device::new(&backend, 0), 8).expect("room");
    let [from_at, to_at] = [from.device_address(), to.device_address()].map(|address| Place::Device(address.expect("it has bytes")));
    let rounds = copies.div_ceil(UNDER_WAY);
    each(rounds * UNDER_WAY, || {
        for _ in 0..rounds {
            for _ in 0..UNDER_WAY {
                // SAFETY: two buffers of this turn's own, and it waits before they go.
                unsafe { backend.copy(&Copy { to: to_at, from: from_at, bytes: 64 }, stream.id()) }.expect("live");
            }
            stream.synchronize().expect("no fault");
        }
    })
}

const PARTS: usize = 1000;
const PART: usize = 1000;

/// In the model's time: a link of 10 us and 25 GB/s.
fn modelled(rounds: u64, parts: usize) -> f64 {
    let link =
        Link { latency_ns: 10_000, pinned: 25.0, pageable: 6.0, device: 1000.0, host: 20.0, peer: 25.0, kernel_ns: Arc::new(|_, _| 0) };
    let backend = HostBackend::builder().device_memory(4 << 20).link(link).build().expect("a backend");
    let from = PinnedBuffer::<u8, HostBackend>::new(Pinned::new(&backend, 0), PARTS * PART).expect("room");
    let mut to = GpuBuffer::<u8, HostBackend>::new(Device::new(&backend, 0), PARTS * PART).expect("room");
    let now = || backend.model_now().expect("a model");
    let before = now();
    for _ in 0..rounds {
        for part in 0..parts {
            let range = part * (PARTS * PART / parts)..(part + 1) * (PARTS * PART / parts);
            to.slice_mut(range.clone()).expect("within").copy_from_view(from.slice(range).expect("within")).expect("as long");
        }
    }
    (now() - before) as f64 / rounds as f64
}

fn as_one(rounds: u64) -> f64 {
    modelled(rounds.min(64), 1)
}

fn as_a_thousand(rounds: u64) -> f64 {
    modelled(rounds.min(4), PARTS)
}

/// `queued-copy` and `one-transfer`.
pub fn workloads() -> Vec<Workload> {
    vec![
        Workload {
            unit: "ns/copy",
            aim_added_ns: Some(500.0),
            ..Workload::one("queued-copy", 2.0, vec![("ringmem Stream", queued), ("backend", bare)])
        },
        Workload {
            unit: "ns/1000 parts",
            source: LINK_MODEL,
            ..Workload::one("one-transfer", 1.0 / 6.0, vec![("ringmem, one transfer", as_one), ("a thousand", as_a_thousand)])
        },
    ]
}
