use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};

use ringmem::error::MirrorFault;

use ringmem::Error;
use ringmem::backend::host::{Fault, Faults, HostBackend, Verb};
use ringmem::memory::{Buffer, Device, Unified};
use ringmem::mirror::{Access, MirroredBuffer, State};
use ringmem::stream::Pending;

use super::table::{LAST, NEW, OLDER, bring, transfers};
use super::{BYTES, Held, LEN, backend, eventually, launch, live, pinned, stream, through};
use crate::rig::leak_checked::Clean;

#[test]
fn a_device_update_needs_one_copy_per_direction() {
    let backend = backend();
    let (stream, mut mirror) = (stream(&backend), pinned(&backend));
    mirror.copy_from(&[7; LEN]).expect("room");
    let launched = launch(&mut mirror, "add", &stream);
    assert_eq!(mirror.state(), State::DeviceDirty);
    assert_eq!(mirror.to_vec().expect("a copy"), [8; LEN]);
    launched.wait().expect("it does not fail");
    assert_eq!(transfers(&backend), [1, 1]);
}

#[test]
fn only_a_dirty_side_is_copied_and_only_once() {
    let backend = backend();
    let mut mirror = pinned(&backend);
    for round in 1..=5 {
        mirror.host_mut().expect("room")[0] = round;
        for _ in 0..3 {
            assert_eq!(mirror.device().expect("a copy").slice(..1).expect("within").len(), 1);
            assert_eq!(mirror.host().expect("valid")[0], round);
        }
        assert_eq!(transfers(&backend), [u64::from(round), 0]);
    }
}

#[test]
fn a_copy_to_the_host_waits_for_writers_on_every_stream() {
    let backend = backend();
    let streams = [stream(&backend), stream(&backend), stream(&backend)];
    for queue in [false, true] {
        let mut mirror = pinned(&backend);
        mirror.copy_from(&OLDER).expect("room");
        mirror.sync_to_device().expect("room");
        let held = Held::new(&backend, &streams[0]);
        let launches = [0, 1, 0, 1].map(|i| launch(&mut mirror, "add", &streams[i]));
        assert!(!mirror.is_settled(), "a kernel is in front of them");
        if queue {
            mirror.sync_to_host_on(&streams[2]).expect("queued");
            assert_eq!((mirror.state(), mirror.is_settled()), (State::Synchronized, false));
        }
        drop(held);
        assert_eq!(mirror.host().expect("a copy"), [OLDER[0] + 4; LEN], "queued: {queue}");
        launches.into_iter().for_each(|launch| launch.wait().expect("it does not fail"));
        mirror.settle().expect("nothing failed");
        assert!(mirror.is_settled());
    }
}

#[test]
fn copies_and_kernels_are_queued_in_order_without_blocking() {
    let backend = backend();
    let [up, work, down] = [0; 3].map(|_| stream(&backend));
    let mut mirror = pinned(&backend);
    mirror.copy_from(&OLDER).expect("room");
    let held = Held::new(&backend, &up);
    mirror.sync_to_device_on(&up).expect("queued");
    let launched = launch(&mut mirror, "add", &work);
    mirror.sync_to_host_on(&down).expect("queued");
    assert_eq!(mirror.state(), State::Synchronized);
    assert_eq!(transfers(&backend), [0, 0], "a kernel is in front of them all");
    drop(held);
    assert_eq!(mirror.host().expect("a copy"), [OLDER[0] + 1; LEN]);
    launched.wait().expect("it does not fail");
    let statistics = mirror.statistics();
    assert_eq!((statistics.to_device.count, statistics.to_device.bytes, statistics.to_device.ns), (1, BYTES, 0));
    assert_eq!((statistics.to_host.count, statistics.to_host.bytes, statistics.to_host.ns), (1, BYTES, 0));
}

#[test]
fn a_result_of_a_failed_upload_is_not_synchronized() {
    let backend = backend();
    let stream = stream(&backend);
    for read_back in [false, true] {
        let mut mirror = pinned(&backend);
        mirror.copy_from(&LAST).expect("room");
        backend.set_faults(&Faults::new().on(Verb::Copy, Fault::nth(1).when_executed()));
        mirror.sync_to_device_on(&stream).expect("queued");
        let launched = {
            let module = super::load(&backend);
            let address = mirror.device_on(Access::Write, &stream).expect("queued").expect("it has bytes").address();
            // SAFETY: a mirror's element, which records the launch.
            let launched = unsafe { stream.launch(&module, "add", &[address, 0]) }.expect("a launch");
            mirror.used_by(&stream).expect("a live stream");
            launched
        };
        if read_back {
            mirror.sync_to_host_on(&stream).expect("queued");
        }
        let error = mirror.host().expect_err("planned");
        assert!(matches!(error, Error::Injected { call: "copy", .. }), "{error}");
        assert_eq!(mirror.state(), State::DeviceDirty);
        match read_back {
            false => {
                mirror.discard_device().expect("the host's copy is whole");
                assert_eq!(mirror.host().expect("valid"), LAST);
            }
            true => {
                assert!(matches!(mirror.discard_device(), Err(Error::Mirror { what: MirrorFault::NoHostCopy, .. })), "it was written over")
            }
        }
        launched.wait().expect("it does not fail");
        backend.set_faults(&Faults::new());
    }
}

#[test]
fn a_panicking_kernel_leaves_the_device_dirty() {
    let backend = backend();
    let (stream, mut mirror) = (stream(&backend), pinned(&backend));
    mirror.copy_from(&OLDER).expect("room");
    let launched = launch(&mut mirror, "add_and_panic", &stream);
    let rejected = launched.wait().expect_err("it panics");
    assert!(matches!(rejected.error, Error::KernelPanicked { .. }), "{rejected}");
    assert_eq!(mirror.state(), State::DeviceDirty);
    let elements = mirror.to_vec().expect("a copy");
    assert_eq!((&elements[..LEN / 2], &elements[LEN / 2..]), (&[OLDER[0] + 1; LEN / 2][..], &OLDER[LEN / 2..]));
}

#[test]
fn host_mut_waits_for_a_queued_upload() {
    let backend = backend();
    let (stream, mut mirror) = (stream(&backend), pinned(&backend));
    mirror.copy_from(&OLDER).expect("room");
    let held = Held::new(&backend, &stream);
    mirror.sync_to_device_on(&stream).expect("queued");
    let writer = std::thread::spawn(move || {
        mirror.host_mut().expect("valid").copy_from_slice(&NEW);
        mirror
    });
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert!(!writer.is_finished());
    drop(held);
    eventually("the writer is through", || writer.is_finished());
    let mut mirror = writer.join().expect("no panic");
    mirror.discard_host().expect("the device's copy is whole");
    assert_eq!(mirror.to_vec().expect("a copy"), OLDER);
}

#[test]
fn a_dropped_mirror_is_freed_after_its_queued_work() {
    let backend = backend();
    let (stream, mut mirror) = (stream(&backend), pinned(&backend));
    mirror.copy_from(&OLDER).expect("room");
    let held = Held::new(&backend, &stream);
    let before = live(&backend);
    mirror.sync_to_device_on(&stream).expect("queued");
    let launched = launch(&mut mirror, "add", &stream);
    mirror.sync_to_host_on(&stream).expect("queued");
    drop(mirror);
    assert_eq!(live(&backend), [BYTES, before[1], 0], "nothing is freed while a kernel is in front of it");
    drop(held);
    launched.wait().expect("it does not fail");
    through(&stream);
    eventually("all is freed", || live(&backend) == [0; 3]);
    assert_eq!(backend.counters().unreported, 0);
}

#[test]
fn a_forgotten_mirror_is_never_freed_under_queued_work() {
    let backend = backend();
    let (stream, mut mirror) = (stream(&backend), pinned(&backend));
    mirror.copy_from(&OLDER).expect("room");
    let held = Held::new(&backend, &stream);
    mirror.sync_to_device_on(&stream).expect("queued");
    let launched = launch(&mut mirror, "add", &stream);
    mirror.sync_to_host_on(&stream).expect("queued");
    mem::forget(mirror);
    (0..2).for_each(|_| backend.forgets());
    drop(held);
    launched.wait().expect("it does not fail");
    stream.synchronize().expect("nothing failed");
    assert_eq!((live(&backend)[0], transfers(&backend)), (BYTES, [1, 1]), "done, and never freed");
}

#[test]
fn forgotten_views_leave_the_marked_state() {
    let backend = backend();
    let mut mirror = pinned(&backend);
    let _ = mirror.host_mut().expect("room");
    assert_eq!(mirror.state(), State::HostDirty);
    let _ = mirror.device().expect("room");
    assert_eq!(mirror.state(), State::Synchronized);
    #[allow(clippy::forget_non_drop, reason = "whether there is anything to forget is what it is about")]
    mem::forget(mirror.device_mut().expect("valid"));
    assert_eq!(mirror.state(), State::DeviceDirty);
    assert_eq!(mirror.to_vec().expect("a copy"), [0; LEN]);
    drop(mirror);
    assert_eq!(live(&backend), [0; 3]);
}

#[test]
fn through_lends_the_device_copy_to_queued_work() {
    let backend = backend();
    let (stream, mut mirror) = (stream(&backend), pinned(&backend));
    let held = Held::new(&backend, &stream);
    let filled = mirror.through(Access::Write, |device| match stream.fill(device, .., NEW[0]).map(Pending::detach) {
        Ok(device) => (device, Ok(())),
        Err(rejected) => (rejected.value, Err(rejected.error)),
    });
    filled.expect("room").expect("queued");
    assert_eq!((mirror.state(), mirror.is_settled()), (State::DeviceOnly, false));
    drop(held);
    let target = Buffer::<u32, _>::new(Device::new(&backend, 0), LEN).expect("room");
    let copied = mirror.through(Access::Read, |device| match stream.copy(device, target) {
        Ok(pending) => pending.detach(),
        Err(rejected) => rejected.value,
    });
    assert_eq!(copied.expect("valid").to_vec().expect("a copy"), NEW);
    assert_eq!((mirror.to_vec().expect("a copy"), mirror.state()), (NEW.to_vec(), State::Synchronized));
    assert_eq!(transfers(&backend)[0], 0);
}

#[test]
fn a_lost_device_copy_is_an_error_until_discarded() {
    let backend = backend();
    for panics in [false, true] {
        let mut mirror = pinned(&backend);
        bring(&mut mirror, "DD").expect("room");
        if panics {
            let panicking = |_| -> (_, ()) { panic!("a panic that a test asked for") };
            let lost = catch_unwind(AssertUnwindSafe(|| mirror.through(Access::Update, panicking)));
            lost.map(drop).expect_err("it panics");
        } else {
            let short = Buffer::new(Device::new(&backend, 0), 1).expect("room");
            let error = mirror.through(Access::Update, |_| (short, ())).expect_err("another buffer");
            assert!(matches!(error, Error::Size { what: "length in elements", least: 64, asked: 1, .. }), "{error}");
        }
        assert!(matches!(mirror.host(), Err(Error::Mirror { what: MirrorFault::NoDeviceCopy, state: "DeviceDirty" })));
        assert!(matches!(mirror.device().map(drop), Err(Error::Mirror { what: MirrorFault::NoDeviceCopy, .. })));
        mirror.discard_device().expect("the host's copy is whole");
        assert_eq!(mirror.device().expect("anew").to_vec().expect("a copy"), OLDER);
    }
    assert_eq!(live(&backend), [0; 3]);
}

#[test]
fn through_rejects_a_different_buffer_of_equal_length() {
    let backend = backend();
    let mut mirror = pinned(&backend);
    bring(&mut mirror, "S").expect("room");
    let other = Buffer::from_slice(Device::new(&backend, 0), &NEW).expect("room");
    let mut kept = None;
    let error = mirror.through(Access::Read, |device| (other, kept = Some(device))).expect_err("another buffer");
    assert!(matches!(error, Error::Unsupported { .. }), "{error}");
    assert_eq!((mirror.state(), mirror.host().expect("whole")), (State::HostOnly, &LAST[..]));
    drop(kept);
    assert_eq!(mirror.device().expect("anew").to_vec().expect("a copy"), LAST);
    drop(mirror);
    assert_eq!(live(&backend), [0; 3]);
}

#[test]
fn managed_host_memory_is_busy_while_a_kernel_runs() {
    let backend = Clean::build(HostBackend::builder().device_memory(1 << 20).concurrent_managed_access(false));
    let stream = stream(&backend);
    let mut mirror = MirroredBuffer::<u32, _, _>::new(Unified::new(&backend, 0), Device::new(&backend, 0), LEN).expect("one backend");
    mirror.device_mut().expect("room").copy_from(&LAST).expect("as many");
    assert_eq!(mirror.host().expect("no kernel runs"), LAST);
    let held = Held::new(&backend, &stream);
    assert!(matches!(mirror.host(), Err(Error::Busy { .. })));
    assert!(matches!(mirror.host_mut(), Err(Error::Busy { .. })));
    assert!(matches!(mirror.copy_from(&NEW), Err(Error::Busy { .. })));
    assert_eq!(mirror.state(), State::Synchronized);
    drop(held);
    assert_eq!(mirror.host_mut().expect("no kernel runs"), LAST);
}
