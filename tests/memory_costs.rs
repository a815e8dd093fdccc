//! Heap allocations of buffers and memories, counted by the process.
#![cfg(feature = "std")]

#[path = "suite/rig/leak_checked.rs"]
mod leak_checked;

use core::ops::ControlFlow;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::AtomicI64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use leak_checked::Clean;
use ringmem::backend::host::HostBackend;
use ringmem::backend::{Backend, MemoryLocation, Options, Request, Uses};
use ringmem::manager::{BufferConfig, MemoryManager};
use ringmem::memory::{Aligned, Arena, Buffer, Device, Failing, Limited, Memory, Pinned, Statistics, Tracked};
use ringmem::streaming::{Job, Progress, Streamer, Through};

/// Bytes of all threads, since a stream's thread frees memory that the caller's thread allocated.
static LIVE: AtomicI64 = AtomicI64::new(0);

/// Held by a test that reads [`LIVE`], and by those that allocate megabytes.
static LARGE: Mutex<()> = Mutex::new(());

fn large() -> MutexGuard<'static, ()> {
    LARGE.lock().unwrap_or_else(PoisonError::into_inner)
}

thread_local! {
    static HEAP: Cell<(u64, i64)> = const { Cell::new((0, 0)) };
}

struct Counting;

// SAFETY: the system's allocator, counted.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size() as i64, Relaxed);
        let _ = HEAP.try_with(|heap| heap.set((heap.get().0 + 1, heap.get().1 + layout.size() as i64)));
        // SAFETY: the caller promises a layout with bytes, which is all that `System.alloc` requires.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size() as i64, Relaxed);
        let _ = HEAP.try_with(|heap| heap.set((heap.get().0, heap.get().1 - layout.size() as i64)));
        // SAFETY: the caller promises a place that `alloc` returned for this layout; `alloc` returns what `System.alloc` does.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn heap<T>(work: impl FnOnce() -> T) -> (u64, i64, T) {
    let (count, bytes) = HEAP.get();
    let value = work();
    let (count_after, bytes_after) = HEAP.get();
    (count_after - count, bytes_after - bytes, value)
}

fn backend() -> Clean {
    Clean::build(HostBackend::builder().device_memory(1 << 20))
}

fn bare(backend: &Arc<HostBackend>, location: MemoryLocation) -> u64 {
    let layout = Layout::from_size_align(4096, 8).expect("a layout");
    let request = Request { location, device: 0, layout, options: Options::empty() };
    let once = || {
        let block = backend.allocate(&request, None).expect("room");
        // SAFETY: just allocated, unused.
        unsafe { backend.free(&block, &Uses::NONE) }.expect("live");
    };
    once();
    heap(once).0
}

fn buffer<M: Memory + Clone>(memory: &M) -> u64 {
    let once = || drop(Buffer::<u64, _>::new(memory.clone(), 512).expect("room"));
    once();
    heap(once).0
}

#[test]
fn a_buffer_allocates_no_heap_of_its_own() {
    let backend = backend();
    assert_eq!(buffer(&Device::new(&backend, 0)), bare(&backend, MemoryLocation::Device));
    assert_eq!(buffer(&Pinned::new(&backend, 0)), bare(&backend, MemoryLocation::Pinned));
}

#[test]
fn copies_and_fills_allocate_no_heap() {
    let backend = backend();
    let mut buffer = Buffer::<u64, _>::new(Device::new(&backend, 0), 8).expect("room");
    let mut words = [3; 8];
    let (count, held, ()) = heap(|| {
        buffer.copy_from(&words).expect("as long");
        buffer.fill(9).expect("live");
        buffer.copy_to(&mut words).expect("as long");
    });
    assert_eq!((count, held, words), (0, 0, [9; 8]));
}

#[test]
fn adaptors_without_a_list_allocate_no_heap_per_block() {
    let backend = backend();
    let device = Device::new(&backend, 0);
    let bare = bare(&backend, MemoryLocation::Device);
    assert_eq!(buffer(&Limited::new(device.clone(), 1 << 20)), bare);
    assert_eq!(buffer(&Statistics::new(device.clone())), bare);
    assert_eq!(buffer(&Aligned::new(device.clone(), 512).expect("a power of two")), bare);
    assert_eq!(buffer(&Failing::new(device.clone())), bare);
    let erased: Arc<dyn Memory<Visibility = _>> = Arc::new(device);
    assert_eq!(buffer(&erased), bare);
}

#[test]
fn arena_buffers_use_one_allocation_and_2_kib_of_metadata() {
    const COUNT: usize = 100;
    let backend = backend();
    let arena = Arena::new(Device::new(&backend, 0), COUNT * 256, 256).expect("room");
    let mut buffers = Vec::with_capacity(COUNT);
    let (_, held, ()) = heap(|| buffers.extend((0..COUNT).map(|_| Buffer::<u8, _>::new(arena.clone(), 256).expect("room"))));
    assert!(held <= 2048, "{held} bytes");
    let mut kept = Vec::with_capacity(COUNT);
    let (_, held, ()) = heap(|| kept.extend(buffers.drain(..).enumerate().filter(|(number, _)| number % 2 == 0).map(|(_, buffer)| buffer)));
    assert!(held <= 2048, "{held} bytes");
    assert_eq!((kept.len(), arena.free_bytes()), (COUNT / 2, COUNT as u64 / 2 * 256));
    assert_eq!(backend.counters().device_allocations.count, 1);
}

fn held<M: Memory + Clone>(memory: &M, count: usize) -> i64 {
    let mut buffers = Vec::with_capacity(count);
    heap(|| buffers.extend((0..count).map(|_| Buffer::<u8, _>::new(memory.clone(), 4096).expect("room")))).1
}

#[test]
fn a_tracker_adds_at_most_5_percent_to_4_kib_buffers() {
    let _large = large();
    const COUNT: usize = 10_000;
    let device = || Device::new(&HostBackend::builder().device_memory(64 << 20).build().expect("a backend"), 0);
    let bare = held(&device(), COUNT);
    let (_, list, memory) = heap(|| Tracked::new(device()).named("batch"));
    let (_, backend, _device) = heap(device);
    let added = held(&memory, COUNT) - bare + list - backend;
    assert!(added > 0 && added as usize <= 204 * COUNT, "{added} bytes");
    assert!(held(&memory, COUNT) <= bare);
    assert_eq!(memory.peak_bytes(), (COUNT * 4096) as u64);
}

#[test]
fn a_tracker_with_free_slots_allocates_no_heap() {
    let backend = backend();
    let memory = Tracked::new(Device::new(&backend, 0)).named("one at a time");
    assert_eq!(buffer(&memory), bare(&backend, MemoryLocation::Device));
}

#[test]
fn a_tick_of_a_manager_allocates_no_heap() {
    let backend = backend();
    let manager = MemoryManager::new(Device::new(&backend, 0));
    let ids: Vec<_> = (0..100).map(|k| manager.create::<u8>(&format!("buffer {k}"), 16, BufferConfig::new()).expect("room")).collect();
    let (count, held, ()) = heap(|| {
        ids.iter().for_each(|&id| drop(manager.lease(id).expect("nobody writes")));
        manager.tick();
    });
    assert_eq!((count, held), (0, 0));
}

#[test]
fn a_streamer_s_bookkeeping_is_bounded_by_its_depth_not_by_its_source() {
    let _large = large();
    let most_of = |chunks: usize| {
        let (backend, bytes) = (backend(), vec![7_u8; chunks]);
        let before = LIVE.load(Relaxed);
        let mut streamer = Streamer::builder(&backend, 0).chunk(1).depth(Streamer::MOST_DEPTH).build().expect("room");
        let mut most = LIVE.load(Relaxed) - before;
        let mut note = |_: Progress| {
            most = most.max(LIVE.load(Relaxed) - before);
            ControlFlow::Continue(())
        };
        let streamed = streamer.run(Job::new(&mut &bytes[..]).on_progress(&mut note), &mut Through).expect("no fault");
        assert_eq!(streamed.max_in_flight, 1024);
        most
    };
    let most = [1500, 30_000].map(most_of);
    // Other tests of this process allocate a little meanwhile.
    assert!(most.into_iter().all(|most| most < 4 << 20), "{most:?} bytes");
}

/// Heap bytes for each of `count` named 4 KiB buffers, without those of the bare blocks. Tables grow in steps, so that the share of unused slots depends on
/// `count`.
fn named(count: usize) -> i64 {
    let device = || Device::new(&HostBackend::builder().device_memory(128 << 20).build().expect("a backend"), 0);
    let bare = held(&device(), count);
    let manager = MemoryManager::new(device());
    let create = |k| manager.create::<u8>(&format!("buffer {k}"), 4096, BufferConfig::new()).map(drop).expect("room");
    let (_, all, ()) = heap(|| (0..count).for_each(create));
    (all - bare) / count as i64
}

/// The manager's heap contains the buffers, which are their users' variables without it.
#[test]
fn a_manager_adds_at_most_5_percent_to_4_kib_buffers() {
    let _large = large();
    for count in [8_000, 10_000, 16_000] {
        let bytes = named(count) - size_of::<Buffer<u8, Device>>() as i64;
        assert!(bytes > 0 && bytes <= 204, "{bytes} bytes for each of {count} buffers");
    }
}
