use crate::clean;
mod memory;
#[cfg(target_os = "linux")]
mod proc;
#[cfg(target_os = "linux")]
use crate::rights;
mod setup;

use std::sync::atomic::Ordering::{Acquire, Release};
use std::thread;

use ringmem::backend::host::{HostBackend, Live, Tally};
use ringmem::backend::{Address, Backend, Fill, Ticket};
use ringmem::memory::{Device, GpuBuffer, Pinned, PinnedBuffer};
use ringmem::stream::{Module, Pending, Stream};
use ringmem::{Abi, Error, Image};

use setup::*;

#[test]
fn a_panicking_kernel_is_an_error_and_the_stream_continues() {
    let setup = setup(4096);
    for kernel in ["panic", "panic_twice"] {
        let error = setup.launch(kernel, &[]).wait_timeout(LIMIT).expect("in time").expect_err("it panicked");
        assert!(matches!(error.error, Error::KernelPanicked { name } if name == kernel), "{error}");
    }
    drop(setup.launch("panic", &[]));
    let memory = done(setup.stream.fill(setup.device(8), .., 1).expect("a fill"));
    assert_eq!(memory.to_vec().expect("a copy"), [1; 8]);
    drop(memory);
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
fn an_unobserved_error_is_counted_as_unreported() {
    let setup = setup(4096);
    drop(setup.launch("panic", &[]));
    let Setup { backend, stream, .. } = setup;
    drop(stream);
    eventually("the stream has ended", || backend.counters().unreported == 1);
}

#[test]
fn the_kernel_clock_is_monotonic() {
    let setup = setup(4096);
    let result = PinnedBuffer::<u64>::new(Pinned::new(&setup.backend, 0), 1).expect("pinned memory");
    done(setup.launch("clock", &[address(&result)]));
    assert_eq!(result.as_slice().expect("nothing is queued"), [1]);
}

#[test]
fn loading_an_image_of_another_abi_prints_both_layouts() {
    mod ours {
        #[derive(ringmem::SharedLayout)]
        #[repr(C)]
        pub struct Order {
            pub id: u64,
            pub price: f32,
            pub quantity: u32,
        }
    }
    mod theirs {
        #[derive(ringmem::SharedLayout)]
        #[repr(C)]
        pub struct Order {
            pub id: u64,
            pub price: f64,
            pub quantity: u64,
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

#[test]
fn a_closed_stream_rejects_further_operations() {
    let setup = setup(4096);
    let id = setup.backend.open_stream(0).expect("a stream");
    let ticket = setup.backend.record_position(id).expect("it is open");
    setup.backend.close_stream(id);
    eventually("it has ended", || matches!(setup.backend.record_position(id), Err(Error::Closed { what: "stream" })));
    let memory = setup.device(8);
    let fill = Fill { to: Address::Device(memory.device_address().expect("bytes")), pattern: 0, size: 1, count: 8 };
    // SAFETY: otherwise unused memory.
    let refused = unsafe { setup.backend.fill(&fill, id) };
    assert!(matches!(refused, Err(Error::Closed { what: "stream" })), "{refused:?}");
    assert!(matches!(setup.backend.synchronize(id), Err(Error::Closed { what: "stream" })));
    assert!(matches!(setup.backend.stream_wait(ticket, setup.stream.id()), Ok(())), "what has ended is waited for already");
    let never = Ticket { number: 1000, ..ticket };
    assert!(setup.backend.is_complete(never) && setup.backend.wait(never, None).expect("no error"), "it will execute no more");
}

#[test]
fn a_device_outlives_its_backend_while_a_kernel_runs() {
    let setup = setup(1 << 20);
    drop(setup.launch("gate", &[]));
    eventually("the kernel runs", || GATE.load(Acquire) == 1);
    within(move || drop(setup));
    GATE.store(2, Release);
    eventually("the kernel has left, and used its backend", || GATE.load(Acquire) == 3);
}

#[test]
fn memory_used_by_a_kernel_is_freed_after_it() {
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

#[test]
fn counters_are_exact_after_a_script() {
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

#[test]
fn eight_threads_allocate_and_copy_without_interference() {
    const { assert_shared::<(HostBackend, Stream, Module, GpuBuffer<u8>, Pending<PinnedBuffer<u8>>, Error)>() };
    let backend = &backend(8 << 20);
    let (device, pinned) = (&Device::new(backend, 0), &Pinned::new(backend, 0));
    thread::scope(|scope| {
        for thread in 0..8_u64 {
            scope.spawn(move || {
                let stream = Stream::new(backend, 0).expect("a stream");
                let mut random = thread.wrapping_mul(0x9E37_79B9_7F4A_7C15) + 1;
                let mut kept: Vec<(GpuBuffer<u8>, u8)> = Vec::new();
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
