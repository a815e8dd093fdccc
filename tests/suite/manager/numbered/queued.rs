use std::mem;

use super::*;
use crate::rig::busy_stream::Held;
use ringmem::memory::{Pinned, PinnedBuffer};
use ringmem::stream::Stream;

fn pinned(backend: &Arc<HostBackend>, elements: &[u32]) -> PinnedBuffer<u32> {
    PinnedBuffer::from_slice(Pinned::new(backend, 0), elements).expect("room")
}

#[test]
fn a_stream_copies_between_leases_and_buffers() {
    let backend = backend();
    let manager = manager(&backend);
    let stream = Stream::new(&backend, 0).expect("a stream");
    let [a, b] = [[1_u32, 2, 3, 4], [0; 4]].map(|elements| manager.register(buffer(&backend, &elements)).expect("room"));
    let (from, to) = (manager.lease(a).expect("live").into_owned(), manager.lease_mut(b).expect("live").into_owned());
    let (from, to) = stream.copy_range(from, 1..3, to, 0).expect("queued").wait().expect("done");
    let to = stream.fill(to, 3.., 9).expect("queued").wait().expect("done");
    drop(from);
    let (to, read) = stream.copy(to, pinned(&backend, &[0; 4])).expect("queued").wait().expect("done");
    assert_eq!(read.as_slice().expect("idle"), [2, 3, 0, 9]);
    let (_, to) = stream.copy(pinned(&backend, &[5; 4]), to).expect("queued").wait().expect("done");
    drop(to);
    assert_eq!(manager.lease(b).expect("live").view().to_vec().expect("live"), [5; 4]);
    assert_eq!(manager.statistics().leases, 0);
}

#[test]
fn a_rejected_copy_returns_its_leases() {
    let backend = backend();
    let manager = manager(&backend);
    let stream = Stream::new(&backend, 0).expect("a stream");
    let ids = [3, 4].map(|len| manager.register(buffer(&backend, &vec![1_u32; len])).expect("room"));
    let (from, to) = (manager.lease(ids[0]).expect("live").into_owned(), manager.lease_mut(ids[1]).expect("live").into_owned());
    let rejected = stream.copy(from, to).expect_err("another length");
    assert!(matches!(rejected.error, Error::Size { what: "length in elements", least: 4, asked: 3, .. }));
    let (from, to) = rejected.value;
    assert_eq!((from.len(), to.len(), manager.statistics().leases), (3, 4, 2));
}

#[test]
fn a_lease_in_a_queued_copy_ends_after_it() {
    let backend = backend();
    let manager = manager(&backend);
    let stream = Stream::new(&backend, 0).expect("a stream");
    let id = manager.register(buffer(&backend, &[1_u32, 2])).expect("room");
    let held = Held::new(&backend, &stream);
    let lease = manager.lease(id).expect("live").into_owned();
    let pending = stream.copy(lease, pinned(&backend, &[0; 2])).expect("queued");
    let (lease, read) = pending.detach();
    drop(lease);
    assert_eq!(manager.statistics().leases, 1, "the operation has it");
    assert!(is_busy(manager.lease_mut(id)));
    drop(manager.lease(id).expect("others may read"));
    assert_eq!((manager.free(id).expect("live"), blocks(&backend)), (1, 1));
    held.let_go();
    eventually("the lease is given back and the buffer freed", || blocks(&backend) == 0);
    assert_eq!(manager.statistics().leases, 0);
    let mut read = read;
    read.settle().expect("done");
    assert_eq!(read.as_slice().expect("idle"), [1, 2]);
}

#[test]
fn a_lease_after_a_queued_write_is_ordered_after_it() {
    let backend = backend();
    let manager = manager(&backend);
    let [busy, other] = [(); 2].map(|()| Stream::new(&backend, 0).expect("a stream"));
    let id = manager.register(buffer(&backend, &[0_u32; 2])).expect("room");
    let held = Held::new(&backend, &busy);
    let alone = manager.lease_mut(id).expect("live").into_owned();
    drop(busy.fill(alone, .., 7).expect("queued"));
    let lease = manager.lease(id).expect("the write is queued, not the lease").into_owned();
    let (lease, read) = other.copy(lease, pinned(&backend, &[0; 2])).expect("queued").detach();
    held.let_go();
    let mut read = read;
    read.settle().expect("done");
    assert_eq!((read.as_slice().expect("idle"), lease.view().to_vec().expect("live")), (&[7, 7][..], vec![7, 7]));
}

#[test]
fn an_operation_on_a_lease_follows_the_previous_one() {
    let backend = backend();
    let manager = manager(&backend);
    let [busy, other] = [(); 2].map(|()| Stream::new(&backend, 0).expect("a stream"));
    let id = manager.register(buffer(&backend, &[1_u32, 2])).expect("room");
    let held = Held::new(&backend, &busy);
    let lease = manager.lease(id).expect("live").into_owned();
    let (lease, first) = busy.copy(lease, pinned(&backend, &[0; 2])).expect("queued").detach();
    let second = other.copy(lease, pinned(&backend, &[0; 2])).expect("queued");
    let second = second.wait_timeout(Duration::from_millis(100)).expect_err("the first is held up");
    drop(second.detach());
    assert_eq!(manager.statistics().leases, 1, "one ticket stands for both");
    held.let_go();
    eventually("both are done", || manager.statistics().leases == 0);
    drop(first);
}

#[test]
fn a_lease_with_uses_keeps_its_buffer_until_they_complete() {
    let backend = backend();
    let manager = manager(&backend);
    let stream = Stream::new(&backend, 0).expect("a stream");
    let [read, written] = [(); 2].map(|()| manager.register(buffer(&backend, &[1_u32])).expect("room"));
    let held = Held::new(&backend, &stream);
    let mut lease = manager.lease(read).expect("live");
    lease.used_by(&stream).expect("a live stream");
    drop(lease);
    let mut alone = manager.lease_mut(written).expect("live");
    alone.used_by(&stream).expect("a live stream");
    drop(alone);
    assert_eq!((manager.free(read).expect("live"), manager.free(written).expect("live")), (1, 0));
    assert_eq!(blocks(&backend), 2, "the kernel may use both");
    held.let_go();
    eventually("both are freed", || blocks(&backend) == 0);
}

#[test]
fn a_use_on_another_stream_follows_the_queued_copy() {
    let backend = backend();
    let manager = manager(&backend);
    let [busy, other] = [(); 2].map(|()| Stream::new(&backend, 0).expect("a stream"));
    let id = manager.register(buffer(&backend, &[1_u32, 2])).expect("room");
    let held = Held::new(&backend, &busy);
    let lease = manager.lease(id).expect("live").into_owned();
    let (mut lease, read) = busy.copy(lease, pinned(&backend, &[0; 2])).expect("queued").detach();
    lease.used_by(&other).expect("a live stream");
    drop(lease);
    let idle = other.fill(pinned(&backend, &[0; 2]), .., 1).expect("queued");
    let idle = idle.wait_timeout(Duration::from_millis(100)).expect_err("the other stream waits, too");
    assert_eq!(manager.statistics().leases, 1);
    held.let_go();
    idle.wait().expect("done");
    eventually("the lease is given back", || manager.statistics().leases == 0);
    drop(read);
}

#[test]
fn a_forgotten_operation_keeps_its_leases() {
    let backend = backend();
    let manager = manager(&backend);
    let stream = Stream::new(&backend, 0).expect("a stream");
    let [a, b] = [[1_u32, 2], [0; 2]].map(|elements| manager.register(buffer(&backend, &elements)).expect("room"));
    let (from, to) = (manager.lease(a).expect("live").into_owned(), manager.lease_mut(b).expect("live").into_owned());
    std::mem::forget(stream.copy(from, to).expect("queued"));
    (0..2).for_each(|_| backend.forgets());
    assert_eq!((manager.free(a).expect("live"), manager.free(b).expect("live")), (1, 1));
    stream.synchronize().expect("nothing failed");
    assert_eq!((blocks(&backend), manager.statistics().kept()), (2, 2));
}

/// The lease borrows the manager, which can be dropped after the lease is forgotten.
#[test]
fn a_forgotten_lease_with_uses_outlives_the_manager() {
    let backend = backend();
    let manager = manager(&backend);
    let stream = Stream::new(&backend, 0).expect("a stream");
    let [used, unused] = [1_u32, 2].map(|element| manager.register(buffer(&backend, &[element])).expect("room"));
    let held = Held::new(&backend, &stream);
    let mut lease = manager.lease(used).expect("live");
    lease.used_by(&stream).expect("of the same backend");
    mem::forget(lease);
    mem::forget(manager.lease(unused).expect("live"));
    (0..2).for_each(|_| backend.forgets());
    drop(manager);
    assert_eq!(blocks(&backend), 2, "a kernel may be reading one");
    held.let_go();
}
