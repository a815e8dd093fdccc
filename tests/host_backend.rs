//! The host backend: what it promises in the header of `backend::host`, seen from outside.
#![cfg(feature = "std")]

use std::mem;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use ringmem::backend::host::{DeviceMemory, HostBackend, Live, Module, POISON, Pending, PinnedMemory, Stream, Tally};
use ringmem::image::{Entry, KernelHost};
use ringmem::{Abi, Error, Image, LAYOUTS};

/// No wait is longer.
const LIMIT: Duration = Duration::from_secs(30);

// Kernels.

const KERNELS: &[Entry] = &[
    Entry { name: "hold", arguments: 2, run: hold },
    Entry { name: "increment", arguments: 2, run: increment },
    Entry { name: "panic", arguments: 0, run: panic },
    Entry { name: "panic_twice", arguments: 0, run: panic_twice },
    Entry { name: "translate", arguments: 3, run: translate },
    Entry { name: "clock", arguments: 1, run: clock },
];

const IMAGE: Image = Image { ptx: b"", host: KERNELS, abi: Abi::of(LAYOUTS) };

/// The word at an address.
fn word(host: &dyn KernelHost, address: u64) -> &AtomicU64 {
    let place = host.translate(address, 8).expect("a mapped word");
    // SAFETY: the tests pass live, aligned words, which all sides use as atomics while a kernel runs.
    unsafe { place.cast().as_ref() }
}

/// Says that it runs in the first word, and leaves when the second is set. Whatever the other argument names, it does not touch.
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

// What every test needs.

struct Setup {
    backend: HostBackend,
    stream: Stream,
    module: Module,
}

fn setup(device_memory: u64) -> Setup {
    let backend = HostBackend::builder().device_memory(device_memory).build().expect("a backend");
    let stream = backend.stream().expect("a stream");
    let module = backend.load(&IMAGE, &Abi::of(LAYOUTS)).expect("the image has our ABI");
    Setup { backend, stream, module }
}

impl Setup {
    fn pinned(&self, bytes: u64, byte: u8) -> PinnedMemory {
        let mut pinned = self.backend.alloc_pinned(bytes).expect("pinned memory");
        pinned.as_mut_slice().fill(byte);
        pinned
    }

    fn bytes_of(&self, memory: &DeviceMemory, offset: u64, len: u64) -> Vec<u8> {
        let into = self.pinned(len, 0);
        done(self.stream.download(memory, offset, into, len).expect("a download")).as_slice().to_vec()
    }

    /// Where so many bytes at an address are, as a kernel sees it; 0 for nowhere.
    fn place(&self, address: u64, bytes: u64) -> u64 {
        self.place_by(&self.pinned(8, 0), address, bytes)
    }

    fn place_by(&self, result: &PinnedMemory, address: u64, bytes: u64) -> u64 {
        // SAFETY: the kernel writes to the result alone, which it is done with before it is read.
        let pending = unsafe { self.stream.launch(&self.module, "translate", &[address, bytes, result.device_address().get()]) };
        done(pending.expect("a launch"));
        u64::from_ne_bytes(result.as_slice().try_into().expect("eight bytes"))
    }

    /// A kernel that occupies the stream, running.
    fn hold(&self, other: u64) -> Held {
        let words = self.pinned(16, 0);
        // SAFETY: the words are atomics on both sides, and the launch names them.
        let pending = unsafe { self.stream.launch(&self.module, "hold", &[words.device_address().get(), other]) }.expect("a launch");
        let held = Held { words, pending: Some(pending) };
        eventually("the kernel runs", || held.word(0).load(Acquire) == 1);
        held
    }
}

struct Held {
    words: PinnedMemory,
    pending: Option<Pending<()>>,
}

impl Held {
    fn word(&self, index: usize) -> &AtomicU64 {
        // SAFETY: within sixteen aligned bytes that live as long as `self` and are atomics on both sides.
        unsafe { self.words.as_ptr().cast::<AtomicU64>().add(index).as_ref() }
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

fn done<T>(pending: Pending<T>) -> T {
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

// Transfers.

#[test]
fn bytes_come_back_at_every_size_and_offset_and_their_neighbours_stay() {
    let setup = setup(8 << 20);
    for size in [1, 7, 64, 4096, 65_537, 1 << 20] {
        for offset in [0, 1, 63, 4096] {
            let memory = setup.backend.alloc_device(offset + size + 16, 128).expect("room");
            let mut source = setup.pinned(size, 0);
            for (i, byte) in source.as_mut_slice().iter_mut().enumerate() {
                *byte = (i * 31 + 7) as u8;
            }
            let source = done(setup.stream.upload(source, size, &memory, offset).expect("an upload"));
            assert!(setup.bytes_of(&memory, offset, size) == source.as_slice(), "{size} bytes at {offset}");
            assert!(setup.bytes_of(&memory, offset + size, 16).iter().all(|&byte| byte == POISON), "after {size} bytes at {offset}");
            if offset > 0 {
                assert!(setup.bytes_of(&memory, 0, offset).iter().all(|&byte| byte == POISON), "before {size} bytes at {offset}");
            }
        }
    }
}

#[test]
fn a_fill_sets_its_range_and_no_more() {
    let setup = setup(1 << 20);
    let memory = setup.backend.alloc_device(100, 1).expect("room");
    done(setup.stream.fill(&memory, 10, 20, 5).expect("a fill"));
    let bytes = setup.bytes_of(&memory, 0, 100);
    for (i, &byte) in bytes.iter().enumerate() {
        assert_eq!(byte, if (10..30).contains(&i) { 5 } else { POISON }, "byte {i}");
    }
}

#[test]
fn an_upload_returns_before_it_is_executed_and_reads_its_source_when_it_is() {
    let setup = setup(1 << 20);
    let memory = setup.backend.alloc_device(4096, 128).expect("room");
    let source = setup.pinned(4096, 1);
    let place = source.as_ptr();
    let held = setup.hold(0);
    let pending = setup.stream.upload(source, 4096, &memory, 0).expect("an upload");
    assert!(!pending.is_done());
    let pending = pending.try_take().expect_err("a kernel is in front of it");
    let pending = pending.wait_timeout(Duration::from_millis(20)).expect_err("a kernel is in front of it");
    assert_eq!(setup.backend.counters().uploads.count, 0);
    // SAFETY: the pending upload keeps the memory, and the kernel that is in front of it keeps everybody from reading it.
    unsafe { place.write_bytes(2, 4096) };
    held.release();
    let source = done(pending);
    assert_eq!(source.as_ptr(), place, "the same memory comes back");
    assert!(setup.bytes_of(&memory, 0, 4096).iter().all(|&byte| byte == 2));
    assert_eq!(setup.backend.counters().uploads, Tally { count: 1, bytes: 4096 });
}

#[test]
fn transfers_of_one_block_on_several_streams_do_not_tear_each_other() {
    const BYTES: u64 = 4 << 20;
    let setup = &setup(BYTES);
    let memory = &setup.backend.alloc_device(BYTES, 128).expect("room");
    let (stop, begun) = (&AtomicBool::new(false), Instant::now());
    done(setup.stream.fill(memory, 0, BYTES, 0).expect("a fill"));
    thread::scope(|scope| {
        for byte in [1, 2] {
            scope.spawn(move || {
                let stream = setup.backend.stream().expect("a stream");
                while !stop.load(Acquire) && begun.elapsed() < LIMIT {
                    // Several, so that the stream does not stop between two.
                    let fills: [_; 8] = std::array::from_fn(|_| stream.fill(memory, 0, BYTES, byte).expect("a fill"));
                    fills.into_iter().for_each(done);
                }
            });
        }
        let mut into = setup.pinned(BYTES, 0);
        let mut torn = 0;
        for _ in 0..100 {
            into = done(setup.stream.download(memory, 0, into, BYTES).expect("a download"));
            let first = into.as_slice()[0];
            torn += usize::from(into.as_slice().iter().any(|&byte| byte != first));
        }
        stop.store(true, Release);
        assert_eq!(torn, 0, "of 100 downloads, so many saw a part of a fill");
    });
}

#[test]
fn what_does_not_fit_is_refused_before_it_is_queued_and_comes_back() {
    let Setup { backend, stream, .. } = setup(1 << 20);
    let memory = backend.alloc_device(100, 1).expect("room");
    let mut pinned = backend.alloc_pinned(200).expect("pinned memory");
    for (offset, len, size) in
        [(0, 101, 100), (100, 1, 100), (1, u64::MAX, 100), (u64::MAX, 1, 100), (u64::MAX, u64::MAX, 100), (0, 201, 100)]
    {
        let rejected = stream.upload(pinned, len, &memory, offset).expect_err("too much");
        assert!(matches!(rejected.error, Error::Range { offset: o, len: l, size: s } if (o, l, s) == (offset, len, size)), "{rejected:?}");
        let rejected = stream.download(&memory, offset, rejected.value, len).expect_err("too much");
        assert!(matches!(rejected.error, Error::Range { offset: o, len: l, size: s } if (o, l, s) == (offset, len, size)), "{rejected:?}");
        pinned = rejected.value;
        let error = stream.fill(&memory, offset, len, 0).expect_err("too much");
        assert_eq!(error.to_string(), format!("{len} bytes at offset {offset} are not within 100 bytes"));
    }
    let large = backend.alloc_device(400, 1).expect("room");
    let rejected = stream.upload(pinned, 201, &large, 0).expect_err("more than the source has");
    assert!(matches!(rejected.error, Error::Range { offset: 0, len: 201, size: 200 }));
    done(stream.upload(rejected.value, 0, &memory, 100).expect("nothing, at the end"));
    let counters = backend.counters();
    assert_eq!((counters.uploads.count, counters.downloads.count, counters.fills.count), (1, 0, 0));
}

#[test]
fn what_belongs_to_another_backend_is_refused() {
    let (ours, theirs) = (setup(1 << 20), setup(1 << 20));
    let (memory, foreign) = (ours.backend.alloc_device(8, 8).expect("room"), theirs.backend.alloc_device(8, 8).expect("room"));
    assert_ne!(memory.address(), foreign.address());
    let rejected = ours.stream.upload(ours.pinned(8, 0), 8, &foreign, 0).expect_err("foreign device memory");
    assert!(matches!(rejected.error, Error::OtherBackend { .. }));
    let rejected = ours.stream.download(&memory, 0, theirs.pinned(8, 0), 8).expect_err("foreign pinned memory");
    assert!(matches!(rejected.error, Error::OtherBackend { .. }));
    assert!(matches!(ours.stream.fill(&foreign, 0, 8, 0), Err(Error::OtherBackend { .. })));
    // SAFETY: it is not launched.
    assert!(matches!(unsafe { ours.stream.launch(&theirs.module, "panic", &[]) }, Err(Error::OtherBackend { .. })));
    assert_eq!(ours.place(foreign.address().get(), 8), 0);
}

// Device memory.

#[test]
fn memory_is_poisoned_when_it_is_allocated_and_again_when_it_is_freed() {
    let setup = setup(1 << 20);
    let memory = setup.backend.alloc_device(5000, 128).expect("room");
    assert!(setup.bytes_of(&memory, 0, 5000).iter().all(|&byte| byte == POISON), "fresh");
    done(setup.stream.fill(&memory, 0, 5000, 0).expect("a fill"));
    let address = memory.address();
    let place = setup.place(address.get(), 5000) as usize;
    drop(memory);
    for i in 0..5000 {
        // SAFETY: the backend lives, so its memory is mapped, and nobody else allocates here.
        let byte = unsafe { std::ptr::with_exposed_provenance::<u8>(place + i).read() };
        assert_eq!(byte, POISON, "byte {i} after the free");
        // SAFETY: as above.
        unsafe { std::ptr::with_exposed_provenance_mut::<u8>(place + i).write(1) };
    }
    let memory = setup.backend.alloc_device(5000, 128).expect("room");
    assert_eq!(memory.address(), address, "first fit");
    assert!(setup.bytes_of(&memory, 0, 5000).iter().all(|&byte| byte == POISON), "reused, after a stray write");
}

#[test]
fn out_of_memory_says_what_was_requested_free_and_largest_and_is_over_after_frees() {
    let Setup { backend, .. } = setup(4096);
    let blocks: Vec<_> = (0..4).map(|_| backend.alloc_device(1024, 1024).expect("room for four")).collect();
    let error = backend.alloc_device(1, 1).expect_err("it is full");
    assert!(matches!(error, Error::OutOfMemory { requested: 1, free: 0, largest: 0 }), "{error}");
    let [a, b, c, d] = blocks.try_into().expect("four");
    drop((a, c));
    let error = backend.alloc_device(1025, 1).expect_err("two holes");
    assert!(matches!(error, Error::OutOfMemory { requested: 1025, free: 2048, largest: 1024 }), "{error}");
    let error = backend.alloc_device(u64::MAX, 1).expect_err("more than numbers have");
    assert!(matches!(error, Error::OutOfMemory { requested: u64::MAX, free: 2048, largest: 1024 }), "{error}");
    assert_eq!(backend.memory_info().free, 2048);
    drop(b);
    let joined = backend.alloc_device(3072, 1).expect("the first three, joined");
    drop((d, joined));
    backend.alloc_device(4096, 1).expect("all of it again");
    assert_eq!(backend.memory_info(), ringmem::backend::MemoryInfo { total: 4096, free: 4096 });
}

#[test]
fn addresses_are_aligned_and_so_are_their_places() {
    // Odd capacities: the system aligns round ones by itself.
    for odd in 1..=4 {
        let setup = setup((16 << 20) + odd * 4096);
        let mut kept = Vec::new();
        for shift in 0..=21 {
            let align = 1 << shift;
            kept.push(setup.backend.alloc_device(3, 1).expect("room"));
            let memory = setup.backend.alloc_device(64, align).expect("room");
            let address = memory.address().get();
            let place = setup.place(address, 64);
            assert!(
                place != 0 && address.is_multiple_of(align) && place.is_multiple_of(align),
                "{address:#x} is at {place:#x}, alignment {align}"
            );
            kept.push(memory);
        }
    }
    let setup = setup(4096);
    for align in [0, 3, 4 << 20, u64::MAX] {
        assert!(matches!(setup.backend.alloc_device(8, align), Err(Error::Align { asked, .. }) if asked == align));
    }
}

#[test]
fn sizes_that_cannot_be_had_are_errors_that_name_them() {
    for bytes in [0, (1 << 40) + 1, u64::MAX] {
        let error = HostBackend::builder().device_memory(bytes).build().expect_err("absurd");
        assert!(matches!(error, Error::Size { asked, least: 1, most } if asked == bytes && most <= 1 << 40), "{error}");
    }
    let Setup { backend, .. } = setup(4096);
    assert!(matches!(backend.alloc_device(0, 1), Err(Error::Size { asked: 0, least: 1, most: 4096 })));
    assert!(matches!(backend.alloc_pinned(0), Err(Error::Size { asked: 0, least: 1, .. })));
    assert!(matches!(backend.alloc_pinned(u64::MAX), Err(Error::Size { asked: u64::MAX, .. })));
    let error = backend.alloc_pinned(1 << 50).expect_err("more than any machine has");
    assert!(matches!(error, Error::Map { bytes: 0x4_0000_0000_0000, .. }) && std::error::Error::source(&error).is_some(), "{error}");
}

#[test]
fn a_kernel_reaches_live_memory_of_its_backend_and_nothing_else() {
    let setup = setup(1 << 20);
    let pinned = setup.pinned(100, 0);
    let memory = setup.backend.alloc_device(100, 128).expect("room");
    let (device, host) = (memory.address().get(), pinned.device_address().get());
    assert_eq!(host, pinned.as_ptr().as_ptr() as u64);
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
    for address in [0, 1, u64::MAX, &raw const on_the_stack as u64, device + 4096] {
        assert_eq!(setup.place(address, 1), 0, "{address:#x}");
    }
    // Allocated before the free, or it would be where the freed memory was.
    let result = setup.pinned(8, 0);
    drop((memory, pinned));
    assert_eq!([device, host].map(|address| setup.place_by(&result, address, 1)), [0, 0], "freed");
}

// Pinned memory.

#[test]
fn pinned_memory_is_zeroed_and_page_aligned() {
    let Setup { backend, .. } = setup(4096);
    for bytes in [1, 4096, 100_000] {
        for _ in 0..3 {
            let mut pinned = backend.alloc_pinned(bytes).expect("pinned memory");
            assert_eq!((pinned.len(), pinned.as_slice().len() as u64, pinned.as_ptr().as_ptr() as usize % 4096), (bytes, bytes, 0));
            assert!(pinned.as_slice().iter().all(|&byte| byte == 0));
            pinned.as_mut_slice().fill(0xFF);
        }
    }
}

// Kernels.

#[test]
fn a_kernel_works_on_device_memory_in_order_with_the_transfers_around_it() {
    let setup = setup(1 << 20);
    let memory = setup.backend.alloc_device(1000, 8).expect("room");
    setup.stream.fill(&memory, 0, 1000, 3).expect("a fill");
    for _ in 0..5 {
        // SAFETY: nothing else is at the memory, and the wait below is for the whole stream.
        unsafe { setup.stream.launch(&setup.module, "increment", &[memory.address().get(), 1000]) }.expect("a launch");
    }
    assert!(setup.bytes_of(&memory, 0, 1000).iter().all(|&byte| byte == 8));
    let counters = setup.backend.counters();
    assert_eq!((counters.launches, counters.kernel_panics), (5, 0));
}

#[test]
fn an_unknown_kernel_or_a_wrong_number_of_arguments_is_refused_before_it_is_queued() {
    let setup = setup(4096);
    // SAFETY: it is not launched.
    let error = unsafe { setup.stream.launch(&setup.module, "grow", &[]) }.expect_err("there is none");
    assert!(matches!(&error, Error::UnknownKernel { asked, known } if &**asked == "grow" && known.len() == KERNELS.len()), "{error:?}");
    assert_eq!(error.to_string(), r#"no kernel `grow` among ["hold", "increment", "panic", "panic_twice", "translate", "clock"]"#);
    for given in [0, 1, 3] {
        // SAFETY: it is not launched.
        let error = unsafe { setup.stream.launch(&setup.module, "increment", &[0; 3][..given]) }.expect_err("it takes two");
        assert!(matches!(error, Error::Arguments { name: "increment", expected: 2, got } if got == given), "{error}");
    }
    let Setup { backend, stream, .. } = setup;
    within(move || stream.synchronize()).expect("nothing is in the way");
    assert_eq!(backend.counters().launches, 0);
}

#[test]
fn a_kernel_that_panics_is_an_error_and_the_stream_goes_on() {
    let setup = setup(4096);
    // SAFETY: they take nothing and touch nothing.
    let launch = |name| unsafe { setup.stream.launch(&setup.module, name, &[]) }.expect("a launch");
    for kernel in ["panic", "panic_twice"] {
        let error = launch(kernel).wait_timeout(LIMIT).expect("in time").expect_err("it panicked");
        assert!(matches!(error, Error::KernelPanicked { name } if name == kernel), "{error}");
    }
    drop(launch("panic"));
    let memory = setup.backend.alloc_device(8, 8).expect("room");
    done(setup.stream.fill(&memory, 0, 8, 1).expect("a fill"));
    assert_eq!(setup.backend.counters().kernel_panics, 3, "also the one that nobody waited for");
}

#[test]
fn a_kernel_s_clock_never_goes_back() {
    let setup = setup(4096);
    let result = setup.pinned(8, 0);
    // SAFETY: the kernel writes to the result alone, which it is done with before it is read.
    done(unsafe { setup.stream.launch(&setup.module, "clock", &[result.device_address().get()]) }.expect("a launch"));
    assert_eq!(result.as_slice()[0], 1);
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

    let Setup { backend, .. } = setup(4096);
    let image = Image { abi: Abi::of(THEIRS), ..IMAGE };
    let error = backend.load(&image, &Abi::of(OURS)).expect_err("other layouts");
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
    let message = backend.load(&one_less, &Abi::of(OURS)).expect_err("one layout is missing").to_string();
    assert!(message.contains("`TelemetryBuffer`") && message.contains("got       nothing of that name"), "{message}");
    let same = Image { abi: Abi::of(const { &[OURS[1], OURS[0]] }), ..IMAGE };
    backend.load(&same, &Abi::of(OURS)).expect("the same layouts in another order");
}

// What outlives what.

#[test]
fn memory_dropped_with_an_upload_queued_is_freed_after_it() {
    let setup = setup(1 << 20);
    let memory = setup.backend.alloc_device(4096, 128).expect("room");
    let (address, source) = (memory.address().get(), setup.pinned(4096, 9));
    let held = setup.hold(0);
    let pending = setup.stream.upload(source, 4096, &memory, 0).expect("an upload");
    drop(memory);
    let counters = setup.backend.counters();
    assert_eq!((counters.device_live.bytes, counters.device_frees.count, counters.uploads.count), (4096, 0, 0), "while it is queued");
    let other = setup.backend.alloc_device(4096, 128).expect("room");
    assert_ne!(other.address().get(), address, "nobody else gets it meanwhile");
    held.release();
    done(pending);
    let counters = setup.backend.counters();
    assert_eq!((counters.device_live.bytes, counters.device_frees.count, counters.uploads.count), (4096, 1, 1), "after it");
}

#[test]
fn a_pending_that_is_dropped_or_forgotten_leaves_its_operation_as_it_was() {
    let setup = setup(1 << 20);
    let memory = setup.backend.alloc_device(64, 128).expect("room");
    let (forgotten, dropped) = (setup.pinned(32, 1), setup.pinned(32, 2));
    let held = setup.hold(0);
    mem::forget(setup.stream.upload(forgotten, 32, &memory, 0).expect("an upload"));
    drop(setup.stream.upload(dropped, 32, &memory, 32).expect("an upload"));
    assert_eq!(setup.backend.counters().pinned_frees.count, 0, "the stream owns both");
    held.release();
    assert_eq!(setup.bytes_of(&memory, 0, 64), [[1; 32], [2; 32]].concat());
    // The words of the holding kernel, the dropped source, and what was just downloaded into; the forgotten one is lost to all.
    assert_eq!(setup.backend.counters().pinned_frees.count, 3);
}

#[test]
fn dropping_a_stream_executes_what_is_queued() {
    let Setup { backend, stream, .. } = setup(8 << 20);
    let memory = backend.alloc_device(4 << 20, 128).expect("room");
    let pending: Vec<_> = (0..20).map(|i| stream.fill(&memory, 0, 4 << 20, i).expect("a fill")).collect();
    within(move || drop(stream));
    assert!(pending.iter().all(Pending::is_done));
    assert_eq!(backend.counters().fills.count, 20);
}

#[test]
fn dropping_a_stream_neither_waits_for_its_kernel_nor_frees_what_the_kernel_was_given() {
    let setup = setup(1 << 20);
    let (memory, later) = (setup.backend.alloc_device(4096, 128).expect("room"), setup.backend.alloc_device(64, 8).expect("room"));
    let mut held = setup.hold(memory.address().get());
    let running = held.pending.take().expect("taken here only");
    let queued = setup.stream.fill(&later, 0, 64, 1).expect("a fill");
    let Setup { backend, stream, module } = setup;
    within(move || drop(stream));
    drop((memory, later, module));
    assert!(!running.is_done() && !queued.is_done());
    assert_eq!(backend.counters().device_live.bytes, 4096 + 64, "the kernel and what is queued behind it have them");
    held.word(1).store(1, Release);
    done(running);
    done(queued);
    assert_eq!(backend.counters().device_live.bytes, 0);
    assert_eq!(backend.counters().fills.count, 1);
}

#[test]
fn a_device_outlives_its_backend_while_a_kernel_runs() {
    let setup = setup(1 << 20);
    let mut held = setup.hold(0);
    let running = held.pending.take().expect("taken here only");
    within(move || drop(setup));
    held.word(1).store(1, Release);
    done(running);
}

// Counters.

#[test]
fn counters_are_exact_after_a_script_and_nothing_is_live_at_the_end() {
    let setup = setup(1 << 20);
    let a = setup.backend.alloc_device(1000, 1).expect("room");
    let b = setup.backend.alloc_device(500, 256).expect("room");
    let mut pinned = setup.pinned(2000, 0);
    for len in [10, 20, 30] {
        pinned = done(setup.stream.upload(pinned, len, &a, 0).expect("an upload"));
    }
    pinned = done(setup.stream.download(&b, 0, pinned, 7).expect("a download"));
    done(setup.stream.fill(&b, 1, 2, 3).expect("a fill"));
    drop(a);
    let c = setup.backend.alloc_device(300, 1).expect("room");
    // SAFETY: nothing else is at the memory until the stream was waited for.
    unsafe { setup.stream.launch(&setup.module, "increment", &[c.address().get(), 0]) }.expect("a launch");
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
    assert_eq!(backend.memory_info().free, 1 << 20);
}

// Threads.

#[test]
fn eight_threads_allocate_free_and_copy_without_meeting() {
    const { assert_shared::<(HostBackend, Stream, Module, DeviceMemory, PinnedMemory, Pending<PinnedMemory>, Error)>() };
    let Setup { backend, .. } = &setup(8 << 20);
    thread::scope(|scope| {
        for thread in 0..8_u64 {
            scope.spawn(move || {
                let stream = backend.stream().expect("a stream");
                let mut random = thread.wrapping_mul(0x9E37_79B9_7F4A_7C15) + 1;
                let mut kept: Vec<(DeviceMemory, u8)> = Vec::new();
                for round in 0..200_u64 {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let bytes = 1 + (random >> 33) % 50_000;
                    let (memory, byte) = (backend.alloc_device(bytes, 1 << (random % 9)).expect("room"), (thread * 31 + round) as u8);
                    let mut source = backend.alloc_pinned(bytes).expect("pinned memory");
                    source.as_mut_slice().fill(byte);
                    done(stream.upload(source, bytes, &memory, 0).expect("an upload"));
                    kept.push((memory, byte));
                    if kept.len() > 8 {
                        let (memory, byte) = kept.swap_remove((random % 8) as usize);
                        let into = backend.alloc_pinned(memory.len()).expect("pinned memory");
                        let into = done(stream.download(&memory, 0, into, memory.len()).expect("a download"));
                        assert!(into.as_slice().iter().all(|&found| found == byte), "another thread's bytes");
                    }
                }
            });
        }
    });
    let counters = backend.counters();
    assert_eq!((counters.device_live.bytes, counters.pinned_live.bytes, backend.memory_info().free), (0, 0, 8 << 20));
    assert_eq!((counters.device_allocations, counters.pinned_allocations), (counters.device_frees, counters.pinned_frees));
    assert_eq!((counters.device_allocations.count, counters.uploads.count, counters.streams), (1600, 1600, 9));
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
        let memory = setup.backend.alloc_device(1 << 20, 1).expect("all of it");
        let pinned = setup.pinned(1, 0);
        let maps = fs::read_to_string("/proc/self/maps").expect("Linux shows it");
        let mapped: Vec<_> = maps.lines().filter_map(range).collect();
        let (start, end) = (memory.address().get(), memory.address().offset(1 << 20).expect("within the numbers").get());
        assert!(!mapped.iter().any(|mapping| mapping.start < end && start < mapping.end), "{start:#x}");
        assert!(mapped.iter().any(|mapping| mapping.contains(&pinned.device_address().get())), "the test would see it");
    }

    #[test]
    fn following_a_device_address_ends_the_process() {
        const CHILD: &str = "RINGMEM_TEST_FOLLOWS_A_DEVICE_ADDRESS";
        if std::env::var_os(CHILD).is_some() {
            let setup = setup(1 << 20);
            let memory = setup.backend.alloc_device(8, 8).expect("room");
            // SAFETY: none: this process is here to end on it.
            let byte = unsafe { std::ptr::with_exposed_provenance::<u8>(memory.address().get() as usize).read_volatile() };
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
            let pinned = setup.backend.alloc_pinned(bytes).expect("pinned memory");
            let lines = mapping(pinned.device_address().get());
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
        let setup = setup(4 << 30);
        let memory = setup.backend.alloc_device(4096, 4096).expect("room");
        let lines = mapping(setup.place(memory.address().get(), 4096));
        let kilobytes = |name: &str| -> u64 {
            let line = lines.iter().find(|line| line.starts_with(name)).expect("the line");
            line.split_whitespace().nth(1).expect("a figure").parse().expect("a number")
        };
        assert!(kilobytes("Size:") >= 4 << 20 && kilobytes("Rss:") <= 2048, "{lines:?}");
    }
}
