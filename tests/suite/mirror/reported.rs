use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::Relaxed;

use ringmem::error::MirrorFault;

use ringmem::error::OperationFault;

use ringmem::Error;
use ringmem::backend::host::{Fault, Faults, Verb};
use ringmem::mirror::{Access, State};
use ringmem::stream::Stream;

use super::table::{LAST, bring, call, cells, check_elements};
use super::{Held, armed, backend, launch, live, load, pageable, pinned, stream, through};

const OTHERS: [fn(&Stream) -> ringmem::Result<()>; 3] = [
    Stream::synchronize,
    |stream| stream.record()?.wait(),
    |stream| futures::executor::block_on(async { stream.record()?.is_complete().await }),
];

fn tell(stream: &Stream, other: fn(&Stream) -> ringmem::Result<()>) {
    let error = other(stream).expect_err("planned");
    assert!(matches!(error, Error::Injected { call: "copy", .. }), "{error}");
}

#[test]
fn a_reported_failed_copy_is_still_reverted() {
    let mut taken_back = 0;
    for cell in cells().filter(|cell| cell.call.starts_with("sync_to_") && cell.call.ends_with("_on") && cell.copies() != [0, 0]) {
        for other in OTHERS {
            let backend = backend();
            let (stream, mut mirror) = (stream(&backend), pageable(&backend));
            bring(&mut mirror, cell.before).expect("room");
            let (state, held, statistics) = (mirror.state(), live(&backend), mirror.statistics());
            backend.set_faults(&Faults::new().on(Verb::Copy, Fault::nth(1).when_executed()));
            match cell.call {
                "sync_to_host_on" => mirror.sync_to_host_on(&stream).expect("it fails later"),
                _ => mirror.sync_to_device_on(&stream).expect("it fails later"),
            }
            tell(&stream, other);
            assert_eq!(mirror.state(), State::Synchronized, "what is queued counts as done");
            let error = mirror.settle().expect_err("nothing was copied");
            assert!(matches!(error, Error::Operation { what: OperationFault::AlreadyReported, number: 1, .. }), "{cell:?}: {error}");
            assert_eq!((mirror.state(), mirror.statistics()), (state, statistics), "{cell:?}");
            through(&stream);
            assert_eq!(live(&backend), held, "{cell:?}");
            mirror.settle().expect("told once");
            call(&mut mirror, cell.call, &stream).expect("no fault any more");
            check_elements(&mut mirror, cell);
            taken_back += 1;
        }
    }
    assert!(taken_back >= 12, "{taken_back}");
}

#[test]
fn a_read_after_a_failed_copy_never_returns_stale_data() {
    for other in OTHERS {
        for (before, read) in
            [("HD", "device"), ("HD", "device_mut"), ("DD", "host"), ("DD", "host_mut"), ("DD", "to_vec"), ("DD", "copy_to")]
        {
            let backend = backend();
            let (stream, mut mirror) = (stream(&backend), pinned(&backend));
            bring(&mut mirror, before).expect("room");
            backend.set_faults(&Faults::new().on(Verb::Copy, Fault::nth(1).when_executed()));
            match before {
                "HD" => mirror.sync_to_device_on(&stream).expect("it fails later"),
                _ => mirror.sync_to_host_on(&stream).expect("it fails later"),
            }
            tell(&stream, other);
            assert!(
                matches!(call(&mut mirror, read, &stream), Err(Error::Operation { what: OperationFault::AlreadyReported, .. })),
                "{before}, {read}"
            );
            call(&mut mirror, read, &stream).expect("copied now");
            assert_eq!(mirror.to_vec().expect("a copy"), LAST, "{before}, {read}");
            assert_eq!(mirror.device().expect("a copy").to_vec().expect("a copy"), LAST, "{before}, {read}");
        }
    }
}

#[test]
fn results_of_a_reported_failed_copy_are_not_synchronized() {
    for (read_back, other) in [false, true].into_iter().flat_map(|read_back| OTHERS.map(|other| (read_back, other))) {
        let backend = backend();
        let (stream, mut mirror) = (stream(&backend), pinned(&backend));
        bring(&mut mirror, "HD").expect("room");
        backend.set_faults(&Faults::new().on(Verb::Copy, Fault::nth(1).when_executed()));
        let held = Held::new(&backend, &stream);
        let launched = launch(&mut mirror, "add", &stream);
        if read_back {
            mirror.sync_to_host_on(&stream).expect("queued");
        }
        drop(held);
        tell(&stream, other);
        assert!(matches!(mirror.host(), Err(Error::Operation { what: OperationFault::AlreadyReported, .. })));
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
    }
}

#[test]
fn a_failed_copy_does_not_revert_a_successful_one() {
    for other in OTHERS {
        let backend = backend();
        let [up, down, mine] = [0; 3].map(|_| stream(&backend));
        let mut mirror = pinned(&backend);
        bring(&mut mirror, "HD").expect("room");
        mirror.sync_to_device_on(&up).expect("queued");
        let address = mirror.device_on(Access::Update, &mine).expect("queued").expect("it has bytes").address();
        // SAFETY: no element.
        let launched = unsafe { mine.launch(&load(&backend), "add", &[address, 0]) }.expect("a launch");
        mirror.used_by(&mine).expect("a live stream");
        backend.set_faults(&Faults::new().on(Verb::Copy, Fault::nth(1).when_executed()));
        mirror.sync_to_host_on(&down).expect("it fails later");
        tell(&down, other);
        assert!(matches!(mirror.settle(), Err(Error::Operation { what: OperationFault::AlreadyReported, .. })));
        assert_eq!((mirror.state(), mirror.statistics().to_device.count), (State::DeviceDirty, 2));
        assert_eq!(mirror.to_vec().expect("a copy"), LAST);
        launched.wait().expect("it does not fail");
    }
}

#[test]
fn a_failure_on_a_dropped_stream_is_remembered() {
    let backend = backend();
    let mut mirror = pinned(&backend);
    bring(&mut mirror, "DD").expect("room");
    let fails = || backend.set_faults(&Faults::new().on(Verb::Copy, Fault::nth(1).when_executed()));
    let first = stream(&backend);
    fails();
    mirror.sync_to_host_on(&first).expect("it fails later");
    tell(&first, Stream::synchronize);
    drop(first);
    for _ in 0..100 {
        let (stream, mut mirror) = (stream(&backend), pinned(&backend));
        bring(&mut mirror, "DD").expect("room");
        fails();
        mirror.sync_to_host_on(&stream).expect("it fails later");
        drop(mirror);
    }
    assert!(matches!(mirror.host(), Err(Error::Operation { what: OperationFault::AlreadyReported, .. })));
    assert_eq!((mirror.to_vec().expect("a copy"), mirror.state()), (LAST.to_vec(), State::Synchronized));
}

#[test]
fn a_copy_with_a_panicked_wait_is_not_complete() {
    let (backend, left) = armed();
    let (stream, mut mirror) = (stream(&backend), pinned(&backend));
    bring(&mut mirror, "DD").expect("room");
    backend.set_faults(&Faults::new().on(Verb::Copy, Fault::nth(1).when_executed()));
    mirror.sync_to_host_on(&stream).expect("it fails later");
    left.store(0, Relaxed);
    catch_unwind(AssertUnwindSafe(|| mirror.host().map(drop))).map(drop).expect_err("the wait is written down");
    assert!(matches!(mirror.host(), Err(Error::Operation { what: OperationFault::AlreadyReported, .. })));
    assert_eq!((mirror.state(), mirror.to_vec().expect("a copy")), (State::DeviceDirty, LAST.to_vec()));
}
