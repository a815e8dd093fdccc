mod faults;
mod figures;
mod lost;
mod model;
mod pooled;
mod queued;
mod reported;
mod shared;
mod table;
mod threads;

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::thread;

use crate::rig::leak_checked::Clean;
use crate::{LIMIT, eventually};
use ringmem::backend::host::{Faults, HostBackend};
use ringmem::image::{Entry, KernelHost};
use ringmem::memory::{Device, DeviceReadable, Host, HostReadable, Memory, Pinned, PinnedBuffer};
use ringmem::mirror::{Access, MirroredBuffer};
use ringmem::stream::{Module, Pending, Stream};
use ringmem::{Abi, Image, LAYOUTS};

const LEN: usize = 64;
const BYTES: u64 = 4 * LEN as u64;

type PinnedMirror = MirroredBuffer<u32, Pinned, Device>;

const KERNELS: &[Entry] = &[
    Entry { name: "hold", arguments: 1, run: hold },
    Entry { name: "add", arguments: 2, run: add },
    Entry { name: "add_and_panic", arguments: 2, run: add_and_panic },
];

fn hold(host: &dyn KernelHost, arguments: &[u64]) {
    let word = |address| {
        let place = host.translate(address, 8).expect("a mapped word").cast::<AtomicU64>();
        // SAFETY: a live, aligned, atomic word while the kernel runs.
        unsafe { place.as_ref() }
    };
    word(arguments[0]).store(1, Release);
    let mut times = 0;
    while word(arguments[0] + 8).load(Acquire) == 0 {
        host.pause(times);
        times += 1;
    }
}

fn add(host: &dyn KernelHost, arguments: &[u64]) {
    let place = host.translate(arguments[0], 4 * arguments[1]).expect("mapped elements").cast::<u32>();
    for index in 0..arguments[1] as usize {
        // SAFETY: translated for that many elements, otherwise unused.
        unsafe { place.add(index).write(place.add(index).read().wrapping_add(1)) };
    }
}

fn add_and_panic(host: &dyn KernelHost, arguments: &[u64]) {
    add(host, &[arguments[0], arguments[1] / 2]);
    panic!("a kernel that a test asked for");
}

const ARMED: &str = "a clock that a test asked for";

fn armed() -> (Clean, Arc<AtomicUsize>) {
    let left = Arc::new(AtomicUsize::new(usize::MAX));
    let clock = {
        let (left, caller) = (Arc::clone(&left), thread::current().id());
        move || {
            let is_due = thread::current().id() == caller && left.fetch_sub(1, Relaxed) == 0;
            assert!(!is_due, "{ARMED}");
            0
        }
    };
    (Clean::build(HostBackend::builder().device_memory(1 << 20).log(true).clock(Arc::new(clock))), left)
}

fn backend() -> Clean {
    Clean::build(HostBackend::builder().device_memory(1 << 20).faults(Faults::new()))
}

fn load(backend: &Arc<HostBackend>) -> Module {
    Module::load(backend, &Image { ptx: b"", host: KERNELS, abi: Abi::of(LAYOUTS) }, &Abi::of(LAYOUTS)).expect("our ABI")
}

fn stream(backend: &Arc<HostBackend>) -> Stream {
    Stream::new(backend, 0).expect("a stream")
}

fn pinned(backend: &Arc<HostBackend>) -> PinnedMirror {
    MirroredBuffer::new(Pinned::new(backend, 0), Device::new(backend, 0), LEN).expect("memories of one backend")
}

fn pageable(backend: &Arc<HostBackend>) -> MirroredBuffer<u32, Host, Device> {
    MirroredBuffer::new(Host::new(backend, 0), Device::new(backend, 0), LEN).expect("memories of one backend")
}

fn launch<H, D>(mirror: &mut MirroredBuffer<u32, H, D>, name: &str, stream: &Stream) -> Pending<()>
where
    H: Memory<Visibility: HostReadable> + Clone,
    D: Memory<Visibility: DeviceReadable> + Clone,
{
    let address = mirror.device_on(Access::Update, stream).expect("queued").expect("it has bytes").address();
    let image = Image { ptx: b"", host: KERNELS, abi: Abi::of(LAYOUTS) };
    let module = Module::load(stream.backend(), &image, &Abi::of(LAYOUTS)).expect("our ABI");
    // SAFETY: the mirror's elements, which record the launch; unused before its exit.
    let pending = unsafe { stream.launch(&module, name, &[address, mirror.len() as u64]) }.expect("a launch");
    mirror.used_by(stream).expect("a stream of the same backend");
    pending
}

fn live(backend: &HostBackend) -> [u64; 3] {
    let counters = backend.counters();
    [counters.device_live, counters.pinned_live, counters.host_live].map(|live| live.bytes)
}

struct Held {
    words: PinnedBuffer<u64>,
    pending: Option<Pending<()>>,
}

impl Held {
    fn new(backend: &Arc<HostBackend>, stream: &Stream) -> Self {
        let mut words = PinnedBuffer::<u64>::new(Pinned::new(backend, 0), 2).expect("pinned memory");
        let address = words.device_address().expect("it has bytes").get();
        // SAFETY: atomic words, which record the launch.
        let pending = unsafe { stream.launch(&load(backend), "hold", &[address]) }.expect("a launch");
        words.used_by(stream).expect("a live stream");
        let held = Self { words, pending: Some(pending) };
        eventually("the kernel runs", || held.word(0).load(Acquire) == 1);
        held
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        let first = self.words.as_ptr().expect("it has bytes").cast::<AtomicU64>();
        // SAFETY: one of two aligned, atomic words that live as long as `self`.
        unsafe { first.add(index).as_ref() }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.word(1).store(1, Release);
        if let Some(pending) = self.pending.take()
            && !thread::panicking()
        {
            pending.wait_timeout(LIMIT).expect("in time").expect("it does not fail");
        }
    }
}

fn through(stream: &Stream) {
    let ticket = stream.backend().record_position(stream.id()).expect("a live stream");
    eventually("the stream is through", || stream.backend().is_complete(ticket));
}
