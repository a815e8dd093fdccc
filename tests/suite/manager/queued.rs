use std::sync::Arc;
use std::thread;
use std::time::Duration;

use ringmem::Error;
use ringmem::backend::host::HostBackend;
use ringmem::manager::MemoryManager;
use ringmem::memory::{Buffer, Device, Limited, Pinned, PinnedBuffer};
use ringmem::stream::Stream;

use super::{backend, holding, is_empty, manager, numbers, plain};
use crate::rig::leak_checked::Clean;

#[test]
fn queued_operations_run_in_order_and_are_counted() {
    let backend = backend();
    let manager = manager(&backend);
    let (stream, other) = (Stream::new(&backend, 0).expect("a stream"), Stream::new(&backend, 0).expect("a stream"));
    let id = manager.create::<u32>("a", 100, plain().with_async(true)).expect("room");
    let pinned = || PinnedBuffer::<u32>::from_slice(Pinned::new(&backend, 0), &numbers(0, 10)).expect("room");
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
fn out_of_range_transfers_are_errors_and_return_buffers() {
    let backend = backend();
    let manager = manager(&backend);
    let stream = Stream::new(&backend, 0).expect("a stream");
    let id = manager.create::<u32>("a", 100, plain().with_async(true)).expect("room");
    let pinned = || PinnedBuffer::<u32>::new(Pinned::new(&backend, 0), 10).expect("room");
    let mut lease = manager.lease_mut(id).expect("nobody else");
    let refused = lease.upload(&stream, pinned(), 91).expect_err("past the end");
    assert!(matches!((refused.error, refused.value.len()), (Error::Range { offset: 91, len: 10, size: 100, element_bytes: 4 }, 10)));
    let refused = lease.download(&stream, ..11, pinned()).expect_err("too short");
    assert!(matches!((refused.error, refused.value.len()), (Error::Range { .. }, 10)));
    assert!(matches!(lease.fill_on(&stream, 99..101, 0), Err(Error::Range { .. })));
    lease.resize(50).expect("it is there");
    assert!(matches!(lease.fill_on(&stream, ..51, 0), Err(Error::Range { .. })));
    assert_eq!(manager.statistics().queued, 0);
}

#[test]
fn queued_operations_need_an_asynchronous_configuration() {
    let backend = backend();
    let manager = manager(&backend);
    let stream = Stream::new(&backend, 0).expect("a stream");
    let id = holding(&manager, "a", &numbers(0, 10));
    let mut lease = manager.lease_mut(id).expect("nobody else");
    let pinned = || PinnedBuffer::<u32>::new(Pinned::new(&backend, 0), 10).expect("room");
    assert!(matches!(lease.upload(&stream, pinned(), 0).expect_err("refused").error, Error::Unsupported { .. }));
    assert!(matches!(lease.download(&stream, .., pinned()).expect_err("refused").error, Error::Unsupported { .. }));
    assert!(matches!(lease.fill_on(&stream, .., 0), Err(Error::Unsupported { .. })));
    assert_eq!(lease.to_vec().expect("a copy"), numbers(0, 10));
}

#[test]
fn a_forgotten_upload_keeps_its_memory_and_order() {
    let backend = backend();
    let manager = manager(&backend);
    let stream = Stream::new(&backend, 0).expect("a stream");
    let id = manager.create::<u32>("a", 1000, plain().with_async(true)).expect("room");
    let pinned = PinnedBuffer::<u32>::from_slice(Pinned::new(&backend, 0), &numbers(0, 1000)).expect("room");
    let mut lease = manager.lease_mut(id).expect("nobody else");
    std::mem::forget(lease.upload(&stream, pinned, 0).expect("queued"));
    backend.forgets();
    lease.resize(2000).expect("room");
    drop(lease);
    assert_eq!(manager.lease(id).expect("nobody else").slice(..1000).expect("live").to_vec().expect("a copy"), numbers(0, 1000));
    manager.free(id).expect("nobody has it");
    assert_eq!(manager.budget().used(), 0);
}

#[test]
fn a_freed_buffer_counts_until_its_queued_work_completes() {
    let backend = backend();
    let manager = MemoryManager::with_limit(Device::new(&backend, 0), 1 << 20);
    let stream = Stream::new(&backend, 0).expect("a stream");
    let id = manager.create::<u32>("a", 1000, plain().with_async(true)).expect("room");
    let held = crate::rig::busy_stream::Held::new(&backend, &stream);
    manager.lease_mut(id).expect("nobody else").fill_on(&stream, .., 1).expect("queued");
    manager.free(id).expect("nobody has a lease");
    assert_eq!((manager.budget().used(), backend.counters().device_live.bytes), (4000, 4000));
    assert!(!manager.can_allocate(manager.budget().limit() - 3999) && manager.can_allocate(manager.budget().limit() - 4000));
    held.let_go();
    stream.synchronize().expect("no fault");
    super::eventually("the block is freed", || backend.counters().device_live.bytes == 0);
    super::eventually("the bytes are let go", || manager.budget().used() == 0);
}

#[test]
fn pending_frees_do_not_block_the_next_allocation() {
    let clock = || {
        if thread::current().name().is_some_and(|name| name.starts_with("ringmem-")) {
            thread::sleep(Duration::from_millis(20));
        }
        0
    };
    let backend = Clean::build(HostBackend::builder().device_memory(1 << 20).log(true).clock(Arc::new(clock)));
    let stream = Stream::new(&backend, 0).expect("a stream");
    let manager = MemoryManager::with_limit(Device::new(&backend, 0), 4096);
    let limited = Limited::new(Device::new(&backend, 0), 4096);
    let is_over = || stream.synchronize().expect("it does not fail");
    let free = || {
        let id = manager.create::<u8>("one", 4096, plain().with_async(true)).expect("all of it");
        manager.lease_mut(id).expect("nobody else").fill_on(&stream, .., 1).expect("queued");
        manager.free(id).expect("nobody has it");
        is_over();
    };
    free();
    free();
    assert!(manager.can_allocate(4096));
    free();
    assert_eq!(manager.statistics().used_bytes, 0);
    let drop_limited = || {
        drop(stream.fill(Buffer::<u8, _>::new(limited.clone(), 4096).expect("all of it"), .., 1).expect("queued"));
        is_over();
    };
    drop_limited();
    drop_limited();
    assert_eq!(limited.used(), 0);
}
