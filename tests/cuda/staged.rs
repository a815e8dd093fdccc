use std::sync::Arc;
use std::thread;
use std::time::Duration;

use ringmem::Error;
use ringmem::backend::Backend;
use ringmem::backend::cuda::CudaBackend;
use ringmem::memory::{Buffer, Device, GpuBuffer, Host, HostReadable, Memory, Pinned};
use ringmem::stream::{Pending, Queued, Stream};

use crate::busy_stream::Held;
use crate::rig::{self, Double, LIMIT, Step, alone, soon};

const PART: usize = 1 << 20;
const PARTS: usize = 5;
const LEN: usize = (PARTS - 1) * PART + 777;

fn byte(index: usize, seed: u8) -> u8 {
    (index + index / 4096 * 31 + index / PART * 37) as u8 ^ seed
}

fn host(backend: &Arc<CudaBackend>, len: usize, seed: u8) -> Buffer<u8, Host> {
    let bytes: Vec<u8> = (0..len).map(|index| byte(index, seed)).collect();
    Buffer::from_slice(Host::new(backend, 0), &bytes).expect("room")
}

fn gpu(backend: &Arc<CudaBackend>, len: usize) -> GpuBuffer<u8> {
    Buffer::new(Device::new(backend, 0), len).expect("room")
}

fn is_of(bytes: &[u8], seed: u8) -> bool {
    bytes.iter().enumerate().all(|(index, found)| *found == byte(index, seed))
}

/// On more streams than stagers: some copies use one stream and one staging.
fn chains() {
    let backend = rig::open();
    let streams = [(); 4].map(|()| Stream::new(&backend, 0).expect("a stream"));
    for round in 0..3_u8 {
        let held: Vec<Held> = streams.iter().map(Held::on).collect();
        let chains: Vec<_> = (round * 4..)
            .zip(&streams)
            .map(|(seed, stream)| {
                let (source, device) = stream.copy(host(&backend, LEN, seed), gpu(&backend, LEN)).expect("as many").detach();
                let source = stream.fill(source, .., !seed).expect("queued").detach();
                let (device, target) = stream.copy(device, host(&backend, LEN, 0)).expect("as many").detach();
                let device = stream.fill(device, .., !seed).expect("queued").detach();
                let pinned = Buffer::<u8, _>::new(Pinned::new(&backend, 0), LEN).expect("room");
                let (target, pinned) = stream.copy(target, pinned).expect("as many").detach();
                let target = stream.fill(target, .., !seed).expect("queued");
                (seed, source, device, target, pinned)
            })
            .collect();
        drop(held);
        for (seed, source, device, target, pinned) in chains {
            let target = target.wait().expect("done");
            assert!(is_of(pinned.as_slice().expect("nothing is queued"), seed), "{seed}");
            for rest in [source.as_slice().expect("nothing is queued"), target.as_slice().expect("nothing is queued")] {
                assert!(rest.iter().all(|found| *found == !seed), "{seed}");
            }
            drop(device);
        }
    }
}

fn settle() {
    thread::sleep(Duration::from_millis(20));
}

/// Queues a copy behind a kernel and holds the second step of one part. The first steps continue with the next part only.
fn with_a_part_held<T: Queued>(stream: &Stream, [first, second]: [Step; 2], number: u64, queue: impl FnOnce() -> Pending<T>) -> T {
    let double = Double::new();
    let kernel = Held::on(stream);
    double.hold(second, number);
    let pending = queue();
    settle();
    assert_eq!((double.executed(first), double.executed(second)), (0, 0), "the kernel is first");
    drop(kernel);
    let reached = (number + 1).min(PARTS as u64);
    assert!(soon(|| double.executed(first) == reached), "{} while {number} is held", double.executed(first));
    settle();
    assert_eq!((double.executed(first), double.executed(second)), (reached, number - 1), "{number} is held");
    assert!(!pending.is_done(), "{number} is held");
    double.hold(second, 0);
    pending.wait().unwrap_or_else(|rejected| panic!("{}", rejected.error))
}

const CALLS: [&str; 4] = ["cuStreamWaitEvent", "cuLaunchHostFunc", "cuEventRecord", "cuMemcpyDtoHAsync_v2"];

/// Returns the calls of a download, one of which fails. No host function writes to the target later.
fn download(backend: &Arc<CudaBackend>, double: &Double, stream: &Stream, fails: Option<(&str, u64, u64)>) -> [u64; 4] {
    let mut device = gpu(backend, LEN);
    device.copy_from(&vec![1; LEN]).expect("a copy");
    let target = host(backend, LEN, 0);
    let (small, pinned) = (gpu(backend, 100), Buffer::<u8, _>::new(Pinned::new(backend, 0), 100).expect("room"));
    let held = Held::on(stream);
    double.reset();
    if let Some((symbol, number, _)) = fails {
        double.fail(symbol, number, 999);
    }
    let queued = stream.copy(device, target);
    let calls = CALLS.map(|symbol| double.calls(symbol));
    double.reset();
    let kept;
    let copied = match (queued, fails) {
        (Ok(pending), Some((symbol, number, waits))) => {
            let is_joined = calls[0] == waits && (symbol, number) != (CALLS[0], waits);
            let functions = calls[1] - u64::from(symbol == CALLS[1]);
            if !is_joined {
                // The last host function runs after the operation. 0: none does.
                double.hold(Step::Function, functions);
            }
            let small = stream.copy(small, pinned).expect("queued");
            held.release();
            // Kept: freeing pinned memory waits for the host function.
            kept = small.wait().ok();
            match pending.wait() {
                Ok((_, target)) => {
                    assert!(is_joined && target.as_slice().expect("nothing is queued") == [1; LEN], "{symbol} {number}");
                    target
                }
                Err(rejected) => {
                    assert!(matches!(rejected.error, Error::Driver { call, code: 999, .. } if call == symbol), "{rejected}");
                    rejected.value.1
                }
            }
        }
        (Err(rejected), Some((symbol, ..))) => {
            held.release();
            kept = None;
            assert!(matches!(rejected.error, Error::Driver { call, code: 999, .. } if call == symbol), "{rejected}");
            rejected.value.1
        }
        (queued, None) => {
            held.release();
            kept = None;
            queued.expect("as many").wait().expect("no fault").1
        }
    };
    let pointer = copied.as_ptr().expect("bytes");
    // SAFETY: the buffer's bytes, unused by operations.
    unsafe { pointer.write_bytes(7, LEN) };
    double.hold(Step::Function, 0);
    drop((held, kept));
    let (_, next) = stream.copy(gpu(backend, LEN), host(backend, LEN, 0)).expect("as many").wait().expect("no fault");
    // SAFETY: the buffer's bytes, initialised and unused by operations.
    let bytes = unsafe { std::slice::from_raw_parts(pointer.as_ptr(), LEN) };
    assert!(bytes.iter().all(|found| *found == 7), "{fails:?}");
    drop(next);
    calls
}

fn upload(backend: &Arc<CudaBackend>, double: &Double, stream: &Stream, fails: Option<(&str, u64)>) -> [u64; 4] {
    let held = Held::on(stream);
    let (source, device) = (host(backend, LEN, 3), gpu(backend, LEN));
    double.reset();
    if let Some((symbol, number)) = fails {
        double.fail(symbol, number, 999);
    }
    let queued = stream.copy(source, device);
    let calls = UPLOAD.map(|symbol| double.calls(symbol));
    double.reset();
    drop(held);
    let ended = match queued {
        Ok(pending) => pending.wait(),
        Err(rejected) => Err(rejected),
    };
    let (source, device) = match ended {
        Ok(ends) => ends,
        Err(rejected) => {
            let (symbol, number) = fails.expect("a fault was planned");
            assert!(matches!(rejected.error, Error::Driver { call, code: 999, .. } if call == symbol), "{number}: {rejected}");
            rejected.value
        }
    };
    let (_, device) = stream.copy(source, device).expect("as many").wait().expect("no fault");
    assert!(is_of(&device.to_vec().expect("a copy"), 3), "{fails:?}");
    calls
}

/// Holds an operation's first host function until the backend sees a broken context.
fn with_a_break<T: Queued, M: Memory<Visibility: HostReadable>>(
    functions: u64,
    queue: impl FnOnce(&Arc<CudaBackend>, &Stream) -> Pending<T>,
    target: impl FnOnce(&T) -> &Buffer<u8, M>,
) {
    let (backend, double) = (rig::open(), Double::new());
    let stream = Stream::new(&backend, 0).expect("a stream");
    double.hold(Step::Function, 1);
    let pending = queue(&backend, &stream);
    double.reset();
    double.fail("cuEventQuery", 1, 719);
    let Err(rejected) = pending.wait() else { panic!("the context is broken") };
    assert!(matches!(rejected.error, Error::Driver { call: "cuEventQuery", code: 719, .. }), "{}", rejected.error);
    let target = target(&rejected.value);
    let (pointer, len) = (target.as_ptr().expect("bytes"), target.len());
    // SAFETY: the buffer's bytes, unused by operations.
    unsafe { pointer.write_bytes(7, len) };
    double.hold(Step::Function, 0);
    assert!(soon(|| double.executed(Step::Function) == functions), "{} of {functions}", double.executed(Step::Function));
    // SAFETY: the buffer's bytes, initialised and unused by operations.
    let bytes = unsafe { std::slice::from_raw_parts(pointer.as_ptr(), len) };
    assert!(bytes.iter().all(|found| *found == 7), "a host function writes after the operation is complete");
}

const UPLOAD: [&str; 4] = ["cuStreamWaitEvent", "cuLaunchHostFunc", "cuEventRecord", "cuMemcpyHtoDAsync_v2"];

alone! {
    fn copies_of_several_parts_are_ordered_with_the_stream_s_other_operations() with("RINGMEM_DOUBLE_DELAY_US" = 100) {
        chains();
    }

    fn copies_of_several_parts_are_ordered_if_all_streams_share_hardware_queues()
        with("RINGMEM_DOUBLE_DELAY_US" = 100, "RINGMEM_DOUBLE_QUEUES" = 2)
    {
        let backend = rig::open();
        let stream = Stream::new(&backend, 0).expect("a stream");
        let pending = stream.copy(host(&backend, LEN, 5), gpu(&backend, LEN)).expect("as many");
        let (source, device) = pending.detach();
        let (_, target) = stream.copy(device, host(&backend, LEN, 0)).expect("as many").wait().expect("done");
        assert!(is_of(target.as_slice().expect("nothing is queued"), 5));
        drop(source);
    }

    fn the_host_function_of_the_next_part_runs_while_an_upload_s_copy_is_held() {
        let backend = rig::open();
        let stream = Stream::new(&backend, 0).expect("a stream");
        for number in 1..=PARTS as u64 {
            let (source, device) = (host(&backend, LEN, number as u8), gpu(&backend, LEN));
            let steps = [Step::Function, Step::Copy];
            let (_, device) = with_a_part_held(&stream, steps, number, || stream.copy(source, device).expect("as many"));
            assert!(is_of(&device.to_vec().expect("a copy"), number as u8), "copy {number}");
        }
    }

    fn the_copy_of_the_next_part_runs_while_a_download_s_host_function_is_held() {
        let backend = rig::open();
        let stream = Stream::new(&backend, 0).expect("a stream");
        for number in 1..=PARTS as u64 {
            let (mut device, target) = (gpu(&backend, LEN), host(&backend, LEN, 0));
            device.copy_from(host(&backend, LEN, number as u8).as_slice().expect("nothing is queued")).expect("a copy");
            let steps = [Step::Copy, Step::Function];
            let (_, target) = with_a_part_held(&stream, steps, number, || stream.copy(device, target).expect("as many"));
            assert!(is_of(target.as_slice().expect("nothing is queued"), number as u8), "host function {number}");
        }
    }

    fn a_held_copy_delays_no_copy_of_another_stream() {
        let (backend, double) = (rig::open(), Double::new());
        let streams = [(); 4].map(|()| Stream::new(&backend, 0).expect("a stream"));
        double.hold(Step::Copy, 1);
        let held = streams[0].copy(host(&backend, LEN, 1), gpu(&backend, LEN)).expect("as many");
        assert!(soon(|| double.executed(Step::Function) == 2));
        for (seed, stream) in (2..).zip(&streams[1..]) {
            let pending = stream.copy(host(&backend, LEN, seed), gpu(&backend, LEN)).expect("as many");
            assert!(soon(|| pending.is_done()), "stream {seed}");
            assert!(is_of(&pending.wait().expect("done").1.to_vec().expect("a copy"), seed), "stream {seed}");
        }
        double.hold(Step::Copy, 0);
        assert!(is_of(&held.wait().expect("done").1.to_vec().expect("a copy"), 1));
    }

    fn a_download_that_fails_half_way_writes_nothing_after_it_is_complete() {
        let (backend, double) = (rig::open(), Double::new());
        let stream = Stream::new(&backend, 0).expect("a stream");
        let all = download(&backend, &double, &stream, None);
        assert!(all[1] == PARTS as u64 && all[0] > all[1], "{all:?}");
        for (symbol, calls) in CALLS.into_iter().zip(all) {
            (1..=calls).for_each(|number| _ = download(&backend, &double, &stream, Some((symbol, number, all[0]))));
        }
        assert!(backend.wait(backend.record_position(stream.id()).expect("a ticket"), Some(LIMIT)).expect("all were reported"));
    }

    fn an_upload_that_fails_half_way_reports_the_call_and_the_next_one_is_whole() {
        let (backend, double) = (rig::open(), Double::new());
        let stream = Stream::new(&backend, 0).expect("a stream");
        let all = upload(&backend, &double, &stream, None);
        assert!(all[1] == PARTS as u64 && all[0] > all[1], "{all:?}");
        for (symbol, calls) in UPLOAD.into_iter().zip(all) {
            (1..=calls).for_each(|number| _ = upload(&backend, &double, &stream, Some((symbol, number))));
        }
    }

    fn host_functions_write_nothing_once_a_broken_context_has_completed_their_operation() {
        with_a_break(1, |backend, stream| stream.fill(host(backend, 100, 0), .., 1).expect("queued"), |target| target);
        let copy = |backend: &_, stream: &Stream| {
            let pinned = Buffer::<u8, _>::new(Pinned::new(backend, 0), 100).expect("room");
            stream.copy(host(backend, 100, 0), pinned).expect("as many")
        };
        with_a_break(1, copy, |(_, target)| target);
        for (len, functions) in [(100, 1), (LEN, PARTS as u64)] {
            let download = |backend: &_, stream: &Stream| {
                let mut device = gpu(backend, len);
                device.copy_from(&vec![1; len]).expect("a copy");
                stream.copy(device, host(backend, len, 0)).expect("as many")
            };
            with_a_break(functions, download, |(_, target)| target);
        }
    }
}
