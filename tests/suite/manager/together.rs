//! Created and registered buffers in one manager.

use ringmem::Error;
use ringmem::error::IdError;
use ringmem::manager::MemoryManager;
use ringmem::memory::{Device, GpuBuffer, Pinned, PinnedBuffer};
use ringmem::message::BufferReference;
use ringmem::mirror::MirroredBuffer;
use ringmem::stream::Stream;

use super::{Manager, backend, holding, is_empty, manager, numbers, plain, read};
use crate::rig::leak_checked::Clean;

fn registered(backend: &Clean, manager: &Manager, numbers: &[u32]) -> ringmem::manager::BufferId<u32> {
    manager.register(GpuBuffer::from_slice(Device::new(backend, 0), numbers).expect("room")).expect("room")
}

#[test]
fn a_created_buffer_can_be_referenced_and_its_present_length_is_checked() {
    let manager = manager(&backend());
    let id = holding(&manager, "a", &numbers(0, 100));
    let message = manager.reference(id, 10..100).expect("live");
    manager.lease_mut(id).expect("nobody else").resize(1000).expect("room");
    let (lease, part) = manager.resolve::<u32>(&message).expect("live");
    assert_eq!(lease.slice(part).expect("live").to_vec().expect("a copy"), numbers(10, 90));
    drop(lease);
    manager.lease_mut(id).expect("nobody else").resize(99).expect("shorter");
    assert!(matches!(manager.resolve::<u32>(&message), Err(Error::Range { offset: 40, len: 360, size: 396, element_bytes: 1 })));
    assert!(matches!(manager.reference(id, ..100), Err(Error::Range { .. })), "within the capacity, but not live");
}

#[test]
fn a_created_buffer_that_is_handed_over_loses_its_name_at_once() {
    let backend = backend();
    let manager = manager(&backend);
    let id = holding(&manager, "a", &numbers(0, 100));
    let message = manager.reference(id, ..).expect("live").handed_over();
    assert!(matches!(manager.resolve::<u32>(&BufferReference { length: 404, ..message }), Err(Error::Range { .. })));
    assert_eq!(manager.find::<u32>("a").expect("a refusal frees nothing"), id);
    let (lease, _) = manager.resolve::<u32>(&message).expect("live");
    assert!(matches!(manager.find::<u32>("a"), Err(Error::NotFound { .. })));
    holding(&manager, "a", &numbers(7, 10));
    assert_eq!((lease.to_vec().expect("a copy"), manager.budget().used()), (numbers(0, 100), 440));
    drop(lease);
    assert_eq!((manager.budget().used(), manager.statistics().freed), (40, 1));
}

#[test]
fn a_taken_buffer_has_its_capacity_and_leaves_name_and_limit() {
    let backend = backend();
    let manager = manager(&backend);
    let id = manager.create::<u32>("a", 2, plain().with_bytes(400, 4000)).expect("room");
    manager.lease_mut(id).expect("nobody else").view_mut().copy_from(&[1, 2]).expect("a copy");
    let taken = manager.take(id).expect("not leased");
    assert_eq!((taken.len(), taken.slice(..2).expect("within").to_vec().expect("a copy")), (100, vec![1, 2]));
    assert_eq!((manager.budget().used(), manager.contains(id), manager.statistics().released), (0, false, 1));
    holding(&manager, "a", &numbers(0, 1));
    drop((taken, manager));
    assert!(is_empty(&backend));
}

#[test]
fn registered_buffers_count_towards_the_limit() {
    let backend = backend();
    let manager = MemoryManager::with_limit(Device::new(&backend, 0), 1000);
    let first = registered(&backend, &manager, &numbers(0, 100));
    let second = GpuBuffer::from_slice(Device::new(&backend, 0), &numbers(5, 151)).expect("room");
    let refused = manager.register(second).expect_err("4 bytes too many");
    assert!(matches!(refused.error, Error::Limit { requested: 604, used: 400, limit: 1000, .. }), "{}", refused.error);
    assert_eq!(refused.value.to_vec().expect("a copy"), numbers(5, 151), "it comes back");
    assert!(matches!(manager.create::<u32>("a", 151, plain()), Err(Error::Limit { .. })));
    drop(manager.take(first).expect("not leased"));
    manager.register(refused.value).expect("room");
    let figures = manager.statistics();
    assert_eq!((figures.used_bytes, figures.peak_bytes, figures.other_bytes(), figures.buffer_bytes()), (604, 604, 604, 0));
    assert_eq!((figures.created, figures.registered, figures.live()), (0, 2, 1));
}

#[test]
fn a_registered_buffer_keeps_its_length() {
    let backend = backend();
    let manager = manager(&backend);
    let (id, created) = (registered(&backend, &manager, &numbers(0, 10)), holding(&manager, "a", &numbers(0, 10)));
    let mut lease = manager.lease_mut(id).expect("nobody else");
    let is_refused = |outcome: ringmem::Result<()>| matches!(outcome, Err(Error::Unsupported { .. }));
    assert!(is_refused(lease.resize(5)) && is_refused(lease.push(1)) && is_refused(lease.ensure_capacity(11)));
    assert!(is_refused(lease.shrink_to_fit().map(drop)) && is_refused(lease.append(|_| Ok(()))));
    assert_eq!((lease.len(), lease.capacity(), lease.is_fallback()), (10, 10, false));
    drop(lease);
    assert!(is_refused(manager.resize_group([(created.into(), 20), (id.into(), 20)])));
    assert_eq!((read(&manager, id), read(&manager, created)), (numbers(0, 10), numbers(0, 10)));
    assert!(manager.cleanup(std::time::Duration::ZERO, |_| true).len() == 1 && manager.contains(id), "it has no idle time");
}

#[test]
fn clear_frees_created_and_registered_buffers() {
    let backend = backend();
    let manager = manager(&backend);
    let id = registered(&backend, &manager, &numbers(0, 10));
    holding(&manager, "a", &numbers(0, 10));
    let lease = manager.lease(id).expect("live");
    assert_eq!((manager.clear(), manager.statistics().live(), manager.statistics().kept()), (2, 0, 1));
    assert!(matches!(manager.lease(id), Err(Error::Id(IdError::Released { leases: 1, .. }))));
    drop(lease);
    assert_eq!(manager.budget().used(), 0);
    holding(&manager, "a", &numbers(0, 10));
}

#[test]
fn a_stream_queues_leases_only_if_configured() {
    let backend = backend();
    let manager = manager(&backend);
    let stream = Stream::new(&backend, 0).expect("a stream");
    let pinned = || PinnedBuffer::<u32>::from_slice(Pinned::new(&backend, 0), &numbers(0, 10)).expect("room");
    let id = holding(&manager, "a", &numbers(0, 10));
    let leased = || manager.lease_mut(id).expect("nobody else").into_owned();
    assert!(matches!(stream.copy(pinned(), leased()).expect_err("not configured").error, Error::Unsupported { .. }));
    assert!(matches!(stream.copy(leased(), pinned()).expect_err("not configured").error, Error::Unsupported { .. }));
    assert!(matches!(stream.fill(leased(), .., 7).expect_err("not configured").error, Error::Unsupported { .. }));
    let chunked = ringmem::copy::Chunked::new(&stream, pinned(), leased(), 8, 2);
    assert!(matches!(chunked.map(drop).map_err(|rejected| rejected.error), Err(Error::Unsupported { .. })));
    assert_eq!((read(&manager, id), manager.statistics().queued), (numbers(0, 10), 0));

    let id = manager.create::<u32>("b", 10, plain().with_async(true)).expect("room");
    let lease = manager.lease_mut(id).expect("nobody else").into_owned();
    let (_, lease) = stream.copy(pinned(), lease).expect("queued").wait().expect("done");
    drop(stream.fill(lease, 5.., 7).expect("queued").wait().expect("done"));
    let lease = manager.lease(id).expect("nobody writes").into_owned();
    let (lease, copy) = stream.copy(lease, pinned()).expect("queued").wait().expect("done");
    assert_eq!(copy.as_slice().expect("idle"), [0, 1, 2, 3, 4, 7, 7, 7, 7, 7]);
    drop(lease);
    assert_eq!(manager.statistics().queued, 3);
}

#[test]
fn a_mirror_counts_as_one_copy_towards_the_limit() {
    let backend = backend();
    let memory = Device::new(&backend, 0);
    let manager = MemoryManager::with_limit(memory.clone(), 100);
    let mirror = |len| MirroredBuffer::<u32, _, _>::new(Pinned::new(&backend, 0), memory.clone(), len).expect("one backend");
    let refused = manager.register_mirror(mirror(26)).expect_err("4 bytes too many");
    assert!(matches!(refused.error, Error::Limit { requested: 104, used: 0, limit: 100, .. }), "{}", refused.error);
    assert_eq!(refused.value.len(), 26, "it comes back");
    let id = manager.register_mirror(mirror(25)).expect("just enough");
    assert!(!manager.can_allocate(1));
    drop(manager.take_mirror(id).expect("not leased"));
    assert_eq!(manager.budget().used(), 0);
}
