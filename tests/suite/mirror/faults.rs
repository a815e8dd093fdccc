use ringmem::error::MirrorFault;

use ringmem::Error;
use ringmem::backend::host::{Fault, Faults, HostBackend, Verb};
use ringmem::memory::{Host, Prefetching, Unified};
use ringmem::mirror::{Access, MirroredBuffer, Side, State};

use super::table::{LAST, OLDER, bring, call, cells, check_elements};
use super::{LEN, backend, eventually, live, pageable, pinned, stream, through};

#[test]
fn any_failed_call_leaves_the_mirror_unchanged() {
    let mut struck = 0;
    for cell in cells().filter(|cell| !cell.is_error() && cell.call != "free") {
        for verb in [Verb::Allocate, Verb::Copy, Verb::Fill] {
            let needed = {
                let backend = backend();
                let (stream, mut mirror) = (stream(&backend), pinned(&backend));
                bring(&mut mirror, cell.before).expect("room");
                let before = backend.calls(verb).expect("watched");
                call(&mut mirror, cell.call, &stream).expect("no fault");
                backend.calls(verb).expect("watched") - before
            };
            for number in 1..=needed {
                let backend = backend();
                let (stream, mut mirror) = (stream(&backend), pinned(&backend));
                bring(&mut mirror, cell.before).expect("room");
                let (state, held, statistics) = (mirror.state(), live(&backend), mirror.statistics());
                backend.set_faults(&Faults::new().on(verb, Fault::nth(number)));
                let error = call(&mut mirror, cell.call, &stream).expect_err("planned");
                assert!(matches!(error, Error::Injected { .. } | Error::OutOfMemory { .. } | Error::Map { .. }), "{cell:?}: {error}");
                backend.set_faults(&Faults::new());
                assert_eq!((mirror.state(), live(&backend), mirror.statistics()), (state, held, statistics), "{cell:?}: {verb:?} {number}");
                call(&mut mirror, cell.call, &stream).expect("no fault any more");
                assert_eq!(mirror.state(), cell.state_after(), "{cell:?}: {verb:?} {number}");
                check_elements(&mut mirror, cell);
                struck += 1;
            }
        }
    }
    assert!(struck > 100, "{struck} calls");
}

#[test]
fn a_failed_queued_copy_is_reported_once_and_reverted() {
    for cell in cells().filter(|cell| cell.call.starts_with("sync_to_") && cell.call.ends_with("_on") && cell.copies() != [0, 0]) {
        let backend = backend();
        let (stream, mut mirror) = (stream(&backend), pageable(&backend));
        bring(&mut mirror, cell.before).expect("room");
        let (state, held) = (mirror.state(), live(&backend));
        backend.set_faults(&Faults::new().on(Verb::Copy, Fault::nth(1).when_executed()));
        let error = call(&mut mirror, cell.call, &stream).expect_err("planned");
        assert!(matches!(error, Error::Injected { call: "copy", .. }), "{cell:?}: {error}");
        assert_eq!((mirror.state(), mirror.statistics().to_host.count), (state, 0), "{cell:?}");
        through(&stream);
        assert_eq!(live(&backend), held, "{cell:?}");
        stream.synchronize().expect("it was told");
        call(&mut mirror, cell.call, &stream).expect("no fault any more");
        check_elements(&mut mirror, cell);
    }
}

#[test]
fn a_failed_copy_cannot_resolve_a_conflict() {
    let backend = backend();
    let mut mirror = pinned(&backend);
    bring(&mut mirror, "HD").expect("room");
    backend.set_faults(&Faults::new().on(Verb::Copy, Fault::nth(1)));
    mirror.sync_to_device().expect_err("planned");
    assert!(matches!(mirror.discard_host(), Err(Error::Mirror { what: MirrorFault::NoDeviceCopy, state: "HostDirty" })));
    mirror.sync_to_device().expect("no fault any more");
    mirror.discard_host().expect("whole again");
    assert_eq!(mirror.to_vec().expect("a copy"), LAST);

    bring(&mut mirror, "HD").expect("room");
    backend.set_faults(&Faults::new().on(Verb::Copy, Fault::nth(1)));
    mirror.device_mut().map(drop).expect_err("planned");
    let _ = mirror.device_write_only().expect("all of it is written");
    mirror.discard_device().expect("the host's copy was read, not written");
    assert_eq!(mirror.to_vec().expect("a copy"), LAST);

    mirror.device_mut().expect("a copy").copy_from(&LAST).expect("as many");
    backend.set_faults(&Faults::new().on(Verb::Copy, Fault::nth(1)));
    mirror.host().expect_err("planned");
    assert!(matches!(mirror.discard_device(), Err(Error::Mirror { what: MirrorFault::NoHostCopy, state: "DeviceDirty" })));
    mirror.copy_from(&OLDER).expect("all of it is written");
    mirror.discard_host().expect("the device's copy was read, not written");
    assert_eq!(mirror.to_vec().expect("a copy"), LAST);
}

#[test]
fn a_failed_free_is_reported_and_releases_the_memory() {
    let backend = backend();
    let mut mirror = pinned(&backend);
    bring(&mut mirror, "S").expect("room");
    backend.set_faults(&Faults::new().on(Verb::Free, Fault::nth(1)));
    assert!(matches!(mirror.compact(Side::Host), Err(Error::Injected { call: "free", .. })));
    assert_eq!((mirror.state(), live(&backend)[0]), (State::HostOnly, 0));
    bring(&mut mirror, "S").expect("room");
    backend.set_faults(&Faults::new().on(Verb::Free, Fault::nth(2)));
    assert!(matches!(mirror.free(), Err(Error::Injected { call: "free", .. })));
    assert_eq!((mirror.state(), live(&backend)), (State::Uninitialized, [0; 3]));
    mirror.free().expect("nothing is left to free");
    assert_eq!(backend.counters().unreported, 0);
}

#[test]
fn a_failed_stream_wait_leaves_the_mirror_unchanged() {
    for (before, access) in [("U", Access::Read), ("U", Access::Update), ("U", Access::Write), ("HO", Access::Write)] {
        let backend = backend();
        let (own, kernels) = (stream(&backend), stream(&backend));
        let device = Prefetching::new(Unified::new(&backend, 0), own, Some(0));
        let mut mirror = MirroredBuffer::<u32, _, _>::new(Host::new(&backend, 0), device, LEN).expect("one backend");
        bring(&mut mirror, before).expect("room");
        let (state, held) = (mirror.state(), held(&backend));
        backend.set_faults(&Faults::new().on(Verb::StreamWait, Fault::nth(1)));
        let error = mirror.device_on(access, &kernels).expect_err("planned");
        assert!(matches!(error, Error::Injected { call: "stream_wait", .. }), "{before}, {access:?}: {error}");
        assert_eq!(mirror.state(), state, "{before}, {access:?}");
        eventually("what was allocated is given back", || self::held(&backend) == held);
        mirror.device_on(access, &kernels).expect("no fault any more").expect("it has bytes");
        mirror.settle().expect("nothing else failed");
    }
}

fn held(backend: &HostBackend) -> [u64; 3] {
    let counters = backend.counters();
    [counters.device_live, counters.unified_live, counters.host_live].map(|live| live.bytes)
}
