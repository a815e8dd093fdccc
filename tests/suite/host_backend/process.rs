//! What the system shows of the process: mappings, locked pages, threads, signals.

use std::fs;
use std::ops::Range;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use ringmem::Error;
use ringmem::backend::host::HostBackend;
use ringmem::memory::{Pinned, PinnedBuffer};
use ringmem::stream::Stream;

use super::setup::*;
use crate::rig::rerun_or_skip::passes_again;

fn range(line: &str) -> Option<Range<u64>> {
    let (start, end) = line.split_whitespace().next()?.split_once('-')?;
    Some(u64::from_str_radix(start, 16).ok()?..u64::from_str_radix(end, 16).ok()?)
}

fn mapping(address: u64) -> Vec<String> {
    let smaps = fs::read_to_string("/proc/self/smaps").expect("Linux shows it");
    let mut lines = smaps.lines().skip_while(|line| range(line).is_none_or(|range| !range.contains(&address)));
    let first = lines.next().expect("the address is mapped");
    [first].into_iter().chain(lines.take_while(|line| range(line).is_none())).map(str::to_owned).collect()
}

#[test]
fn a_device_address_is_not_mapped_in_the_process() {
    let setup = setup(1 << 20);
    let memory = setup.device(1 << 20);
    let pinned = setup.pinned(&[0]);
    let maps = fs::read_to_string("/proc/self/maps").expect("Linux shows it");
    let mapped: Vec<_> = maps.lines().filter_map(range).collect();
    let start = address(&memory);
    let end = start + (1 << 20);
    assert!(!mapped.iter().any(|mapping| mapping.start < end && start < mapping.end), "{start:#x}");
    assert!(mapped.iter().any(|mapping| mapping.contains(&address(&pinned))), "the test would see it");
}

#[test]
fn dereferencing_a_device_address_ends_the_process() {
    const CHILD: &str = "RINGMEM_TEST_FOLLOWS_A_DEVICE_ADDRESS";
    if std::env::var_os(CHILD).is_some() {
        let setup = setup(1 << 20);
        let memory = setup.device(8);
        // SAFETY: none: the access must kill this process.
        let byte = unsafe { std::ptr::with_exposed_provenance::<u8>(address(&memory) as usize).read_volatile() };
        println!("read {byte}");
        return;
    }
    let test = "host_backend::process::dereferencing_a_device_address_ends_the_process";
    let this = std::env::current_exe().expect("this test");
    let child = Command::new(this).args([test, "--exact", "--nocapture"]).env(CHILD, "1").output().expect("a process");
    const SIGSEGV: i32 = 11;
    assert_eq!(child.status.signal(), Some(SIGSEGV), "{child:?}");
}

#[test]
fn opening_a_stream_without_a_thread_is_an_error() {
    const CHILD: &str = "RINGMEM_TEST_GETS_NO_THREAD";
    let test = "host_backend::process::opening_a_stream_without_a_thread_is_an_error";
    if std::env::var_os(CHILD).is_some() {
        let backend = HostBackend::builder().device_memory(1 << 20).build().expect("a backend");
        for _ in 0..3 {
            let error = Stream::new(&backend, 0).expect_err("no system has room for such a stack");
            assert!(matches!(error, Error::System { call: "start of a thread", .. }), "{error}");
        }
        assert_eq!(backend.counters().streams, 0);
        return;
    }
    let this = std::env::current_exe().expect("this test");
    // `RUST_MIN_STACK` sets threads' stacks in bytes.
    let (stack, arguments) = (1_u64 << 50, [test, "--exact", "--nocapture", "--test-threads=1"]);
    let child = Command::new(this).args(arguments).env(CHILD, "1").env("RUST_MIN_STACK", stack.to_string()).output().expect("a process");
    assert!(child.status.success() && String::from_utf8_lossy(&child.stdout).contains("1 passed"), "{child:?}");
}

#[test]
fn is_pinned_agrees_with_the_system() {
    let setup = setup(4096);
    for bytes in [4096, 64 << 20] {
        let pinned = PinnedBuffer::<u8>::new(Pinned::new(&setup.backend, 0), bytes).expect("pinned memory");
        let lines = mapping(address(&pinned));
        let flags = lines.iter().find(|line| line.starts_with("VmFlags:")).expect("flags");
        assert_eq!(pinned.is_pinned(), flags.split(' ').any(|flag| flag == "lo"), "{bytes} bytes: {flags}");
    }
}

#[test]
fn is_pinned_agrees_with_the_system_under_a_limit() {
    passes_again("host_backend::process::is_pinned_agrees_with_the_system", "ulimit -l 1024 || exit 127;", &["ipc_lock"]);
}

#[test]
fn capacity_is_not_resident_until_it_is_allocated() {
    // Alone in a process: the system merges neighbouring mappings of one kind.
    const CHILD: &str = "RINGMEM_TEST_MEASURES_A_MAPPING";
    if std::env::var_os(CHILD).is_none() {
        let this = std::env::current_exe().expect("this test");
        let test = "host_backend::process::capacity_is_not_resident_until_it_is_allocated";
        let child = Command::new(this).args([test, "--exact"]).env(CHILD, "1").output().expect("a process");
        let said = String::from_utf8_lossy(&child.stdout);
        assert!(child.status.success() && said.contains("1 passed"), "{said}");
        return;
    }
    let setup = setup(4 << 30);
    let memory = setup.device(4096);
    let lines = mapping(setup.place(address(&memory), 4096));
    let kilobytes = |name: &str| -> u64 {
        let line = lines.iter().find(|line| line.starts_with(name)).expect("the line");
        line.split_whitespace().nth(1).expect("a figure").parse().expect("a number")
    };
    assert!(kilobytes("Size:") >= 4 << 20 && kilobytes("Rss:") <= 2048, "{lines:?}");
}
