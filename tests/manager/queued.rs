//! Transfers that are queued on a managed buffer.

use ringmem::Error;
use ringmem::memory::{Pinned, PinnedBuffer};
use ringmem::stream::Stream;

use super::{backend, holding, is_empty, manager, numbers, plain};

#[test]
fn what_is_queued_is_done_in_order_and_counted() {
    let backend = backend();
    let manager = manager(&backend);
    let (stream, other) = (Stream::new(&backend, 0).expect("a stream"), Stream::new(&backend, 0).expect("a stream"));
    let id = manager.create::<u32>("a", 100, plain().with_async(true)).expect("room");
    let pinned = || PinnedBuffer::<u32, _>::from_slice(Pinned::new(&backend, 0), &numbers(0, 10)).expect("room");
    let mut lease = manager.lease_mut(id).expect("nobody else");
    lease.fill_on(&stream, .., 7).expect("queued");
    let up = lease.upload(&other, pinned(), 50).expect("queued");
    let down = lease.download(&stream, 49..59, pinned()).expect("queued");
    assert_eq!(down.wait().expect("done").as_slice().expect("not in use"), [&[7][..], &numbers(0, 9)].concat());
    up.wait().expect("done");
    drop(lease);
    assert_eq!(manager.lease(id).expect("nobody else").slice(58..61).expect("live").to_vec().expect("a copy"), [8, 9, 7]);
    assert_eq!(manager.statistics().queued, 3);
    drop(manager);
    assert!(is_empty(&backend));
}

#[test]
fn what_does_not_fit_is_refused_and_given_back() {
    let backend = backend();
    let manager = manager(&backend);
    let stream = Stream::new(&backend, 0).expect("a stream");
    let id = manager.create::<u32>("a", 100, plain().with_async(true)).expect("room");
    let pinned = || PinnedBuffer::<u32, _>::new(Pinned::new(&backend, 0), 10).expect("room");
    let mut lease = manager.lease_mut(id).expect("nobody else");
    let refused = lease.upload(&stream, pinned(), 91).expect_err("past the end");
    assert!(matches!((refused.error, refused.value.len()), (Error::Range { offset: 364, len: 40, size: 400 }, 10)));
    let refused = lease.download(&stream, ..11, pinned()).expect_err("too short");
    assert!(matches!((refused.error, refused.value.len()), (Error::Range { .. }, 10)));
    assert!(matches!(lease.fill_on(&stream, 99..101, 0), Err(Error::Range { .. })));
    // What is not live is not there, though there is room.
    lease.resize(50).expect("it is there");
    assert!(matches!(lease.fill_on(&stream, ..51, 0), Err(Error::Range { .. })));
    assert_eq!(manager.statistics().queued, 0);
}

#[test]
fn nothing_is_queued_on_a_buffer_that_is_not_configured_for_it() {
    let backend = backend();
    let manager = manager(&backend);
    let stream = Stream::new(&backend, 0).expect("a stream");
    let id = holding(&manager, "a", &numbers(0, 10));
    let mut lease = manager.lease_mut(id).expect("nobody else");
    let pinned = || PinnedBuffer::<u32, _>::new(Pinned::new(&backend, 0), 10).expect("room");
    assert!(matches!(lease.upload(&stream, pinned(), 0).expect_err("refused").error, Error::Unsupported { .. }));
    assert!(matches!(lease.download(&stream, .., pinned()).expect_err("refused").error, Error::Unsupported { .. }));
    assert!(matches!(lease.fill_on(&stream, .., 0), Err(Error::Unsupported { .. })));
    assert_eq!(lease.to_vec().expect("a copy"), numbers(0, 10));
}

#[test]
fn a_transfer_that_is_forgotten_keeps_its_memory_and_the_next_use_comes_after_it() {
    let backend = backend();
    let manager = manager(&backend);
    let stream = Stream::new(&backend, 0).expect("a stream");
    let id = manager.create::<u32>("a", 1000, plain().with_async(true)).expect("room");
    let pinned = PinnedBuffer::<u32, _>::from_slice(Pinned::new(&backend, 0), &numbers(0, 1000)).expect("room");
    let mut lease = manager.lease_mut(id).expect("nobody else");
    std::mem::forget(lease.upload(&stream, pinned, 0).expect("queued"));
    lease.resize(2000).expect("room");
    drop(lease);
    assert_eq!(manager.lease(id).expect("nobody else").slice(..1000).expect("live").to_vec().expect("a copy"), numbers(0, 1000));
    manager.free(id).expect("nobody has it");
    assert_eq!(manager.budget().used(), 0);
}

#[test]
fn what_is_freed_with_work_queued_counts_until_the_work_is_over() {
    let backend = backend();
    let manager = manager(&backend);
    let stream = Stream::new(&backend, 0).expect("a stream");
    let id = manager.create::<u32>("a", 1000, plain().with_async(true)).expect("room");
    let held = super::held::Held::new(&backend, &stream);
    manager.lease_mut(id).expect("nobody else").fill_on(&stream, .., 1).expect("queued");
    manager.free(id).expect("nobody has a lease");
    assert_eq!((manager.budget().used(), backend.counters().device_live.bytes), (4000, 4000));
    assert!(!manager.can_allocate(manager.budget().limit() - 3999) && manager.can_allocate(manager.budget().limit() - 4000));
    held.let_go();
    stream.synchronize().expect("no fault");
    super::eventually("the block is freed", || backend.counters().device_live.bytes == 0);
    super::eventually("the bytes are let go", || manager.budget().used() == 0);
}
