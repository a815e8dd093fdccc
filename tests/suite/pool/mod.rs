#[cfg(target_os = "linux")]
mod address_range;
mod awaited_growth;
mod central_free_list;
mod coalescing;
mod figures;
mod hygiene;
mod limit;
mod model;
mod reuse;
mod shadow;
mod shortage;
mod streams;
mod teardown;
mod threads;
#[cfg(target_os = "linux")]
mod unreachable;
mod upstream;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};

use crate::rig::leak_checked::Clean;
use crate::{LIMIT, eventually};
use ringmem::Error;
use ringmem::backend::Ticket;
use ringmem::backend::host::HostBackend;
use ringmem::image::{Entry, KernelHost};
use ringmem::memory::{Buffer, Device, Pinned, PinnedBuffer};
use ringmem::pool::{Builder, Pool};
use ringmem::stream::{Module, Stream};
use ringmem::{Abi, Image, LAYOUTS};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

type DevicePool = Pool<Device>;
type Bytes = Buffer<u8, DevicePool>;

fn backend(bytes: u64) -> Clean {
    Clean::build(HostBackend::builder().device_memory(bytes).log(true))
}

fn builder(backend: &Arc<HostBackend>) -> Builder<Device> {
    Pool::builder(Device::new(backend, 0))
}

fn pool(backend: &Arc<HostBackend>) -> DevicePool {
    builder(backend).build().expect("a pool")
}

fn give(pool: &DevicePool, bytes: u64) -> Bytes {
    Buffer::new(pool.clone(), bytes as usize).expect("memory")
}

fn address(buffer: &Bytes) -> u64 {
    buffer.device_address().expect("it has bytes").get()
}

fn allocations(backend: &HostBackend) -> u64 {
    backend.counters().device_allocations.count
}

fn shortage<T>(outcome: Result<T, Error>) -> (u64, u64, u64) {
    match outcome.map(drop) {
        Err(Error::OutOfMemory { requested, free, largest, .. }) => (requested, free, largest),
        other => panic!("out of memory was expected, not {other:?}"),
    }
}

struct Held {
    words: PinnedBuffer<u64>,
    stream: Stream,
    launch: Ticket,
}

const KERNELS: &[Entry] = &[Entry { name: "hold", arguments: 1, run: hold }];

fn hold(host: &dyn KernelHost, arguments: &[u64]) {
    let place = host.translate(arguments[0], 8).expect("a mapped word").cast::<AtomicU64>();
    // SAFETY: a live, aligned, atomic word while the kernel runs.
    let word = unsafe { place.as_ref() };
    let mut times = 0;
    while word.load(Acquire) == 0 {
        host.pause(times);
        times += 1;
    }
}

impl Held {
    fn new(backend: &Arc<HostBackend>, stream: &Stream) -> Self {
        let image = Image { ptx: b"", host: KERNELS, abi: Abi::of(LAYOUTS) };
        let module = Module::load(backend, &image, &Abi::of(LAYOUTS)).expect("our ABI");
        let mut words = PinnedBuffer::<u64>::new(Pinned::new(backend, 0), 1).expect("pinned memory");
        let address = words.device_address().expect("it has bytes").get();
        // SAFETY: the atomic word records the launch.
        drop(unsafe { stream.launch(&module, "hold", &[address]) }.expect("a launch"));
        words.used_by(stream).expect("a live stream");
        let launch = stream.backend().record_position(stream.id()).expect("a live stream");
        Self { words, stream: stream.clone(), launch }
    }

    fn release_only(self) {
        let (backend, launch) = (self.stream.backend().clone(), self.launch);
        drop(self);
        eventually("the kernel has left", || backend.is_complete(launch));
    }

    fn release(self) {
        let stream = self.stream.clone();
        drop(self);
        let ticket = stream.backend().record_position(stream.id()).expect("a live stream");
        eventually("the stream is through", || stream.backend().is_complete(ticket));
        stream.synchronize().expect("nothing failed");
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let word = self.words.as_ptr().expect("it has bytes").cast::<AtomicU64>();
        // SAFETY: an aligned, atomic word that lives as long as `self`.
        unsafe { word.as_ref() }.store(1, Release);
    }
}
