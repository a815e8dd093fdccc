use std::alloc::Layout;
use std::mem::forget;
use std::panic::Location;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::Duration;

use ringmem::backend::host::HostBackend;
use ringmem::backend::{MemoryLocation, Uses};
use ringmem::copy::Coalescer;
use ringmem::double_buffer::{self, Policy, Uploads};
use ringmem::manager::{BufferConfig, MemoryManager};
use ringmem::memory::{
    Aligned, Arena, Buffer, Device, DeviceOnly, Failing, Host, Leak, Limited, Logged, Memory, Named, Pinned, Statistics, Tracked, When,
};
use ringmem::mirror::MirroredBuffer;
use ringmem::pool::Pool;
use ringmem::stream::Stream;

use crate::adaptors::facts::bytes;
use crate::adaptors::hooked::{Hooked, set};

fn backend() -> Arc<HostBackend> {
    HostBackend::builder().device_memory(1 << 20).build().expect("a backend")
}

type TrackedDevice = Tracked<Device>;

fn tracked() -> (Arc<HostBackend>, TrackedDevice) {
    let backend = backend();
    let memory = Tracked::new(Device::new(&backend, 0));
    (backend, memory)
}

fn clocked() -> (Arc<AtomicU64>, TrackedDevice) {
    let now = Arc::new(AtomicU64::new(0));
    let clock = Arc::clone(&now);
    (now, Tracked::with_clock(Device::new(&backend(), 0), move || clock.load(Relaxed)))
}

fn names<M: Memory>(memory: &Tracked<M>) -> Vec<(Option<String>, u64, u64)> {
    let named = |Named { name, blocks, bytes, .. }: Named| (name.map(|name| name.to_string()), blocks, bytes);
    memory.report().names().into_iter().map(named).collect()
}

#[test]
fn blocks_of_one_name_are_counted_separately() {
    let (_backend, memory) = tracked();
    let positions = memory.named("positions");
    let first = bytes(&positions, 100).expect("room");
    let second = bytes(&memory.named("positions"), 20).expect("room");
    let other = bytes(&memory, 50).expect("room");
    let third = bytes(&positions.clone(), 3).expect("room");
    let name = Some("positions".to_owned());
    assert_eq!(names(&memory), [(name.clone(), 3, 123), (None, 1, 50)]);
    assert_eq!((positions.live_blocks(), memory.live_bytes()), (4, 173));
    drop(first);
    assert_eq!(names(&memory), [(None, 1, 50), (name, 2, 23)]);
    drop((second, other, third));
    assert!(names(&memory).is_empty() && memory.report().is_empty());
    assert_eq!((memory.live_blocks(), memory.live_bytes(), memory.peak_bytes()), (0, 0, 173));
    assert_eq!(memory.report().to_string(), "no live blocks; peak 173 bytes");
}

#[test]
fn a_leak_within_one_clock_tick_has_a_nonzero_age() {
    let memory = Tracked::with_clock(Device::new(&backend(), 0), || 7);
    let leaked = Buffer::<u8, _>::new(memory.clone(), 100).expect("room");
    assert!(memory.report().to_string().ends_with("number 1, less than 10 ms ago"), "{}", memory.report());
    drop(leaked);
}

#[test]
fn a_forgotten_buffer_is_reported_with_size_age_and_line() {
    let (now, memory) = clocked();
    let mut forgotten = 0;
    for number in 1..=100 {
        now.store(number * 1000, Relaxed);
        let buffer = Buffer::<u64, _>::new(memory.clone(), number as usize).expect("room");
        if number == 42 {
            forgotten = line!() - 2;
            forget(buffer);
        }
    }
    now.store(1_000_000, Relaxed);
    let leaks = memory.leaks();
    let [Leak { number: 42, name: None, bytes: 336, align: 8, age, caller, stream: None, backtrace: None, .. }] = leaks[..] else {
        panic!("{leaks:?}")
    };
    assert_eq!((age, caller.file(), caller.line()), (Duration::from_nanos(1_000_000 - 42_000), file!(), forgotten));
    let sums = "1 live block, 336 bytes; peak 1136 bytes";
    let text = format!("{sums}\n336 bytes, Device, by {}:{forgotten}:22, number 42, 958µs ago", file!());
    assert_eq!(memory.report().to_string(), text);
}

#[test]
fn a_growing_buffer_leaves_no_leak() {
    let (_backend, memory) = tracked();
    let memory = memory.named("grows");
    let mut buffer = bytes(&memory, 10).expect("room");
    for len in (20..=200).step_by(10) {
        buffer = bytes(&memory, len).expect("room");
        assert_eq!(names(&memory), [(Some("grows".to_owned()), 1, len as u64)]);
    }
    assert_eq!((memory.live_bytes(), memory.peak_bytes()), (200, 390));
    drop(buffer);
    assert_eq!((names(&memory), memory.live_bytes()), (Vec::new(), 0));
}

#[test]
fn a_thousand_leaks_of_4_mb_are_reported_together() {
    const LEN: usize = 4_000_000;
    let backend = HostBackend::builder().device_memory(5 << 30).build().expect("a backend");
    let memory = Tracked::new(Host::new(&backend, 0)).named("frame");
    for _ in 0..1000 {
        forget(Buffer::<u8, _>::new(memory.clone(), LEN).expect("room"));
    }
    let report = memory.report();
    assert_eq!((report.leaks.len(), report.bytes, report.peak), (1000, 4_000_000_000, 4_000_000_000));
    assert!(report.leaks.iter().all(|leak| leak.bytes == LEN as u64));
    assert_eq!(names(&memory), [(Some("frame".to_owned()), 1000, 4_000_000_000)]);
    let text = report.to_string();
    assert!(text.contains("\n1000 x 4000000 bytes \"frame\", Host, by "), "{text}");
    assert_eq!(text.lines().count(), 2, "{text}");
}

#[test]
fn a_report_lists_the_largest_leak_and_sum_first() {
    let (_backend, memory) = tracked();
    let make = |memory: &TrackedDevice, len| Buffer::<u8, _>::new(memory.clone(), len).expect("room");
    let small = memory.named("small");
    let _kept =
        [make(&small, 30), make(&memory, 70), make(&small, 30), make(&memory.named("large"), 200), make(&small, 30), make(&memory, 50)];
    let report = memory.report();
    let leaks: Vec<_> = report.leaks.iter().map(|leak| (leak.bytes, leak.number)).collect();
    assert_eq!(leaks, [(200, 4), (70, 2), (50, 6), (30, 1), (30, 3), (30, 5)]);
    let text = report.to_string();
    let lines: Vec<_> = text.lines().map(|line| line.split(", ").next().unwrap_or_default()).collect();
    assert_eq!(lines, ["6 live blocks", "200 bytes \"large\"", "3 x 30 bytes \"small\"", "70 bytes", "50 bytes"]);
    assert!(text.contains("the oldest number 1,"), "{text}");
}

#[track_caller]
fn around<M: Memory>(memory: M) -> Buffer<u8, M> {
    Buffer::from_slice(memory, &[1; 8]).expect("room")
}

#[test]
fn the_caller_line_passes_through_adaptors_and_functions() {
    fn caller<M: Memory>(memory: &Tracked<M>) -> (&'static Location<'static>, u64) {
        let leaks = memory.leaks();
        assert_eq!(leaks.len(), 1);
        (leaks[0].caller, leaks[0].number)
    }
    let (backend, memory) = tracked();
    let stream = Stream::new(&backend, 0).expect("a stream");
    let here = |line: u32, number: u64, (caller, counted): (&'static Location<'static>, u64)| {
        assert_eq!((caller.file(), caller.line(), counted), (file!(), line, number), "{caller}");
    };
    let one = Buffer::<u16, _>::new(memory.clone(), 1).expect("room");
    here(line!() - 1, 1, caller(&memory));
    drop(one);
    let one = Buffer::<u16, _>::new_on(memory.clone(), 1, &stream).expect("room");
    here(line!() - 1, 2, caller(&memory));
    drop(one);
    let one = around(memory.clone());
    here(line!() - 1, 3, caller(&memory));
    drop(one);
    let arena = Arena::new(memory.clone(), 1 << 10, 8).expect("room");
    here(line!() - 1, 4, caller(&memory));
    drop(arena);
    let layout = Layout::new::<u64>();
    let block = memory.alloc(layout, None).expect("room");
    here(line!() - 1, 5, caller(&memory));
    // SAFETY: just allocated, unused.
    unsafe { memory.free(&block, &Uses::NONE) }.expect("live");
    let behind =
        Aligned::new(Statistics::new(Limited::new(Logged::new(Failing::new(memory.clone())), 1 << 16)), 64).expect("a power of two");
    let one = around(Arc::new(Box::new(behind)));
    here(line!() - 1, 6, caller(&memory));
    drop(one);
    let erased: Arc<dyn Memory<Visibility = DeviceOnly>> = Arc::new(memory.clone());
    let above = Tracked::new(erased.clone());
    let one = around(erased);
    here(line!() - 1, 7, caller(&memory));
    drop(one);
    let _one = around(above.clone());
    here(line!() - 1, 8, caller(&memory));
    here(line!() - 2, 1, caller(&above));
}

fn only<M: Memory>(memory: &Tracked<M>, line: u32) -> (Option<String>, bool, u64) {
    let leaks = memory.leaks();
    let [Leak { name, caller, bytes, .. }] = &leaks[..] else { panic!("one block should be live: {leaks:?}") };
    (name.as_deref().map(str::to_owned), (caller.file(), caller.line()) == (file!(), line), *bytes)
}

#[test]
fn a_manager_s_block_has_its_buffer_name_and_caller_line() {
    let (_backend, memory) = tracked();
    let manager = MemoryManager::new(memory.named("not a buffer's name"));
    let config = BufferConfig::new().with_bytes(0, 1 << 20);
    let positions = |bytes| (Some("positions".to_owned()), true, bytes);
    let id = manager.create::<f32>("positions", 1000, config).expect("room");
    let line = line!() - 1;
    assert_eq!(only(&memory, line), positions(4000));
    let text = memory.report().to_string();
    assert!(text.contains(&format!("4000 bytes \"positions\", Device, by {}:{line}:", file!())), "{text}");
    manager.lease_mut(id).expect("nobody else").resize(5000).expect("room");
    assert_eq!(only(&memory, line), positions(20_000));
    manager.resize_group([(id.into(), 6000)]).expect("room");
    assert_eq!(only(&memory, line), positions(30_000));
    manager.lease_mut(id).expect("nobody else").shrink_to_fit().expect("room");
    assert_eq!(only(&memory, line), positions(24_000));
    manager.lease_mut(id).expect("nobody else").extend_from_slice(&[0.0]).expect("room");
    assert!(only(&memory, line).1);
    assert_eq!(manager.clear(), 1);
    let mut reserved = manager.reserve(10).expect("room");
    let id = manager.create_in::<u8>(&mut reserved, "positions", 10, config).expect("room");
    assert_eq!(only(&memory, line!() - 1), positions(10));
    manager.free(id).expect("live");
    manager.get_or_create::<u8>("positions", 11, config).expect("room");
    assert_eq!(only(&memory, line!() - 1), positions(11));
    assert_eq!(manager.clear(), 1);
    assert_eq!(memory.leaks().len(), 0);
    let _own = bytes(&memory.named("own"), 1).expect("room");
    assert_eq!(memory.leaks()[0].name.as_deref(), Some("own"));
}

#[test]
fn a_logged_name_reaches_the_tracked_memory_below() {
    let (_backend, memory) = tracked();
    let logged = Logged::new(memory.named("below"));
    let named = bytes(&logged.named("weights"), 100).expect("room");
    assert_eq!(names(&memory), [(Some("weights".to_owned()), 1, 100)]);
    drop(named);
    let _plain = bytes(&logged, 10).expect("room");
    assert_eq!(names(&memory), [(Some("below".to_owned()), 1, 10)]);
    let manager = MemoryManager::new(logged.named("not a buffer's name"));
    manager.create::<u8>("positions", 5000, BufferConfig::new()).expect("room");
    assert!(names(&memory).contains(&(Some("positions".to_owned()), 1, 5000)));
}

#[test]
fn a_pool_s_slab_has_no_buffer_name() {
    let (_backend, memory) = tracked();
    let pool = Pool::builder(memory.clone()).slab(64 << 10).limit(64 << 10).build().expect("a pool");
    let above = Tracked::new(pool);
    let manager = MemoryManager::new(above.clone());
    manager.create::<u8>("positions", 5000, BufferConfig::new()).expect("room");
    assert_eq!(only(&above, line!() - 1), (Some("positions".to_owned()), true, 5000));
    assert_eq!(only(&memory, 0), (None, false, 64 << 10));
}

#[test]
fn blocks_of_mirrors_and_frames_have_the_caller_line() {
    let (backend, memory) = tracked();
    let pinned = Tracked::new(Pinned::new(&backend, 0));
    let mut mirror = MirroredBuffer::<u8, _, _>::new(pinned.clone(), memory.clone(), 100).expect("one backend");
    let line = line!() - 1;
    mirror.fill(1).expect("room");
    mirror.sync_to_device().expect("room");
    assert_eq!((only(&pinned, line), only(&memory, line)), ((None, true, 100), (None, true, 100)));
    drop(mirror);
    let mut source = bytes(&memory, 100).expect("room");
    let (mut writer, reader) = double_buffer::pair(pinned.clone(), 1, Policy::Newest).expect("a stream");
    let line = line!() - 1;
    writer.start(&mut source, ..).expect("a slot");
    assert_eq!(only(&pinned, line), (None, true, 100));
    drop((writer, reader));
    source.settle().expect("no failure");
    let mut uploads = Uploads::new(pinned.clone(), 1, Duration::from_secs(60)).expect("a stream");
    let line = line!() - 1;
    uploads.send(&mut source, .., |elements| elements.fill(2)).expect("a slot");
    assert_eq!(only(&pinned, line), (None, true, 100));
    uploads.settle().expect("no failure");
    drop(uploads);
    assert_eq!(pinned.leaks().len(), 0);
    let _coalescer = Coalescer::new(source, pinned.clone(), 10).unwrap_or_else(|rejected| panic!("{}", rejected.error));
    assert_eq!(only(&pinned, line!() - 1), (None, true, 20));
}

#[test]
fn a_slab_has_the_line_that_made_the_pool_grow() {
    let backend = HostBackend::builder().device_memory(64 << 20).build().expect("a backend");
    let tracked = Tracked::new(Device::new(&backend, 0));
    let pool = Pool::builder(tracked.clone()).slab(1 << 20).build().expect("a pool");
    let lines = || tracked.leaks().iter().map(|leak| (leak.caller.file(), leak.caller.line(), leak.name.is_some())).collect::<Vec<_>>();
    let small = Buffer::<u8, _>::new(pool.clone(), 4096).expect("room");
    let first = (file!(), line!() - 1, false);
    let large = Buffer::<u8, _>::new(pool.clone(), 8 << 20).expect("room");
    let second = (file!(), line!() - 1, false);
    assert_eq!(lines(), [first, second]);
    drop((small, large));
    pool.trim_to(0);
    assert_eq!(lines(), []);
    pool.prewarm(1 << 20, 1).expect("room");
    assert_eq!(lines(), [(file!(), line!() - 1, false)]);
    pool.trim_to(0);
}

#[test]
fn a_leak_has_its_location_and_stream() {
    let backend = backend();
    let stream = Stream::new(&backend, 0).expect("a stream");
    let pinned = Tracked::new(Pinned::new(&backend, 0));
    let buffer = Buffer::<u32, _>::new_on(pinned.clone(), 5, &stream).expect("room");
    let leaks = pinned.leaks();
    let address = buffer.device_address().expect("it has bytes").get();
    assert_eq!(
        (leaks[0].location, leaks[0].stream, leaks[0].address, leaks[0].align),
        (MemoryLocation::Pinned, Some(stream.id()), address, 4)
    );
    let text = pinned.report().to_string();
    assert!(text.contains(&format!("20 bytes, Pinned on stream {}, by ", stream.id().get())), "{text}");
}

#[test]
fn backtraces_are_kept_on_request_until_the_free() {
    let (_backend, memory) = tracked();
    let traced = memory.backtraces(true);
    let buffers = [bytes(&memory, 1), bytes(&traced, 2), bytes(&traced.named("traced"), 3), bytes(&traced.backtraces(false), 4)];
    let has = |memory: &TrackedDevice| memory.leaks().iter().map(|leak| (leak.bytes, leak.backtrace.is_some())).collect::<Vec<_>>();
    assert_eq!(has(&memory), [(1, false), (2, true), (3, true), (4, false)]);
    let leaks = memory.leaks();
    let text = leaks[1].backtrace.as_ref().expect("it was asked for").to_string();
    assert!(text.contains("backtraces_are_kept_on_request"), "{text}");
    assert!(memory.report().to_string().contains(&text));
    let kept = Arc::downgrade(leaks[2].backtrace.as_ref().expect("it was asked for"));
    drop((buffers, leaks));
    assert!(has(&memory).is_empty() && kept.upgrade().is_none());
}

#[test]
fn panics_neither_hide_nor_add_a_leak() {
    let backend = backend();
    let below = Hooked::new(&backend);
    let broken = Arc::new(AtomicU64::new(0));
    let clock = Arc::clone(&broken);
    let memory = Tracked::with_clock(below.clone(), move || {
        let now = clock.load(Relaxed);
        assert_ne!(now, 1, "a clock that is broken on purpose");
        now
    })
    .named("kept");
    forget(bytes(&memory, 100).expect("room"));
    let freed = bytes(&memory, 20).expect("room");
    let panics = |work: Box<dyn FnOnce() + Send>| assert!(thread::spawn(work).join().is_err(), "it was to panic");
    let (again, device) = (memory.clone(), below.clone());
    set(&below.before_alloc, || panic!("on purpose"));
    panics(Box::new(move || drop(bytes(&again, 3))));
    set(&device.after_free, || panic!("on purpose"));
    panics(Box::new(move || drop(freed)));
    broken.store(1, Relaxed);
    let again = memory.clone();
    panics(Box::new(move || drop(bytes(&again, 4))));
    let again = memory.clone();
    panics(Box::new(move || drop(again.leaks())));
    let again = memory.clone();
    panics(Box::new(move || drop(again.at_exit(|_| ()))));
    broken.store(2, Relaxed);
    let again = memory.clone();
    panics(Box::new(move || drop(again.at_exit(|report| panic!("{report}")))));
    assert_eq!(names(&memory), [(Some("kept".to_owned()), 1, 100)]);
    assert_eq!((memory.live_blocks(), memory.live_bytes(), memory.peak_bytes()), (1, 100, 120));
    drop(bytes(&memory, 5).expect("room"));
    assert_eq!(memory.live_blocks(), 1);
}

#[test]
fn failed_allocations_are_not_tracked() {
    let backend = backend();
    let memory = Tracked::new(Failing::new(Device::new(&backend, 0)).allocs(When::Above(50)));
    let kept = bytes(&memory, 50).expect("not above");
    for _ in 0..200 {
        assert!(bytes(&memory.named("refused"), 51).is_err());
    }
    assert_eq!((memory.live_blocks(), memory.live_bytes(), memory.peak_bytes(), memory.leaks()[0].number), (1, 50, 50, 1));
    drop(kept);
    let next = bytes(&memory, 1).expect("not above");
    assert_eq!(memory.leaks()[0].number, 2);
    drop(next);
}

#[test]
fn sums_and_peak_are_exact_with_several_threads() {
    const THREADS: u64 = 4;
    const ROUNDS: u64 = 100_000;
    let backend = HostBackend::builder().device_memory(64 << 20).build().expect("a backend");
    let memory = Tracked::new(Pool::builder(Device::new(&backend, 0)).slab(2 << 20).build().expect("a pool"));
    let leaks = ROUNDS / 25_000 * THREADS;
    let bounds = 1100..=THREADS * 1100 + leaks * 100;
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (memory, bounds) = (memory.named(&format!("thread {thread}")), &bounds);
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let one = bytes(&memory, 100).expect("room");
                    let two = bytes(&memory, 1000).expect("room");
                    assert!(bounds.contains(&memory.live_bytes()));
                    drop(two);
                    if round % 25_000 == thread {
                        forget(one);
                    }
                }
            });
        }
    });
    assert_eq!((memory.live_blocks() as u64, memory.live_bytes()), (leaks, leaks * 100));
    let mut expected: Vec<_> =
        (0..THREADS).map(|thread| (Some(format!("thread {thread}")), ROUNDS / 25_000, ROUNDS / 25_000 * 100)).collect();
    expected.sort();
    assert_eq!(names(&memory), expected);
    assert!(bounds.contains(&memory.peak_bytes()), "{}", memory.peak_bytes());
    let numbers: Vec<u64> = memory.leaks().iter().map(|leak| leak.number).collect();
    assert!(numbers.is_sorted_by(|one, other| one < other) && numbers.iter().all(|number| (1..=THREADS * ROUNDS * 2).contains(number)));
}

#[test]
fn a_panicking_report_does_not_abort_a_panicking_thread() {
    let backend = backend();
    let is_broken = Arc::new(AtomicU64::new(0));
    let clock = Arc::clone(&is_broken);
    let memory = Tracked::with_clock(Device::new(&backend, 0), move || {
        assert_eq!(clock.load(Relaxed), 0, "a clock that is broken on purpose");
        0
    });
    let kept = bytes(&memory, 100).expect("room");
    for clock_is_broken in [0, 1] {
        is_broken.store(clock_is_broken, Relaxed);
        let again = memory.clone();
        let program = thread::spawn(move || {
            let _report = again.at_exit(|report| panic!("{report}"));
            panic!("the program's own");
        });
        let payload = program.join().expect_err("it panics");
        assert_eq!(payload.downcast_ref::<&str>(), Some(&"the program's own"));
    }
    is_broken.store(0, Relaxed);
    drop(kept);
}

const CHILD: &str = "RINGMEM_TEST_LEAK";

#[test]
fn leaks_are_reported_at_exit() {
    if let Ok(leaks) = std::env::var(CHILD) {
        let memory = Tracked::new(Device::new(&backend(), 0)).named("left");
        let _report = memory.report_at_exit();
        let kept = bytes(&memory, 123).expect("room");
        if leaks == "yes" {
            forget(kept);
        }
        return;
    }
    let said = |leaks: &str| {
        let myself = std::env::current_exe().expect("a program has a path");
        let name = "adaptors::tracking::leaks_are_reported_at_exit";
        let output = Command::new(myself).args(["--exact", name]).env(CHILD, leaks).output().expect("it ran a moment ago");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).expect("text")
    };
    let text = said("yes");
    assert!(text.starts_with("1 live block, 123 bytes; peak 123 bytes\n123 bytes \"left\", Device, by "), "{text}");
    assert_eq!(said("no"), "");
}

#[test]
fn two_stacked_trackers_both_list_a_block() {
    let (backend, below) = tracked();
    let kept = bytes(&below, 1).expect("room");
    let above =
        Tracked::new(Aligned::new(below.clone(), 256).and_then(|memory| memory.rounding(256)).expect("a power of two")).named("above");
    let buffers: Vec<_> = (1..=200).map(|len| bytes(&above, len).expect("room")).collect();
    assert_eq!((above.live_bytes(), below.live_bytes(), backend.counters().device_live.bytes), (20_100, 51_201, 51_201));
    assert!(below.leaks()[1..].iter().all(|leak| leak.align == 256) && above.leaks().iter().all(|leak| leak.align == 1));
    for (left, buffer) in (0..200).rev().zip(buffers) {
        drop(buffer);
        assert_eq!((above.live_blocks(), below.live_blocks()), (left, left + 1));
    }
    assert_eq!((above.live_bytes(), below.live_bytes(), below.leaks()[0].number), (0, 1, 1));
    drop(kept);
    assert_eq!((below.live_bytes(), backend.counters().device_live.bytes), (0, 0));
}
