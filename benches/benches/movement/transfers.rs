use std::sync::Arc;
use std::time::{Duration, Instant};

use ringmem::backend::host::{HostBackend, Link};
use ringmem::backend::{Address, Copy};
use ringmem::copy::{Coalescer, Parts, split};
use ringmem::image::KernelHost;
use ringmem::memory::{Device, GpuBuffer, Pinned, PinnedBuffer};
use ringmem::stream::{Module, Pending, Stream};
use ringmem::{Abi, Image, LAYOUTS, image};
use ringmem_benches::{LINK_MODEL, Workload};

use crate::{backend, each};

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
                both = stream.copy(both.0, both.1).expect("it is queued").detach();
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
    let [from_at, to_at] = [from.device_address(), to.device_address()].map(|address| Address::Device(address.expect("it has bytes")));
    let rounds = copies.div_ceil(UNDER_WAY);
    each(rounds * UNDER_WAY, || {
        for _ in 0..rounds {
            for _ in 0..UNDER_WAY {
                // SAFETY: this turn's buffers; it waits before they are dropped.
                unsafe { backend.copy(&Copy { to: to_at, from: from_at, bytes: 64 }, stream.id()) }.expect("live");
            }
            stream.synchronize().expect("no fault");
        }
    })
}

const BATCH: u64 = 10;

fn waits<const EACH: u64, const DONE: bool>(batches: u64) -> f64 {
    let backend = backend();
    let stream = Stream::new(&backend, 0).expect("a stream");
    let buffer = || PinnedBuffer::<u64>::new(Pinned::new(&backend, 0), 8).expect("room");
    let mut both = Some((buffer(), GpuBuffer::<u64>::new(Device::new(&backend, 0), 8).expect("room")));
    let mut sum = Duration::ZERO;
    each(batches, || {
        for copy in 1..=batches * BATCH {
            let (from, to) = both.take().expect("they came back");
            let queued = stream.copy(from, to).expect("it is queued");
            if copy % EACH == 0 {
                while DONE && !queued.is_done() {
                    std::thread::yield_now();
                }
                let begun = Instant::now();
                stream.synchronize().expect("no fault");
                sum += begun.elapsed();
            }
            both = Some(queued.detach());
        }
    });
    sum.as_nanos() as f64 / batches as f64
}

const PARTS: usize = 1000;
const PART: usize = 1000;

fn linked() -> Arc<HostBackend> {
    let kernel_ns = Arc::new(|_: &str, arguments: &[u64]| arguments.last().copied().unwrap_or(0));
    let link = Link { latency_ns: 10_000, pinned: 25.0, pageable: 6.0, device: 1000.0, host: 20.0, peer: 25.0, kernel_ns };
    HostBackend::builder().device_memory(4 << 20).link(link).build().expect("a backend")
}

fn model_ns(backend: &HostBackend, rounds: u64, mut round: impl FnMut()) -> f64 {
    let now = || backend.model_now().expect("a model");
    let before = now();
    (0..rounds).for_each(|_| round());
    (now() - before) as f64 / rounds as f64
}

fn modelled(rounds: u64, parts: usize) -> f64 {
    let backend = linked();
    let from = PinnedBuffer::<u8>::new(Pinned::new(&backend, 0), PARTS * PART).expect("room");
    let mut to = GpuBuffer::<u8>::new(Device::new(&backend, 0), PARTS * PART).expect("room");
    model_ns(&backend, rounds, || {
        for part in 0..parts {
            let range = part * (PARTS * PART / parts)..(part + 1) * (PARTS * PART / parts);
            to.slice_mut(range.clone()).expect("within").copy_from_view(from.slice(range).expect("within")).expect("as long");
        }
    })
}

fn coalesced(rounds: u64) -> f64 {
    let backend = linked();
    let to = GpuBuffer::<u8>::new(Device::new(&backend, 0), PARTS * PART).expect("room");
    let mut to = Coalescer::new(to, Pinned::new(&backend, 0), PARTS * PART).expect("room");
    model_ns(&backend, rounds.min(64), || {
        for part in (0..PARTS).step_by(2).chain((1..PARTS).step_by(2)) {
            to.write(part * PART, &[7; PART]).expect("within");
        }
        assert_eq!(to.flush().expect("no fault"), 1);
    })
}

fn written(writes: u64) -> f64 {
    let backend = backend();
    let to = GpuBuffer::<u64>::new(Device::new(&backend, 0), 8 * PARTS).expect("room");
    let mut to = Coalescer::new(to, Pinned::new(&backend, 0), 8 * PARTS).expect("room");
    let rounds = writes.div_ceil(PARTS as u64);
    each(rounds * PARTS as u64, || {
        for _ in 0..rounds {
            (0..PARTS).for_each(|part| to.write(8 * part, &[7; 8]).expect("within"));
            assert_eq!(to.flush().expect("no fault"), 1);
        }
    })
}

fn copied(writes: u64) -> f64 {
    let backend = backend();
    let mut to = GpuBuffer::<u64>::new(Device::new(&backend, 0), 8 * PARTS).expect("room");
    let rounds = writes.div_ceil(PARTS as u64);
    each(rounds * PARTS as u64, || {
        for _ in 0..rounds {
            (0..PARTS).for_each(|part| to.copy_from_at(8 * part, &[7; 8]).expect("within"));
        }
    })
}

fn two_kernels(rounds: u64, stay: bool) -> f64 {
    const BYTES: usize = 125_000;
    const KERNEL_NS: u64 = 15_000;
    fn nothing(_: &dyn KernelHost, _: &[u64]) {}
    let backend = linked();
    let kernels = &[image::Entry { name: "nothing", arguments: 2, run: nothing }];
    let abi = Abi::of(LAYOUTS);
    let module = Module::load(&backend, &Image { ptx: b"", host: kernels, abi }, &abi).expect("our ABI");
    let stream = Stream::new(&backend, 0).expect("a stream");
    let host = PinnedBuffer::<u8>::new(Pinned::new(&backend, 0), BYTES).expect("room");
    let mut both = Some((host, GpuBuffer::<u8>::new(Device::new(&backend, 0), BYTES).expect("room")));
    model_ns(&backend, rounds.min(64), || {
        let (mut host, mut device) = both.take().expect("it came back");
        for _ in 0..2 {
            if !stay {
                (host, device) = stream.copy(host, device).expect("queued").detach();
            }
            // SAFETY: the kernel accesses nothing.
            device = unsafe { stream.launch_with(&module, "nothing", device, &[KERNEL_NS]) }.map(Pending::detach).expect("queued");
            if !stay {
                (device, host) = stream.copy(device, host).expect("queued").wait().expect("no fault");
            }
        }
        stream.synchronize().expect("no fault");
        both = Some((host, device));
    })
}

fn chained(rounds: u64) -> f64 {
    two_kernels(rounds, true)
}

fn apart(rounds: u64) -> f64 {
    two_kernels(rounds, false)
}

fn misaligned<const IN_PARTS: bool>(copies: u64) -> f64 {
    const BYTES: usize = 64 << 10;
    let backend = backend();
    let buffer = || PinnedBuffer::<u8>::new(Pinned::new(&backend, 0), BYTES + 4096).expect("room");
    let (from, mut to) = (buffer(), buffer());
    let range = 20..20 + BYTES;
    let Parts { head, body, tail } = split::<u8>(range.clone(), 4096).expect("a power of two");
    let parts = if IN_PARTS { vec![head, body, tail] } else { vec![range] };
    each(copies, || {
        for _ in 0..copies {
            for part in &parts {
                let mut to = to.slice_mut(part.clone()).expect("within");
                to.copy_from_view(from.slice(part.clone()).expect("within")).expect("as long");
            }
        }
    })
}

fn as_one(rounds: u64) -> f64 {
    modelled(rounds.min(64), 1)
}

fn as_a_thousand(rounds: u64) -> f64 {
    modelled(rounds.min(4), PARTS)
}

pub fn workloads() -> Vec<Workload> {
    vec![
        Workload {
            unit: "ns/copy",
            aim_added_ns: Some(500.0),
            ..Workload::one("queued-copy", 2.0, vec![("ringmem Stream", queued), ("backend", bare)])
        },
        Workload {
            unit: "ns/10 copies",
            ..Workload::one("one-wait", 1.0 / 8.0, vec![("ringmem, one wait", waits::<BATCH, true>), ("a wait for each", waits::<1, true>)])
        },
        Workload {
            unit: "ns/10 copies",
            ..Workload::one(
                "one-wait-blocked",
                0.5,
                vec![("ringmem, one wait", waits::<BATCH, false>), ("a wait for each", waits::<1, false>)],
            )
        },
        Workload {
            unit: "ns/1000 parts",
            source: LINK_MODEL,
            ..Workload::one("one-transfer", 1.0 / 6.0, vec![("ringmem, one transfer", as_one), ("a thousand", as_a_thousand)])
        },
        Workload {
            unit: "ns/1000 parts",
            source: LINK_MODEL,
            ..Workload::one("coalesced", 1.0 / 6.0, vec![("ringmem Coalescer", coalesced), ("a thousand", as_a_thousand)])
        },
        Workload {
            unit: "ns/write",
            ..Workload::one("coalesced-host", 1.0, vec![("ringmem Coalescer", written), ("copied each", copied)])
        },
        Workload {
            unit: "ns/2 kernels",
            source: LINK_MODEL,
            ..Workload::one("chained", 1.0 / 3.0, vec![("ringmem, launch_with", chained), ("there and back", apart)])
        },
        Workload {
            unit: "ns/64 KiB",
            ..Workload::one("split-64k", 1.0, vec![("ringmem, in parts", misaligned::<true>), ("in one piece", misaligned::<false>)])
        },
    ]
}
