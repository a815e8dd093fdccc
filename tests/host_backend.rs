//! The host backend: what it promises in the header of `backend::host`, seen from outside. What every backend promises is in `conformance`.
#![cfg(feature = "std")]

use std::alloc::Layout;
use std::mem;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use ringmem::backend::host::{HostBackend, Live, POISON, Tally};
use ringmem::backend::{Backend, Block, Copy, DeviceAddress, Fill, MemoryInfo, MemoryLocation, Options, Place, Request, Ticket, Uses};
use ringmem::image::{Entry, KernelHost};
use ringmem::memory::{Buffer, Device, DeviceReadable, GpuBuffer, Memory, Pinned, PinnedBuffer};
use ringmem::stream::{Module, Pending, Queued, Stream};
use ringmem::{Abi, Error, Image, LAYOUTS};

/// No wait is longer.
const LIMIT: Duration = Duration::from_secs(30);

// Kernels.

const KERNELS: &[Entry] = &[
    Entry { name: "hold", arguments: 1, run: hold },
    Entry { name: "increment", arguments: 2, run: increment },
    Entry { name: "panic", arguments: 0, run: panic },
    Entry { name: "panic_twice", arguments: 0, run: panic_twice },
    Entry { name: "translate", arguments: 3, run: translate },
    Entry { name: "clock", arguments: 1, run: clock },
    Entry { name: "gate", arguments: 0, run: gate },
];

const IMAGE: Image = Image { ptx: b"", host: KERNELS, abi: Abi::of(LAYOUTS) };

/// The word at an address.
fn word(host: &dyn KernelHost, address: u64) -> &AtomicU64 {
    let place = host.translate(address, 8).expect("a mapped word");
    // SAFETY: the tests pass live, aligned words, which all sides use as atomics while a kernel runs.
    unsafe { place.cast().as_ref() }
}

/// Says that it runs in the first word, and leaves when the second is set.
fn hold(host: &dyn KernelHost, arguments: &[u64]) {
    word(host, arguments[0]).store(1, Release);
    let mut times = 0;
    while word(host, arguments[0] + 8).load(Acquire) == 0 {
        host.pause(times);
        times += 1;
    }
}

/// Adds one to each of so many bytes.
fn increment(host: &dyn KernelHost, arguments: &[u64]) {
    let place = host.translate(arguments[0], arguments[1]).expect("mapped bytes");
    for i in 0..arguments[1] as usize {
        // SAFETY: translated for so many bytes, and nothing else is at them.
        unsafe { place.add(i).write(place.add(i).read() + 1) };
    }
}

fn panic(_: &dyn KernelHost, _: &[u64]) {
    panic!("a kernel of the test panics");
}

/// Panics with what panics again when it is dropped.
fn panic_twice(_: &dyn KernelHost, _: &[u64]) {
    struct Again;
    impl Drop for Again {
        fn drop(&mut self) {
            panic!("what a kernel of the test threw panics");
        }
    }
    std::panic::panic_any(Again);
}

/// Writes where so many bytes at an address are, or 0.
fn translate(host: &dyn KernelHost, arguments: &[u64]) {
    let place = host.translate(arguments[0], arguments[1]);
    word(host, arguments[2]).store(place.map_or(0, |place| place.as_ptr().expose_provenance() as u64), Release);
}

/// Writes 1 if the clock never went back in ten thousand readings.
fn clock(host: &dyn KernelHost, arguments: &[u64]) {
    let mut last = host.now_ns();
    let forward = (0..10_000).all(|_| {
        let now = host.now_ns();
        mem::replace(&mut last, now) <= now
    });
    word(host, arguments[0]).store(forward.into(), Release);
}

/// Where [`gate`] is: 1 runs, 2 may leave, 3 has left. For one test.
static GATE: AtomicU64 = AtomicU64::new(0);

/// As `hold`, in memory that is no backend's.
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

// What every test needs.

struct Setup {
    backend: Arc<HostBackend>,
    stream: Stream,
    module: Module,
}

fn backend(device_memory: u64) -> Arc<HostBackend> {
    HostBackend::builder().device_memory(device_memory).build().expect("a backend")
}

fn setup(device_memory: u64) -> Setup {
    let backend = backend(device_memory);
    let stream = Stream::new(&backend, 0).expect("a stream");
    let module = Module::load(&backend, &IMAGE, &Abi::of(LAYOUTS)).expect("the image has our ABI");
    Setup { backend, stream, module }
}

impl Setup {
    fn device(&self, bytes: usize) -> GpuBuffer<u8, HostBackend> {
        GpuBuffer::new(Device::new(&self.backend, 0), bytes).expect("room")
    }

    fn pinned(&self, bytes: &[u8]) -> PinnedBuffer<u8, HostBackend> {
        PinnedBuffer::from_slice(Pinned::new(&self.backend, 0), bytes).expect("pinned memory")
    }

    fn allocate(&self, location: MemoryLocation, bytes: usize, align: usize) -> Result<Block, Error> {
        let layout = Layout::from_size_align(bytes, align).expect("a layout");
        self.backend.allocate(&Request { location, device: 0, layout, options: Options::empty() }, None)
    }

    fn launch(&self, name: &str, arguments: &[u64]) -> Pending<()> {
        // SAFETY: the tests pass what the kernels take, and wait before they touch what was passed.
        unsafe { self.stream.launch(&self.module, name, arguments) }.expect("a launch")
    }

    /// Where so many bytes at an address are, as a kernel sees it; 0 for nowhere.
    fn place(&self, address: u64, bytes: u64) -> u64 {
        self.place_by(&PinnedBuffer::new(Pinned::new(&self.backend, 0), 1).expect("pinned memory"), address, bytes)
    }

    fn place_by(&self, result: &PinnedBuffer<u64, HostBackend>, at: u64, bytes: u64) -> u64 {
        done(self.launch("translate", &[at, bytes, address(result)]));
        result.as_slice().expect("nothing is queued")[0]
    }

    /// A kernel that occupies the stream, running.
    fn hold(&self) -> Held {
        let words = PinnedBuffer::new(Pinned::new(&self.backend, 0), 2).expect("pinned memory");
        let pending = self.launch("hold", &[address(&words)]);
        let held = Held { words, pending: Some(pending) };
        eventually("the kernel runs", || held.word(0).load(Acquire) == 1);
        held
    }
}

struct Held {
    words: PinnedBuffer<u64, HostBackend>,
    pending: Option<Pending<()>>,
}

impl Held {
    fn word(&self, index: usize) -> &AtomicU64 {
        // SAFETY: one of two aligned words that live as long as `self` and are atomics on both sides.
        unsafe { self.words.as_ptr().expect("bytes").cast::<AtomicU64>().add(index).as_ref() }
    }

    fn release(mut self) {
        self.word(1).store(1, Release);
        done(self.pending.take().expect("taken here only"));
    }
}

/// A test that fails leaves no kernel behind.
impl Drop for Held {
    fn drop(&mut self) {
        self.word(1).store(1, Release);
    }
}

fn address<T, M: Memory<Visibility: DeviceReadable>>(buffer: &Buffer<T, M>) -> u64 {
    buffer.device_address().expect("bytes").get()
}

fn done<T: Queued>(pending: Pending<T>) -> T {
    pending.wait_timeout(LIMIT).expect("done in time").expect("done without an error")
}

fn eventually(fact: &str, holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < LIMIT, "not in time: {fact}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Runs what has no deadline of its own.
fn within<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || sender.send(run()));
    receiver.recv_timeout(LIMIT).expect("done in time")
}

// Device memory.

#[test]
fn memory_is_poisoned_when_it_is_allocated_and_again_when_it_is_freed() {
    let setup = setup(1 << 20);
    let mut memory = setup.device(5000);
    assert_eq!(memory.to_vec().expect("a copy"), [POISON; 5000], "fresh");
    memory.zero().expect("a fill");
    let at = address(&memory);
    let place = setup.place(at, 5000) as usize;
    drop(memory);
    for i in 0..5000 {
        // SAFETY: the backend lives, so its memory is mapped, and nobody else allocates here.
        let byte = unsafe { std::ptr::with_exposed_provenance::<u8>(place + i).read() };
        assert_eq!(byte, POISON, "byte {i} after the free");
        // SAFETY: as above.
        unsafe { std::ptr::with_exposed_provenance_mut::<u8>(place + i).write(1) };
    }
    let memory = setup.device(5000);
    assert_eq!(address(&memory), at, "first fit");
    assert_eq!(memory.to_vec().expect("a copy"), [POISON; 5000], "reused, after a stray write");
}

#[test]
fn out_of_memory_says_what_was_requested_free_and_largest_and_is_over_after_frees() {
    let setup = setup(4096);
    let refused = |bytes| setup.allocate(MemoryLocation::Device, bytes, 1).expect_err("no room");
    let blocks: Vec<_> = (0..4).map(|_| setup.device(1024)).collect();
    let error = refused(1);
    assert!(matches!(error, Error::OutOfMemory { requested: 1, free: 0, largest: 0 }), "{error}");
    let [a, b, c, d] = blocks.try_into().expect("four");
    drop((a, c));
    let error = refused(1025);
    assert!(matches!(error, Error::OutOfMemory { requested: 1025, free: 2048, largest: 1024 }), "{error}");
    let most = isize::MAX as usize;
    let error = refused(most);
    assert!(matches!(error, Error::OutOfMemory { requested, free: 2048, largest: 1024 } if requested == most as u64), "{error}");
    let info = || setup.backend.memory_info(0).expect("device 0");
    assert_eq!(info(), Some(MemoryInfo { total: 4096, free: 2048 }));
    drop(b);
    let joined = setup.device(3072);
    drop((d, joined));
    drop(setup.device(4096));
    assert_eq!(info(), Some(MemoryInfo { total: 4096, free: 4096 }));
}

#[test]
fn ten_million_floats_take_forty_million_bytes_of_what_is_free() {
    let backend = HostBackend::builder().devices(2).build().expect("a backend");
    let free = |device| backend.memory_info(device).expect("a device").expect("a simulation knows").free;
    let before = [0, 1].map(free);
    let buffer = GpuBuffer::<f32, _>::new(Device::new(&backend, 1), 10_000_000).expect("room");
    assert_eq!([0, 1].map(free), [before[0], before[1] - 40_000_000]);
    drop(buffer);
    assert_eq!([0, 1].map(free), before);
}

#[test]
fn addresses_are_aligned_and_so_are_their_places() {
    // Odd capacities: the system aligns round ones by itself.
    for odd in 1..=4 {
        let setup = setup((16 << 20) + odd * 4096);
        let mut kept = Vec::new();
        for shift in 0..=21 {
            let align = 1 << shift;
            kept.push(setup.device(3));
            let block = setup.allocate(MemoryLocation::Device, 64, align as usize).expect("room");
            let address = block.device_address.expect("device memory").get();
            let place = setup.place(address, 64);
            assert!(
                place != 0 && address.is_multiple_of(align) && place.is_multiple_of(align),
                "{address:#x} is at {place:#x}, alignment {align}"
            );
        }
    }
    let error = setup(4096).allocate(MemoryLocation::Device, 8, 4 << 20).expect_err("too much");
    assert!(matches!(error, Error::Align { asked: 0x40_0000, most: 0x20_0000 }), "{error}");
}

#[test]
fn sizes_that_cannot_be_had_are_errors_that_name_them() {
    for bytes in [0, (1 << 40) + 1, u64::MAX] {
        let error = HostBackend::builder().device_memory(bytes).build().expect_err("absurd");
        assert!(matches!(error, Error::Size { asked, least: 1, most } if asked == bytes && most <= 1 << 40), "{error}");
    }
    let error = HostBackend::builder().devices(0).build().expect_err("no devices");
    assert!(matches!(error, Error::NoDevice { asked: 0, devices: 0 }), "{error}");
    let setup = setup(4096);
    let error = setup.allocate(MemoryLocation::Device, 0, 1).expect_err("nothing");
    assert!(matches!(error, Error::Size { asked: 0, least: 1, most: 4096 }), "{error}");
    let error = setup.allocate(MemoryLocation::Pinned, 0, 1).expect_err("nothing");
    assert!(matches!(error, Error::Size { asked: 0, least: 1, .. }), "{error}");
    for bytes in [1 << 50, isize::MAX as usize] {
        let error = setup.allocate(MemoryLocation::Pinned, bytes, 1).expect_err("more than any machine has");
        assert!(matches!(error, Error::Map { bytes: b, .. } if b == bytes as u64), "{error}");
        assert!(std::error::Error::source(&error).is_some(), "the system's answer");
    }
    let error = setup.allocate(MemoryLocation::Pinned, 8, 8192).expect_err("above a page");
    assert!(matches!(error, Error::Align { asked: 8192, most: 4096 }), "{error}");
}

#[test]
fn a_kernel_reaches_live_memory_of_its_backend_and_nothing_else() {
    let (setup, other) = (setup(1 << 20), setup(1 << 20));
    let (pinned, memory, foreign) = (setup.pinned(&[0; 100]), setup.device(100), other.device(100));
    let (device, host) = (address(&memory), address(&pinned));
    assert_eq!(host, pinned.as_ptr().expect("bytes").as_ptr() as u64);
    for start in [device, host] {
        assert_ne!(setup.place(start, 100), 0);
        assert_eq!(setup.place(start + 99, 1), setup.place(start, 1) + 99);
        for (address, bytes) in [(start, 101), (start + 100, 1), (start + 99, 2), (start - 1, 2), (start + 1, u64::MAX), (start, u64::MAX)]
        {
            assert_eq!(setup.place(address, bytes), 0, "{bytes} bytes at {address:#x}");
        }
    }
    assert_eq!(setup.place(host, 100), host);
    let on_the_stack = 0_u64;
    for address in [0, 1, u64::MAX, &raw const on_the_stack as u64, device + 4096, address(&foreign)] {
        assert_eq!(setup.place(address, 1), 0, "{address:#x}");
    }
    // Allocated before the free, or it would be where the freed memory was.
    let result = PinnedBuffer::new(Pinned::new(&setup.backend, 0), 1).expect("pinned memory");
    drop((memory, pinned));
    assert_eq!([device, host].map(|address| setup.place_by(&result, address, 1)), [0, 0], "freed");
}

#[test]
fn an_address_in_no_live_memory_is_an_error_at_the_call_that_names_it() {
    let setup = setup(1 << 20);
    let (backend, memory) = (&*setup.backend, setup.device(100));
    let (live, mut host) = (memory.device_address().expect("bytes"), [0_u8; 200]);
    let place = Place::Host(NonNull::from(&mut host).cast());
    let freed = setup.device(100).device_address().expect("bytes");
    let past = live.offset(100).expect("within the numbers");
    let before = backend.counters();
    for (at, bytes) in [(freed, 1), (past, 1), (DeviceAddress::new(0), 8), (live, 101), (live.offset(99).expect("within"), 2)] {
        let is_outside = |error: &Error, call: &str| match error {
            Error::Foreign { call: c, address } => *c == call && *address == at.get(),
            Error::Range { offset, len, size: 100 } => (*offset, *len) == (at.get() - live.get(), bytes),
            _ => false,
        };
        let copies = [Copy { to: Place::Device(at), from: place, bytes }, Copy { to: place, from: Place::Device(at), bytes }];
        let fill = Fill { to: Place::Device(at), pattern: 0, size: 1, count: bytes };
        for copy in &copies {
            // SAFETY: nothing else uses the bytes, if there were any: this asks for the refusal.
            let refused = unsafe { [backend.copy_now(copy).err(), backend.copy(copy, setup.stream.id()).err()] };
            for error in refused {
                assert!(error.as_ref().is_some_and(|error| is_outside(error, "copy")), "{copy:?}: {error:?}");
            }
        }
        // SAFETY: as above.
        let refused = unsafe { [backend.fill_now(&fill).err(), backend.fill(&fill, setup.stream.id()).err()] };
        for error in refused {
            assert!(error.as_ref().is_some_and(|error| is_outside(error, "fill")), "{fill:?}: {error:?}");
        }
    }
    // What is no block, and a block that is freed twice.
    let block = setup.allocate(MemoryLocation::Device, 64, 64).expect("room");
    let address = block.device_address.expect("device memory").get();
    let shorter = Block { layout: Layout::new::<u8>(), device_address: block.device_address, ..Block::empty(MemoryLocation::Device, 1) };
    // SAFETY: nobody uses it; this asks for the refusals.
    let outcomes = unsafe { [&shorter, &block, &block].map(|block| backend.free(block, &Uses::NONE)) };
    let refused = |outcome: &Result<(), Error>| matches!(outcome, Err(Error::Foreign { call: "free", address: a }) if *a == address);
    assert!(refused(&outcomes[0]) && outcomes[1].is_ok() && refused(&outcomes[2]), "{outcomes:?}");
    setup.stream.synchronize().expect("nothing was queued");
    let after = backend.counters();
    assert_eq!((after.uploads, after.downloads, after.fills), (before.uploads, before.downloads, before.fills));
}

// Kernels.

#[test]
fn a_kernel_that_panics_is_an_error_and_the_stream_goes_on() {
    let setup = setup(4096);
    for kernel in ["panic", "panic_twice"] {
        let error = setup.launch(kernel, &[]).wait_timeout(LIMIT).expect("in time").expect_err("it panicked");
        assert!(matches!(error.error, Error::KernelPanicked { name } if name == kernel), "{error}");
    }
    drop(setup.launch("panic", &[]));
    let memory = done(setup.stream.fill(setup.device(8), .., 1).expect("a fill"));
    assert_eq!(memory.to_vec().expect("a copy"), [1; 8]);
    assert_eq!(setup.backend.counters().kernel_panics, 3, "also the one that nobody waited for");
    let Setup { backend, stream, .. } = setup;
    let error = within({
        let stream = stream.clone();
        move || stream.synchronize()
    });
    assert!(matches!(error, Err(Error::KernelPanicked { name: "panic" })), "it is told here: {error:?}");
    within(move || (stream.synchronize().expect("told once"), drop(stream)));
    assert_eq!(backend.counters().unreported, 0);
}

#[test]
fn an_error_that_nobody_asks_for_is_counted() {
    let setup = setup(4096);
    drop(setup.launch("panic", &[]));
    let Setup { backend, stream, .. } = setup;
    drop(stream);
    eventually("the stream has ended", || backend.counters().unreported == 1);
}

#[test]
fn a_kernel_s_clock_never_goes_back() {
    let setup = setup(4096);
    let result = PinnedBuffer::<u64, _>::new(Pinned::new(&setup.backend, 0), 1).expect("pinned memory");
    done(setup.launch("clock", &[address(&result)]));
    assert_eq!(result.as_slice().expect("nothing is queued"), [1]);
}

#[test]
fn an_image_of_another_abi_is_refused_with_both_tables() {
    mod ours {
        #[repr(C)]
        pub struct Order {
            pub id: u64,
            pub price: f32,
            pub quantity: u32,
        }
        ringmem::layout_table! {
            Order: size 16, align 8;
            0 id: u64, "the trader";
            8 price: f32, "the trader";
            12 quantity: u32, "the trader";
        }
    }
    mod theirs {
        #[repr(C)]
        pub struct Order {
            pub id: u64,
            pub price: f64,
            pub quantity: u64,
        }
        ringmem::layout_table! {
            Order: size 24, align 8;
            0 id: u64, "the trader";
            8 price: f64, "the trader";
            16 quantity: u64, "the trader";
        }
    }
    use ringmem::{Layout, LayoutDescriptor, TelemetryBuffer};
    const OURS: &[LayoutDescriptor] = &[<ours::Order as Layout>::DESCRIPTOR, <TelemetryBuffer<u64> as Layout>::DESCRIPTOR];
    const THEIRS: &[LayoutDescriptor] = &[<TelemetryBuffer<u64> as Layout>::DESCRIPTOR, <theirs::Order as Layout>::DESCRIPTOR];

    let backend = backend(4096);
    let image = Image { abi: Abi::of(THEIRS), ..IMAGE };
    let error = Module::load(&backend, &image, &Abi::of(OURS)).expect_err("other layouts");
    assert!(matches!(error, Error::Abi { expected, got } if (expected, got) == (Abi::of(OURS), Abi::of(THEIRS))));
    let message = error.to_string();
    for line in [
        &format!("ABI {:#018x} expected, {:#018x} got", Abi::of(OURS).hash, Abi::of(THEIRS).hash),
        "`Order`",
        "expected  size 16, align 8",
        "got       size 24, align 8",
        "expected     8  price: f32, 4 bytes",
        "got          8  price: f64, 8 bytes",
        "expected    12  quantity: u32, 4 bytes",
        "got         16  quantity: u64, 8 bytes",
    ] {
        assert!(message.contains(line), "{line:?} is not in\n{message}");
    }
    assert!(!message.contains(" id: ") && !message.contains("Telemetry"), "what is alike is left out of\n{message}");

    let one_less = Image { abi: Abi::of(const { &[OURS[0]] }), ..IMAGE };
    let message = Module::load(&backend, &one_less, &Abi::of(OURS)).expect_err("one layout is missing").to_string();
    assert!(message.contains("`TelemetryBuffer`") && message.contains("got       nothing of that name"), "{message}");
    let same = Image { abi: Abi::of(const { &[OURS[1], OURS[0]] }), ..IMAGE };
    Module::load(&backend, &same, &Abi::of(OURS)).expect("the same layouts in another order");
}

// What outlives what.

#[test]
fn a_stream_that_is_closed_takes_nothing_more() {
    let setup = setup(4096);
    let id = setup.backend.open_stream(0).expect("a stream");
    let ticket = setup.backend.mark(id).expect("it is open");
    setup.backend.close_stream(id);
    eventually("it has ended", || matches!(setup.backend.mark(id), Err(Error::StreamClosed)));
    let memory = setup.device(8);
    let fill = Fill { to: Place::Device(memory.device_address().expect("bytes")), pattern: 0, size: 1, count: 8 };
    // SAFETY: nobody else uses the memory.
    let refused = unsafe { setup.backend.fill(&fill, id) };
    assert!(matches!(refused, Err(Error::StreamClosed)), "{refused:?}");
    assert!(matches!(setup.backend.synchronize(id), Err(Error::StreamClosed)));
    assert!(matches!(setup.backend.after(ticket, setup.stream.id()), Ok(())), "what has ended is waited for already");
    let never = Ticket { number: 1000, ..ticket };
    assert!(setup.backend.reached(never) && setup.backend.wait(never, None).expect("no error"), "it will execute no more");
}

#[test]
fn a_device_outlives_its_backend_while_a_kernel_runs() {
    let setup = setup(1 << 20);
    // Nothing is kept that has the backend: neither the launch nor memory.
    drop(setup.launch("gate", &[]));
    eventually("the kernel runs", || GATE.load(Acquire) == 1);
    within(move || drop(setup));
    GATE.store(2, Release);
    eventually("the kernel has left, and used its backend", || GATE.load(Acquire) == 3);
}

#[test]
fn memory_that_a_kernel_was_given_goes_when_the_kernel_has_left() {
    let setup = setup(1 << 20);
    let held = setup.hold();
    let mut memory = setup.device(4096);
    memory.used_by(&setup.stream).expect("its own stream");
    drop(memory);
    let counters = setup.backend.counters();
    assert_eq!((counters.device_live.bytes, counters.device_frees.count), (4096, 0), "while the kernel runs");
    held.release();
    eventually("it is freed", || setup.backend.counters().device_frees == Tally { count: 1, bytes: 4096 });
    assert_eq!(setup.backend.counters().device_live.bytes, 0);
}

// Counters.

#[test]
fn counters_are_exact_after_a_script_and_nothing_is_live_at_the_end() {
    let setup = setup(1 << 20);
    let (mut a, mut b) = (setup.device(1000), setup.device(500));
    let mut pinned = PinnedBuffer::new(Pinned::new(&setup.backend, 0), 2000).expect("pinned memory");
    for len in [10, 20, 30] {
        (pinned, a) = done(setup.stream.copy_range(pinned, ..len, a, 0).expect("an upload"));
    }
    b.copy_to_at(0, &mut pinned.as_mut_slice().expect("nothing is queued")[..7]).expect("a download");
    b = done(setup.stream.fill(b, 1..3, 3).expect("a fill"));
    drop(a);
    let c = setup.device(300);
    drop(setup.launch("increment", &[address(&c), 0]));
    let Setup { backend, stream, .. } = setup;
    within(move || (stream.synchronize().expect("a live stream"), stream.synchronize().expect("a live stream")));
    drop((b, c, pinned));
    let counters = backend.counters();
    assert_eq!(counters.device_allocations, Tally { count: 3, bytes: 1800 });
    assert_eq!(counters.device_frees, Tally { count: 3, bytes: 1800 });
    assert_eq!(counters.device_live, Live { bytes: 0, peak: 1500 });
    assert_eq!(counters.pinned_allocations, Tally { count: 1, bytes: 2000 });
    assert_eq!(counters.pinned_frees, Tally { count: 1, bytes: 2000 });
    assert_eq!(counters.pinned_live, Live { bytes: 0, peak: 2000 });
    assert_eq!(counters.uploads, Tally { count: 3, bytes: 60 });
    assert_eq!(counters.downloads, Tally { count: 1, bytes: 7 });
    assert_eq!(counters.fills, Tally { count: 1, bytes: 2 });
    assert_eq!((counters.launches, counters.kernel_panics, counters.synchronizations, counters.streams), (1, 0, 2, 1));
    assert_eq!(backend.memory_info(0).expect("device 0").map(|info| info.free), Some(1 << 20));
}

// Threads.

#[test]
fn eight_threads_allocate_free_and_copy_without_meeting() {
    const { assert_shared::<(HostBackend, Stream, Module, GpuBuffer<u8>, Pending<PinnedBuffer<u8>>, Error)>() };
    let backend = &backend(8 << 20);
    let (device, pinned) = (&Device::new(backend, 0), &Pinned::new(backend, 0));
    thread::scope(|scope| {
        for thread in 0..8_u64 {
            scope.spawn(move || {
                let stream = Stream::new(backend, 0).expect("a stream");
                let mut random = thread.wrapping_mul(0x9E37_79B9_7F4A_7C15) + 1;
                let mut kept: Vec<(GpuBuffer<u8, HostBackend>, u8)> = Vec::new();
                for round in 0..200_u64 {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let (bytes, byte) = (1 + (random >> 33) as usize % 50_000, (thread * 31 + round) as u8);
                    let source = PinnedBuffer::from_slice(pinned.clone(), &vec![byte; bytes]).expect("pinned memory");
                    let memory = GpuBuffer::new(device.clone(), bytes).expect("room");
                    let (_, memory) = done(stream.copy(source, memory).expect("an upload"));
                    kept.push((memory, byte));
                    if kept.len() > 8 {
                        let (memory, byte) = kept.swap_remove((random % 8) as usize);
                        let into = PinnedBuffer::new(pinned.clone(), memory.len()).expect("pinned memory");
                        let (_, into) = done(stream.copy(memory, into).expect("a download"));
                        let bytes = into.as_slice().expect("nothing is queued");
                        assert!(bytes.iter().all(|&found| found == byte), "another thread's bytes");
                    }
                }
            });
        }
    });
    let counters = backend.counters();
    assert_eq!((counters.device_live.bytes, counters.pinned_live.bytes), (0, 0));
    assert_eq!(backend.memory_info(0).expect("device 0").map(|info| info.free), Some(8 << 20));
    assert_eq!((counters.device_allocations, counters.pinned_allocations), (counters.device_frees, counters.pinned_frees));
    assert_eq!((counters.device_allocations.count, counters.streams), (1600, 8));
    assert!(counters.device_live.peak <= 8 << 20);
}

const fn assert_shared<T: Send + Sync + 'static>() {}

/// What Linux says about this process.
#[cfg(target_os = "linux")]
mod proc {
    use std::fs;
    use std::ops::Range;
    use std::os::unix::fs::MetadataExt;
    use std::os::unix::process::{CommandExt, ExitStatusExt};
    use std::process::Command;

    use super::*;

    fn range(line: &str) -> Option<Range<u64>> {
        let (start, end) = line.split_whitespace().next()?.split_once('-')?;
        Some(u64::from_str_radix(start, 16).ok()?..u64::from_str_radix(end, 16).ok()?)
    }

    /// The lines of `/proc/self/smaps` about the mapping that an address is in.
    fn mapping(address: u64) -> Vec<String> {
        let smaps = fs::read_to_string("/proc/self/smaps").expect("Linux shows it");
        let mut lines = smaps.lines().skip_while(|line| range(line).is_none_or(|range| !range.contains(&address)));
        let first = lines.next().expect("the address is mapped");
        [first].into_iter().chain(lines.take_while(|line| range(line).is_none())).map(str::to_owned).collect()
    }

    #[test]
    fn a_device_address_is_in_no_mapping_of_the_process() {
        let setup = setup(1 << 20);
        let memory = setup.device(1 << 20);
        let pinned = setup.pinned(&[0]);
        let maps = fs::read_to_string("/proc/self/maps").expect("Linux shows it");
        let mapped: Vec<_> = maps.lines().filter_map(range).collect();
        let start = address(&memory);
        let end = start + (1 << 20);
        assert!(!mapped.iter().any(|mapping| mapping.start < end && start < mapping.end), "{start:#x}");
        assert!(mapped.iter().any(|mapping| mapping.contains(&address(&pinned))), "the test would see it");
    }

    #[test]
    fn following_a_device_address_ends_the_process() {
        const CHILD: &str = "RINGMEM_TEST_FOLLOWS_A_DEVICE_ADDRESS";
        if std::env::var_os(CHILD).is_some() {
            let setup = setup(1 << 20);
            let memory = setup.device(8);
            // SAFETY: none: this process is here to end on it.
            let byte = unsafe { std::ptr::with_exposed_provenance::<u8>(address(&memory) as usize).read_volatile() };
            println!("read {byte}");
            return;
        }
        let test = "proc::following_a_device_address_ends_the_process";
        let this = std::env::current_exe().expect("this test");
        let child = Command::new(this).args([test, "--exact", "--nocapture"]).env(CHILD, "1").output().expect("a process");
        const SIGSEGV: i32 = 11;
        assert_eq!(child.status.signal(), Some(SIGSEGV), "{child:?}");
    }

    #[test]
    fn is_pinned_says_what_the_system_says() {
        let setup = setup(4096);
        // More than any limit that is set by default, so that both answers are seen where there is a limit.
        for bytes in [4096, 64 << 20] {
            let pinned = PinnedBuffer::<u8, _>::new(Pinned::new(&setup.backend, 0), bytes).expect("pinned memory");
            let lines = mapping(address(&pinned));
            let flags = lines.iter().find(|line| line.starts_with("VmFlags:")).expect("flags");
            assert_eq!(pinned.is_pinned(), flags.split(' ').any(|flag| flag == "lo"), "{bytes} bytes: {flags}");
        }
    }

    #[test]
    fn is_pinned_says_what_the_system_says_to_a_user_with_a_limit() {
        if fs::metadata("/proc/self").expect("Linux shows it").uid() != 0 {
            return; // Not root: the test before this one is it.
        }
        const NOBODY: u32 = 65534;
        let this = std::env::current_exe().expect("this test");
        let child = Command::new(this).args(["proc::is_pinned_says_what_the_system_says", "--exact"]).uid(NOBODY).output();
        match child {
            Ok(child) => assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stdout)),
            Err(error) => println!("skipped: root may not become nobody, or nobody may not read this test: {error}"),
        }
    }

    #[test]
    fn capacity_is_not_resident_until_it_is_allocated() {
        // Alone in a process: the system shows neighbours of one kind as one mapping, and other tests' memory may be next to this.
        const CHILD: &str = "RINGMEM_TEST_MEASURES_A_MAPPING";
        if std::env::var_os(CHILD).is_none() {
            let this = std::env::current_exe().expect("this test");
            let test = "proc::capacity_is_not_resident_until_it_is_allocated";
            let child = Command::new(this).args([test, "--exact"]).env(CHILD, "1").output().expect("a process");
            assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stdout));
            return;
        }
        let setup = setup(4 << 30);
        let memory = setup.device(4096);
        let lines = mapping(setup.place(address(&memory), 4096));
        let kilobytes = |name: &str| -> u64 {
            let line = lines.iter().find(|line| line.starts_with(name)).expect("the line");
            line.split_whitespace().nth(1).expect("a figure").parse().expect("a number")
        };
        assert!(kilobytes("Size:") >= 4 << 20 && kilobytes("Rss:") <= 2048, "{lines:?}");
    }
}
