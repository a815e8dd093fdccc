use std::ptr::null_mut;

use crate::alone::alone;
use crate::rig::{Held, NON_BLOCKING, begin, bytes_at, device, event, ok, ordered, pinned, stream};
use ringmem_driver_double::*;

const RESERVED: u32 = 5;
const USED: u32 = 7;

fn default_pool() -> usize {
    let mut pool = 0;
    // SAFETY: writes one handle.
    ok(unsafe { cuDeviceGetDefaultMemPool(&raw mut pool, 0) });
    pool
}

fn properties(limit: usize) -> PoolProps {
    let location = Location { kind: 1, id: 0 };
    PoolProps { allocation: 1, handles: 0, location, security: null_mut(), limit, rest: [0; 56] }
}

fn attribute(pool: usize, number: u32) -> u64 {
    let mut value = 0_u64;
    // SAFETY: of eight bytes.
    ok(unsafe { cuMemPoolGetAttribute(pool, number, (&raw mut value).cast()) });
    value
}

fn set(pool: usize, number: u32, mut value: u64) -> u32 {
    // SAFETY: of eight bytes.
    unsafe { cuMemPoolSetAttribute(pool, number, (&raw mut value).cast()) }
}

fn free_bytes() -> usize {
    let (mut free, mut total) = (0, 0);
    // SAFETY: writes two numbers.
    ok(unsafe { cuMemGetInfo_v2(&raw mut free, &raw mut total) });
    total - free
}

#[test]
fn stream_ordered_memory_lives_from_allocation_to_free() {
    alone("pool::stream_ordered_memory_lives_from_allocation_to_free", &[], || {
        begin();
        let (stream, host) = (stream(NON_BLOCKING), pinned(64));
        let at = ordered(64, stream);
        // SAFETY: live memory, in the order of its stream.
        unsafe {
            ok(cuMemsetD8Async(at, 7, 64, stream));
            ok(cuMemcpyDtoHAsync_v2(host.as_ptr().cast(), at, 64, stream));
            ok(cuMemFreeAsync(at, stream));
            ok(cuStreamSynchronize(stream));
            assert_eq!(std::slice::from_raw_parts(host.as_ptr(), 64), [7; 64]);
            let again = ordered(64, stream);
            assert_ne!(again, at);
            ok(cuStreamSynchronize(stream));
            ok(cuMemFree_v2(again));
            ok(cuMemFreeHost(host.as_ptr().cast()));
            ok(cuStreamDestroy_v2(stream));
        }
        assert_eq!((ringmem_double_violations(), ringmem_double_live(), ringmem_double_live_bytes()), (0, 1, 0));
    });
}

#[test]
fn the_default_pool_trims_at_synchronization_above_threshold() {
    alone("pool::the_default_pool_trims_at_synchronization_above_threshold", &[], || {
        begin();
        let (pool, stream) = (default_pool(), stream(NON_BLOCKING));
        let numbers = || (attribute(pool, USED), attribute(pool, RESERVED), free_bytes(), ringmem_double_pool_moves(pool, 0));
        let once = || {
            let at = ordered(1000, stream);
            assert_eq!(numbers().0, 1000);
            // SAFETY: in the order of its stream.
            unsafe {
                ok(cuMemFreeAsync(at, stream));
                ok(cuStreamSynchronize(stream));
            }
        };
        once();
        once();
        assert_eq!((numbers(), ringmem_double_pool_moves(pool, 1)), ((0, 0, 0, 2), 2));
        ok(set(pool, 4, u64::MAX));
        once();
        once();
        once();
        assert_eq!((numbers(), ringmem_double_pool_moves(pool, 1)), ((0, 1000, 1000, 3), 2));
        // SAFETY: takes a handle.
        unsafe {
            ok(cuMemPoolTrimTo(pool, 400));
            assert_eq!(numbers(), (0, 400, 400, 3));
            ok(cuMemPoolTrimTo(pool, 400));
        }
        assert_eq!([attribute(pool, 6), attribute(pool, 8)], [1000, 1000]);
        assert_eq!([set(pool, 6, 0), set(pool, 8, 0), set(pool, 6, 1), set(pool, RESERVED, 0), set(pool, 99, 0)], [0, 0, 1, 1, 1]);
        assert_eq!([attribute(pool, 6), attribute(pool, 8), attribute(pool, 4)], [400, 0, u64::MAX]);
        assert_eq!(ringmem_double_violations(), 0);
    });
}

#[test]
fn a_created_pool_has_a_limit_and_outlives_its_handle() {
    alone("pool::a_created_pool_has_a_limit_and_outlives_its_handle", &[], || {
        begin();
        let (mut pool, mut at, mut more, stream) = (0, 0, 0, stream(NON_BLOCKING));
        // SAFETY: valid output pointers.
        unsafe {
            ok(cuMemPoolCreate(&raw mut pool, &raw const *Box::new(properties(1000))));
            ok(cuMemAllocFromPoolAsync(&raw mut at, 600, pool, stream));
            assert_eq!(cuMemAllocFromPoolAsync(&raw mut more, 600, pool, stream), 2);
            assert_eq!(cuMemPoolDestroy(default_pool()), 1);
            ok(cuMemPoolDestroy(pool));
            assert_eq!(ringmem_double_violations(), 0);
            assert_eq!(cuMemAllocFromPoolAsync(&raw mut more, 6, pool, stream), 400);
            // A destroyed handle may be another's on a driver.
            assert_eq!(ringmem_double_violations(), 1);
            assert_eq!(free_bytes(), 600);
            ok(cuMemFreeAsync(at, stream));
            ok(cuStreamSynchronize(stream));
            assert_eq!((free_bytes(), more), (0, 0));
            for wrong in
                [PoolProps { allocation: 0, ..properties(0) }, PoolProps { location: Location { kind: 2, id: 0 }, ..properties(0) }]
            {
                assert_eq!(cuMemPoolCreate(&raw mut pool, &raw const wrong), 1);
            }
            let nowhere = PoolProps { location: Location { kind: 1, id: 1 }, ..properties(0) };
            assert_eq!(cuMemPoolCreate(&raw mut pool, &raw const nowhere), 101);
        }
        assert_eq!(ringmem_double_live(), 2);
    });
}

#[test]
fn without_memory_pools_async_allocations_fail() {
    alone("pool::without_memory_pools_async_allocations_fail", &[("RINGMEM_DOUBLE_ATTRIBUTES", "115=0")], || {
        begin();
        let (mut pool, mut at) = (0, 0);
        // SAFETY: valid output pointers.
        unsafe {
            assert_eq!(cuMemAllocAsync(&raw mut at, 8, 0), 801);
            assert_eq!(cuDeviceGetDefaultMemPool(&raw mut pool, 0), 801);
            assert_eq!(cuMemPoolCreate(&raw mut pool, &raw const *Box::new(properties(0))), 801);
        }
    });
}

fn luck() {
    std::thread::sleep(std::time::Duration::from_millis(20));
}

#[test]
fn unordered_uses_are_violations_even_if_timing_hides_them() {
    let stderr = alone("pool::unordered_uses_are_violations_even_if_timing_hides_them", &[], || {
        begin();
        let (one, other) = (stream(NON_BLOCKING), stream(NON_BLOCKING));
        // SAFETY: wrong orders of calls; the double keeps the memory.
        unsafe {
            let at = ordered(64, one);
            luck();
            ok(cuMemsetD8Async(at, 1, 64, other));
            assert_eq!(ringmem_double_violations(), 1);
            luck();
            ok(cuMemFreeAsync(at, one));
            assert_eq!(ringmem_double_violations(), 2);
            assert_eq!(cuMemsetD8Async(at, 1, 64, one), 1);
            assert_eq!(cuMemFreeAsync(at, one), 1);
            assert_eq!(cuMemFree_v2(at), 1);
            assert_eq!(ringmem_double_violations(), 5);
            ok(cuCtxSynchronize());
            assert_eq!(cuMemsetD8Async(at, 1, 64, one), 1);
            assert_eq!(cuMemFreeAsync(at, one), 1);
            assert_eq!(cuMemFree_v2(at), 1);
            assert_eq!(ringmem_double_violations(), 8);
            assert_eq!(cuMemsetD8Async(at + (1 << 40), 1, 64, one), 1);
        }
        assert_eq!(ringmem_double_violations(), 8);
    });
    assert!(stderr.contains("not a GPU: 8 violations of the order of calls\n"), "{stderr}");
    for text in
        ["and nothing orders that after its allocation", "and nothing orders the free after that", "after a stream was told to free it"]
    {
        assert!(stderr.contains(text), "{text}: {stderr}");
    }
}

#[test]
fn events_waits_and_the_legacy_stream_order_uses() {
    alone("pool::events_waits_and_the_legacy_stream_order_uses", &[], || {
        begin();
        let (one, other, third) = (stream(NON_BLOCKING), stream(NON_BLOCKING), stream(NON_BLOCKING));
        let (blocking, allocated, used) = (stream(0), event(2), event(2));
        // SAFETY: live memory, ordered as stated.
        unsafe {
            let at = ordered(64, one);
            ok(cuEventRecord(allocated, one));
            ok(cuStreamWaitEvent(other, allocated, 0));
            ok(cuMemsetD8Async(at, 1, 64, other));
            ok(cuEventRecord(used, other));
            ok(cuStreamWaitEvent(third, used, 0));
            ok(cuMemsetD8Async(at, 2, 64, third));
            ok(cuEventRecord(used, third));
            ok(cuStreamWaitEvent(one, used, 0));
            ok(cuMemFreeAsync(at, one));
            let at = ordered(64, one);
            ok(cuStreamSynchronize(one));
            ok(cuMemsetD8Async(at, 1, 64, other));
            ok(cuEventRecord(used, other));
            crate::rig::eventually("the fill is done", || cuEventQuery(used) == 0);
            ok(cuMemFreeAsync(at, third));
            let (at, word) = (ordered(64, one), pinned(8));
            ok(cuStreamWriteValue64_v2(one, word.as_ptr().addr() as u64, 1, 0));
            crate::rig::eventually("the word is there", || word.cast::<u64>().read_volatile() == 1);
            assert_eq!(bytes_at(at, 64), [POISON; 64]);
            ok(cuMemFreeAsync(at, other));
            let at = ordered(64, one);
            ok(cuStreamWriteValue64_v2(one, word.as_ptr().addr() as u64, 2, 0));
            ok(cuStreamWaitValue64_v2(third, word.as_ptr().addr() as u64, 2, 1));
            ok(cuMemsetD8Async(at, 1, 64, third));
            ok(cuMemFreeAsync(at, third));
            let at = ordered(64, 0);
            ok(cuMemsetD8Async(at, 1, 64, blocking));
            ok(cuMemFreeAsync(at, 0));
        }
        assert_eq!(ringmem_double_violations(), 0);
    });
}

#[test]
fn a_free_of_memory_in_flight_is_a_violation() {
    let stderr = alone("pool::a_free_of_memory_in_flight_is_a_violation", &[("RINGMEM_DOUBLE_DELAY_US", "20000")], || {
        begin();
        let (at, host, stream) = (device(64), pinned(64), stream(NON_BLOCKING));
        // SAFETY: live memory. The calls wait for the copy.
        unsafe {
            ok(cuMemcpyHtoDAsync_v2(at, host.as_ptr().cast(), 64, stream));
            ok(cuMemFree_v2(at));
            assert_eq!(ringmem_double_violations(), 1);
            let at = device(64);
            ok(cuMemcpyHtoDAsync_v2(at, host.as_ptr().cast(), 64, stream));
            ok(cuMemFreeHost(host.as_ptr().cast()));
            assert_eq!(ringmem_double_violations(), 2);
            ok(cuMemFree_v2(at));
        }
        assert_eq!(ringmem_double_violations(), 2);
    });
    assert!(stderr.contains("back while queued work uses it"), "{stderr}");
}

#[test]
fn a_kernel_accesses_only_memory_ordered_before_it() {
    alone("pool::a_kernel_accesses_only_memory_ordered_before_it", &[], || {
        begin();
        let order = crate::rig::function(crate::rig::module(), c"order_of_stores");
        let (one, other) = (stream(NON_BLOCKING), stream(NON_BLOCKING));
        // SAFETY: takes a handle.
        ok(unsafe { cuFuncLoad(order) });
        let at = ordered(512, one);
        ok(crate::rig::launch(order, 1, one, &[at, 3, 0]));
        // SAFETY: takes a handle.
        ok(unsafe { cuStreamSynchronize(one) });
        assert_eq!((bytes_at(at + 128, 8), ringmem_double_violations()), (3_u64.to_le_bytes().to_vec(), 0));
        let held = Held::new(NON_BLOCKING);
        let at = ordered(512, held.stream);
        ok(crate::rig::launch(order, 1, other, &[at, 3, 0]));
        // SAFETY: takes a handle.
        ok(unsafe { cuStreamSynchronize(other) });
        assert_eq!(ringmem_double_violations(), 1);
        held.release();
        assert_eq!(bytes_at(at + 128, 8), [POISON; 8]);
    });
}
