use std::alloc::Layout;
use std::any::Any;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};

use crate::eventually;
use crate::rig::busy_stream::Held;
use crate::rig::leak_checked::Clean;
use proptest::prelude::*;
use ringmem::backend::host::{Counters, HostBackend};
use ringmem::backend::{Backend, Block, MemoryLocation, Uses};
use ringmem::memory::{Arena, Both, Buffer, Device, DeviceOnly, GpuBuffer, Memory, Pinned, PinnedBuffer, Unified};
use ringmem::stream::Stream;
use ringmem::{Error, Result};

fn backend() -> Clean {
    Clean::build(HostBackend::builder().device_memory(1 << 20))
}

fn transfers(counters: &Counters) -> [u64; 5] {
    [counters.uploads, counters.downloads, counters.device_copies, counters.host_copies, counters.fills].map(|tally| tally.count)
}

const LEN: usize = 24;

#[derive(Clone, Debug)]
enum Op {
    CopyFromAt(usize, Vec<u16>),
    CopyToAt(usize, usize),
    Fill(Range<usize>, u16),
    QueuedFill(Range<usize>, u16),
    Zero(Range<usize>),
    CopyWithin(Range<usize>, usize),
    FromOther(Range<usize>, Range<usize>),
    Queued(Range<usize>, usize),
    Nested(Range<usize>, Range<usize>, u16),
    SplitAt(usize, u16, u16),
    Cast(Range<usize>, u8),
    Update(Range<usize>, u16),
    Swap,
}

fn place() -> impl Strategy<Value = usize> {
    prop_oneof![20 => 0..=LEN + 2, 1 => Just(usize::MAX), 1 => Just(usize::MAX / 2 + 1)]
}

fn range() -> impl Strategy<Value = Range<usize>> {
    let within = (0..=LEN).prop_flat_map(|start| (Just(start), start..=LEN));
    prop_oneof![3 => within, 1 => (place(), place())].prop_map(|(start, end)| start..end)
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        (place(), prop::collection::vec(any::<u16>(), 0..LEN + 2)).prop_map(|(at, elements)| Op::CopyFromAt(at, elements)),
        (place(), 0..LEN + 2).prop_map(|(at, len)| Op::CopyToAt(at, len)),
        (range(), any::<u16>()).prop_map(|(range, value)| Op::Fill(range, value)),
        (range(), any::<u16>()).prop_map(|(range, value)| Op::QueuedFill(range, value)),
        range().prop_map(Op::Zero),
        (0..=LEN, 0..LEN / 2, place()).prop_map(|(start, len, to)| Op::CopyWithin(start..start + len, to)),
        (range(), range()).prop_map(|(from, to)| Op::FromOther(from, to)),
        (range(), place()).prop_map(|(range, at)| Op::Queued(range, at)),
        (range(), 0..4_usize, 0..8_usize, any::<u16>()).prop_map(|(outer, start, len, value)| Op::Nested(outer, start..start + len, value)),
        (place(), any::<u16>(), any::<u16>()).prop_map(|(at, low, high)| Op::SplitAt(at, low, high)),
        (range(), any::<u8>()).prop_map(|(range, value)| Op::Cast(range, value)),
        (range(), any::<u16>()).prop_map(|(range, value)| Op::Update(range, value)),
        Just(Op::Swap),
    ]
}

fn at(place: usize, len: usize) -> Option<Range<usize>> {
    place.checked_add(len).filter(|&end| end <= LEN).map(|end| place..end)
}

fn model(op: &Op, ours: &mut Vec<u16>, other: &mut Vec<u16>) -> Option<()> {
    match op {
        Op::CopyFromAt(place, elements) => ours[at(*place, elements.len())?].copy_from_slice(elements),
        Op::CopyToAt(place, len) => at(*place, *len).map(|_| ())?,
        Op::Fill(range, value) | Op::QueuedFill(range, value) => ours.get_mut(range.clone())?.fill(*value),
        Op::Zero(range) => ours.get_mut(range.clone())?.fill(0),
        Op::CopyWithin(from, to) => {
            let len = ours.get(from.clone())?.len();
            let to = at(*to, len)?;
            let is_apart = from.end <= to.start || to.end <= from.start;
            is_apart.then(|| ours.copy_within(from.clone(), to.start))?;
        }
        Op::FromOther(from, to) => {
            let (from, to) = (other.get(from.clone())?, ours.get_mut(to.clone())?);
            (from.len() == to.len()).then(|| to.copy_from_slice(from))?;
        }
        Op::Queued(from, to) => {
            let from = other.get(from.clone())?;
            ours[at(*to, from.len())?].copy_from_slice(from);
        }
        Op::Nested(outer, inner, value) => ours.get_mut(outer.clone())?.get_mut(inner.clone())?.fill(*value),
        Op::SplitAt(place, low, high) => {
            let (before, after) = ours.split_at_mut_checked(*place)?;
            before.fill(*low);
            after.fill(*high);
        }
        Op::Cast(range, value) => ours.get_mut(range.clone())?.fill(u16::from_ne_bytes([*value; 2])),
        Op::Update(range, value) => ours.get_mut(range.clone())?.iter_mut().for_each(|element| *element = element.wrapping_add(*value)),
        Op::Swap => std::mem::swap(ours, other),
    }
    Some(())
}

fn apply<M: Memory>(op: &Op, stream: &Stream, buffers: [Buffer<u16, M>; 2]) -> (Result<()>, [Buffer<u16, M>; 2]) {
    let [mut ours, mut other] = buffers;
    let outcome = (|| match op {
        Op::CopyFromAt(at, elements) => ours.copy_from_at(*at, elements),
        Op::CopyToAt(at, len) => {
            let mut elements = vec![0; *len];
            ours.copy_to_at(*at, &mut elements)?;
            assert_eq!(elements, ours.slice(*at..at + len)?.to_vec()?);
            Ok(())
        }
        Op::Fill(range, value) => ours.slice_mut(range.clone())?.fill(*value),
        Op::Zero(range) => ours.slice_mut(range.clone())?.zero(),
        Op::CopyWithin(from, to) => ours.copy_within(from.clone(), *to),
        Op::FromOther(from, to) => ours.slice_mut(to.clone())?.copy_from_view(other.slice(from.clone())?),
        Op::Nested(outer, inner, value) => ours.slice_mut(outer.clone())?.slice(inner.clone())?.fill(*value),
        Op::SplitAt(at, low, high) => {
            let (mut before, mut after) = ours.as_view_mut().split_at(*at)?;
            before.fill(*low)?;
            after.fill(*high)
        }
        Op::Cast(range, value) => ours.slice_mut(range.clone())?.cast::<u8>()?.fill(*value),
        Op::Update(range, value) => ours
            .slice_mut(range.clone())?
            .update(|elements| elements.iter_mut().for_each(|element| *element = element.wrapping_add(*value))),
        Op::Swap => {
            std::mem::swap(&mut ours, &mut other);
            Ok(())
        }
        Op::Queued(..) | Op::QueuedFill(..) => Ok(()),
    })();
    match op {
        Op::Queued(range, at) => match stream.copy_range(other, range.clone(), ours, *at) {
            Ok(pending) => {
                let (other, ours) = pending.detach();
                (Ok(()), [ours, other])
            }
            Err(rejected) => (Err(rejected.error), [rejected.value.1, rejected.value.0]),
        },
        Op::QueuedFill(range, value) => match stream.fill(ours, range.clone(), *value) {
            Ok(pending) => (Ok(()), [pending.detach(), other]),
            Err(rejected) => (Err(rejected.error), [rejected.value, other]),
        },
        _ => (outcome, [ours, other]),
    }
}

fn follows_the_model<M: Memory + Clone>(backend: &Arc<HostBackend>, memory: &M, ops: &[Op]) {
    let streams = [Stream::new(backend, 0).expect("a stream"), Stream::new(backend, 0).expect("a stream")];
    let mut vectors = [vec![1_u16; LEN], vec![2_u16; LEN]];
    let mut buffers = [1, 2].map(|value| Buffer::from_slice(memory.clone(), &[value; LEN]).expect("room"));
    for (i, op) in ops.iter().enumerate() {
        let [ours, other] = &mut vectors;
        let expected = model(op, ours, other);
        streams.iter().for_each(|stream| stream.synchronize().expect("nothing failed"));
        let before = transfers(&backend.counters());
        let outcome;
        (outcome, buffers) = apply(op, &streams[i % 2], buffers);
        assert_eq!(outcome.is_ok(), expected.is_some(), "{op:?}: {outcome:?}");
        if let Err(error) = outcome {
            assert!(
                matches!(
                    error,
                    Error::Range { .. }
                        | Error::Size { what: "range end", .. }
                        | Error::Size { what: "length in elements", .. }
                        | Error::Overlap { .. }
                ),
                "{op:?}: {error}"
            );
            assert_eq!(transfers(&backend.counters()), before, "{op:?} was refused, and something was done");
        }
        if i % 3 == 0 {
            assert_eq!(buffers[0].to_vec().expect("a copy"), vectors[0], "after {op:?}");
        }
    }
    for (buffer, vector) in buffers.iter().zip(&vectors) {
        assert_eq!(buffer.to_vec().expect("a copy"), *vector);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn buffers_of_every_memory_follow_the_model(ops in prop::collection::vec(op(), 0..40)) {
        let backend = backend();
        let device = Device::new(&backend, 0);
        follows_the_model(&backend, &device, &ops);
        follows_the_model(&backend, &Pinned::new(&backend, 0), &ops);
        follows_the_model(&backend, &Unified::new(&backend, 0), &ops);
        follows_the_model(&backend, &Arena::new(device.clone(), 4096, 64).expect("room"), &ops);
        let chosen: Arc<dyn Memory<Visibility = DeviceOnly>> = Arc::new(device);
        follows_the_model(&backend, &chosen, &ops);
        drop(chosen);
        let is_freed = |counters: Counters| (counters.device_live.bytes, counters.pinned_live.bytes, counters.unified_live.bytes) == (0, 0, 0);
        eventually("everything is freed", || is_freed(backend.counters()));
        let counters = backend.counters();
        prop_assert_eq!(counters.device_allocations, counters.device_frees);
        prop_assert_eq!(counters.unreported, 0);
    }
}

#[test]
fn memory_is_chosen_at_run_time_with_fixed_visibility() {
    let backend = backend();
    let arena = Arena::new(Pinned::new(&backend, 0), 4096, 64).expect("room");
    let chosen: [Arc<dyn Memory<Visibility = Both>>; 3] =
        [Arc::new(Pinned::new(&backend, 0)), Arc::new(Unified::new(&backend, 0)), Arc::new(arena)];
    let stream = Stream::new(&backend, 0).expect("a stream");
    for memory in chosen {
        let mut buffer = Buffer::<u8, _>::new(Arc::clone(&memory), 100).expect("room");
        buffer.as_mut_slice().expect("nothing is queued").fill(3);
        let device = GpuBuffer::<u8>::new(Device::new(&backend, 0), 100).expect("room");
        let (buffer, device) = stream.copy(buffer, device).expect("as many").wait().expect("done");
        assert_eq!(device.to_vec().expect("a copy"), buffer.as_slice().expect("nothing is queued"));
        let boxed: Box<dyn Memory<Visibility = Both>> = Box::new(memory);
        assert_eq!((boxed.device(), boxed.backend().id()), (0, backend.id()));
        assert_eq!(Buffer::<u8, _>::from_slice(boxed, &[7; 9]).expect("room").to_vec().expect("a copy"), [7; 9]);
    }
}

struct Broken {
    memory: Device,
    gives: bool,
    frees: AtomicU64,
}

// SAFETY: the blocks are the device's, unchanged.
unsafe impl Memory for Broken {
    type Visibility = DeviceOnly;

    fn alloc(&self, layout: Layout, on: Option<&Stream>) -> Result<Block> {
        if self.gives { self.memory.alloc(layout, on) } else { Err(Error::Injected { call: "alloc", number: 1 }) }
    }
    unsafe fn free(&self, block: &Block, uses: &Uses) -> Result<()> {
        // SAFETY: the caller promises that the block is of this memory and freed once, with its uses; blocks are the device's, unchanged.
        unsafe { self.memory.free(block, uses) }?;
        Err(Error::Injected { call: "free", number: self.frees.fetch_add(1, Relaxed) + 1 })
    }
    fn backend(&self) -> &Arc<dyn Backend> {
        self.memory.backend()
    }
    fn device(&self) -> u32 {
        self.memory.device()
    }
}

#[test]
fn new_and_close_return_errors_and_drop_counts_them() {
    let backend = backend();
    let memory = Device::new(&Arc::clone(&backend).erased(), 0);
    let refuses = Broken { memory: memory.clone(), gives: false, frees: AtomicU64::new(0) };
    let error = Buffer::<u8, _>::new(refuses, 8).expect_err("it gives nothing");
    assert!(matches!(error, Error::Injected { call: "alloc", .. }), "{error}");
    let gives = Arc::new(Broken { memory, gives: true, frees: AtomicU64::new(0) });
    let error = Buffer::<u8, _>::new(Arc::clone(&gives), 8).expect("room").close().expect_err("it says so");
    assert!(matches!(error, Error::Injected { call: "free", number: 1 }), "{error}");
    assert_eq!((backend.counters().unreported, gives.frees.load(Relaxed)), (0, 1), "told, and freed once");
    drop(Buffer::<u8, _>::new(Arc::clone(&gives), 8).expect("room"));
    assert_eq!((backend.counters().unreported, gives.frees.load(Relaxed)), (1, 2), "counted");
    Buffer::<u8, _>::new(Arc::clone(&gives), 0).expect("nothing").close().expect("nothing to free");
    assert_eq!(backend.counters().device_live.bytes, 0);
}

#[test]
fn an_arena_reuses_blocks_after_their_uses() {
    let backend = backend();
    let arena = Arena::new(Device::new(&backend, 0), 1024, 256).expect("room");
    let (base, size) = (arena.device_address().expect("device memory").get(), arena.size() as u64);
    assert_eq!((size, arena.free_bytes()), (1024, 1024));
    let error = arena.alloc(Layout::from_size_align(8, 512).expect("a layout"), None).expect_err("more than the arena has");
    assert!(matches!(error, Error::Align { asked: 512, most: 256, .. }), "{error}");
    let buffer = |len| Buffer::<u8, _>::new(arena.clone(), len);
    let (low, high) = (buffer(600).expect("room"), buffer(400).expect("room"));
    for part in [&low, &high] {
        let at = part.device_address().expect("bytes").get();
        assert!(base <= at && at + part.len() as u64 <= base + size, "{part:?}");
    }
    let error = buffer(100).expect_err("24 are left");
    assert!(matches!(error, Error::OutOfMemory { requested: 100, free: 24, largest: 24, limit: None, .. }), "{error}");

    let stream = Stream::new(&backend, 0).expect("a stream");
    let pinned = PinnedBuffer::<u8>::new(Pinned::new(&backend, 0), 600).expect("room");
    let place = Block { device_address: low.device_address(), ..Block::empty(MemoryLocation::Device, 1) };
    let held = Held::new(&backend, &stream);
    drop(stream.copy(low, pinned).expect("as many"));
    assert_eq!(arena.free_bytes(), 24, "the copy still uses the place");
    held.let_go();
    stream.synchronize().expect("it ends");
    eventually("the backend has dropped what it kept for the place", || !backend.is_deferred(&place));
    assert_eq!(arena.free_bytes(), 624, "the place is free");
    assert_eq!(buffer(600).expect("room again").device_address().map(|address| address.get()), Some(base));
    drop(arena);
    assert_eq!(backend.counters().device_live.bytes, 1024, "a part of it lives");
    drop(high);
    assert_eq!((backend.counters().device_live.bytes, backend.counters().device_allocations.count), (0, 1));
    for (bytes, align) in [(0, 8), (8, 3)] {
        let error = Arena::new(Device::new(&backend, 0), bytes, align).expect_err("no layout");
        assert!(matches!(error, Error::Size { asked: 0, .. } | Error::Align { asked: 3, .. }), "{error}");
    }
}

#[test]
fn a_buffer_is_freed_only_after_its_queued_work() {
    let backend = backend();
    let (stream, memory) = (Stream::new(&backend, 0).expect("a stream"), Device::new(&backend, 0));
    for round in 1..=200 {
        let buffer = GpuBuffer::<u8>::new(memory.clone(), 200_000).expect("room");
        let buffer = stream.fill(buffer, .., 1).expect("a fill").detach();
        drop(stream.fill(buffer, .., 2).expect("a fill"));
        eventually("it is freed", || {
            let freed = backend.counters().device_frees.count;
            assert!(freed < round || backend.counters().fills.count == 2 * round, "round {round}: freed before the work");
            freed == round
        });
    }
}

#[test]
fn a_panicking_closure_uploads_nothing() {
    let backend = backend();
    let mut device = GpuBuffer::from_slice(Device::new(&backend, 0), &[1_u8; 10]).expect("room");
    let mut pinned = PinnedBuffer::from_slice(Pinned::new(&backend, 0), &[1_u8; 10]).expect("room");
    let payload = || -> Box<dyn Any + Send> { Box::new("thrown") };
    let panics = |elements: &mut [u8]| {
        elements[..5].fill(2);
        resume_unwind(payload());
    };
    catch_unwind(AssertUnwindSafe(|| device.update(panics))).expect_err("it unwinds");
    catch_unwind(AssertUnwindSafe(|| device.write(panics))).expect_err("it unwinds");
    catch_unwind(AssertUnwindSafe(|| pinned.update(panics))).expect_err("it unwinds");
    assert_eq!(backend.counters().uploads.count, 1, "only what it was made with");
    assert_eq!(device.to_vec().expect("a copy"), [1; 10]);
    assert_eq!(pinned.as_slice().expect("nothing is queued"), [2, 2, 2, 2, 2, 1, 1, 1, 1, 1], "the memory itself");
    drop((device, pinned));
    assert_eq!((backend.counters().device_live.bytes, backend.counters().pinned_live.bytes), (0, 0));
}

#[test]
fn buffers_of_a_static_memory_count_no_owners() {
    static MEMORY: OnceLock<Device> = OnceLock::new();
    let memory = MEMORY.get_or_init(|| Device::new(&HostBackend::builder().build().expect("a backend").erased(), 0));
    let owners = || Arc::strong_count(memory.backend());
    let before = owners();
    let buffers: Vec<_> = (0..10_u8).map(|number| Buffer::<u8, &'static Device>::from_slice(memory, &[number; 9]).expect("room")).collect();
    assert_eq!(owners(), before);
    assert!(buffers.iter().zip(0..).all(|(buffer, number)| buffer.to_vec().expect("a copy") == [number; 9]));
    drop(buffers);
    let info = memory.backend().memory_info(0).expect("a device").expect("known");
    assert_eq!((owners(), info.used()), (before, 0));
}

#[test]
fn a_zeroed_buffer_in_reused_memory_is_zero() {
    let backend = backend();
    let pool = ringmem::pool::Pool::builder(Device::new(&backend, 0)).build().unwrap();
    let used = Buffer::<u32, _>::from_slice(pool.clone(), &[7; 100]).unwrap();
    let at = used.device_address();
    drop(used);
    let zeroed = Buffer::<u32, _>::zeroed(pool, 100).unwrap();
    assert_eq!((zeroed.device_address(), zeroed.to_vec().unwrap()), (at, vec![0; 100]));
}
