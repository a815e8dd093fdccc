use std::io;
use std::sync::Arc;

use ringmem::backend::host::{HostBackend, Link};
use ringmem::image::{Entry, KernelHost};
use ringmem::stream::{Module, Stream};
use ringmem::streaming::{Cause, Chunk, Job, Queued, Source, Streamer};
use ringmem::{Abi, Image, LAYOUTS};
use ringmem_benches::{LINK_MODEL, Workload};

const CHUNK: u64 = 90_000;
const CHUNKS: u64 = 64;
const LATENCY: u64 = 10_000;
const STAGE: u64 = LATENCY + CHUNK;

const IMAGE: Image = Image { ptx: b"", host: &[Entry { name: "nothing", arguments: 2, run: nothing }], abi: Abi::of(LAYOUTS) };

fn nothing(_: &dyn KernelHost, _: &[u64]) {}

struct Disk<'a>(&'a HostBackend);

impl Source for Disk<'_> {
    fn length(&self) -> Option<u64> {
        Some(CHUNK * CHUNKS)
    }

    fn read_at(&mut self, buffer: &mut [u8], _: u64) -> io::Result<usize> {
        self.0.model_work(LATENCY + buffer.len() as u64);
        buffer.fill(7);
        Ok(buffer.len())
    }
}

fn modelled(depth: u32) -> f64 {
    let kernel_ns = Arc::new(|_: &str, arguments: &[u64]| LATENCY + arguments[1]);
    let link = Link { latency_ns: LATENCY, pinned: 1.0, pageable: 1.0, device: 1.0, host: 1.0, peer: 1.0, kernel_ns };
    let backend = HostBackend::builder().device_memory(1 << 20).link(link).build().expect("a backend");
    let module = Module::load(&backend, &IMAGE, &Abi::of(LAYOUTS)).expect("our ABI");
    let mut streamer = Streamer::builder(&backend, 0).chunk(CHUNK).depth(depth).build().expect("room");
    let mut stage = Queued(|chunk: &Chunk, on: &Stream| {
        // SAFETY: the kernel accesses nothing.
        unsafe { on.launch(&module, "nothing", &[chunk.address.get(), chunk.length]) }.map_err(Cause::from)
    });
    let now = || backend.model_now().expect("a model");
    let before = now();
    let streamed = streamer.run(Job::new(&mut Disk(&backend)), &mut stage).expect("no fault");
    assert_eq!((streamed.chunks, streamed.max_in_flight), (CHUNKS, depth as usize));
    (now() - before) as f64 / CHUNKS as f64
}

fn overlapped(_: u64) -> f64 {
    modelled(3)
}

fn one_at_a_time(_: u64) -> f64 {
    modelled(1)
}

fn slowest(_: u64) -> f64 {
    STAGE as f64
}

pub fn workloads() -> Vec<Workload> {
    let ours = ("ringmem Streamer", overlapped as ringmem_benches::Turn);
    let row = |name, aim, other| Workload { unit: "ns/chunk", source: LINK_MODEL, ..Workload::one(name, aim, vec![ours, other]) };
    vec![
        row("stream-overlap", 1.0 / 2.5, ("one chunk at a time", one_at_a_time)),
        row("stream-slowest", 1.10, ("its slowest stage", slowest)),
    ]
}
