use super::*;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

fn table<V>() -> Arc<Slots<V>> {
    Arc::new(Slots::new(()))
}

fn put<V>(slots: &Slots<V>, value: V) -> Index {
    slots.insert(value).map_err(Rejected::into_error).expect("room")
}

fn id_error<T>(outcome: Result<T>) -> IdError {
    match outcome.map(drop) {
        Err(Error::Id(error)) => error,
        other => panic!("{other:?}"),
    }
}

struct Counted {
    number: usize,
    drops: Arc<AtomicUsize>,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.drops.fetch_add(1, Relaxed);
    }
}

#[test]
fn a_number_without_a_slot_is_unknown() {
    let slots = table::<u8>();
    assert_eq!(id_error(slots.share(Index { index: u32::MAX, generation: 1 })), IdError::Unknown { index: u32::MAX, slots: 0 });
}

#[test]
fn a_value_is_found_by_its_index_and_never_by_a_stale_one() {
    let slots = table();
    let mut old = Vec::new();
    for round in 0..10_u32 {
        let indices: Vec<Index> = (0..200).map(|number| put(&slots, (round, number))).collect();
        for (number, &index) in (0..).zip(&indices) {
            let lease = slots.share(index).expect("live");
            assert_eq!((*lease, lease.id(), slots.contains(index)), ((round, number), index, true));
        }
        for &index in &old {
            assert!(matches!(id_error(slots.share(index)), IdError::Stale { .. }), "{index:?}");
            assert!(!slots.contains(index));
        }
        assert!(slots.indices().eq((0..200).map(|index| Index { index, generation: round + 1 })));
        for index in indices {
            assert!(matches!(slots.remove(index), Ok(Removed::Value(_))));
            old.push(index);
        }
    }
    let counts = slots.counts();
    assert_eq!((counts.inserted, counts.removed, counts.freed, counts.retired), (2000, 2000, 2000, 0));
    assert_eq!(id_error(slots.share(Index::default())), IdError::Stale { index: 0, expected: 11, got: 0 });
    let never = Index { index: 5, generation: 11 };
    assert_eq!(id_error(slots.share(never)), IdError::Unknown { index: 5, slots: 200 }, "the next one's, that nobody has been given");
}

#[test]
fn insert_into_a_full_table_returns_the_value() {
    let slots = table();
    let first = put(&slots, 1);
    slots.vacancies().fresh = growing_table::MOST;
    let Rejected { error, value } = slots.insert(2).expect_err("none is left");
    assert!(matches!(error, Error::Id(IdError::Full { slots: growing_table::MOST })), "{error:?}");
    assert_eq!((value, slots.counts().inserted), (2, 1));
    assert!(matches!(slots.remove(first), Ok(Removed::Value(1))));
    assert_eq!(put(&slots, 3), Index { index: 0, generation: 2 }, "one is");
}

#[test]
fn a_slot_without_generations_is_retired() {
    let slots = table();
    let first = put(&slots, 1);
    assert!(matches!(slots.remove(first), Ok(Removed::Value(1))));
    slots.slots.get(0).expect("the first").gate.vacate(u32::MAX);
    let last = put(&slots, 2);
    assert_eq!(last, Index { index: 0, generation: u32::MAX });
    assert!(matches!(slots.remove(last), Ok(Removed::Value(2))));
    assert_eq!((put(&slots, 3).index, slots.counts().retired), (1, 1));
    assert!(matches!(id_error(slots.share(last)), IdError::Stale { expected: 0, .. }));
    assert_eq!(id_error(slots.share(Index::default())), IdError::Unknown { index: 0, slots: 2 });
}

#[test]
fn a_removed_value_is_dropped_with_its_last_lease() {
    let (slots, drops) = (table(), Arc::new(AtomicUsize::new(0)));
    let index = put(&slots, Counted { number: 7, drops: Arc::clone(&drops) });
    let (one, other) = (slots.share(index).expect("live"), slots.share(index).expect("live").into_owned());
    assert!(matches!(slots.exclusive(index), Err(Error::Busy { .. })));
    assert!(matches!(slots.remove(index), Ok(Removed::UnderLease(2))));
    assert_eq!(id_error(slots.share(index)), IdError::Released { index: 0, leases: 2 });
    assert_eq!(id_error(slots.remove(index)), IdError::Released { index: 0, leases: 2 });
    assert_eq!((one.number, slots.leases(), slots.counts().freed), (7, 2, 0));
    drop(one);
    assert_eq!((other.number, drops.load(Relaxed)), (7, 0), "one is left");
    thread::spawn(move || drop(other)).join().expect("no panic");
    assert_eq!((drops.load(Relaxed), slots.counts().freed, slots.leases()), (1, 1, 0));
    assert!(matches!(id_error(slots.share(index)), IdError::Stale { .. }));
}

#[test]
fn an_exclusive_lease_excludes_others_and_can_remove_the_value() {
    let slots = table();
    let index = put(&slots, 1);
    let mut alone = slots.exclusive(index).expect("live");
    *alone += 1;
    assert!(matches!((slots.share(index), slots.exclusive(index)), (Err(Error::Busy { .. }), Err(Error::Busy { .. }))));
    drop(alone);
    assert_eq!(*slots.share(index).expect("live"), 2);
    assert_eq!(slots.exclusive(index).expect("live").into_owned().remove().ok(), Some((2, true)));
    assert_eq!((slots.counts().removed, slots.counts().freed), (1, 1));
    // Removed meanwhile: the lease still gets the value, counted once.
    let index = put(&slots, 5);
    let alone = slots.exclusive(index).expect("live");
    assert!(matches!(slots.remove(index), Ok(Removed::UnderLease(1))));
    assert_eq!((alone.remove().ok(), slots.counts().removed, slots.counts().freed), (Some((5, false)), 2, 2));
    let index = put(&slots, 6);
    let alone = slots.exclusive(index).expect("live");
    assert!(matches!(slots.remove(index), Ok(Removed::UnderLease(1))));
    drop(alone);
    assert_eq!((slots.counts().freed, slots.contains(index)), (3, false));
}

#[test]
fn a_value_with_a_forgotten_lease_is_dropped_with_the_table() {
    let (slots, drops) = (table(), Arc::new(AtomicUsize::new(0)));
    let index = put(&slots, Counted { number: 0, drops: Arc::clone(&drops) });
    core::mem::forget(slots.share(index).expect("live"));
    assert!(matches!(slots.remove(index), Ok(Removed::UnderLease(1))));
    assert!(id_error(slots.share(index)) == IdError::Released { index: 0, leases: 1 });
    put(&slots, Counted { number: 1, drops: Arc::clone(&drops) });
    assert_eq!(drops.load(Relaxed), 0);
    drop(slots);
    assert_eq!(drops.load(Relaxed), 2);
}

#[test]
fn an_owned_lease_keeps_the_table() {
    let (slots, drops) = (table(), Arc::new(AtomicUsize::new(0)));
    let index = put(&slots, Counted { number: 3, drops: Arc::clone(&drops) });
    let lease = slots.share(index).expect("live").into_owned();
    drop(slots);
    assert_eq!((lease.number, drops.load(Relaxed)), (3, 0));
    drop(lease);
    assert_eq!(drops.load(Relaxed), 1);
}

fn during_a_move<R: Send>(slots: &Arc<Slots<i32>>, ask: impl FnOnce(Index) -> R + Send) -> R {
    let index = put(slots, 1);
    let mut moved = slots.briefly(index).expect("live");
    thread::scope(|scope| {
        let waiting = scope.spawn(move || ask(index));
        let deadline = Instant::now() + Duration::from_millis(20);
        while Instant::now() < deadline {
            assert!(!waiting.is_finished(), "it did not wait");
            thread::yield_now();
        }
        *moved = 2;
        drop(moved);
        waiting.join().expect("no panic")
    })
}

#[test]
fn share_waits_for_a_move() {
    let slots = table();
    assert_eq!(during_a_move(&slots, |index| slots.share(index).map(|lease| *lease)).expect("live"), 2);
}

#[test]
fn remove_waits_for_a_move_and_returns_the_value() {
    let slots = table();
    assert!(matches!(during_a_move(&slots, |index| slots.remove(index)).expect("live"), Removed::Value(2)));
    let moved = slots.briefly(put(&slots, 3)).expect("live");
    assert_eq!((moved.remove().ok(), slots.counts().removed, slots.counts().freed), (Some((3, true)), 2, 2));
}

#[test]
fn eight_threads_find_only_their_value_and_drop_each_once() {
    const THREADS: usize = 8;
    const TIMES: usize = 20_000;
    const KNOWN: usize = 64;
    let (slots, drops) = (table(), Arc::new(AtomicUsize::new(0)));
    let known: [AtomicU64; KNOWN] = [const { AtomicU64::new(0) }; KNOWN];
    let (next, removed, leased) = (AtomicUsize::new(1), AtomicUsize::new(0), AtomicUsize::new(0));
    let numbers: Mutex<std::collections::HashMap<Index, usize>> = Mutex::default();
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (slots, drops, known, next, removed, leased, numbers) = (&slots, &drops, &known, &next, &removed, &leased, &numbers);
            scope.spawn(move || {
                let mut random = thread as u64 + 1;
                for _ in 0..TIMES {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let place = &known[(random >> 33) as usize % KNOWN];
                    let index = Index::from_bits(place.load(Relaxed));
                    match random >> 60 {
                        0..2 => {
                            let number = next.fetch_add(1, Relaxed);
                            let index = put(slots, Counted { number, drops: Arc::clone(drops) });
                            numbers.lock().expect("no panic").insert(index, number);
                            let old = Index::from_bits(place.swap(index.bits(), Relaxed));
                            if old != Index::default() {
                                // Only threads with an earlier lookup can remove this index.
                                removed.fetch_add(usize::from(slots.remove(old).is_ok()), Relaxed);
                            }
                        }
                        2 => {
                            removed.fetch_add(usize::from(slots.remove(index).is_ok()), Relaxed);
                        }
                        3 => {
                            if let Ok(mut alone) = slots.exclusive(index) {
                                let number = alone.number;
                                alone.number = usize::MAX;
                                hint::spin_loop();
                                alone.number = number;
                            }
                        }
                        4 => {
                            let _ = slots.briefly(index).map(|mut moved| moved.number += 0);
                        }
                        _ => {
                            if let Ok(lease) = slots.share(index) {
                                let expected = numbers.lock().expect("no panic").get(&index).copied();
                                assert_eq!((Some(lease.number), lease.id()), (expected, index));
                                leased.fetch_add(1, Relaxed);
                            }
                        }
                    }
                }
            });
        }
    });
    let counts = slots.counts();
    assert!(leased.load(Relaxed) > 1000, "there was something to find");
    assert_eq!(counts.inserted as usize, next.load(Relaxed) - 1);
    assert_eq!(counts.removed as usize, removed.load(Relaxed));
    assert_eq!((counts.freed as usize, slots.leases()), (drops.load(Relaxed), 0));
    assert_eq!(counts.freed, counts.removed, "no lease is left");
    drop(slots);
    assert_eq!(drops.load(Relaxed) as u64, counts.inserted);
}

mod gate {
    use super::super::{Gate, Hold, Refusal};
    use crate::HostWord;

    fn open() -> Gate<HostWord> {
        let gate = Gate::vacant(7);
        gate.open(7);
        gate
    }

    #[test]
    fn shared_leases_are_counted_and_exclude_exclusive_ones() {
        let gate = open();
        assert_eq!((gate.share(7), gate.share(7), gate.leases()), (Ok(()), Ok(()), 2));
        assert_eq!(gate.hold(7, Hold::Lease), Err(Refusal::Taken(2)));
        assert_eq!((gate.leave(), gate.leave(), gate.leases()), (false, false, 0));
        assert_eq!(gate.hold(7, Hold::Lease), Ok(()));
        assert_eq!((gate.share(7), gate.hold(7, Hold::Move)), (Err(Refusal::Taken(0)), Err(Refusal::Taken(0))));
        assert_eq!((gate.let_go(Hold::Lease), gate.share(7)), (false, Ok(())));
    }

    #[test]
    fn a_move_makes_leases_wait() {
        let gate = open();
        assert_eq!(gate.hold(7, Hold::Move), Ok(()));
        assert_eq!((gate.share(7), gate.hold(7, Hold::Lease)), (Err(Refusal::Moving), Err(Refusal::Moving)));
        assert_eq!((gate.let_go(Hold::Move), gate.share(7)), (false, Ok(())));
    }

    #[test]
    fn leave_returns_true_for_the_last_lease_after_close() {
        let gate = open();
        assert_eq!((gate.share(7), gate.share(7), gate.close(7)), (Ok(()), Ok(()), Ok(2)));
        assert_eq!((gate.share(7), gate.close(7)), (Err(Refusal::Closed(2)), Err(Refusal::Closed(2))));
        assert_eq!((gate.leave(), gate.leave()), (false, true));
        let gate = self::open();
        assert_eq!((gate.hold(7, Hold::Lease), gate.close(7), gate.let_go(Hold::Lease)), (Ok(()), Ok(1), true));
        let gate = self::open();
        assert_eq!((gate.close(7), gate.leases()), (Ok(0), 0));
    }

    #[test]
    fn another_generation_is_rejected_and_changes_nothing() {
        let gate = open();
        for stale in [0, 6, 8, u32::MAX] {
            assert_eq!(gate.share(stale), Err(Refusal::Stale(7)));
            assert_eq!(gate.hold(stale, Hold::Lease), Err(Refusal::Stale(7)));
            assert_eq!(gate.close(stale), Err(Refusal::Stale(7)));
        }
        assert_eq!((gate.leases(), gate.close(7)), (0, Ok(0)));
        gate.vacate(8);
        assert_eq!((gate.share(8), gate.open_generation()), (Err(Refusal::Stale(8)), None), "empty");
        gate.open(8);
        assert_eq!((gate.share(7), gate.share(8), gate.open_generation()), (Err(Refusal::Stale(8)), Ok(()), Some(8)));
    }
}

mod model {
    use super::super::{Gate, Hold, Refusal};
    use crate::SlotCell;
    use crate::loom_machine::{LoomCell, LoomWord, RMW_RELAXED, STRONG, Side, WRITER_PUBLISHES_RELAXED, check, must_fail, take_side};
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    use loom::thread;

    const GENERATION: u32 = 3;
    const RACE: &str = "Causality violation";
    const PREEMPTIONS: usize = 3;

    struct Scene<const WEAK: u8> {
        gate: Gate<LoomWord<WEAK>>,
        value: LoomCell<u64>,
        reclaimed: AtomicUsize,
    }

    impl<const WEAK: u8> Scene<WEAK> {
        fn new() -> Arc<Self> {
            let gate = Gate::vacant(GENERATION);
            gate.open(GENERATION);
            Arc::new(Self { gate, value: LoomCell::new(7), reclaimed: AtomicUsize::new(0) })
        }

        fn reclaim(&self) {
            self.reclaimed.fetch_add(1, Relaxed);
            // SAFETY: the model checks this access.
            self.value.with_mut(|value| unsafe { *value = 0 });
            self.gate.vacate(GENERATION + 1);
        }

        fn read(&self) {
            if self.gate.share(GENERATION).is_ok() {
                // SAFETY: the model checks this access.
                let read = self.value.with(|value| unsafe { *value });
                assert!(read >= 7, "what was reclaimed was read");
                if self.gate.leave() {
                    self.reclaim();
                }
            }
        }

        fn write(&self, hold: Hold) {
            if self.gate.hold(GENERATION, hold).is_ok() {
                // SAFETY: the model checks this access.
                self.value.with_mut(|value| unsafe { *value += 1 });
                if self.gate.let_go(hold) {
                    self.reclaim();
                }
            }
        }

        fn remove(&self) {
            let mut closed = self.gate.close(GENERATION);
            while closed == Err(Refusal::Moving) {
                thread::yield_now();
                closed = self.gate.close(GENERATION);
            }
            if closed == Ok(0) {
                self.reclaim();
            }
        }
    }

    fn race<const WEAK: u8, const N: usize>(scene: &Arc<Scene<WEAK>>, others: [fn(&Scene<WEAK>); N], here: fn(&Scene<WEAK>)) {
        let threads = others.map(|other| {
            let scene = Arc::clone(scene);
            thread::spawn(move || other(&scene))
        });
        here(scene);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }

    fn readers_and_a_remover<const WEAK: u8>() {
        let scene = Scene::<WEAK>::new();
        race(&scene, [Scene::read, Scene::read], Scene::remove);
        assert_eq!(scene.reclaimed.load(Relaxed), 1);
    }

    fn a_reader_a_writer_and_a_remover<const WEAK: u8>() {
        let scene = Scene::<WEAK>::new();
        race(&scene, [Scene::read, |scene| scene.write(Hold::Move)], Scene::remove);
        assert_eq!(scene.reclaimed.load(Relaxed), 1);
    }

    fn a_reader_and_two_writers<const WEAK: u8>() {
        race(&Scene::<WEAK>::new(), [Scene::read, |scene| scene.write(Hold::Lease)], |scene| scene.write(Hold::Move));
    }

    fn two_removers<const WEAK: u8>() {
        let scene = Scene::<WEAK>::new();
        race(&scene, [Scene::remove], Scene::remove);
        assert_eq!(scene.reclaimed.load(Relaxed), 1);
    }

    /// The reader has the index from a message without ordering.
    fn a_filler_and_a_reader<const WEAK: u8>() {
        let gate = Gate::vacant(GENERATION);
        let scene = Arc::new(Scene::<WEAK> { gate, value: LoomCell::new(0), reclaimed: AtomicUsize::new(0) });
        let fill = |scene: &Scene<WEAK>| {
            take_side(Side::Writer);
            // SAFETY: the model checks this access.
            scene.value.with_mut(|value| unsafe { *value = 8 });
            scene.gate.open(GENERATION);
        };
        race(&scene, [fill], Scene::read);
    }

    #[test]
    fn a_value_is_reclaimed_once_and_never_under_a_lease() {
        check(PREEMPTIONS, readers_and_a_remover::<STRONG>);
        check(PREEMPTIONS, a_reader_a_writer_and_a_remover::<STRONG>);
        check(PREEMPTIONS, two_removers::<STRONG>);
    }

    #[test]
    fn an_exclusive_lease_excludes_all_others() {
        check(PREEMPTIONS, a_reader_and_two_writers::<STRONG>);
    }

    #[test]
    fn an_open_slot_is_filled() {
        check(PREEMPTIONS, a_filler_and_a_reader::<STRONG>);
    }

    #[test]
    fn relaxed_lease_returns_race() {
        must_fail(RACE, PREEMPTIONS, readers_and_a_remover::<RMW_RELAXED>);
        must_fail(RACE, PREEMPTIONS, a_reader_a_writer_and_a_remover::<RMW_RELAXED>);
        must_fail(RACE, PREEMPTIONS, a_reader_and_two_writers::<RMW_RELAXED>);
    }

    #[test]
    fn a_relaxed_open_races() {
        must_fail(RACE, PREEMPTIONS, a_filler_and_a_reader::<WRITER_PUBLISHES_RELAXED>);
    }
}

#[test]
#[cfg(target_os = "linux")]
fn dropping_the_last_lease_in_a_fork_does_not_block() {
    for exclusive in [false, true] {
        let slots = table();
        let drops = Arc::new(AtomicUsize::new(0));
        let index = put(&slots, Counted { number: 0, drops: Arc::clone(&drops) });
        let leases = if exclusive {
            (None, Some(slots.exclusive(index).expect("live").into_owned()))
        } else {
            (Some(slots.share(index).expect("live").into_owned()), None)
        };
        assert!(matches!(slots.remove(index), Ok(Removed::UnderLease(1))));
        // A thread that does not exist in the child held it at the fork.
        let vacancies = slots.vacancies();
        // SAFETY: the child has only this thread, drops a lease (the test), and exits without destructors.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0, "no fork");
        if pid == 0 {
            // SAFETY: ends a child that never returns.
            unsafe { libc::alarm(30) };
            drop(leases);
            // SAFETY: ends the child.
            unsafe { libc::_exit(drops.load(Relaxed) as i32) };
        }
        let mut status = 0;
        // SAFETY: our child, and a place for its status.
        assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
        assert_eq!(status, 0, "it waits for a lock, or drops what is the other's");
        drop(vacancies);
        drop(leases);
        assert_eq!(drops.load(Relaxed), 1, "here it goes");
    }
}
