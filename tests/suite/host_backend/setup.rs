//! The kernels of the tests; a backend with one device and a stream.

use std::alloc::Layout;
use std::mem;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::mpsc;
use std::thread;

use ringmem::backend::host::HostBackend;
use ringmem::backend::{Backend, Block, MemoryLocation, Options, Request};
use ringmem::image::{Entry, KernelHost};
use ringmem::memory::{Buffer, Device, DeviceReadable, GpuBuffer, Memory, Pinned, PinnedBuffer};
use ringmem::stream::{Module, Pending, Queued, Stream};
use ringmem::{Abi, Error, Image, LAYOUTS};

use crate::rig::leak_checked::Clean;
pub use crate::{LIMIT, eventually};

pub const KERNELS: &[Entry] = &[
    Entry { name: "hold", arguments: 1, run: hold },
    Entry { name: "increment", arguments: 2, run: increment },
    Entry { name: "panic", arguments: 0, run: panic },
    Entry { name: "panic_twice", arguments: 0, run: panic_twice },
    Entry { name: "translate", arguments: 3, run: translate },
    Entry { name: "clock", arguments: 1, run: clock },
    Entry { name: "gate", arguments: 0, run: gate },
    Entry { name: "place", arguments: 3, run: place },
    Entry { name: "now", arguments: 1, run: now },
];

pub const IMAGE: Image = Image { ptx: b"", host: KERNELS, abi: Abi::of(LAYOUTS) };

fn word(host: &dyn KernelHost, address: u64) -> &AtomicU64 {
    let place = host.translate(address, 8).expect("a mapped word");
    // SAFETY: live, aligned, atomic words while a kernel runs.
    unsafe { place.cast().as_ref() }
}

fn hold(host: &dyn KernelHost, arguments: &[u64]) {
    word(host, arguments[0]).store(1, Release);
    let mut times = 0;
    while word(host, arguments[0] + 8).load(Acquire) == 0 {
        host.pause(times);
        times += 1;
    }
}

fn increment(host: &dyn KernelHost, arguments: &[u64]) {
    let place = host.translate(arguments[0], arguments[1]).expect("mapped bytes");
    for i in 0..arguments[1] as usize {
        // SAFETY: translated for that many bytes, otherwise unused.
        unsafe { place.add(i).write(place.add(i).read() + 1) };
    }
}

fn panic(_: &dyn KernelHost, _: &[u64]) {
    panic!("a kernel of the test panics");
}

fn panic_twice(_: &dyn KernelHost, _: &[u64]) {
    struct Again;
    impl Drop for Again {
        fn drop(&mut self) {
            panic!("what a kernel of the test threw panics");
        }
    }
    std::panic::panic_any(Again);
}

fn translate(host: &dyn KernelHost, arguments: &[u64]) {
    let place = host.translate(arguments[0], arguments[1]);
    word(host, arguments[2]).store(place.map_or(0, |place| place.as_ptr().expose_provenance() as u64), Release);
}

fn clock(host: &dyn KernelHost, arguments: &[u64]) {
    let mut last = host.now_ns();
    let forward = (0..10_000).all(|_| {
        let now = host.now_ns();
        mem::replace(&mut last, now) <= now
    });
    word(host, arguments[0]).store(forward.into(), Release);
}

fn place(host: &dyn KernelHost, arguments: &[u64]) {
    let place = host.translate(arguments[0], arguments[1]);
    word(host, arguments[2]).store(place.is_some().into(), Release);
}

fn now(host: &dyn KernelHost, arguments: &[u64]) {
    word(host, arguments[0]).store(host.now_ns(), Release);
}

/// State of [`gate`]: 1 runs, 2 may exit, 3 has exited. For one test.
pub static GATE: AtomicU64 = AtomicU64::new(0);

fn gate(host: &dyn KernelHost, _: &[u64]) {
    GATE.store(1, Release);
    let mut times = 0;
    while GATE.load(Acquire) != 2 {
        host.pause(times);
        times += 1;
    }
    assert_eq!(host.translate(1, 1), None, "nothing is there");
    GATE.store(3, Release);
}

pub struct Setup {
    pub backend: Clean,
    pub stream: Stream,
    pub module: Module,
}

pub fn backend(device_memory: u64) -> Clean {
    Clean::build(HostBackend::builder().device_memory(device_memory))
}

pub fn setup(device_memory: u64) -> Setup {
    let backend = backend(device_memory);
    let stream = Stream::new(&backend, 0).expect("a stream");
    let module = Module::load(&backend, &IMAGE, &Abi::of(LAYOUTS)).expect("the image has our ABI");
    Setup { backend, stream, module }
}

impl Setup {
    pub fn device(&self, bytes: usize) -> GpuBuffer<u8> {
        GpuBuffer::new(Device::new(&self.backend, 0), bytes).expect("room")
    }

    pub fn pinned(&self, bytes: &[u8]) -> PinnedBuffer<u8> {
        PinnedBuffer::from_slice(Pinned::new(&self.backend, 0), bytes).expect("pinned memory")
    }

    pub fn allocate(&self, location: MemoryLocation, bytes: usize, align: usize) -> Result<Block, Error> {
        let layout = Layout::from_size_align(bytes, align).expect("a layout");
        self.backend.allocate(&Request { location, device: 0, layout, options: Options::empty() }, None)
    }

    pub fn launch(&self, name: &str, arguments: &[u64]) -> Pending<()> {
        // SAFETY: tests pass the kernels' arguments, and wait before accesses.
        unsafe { self.stream.launch(&self.module, name, arguments) }.expect("a launch")
    }

    pub fn place(&self, address: u64, bytes: u64) -> u64 {
        self.place_by(&PinnedBuffer::new(Pinned::new(&self.backend, 0), 1).expect("pinned memory"), address, bytes)
    }

    pub fn place_by(&self, result: &PinnedBuffer<u64>, at: u64, bytes: u64) -> u64 {
        done(self.launch("translate", &[at, bytes, address(result)]));
        result.as_slice().expect("nothing is queued")[0]
    }

    pub fn hold(&self) -> Held {
        let words = PinnedBuffer::new(Pinned::new(&self.backend, 0), 2).expect("pinned memory");
        let pending = self.launch("hold", &[address(&words)]);
        let held = Held { words, pending: Some(pending) };
        eventually("the kernel runs", || held.word(0).load(Acquire) == 1);
        held
    }
}

pub struct Held {
    words: PinnedBuffer<u64>,
    pub pending: Option<Pending<()>>,
}

impl Held {
    pub fn word(&self, index: usize) -> &AtomicU64 {
        // SAFETY: one of two aligned, atomic words that live as long as `self`.
        unsafe { self.words.as_ptr().expect("bytes").cast::<AtomicU64>().add(index).as_ref() }
    }

    pub fn release(mut self) {
        self.word(1).store(1, Release);
        done(self.pending.take().expect("taken here only"));
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.word(1).store(1, Release);
    }
}

pub fn address<T, M: Memory<Visibility: DeviceReadable>>(buffer: &Buffer<T, M>) -> u64 {
    buffer.device_address().expect("bytes").get()
}

pub fn done<T: Queued>(pending: Pending<T>) -> T {
    pending.wait_timeout(LIMIT).expect("done in time").expect("done without an error")
}

pub fn within<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || sender.send(run()));
    receiver.recv_timeout(LIMIT).expect("done in time")
}
