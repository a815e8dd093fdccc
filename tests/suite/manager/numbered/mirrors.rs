use std::mem;

use super::*;
use crate::rig::busy_stream::Held;
use ringmem::backend::host::{Fault, Faults, Verb};
use ringmem::memory::{Host, Pinned};
use ringmem::message::ReferenceError;
use ringmem::mirror::{MirroredBuffer, State};
use ringmem::stream::Stream;

type Mirror = MirroredBuffer<u32, Pinned, Device>;

fn mirror(backend: &Arc<HostBackend>, elements: &[u32]) -> Mirror {
    let mut mirror = MirroredBuffer::new(Pinned::new(backend, 0), Device::new(backend, 0), elements.len()).expect("one backend");
    mirror.copy_from(elements).expect("room");
    mirror
}

fn live(backend: &HostBackend) -> u64 {
    backend.counters().device_live.bytes + backend.counters().pinned_live.bytes
}

#[test]
fn a_leased_mirror_keeps_both_copies_and_its_state() {
    let backend = backend();
    let manager = manager(&backend);
    let id = manager.register_mirror(mirror(&backend, &[1, 2, 3, 4])).expect("room");
    let mut lease = manager.lease_mirror(id).expect("live");
    lease.device_mut().expect("copied up").slice(..2).expect("within").fill(7).expect("live");
    assert_eq!((lease.id(), lease.len(), lease.state()), (id, 4, State::DeviceDirty));
    assert!(is_busy(manager.lease_mirror(id)) && is_busy(manager.take_mirror(id)) && is_busy(manager.reference_mirror(id, ..)));
    drop(lease);
    let mut lease = manager.lease_mirror(id).expect("live").into_owned();
    assert_eq!((lease.state(), lease.host().expect("copied down")), (State::DeviceDirty, &[7, 7, 3, 4][..]));
    let copies = lease.statistics();
    assert_eq!((copies.to_device.count, copies.to_host.count), (1, 1));
    drop(lease);
    let taken = manager.take_mirror(id).expect("not leased");
    assert_eq!((taken.state(), manager.contains(id)), (State::Synchronized, false));
    assert!(matches!(id_error(manager.lease_mirror(id)), IdError::Stale { index: 0, expected: 2, got: 1 }));
}

#[test]
fn a_reference_to_a_mirror_resolves_to_its_lease() {
    let backend = backend();
    let manager = manager(&backend);
    let id = manager.register_mirror(mirror(&backend, &[1, 2, 3, 4])).expect("room");
    assert!(matches!(manager.reference_mirror(id, 2..5), Err(Error::Range { offset: 2, len: 3, size: 4, element_bytes: 4 })));
    let message = manager.reference_mirror(id, 1..3).expect("within");
    let (mut lease, part) = manager.resolve_mirror::<u32, Pinned>(&message).expect("live");
    assert_eq!(lease.host().expect("live")[part], [2, 3]);
    drop(lease);

    let beyond = ringmem::message::BufferReference { length: 16, ..message };
    let refused = manager.resolve_mirror::<u32, Pinned>(&beyond);
    assert!(matches!(refused, Err(Error::Range { offset: 4, len: 16, size: 16, element_bytes: 1 })), "{refused:?}");
    let error = id_error(manager.resolve_mirror::<f32, Pinned>(&message));
    assert!(matches!(error, IdError::Reference(ReferenceError::Elements { .. })), "{error}");
    let error = id_error(manager.resolve_mirror::<u32, Host>(&message));
    assert!(matches!(error, IdError::Mirror { expected, got } if !expected.contains("Host") && got.contains("Host")), "{error}");
    assert!(matches!(id_error(manager.resolve::<u32>(&message)), IdError::Foreign { .. }), "no buffer has a mirror's id");
    let buffer = manager.register(buffer(&backend, &[0_u32; 4])).expect("room");
    let other = manager.reference(buffer, ..).expect("live");
    assert!(matches!(id_error(manager.resolve_mirror::<u32, Pinned>(&other)), IdError::Foreign { .. }), "nor the reverse");
    assert_eq!(manager.statistics().leases, 0, "a refused reference has no lease");

    let handed_over = message.handed_over();
    let (lease, _) = manager.resolve_mirror::<u32, Pinned>(&handed_over).expect("live");
    assert!(matches!(id_error(manager.resolve_mirror::<u32, Pinned>(&handed_over)), IdError::Released { index: 0, leases: 1 }));
    assert!(live(&backend) > 16, "the lease keeps it");
    drop(lease);
    assert_eq!(live(&backend), 16, "the buffer");
}

#[test]
fn a_released_mirror_is_freed_after_its_lease_and_its_queued_work() {
    let backend = backend();
    let manager = manager(&backend);
    let stream = Stream::new(&backend, 0).expect("a stream");
    let ids = [[1; 4], [2; 4], [3; 4]].map(|elements| manager.register_mirror(mirror(&backend, &elements)).expect("room"));
    assert_eq!((manager.statistics().live(), manager.statistics().used_bytes), (3, 48));
    assert_eq!((manager.free(ids[0]).expect("live"), manager.statistics().freed), (0, 1));

    let held = Held::new(&backend, &stream);
    let mut lease = manager.lease_mirror(ids[1]).expect("live");
    lease.sync_to_device_on(&stream).expect("queued");
    assert_eq!(manager.free(ids[1]).expect("live"), 1);
    assert!(matches!(id_error(manager.free(ids[1])), IdError::Released { index: 1, leases: 1 }));
    drop(lease);
    assert_eq!((manager.statistics().freed, manager.statistics().kept()), (2, 0));
    assert!(backend.counters().device_live.bytes > 0, "the queued copy uses it");
    assert_eq!(manager.statistics().used_bytes, 32, "so that its bytes are not given to another buffer");
    held.let_go();
    eventually("the copy is complete", || backend.counters().device_live.bytes == 0 && manager.statistics().used_bytes == 16);

    assert_eq!((manager.clear(), manager.contains(ids[2]), manager.statistics().used_bytes), (1, false, 0));
    eventually("all is freed", || live(&backend) == 0);
}

#[test]
fn a_failed_free_of_a_mirror_is_the_error_of_its_release() {
    let backend = Clean::build(HostBackend::builder().device_memory(1 << 20).faults(Faults::new()));
    let manager = manager(&backend);
    let id = manager.register_mirror(mirror(&backend, &[1, 2])).expect("room");
    backend.set_faults(&Faults::new().on(Verb::Free, Fault::nth(1)));
    assert!(matches!(manager.free(id), Err(Error::Injected { .. })));
    assert_eq!((manager.contains(id), live(&backend), manager.statistics().used_bytes), (false, 0, 0), "freed anyway");
}

#[test]
fn a_mirror_that_a_lease_replaces_counts_from_the_end_of_the_lease() {
    let backend = backend();
    let manager = MemoryManager::with_limit(Device::new(&backend, 0), 100);
    let used = || (manager.budget().used(), manager.budget().peak());
    let id = manager.register_mirror(mirror(&backend, &[1; 4])).expect("room");
    let mut lease = manager.lease_mirror(id).expect("live");
    drop(mem::replace(&mut *lease, mirror(&backend, &[2; 100])));
    drop(lease);
    assert_eq!(used(), (400, 400), "beyond the limit: its memory exists");
    assert!(matches!(manager.reserve(1), Err(Error::Limit { requested: 1, used: 400, limit: 100, .. })));

    let mut lease = manager.lease_mirror(id).expect("live").into_owned();
    *lease = mirror(&backend, &[3; 2]);
    drop(lease);
    assert_eq!(used(), (8, 400));

    let mut lease = manager.lease_mirror(id).expect("live");
    *lease = mirror(&backend, &[4; 5]);
    assert_eq!(manager.free(id).expect("live"), 1);
    drop(lease);
    assert_eq!((used(), live(&backend)), ((0, 400), 0));

    let id = manager.register_mirror(mirror(&backend, &[5; 4])).expect("room");
    let mut lease = manager.lease_mirror(id).expect("live");
    *lease = mirror(&backend, &[6; 7]);
    let taken = lease.take().expect("this process");
    assert_eq!((taken.len(), manager.budget().used()), (7, 0));
}
