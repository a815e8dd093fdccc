use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use ringmem::error::MirrorFault;

use ringmem::error::OperationFault;

use ringmem::Error;
use ringmem::backend::host::{Fault, Faults, HostBackend, Verb};
use ringmem::memory::{Buffer, Device};
use ringmem::mirror::{Access, Side, State};

use super::table::{LAST, OLDER, bring};
use super::{LEN, PinnedMirror, armed, backend, launch, live, pinned, stream};

fn lose(mirror: &mut PinnedMirror, backend: &Arc<HostBackend>) {
    let other = Buffer::new(Device::new(backend, 0), 1).expect("room");
    mirror.through(Access::Read, |_| (other, ())).expect_err("another buffer");
}

fn panics<R>(left: &AtomicUsize, looks: usize, call: impl FnOnce() -> R) {
    left.store(looks, Relaxed);
    let outcome = catch_unwind(AssertUnwindSafe(call)).map(drop);
    left.store(usize::MAX, Relaxed);
    outcome.expect_err("the clock panics");
}

#[test]
fn a_lost_device_copy_is_restored_from_the_host() {
    let calls: [fn(&mut PinnedMirror) -> ringmem::Result<()>; 4] = [
        PinnedMirror::sync_to_device,
        PinnedMirror::synchronize,
        |mirror| mirror.device().map(drop),
        |mirror| mirror.compact(Side::Device),
    ];
    for call in calls {
        let backend = backend();
        let mut mirror = pinned(&backend);
        bring(&mut mirror, "S").expect("room");
        lose(&mut mirror, &backend);
        assert_eq!(mirror.state(), State::HostOnly);
        assert!(matches!(mirror.mark_device_dirty(), Err(Error::Mirror { what: MirrorFault::NoDeviceCopy, .. })));
        call(&mut mirror).expect("the host's is whole");
        assert_eq!(mirror.device().expect("a copy").to_vec().expect("a copy"), LAST);
        assert_eq!(mirror.host().expect("a copy"), LAST);
    }
}

#[test]
fn a_lost_only_copy_is_an_error_until_discarded() {
    let backend = backend();
    let stream = stream(&backend);
    let mut mirror = pinned(&backend);
    bring(&mut mirror, "DD").expect("room");
    lose(&mut mirror, &backend);
    let calls: [fn(&mut PinnedMirror) -> ringmem::Result<()>; 5] = [
        PinnedMirror::sync_to_device,
        PinnedMirror::sync_to_host,
        PinnedMirror::mark_device_dirty,
        |mirror| mirror.compact(Side::Device),
        |mirror| mirror.compact(Side::Host),
    ];
    for call in calls {
        assert!(matches!(call(&mut mirror), Err(Error::Mirror { what: MirrorFault::NoDeviceCopy, state: "DeviceDirty" })));
    }
    assert!(matches!(mirror.sync_to_host_on(&stream), Err(Error::Mirror { what: MirrorFault::NoDeviceCopy, .. })));
    mirror.discard_device().expect("the host's is whole");
    assert_eq!(mirror.host().expect("a copy"), OLDER);
}

#[test]
fn unwritten_memory_is_never_a_valid_copy() {
    let backend = backend();
    let stream = stream(&backend);
    let mut mirror = pinned(&backend);
    bring(&mut mirror, "DO").expect("room");
    lose(&mut mirror, &backend);
    assert!(matches!(mirror.sync_to_host_on(&stream), Err(Error::Mirror { what: MirrorFault::NoDeviceCopy, .. })));
    assert_eq!(live(&backend), [0; 3], "nothing is there");
    assert!(matches!(mirror.discard_device(), Err(Error::Mirror { what: MirrorFault::NoHostCopy, .. })));
    let (backend, left) = armed();
    let stream = super::stream(&backend);
    for queued in [false, true] {
        let mut mirror = pinned(&backend);
        bring(&mut mirror, "DO").expect("room");
        panics(&left, 1, || if queued { mirror.sync_to_host_on(&stream) } else { mirror.sync_to_host() });
        assert!(matches!(mirror.discard_device(), Err(Error::Mirror { what: MirrorFault::NoHostCopy, .. })), "{queued}");
        assert_eq!(mirror.to_vec().expect("a copy"), LAST, "{queued}");
    }
    let mut mirror = pinned(&backend);
    bring(&mut mirror, "HO").expect("room");
    panics(&left, 1, || mirror.device_on(Access::Read, &stream));
    assert!(matches!(mirror.discard_host(), Err(Error::Mirror { what: MirrorFault::NoDeviceCopy, .. })));
    assert_eq!(mirror.to_vec().expect("a copy"), LAST);
}

#[test]
fn a_panic_while_queueing_loses_neither_copy() {
    let (backend, left) = armed();
    let stream = stream(&backend);
    for (before, to) in [("HD", Side::Device), ("DD", Side::Host)] {
        let mut mirror = pinned(&backend);
        bring(&mut mirror, before).expect("room");
        let state = mirror.state();
        panics(&left, 0, || match to {
            Side::Host => mirror.sync_to_host_on(&stream),
            Side::Device => mirror.sync_to_device_on(&stream),
        });
        assert_eq!((mirror.state(), mirror.to_vec().expect("a copy")), (state, LAST.to_vec()), "{before}");
    }
}

#[test]
fn a_failed_upload_is_reported_after_a_panicked_wait() {
    let (backend, left) = armed();
    let stream = stream(&backend);
    let mut mirror = pinned(&backend);
    mirror.copy_from(&[7; LEN]).expect("as many");
    backend.set_faults(&Faults::new().on(Verb::Copy, Fault::nth(1).when_executed()));
    mirror.sync_to_device_on(&stream).expect("it fails later");
    drop(launch(&mut mirror, "add", &stream));
    mirror.sync_to_host_on(&stream).expect("queued");
    stream.synchronize().expect_err("planned");
    panics(&left, 1, || mirror.host().map(drop));
    assert!(matches!(mirror.host(), Err(Error::Operation { what: OperationFault::AlreadyReported, .. })));
    assert_eq!(mirror.state(), State::DeviceDirty);
}
