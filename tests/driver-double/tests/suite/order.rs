use std::ffi::{CStr, c_void};
use std::ptr::{null, null_mut};
use std::thread;

use crate::alone::{aborts, alone};
use crate::rig::{Held, NON_BLOCKING, begin, bytes_at, device, event, function, launch, module, ok, ordered, pinned, stream};
use ringmem_driver_double::*;

#[test]
fn before_init_only_driver_queries_work() {
    alone("order::before_init_only_driver_queries_work", &[], || {
        let (mut number, mut context, mut name) = (0, 0, null());
        // SAFETY: each writes one value.
        unsafe {
            assert_eq!(cuDeviceGetCount(&raw mut number), 3);
            assert_eq!(cuDevicePrimaryCtxRetain(&raw mut context, 0), 3);
            assert_eq!(cuCtxSynchronize(), 3);
            ok(cuDriverGetVersion(&raw mut number));
            ok(cuGetErrorName(3, &raw mut name));
            assert_eq!(CStr::from_ptr(name), c"CUDA_ERROR_NOT_INITIALIZED");
            assert_eq!((cuGetErrorName(54321, &raw mut name), name), (1, null()));
            assert_eq!((number, cuInit(1)), (12080, 1));
            ok(cuInit(0));
            ok(cuDeviceGetCount(&raw mut number));
        }
        assert_eq!(number, 1);
    });
}

#[test]
fn the_version_is_a_setting() {
    alone("order::the_version_is_a_setting", &[("RINGMEM_DOUBLE_VERSION", "13050")], || {
        let mut version = 0;
        // SAFETY: writes one value.
        ok(unsafe { cuDriverGetVersion(&raw mut version) });
        assert_eq!(version, 13050);
    });
}

#[test]
fn a_thread_without_a_context_gets_an_error() {
    alone("order::a_thread_without_a_context_gets_an_error", &[], || {
        let (mut context, mut address) = (0, 0_u64);
        // SAFETY: each writes one value.
        let mut alloc = move || unsafe { cuMemAlloc_v2(&raw mut address, 8) };
        begin();
        ok(alloc());
        assert_eq!(thread::spawn(alloc).join().expect("no panic"), 201);
        // SAFETY: writes one handle.
        unsafe {
            ok(cuCtxGetCurrent(&raw mut context));
            assert_eq!(cuCtxSetCurrent(context + 1), 201);
            ok(cuCtxSetCurrent(0));
            assert_eq!(alloc(), 201);
            ok(cuCtxSetCurrent(context));
        }
        ok(alloc());
    });
}

#[test]
fn a_released_context_is_destroyed_with_its_objects() {
    alone("order::a_released_context_is_destroyed_with_its_objects", &[], || {
        begin();
        let (address, stream) = (device(8), stream(NON_BLOCKING));
        let (mut context, mut other) = (0, 0);
        // SAFETY: each writes one value or takes handles.
        unsafe {
            ok(cuCtxGetCurrent(&raw mut context));
            ok(cuDevicePrimaryCtxRelease_v2(0));
            assert_eq!(cuCtxSynchronize(), 709);
            assert_eq!(cuCtxSetCurrent(context), 201);
            assert_eq!(cuDevicePrimaryCtxRelease_v2(0), 201);
            assert_eq!(ringmem_double_live(), 2);
            ok(cuDevicePrimaryCtxRetain(&raw mut other, 0));
            assert_eq!(cuMemFree_v2(address), 1);
            assert_eq!(cuStreamDestroy_v2(stream), 400);
        }
    });
}

#[test]
fn a_destroyed_handle_is_invalid() {
    let stderr = alone("order::a_destroyed_handle_is_invalid", &[], || {
        begin();
        let (stream, event, module, at) = (stream(NON_BLOCKING), event(0), module(), device(8));
        let function = function(module, c"echo");
        let (mut number, mut milliseconds, mut address) = (0, 0.0, 0);
        // SAFETY: each writes one value or takes handles.
        unsafe {
            ok(cuEventRecord(event, stream));
            ok(cuStreamSynchronize(stream));
            ok(cuStreamDestroy_v2(stream));
            for code in [
                cuStreamDestroy_v2(stream),
                cuStreamSynchronize(stream),
                cuStreamQuery(stream),
                cuStreamWaitEvent(stream, event, 0),
                cuStreamWriteValue64_v2(stream, at, 1, 0),
                cuMemsetD8Async(at, 1, 8, stream),
                cuEventRecord(event, stream),
                launch(function, 1, stream, &[0; 4]),
                cuStreamSynchronize(event),
                cuModuleUnload(event),
                cuStreamDestroy_v2(0),
            ] {
                assert_eq!(code, 400);
            }
            ok(cuEventQuery(event));
            ok(cuEventDestroy_v2(event));
            for code in [
                cuEventDestroy_v2(event),
                cuEventQuery(event),
                cuEventSynchronize(event),
                cuEventRecord(event, 0),
                cuStreamWaitEvent(0, event, 0),
                cuEventElapsedTime(&raw mut milliseconds, event, event),
            ] {
                assert_eq!(code, 400);
            }
            ok(cuModuleUnload(module));
            for code in [
                cuModuleUnload(module),
                cuFuncLoad(function),
                launch(function, 1, 0, &[0; 4]),
                cuOccupancyMaxActiveBlocksPerMultiprocessor(&raw mut number, function, 32, 0),
                cuModuleGetGlobal_v2(&raw mut address, null_mut(), module, Name::new(c"RINGMEM_ABI")),
            ] {
                assert_eq!(code, 400);
            }
        }
        assert_eq!(ringmem_double_violations(), 8 + 6 + 5);
    });
    for what in ["stream", "event", "module", "function of a module"] {
        assert!(stderr.contains(&format!(": uses {what} 0xd1a0")) && stderr.contains(", which was destroyed\n"), "{what}: {stderr}");
    }
}

#[test]
fn a_call_blocked_by_a_kernel_aborts_with_a_reason() {
    const TEST: &str = "order::a_call_blocked_by_a_kernel_aborts_with_a_reason";
    // SAFETY: each takes handles and live memory.
    let call = |name: &str, flags: u32| unsafe {
        begin();
        let (on_device, on_host, mut own) = (device(64), pinned(64), [0_u8; 64]);
        ok(cuMemHostRegister_v2(own.as_mut_ptr().cast(), 64, 0));
        let (in_order, event, mut managed, mut pageable) = (ordered(64, 0), event(2), 0, [0_u8; 8]);
        ok(cuMemAllocManaged(&raw mut managed, 64, 1));
        ok(cuCtxSynchronize());
        let held = Held::new(flags);
        match name {
            "cuMemFree_v2" => cuMemFree_v2(on_device),
            "cuMemFree_v2 of managed memory" => cuMemFree_v2(managed),
            "cuMemFree_v2 of stream-ordered memory" => cuMemFree_v2(in_order),
            "cuMemFreeHost" => cuMemFreeHost(on_host.as_ptr().cast()),
            "cuMemHostUnregister" => cuMemHostUnregister(own.as_mut_ptr().cast()),
            "cuModuleUnload" => cuModuleUnload(held.module),
            "cuCtxSynchronize" => cuCtxSynchronize(),
            "cuStreamSynchronize" => cuStreamSynchronize(held.stream),
            "cuEventSynchronize" => {
                ok(cuEventRecord(event, held.stream));
                cuEventSynchronize(event)
            }
            "cuMemcpyDtoHAsync_v2 to pageable memory" => cuMemcpyDtoHAsync_v2(pageable.as_mut_ptr().cast(), on_device, 8, held.stream),
            "cuModuleLoadData" => {
                module();
                0
            }
            "cuFuncLoad" => cuFuncLoad(function(held.module, c"echo")),
            "cuLaunchKernel" => launch(function(held.module, c"order_of_stores"), 1, stream(NON_BLOCKING), &[0; 3]),
            "cuMemcpyHtoD_v2" => cuMemcpyHtoD_v2(on_device, on_host.as_ptr().cast(), 64),
            "cuDevicePrimaryCtxRelease_v2" => cuDevicePrimaryCtxRelease_v2(0),
            other => panic!("{other}"),
        }
    };
    let held_up = [
        "cuMemFree_v2",
        "cuMemFree_v2 of managed memory",
        "cuMemFree_v2 of stream-ordered memory",
        "cuMemFreeHost",
        "cuMemHostUnregister",
        "cuModuleUnload",
        "cuCtxSynchronize",
        "cuStreamSynchronize",
        "cuEventSynchronize",
        "cuMemcpyDtoHAsync_v2 to pageable memory",
        "cuFuncLoad",
        "cuLaunchKernel",
        "cuModuleLoadData",
        "cuMemcpyHtoD_v2",
        "cuDevicePrimaryCtxRelease_v2",
    ];
    let directory = tempfile::tempdir().expect("a directory");
    for name in held_up {
        let log = directory.path().join(name);
        let log_name = log.to_string_lossy();
        let loading = if name == "cuModuleLoadData" { "EAGER" } else { "" };
        let variables = [
            ("RINGMEM_DOUBLE_DEADLINE_MS", "50"),
            ("RINGMEM_DOUBLE_LOG", &*log_name),
            ("RINGMEM_TEST_CALL", name),
            ("CUDA_MODULE_LOADING", loading),
        ];
        let stderr = aborts(TEST, &variables, || {
            let name = std::env::var("RINGMEM_TEST_CALL").expect("the parent sets it");
            let flags = if name == "cuMemcpyHtoD_v2" { 0 } else { NON_BLOCKING };
            panic!("{name} returned {}", call(&name, flags));
        });
        let symbol = name.split(' ').next().expect("a symbol");
        assert!(stderr.contains(&format!("{symbol}, has waited")) && stderr.contains("`ping_pong`"), "{stderr}");
        assert!(stderr.contains("ringmem driver double, not a GPU"), "{stderr}");
        let log = std::fs::read_to_string(&log).expect("the log");
        assert!(log.lines().last().is_some_and(|line| line.contains(symbol) && line.ends_with("never returned")), "{log}");
    }
}

#[test]
fn preloaded_work_runs_alongside_a_kernel() {
    alone("order::preloaded_work_runs_alongside_a_kernel", &[], || {
        begin();
        let (on_device, on_host, loader, beside) = (device(512), pinned(512), module(), stream(NON_BLOCKING));
        let order = function(loader, c"order_of_stores");
        // SAFETY: takes handles and live memory.
        unsafe {
            ok(cuFuncLoad(order));
            let held = Held::new(NON_BLOCKING);
            ok(launch(function(loader, c"order_of_stores"), 1, beside, &[on_device, 3, 0]));
            ok(cuMemcpyHtoD_v2(on_device + 256, on_host.as_ptr().cast(), 256));
            ok(cuStreamSynchronize(beside));
            assert_eq!(bytes_at(on_device + 128, 8), 3_u64.to_le_bytes());
            assert_eq!((cuStreamQuery(held.stream), cuStreamQuery(beside)), (600, 0));
            held.release();
            ok(cuStreamQuery(held.stream));
            ok(cuMemFree_v2(on_device));
            ok(cuModuleUnload(held.module));
        }
    });
}

#[test]
fn eager_loading_allows_a_first_launch_under_a_kernel() {
    alone("order::eager_loading_allows_a_first_launch_under_a_kernel", &[("CUDA_MODULE_LOADING", "EAGER")], || {
        begin();
        let held = Held::new(NON_BLOCKING);
        ok(launch(function(held.module, c"order_of_stores"), 1, stream(NON_BLOCKING), &[device(512), 3, 0]));
        held.release();
    });
}

#[test]
fn the_legacy_stream_and_blocking_streams_wait_mutually() {
    alone("order::the_legacy_stream_and_blocking_streams_wait_mutually", &[], || {
        begin();
        let (at, other, free) = (device(8), stream(0), stream(NON_BLOCKING));
        let held = Held::new(0);
        // SAFETY: takes handles and live memory.
        unsafe {
            ok(cuMemsetD8_v2(at, 1, 8));
            ok(cuMemsetD8Async(at, 2, 8, other));
            ok(cuMemsetD8Async(at, 3, 8, free));
            ok(cuStreamSynchronize(free));
            assert_eq!([cuStreamQuery(0), cuStreamQuery(other), cuStreamQuery(free)], [600, 600, 0]);
            held.release();
            ok(cuStreamSynchronize(other));
        }
        assert_eq!(bytes_at(at, 8), [2; 8]);
    });
}

#[test]
fn a_stream_waits_for_an_event_as_recorded() {
    alone("order::a_stream_waits_for_an_event_as_recorded", &[], || {
        begin();
        let (at, other, first, second) = (device(8), stream(NON_BLOCKING), event(0), event(2));
        let held = Held::new(NON_BLOCKING);
        let mut milliseconds = 0.0;
        // SAFETY: takes handles and live memory.
        unsafe {
            ok(cuStreamWaitEvent(other, first, 0));
            ok(cuEventQuery(first));
            assert_eq!(cuEventElapsedTime(&raw mut milliseconds, first, first), 400);
            ok(cuEventRecord(first, other));
            ok(cuEventRecord(second, held.stream));
            ok(cuStreamWaitEvent(other, second, 0));
            ok(cuMemsetD8Async(at, 7, 8, other));
            ok(cuEventSynchronize(first));
            assert_eq!([cuEventQuery(first), cuEventQuery(second), cuStreamQuery(other)], [0, 600, 600]);
            held.release();
            ok(cuStreamSynchronize(other));
            assert_eq!(cuEventElapsedTime_v2(&raw mut milliseconds, first, second), 400);
            ok(cuEventElapsedTime_v2(&raw mut milliseconds, first, first));
        }
        assert_eq!((bytes_at(at, 8), milliseconds), (vec![7; 8], 0.0));
    });
}

#[test]
fn calls_fail_during_process_exit() {
    unsafe extern "C" {
        safe fn atexit(callback: extern "C" fn()) -> i32;
    }
    extern "C" fn late() {
        let (mut address, mut context) = (0, 0);
        // SAFETY: each writes one value.
        eprintln!("late: {} {}", unsafe { cuMemAlloc_v2(&raw mut address, 8) }, unsafe { cuCtxGetCurrent(&raw mut context) });
    }
    let stderr = alone("order::calls_fail_during_process_exit", &[], || {
        assert_eq!(atexit(late), 0);
        begin();
    });
    assert!(stderr.contains("late: 4 4"), "{stderr}");
}

#[cfg(unix)]
#[test]
fn calls_fail_in_a_fork() {
    unsafe extern "C" {
        fn fork() -> i32;
        safe fn _exit(code: i32) -> !;
        fn waitpid(process: i32, status: *mut i32, options: i32) -> i32;
    }
    alone("order::calls_fail_in_a_fork", &[], || {
        begin();
        let (mut status, mut context) = (0, 0);
        // SAFETY: the child makes three calls, which take no lock of another thread, and exits.
        unsafe {
            let process = fork();
            if process == 0 {
                _exit((cuInit(0) * 36 + cuCtxSynchronize() * 6 + cuCtxGetCurrent(&raw mut context)).cast_signed());
            }
            assert_eq!(waitpid(process, &raw mut status, 0), process);
        }
        assert_eq!(status >> 8, 3 * 36 + 3 * 6 + 3);
    });
}

#[test]
fn null_arguments_are_errors() {
    alone("order::null_arguments_are_errors", &[], || {
        begin();
        let nothing: *mut c_void = null_mut();
        // SAFETY: null is refused.
        unsafe {
            assert_eq!(cuMemAlloc_v2(null_mut(), 8), 1);
            assert_eq!(cuMemFree_v2(0), 1);
            assert_eq!(cuMemFreeHost(nothing), 1);
            assert_eq!(cuStreamCreate(null_mut(), 0), 1);
            assert_eq!(cuStreamCreate(null_mut(), 8), 1);
            assert_eq!(cuEventCreate(null_mut(), 0), 1);
            assert_eq!(cuModuleLoadData(null_mut(), nothing), 1);
            assert_eq!(cuStreamSynchronize(2), 801);
        }
        assert_eq!(ringmem_double_live(), 1);
    });
}
