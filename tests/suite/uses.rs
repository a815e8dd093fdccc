use std::mem::forget;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};

use crate::eventually;
use crate::rig::busy_stream::Held;
use crate::rig::leak_checked::Clean;
use crate::rig::panicking_clock::{clock, has_struck, strike};
use ringmem::Error;
use ringmem::backend::host::{Fault, Faults, HostBackend, Verb};
use ringmem::backend::{Backend, Uses};
use ringmem::manager::{BufferConfig, MemoryManager};
use ringmem::memory::{Arena, Buffer, Device, GpuBuffer, Memory, Pinned};
use ringmem::stream::Stream;
use zerocopy::FromZeros;

fn backend() -> Clean {
    Clean::build(HostBackend::builder().device_memory(1 << 20))
}

fn streams(backend: &Arc<HostBackend>, count: usize) -> Vec<Stream> {
    (0..count).map(|_| Stream::new(backend, 0).expect("a stream")).collect()
}

#[test]
fn a_buffer_used_on_many_streams_is_written_in_order() {
    let backend = backend();
    let streams = streams(&backend, 9);
    for round in 0..50_u32 {
        let mut buffer = GpuBuffer::<u32>::new(Device::new(&backend, 0), 1000).expect("room");
        for (turn, stream) in (0..).zip(&streams) {
            buffer = stream.fill(buffer, turn as usize.., round * 100 + turn).expect("queued").detach();
        }
        let elements = buffer.to_vec().expect("copied");
        let expected = (0..1000).map(|index| round * 100 + index.min(8));
        assert!(elements.iter().copied().eq(expected), "round {round}: {:?}", &elements[..10]);
    }
    assert_eq!(backend.counters().device_live.bytes, 0);
}

#[test]
fn a_buffer_used_by_many_streams_is_freed_after_all_of_them() {
    let backend = backend();
    let all = streams(&backend, 3 * Uses::MOST);
    let mut buffer = GpuBuffer::<u8>::new(Device::new(&backend, 0), 16).expect("room");
    for stream in &all {
        buffer.used_by(stream).expect("listed");
    }
    drop(buffer);
    for stream in &all {
        stream.synchronize().expect("nothing failed");
    }
    assert_eq!(backend.counters().device_live.bytes, 0);
}

#[test]
fn a_failed_use_keeps_all_listed_uses() {
    let backend = backend();
    let [first, others @ ..] = <[Stream; Uses::MOST + 1]>::try_from(streams(&backend, Uses::MOST + 1)).expect("so many");
    for (verb, number) in [(Verb::RecordPosition, 1), (Verb::StreamWait, 1), (Verb::RecordPosition, 2)] {
        let held = Held::new(&backend, &first);
        let mut buffer = GpuBuffer::<u8>::new(Device::new(&backend, 0), 16).expect("room");
        buffer.used_by(&first).expect("listed");
        let (last, listed) = others.split_last().expect("more than one");
        listed.iter().for_each(|stream| buffer.used_by(stream).expect("listed"));
        backend.set_faults(&Faults::new().on(verb, Fault::nth(number)));
        let error = buffer.used_by(last).expect_err("planned");
        backend.set_faults(&Faults::new());
        assert!(matches!(error, Error::Injected { call, .. } if call == verb.name()), "{error}");
        drop(buffer);
        others.iter().take(Uses::MOST - 1).for_each(|stream| stream.synchronize().expect("nothing failed"));
        assert_eq!(backend.counters().device_live.bytes, 16, "{verb:?}: freed under the kernel of the first");
        held.let_go();
        others.iter().for_each(|stream| stream.synchronize().expect("nothing failed"));
        first.synchronize().expect("nothing failed");
        eventually("it is freed after the kernel", || backend.counters().device_live.bytes == 0);
    }
}

#[test]
#[should_panic(expected = "64 bytes in 1 blocks are live at the end of a test")]
fn a_leaked_buffer_fails_the_test() {
    let backend = backend().at_once();
    forget(GpuBuffer::<u8>::new(Device::new(&backend, 0), 64).expect("room"));
}

#[test]
fn a_failed_stream_wait_returns_the_buffer() {
    let backend = backend();
    let [first, second] = <[Stream; 2]>::try_from(streams(&backend, 2)).expect("two");
    let buffer = GpuBuffer::<u8>::new(Device::new(&backend, 0), 16).expect("room");
    let buffer = first.fill(buffer, .., 1).expect("queued").detach();
    backend.set_faults(&Faults::new().on(Verb::StreamWait, Fault::from(1)));
    let rejected = second.fill(buffer, .., 2).expect_err("it cannot wait");
    assert!(matches!(rejected.error, Error::Injected { .. }), "{rejected:?}");
    backend.set_faults(&Faults::new());
    assert_eq!(rejected.value.to_vec().expect("copied"), [1; 16]);
}

#[test]
fn other_backend_errors_order_expected_and_got() {
    let (ours, theirs) = (backend(), backend());
    let stream = Stream::new(&ours, 0).expect("a stream");
    let mut buffer = GpuBuffer::<u8>::new(Device::new(&theirs, 0), 16).expect("room");
    let arena = Arena::new(Device::new(&theirs, 0), 64, 64).expect("room");
    let errors = [
        buffer.used_by(&stream).expect_err("another backend"),
        Buffer::<u8, _>::new_on(Device::new(&theirs, 0), 8, &stream).expect_err("another backend"),
        Buffer::<u8, _>::new_on(arena, 8, &stream).expect_err("another backend"),
    ];
    for error in errors {
        assert!(matches!(error, Error::OtherBackend { expected, got } if (expected, got) == (ours.id(), theirs.id())), "{error}");
    }
}

#[test]
fn inverted_and_too_long_ranges_have_distinct_errors() {
    let backend = backend();
    let buffer = GpuBuffer::<u32>::new(Device::new(&backend, 0), 10).expect("room");
    #[allow(clippy::reversed_empty_ranges, reason = "what it is about")]
    let error = buffer.slice(7..3).expect_err("inverted");
    assert!(matches!(error, Error::Size { what: "range end", least: 7, asked: 3, .. }), "{error}");
    #[allow(clippy::reversed_empty_ranges, reason = "what it is about")]
    let error = buffer.slice(12..3).expect_err("inverted, and from beyond the end");
    assert!(matches!(error, Error::Range { offset: 12, size: 10, .. }), "no end would do: {error}");
    let error = buffer.slice(3..11).expect_err("too long");
    assert!(matches!(error, Error::Range { offset: 3, len: 8, size: 10, element_bytes: 4 }), "{error}");
}

#[test]
fn fill_requires_aligned_elements() {
    let backend = backend();
    let memory = Device::new(&backend, 0);
    let _before = GpuBuffer::<u8>::new(memory.clone(), 1).expect("room");
    let mut buffer = GpuBuffer::<[u8; 4]>::new(memory.clone(), 5).expect("room");
    buffer.slice_mut(1..4).expect("within").fill([1, 2, 3, 4]).expect("filled");
    assert_eq!(buffer.slice(1..4).expect("within").to_vec().expect("copied"), [[1, 2, 3, 4]; 3]);
    let _between: [_; 4] = std::array::from_fn(|_| GpuBuffer::<u8>::new(memory.clone(), 1).expect("room"));
    let odd = GpuBuffer::<u8>::new(memory, 8).expect("room").cast::<[u8; 8]>().expect("whole");
    let error = { odd }.fill([0; 8]);
    assert!(matches!(error, Err(Error::Cast { .. })), "{error:?}");
}

#[test]
fn an_arena_rejects_empty_blocks() {
    let backend = backend();
    let arena = Arena::new(Device::new(&backend, 0), 64, 64).expect("room");
    let layout = std::alloc::Layout::from_size_align(0, 1).expect("a layout");
    assert!(matches!(arena.alloc(layout, None), Err(Error::Size { asked: 0, least: 1, most: 64, .. })));
    assert_eq!(Buffer::<u8, _>::new(arena, 0).expect("no bytes").len(), 0);
}

#[test]
fn a_control_block_survives_a_download() {
    let backend = backend();
    let mut block = ringmem::ControlBlock::<u64>::new_zeroed();
    (block.command, block.heartbeat) = (7, 9);
    let buffer = GpuBuffer::from_slice(Device::new(&backend, 0), &[block]).expect("room");
    assert_eq!(buffer.to_vec().expect("copied"), [block]);
}

#[test]
fn a_use_is_waited_for_once() {
    let backend = Clean::build(HostBackend::builder().device_memory(1 << 20).faults(Faults::new()));
    let [first, second] = [(); 2].map(|()| Stream::new(&backend, 0).expect("a stream"));
    let waits = || backend.calls(Verb::Wait).expect("calls are counted");
    let buffer = GpuBuffer::<u32>::new(Device::new(&backend, 0), 10).expect("room");
    let mut buffer = first.fill(buffer, .., 7).expect("queued").detach();
    assert_eq!((buffer.to_vec().expect("copied"), waits()), (vec![7; 10], 1));
    buffer.copy_to(&mut [0; 10]).expect("copied");
    buffer.slice(2..).expect("within").to_vec().expect("copied");
    buffer.copy_from(&[8; 10]).expect("copied");
    buffer.copy_within(..2, 5).expect("copied");
    buffer.fill(9).expect("filled");
    buffer.zero().expect("filled");
    assert_eq!(waits(), 1, "nothing was queued since");
    let mut buffer = second.fill(buffer, .., 3).expect("queued").detach();
    assert_eq!((buffer.to_vec().expect("copied"), waits()), (vec![3; 10], 2), "another use");
    buffer.used_by(&first).expect("a live stream");
    assert_eq!((buffer.to_vec().expect("copied"), waits()), (vec![3; 10], 4), "and one more beside it");
    let buffer = second.fill(buffer, .., 4).expect("queued").detach();
    backend.set_faults(&Faults::new().on(Verb::Wait, Fault::nth(1)));
    buffer.to_vec().expect_err("the wait fails");
    assert_eq!((buffer.to_vec().expect("copied"), waits()), (vec![4; 10], 6));
    assert_eq!((buffer.to_vec().expect("copied"), waits()), (vec![4; 10], 6));
}

#[test]
fn an_arena_waits_for_a_pending_free() {
    struct Shut(Mutex<()>);
    impl Wake for Shut {
        fn wake(self: Arc<Self>) {
            drop(self.0.lock());
        }
    }
    let backend = backend();
    let stream = Stream::new(&backend, 0).expect("a stream");
    let arena = Arena::new(Device::new(&backend, 0), 4096, 64).expect("room");
    let held = Held::new(&backend, &stream);
    let mut buffer = Buffer::<u8, _>::new(arena.clone(), 4096).expect("room");
    buffer.used_by(&stream).expect("a live stream");
    let shut = Arc::new(Shut(Mutex::default()));
    let gate = shut.0.lock().expect("nobody panicked");
    let ticket = backend.record_position(stream.id()).expect("a live stream");
    backend.notify(ticket, Waker::from(Arc::clone(&shut))).expect("the backend notifies");
    drop(buffer);
    held.let_go();
    stream.synchronize().expect("nothing failed");
    let again = Buffer::<u8, _>::new(arena.clone(), 4096).map(drop);
    let free = arena.free_bytes();
    drop(gate);
    again.expect("its last use is over");
    assert_eq!(free, 4096);
}

/// `fill` panics at its `number`th log entry, then frees the memory.
fn assert_half_queued_fills_keep_their_memory(fill: impl Fn(&Stream, Arena<Pinned>, u64) -> (bool, bool)) {
    let struck = (1..).find(|&number| {
        let backend = Clean::build(HostBackend::builder().log(true).clock(clock()));
        let stream = Stream::new(&backend, 0).expect("a stream");
        let arena = Arena::new(Pinned::new(&backend, 0), 4096, 64).expect("room");
        let held = Held::new(&backend, &stream);
        let (has_panicked, has_struck) = fill(&stream, arena.clone(), number);
        assert_eq!(has_panicked, has_struck);
        let next = Buffer::<[u32; 3], _>::new(arena, 4).expect("room");
        held.let_go();
        stream.synchronize().expect("done");
        assert_eq!(next.as_slice().expect("nothing is queued"), [[0; 3]; 4], "operation {number}");
        !has_struck
    });
    assert!(struck > Some(3), "a copy of the element, and two of the doubled elements");
}

#[test]
fn a_fill_that_panics_half_queued_keeps_its_memory() {
    assert_half_queued_fills_keep_their_memory(|stream, arena, number| {
        let target = Buffer::<[u32; 3], _>::new(arena, 4).expect("room");
        strike(number);
        (catch_unwind(AssertUnwindSafe(|| drop(stream.fill(target, .., [1, 2, 3])))).is_err(), has_struck())
    });
}

#[test]
fn a_managed_fill_that_panics_half_queued_keeps_its_memory() {
    assert_half_queued_fills_keep_their_memory(|stream, arena, number| {
        let manager = MemoryManager::new(arena);
        let id = manager.create::<[u32; 3]>("a", 4, BufferConfig::new().with_bytes(0, 4096).with_async(true)).expect("room");
        let mut lease = manager.lease_mut(id).expect("nobody else");
        strike(number);
        (catch_unwind(AssertUnwindSafe(|| lease.fill_on(stream, .., [1, 2, 3]))).is_err(), has_struck())
    });
}
