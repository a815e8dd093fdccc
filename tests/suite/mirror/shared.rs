use std::thread;
use std::time::Duration;

use ringmem::Error;
use ringmem::backend::host::{Fault, Faults, HostBackend, Verb};
use ringmem::mirror::{Access, State};

use super::table::{self, Cell, bring, call, cells, transfers};
use super::{BYTES, Held, LEN, PinnedMirror, eventually, launch, live, pageable, pinned, stream};
use crate::rig::leak_checked::Clean;

fn sharing() -> Clean {
    Clean::build(HostBackend::builder().device_memory(1 << 20).shared_memory(true))
}

#[test]
fn a_shared_mirror_follows_the_table_and_copies_nothing() {
    let cells = cells().filter(|cell| !cell.call.starts_with("through") && !cell.before.ends_with('*'));
    for cell in cells.map(Cell::of_a_shared_mirror) {
        let backend = sharing();
        let (stream, mut mirror) = (stream(&backend), pinned(&backend));
        assert!(mirror.is_shared());
        bring(&mut mirror, cell.before).expect("room");
        match call(&mut mirror, cell.call, &stream) {
            Ok(()) => assert!(!cell.is_error(), "{cell:?}"),
            Err(error) => assert_eq!(table::name(&error), cell.after, "{cell:?}: {error}"),
        }
        assert_eq!(mirror.state(), cell.state_after(), "{cell:?}");
        table::check_elements(&mut mirror, cell);
        let counters = backend.counters();
        assert_eq!((transfers(&backend), counters.device_allocations.count), ([0, 0], 0), "{cell:?}");
        assert_eq!(counters.pinned_live.peak, if mirror.state() == State::Uninitialized { 0 } else { BYTES }, "{cell:?}");
        assert_eq!(mirror.statistics(), Default::default());
    }
}

#[test]
fn a_shared_mirror_has_one_address_and_waits_for_kernels() {
    let backend = sharing();
    let (stream, mut mirror) = (stream(&backend), pinned(&backend));
    mirror.copy_from(&[5; LEN]).expect("room");
    let host = mirror.host().expect("valid").as_ptr() as u64;
    let address = mirror.device().expect("valid").device_address().expect("it has bytes").get();
    let place = backend.counters().pinned_allocations.count;
    assert_eq!((host != 0, place), (true, 1));
    assert_eq!(mirror.device_on(Access::Read, &stream).expect("valid").map(|pointer| pointer.address()), Some(address));
    let held = Held::new(&backend, &stream);
    let launches = [0; 20].map(|_| launch(&mut mirror, "add", &stream));
    let release = thread::spawn(move || {
        thread::sleep(Duration::from_millis(50));
        drop(held);
    });
    assert_eq!(mirror.host().expect("after the kernels"), [25; LEN]);
    release.join().expect("no panic");
    launches.into_iter().for_each(|launch| launch.wait().expect("it does not fail"));
    let mut view = mirror.device_mut().expect("valid");
    view.copy_from(&[1; LEN]).expect("as many");
    assert_eq!(mirror.to_vec().expect("valid"), [1; LEN]);
    let lent = mirror.through(Access::Read, |device| (device, ()));
    assert!(matches!(lent, Err(Error::Unsupported { .. })), "{lent:?}");
    mirror.free().expect("freed");
    eventually("all is freed", || live(&backend) == [0; 3]);
}

type Bring = fn(&mut PinnedMirror) -> Result<(), Error>;

#[test]
fn a_failed_wait_leaves_a_shared_mirror_device_dirty() {
    let bring: [Bring; 2] = [|mirror| mirror.host().map(drop), PinnedMirror::sync_to_host];
    for bring in bring {
        let backend = sharing();
        let (stream, mut mirror) = (stream(&backend), pinned(&backend));
        mirror.copy_from(&[5; LEN]).expect("room");
        launch(&mut mirror, "add", &stream).wait().expect("it does not fail");
        backend.set_faults(&Faults::new().on(Verb::Wait, Fault::nth(1)));
        let error = bring(&mut mirror).expect_err("planned");
        assert!(matches!(error, Error::Injected { call: "wait", .. }), "{error}");
        assert_eq!(mirror.state(), State::DeviceDirty);
        backend.set_faults(&Faults::new());
        assert_eq!(mirror.host().expect("valid"), [6; LEN]);
        assert_eq!(mirror.state(), State::Synchronized);
    }
}

#[test]
fn sync_to_host_of_a_shared_mirror_waits_for_the_kernel() {
    let backend = sharing();
    let (stream, mut mirror) = (stream(&backend), pinned(&backend));
    mirror.copy_from(&[5; LEN]).expect("room");
    let held = Held::new(&backend, &stream);
    let launched = launch(&mut mirror, "add", &stream);
    let release = thread::spawn(move || {
        thread::sleep(Duration::from_millis(50));
        drop(held);
    });
    mirror.sync_to_host().expect("after the kernels");
    assert!(launched.is_done());
    release.join().expect("no panic");
}

#[test]
fn pageable_host_memory_is_copied_on_a_sharing_backend() {
    let backend = sharing();
    let mut mirror = pageable(&backend);
    assert!(!mirror.is_shared());
    mirror.copy_from(&[5; LEN]).expect("room");
    assert_eq!(mirror.device().expect("a copy").to_vec().expect("a copy"), [5; LEN]);
    assert_eq!(backend.counters().uploads.count, 1);
}
