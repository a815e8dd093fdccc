//! What is freed because nobody uses it, and what is not.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ringmem::backend::host::HostBackend;
use ringmem::manager::BufferId;
use ringmem::memory::Device;
use ringmem::stream::Stream;

use super::held::Held;
use super::{Manager, backend, holding, is_empty, numbers, plain, read};

const T: Duration = Duration::from_secs(60);

/// A manager, and the clock that it goes by.
pub fn clocked(backend: &Arc<HostBackend>) -> (Manager, Arc<AtomicU64>) {
    let clock = Arc::new(AtomicU64::new(0));
    let shown = Arc::clone(&clock);
    (Manager::builder(Device::new(backend, 0)).clock(move || shown.load(Relaxed)).build(), clock)
}

pub fn seconds(seconds: u64) -> u64 {
    seconds * 1_000_000_000
}

/// The names and bytes of what a cleanup freed.
fn cleaned(manager: &Manager, idle: Duration) -> Vec<(String, u64)> {
    manager.cleanup(idle, |_| true).iter().map(|freed| (freed.name.to_string(), freed.bytes)).collect()
}

#[test]
fn what_is_idle_for_so_long_is_freed_and_what_is_not_stays() {
    let backend = backend();
    let (manager, clock) = clocked(&backend);
    let old = holding(&manager, "old", &numbers(0, 100));
    let older = holding(&manager, "older", &numbers(0, 50));
    clock.store(seconds(1), Relaxed);
    let young = holding(&manager, "young", &numbers(0, 100));
    clock.store(seconds(60) - 1, Relaxed);
    assert_eq!(cleaned(&manager, T), []);
    clock.store(seconds(60), Relaxed);
    assert_eq!(cleaned(&manager, T), [("old".into(), 400), ("older".into(), 200)]);
    assert_eq!((manager.contains(old), manager.contains(older), read(&manager, young)), (false, false, numbers(0, 100)));
    assert_eq!((manager.budget().used(), backend.counters().device_live.bytes, manager.statistics().freed), (400, 400, 2));
    assert!(manager.create::<u32>("old", 1, plain()).is_ok(), "the name is free");
}

/// Whoever gives a buffer up while it is looked at has given it up, and it is counted once.
#[test]
fn what_another_gives_up_meanwhile_is_not_given_up_twice() {
    let backend = backend();
    let (found, looks) = (Arc::new(OnceLock::<(Manager, BufferId<u32>)>::new()), AtomicU64::new(0));
    let theirs = Arc::clone(&found);
    let clock = move || {
        // The second look of a cleanup has the buffer alone.
        if let Some((manager, id)) = theirs.get()
            && looks.fetch_add(1, Relaxed) == 1
        {
            assert!(matches!(manager.free(*id), Ok(1)));
        }
        seconds(60)
    };
    let manager = Manager::builder(Device::new(&backend, 0)).clock(clock).build();
    let id = holding(&manager, "old", &numbers(0, 100));
    assert!(found.set((manager.clone(), id)).is_ok());
    assert_eq!(cleaned(&manager, Duration::ZERO), []);
    assert!(!manager.contains(id));
    assert_eq!((manager.statistics().freed, manager.budget().used(), backend.counters().device_live.bytes), (1, 0, 0));
}

/// A buffer of which nobody ever said how much is used is not unused.
#[test]
fn only_who_decides_by_the_figures_decides_by_the_utilisation() {
    let (manager, clock) = clocked(&backend());
    let full = manager.create::<u32>("full", 100, plain()).expect("room");
    let empty = manager.create::<u32>("empty", 0, plain().with_bytes(400, 400)).expect("room");
    clock.store(seconds(60), Relaxed);
    let freed = manager.cleanup(T, |buffer| buffer.utilisation() <= 0.5);
    assert_eq!(freed.iter().map(|freed| &*freed.name).collect::<Vec<_>>(), ["empty"]);
    assert!(manager.contains(full) && !manager.contains(empty));
}

#[test]
fn what_is_leased_stays_however_old() {
    let backend = backend();
    let (manager, clock) = clocked(&backend);
    let ids = ["a", "b"].map(|name| holding(&manager, name, &numbers(0, 100)));
    let (reader, writer) = (manager.lease(ids[0]).expect("nobody else"), manager.lease_mut(ids[1]).expect("nobody else"));
    clock.store(seconds(600), Relaxed);
    assert_eq!(cleaned(&manager, T), []);
    assert_eq!((reader.to_vec().expect("a copy"), writer.to_vec().expect("a copy")), (numbers(0, 100), numbers(0, 100)));
    drop((reader, writer));
    assert_eq!(cleaned(&manager, T), [], "used until now");
    clock.store(seconds(660), Relaxed);
    assert_eq!(cleaned(&manager, T).len(), 2);
    assert!(is_empty(&backend));
}

/// The closure is between the look and the lease, where another thread could be.
#[test]
fn what_is_used_after_the_look_stays() {
    let (manager, clock) = clocked(&backend());
    let id = holding(&manager, "a", &numbers(0, 100));
    clock.store(seconds(60), Relaxed);
    let freed = manager.cleanup(T, |_| {
        drop(manager.lease(id).expect("nobody else"));
        true
    });
    assert_eq!((freed, read(&manager, id)), (vec![], numbers(0, 100)));
}

#[test]
fn what_something_queued_uses_stays_until_that_is_over() {
    let backend = backend();
    let (manager, clock) = clocked(&backend);
    let stream = Stream::new(&backend, 0).expect("a stream");
    let id = manager.create::<u32>("a", 100, plain().with_async(true)).expect("room");
    let held = Held::new(&backend, &stream);
    manager.lease_mut(id).expect("nobody else").fill_on(&stream, .., 7).expect("queued");
    clock.store(seconds(60), Relaxed);
    assert_eq!(cleaned(&manager, T), []);
    held.let_go();
    stream.synchronize().expect("no fault");
    assert_eq!(cleaned(&manager, T), [("a".into(), 400)]);
}

#[test]
fn a_read_is_dated_by_the_next_look_and_a_write_by_its_end() {
    let (manager, clock) = clocked(&backend());
    let id = holding(&manager, "a", &numbers(0, 10));
    let idle = || manager.statistics().buffers[0].idle.as_secs();
    clock.store(seconds(10), Relaxed);
    assert_eq!(idle(), 10);
    drop(manager.lease(id).expect("nobody else"));
    clock.store(seconds(20), Relaxed);
    manager.tick();
    clock.store(seconds(25), Relaxed);
    assert_eq!(idle(), 5, "since the tick");
    let mut lease = manager.lease_mut(id).expect("nobody else");
    clock.store(seconds(30), Relaxed);
    lease.push(1).expect("room");
    drop(lease);
    clock.store(seconds(50), Relaxed);
    assert_eq!((idle(), idle()), (20, 20), "a look is no use");
    assert!(manager.contains(id));
    assert_eq!(idle(), 20, "nor is that");
    assert_eq!(manager.statistics().buffers[0].age.as_secs(), 50);
}
