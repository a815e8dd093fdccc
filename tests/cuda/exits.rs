use std::future::Future;
use std::os::unix::fs::symlink;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Waker};

use ringmem::backend::Backend;
use ringmem::backend::cuda::{CudaBackend, Driver};
use ringmem::bridge::{self, Opened, RingBufferBridge, TransferStrategy};
use ringmem::channel::{Channel, Options, ReceiveError, SendError};
use ringmem::control::Command;
use ringmem::image::Entry;
use ringmem::memory::{Buffer, Device, GpuBuffer, Pinned, PinnedBuffer, Unified};
use ringmem::mirror::MirroredBuffer;
use ringmem::pool::Pool;
use ringmem::stream::{Module, Stream};
use ringmem::streaming::Streamer;
use ringmem::wait::{WaitStrategy, Waiting, pair};
use ringmem::watchdog::Verdict;
use ringmem::{Error, Image};
use ringmem_kernels::echo::Echo;
use ringmem_kernels::{ABI, IMAGE};

use crate::rerun_or_skip;
use crate::rig::{self, Alone, Double, LIMIT, alone};

fn no_driver() -> Option<&'static str> {
    ["/lib/x86_64-linux-gnu/libm.so.6", "/lib/aarch64-linux-gnu/libm.so.6", "/usr/lib64/libm.so.6", "/usr/lib/libm.so.6"]
        .into_iter()
        .find(|path| std::path::Path::new(path).exists())
}

#[test]
fn a_library_without_driver_functions_is_an_error() {
    let Some(library) = no_driver() else {
        rerun_or_skip::skipped("no library to stand for an old driver");
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    symlink(library, folder.path().join("libcuda.so.1")).expect("a link");
    let alone = Alone::new(concat!(module_path!(), "::a_library_without_driver_functions_is_an_error"));
    let alone = alone.with("LD_LIBRARY_PATH", folder.path().display());
    if !alone.is_here() {
        alone.run();
        return;
    }
    let error = CudaBackend::open().expect_err("it has no function of a driver");
    let Error::NoDriver { source, .. } = error else { panic!("{error}") };
    assert!(source.to_string().contains("cu"), "{source}");
}

#[test]
fn stub_missing_device_and_late_failures_are_driver_errors() {
    let path = concat!(module_path!(), "::stub_missing_device_and_late_failures_are_driver_errors");
    if Alone::new(path).is_here() {
        let error = CudaBackend::open().and_then(|backend| backend.capabilities(0).map(drop)).expect_err("a call fails");
        let Error::Driver { call, code, name, .. } = error else { panic!("{error}") };
        println!("{call} said {name}, {code}");
        return;
    }
    for (plan, expected) in [
        ("cuInit:1:34", "cuInit said CUDA_ERROR_STUB_LIBRARY, 34"),
        ("cuInit:1:100", "cuInit said CUDA_ERROR_NO_DEVICE, 100"),
        ("cuDeviceGetCount:1:999", "cuDeviceGetCount said CUDA_ERROR_UNKNOWN, 999"),
        ("cuDevicePrimaryCtxRetain:1:2", "cuDevicePrimaryCtxRetain said CUDA_ERROR_OUT_OF_MEMORY, 2"),
    ] {
        let output = Alone::new(path).with("RINGMEM_DOUBLE_FAIL", plan).output();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains(expected), "{plan}: {said} {}", String::from_utf8_lossy(&output.stderr));
    }
}

alone! {
    fn a_fork_makes_no_driver_calls_and_gets_errors() {
        let backend = rig::open();
        let stream = Stream::new(&backend, 0).expect("a stream");
        let mut buffer = GpuBuffer::<u8>::new(Device::new(&backend, 0), 100).expect("room");
        buffer.fill(1).expect("a fill");
        let double = Double::new();
        let before = double.all_calls();
        // SAFETY: the child only calls this library, whose locks are free, and exits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let refused = [
                buffer.fill(2).err(),
                Stream::new(&backend, 0).err(),
                backend.memory_info(0).err(),
                Driver::load().err(),
                stream.synchronize().err(),
                backend.context(0).err(),
            ];
            let all = refused.iter().flatten().filter(|error| matches!(error, Error::Driver { code: 3, .. })).count();
            drop((buffer, stream, backend));
            let is_silent = double.all_calls() == before;
            // SAFETY: ends the child without the parent's destructors.
            unsafe { libc::_exit(if all >= 5 && is_silent { 0 } else { 1 }) };
        }
        let mut status = 0;
        // SAFETY: writes one integer.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "the child's own");
        assert_eq!(buffer.to_vec().expect("the parent's driver"), [1; 100]);
    }

    fn waits_and_drops_in_a_fork_use_no_memory_of_the_driver() {
        let backend = rig::open();
        let module = Module::load(&backend, &IMAGE, &ABI).expect("our ABI");
        let open = |kernel, strategy| {
            let options = Options { strategy: Some(strategy), ..Options::new(kernel) };
            // SAFETY: these kernels take no own arguments.
            unsafe { Channel::<Echo, Echo>::open_raw(&backend, 0, &module, &options) }.expect("a channel")
        };
        let strategies = [TransferStrategy::Unified, TransferStrategy::Sync, TransferStrategy::Async];
        let mut channels: Vec<_> = strategies.into_iter().map(|strategy| open("echo", strategy)).collect();
        channels.push(open("echo_flagged", TransferStrategy::Flagged));
        let pinned = Pool::builder(Pinned::new(&backend, 0)).build().expect("a pool");
        let memory = (
            PinnedBuffer::<u64>::new(Pinned::new(&backend, 0), 100).expect("room"),
            Buffer::<u64, _>::new(Unified::new(&backend, 0), 100).expect("room"),
            Buffer::<u64, _>::new(pinned.clone(), 100).expect("room"),
            pinned,
        );
        let mirrored = MirroredBuffer::<u64, _, _>::new(Pinned::new(&backend, 0), Device::new(&backend, 0), 100).expect("room");
        let streamer = Streamer::builder(&backend, 0).chunk(4096).build().expect("room");
        let Opened { mut sender, receiver, bridge } =
            RingBufferBridge::<Echo, Echo>::open(&backend, 0, &bridge::Options::new(TransferStrategy::Sync)).expect("rings");
        sender.push(Echo { words: [7; 8] }).expect("room");
        let pumps = [(); 2].map(|()| {
            let opened = RingBufferBridge::<Echo, Echo>::open(&backend, 0, &bridge::Options::new(TransferStrategy::Sync)).expect("rings");
            (opened.bridge.pump().expect("a thread"), Waiting::sender(opened.sender, WaitStrategy::default()))
        });
        // Both ends of one bridge as a pair: only then does a pending future enter a list, and count itself in the ring.
        let paired = RingBufferBridge::<Echo, Echo>::open(&backend, 0, &bridge::Options::new(TransferStrategy::Sync)).expect("rings");
        let (_sends, mut receives) = pair(paired.sender, paired.receiver, WaitStrategy::default());
        let mut future = Box::pin(receives.recv_async());
        assert!(future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        let all = (channels, memory, mirrored, streamer, module, (sender, receiver, bridge, pumps));
        // SAFETY: the child only calls this library, whose locks are free, and exits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: takes an integer.
            unsafe { libc::alarm(10) };
            let (mut channels, memory, mirrored, streamer, module, (mut sender, receiver, bridge, [(pump, _sender), dropped])) = all;
            drop(Waiting::sender(&mut sender, WaitStrategy::default()));
            let is_refused = |error: &Error| matches!(error, Error::Unsupported { .. });
            let told = channels.iter_mut().all(|channel| {
                let told = [
                    channel.recv().is_err_and(|error| is_refused(&error)),
                    channel.drain().is_err_and(|error| is_refused(&error)),
                    channel.command(Command::PAUSE).is_err_and(|error| is_refused(&error)),
                    // SAFETY: these kernels take no own arguments.
                    unsafe { channel.restart_raw() }.is_err_and(|error| is_refused(&error)),
                    matches!(channel.send(Echo { words: [0; 8] }), Err(SendError::Kernel { error: Error::Unsupported { .. }, .. })),
                    channel.check().is_err_and(|error| is_refused(&error)),
                    channel.flush().is_err_and(|error| is_refused(&error)),
                    channel.input_waiting().is_err_and(|error| is_refused(&error)),
                    matches!(channel.try_send(Echo { words: [0; 8] }), Err(SendError::Kernel { .. })),
                    matches!(channel.try_recv(), Err(ReceiveError::Flush(_))),
                    channel.try_send_slice(&[Echo { words: [0; 8] }]).is_ok_and(|count| count == 0),
                    channel.try_recv_with(|_| true).is_ok_and(|is_popped| !is_popped),
                    channel.state().is_none() && channel.telemetry().is_err(),
                    channel.control().epoch == 0 && channel.watch() == Verdict::OtherEpoch,
                    format!("{channel:?}{:?}", channel.metrics()).starts_with("Channel"),
                    channel.dump().unwrap_or_else(|rejected| rejected.value).control.epoch == 0,
                ];
                if told.contains(&false) {
                    eprintln!("in the child: {told:?}");
                }
                !told.contains(&false)
            });
            let closed = channels.into_iter().all(|channel| channel.close().is_err_and(|error| is_refused(&error)));
            let stopped = pump.stop(LIMIT).is_err_and(|error| is_refused(&error));
            drop(future);
            drop((memory, mirrored, streamer, module, sender, receiver, bridge, dropped, backend));
            // SAFETY: ends the child without the parent's destructors.
            unsafe { libc::_exit(i32::from(!(told && closed && stopped))) };
        }
        let mut status = 0;
        // SAFETY: writes one integer.
        assert_eq!((unsafe { libc::waitpid(child, &raw mut status, 0) }, status), (child, 0));
        let (channels, ..) = all;
        for mut channel in channels {
            channel.send(Echo { words: [7; 8] }).expect("the kernel runs");
            assert_eq!(channel.recv().expect("an answer").words, [7; 8]);
        }
    }

    fn the_jit_log_is_in_the_load_error() {
        let backend = rig::open();
        let broken = Image { ptx: b".version 6.3\n.target sm_70\n.visible .entry hold(.param .u64 a) { return; }\n", ..IMAGE };
        let error = Module::load(&backend, &broken, &ABI).expect_err("it is no image");
        let Error::Driver { call, code, name, log: Some(log) } = &error else { panic!("{error}") };
        assert_eq!((*call, *code, *name), ("cuModuleLoadDataEx", 218, "CUDA_ERROR_INVALID_PTX"));
        assert!(!log.is_empty() && error.to_string().contains(&**log), "{error}");
        let error = Module::load(&backend, &Image { host: MORE, ..IMAGE }, &ABI).expect_err("the text has no such kernel");
        assert!(matches!(error, Error::Driver { call: "cuModuleGetFunction", code: 500, .. }), "{error}");
        Module::load(&backend, &IMAGE, &ABI).expect("the image");
    }
}

const MORE: &[Entry] = &[Entry { name: "nobody", arguments: 0, run: nobody }];

fn nobody(_: &dyn ringmem::image::KernelHost, _: &[u64]) {}

static LEFT: OnceLock<Left> = OnceLock::new();

type Left = (Arc<CudaBackend>, Buffer<u8, Device>);

unsafe extern "C" {
    safe fn atexit(callback: extern "C" fn()) -> i32;
}

extern "C" fn at_the_end() {
    let Some((backend, buffer)) = LEFT.get() else { return };
    let double = Double::new();
    let before = double.all_calls();
    let [one, other] = [buffer.to_vec().err(), backend.memory_info(0).err()];
    eprintln!("at the end: {one:?}, {other:?}, {} calls", double.all_calls() - before);
}

#[test]
fn no_call_reaches_the_driver_during_process_exit() {
    let alone = Alone::new(concat!(module_path!(), "::no_call_reaches_the_driver_during_process_exit"));
    if !alone.is_here() {
        let said = alone.run();
        assert!(said.contains(", 0 calls"), "{said}");
        assert_eq!(said.matches("CUDA_ERROR_DEINITIALIZED (4)").count(), 2, "{said}");
        return;
    }
    // Registered before the driver's handler: called after it.
    assert_eq!(atexit(at_the_end), 0);
    let backend = rig::open();
    let buffer = Buffer::new(Device::new(&backend, 0), 100).expect("room");
    assert!(LEFT.set((backend, buffer)).is_ok());
}
