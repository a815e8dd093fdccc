//! Kernels: their panics, their clock, their image's layouts, and what must live until they end.

use std::sync::atomic::Ordering::{Acquire, Release};

use ringmem::backend::host::Tally;
use ringmem::memory::{Pinned, PinnedBuffer};
use ringmem::stream::Module;
use ringmem::{Abi, Error, Image};

use super::setup::*;

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
