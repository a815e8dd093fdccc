//! Kernels over buffers on the host backend: results, refused launches, and the order of launches.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::Duration;

use ringmem::backend::host::{Fault, Faults, HostBackend, Verb};
use ringmem::manager::MemoryManager;
use ringmem::memory::{Buffer, Device, GpuBuffer, Pinned, Unified};
use ringmem::stream::Stream;
use ringmem::{DeviceBytes, Error};
use ringmem_kernels::{Index, SharedLayout, kernels};

#[derive(Clone, Copy, Debug, PartialEq, SharedLayout)]
#[repr(C)]
pub struct Body {
    position: [f32; 3],
    mass: f32,
}

#[derive(Clone, Copy, Debug, PartialEq, SharedLayout)]
#[repr(C)]
pub struct Forces {
    gravity: [f64; 3],
    step: f32,
    limit: u32,
}

type Nothing = [u32; 0];

static MAY_END: AtomicBool = AtomicBool::new(false);
static MAY_END_TOO: AtomicBool = AtomicBool::new(false);

kernels! {
    grid fn saxpy(x: &f32, y: &mut f32, a: f32) {
        *y += a * *x;
    }

    /// A part of the names of the expansion.
    grid fn reverse(at: Index, words: &'_ [u32], host: &mut u32, mut count: u8) {
        count += at.len() as u8;
        *host = words[words.len() - 1 - at.get()] + u32::from(count);
    }

    grid fn fall(bodies: &mut Body, forces: Forces, others: &[Body], energy: &mut f64) {
        for (axis, gravity) in forces.gravity.iter().enumerate() {
            bodies.position[axis] += *gravity as f32 * forces.step;
        }
        *energy = others.iter().map(|other| f64::from(other.mass)).sum::<f64>() * f64::from(forces.limit);
    }

    grid fn count_nothing(nothing: &Nothing, none: Nothing, all: &[Nothing], count: &mut u16, add: u16) {
        let _ = (nothing, none);
        *count = all.len() as u16 + add;
    }

    grid fn only_nothing(nothing: &mut Nothing) {
        *nothing = [];
    }

    grid fn invert(x: &u32, y: &mut u32) {
        assert!(*x != 0, "no inverse");
        *y = 1000 / *x;
    }

    grid fn wait_too(x: &mut u32) {
        while !MAY_END_TOO.load(Acquire) {
            std::thread::yield_now();
        }
        *x = 1;
    }

    grid fn wait(x: &mut u32) {
        while !MAY_END.load(Acquire) {
            std::thread::yield_now();
        }
        *x = 1;
    }
}

fn backend() -> Arc<HostBackend> {
    HostBackend::builder().device_memory(64 << 20).devices(2).build().expect("a backend")
}

fn buffer<T: DeviceBytes>(backend: &Arc<HostBackend>, elements: &[T]) -> GpuBuffer<T> {
    Buffer::from_slice(Device::new(backend, 0), elements).expect("room")
}

fn stream(backend: &Arc<HostBackend>) -> Stream {
    Stream::new(backend, 0).expect("a stream")
}

#[test]
fn each_element_is_processed_once() {
    let backend = backend();
    let stream = stream(&backend);
    for len in [0, 1, 2, 31, 1000, (1 << 17) - 1, 300_001] {
        let x: Vec<f32> = (0..len).map(|i| (i % 100) as f32).collect();
        let (inputs, mut outputs) = (buffer(&backend, &x), buffer(&backend, &vec![1.0_f32; len]));
        stream.run(SAXPY, (&inputs, &mut outputs, 2.0)).expect("equal lengths");
        let expected: Vec<f32> = x.iter().map(|x| 1.0 + 2.0 * x).collect();
        assert!(outputs.to_vec().expect("a copy") == expected, "{len}");
    }
}

#[test]
fn a_kernel_has_the_place_of_its_element_and_other_buffers_whole() {
    let backend = backend();
    let (words, mut outputs) = (buffer(&backend, &[1_u32, 2, 3, 4, 5]), buffer(&backend, &[0_u32; 3]));
    stream(&backend).run(REVERSE, (&words, &mut outputs, 200)).expect("whole buffers have other lengths");
    assert_eq!(outputs.to_vec().expect("a copy"), [208, 207, 206]);
    // The function itself.
    let mut host = 0;
    reverse(Index::new(1, 2), &[7, 8, 9], &mut host, 0);
    assert_eq!(host, 10);
}

#[test]
fn elements_and_values_are_structs() {
    let backend = backend();
    let body = Body { position: [1.0, 2.0, 3.0], mass: 0.5 };
    let (mut bodies, others) = (buffer(&backend, &[body; 3]), buffer(&backend, &[body; 4]));
    let mut energy = buffer(&backend, &[0.0_f64; 3]);
    let forces = Forces { gravity: [0.0, -2.0, 4.0], step: 0.5, limit: 3 };
    stream(&backend).run(FALL, (&mut bodies, forces, &others, &mut energy)).expect("equal lengths");
    assert_eq!(bodies.to_vec().expect("a copy"), [Body { position: [1.0, 1.0, 5.0], mass: 0.5 }; 3]);
    assert_eq!(energy.to_vec().expect("a copy"), [6.0; 3]);
}

#[test]
fn elements_and_values_may_have_no_bytes() {
    let backend = backend();
    let (nothing, mut counts) = (buffer(&backend, &[[0_u32; 0]; 4]), buffer(&backend, &[0_u16; 4]));
    let stream = stream(&backend);
    let all = buffer(&backend, &[[0_u32; 0]; 9]);
    stream.run(COUNT_NOTHING, (&nothing, [], &all, &mut counts, 5)).expect("equal lengths");
    assert_eq!(counts.to_vec().expect("a copy"), [14; 4]);
    let mut only = buffer(&backend, &[[0_u32; 0]; 4]);
    stream.run(ONLY_NOTHING, (&mut only,)).expect("nothing to write");
}

#[test]
fn parts_of_a_buffer_are_lent() {
    let backend = backend();
    let mut all = buffer(&backend, &[1.0_f32, 2.0, 3.0, 4.0]);
    let (x, y) = all.as_view_mut().split_at(2).expect("inside");
    let x = x.as_view();
    stream(&backend).run(SAXPY, (x, y, 10.0)).expect("equal lengths");
    assert_eq!(all.to_vec().expect("a copy"), [1.0, 2.0, 13.0, 24.0]);
    let mut tail = buffer(&backend, &[1.0_f32]);
    stream(&backend).run(SAXPY, (all.slice(3..).expect("inside"), &mut tail, 1.0)).expect("equal lengths");
    assert_eq!(tail.to_vec().expect("a copy"), [25.0]);
}

#[test]
fn other_lengths_are_refused_with_the_names_of_both_parameters() {
    let backend = backend();
    let (x, mut y) = (buffer(&backend, &[1.0_f32; 3]), buffer(&backend, &[0.0_f32; 4]));
    let stream = stream(&backend);
    let error = stream.run(SAXPY, (&x, &mut y, 1.0)).expect_err("3 and 4");
    assert_eq!(error.to_string(), "kernel `saxpy` is called for each element: `x` has 3, and `y` has 4");
    let Error::Lengths { kernel, parameters, lengths } = error else { panic!("{error}") };
    assert_eq!((kernel, *parameters, lengths), ("saxpy", ["x", "y"], [3, 4]));
    let rejected = stream.submit(SAXPY, (x, y, 1.0)).expect_err("3 and 4");
    let (x, y, ()) = rejected.value;
    assert_eq!((x.len(), y.to_vec().expect("a copy")), (3, vec![0.0; 4]));
    assert_eq!(backend.counters().launches, 0);
}

#[test]
fn impossible_shapes_are_refused() {
    let backend = backend();
    let mut y = buffer(&backend, &[0.0_f32; 4]);
    let x = buffer(&backend, &[1.0_f32; 4]);
    for threads in [1_u32, 32, 65, 1056] {
        let error = stream(&backend).run(SAXPY.threads(threads), (&x, &mut y, 1.0)).expect_err("no such block");
        assert!(matches!(error, Error::Size { asked, least: 64, most: 1024, .. } if asked == u64::from(threads)), "{error}");
    }
    stream(&backend).run(SAXPY.threads(96).blocks(7), (&x, &mut y, 1.0)).expect("a shape");
    assert_eq!(y.to_vec().expect("a copy"), [1.0; 4]);
}

#[test]
fn memory_that_the_device_does_not_reach_is_refused() {
    let (backend, other) = (backend(), backend());
    let stream = stream(&backend);
    let x = buffer(&backend, &[1.0_f32; 2]);
    let mut foreign = buffer(&other, &[0.0_f32; 2]);
    assert!(matches!(stream.run(SAXPY, (&x, &mut foreign, 1.0)), Err(Error::OtherBackend { .. })));
    let mut far = Buffer::<f32, _>::new(Device::new(&backend, 1), 2).expect("room");
    let error = stream.run(SAXPY, (&x, &mut far, 1.0)).expect_err("of device 1");
    assert!(error.to_string().contains("another device"), "{error}");
    let mut pinned = Buffer::<f32, _>::new(Pinned::new(&backend, 1), 2).expect("room");
    stream.run(SAXPY, (&x, &mut pinned, 3.0)).expect("all devices see it");
    assert_eq!(pinned.as_slice().expect("ended"), [3.0; 2]);
}

#[test]
fn without_concurrent_access_to_managed_memory_a_launch_is_unsafe() {
    let backend = HostBackend::builder().concurrent_managed_access(false).build().expect("a backend");
    let mut y = buffer(&backend, &[0.0_f32; 2]);
    let x = buffer(&backend, &[0.0_f32; 2]);
    let error = stream(&backend).run(SAXPY, (&x, &mut y, 1.0)).expect_err("a host slice may be borrowed");
    assert!(matches!(error, Error::Unsupported { .. }), "{error}");
    let concurrent = self::backend();
    let mut managed = Buffer::<u32, _>::from_slice(Unified::new(&concurrent, 0), &[1, 2]).expect("room");
    let words = buffer(&concurrent, &[5_u32, 6]);
    stream(&concurrent).run(REVERSE, (&words, &mut managed, 0)).expect("concurrent access");
    assert_eq!(managed.as_slice().expect("ended"), [8, 7]);
}

#[test]
fn a_panic_taints_the_outputs_only() {
    let backend = backend();
    let stream = stream(&backend);
    let (mut x, mut y) = (buffer(&backend, &[1_u32, 0, 2]), buffer(&backend, &[0_u32; 3]));
    let error = stream.run(INVERT, (&x, &mut y)).expect_err("a panic");
    assert!(matches!(error, Error::KernelPanicked { name: "invert" }), "{error}");
    assert_eq!(x.to_vec().expect("only read"), [1, 0, 2]);
    assert!(matches!(y.to_vec(), Err(Error::Tainted { .. })));
    assert!(matches!(stream.run(INVERT, (&y, &mut x)), Err(Error::Tainted { .. })));
    x.copy_from(&[1, 2, 4]).expect("a copy");
    y.zero().expect("a fill");
    let (_, y) = stream.submit(INVERT, (x, y)).expect("queued").wait().expect("no zero");
    assert_eq!(y.to_vec().expect("a copy"), [1000, 500, 250]);
}

#[test]
fn submitted_kernels_come_after_each_other_on_any_stream() {
    let backend = backend();
    let streams = [stream(&backend), stream(&backend)];
    let (mut x, mut y) = (buffer(&backend, &[1.0_f32; 1000]), buffer(&backend, &[0.0_f32; 1000]));
    for round in 0..50 {
        (x, y, ()) = streams[round % 2].submit(SAXPY, (x, y, 1.0)).expect("queued").detach();
    }
    assert_eq!(backend.counters().uploads.count, 2, "no transfers between");
    let pending = streams[0].submit(SAXPY, (x, y, 0.5)).expect("queued");
    let (_, y, ()) = futures::executor::block_on(pending.into_future()).expect("no failure");
    assert_eq!(y.to_vec().expect("a copy"), [50.5; 1000]);
}

#[test]
fn leases_are_given() {
    let backend = backend();
    let memory = Device::new(&backend, 0);
    let manager = MemoryManager::new(memory.clone());
    let x = manager.register(buffer(&backend, &[1.0_f32, 2.0])).expect("room");
    let y = manager.register(buffer(&backend, &[0.0_f32; 2])).expect("room");
    let (reading, writing) = (manager.lease(x).expect("live").into_owned(), manager.lease_mut(y).expect("live").into_owned());
    let (reading, writing, ()) = stream(&backend).submit(SAXPY, (reading, writing, 4.0)).expect("queued").wait().expect("no failure");
    drop((reading, writing));
    assert_eq!(manager.lease::<f32>(y).expect("live").to_vec().expect("a copy"), [4.0, 8.0]);
}

#[test]
fn a_refused_launch_changes_nothing_and_returns_the_buffers() {
    let backend = backend();
    let stream = stream(&backend);
    let (x, mut y) = (buffer(&backend, &[1.0_f32; 2]), buffer(&backend, &[0.0_f32; 2]));
    stream.run(SAXPY, (&x, &mut y, 0.0)).expect("the image is loaded");
    backend.set_faults(&Faults::new().on(Verb::Launch, Fault::nth(1)));
    assert!(matches!(stream.run(SAXPY, (&x, &mut y, 1.0)), Err(Error::Injected { .. })));
    backend.set_faults(&Faults::new().on(Verb::Launch, Fault::nth(1)));
    let rejected = stream.submit(SAXPY, (x, y, 1.0)).expect_err("planned");
    backend.set_faults(&Faults::new());
    let (x, y, ()) = rejected.value;
    let (_, y, ()) = stream.submit(SAXPY, (x, y, 1.0)).expect("no fault").wait().expect("no fault");
    assert_eq!(y.to_vec().expect("a copy"), [1.0; 2]);
}

#[test]
fn a_kernel_comes_after_one_on_another_stream() {
    let backend = backend();
    let [first, second] = [stream(&backend), stream(&backend)];
    let (x,) = first.submit(WAIT, (buffer(&backend, &[5_u32]),)).expect("queued").detach();
    let y = buffer(&backend, &[0_u32]);
    let pending = second.submit(INVERT, (x, y)).expect("queued");
    for _ in 0..50 {
        assert!(!pending.is_done(), "its input is not written yet");
        std::thread::sleep(Duration::from_millis(1));
    }
    MAY_END.store(true, Release);
    let (_, y) = pending.wait().expect("no zero");
    assert_eq!(y.to_vec().expect("a copy"), [1000]);
}

/// The same words for each, and the same elements.
mod alike {
    pub mod one {
        ringmem_kernels::kernels! {
            grid fn change(x: &u64, y: &mut u64, all: &[u64]) { *y = x + all[0]; }
        }
    }
    pub mod two {
        ringmem_kernels::kernels! {
            grid fn change(x: &mut u64, y: &u64, all: &[u64]) { *x = y + all[0]; }
        }
    }
    pub mod three {
        ringmem_kernels::kernels! {
            grid fn change(x: &u64, y: &mut u64, first: u64, second: u64) { *y = x + first + second; }
        }
    }
}

#[test]
fn an_image_with_other_parameters_has_another_hash() {
    let [one, two, three] = [alike::one::ABI, alike::two::ABI, alike::three::ABI];
    assert!(one.hash != two.hash && two.hash != three.hash && three.hash != one.hash);
    assert!(one.layouts == two.layouts && two.layouts == three.layouts, "only the parameters differ");
    for (image, words) in [(alike::one::IMAGE, 5), (alike::two::IMAGE, 5), (alike::three::IMAGE, 5)] {
        assert_eq!((image.host[0].arguments, image.host.len()), (words, 1));
        assert_ne!(image.abi.hash, ringmem::set_hash(image.abi.layouts));
    }
}

/// A destructor that runs during a panic submits a kernel, and then opens the gate that the kernel waits for.
#[test]
fn a_launch_during_a_panic_waits_for_nothing() {
    struct Guard(Option<(Stream, GpuBuffer<u32>)>);
    impl Drop for Guard {
        fn drop(&mut self) {
            let (stream, x) = self.0.take().expect("once");
            let pending = stream.submit(WAIT_TOO, (x,)).expect("queued");
            MAY_END_TOO.store(true, Release);
            pending.wait().expect("it ends");
        }
    }
    let backend = backend();
    let guard = Guard(Some((stream(&backend), buffer(&backend, &[0]))));
    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _guard = guard;
        std::panic::resume_unwind(Box::new(()));
    }));
    assert!(ended.is_err());
}
