//! A call without logging allocates no heap memory unless it creates an object.

#[path = "suite/alone.rs"]
mod alone;
#[path = "suite/rig/mod.rs"]
mod rig;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use alone::alone;
use rig::{NON_BLOCKING, begin, device, event, ok, pinned, stream};
use ringmem_driver_double::*;

thread_local! {
    static TAKEN: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: forwards to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = TAKEN.try_with(|taken| taken.set(taken.get() + 1));
        // SAFETY: the caller promises a layout with bytes, which is all that `System.alloc` requires.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: the caller promises a place that `alloc` returned for this layout; `alloc` returns what `System.alloc` does.
        unsafe { System.dealloc(place, layout) };
    }
}

#[test]
fn an_unlogged_query_allocates_no_heap() {
    alone("an_unlogged_query_allocates_no_heap", &[], || {
        begin();
        let (stream, event, host, at) = (stream(NON_BLOCKING), event(2), pinned(64), device(64));
        let (mut free, mut total, mut context, mut number, mut address) = (0, 0, 0, 0, 0);
        // SAFETY: live memory and handles, valid output pointers.
        let mut calls = || unsafe {
            ok(cuMemGetInfo_v2(&raw mut free, &raw mut total));
            ok(cuCtxGetCurrent(&raw mut context));
            ok(cuCtxSetCurrent(context));
            ok(cuDeviceGetAttribute(&raw mut number, 16, 0));
            ok(cuMemHostGetDevicePointer_v2(&raw mut address, host.as_ptr().cast(), 0));
            ok(cuMemGetAddressRange_v2(&raw mut address, &raw mut free, at));
            ok(cuStreamQuery(stream));
            ok(cuEventQuery(event));
            assert_eq!(cuMemFree_v2(1), 1);
        };
        calls();
        let before = TAKEN.get();
        (0..100).for_each(|_| calls());
        assert_eq!(TAKEN.get() - before, 0);
    });
}
