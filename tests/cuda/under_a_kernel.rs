//! The driver calls under a running kernel, as the guide lists them.

use std::alloc::Layout;
use std::collections::BTreeSet;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Instant;

use ringmem::backend::{Backend, DeviceAddress, Launch, MemoryLocation, Options, Request, Uses};
use ringmem::memory::{Device, GpuBuffer, Pinned, PinnedBuffer, Unified, UnifiedBuffer};
use ringmem::stream::{Module, Stream};
use ringmem::{Error, Image};
use ringmem_kernels::{ABI, IMAGE};

use crate::busy_stream::Held;
use crate::rig::{self, Alone, Double};

/// The calls of the guide's tables, in order: made; refused or deferred; not known.
fn listed() -> [Vec<&'static str>; 3] {
    let guide = include_str!("../../docs/guide/cuda.md");
    let section = guide.split_once("\n## Driver calls under a kernel\n").expect("the section").1;
    let section = section.split_once("\n## ").map_or(section, |(section, _)| section);
    let tables: Vec<&str> = section.split("\n| calls |").skip(1).collect();
    let calls = |table: &'static str| -> Vec<&'static str> {
        let cells = table.lines().filter(|line| line.starts_with("| `cu")).filter_map(|line| line.split('|').nth(1));
        cells.flat_map(|cell| cell.split(", ").map(|call| call.trim().trim_matches('`'))).collect()
    };
    let tables: [&'static str; 3] = tables.try_into().expect("three tables");
    tables.map(calls)
}

#[test]
fn the_guide_lists_each_driver_call_of_the_backend_once() {
    let source = include_str!("../../src/backend/cuda/driver.rs");
    let named = source.lines().filter_map(|line| line.trim_start().strip_prefix("fn cu")?.split_once('('));
    let named: BTreeSet<String> = named.map(|(name, _)| format!("cu{name}")).collect();
    let all = listed().concat();
    let set: BTreeSet<String> = all.iter().map(|&call| call.to_owned()).collect();
    assert_eq!((all.len(), set), (named.len(), named));
}

fn frees_and_loads_under_a_kernel() {
    let (backend, double) = (rig::open(), Double::new());
    let (first, second) = (Stream::new(&backend, 0).expect("a stream"), Stream::new(&backend, 0).expect("a stream"));
    let pinned = PinnedBuffer::<u8>::new(Pinned::new(&backend, 0), 4096).expect("room");
    let managed = UnifiedBuffer::<u8>::new(Unified::new(&backend, 0), 4096).expect("room");
    let gpu = GpuBuffer::<u8>::new(Device::new(&backend, 0), 4096).expect("room");
    let mut bytes = vec![0_u8; 4096];
    // SAFETY: the bytes outlive the backend's use of them: it has ended below.
    let registered = unsafe { backend.register(0, NonNull::from(&mut bytes[..]).cast(), bytes.len()) }.expect("new memory");
    let unit = backend.capabilities(0).expect("a device").mapping_granularity.expect("the double has address ranges");
    let range = backend.reserve(0, 4 * unit).expect("addresses");
    let [freed, mut kept] = [0, 1].map(|at| backend.map(&range, at * unit, unit).expect("room"));
    let held = Held::on(&first);
    let [_, waiting, _] = listed();
    let calls = || -> Vec<(&str, u64)> { waiting.iter().map(|&call| (call, double.calls(call))).collect() };
    let before = calls();
    drop((pinned, managed, gpu, registered, second));
    let other = Image { host: &IMAGE.host[..1], ..IMAGE };
    let loaded = Module::load(&backend, &other, &ABI).map(drop);
    assert!(matches!(loaded, Err(Error::Busy { .. })), "{loaded:?}");
    let mapped = backend.map(&range, 2 * unit, unit);
    assert!(matches!(mapped, Err(Error::Busy { .. })), "{mapped:?}");
    // SAFETY: nothing uses it.
    let moved = unsafe { backend.remap(&mut kept, 2 * unit) };
    assert!(matches!(moved, Err(Error::Busy { .. })), "{moved:?}");
    for block in [freed, kept] {
        // SAFETY: each block is freed once, and unused.
        unsafe { backend.free(&block, &Uses::NONE) }.expect("a live block");
    }
    drop(range);
    let trimmed = backend.trim(0);
    assert!(matches!(trimmed, Err(Error::Busy { .. })), "{trimmed:?}");
    let module = backend.load(&IMAGE, &ABI).expect("already loaded");
    let warps = Launch { module, name: "hold", arguments: &[0], groups: u32::MAX, warps: 2, stays: true, operands: &[], elements: None };
    // SAFETY: it is refused, with what fits.
    let many = unsafe { backend.launch(&warps, first.id()) };
    assert!(matches!(many, Err(Error::Size { .. })), "{many:?}");
    backend.unload(module);
    assert_eq!((calls(), backend.waiting()), (before.clone(), 5));
    drop(held);
    first.synchronize().expect("the kernel has ended");
    backend.trim(0).expect("no kernel runs");
    assert_eq!(backend.waiting(), 0);
    let after = calls();
    for ((call, before), (_, after)) in before.iter().zip(&after).filter(|((call, _), _)| {
        ["Free", "Unregister", "Unmap", "Release"].iter().any(|end| call.starts_with("cuMem") && call.contains(end))
    }) {
        assert!(after > before, "{call} was deferred, and not lost");
    }
}

struct SetsOnDrop(Arc<AtomicBool>);

impl Drop for SetsOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Release);
    }
}

/// The kernel outlives the backend: its words are the driver's, and not freed.
fn drops_the_backend_under_a_kernel() {
    let (backend, double) = (rig::open(), Double::new());
    let module = backend.load(&IMAGE, &ABI).expect("our ABI");
    let stream = backend.open_stream(0).expect("a stream");
    let layout = Layout::new::<[u64; 2]>();
    let request = Request { location: MemoryLocation::Pinned, device: 0, layout, options: Options::empty() };
    let block = backend.allocate(&request, None).expect("room");
    // SAFETY: two words of pinned memory, which is never freed.
    let words = unsafe { block.host.expect("pinned").cast::<[AtomicU64; 2]>().as_ref() };
    let arguments = [block.device_address.expect("it has one").get()];
    let launch = Launch { module, name: "hold", arguments: &arguments, groups: 1, warps: 1, stays: true, operands: &[], elements: None };
    // SAFETY: the words outlive the launch.
    unsafe { backend.launch(&launch, stream) }.expect("a launch");
    let begun = Instant::now();
    while words[0].load(Acquire) != 1 {
        assert!(begun.elapsed() < rig::LIMIT, "the kernel does not run");
        thread::yield_now();
    }
    backend.record(stream).expect("a timed event");
    let unit = backend.capabilities(0).expect("a device").mapping_granularity.expect("the double has address ranges");
    let range = backend.reserve(0, 4 * unit);
    // The kernel may use both until it ends, after the drop of the backend.
    let dropped = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
    let sets = |flag: usize| Box::new(SetsOnDrop(Arc::clone(&dropped[flag])));
    let uses = Uses::of(backend.record_position(stream).expect("a ticket"));
    backend.keep(sets(0), &uses, None);
    // SAFETY: nothing accesses the address; it is freed once, with its uses.
    unsafe {
        let adopted = backend.adopt(0, DeviceAddress::new(1 << 46), layout, sets(1)).expect("no listed memory");
        backend.free(&adopted, &uses).expect("deferred");
    }
    let [_, waiting, _] = listed();
    let calls = || -> Vec<(&str, u64)> { waiting.iter().map(|&call| (call, double.calls(call))).collect() };
    let before = calls();
    drop(backend);
    drop(range.expect("addresses"));
    assert_eq!(calls(), before);
    assert_eq!(dropped.each_ref().map(|flag| flag.load(Acquire)), [false; 2], "the kernel still runs");
    words[1].store(1, Release);
}

#[test]
fn a_backend_dropped_under_a_kernel_makes_no_call_that_may_wait() {
    let [_, waiting, _] = listed();
    let alone = Alone::new(concat!(module_path!(), "::a_backend_dropped_under_a_kernel_makes_no_call_that_may_wait"))
        .with("RINGMEM_DOUBLE_WAITS", waiting.join(","))
        .with("RINGMEM_DOUBLE_DEADLINE_MS", 3000);
    if alone.is_here() {
        drops_the_backend_under_a_kernel();
    } else {
        alone.run();
    }
}

fn drops_the_backend_under_a_kernel_of_another() {
    let (mine, other) = (rig::open(), rig::open());
    let theirs = Stream::new(&other, 0).expect("a stream");
    let raw = other.raw_stream(theirs.id()).expect("it is open");
    let held = Held::on(&theirs);
    // SAFETY: the stream lives longer than its adoption.
    let id = unsafe { mine.adopt_raw_stream(0, raw, Box::new(())) }.expect("of the primary context");
    mine.record_position(id).expect("behind the kernel");
    let (sender, receiver) = mpsc::channel();
    let closing = thread::spawn(move || {
        mine.close_stream(id);
        drop(mine);
        sender.send(()).expect("somebody waits");
    });
    receiver.recv_timeout(rig::LIMIT).expect("it waits for a kernel of another");
    closing.join().expect("no panic");
    drop(held);
    theirs.synchronize().expect("done");
}

#[test]
fn a_backend_does_not_wait_for_the_kernel_of_another_on_an_adopted_stream() {
    let name = concat!(module_path!(), "::a_backend_does_not_wait_for_the_kernel_of_another_on_an_adopted_stream");
    let alone = Alone::new(name).with("RINGMEM_DOUBLE_DEADLINE_MS", 5000);
    if alone.is_here() {
        drops_the_backend_under_a_kernel_of_another();
    } else {
        alone.run();
    }
}

#[test]
fn calls_that_may_wait_are_refused_or_deferred_under_a_kernel() {
    let [_, waiting, _] = listed();
    let alone = Alone::new(concat!(module_path!(), "::calls_that_may_wait_are_refused_or_deferred_under_a_kernel"))
        .with("RINGMEM_DOUBLE_WAITS", waiting.join(","))
        .with("RINGMEM_DOUBLE_DEADLINE_MS", 3000);
    rig::clean(&alone, frees_and_loads_under_a_kernel);
}
