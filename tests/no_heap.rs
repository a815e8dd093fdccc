//! Copies and buffers allocate no more heap memory than the backend's own call.
#![cfg(feature = "std")]

#[path = "suite/rig/leak_checked.rs"]
mod leak_checked;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr::null_mut;
use std::sync::Arc;

use leak_checked::Clean;
use ringmem::Error;
use ringmem::backend::host::HostBackend;
use ringmem::backend::{Backend, MemoryLocation, Options, Request, Uses};
use ringmem::bridge::{Opened, RingBufferBridge, TransferStrategy};
use ringmem::memory::{Arena, Device, DeviceOnly, GpuBuffer, Memory, Pinned, PinnedBuffer};
use ringmem::mirror::MirroredBuffer;
use ringmem_kernels::echo::Echo;

struct Counting;

thread_local! {
    static BYTES: Cell<usize> = const { Cell::new(0) };
    static LONGEST: Cell<usize> = const { Cell::new(usize::MAX) };
}

// SAFETY: forwards to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.size() > LONGEST.get() {
            return null_mut();
        }
        BYTES.set(BYTES.get() + layout.size());
        // SAFETY: the caller promises a layout with bytes, which is all that `System.alloc` requires.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: the caller promises a place that `alloc` returned for this layout; `alloc` returns what `System.alloc` does.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static HEAP: Counting = Counting;

fn heap_bytes<R>(run: impl FnOnce() -> R) -> (usize, R) {
    let before = BYTES.get();
    let result = run();
    (BYTES.get() - before, result)
}

fn backend() -> Clean {
    Clean::build(HostBackend::builder().device_memory(1 << 20))
}

#[test]
fn the_counter_sees_allocations() {
    assert_eq!(heap_bytes(|| vec![0_u8; 12_345]).0, 12_345);
}

#[test]
fn copies_fills_and_views_allocate_no_heap() {
    let backend = backend();
    let mut device = GpuBuffer::<u32>::new(Device::new(&backend, 0), 1000).expect("room");
    let other = GpuBuffer::<u32>::new(Device::new(&backend, 0), 1000).expect("room");
    let mut pinned = PinnedBuffer::<u32>::new(Pinned::new(&backend, 0), 1000).expect("room");
    let mut elements = vec![7; 1000];
    let (bytes, ()) = heap_bytes(|| {
        for _ in 0..10 {
            device.copy_from(&elements).expect("as many");
            device.copy_to(&mut elements).expect("as many");
            device.copy_from_at(10, &elements[..100]).expect("within");
            device.copy_to_at(900, &mut elements[..100]).expect("within");
            device.fill(7).expect("a fill");
            device.copy_within(..100, 500).expect("apart");
            device.slice_mut(5..).expect("within").copy_from_view(other.slice(5..).expect("within")).expect("as many");
            pinned.as_mut_slice().expect("nothing is queued")[0] += 1;
            pinned.update(|elements| elements[1] += 1).expect("no copy");
        }
    });
    assert_eq!(bytes, 0);
}

#[test]
fn copies_of_a_mirror_allocate_no_heap() {
    let backend = backend();
    let mut mirror = MirroredBuffer::<u32, _, _>::new(Pinned::new(&backend, 0), Device::new(&backend, 0), 1000).expect("one backend");
    mirror.device().expect("room");
    let mut elements = vec![7; 1000];
    let (bytes, ()) = heap_bytes(|| {
        for round in 0..10 {
            mirror.copy_from(&elements).expect("as many");
            mirror.device_mut().expect("a copy").slice(..1).expect("within").fill(round).expect("a fill");
            mirror.copy_to(&mut elements).expect("as many");
        }
    });
    assert_eq!((bytes, elements[..2].to_vec()), (0, vec![9, 7]));
}

#[test]
fn to_vec_without_heap_space_is_an_error() {
    let backend = backend();
    let mut mirror = MirroredBuffer::<u32, _, _>::new(Pinned::new(&backend, 0), Device::new(&backend, 0), 1000).expect("one backend");
    mirror.fill(7).expect("room");
    let buffer = GpuBuffer::<u32>::new(Device::new(&backend, 0), 1000).expect("room");
    LONGEST.set(3999);
    let refused = [mirror.to_vec(), buffer.to_vec()];
    LONGEST.set(usize::MAX);
    for refused in refused {
        assert!(matches!(refused, Err(Error::Map { bytes: 4000, .. })), "{refused:?}");
    }
    assert_eq!(mirror.to_vec().expect("room"), [7; 1000]);
}

#[test]
fn a_buffer_allocates_as_much_heap_as_the_backend_call() {
    let backend = backend();
    let memory = Device::new(&backend, 0);
    let layout = Layout::array::<u64>(100).expect("a layout");
    let request = Request { location: MemoryLocation::Device, device: 0, layout, options: Options::empty() };
    let bare = || {
        let block = backend.allocate(&request, None).expect("room");
        // SAFETY: just allocated, unused.
        unsafe { backend.free(&block, &Uses::NONE) }.expect("a live block");
    };
    let kept = GpuBuffer::<u64>::new(memory.clone(), 1).expect("room");
    let (expected, ()) = heap_bytes(bare);
    let (bytes, ()) = heap_bytes(|| drop(GpuBuffer::<u64>::new(memory.clone(), 100).expect("room")));
    assert_eq!(bytes, expected);
    drop(kept);
}

#[test]
fn a_flush_allocates_no_heap() {
    let options = ringmem::bridge::Options { capacity: [64; 2], ..ringmem::bridge::Options::new(TransferStrategy::Sync) };
    let backend = backend();
    let Opened { mut sender, mut bridge, .. } = RingBufferBridge::<Echo, Echo>::open(&backend, 0, &options).expect("a bridge");
    let (bytes, ()) = heap_bytes(|| {
        for number in 0..64 {
            sender.push(Echo { words: [number; 8] }).expect("room");
            assert_eq!(bridge.poll().expect("no fault"), [1, 0]);
        }
    });
    assert_eq!(bytes, 0);
}

#[test]
fn a_hundred_arena_buffers_share_one_allocation() {
    let backend = backend();
    let arena: Arc<dyn Memory<Visibility = DeviceOnly>> =
        Arc::new(Arena::new(Device::new(&backend, 0), 100 << 10, 256).expect("room for all"));
    let (bytes, buffers) =
        heap_bytes(|| (0..100).map(|_| ringmem::memory::Buffer::<u8, _>::new(Arc::clone(&arena), 1000).expect("room")).collect::<Vec<_>>());
    assert_eq!(backend.counters().device_allocations.count, 1);
    assert!(bytes <= 100 * 2048, "{bytes} bytes for {} buffers", buffers.len());
    drop(buffers);
    assert_eq!(backend.counters().device_frees.count, 0, "the arena keeps it");
    drop(arena);
    assert_eq!(backend.counters().device_live.bytes, 0);
}
