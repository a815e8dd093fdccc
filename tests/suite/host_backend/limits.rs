use ringmem::backend::host::Verb;
use ringmem::backend::{Fill, Uses};
use ringmem::memory::{Device, GpuBuffer};

use super::*;

#[test]
fn page_sizes_range_from_a_byte_to_a_tebibyte() {
    for asked in [0, (1 << 40) + 1, u64::MAX] {
        let error = HostBackend::builder().device_memory(1 << 20).page_size(asked).build().expect_err("no such page");
        assert!(matches!(error, Error::Size { asked: a, least: 1, most: 0x100_0000_0000, .. } if a == asked), "{error}");
    }
    build(HostBackend::builder().device_memory(1 << 20).page_size(1 << 40));
}

#[test]
fn at_most_64_devices_are_supported() {
    assert_eq!(build(HostBackend::builder().devices(64).device_memory(1)).devices(), 64);
    for asked in [65, 100_000] {
        let error = HostBackend::builder().devices(asked).device_memory(1).build().expect_err("too many");
        assert!(matches!(error, Error::Size { asked: a, least: 1, most: 64, .. } if a == u64::from(asked)), "{error}");
    }
    let error = HostBackend::builder().device_memories([1; 65]).build().expect_err("too many");
    assert!(matches!(error, Error::Size { asked: 65, least: 1, most: 64, .. }), "{error}");
}

#[test]
fn the_largest_alignment_applies_to_every_memory() {
    let backend = build(HostBackend::builder());
    let largest = backend.capabilities(0).expect("a device").largest_align;
    for location in [MemoryLocation::Pinned, MemoryLocation::Host, MemoryLocation::Unified, MemoryLocation::Device] {
        let ask = |align: u64| {
            let layout = Layout::from_size_align(5000, align as usize).expect("a layout");
            backend.allocate(&Request { location, device: 0, layout, options: Options::empty() }, None)
        };
        for align in [4096, 8192, 1 << 16, largest] {
            let block = ask(align).unwrap_or_else(|error| panic!("{location:?} {align}: {error}"));
            let address = block.host.map(|host| host.as_ptr().addr() as u64).or(block.device_address.map(|address| address.get()));
            assert!(address.is_some_and(|address| address.is_multiple_of(align)), "{location:?} {align}: {address:x?}");
            write(&backend, &[align.ilog2() as u8; 5000], &block).expect("all of it is there");
            assert_eq!(read(&backend, &block, 5000), [align.ilog2() as u8; 5000]);
            // SAFETY: unused.
            unsafe { backend.free(&block, &Uses::NONE) }.expect("it lives");
        }
        let error = ask(largest * 2).expect_err("too much");
        assert!(matches!(error, Error::Align { asked, most, .. } if asked == largest * 2 && most == largest), "{location:?}: {error}");
    }
}

#[test]
fn memory_freed_before_its_queued_copy_is_foreign() {
    let backend = build(HostBackend::builder());
    let stream = Stream::new(&backend, 0).expect("a stream");
    let held = Held::new(&backend, &stream);
    let (source, filled) = (give(&backend, MemoryLocation::Pinned, 0, 4096), give(&backend, MemoryLocation::Pinned, 0, 4096));
    let (source, filled) = (source.expect("room"), filled.expect("room"));
    let target = give(&backend, MemoryLocation::Device, 0, 4096).expect("room");
    // SAFETY: the source is freed too early on purpose; the backend must detect it.
    let copied = unsafe { backend.copy(&Copy { to: start(&target), from: start(&source), bytes: 4096 }, stream.id()) };
    // SAFETY: the memory is freed too early on purpose; the backend must detect it.
    let fill = unsafe { backend.fill(&Fill { to: start(&filled), pattern: 1, size: 1, count: 4096 }, stream.id()) };
    for block in [source, filled] {
        // SAFETY: unused except by the queued operation, omitted on purpose.
        unsafe { backend.free(&block, &Uses::NONE) }.expect("it lives");
    }
    held.word(1).store(1, Release);
    for (ticket, verb) in [(copied, Verb::Copy), (fill, Verb::Fill)] {
        let error = backend.wait(ticket.expect("it is queued"), Some(LIMIT)).expect_err("it is gone");
        assert!(matches!(error, Error::Foreign { call, layouts: None, .. } if call == verb.name()), "{error}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_launch_that_cannot_start_all_threads_is_an_error() {
    const CHILD: &str = "RINGMEM_TEST_HAS_NO_ROOM_FOR_GROUPS";
    if std::env::var_os(CHILD).is_some() {
        let backend = build(HostBackend::builder().device_memory(1 << 20).resident_groups(u32::MAX));
        let stream = Stream::new(&backend, 0).expect("a stream");
        let module = backend.load(&IMAGE, &Abi::of(LAYOUTS)).expect("our ABI");
        let buffer = GpuBuffer::<u8>::from_slice(Device::new(&backend, 0), &[0; 64]).expect("room");
        let arguments = [buffer.device_address().expect("it has bytes").get(), 64];
        let launch = |groups| {
            let launch = ringmem::backend::Launch {
                module,
                name: "increment",
                arguments: &arguments,
                groups,
                warps: 1,
                stays: false,
                operands: &[],
                elements: None,
            };
            // SAFETY: within the buffer, unused before the wait.
            let ticket = unsafe { backend.launch(&launch, stream.id()) }.expect("it is queued");
            backend.wait(ticket, Some(LIMIT))
        };
        let error = launch(100_000).expect_err("no room for so many");
        assert!(matches!(error, Error::System { call: "start of a thread", .. }), "{error}");
        assert_eq!((buffer.to_vec().expect("a download"), backend.counters().launches), (vec![0; 64], 0));
        assert!(launch(1).expect("room for one"));
        assert_eq!((buffer.to_vec().expect("a download"), backend.counters().launches), (vec![1; 64], 1));
        return;
    }
    let test = "host_backend::limits::a_launch_that_cannot_start_all_threads_is_an_error";
    let run = || {
        let mut child = std::process::Command::new("sh");
        child.args(["-c", "ulimit -v 400000 && exec \"$0\" \"$@\""]).arg(std::env::current_exe().expect("this test"));
        child.args([test, "--exact", "--nocapture", "--test-threads=1"]).env(CHILD, "1").output().expect("a shell")
    };
    // A thread without room for the allocations of std, or of the C library, aborts within it.
    let is_of_std = |child: &std::process::Output| {
        let said = String::from_utf8_lossy(&child.stderr);
        ["alternative stack", "memory allocation of", "TLS destructor"].iter().any(|words| said.contains(words))
    };
    let child = (0..50).map(|_| run()).find(|child| !is_of_std(child)).expect("std has room for once in fifty");
    assert!(child.status.success(), "{child:?}");
}
