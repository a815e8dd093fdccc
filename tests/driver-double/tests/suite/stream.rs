use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::alone::{aborts, alone};
use crate::rig::{NON_BLOCKING, begin, bytes_at, device, eventually, function, launch, module, ok, pinned, stream};
use ringmem_driver_double::*;

static CALLED: AtomicU64 = AtomicU64::new(0);

unsafe extern "C" fn adds(data: *mut c_void) {
    CALLED.fetch_add(data.addr() as u64, Release);
}

unsafe extern "C" fn calls_back(_: *mut c_void) {
    let mut address = 0;
    // SAFETY: writes one address.
    CALLED.store(unsafe { cuMemAlloc_v2(&raw mut address, 8) }.into(), Release);
}

#[test]
fn a_host_function_runs_after_earlier_work() {
    alone("stream::a_host_function_runs_after_earlier_work", &[("RINGMEM_DOUBLE_DELAY_US", "5000")], || {
        begin();
        let (at, on) = (device(8), stream(NON_BLOCKING));
        let number = std::ptr::without_provenance_mut(5);
        // SAFETY: functions callable with this argument.
        unsafe {
            ok(cuMemsetD8Async(at, 1, 8, on));
            ok(cuLaunchHostFunc(on, Some(adds), number));
            ok(cuLaunchHostFunc(on, Some(adds), number));
            assert_eq!(CALLED.load(Acquire), 0);
            ok(cuStreamSynchronize(on));
            assert_eq!(cuLaunchHostFunc(on, None, null_mut()), 1);
            ok(cuMemFree_v2(at));
        }
        assert_eq!((CALLED.load(Acquire), ringmem_double_violations()), (10, 0));
    });
}

#[test]
fn a_driver_call_in_a_host_function_is_a_violation() {
    let stderr = alone("stream::a_driver_call_in_a_host_function_is_a_violation", &[], || {
        begin();
        let on = stream(NON_BLOCKING);
        // SAFETY: a function callable with this argument.
        unsafe {
            ok(cuLaunchHostFunc(on, Some(calls_back), null_mut()));
            ok(cuStreamSynchronize(on));
        }
        assert_eq!((CALLED.load(Acquire), ringmem_double_violations()), (800, 1));
    });
    assert!(stderr.contains("cuMemAlloc_v2: is called by a host function"), "{stderr}");
}

#[test]
fn a_stream_waits_for_a_word_according_to_its_flag() {
    alone("stream::a_stream_waits_for_a_word_according_to_its_flag", &[], || {
        begin();
        let (words, at, other) = (pinned(64), device(16), stream(NON_BLOCKING));
        let word = |index: usize| {
            // SAFETY: within the 64 bytes, aligned, and an atomic on both sides.
            unsafe { words.cast::<AtomicU64>().add(index).as_ref() }
        };
        for (index, (flags, value, too_little, enough)) in
            [(0, 5, 4, 6), (1, 5, 6, 5), (2, 6, 1, 2), (3, 1, u64::MAX, 1), (1 << 30, 7, 6, 7)].into_iter().enumerate()
        {
            let on = stream(NON_BLOCKING);
            word(index).store(too_little, Relaxed);
            // SAFETY: live memory.
            unsafe {
                ok(cuStreamWaitValue64_v2(on, words.addr().get() as u64 + index as u64 * 8, value, flags));
                ok(cuMemsetD8Async(at, index as u8, 8, on));
                ok(cuMemsetD8Async(at + 8, 9, 8, other));
                ok(cuStreamSynchronize(other));
                assert_eq!(cuStreamQuery(on), 600);
                word(index).store(enough, Release);
                ok(cuStreamSynchronize(on));
            }
            assert_eq!(bytes_at(at, 8), [index as u8; 8]);
        }
        // SAFETY: invalid waits are rejected.
        unsafe {
            assert_eq!(
                [cuStreamWaitValue64_v2(0, at + 4, 1, 0), cuStreamWaitValue64_v2(0, at, 1, 4), cuStreamWaitValue64_v2(0, at + 16, 1, 0)],
                [1; 3]
            );
        }
    });
}

#[test]
fn an_endless_stream_wait_aborts_with_a_reason() {
    let stderr = aborts("stream::an_endless_stream_wait_aborts_with_a_reason", &[("RINGMEM_DOUBLE_DEADLINE_MS", "50")], || {
        begin();
        let (word, on) = (pinned(8), stream(NON_BLOCKING));
        // SAFETY: live memory.
        unsafe {
            ok(cuStreamWaitValue64_v2(on, word.addr().get() as u64, 1, 1));
            cuCtxSynchronize();
        }
    });
    assert!(stderr.contains("cuCtxSynchronize, has waited") && stderr.contains("`a wait for a word`"), "{stderr}");
}

#[test]
fn without_stream_memory_operations_word_calls_fail() {
    alone("stream::without_stream_memory_operations_word_calls_fail", &[("RINGMEM_DOUBLE_ATTRIBUTES", "122=0")], || {
        begin();
        let at = device(8);
        // SAFETY: live memory.
        unsafe { assert_eq!([cuStreamWriteValue64_v2(0, at, 1, 0), cuStreamWaitValue64_v2(0, at, 1, 0)], [801; 2]) };
    });
}

#[test]
fn stream_ids_are_never_reused() {
    alone("stream::stream_ids_are_never_reused", &[], || {
        begin();
        let (mut seen, mut id, mut made) = (Vec::new(), 0, 0);
        // SAFETY: writes numbers and handles.
        unsafe {
            for _ in 0..3 {
                ok(cuStreamCreateWithPriority(&raw mut made, NON_BLOCKING, -1));
                ok(cuStreamGetId(made, &raw mut id));
                assert!(!seen.contains(&id));
                seen.push(id);
                ok(cuStreamDestroy_v2(made));
                assert_eq!(cuStreamGetId(made, &raw mut id), 400);
            }
            assert_eq!(cuStreamCreateWithPriority(&raw mut made, 2, 0), 1);
        }
        assert_eq!(ringmem_double_violations(), 3);
    });
}

#[test]
fn stream_priorities_have_the_range_of_a_gpu() {
    alone("stream::stream_priorities_have_the_range_of_a_gpu", &[], || {
        begin();
        let (mut least, mut greatest) = (9, 9);
        // SAFETY: writes two numbers; null is allowed.
        unsafe {
            ok(cuCtxGetStreamPriorityRange(&raw mut least, &raw mut greatest));
            ok(cuCtxGetStreamPriorityRange(null_mut(), null_mut()));
        }
        assert_eq!((least, greatest), (0, -5));
    });
}

#[test]
fn memset_fills_four_byte_words() {
    alone("stream::memset_fills_four_byte_words", &[], || {
        begin();
        let at = device(16);
        // SAFETY: live memory.
        unsafe {
            ok(cuMemsetD32Async(at + 4, 0x0403_0201, 2, 0));
            assert_eq!([cuMemsetD32Async(at + 2, 0, 1, 0), cuMemsetD32Async(at, 0, 5, 0), cuMemsetD32Async(at, 0, usize::MAX, 0)], [1; 3]);
        }
        assert_eq!(bytes_at(at, 16), [[POISON; 4], [1, 2, 3, 4], [1, 2, 3, 4], [POISON; 4]].concat());
    });
}

#[test]
fn a_cooperative_launch_beyond_the_capacity_is_an_error() {
    alone("stream::a_cooperative_launch_beyond_the_capacity_is_an_error", &[], || {
        begin();
        let (at, order) = (device(512), function(module(), c"order_of_stores"));
        let values = [at, 3, 0];
        let mut parameters = values.each_ref().map(|value| (&raw const *value).cast_mut().cast::<c_void>());
        // SAFETY: as many arguments as the kernel takes.
        unsafe {
            let mut cooperative =
                |blocks, threads| cuLaunchCooperativeKernel(order, blocks, 1, 1, threads, 1, 1, 0, 0, parameters.as_mut_ptr());
            assert_eq!([cooperative(65, 32), cooperative(0, 32)], [720, 1]);
            // As many of 512 threads as the occupancy calls say: two on each of four multiprocessors.
            assert_eq!(cooperative(9, 512), 720);
            ok(cooperative(1, 32));
        }
        assert_eq!(bytes_at(at + 128, 8), 3_u64.to_le_bytes());
        ok(launch(order, 1, 0, &values));
        eventually("the stream is empty", || {
            // SAFETY: takes a handle.
            unsafe { cuStreamQuery(0) == 0 }
        });
    });
}
