use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::thread;
use std::time::Duration;

use ringmem::backend::host::HostBackend;
use ringmem::manager::BufferId;
use ringmem::memory::Device;
use ringmem::stream::Stream;

use super::{LIMIT, Manager, backend, holding, is_empty, numbers, plain, read};
use crate::rig::busy_stream::Held;

const T: Duration = Duration::from_secs(60);

pub fn clocked(backend: &Arc<HostBackend>) -> (Manager, Arc<AtomicU64>) {
    let clock = Arc::new(AtomicU64::new(0));
    let shown = Arc::clone(&clock);
    (Manager::builder(Device::new(backend, 0)).clock(move || shown.load(Relaxed)).build(), clock)
}

type Hook = Arc<Mutex<Option<Box<dyn FnOnce() + Send>>>>;

fn set(hook: &Hook, work: impl FnOnce() + Send + 'static) {
    *hook.lock().expect("no panic") = Some(Box::new(work));
}

fn hooked(backend: &Arc<HostBackend>) -> (Manager, Hook) {
    let (manager, _, hook) = hooked_and_clocked(backend);
    (manager, hook)
}

fn hooked_and_clocked(backend: &Arc<HostBackend>) -> (Manager, Arc<AtomicU64>, Hook) {
    let (clock, hook) = (Arc::new(AtomicU64::new(0)), Hook::default());
    let (shown, work) = (Arc::clone(&clock), Arc::clone(&hook));
    let clocked = move || {
        let now = shown.load(Relaxed);
        let work = work.lock().expect("no panic").take();
        if let Some(work) = work {
            work();
        }
        now
    };
    (Manager::builder(Device::new(backend, 0)).clock(clocked).build(), clock, hook)
}

pub fn seconds(seconds: u64) -> u64 {
    seconds * 1_000_000_000
}

fn cleaned(manager: &Manager, idle: Duration) -> Vec<(String, u64)> {
    manager.cleanup(idle, |_| true).iter().map(|freed| (freed.name.to_string(), freed.capacity_bytes())).collect()
}

#[test]
fn cleanup_frees_only_buffers_idle_for_the_interval() {
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

enum At {
    Clock,
    Closure,
}

#[test]
fn cleanup_does_not_free_a_buffer_twice() {
    let backend = backend();
    for gives_up_at in [At::Clock, At::Closure] {
        let (manager, hook) = hooked(&backend);
        let id = holding(&manager, "old", &numbers(0, 100));
        let theirs = manager.clone();
        let give_up = move || assert!(matches!(theirs.free(id), Ok(0)));
        let freed = match gives_up_at {
            At::Clock => {
                set(&hook, give_up);
                manager.cleanup(Duration::ZERO, |_| true)
            }
            At::Closure => manager.cleanup(Duration::ZERO, |_| {
                give_up();
                true
            }),
        };
        assert_eq!(freed, []);
        assert!(!manager.contains(id));
        assert_eq!((manager.statistics().freed, manager.budget().used(), backend.counters().device_live.bytes), (1, 0, 0));
    }
}

#[test]
fn cleanup_can_select_by_utilisation() {
    let (manager, clock) = clocked(&backend());
    let full = manager.create::<u32>("full", 100, plain()).expect("room");
    let empty = manager.create::<u32>("empty", 0, plain().with_bytes(400, 400)).expect("room");
    clock.store(seconds(60), Relaxed);
    let freed = manager.cleanup(T, |buffer| buffer.utilisation() <= 0.5);
    assert_eq!(freed.iter().map(|freed| &*freed.name).collect::<Vec<_>>(), ["empty"]);
    assert!(manager.contains(full) && !manager.contains(empty));
}

#[test]
fn cleanup_keeps_leased_buffers() {
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

#[test]
fn cleanup_keeps_a_buffer_used_during_the_selection() {
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
fn cleanup_keeps_buffers_used_by_queued_work() {
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
fn a_read_is_dated_by_the_next_tick_and_a_write_by_its_end() {
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

#[test]
fn a_use_during_a_clock_read_is_not_dated_before_it() {
    let looks: [fn(&Manager); 3] =
        [Manager::tick, |manager| drop(manager.statistics()), |manager| assert_eq!(cleaned(manager, Duration::from_nanos(1)), [])];
    let backend = backend();
    for (k, look) in looks.into_iter().enumerate() {
        let (manager, clock, hook) = hooked_and_clocked(&backend);
        let id = holding(&manager, "a", &numbers(0, 10));
        drop(manager.lease(id).expect("nobody else"));
        let (theirs, later) = (manager.clone(), Arc::clone(&clock));
        set(&hook, move || {
            later.store(seconds(60), Relaxed);
            drop(theirs.lease(id).expect("nobody writes"));
        });
        look(&manager);
        assert_eq!(manager.statistics().buffers[0].idle, Duration::ZERO, "look {k}: it was used just now");
        clock.store(seconds(65), Relaxed);
        assert_eq!(manager.statistics().buffers[0].idle.as_secs(), 5, "look {k}");
    }
}

#[test]
fn an_earlier_tick_does_not_date_a_later_use() {
    let backend = backend();
    let (manager, clock, hook) = hooked_and_clocked(&backend);
    let id = holding(&manager, "a", &numbers(0, 10));
    drop(manager.lease(id).expect("nobody else"));
    let ((begun, has_begun), (go, may_go)) = (mpsc::channel(), mpsc::channel());
    set(&hook, move || {
        begun.send(()).expect("it listens");
        may_go.recv_timeout(LIMIT).expect("in time");
    });
    let theirs = manager.clone();
    let first = thread::spawn(move || theirs.tick());
    has_begun.recv_timeout(LIMIT).expect("in time");
    clock.store(seconds(60), Relaxed);
    drop(manager.lease(id).expect("nobody writes"));
    set(&hook, move || {
        go.send(()).expect("it listens");
        first.join().expect("no panic");
    });
    manager.tick();
    assert_eq!(manager.statistics().buffers[0].idle, Duration::ZERO, "it was used just now");
    clock.store(seconds(65), Relaxed);
    assert_eq!(manager.statistics().buffers[0].idle.as_secs(), 5);
}

#[test]
fn a_panicking_clock_leaves_the_use_to_the_next_tick() {
    let backend = backend();
    let (manager, clock, hook) = hooked_and_clocked(&backend);
    let id = holding(&manager, "a", &numbers(0, 10));
    drop(manager.lease(id).expect("nobody else"));
    set(&hook, || panic!("a clock that panics on purpose"));
    catch_unwind(AssertUnwindSafe(|| manager.tick())).expect_err("its clock's");
    clock.store(seconds(60), Relaxed);
    manager.tick();
    clock.store(seconds(65), Relaxed);
    assert_eq!(manager.statistics().buffers[0].idle.as_secs(), 5);
}

#[test]
fn cleanup_does_not_block_other_threads() {
    let backend = backend();
    let manager = Manager::new(Device::new(&backend, 0));
    let stream = Stream::new(&backend, 0).expect("a stream");
    let id = holding(&manager, "a", &numbers(0, 10));
    let held = Held::new(&backend, &stream);
    manager.lease_mut(id).expect("nobody else").used_by(&stream).expect("its backend's");
    let (is_done, theirs) = (Arc::new(AtomicBool::new(false)), manager.clone());
    let ends = Arc::clone(&is_done);
    let cleaner = thread::spawn(move || {
        while !ends.load(Relaxed) {
            assert_eq!(cleaned(&theirs, Duration::ZERO), []);
        }
    });
    let refused = (0..300_000).filter(|_| manager.lease(id).is_err()).count();
    is_done.store(true, Relaxed);
    cleaner.join().expect("in use, it stays");
    held.let_go();
    assert_eq!(refused, 0);
}

#[test]
fn a_buffer_can_be_leased_during_a_cleanup() {
    let backend = backend();
    let found = Arc::new(OnceLock::<(Manager, BufferId<u32>)>::new());
    let (asked, refused) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (theirs, counts) = (Arc::clone(&found), [Arc::clone(&asked), Arc::clone(&refused)]);
    let clock = move || {
        if let Some((manager, id)) = theirs.get() {
            counts[0].fetch_add(1, Relaxed);
            counts[1].fetch_add(u64::from(manager.lease(*id).is_err()), Relaxed);
        }
        0
    };
    let manager = Manager::builder(Device::new(&backend, 0)).clock(clock).build();
    let id = holding(&manager, "a", &numbers(0, 100));
    assert!(found.set((manager.clone(), id)).is_ok());
    let freed = manager.cleanup(Duration::ZERO, |_| manager.lease(id).is_ok());
    assert_eq!((freed.len(), refused.load(Relaxed)), (1, 0));
    assert!(asked.load(Relaxed) > 0);
}
