use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use ringmem::Error;
use ringmem::backend::Options;
use ringmem::backend::host::HostBackend;
use ringmem::error::LimitOf;
use ringmem::memory::{Device, Host, Pinned};
use ringmem::mirror::{MirroredBuffer, State};

use super::{BYTES, LEN, LIMIT, backend, pageable, pinned};
use crate::rig::leak_checked::Clean;
#[cfg(target_os = "linux")]
use crate::rig::rerun_or_skip;

#[test]
fn transfers_are_counted_with_their_time_in_nanoseconds() {
    let backend = backend();
    let mut mirror = MirroredBuffer::<u8, _, _>::new(Host::new(&backend, 0), Device::new(&backend, 0), 500_000).expect("one backend");
    let begun = Instant::now();
    for round in 0..10 {
        mirror.host_mut().expect("room")[0] = round;
        mirror.device_mut().expect("room").slice(1..2).expect("within").fill(round).expect("filled");
        assert_eq!(mirror.host().expect("a copy")[..2], [round; 2]);
    }
    let took = begun.elapsed().as_nanos() as u64;
    let statistics = mirror.statistics();
    for transfers in [statistics.to_device, statistics.to_host] {
        assert_eq!((transfers.count, transfers.bytes), (10, 5_000_000));
        assert!(transfers.ns >= 10, "{transfers:?}");
    }
    assert!(statistics.to_device.ns + statistics.to_host.ns <= took, "{statistics:?} of {took} ns");
    let counters = backend.counters();
    assert_eq!((counters.uploads.bytes, counters.downloads.bytes), (5_000_000, 5_000_000));
}

#[test]
fn is_pinned_is_true_only_for_locked_memory() {
    let backend = backend();
    let mut mirror = pinned(&backend);
    assert!(!mirror.is_pinned(), "nothing is there");
    mirror.host_mut().expect("room");
    let locked = ringmem::memory::PinnedBuffer::<u32>::new(Pinned::new(&backend, 0), LEN).expect("room");
    assert_eq!(mirror.is_pinned(), locked.is_pinned(), "as the system says of as many bytes");
    assert_eq!(backend.counters().staged.count, 0);
    mirror.sync_to_device().expect("room");
    assert_eq!(backend.counters().staged.count, 0, "one transfer, not two");

    let mut mirror = pageable(&backend);
    mirror.host_mut().expect("room");
    assert!(!mirror.is_pinned());
    mirror.sync_to_device().expect("room");
    assert_eq!((backend.counters().staged.count, backend.counters().staged.bytes), (1, BYTES));
}

#[test]
fn a_host_copy_above_the_pinned_budget_is_an_error() {
    let backend = Clean::build(HostBackend::builder().pinned_budget(BYTES - 1));
    let mut mirror = MirroredBuffer::<u32, _, _>::new(Pinned::new(&*backend, 0), Device::new(&*backend, 0), LEN).expect("one backend");
    let error = mirror.host().expect_err("above the budget");
    assert!(matches!(error, Error::Limit { of: LimitOf::Pinned, requested: BYTES, .. }), "{error}");
    assert_eq!(mirror.state(), ringmem::mirror::State::Uninitialized);
}

#[test]
#[cfg(target_os = "linux")]
fn must_pin_without_the_right_to_lock_is_an_error() {
    if !rerun_or_skip::is_again() {
        return rerun_or_skip::passes_again(
            "mirror::figures::must_pin_without_the_right_to_lock_is_an_error",
            "ulimit -l 0;",
            &["ipc_lock"],
        );
    }
    for (options, is_there) in [(Options::empty(), true), (Options::MUST_PIN, false)] {
        let backend = backend();
        let memory = Pinned::new(&*backend, 0).with(options);
        let mut mirror = MirroredBuffer::<u32, _, _>::new(memory, Device::new(&*backend, 0), LEN).expect("one backend");
        match mirror.host().map(drop) {
            Ok(()) => assert!(is_there && !mirror.is_pinned(), "it is pageable, and says so"),
            Err(error) => {
                assert!(!is_there && matches!(error, Error::Unsupported { .. }), "{error}");
                assert_eq!(mirror.state(), ringmem::mirror::State::Uninitialized);
            }
        }
    }
}

#[test]
fn a_mirror_reports_its_size_and_state() {
    let backend = backend();
    let mirror = pinned(&backend);
    assert_eq!((mirror.len(), mirror.size_bytes() as u64, mirror.is_empty(), mirror.is_shared()), (LEN, BYTES, false, false));
    assert!(format!("{mirror:?}").contains("state: Uninitialized"), "{mirror:?}");
    use ringmem::memory::Memory;
    assert_eq!((mirror.host_memory().device(), mirror.device_memory().device()), (0, 0));
}

#[test]
fn filling_elements_without_bytes_ends() {
    let backend = backend();
    let mut mirror = MirroredBuffer::<[u32; 0], _, _>::new(Host::new(&backend, 0), Device::new(&backend, 0), usize::MAX).expect("no bytes");
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || sender.send(mirror.fill([]).map(|()| mirror.state())));
    let state = receiver.recv_timeout(LIMIT).expect("in time").expect("filled");
    assert_eq!(state, State::HostDirty);
}
