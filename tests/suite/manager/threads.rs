use std::alloc::Layout;
use std::mem::forget;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::thread;

use ringmem::backend::{Backend, Block, Uses};
use ringmem::manager::MemoryManager;
use ringmem::memory::{Device, DeviceOnly, Memory};
use ringmem::stream::Stream;
use ringmem::{Error, Result};

use super::{LIMIT, backend, holding, is_empty, manager, numbers, plain, read};

#[test]
fn managers_and_leases_are_send_and_sync() {
    fn shared<T: Send + Sync + 'static>() {}
    shared::<MemoryManager<Device>>();
    shared::<ringmem::manager::Lease<'static, u32, Device>>();
}

#[test]
fn ten_threads_create_resize_and_free_their_own_buffers() {
    let backend = backend();
    let manager = Arc::new(manager(&backend));
    let shared = holding(&manager, "shared", &numbers(0, 100));
    let threads: Vec<_> = (0..10_u32)
        .map(|thread| {
            let manager = Arc::clone(&manager);
            thread::spawn(move || {
                for round in 0..100_u32 {
                    let name = format!("thread {thread}, {}", round % 7);
                    let len = (round % 50 + 1) as usize;
                    let id = manager.create::<u32>(&name, len, plain()).expect("room");
                    assert_eq!(manager.find::<u32>(&name).expect("just created"), id);
                    let mut lease = manager.lease_mut(id).expect("its own");
                    let own = numbers(thread * 1000 + round, len);
                    lease.view_mut().copy_from(&own).expect("a copy");
                    lease.extend_from_slice(&own).expect("room");
                    drop(lease);
                    manager.resize_group([(id.into(), len * 3)]).expect("room");
                    let found = read(&manager, id);
                    assert_eq!((&found[..len], &found[len..len * 2]), (&own[..], &own[..]));
                    assert_eq!(read(&manager, shared), numbers(0, 100));
                    assert_eq!(manager.free(id).expect("its own"), 0);
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    let figures = manager.statistics();
    assert_eq!((figures.created, figures.freed, figures.buffers.len(), figures.used_bytes), (1001, 1000, 1, 400));
    drop(manager);
    assert!(is_empty(&backend));
}

#[test]
fn one_of_eight_threads_creates_a_name() {
    let manager = Arc::new(manager(&backend()));
    for round in 0..50 {
        let name = format!("{round}");
        let created = thread::scope(|scope| {
            let create = || match manager.create::<u32>(&name, 10, plain()) {
                Ok(_) => 1,
                Err(Error::AlreadyExists { .. }) => 0,
                Err(other) => panic!("{other}"),
            };
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(create)).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).sum::<u32>()
        });
        assert_eq!((created, manager.budget().used()), (1, 40 * (round + 1)));
    }
}

type Halt = (Sender<()>, Receiver<()>);

#[derive(Clone)]
struct Halting {
    below: Device,
    halt: Arc<Mutex<Option<Halt>>>,
}

// SAFETY: the other memory's blocks.
unsafe impl Memory for Halting {
    type Visibility = DeviceOnly;

    fn alloc(&self, layout: Layout, on: Option<&Stream>) -> Result<Block> {
        let halt = self.halt.lock().expect("no panic").take();
        if let Some((begun, go_on)) = halt {
            begun.send(()).expect("the test waits");
            go_on.recv_timeout(LIMIT).expect("in time");
        }
        self.below.alloc(layout, on)
    }
    unsafe fn free(&self, block: &Block, uses: &Uses) -> Result<()> {
        // SAFETY: the caller promises that the block is of this memory and freed once, with its uses; blocks are the other memory's,
        // unchanged.
        unsafe { self.below.free(block, uses) }
    }
    fn backend(&self) -> &Arc<dyn Backend> {
        self.below.backend()
    }
    fn device(&self) -> u32 {
        self.below.device()
    }
}

#[test]
fn a_blocked_allocation_does_not_block_other_buffers() {
    let backend = backend();
    let halt = Arc::new(Mutex::new(None));
    let manager = MemoryManager::new(Halting { below: Device::new(&backend, 0), halt: Arc::clone(&halt) });
    let ids: Vec<_> = (0..32).map(|k| manager.create::<u32>(&format!("{k}"), 10, plain()).expect("room")).collect();
    let halted = |work: &(dyn Fn() + Sync)| {
        let ((begun, has_begun), (go_on, may_go_on)) = (mpsc::channel(), mpsc::channel());
        *halt.lock().expect("no panic") = Some((begun, may_go_on));
        thread::scope(|scope| {
            scope.spawn(work);
            has_begun.recv_timeout(LIMIT).expect("in time");
            for (k, &id) in ids.iter().enumerate().skip(1) {
                assert_eq!(manager.find::<u32>(&format!("{k}")).expect("it is there"), id);
                assert_eq!(manager.lease(id).expect("nobody else").len(), 10);
                manager.lease_mut(id).expect("nobody else").extend_from_slice(&[7; 10]).expect("room");
                manager.resize_group([(id.into(), 10)]).expect("it is there");
                manager.lease_mut(id).expect("nobody else").shrink_to_fit().expect("room");
                let other = manager.create::<u32>(&format!("other {k}"), 10, plain()).expect("room");
                manager.free(other).expect("nobody has it");
            }
            assert_eq!(manager.statistics().buffers.len(), 32);
            assert_eq!(manager.cleanup(LIMIT, |_| true), []);
            go_on.send(()).expect("it waits");
        });
    };
    halted(&|| {
        let id = manager.create::<u32>("new", 10, plain()).expect("room");
        manager.free(id).expect("nobody has it");
    });
    halted(&|| manager.lease_mut(ids[0]).expect("nobody else").resize(1000).expect("room"));
    assert_eq!(manager.lease(ids[0]).expect("nobody else").len(), 1000);
}

#[test]
fn a_name_is_found_only_after_its_creation_completes() {
    let backend = backend();
    let ((begun, has_begun), (go_on, may_go_on)) = (mpsc::channel(), mpsc::channel());
    let halt = Arc::new(Mutex::new(Some((begun, may_go_on))));
    let manager = MemoryManager::new(Halting { below: Device::new(&backend, 0), halt });
    let get = || manager.get_or_create::<u32>("a", 10, plain());
    thread::scope(|scope| {
        let creating = scope.spawn(get);
        has_begun.recv_timeout(LIMIT).expect("in time");
        assert!(matches!(
            (get(), manager.find::<u32>("a")),
            (Err(Error::AlreadyExists { .. }), Err(Error::NotFound { what: "buffer", .. }))
        ));
        go_on.send(()).expect("it waits");
        let id = creating.join().expect("no panic").expect("room");
        assert_eq!((get().expect("it is there"), manager.find::<u32>("a").expect("it is there")), (id, id));
    });
    assert_eq!(manager.budget().used(), 40);
}

#[test]
fn an_owned_lease_outlives_the_manager_on_another_thread() {
    let backend = backend();
    let manager = manager(&backend);
    let id = holding(&manager, "a", &numbers(0, 100));
    let lease = manager.lease(id).expect("nobody else").into_owned();
    assert!(matches!(manager.lease_mut(id), Err(Error::Busy { .. })));
    drop(manager);
    assert_eq!(thread::spawn(move || lease.to_vec().expect("a copy")).join().expect("no panic"), numbers(0, 100));
    assert!(is_empty(&backend));
}

#[test]
fn a_panicking_memory_leaves_the_manager_unchanged() {
    let backend = backend();
    let halt = Arc::new(Mutex::new(None));
    let manager = MemoryManager::new(Halting { below: Device::new(&backend, 0), halt: Arc::clone(&halt) });
    let ids = ["a", "b"].map(|name| manager.create::<u32>(name, 10, plain()).expect("room"));
    for id in ids {
        manager.lease_mut(id).expect("nobody else").view_mut().copy_from(&numbers(7, 10)).expect("a copy");
    }
    let stream = Stream::new(&backend, 0).expect("a stream");
    let calls: [&dyn Fn() -> Result<()>; 5] = [
        &|| manager.create::<u32>("c", 10, plain()).map(drop),
        &|| manager.lease_mut(ids[0])?.resize(100),
        &|| manager.lease_mut(ids[0])?.push(1),
        &|| manager.resize_group(ids.map(|id| (id.into(), 100))),
        &|| manager.resize_group_on(ids.map(|id| (id.into(), 100)), &stream),
    ];
    for call in calls {
        *halt.lock().expect("no panic") = Some((mpsc::channel().0, mpsc::channel().1));
        catch_unwind(AssertUnwindSafe(call)).map(drop).expect_err("nobody waits");
        let figures = manager.statistics();
        assert_eq!((figures.buffers.len(), figures.used_bytes, figures.other_bytes()), (2, 80, 0));
        for id in ids {
            let lease = manager.lease_mut(id).expect("nobody else");
            assert_eq!((lease.capacity(), lease.to_vec().expect("a copy")), (10, numbers(7, 10)));
        }
        assert_eq!(backend.counters().device_live.bytes, 80);
    }
    manager.create::<u32>("c", 10, plain()).expect("the name is free");
}

#[test]
fn a_forgotten_lease_keeps_only_its_buffer() {
    let backend = backend();
    let manager = manager(&backend);
    let ids = ["a", "b"].map(|name| holding(&manager, name, &numbers(0, 10)));
    forget(manager.lease_mut(ids[0]).expect("nobody else"));
    forget(manager.lease(ids[1]).expect("nobody else"));
    assert!(matches!(manager.lease(ids[0]), Err(Error::Busy { .. })));
    assert!(matches!(manager.resize_group(ids.map(|id| (id.into(), 20))), Err(Error::Busy { .. })));
    assert_eq!(read(&manager, ids[1]), numbers(0, 10));
    assert!(manager.cleanup(std::time::Duration::ZERO, |_| true).is_empty());
    assert_eq!(ids.map(|id| manager.free(id).expect("it is there")), [1, 1]);
    assert_eq!((manager.statistics().buffers.len(), manager.budget().used()), (0, 80));
    holding(&manager, "a", &numbers(5, 10));
    drop(manager);
    assert!(is_empty(&backend), "they go with the manager");
}
