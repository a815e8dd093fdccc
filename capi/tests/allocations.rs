//! Calls on a fast path allocate nothing.
#![cfg(any(target_os = "linux", target_os = "android"))]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ffi::{CStr, c_void};
use std::ptr::{from_mut, from_ref, null, null_mut};

use ringmem_capi::rings::*;
use ringmem_capi::status::{Status, ringmem_last_error};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// Counts the calling thread's allocations.
struct Counting;

// SAFETY: the system's allocator; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller promises a layout with bytes, which is all that `System.alloc` requires.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller promises a place that `alloc` returned for this layout; `alloc` returns what `System.alloc` does.
        unsafe { System.dealloc(block, layout) };
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn allocations_of(act: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.get();
    act();
    ALLOCATIONS.get() - before
}

fn last_error() -> &'static CStr {
    // SAFETY: a constant of the library, in this test.
    unsafe { CStr::from_ptr(ringmem_last_error()) }
}

#[test]
fn transfers_and_a_full_or_empty_ring_allocate_nothing() {
    let facts = Message { size: 8, align: 8, kind: 0, abi: 7 };
    let (mut ring, mut producer, mut consumer) = (null_mut(), null_mut(), null_mut());
    // SAFETY: places for handles, and a message.
    let opened = unsafe {
        [
            ringmem_ring_create(null(), &facts, 2, &mut ring),
            ringmem_producer_open(ring, &facts, &mut producer),
            ringmem_consumer_open(ring, &facts, &mut consumer),
        ]
    };
    assert_eq!(opened, [Status::Ok; 3]);
    let (mut message, mut count, mut slots, mut messages) = (7_u64, 0, null_mut(), null());
    let place = from_mut(&mut message).cast::<c_void>();
    let mut found = [Status::Panic; 9];
    let mut texts = [c""; 2];
    // SAFETY: open ends, and places for a message and for outputs.
    let allocations = allocations_of(|| unsafe {
        found[0] = ringmem_consumer_pop(consumer, place);
        texts[0] = last_error();
        found[1] = ringmem_consumer_peek(consumer, 1, &mut messages, &mut count);
        found[2] = ringmem_producer_push(producer, place);
        found[3] = ringmem_producer_reserve(producer, 1, &mut slots, &mut count);
        found[4] = ringmem_producer_commit(producer, 1);
        found[5] = ringmem_producer_push(producer, place);
        texts[1] = last_error();
        found[6] = ringmem_producer_push_many(producer, place, 1, &mut count);
        found[7] = ringmem_consumer_pop_wait(consumer, place, -1);
        found[8] = ringmem_producer_push_wait(producer, place, -1);
    });
    use Status::{Empty, Full, Ok};
    assert_eq!(found, [Empty, Empty, Ok, Ok, Ok, Full, Full, Ok, Ok]);
    assert_eq!(texts, [c"the ring is empty", c"the ring is full"]);
    assert_eq!(allocations, 0);
    // The counter counts.
    // SAFETY: an open end.
    assert!(allocations_of(|| assert_eq!(unsafe { ringmem_producer_push(producer, null()) }, Status::Invalid)) > 0);
    let text = from_ref(last_error());
    // SAFETY: the text of this thread, which does not fail meanwhile. Open handles, closed once.
    unsafe {
        assert_eq!(&*text, c"`message` is a null pointer");
        ringmem_producer_close(producer);
        ringmem_consumer_close(consumer);
        ringmem_ring_close(ring);
    }
}
