use std::fs;

use crate::alone::{aborts, alone};
use crate::rig::{NON_BLOCKING, begin, device, event, function, module, ok, pinned, stream};
use ringmem_driver_double::*;

#[test]
fn the_nth_call_of_a_symbol_fails_without_effect() {
    let plan = [("RINGMEM_DOUBLE_FAIL", "cuMemAlloc_v2:2:2,cuMemFree_v2:1:700,cuStreamQuery:1:600")];
    alone("faults::the_nth_call_of_a_symbol_fails_without_effect", &plan, || {
        begin();
        let (first, mut second) = (device(8), 0);
        // SAFETY: writes one address or takes one.
        unsafe {
            assert_eq!((cuMemAlloc_v2(&raw mut second, 8), second), (2, 0));
            ok(cuMemAlloc_v2(&raw mut second, 8));
            assert_eq!(cuMemFree_v2(first), 700);
            ok(cuMemFree_v2(first));
            ok(cuMemFree_v2(second));
            assert_eq!([cuStreamQuery(0), cuStreamQuery(0)], [600, 0]);
        }
        assert_eq!(ringmem_double_live(), 1);
    });
}

#[test]
fn an_immediate_call_is_counted_planned_and_validated() {
    alone("faults::an_immediate_call_is_counted_planned_and_validated", &[], || {
        let mut context = 0;
        // SAFETY: writes one handle, or is refused.
        let mut bound = || unsafe { cuCtxGetCurrent(&raw mut context) };
        assert_eq!(bound(), 3, "before cuInit");
        begin();
        ringmem_double_reset();
        assert_eq!([bound(), bound()], [0, 0]);
        // SAFETY: C strings; null is refused.
        unsafe {
            assert_eq!(ringmem_double_calls(c"cuCtxGetCurrent".as_ptr()), 2);
            ok(ringmem_double_fail(c"cuCtxGetCurrent".as_ptr(), 4, 999));
            assert_eq!(cuCtxGetCurrent(std::ptr::null_mut()), 1);
        }
        assert_eq!([bound(), bound()], [999, 0]);
        ringmem_double_reset();
        assert_eq!(bound(), 0);
        assert_ne!(context, 0);
    });
}

#[test]
fn every_call_of_a_workload_can_fail_in_one_process() {
    alone("faults::every_call_of_a_workload_can_fail_in_one_process", &[("RINGMEM_DOUBLE_FAIL", "cuMemsetD8Async:1:719")], || {
        begin();
        let symbols =
            [c"cuMemAlloc_v2", c"cuStreamCreate", c"cuMemsetD8Async", c"cuStreamSynchronize", c"cuStreamDestroy_v2", c"cuMemFree_v2"];
        // SAFETY: takes a C string.
        let counts = || symbols.map(|symbol| unsafe { ringmem_double_calls(symbol.as_ptr()) });
        assert_eq!(work(), [719]);
        ringmem_double_reset();
        assert_eq!(counts(), [0; 6]);
        assert_eq!(work(), []);
        let whole = counts();
        assert_eq!(whole, [1, 1, 2, 1, 1, 1]);
        for (symbol, calls) in symbols.into_iter().zip(whole) {
            for number in 1..=calls {
                ringmem_double_reset();
                // SAFETY: takes a C string.
                ok(unsafe { ringmem_double_fail(symbol.as_ptr(), number, 304) });
                assert_eq!((work(), ringmem_double_live(), ringmem_double_live_bytes()), (vec![304], 1, 0), "{symbol:?}, {number}");
                // SAFETY: takes a C string.
                assert!(unsafe { ringmem_double_calls(symbol.as_ptr()) } >= number);
            }
        }
        // SAFETY: takes C strings; null is refused.
        unsafe {
            assert_eq!(ringmem_double_fail(c"cuMemAlloc".as_ptr(), 1, 2), 1);
            assert_eq!(ringmem_double_fail(c"cuMemAlloc_v2".as_ptr(), 0, 2), 1);
            assert_eq!(ringmem_double_fail(c"cuMemAlloc_v2".as_ptr(), 1, 12345), 1);
            assert_eq!(ringmem_double_fail(std::ptr::null(), 1, 2), 1);
            assert_eq!(ringmem_double_calls(c"cuMemAlloc".as_ptr()), u64::MAX);
        }
        assert_eq!(ringmem_double_violations(), 0);
    });
}

fn work() -> Vec<u32> {
    let mut told = Vec::new();
    let mut tell = |code: u32| {
        told.extend((code != 0).then_some(code));
        code == 0
    };
    let (mut at, mut on) = (0, 0);
    // SAFETY: live memory and handles.
    unsafe {
        if tell(cuMemAlloc_v2(&raw mut at, 64)) {
            if tell(cuStreamCreate(&raw mut on, NON_BLOCKING)) {
                for byte in 0..2 {
                    tell(cuMemsetD8Async(at, byte, 64, on));
                }
                if !tell(cuStreamSynchronize(on)) {
                    ok(cuStreamSynchronize(on));
                }
                if !tell(cuStreamDestroy_v2(on)) {
                    ok(cuStreamDestroy_v2(on));
                }
            }
            if !tell(cuMemFree_v2(at)) {
                ok(cuMemFree_v2(at));
            }
        }
    }
    told
}

#[test]
fn an_impossible_plan_aborts_the_process() {
    for plan in ["cuMemAllocc:1:2", "cuMemAlloc_v2:0:2", "cuMemAlloc_v2:1:12345"] {
        let stderr = aborts("faults::an_impossible_plan_aborts_the_process", &[("RINGMEM_DOUBLE_FAIL", plan)], begin);
        assert!(stderr.contains(plan), "{stderr}");
    }
}

#[test]
fn every_call_is_logged_with_arguments_and_result() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("calls");
    alone("faults::every_call_is_logged_with_arguments_and_result", &[("RINGMEM_DOUBLE_LOG", &file.to_string_lossy())], || {
        begin();
        let (at, mut context) = (device(1024), 0);
        function(module(), c"echo");
        // SAFETY: takes an address.
        unsafe {
            ok(cuMemFree_v2(at));
            assert_eq!(cuMemFree_v2(at), 1);
            ok(cuCtxGetCurrent(&raw mut context));
        }
    });
    let log = fs::read_to_string(&file).expect("the log");
    let mut lines = log.lines();
    assert!(lines.next().is_some_and(|line| line.starts_with("# ringmem driver double, not a GPU; process ")), "{log}");
    let calls: Vec<(u64, &str, &str)> = lines
        .map(|line| {
            let (number, rest) = line.split_once(' ').expect("a number");
            let (_, call) = rest.split_once(' ').expect("a thread");
            (number.parse().expect("a number"), call.split('(').next().expect("a symbol"), call)
        })
        .collect();
    let symbols = ["cuInit", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent", "cuMemAlloc_v2", "cuModuleLoadData", "cuModuleGetFunction"];
    let expected: Vec<(u64, &str)> = (1..).zip(symbols.into_iter().chain(["cuMemFree_v2", "cuMemFree_v2", "cuCtxGetCurrent"])).collect();
    assert_eq!(calls.iter().map(|&(number, symbol, _)| (number, symbol)).collect::<Vec<_>>(), expected);
    let address = calls[3].2.split(" -> ").nth(1).expect("what was given");
    assert!(calls[3].2.contains(", 0x400) = CUDA_SUCCESS (0) -> 0xd18"), "{log}");
    assert!(calls[5].2.contains(", \"echo\") = CUDA_SUCCESS (0)"), "{log}");
    assert_eq!(calls[6].2, format!("cuMemFree_v2({address}) = CUDA_SUCCESS (0)"));
    assert_eq!(calls[7].2, format!("cuMemFree_v2({address}) = CUDA_ERROR_INVALID_VALUE (1)"));
}

#[test]
fn leaks_are_reported_at_exit() {
    let stderr = alone("faults::leaks_are_reported_at_exit", &[("RINGMEM_DOUBLE_LEAKS", "1")], || {
        begin();
        device(64);
        device(64);
        pinned(32);
        event(0);
        module();
        let stream = stream(NON_BLOCKING);
        // SAFETY: takes a handle.
        ok(unsafe { cuStreamDestroy_v2(stream) });
        assert_eq!(ringmem_double_live(), 6);
    });
    let counts = "not a GPU: 6 leaked: 2 device memory, 1 event, 1 module, 1 pinned memory, 1 retain of the primary context\n";
    assert!(stderr.contains(counts), "{stderr}");
    assert!(stderr.contains("device memory 0xd18") && stderr.contains(", 64 bytes, call 4\n"), "{stderr}");
}

#[test]
fn a_clean_program_reports_no_leaks() {
    let stderr = alone("faults::a_clean_program_reports_no_leaks", &[("RINGMEM_DOUBLE_LEAKS", "1")], || {
        begin();
        let (at, host, stream, event, module) = (device(64), pinned(32), stream(0), event(0), module());
        function(module, c"echo");
        // SAFETY: frees what was allocated.
        unsafe {
            ok(cuMemsetD8Async(at, 1, 64, stream));
            ok(cuMemFree_v2(at));
            ok(cuMemFreeHost(host.as_ptr().cast()));
            ok(cuStreamDestroy_v2(stream));
            ok(cuEventDestroy_v2(event));
            ok(cuModuleUnload(module));
            ok(cuDevicePrimaryCtxRelease_v2(0));
        }
    });
    assert!(stderr.contains("not a GPU: 0 leaked\n"), "{stderr}");
}
