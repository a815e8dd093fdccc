use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use ringmem::cache::LruCache;

use crate::LIMIT;

fn cache<V: Clone>(capacity: usize) -> LruCache<u64, V> {
    LruCache::new(NonZeroUsize::new(capacity).expect("not 0"))
}

fn figures<V: Clone>(cache: &LruCache<u64, V>) -> (u64, u64, u64, usize) {
    let statistics = cache.statistics();
    (statistics.hits, statistics.misses, statistics.evictions, statistics.len)
}

#[test]
fn inserting_into_a_full_cache_evicts_the_oldest_entry() {
    let cache = cache(1000);
    for key in 0..1000 {
        assert_eq!(cache.get_or_insert_with(&key, |key| key * 2), key * 2);
    }
    assert_eq!(figures(&cache), (0, 1000, 0, 1000));
    assert_eq!(cache.get_or_insert_with(&0, |_| unreachable!()), 0, "used: the second is the oldest now");
    assert_eq!(cache.get_or_insert_with(&1000, |key| key * 2), 2000);
    assert_eq!(figures(&cache), (1, 1001, 1, 1000));
    assert!((0..=1000).all(|key| cache.contains(&key) == (key != 1)), "one, and the least recently used");
    assert!((cache.statistics().hit_rate() - 1.0 / 1002.0).abs() < 1e-12);
    assert_eq!(LruCache::<u8, u8>::new(NonZeroUsize::MIN).statistics().hit_rate(), 0.0);
}

#[test]
fn concurrent_requests_compute_a_key_once() {
    const THREADS: usize = 8;
    let (cache, computed, together) = (cache(10), AtomicUsize::new(0), Barrier::new(THREADS));
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                together.wait();
                let value = cache.get_or_insert_with(&7, |_| {
                    computed.fetch_add(1, Relaxed);
                    thread::sleep(Duration::from_millis(20));
                    "computed"
                });
                assert_eq!(value, "computed");
            });
        }
    });
    assert_eq!((computed.load(Relaxed), figures(&cache)), (1, (THREADS as u64 - 1, 1, 0, 1)));
}

#[test]
fn computing_one_key_does_not_block_another() {
    let (cache, is_inside, may_go) = (cache(10), AtomicUsize::new(0), AtomicUsize::new(0));
    let until = |flag: &AtomicUsize| {
        let begun = Instant::now();
        while flag.load(SeqCst) == 0 {
            assert!(begun.elapsed() < LIMIT, "not in time");
            thread::yield_now();
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            cache.get_or_insert_with(&1, |_| {
                is_inside.store(1, SeqCst);
                until(&may_go);
            })
        });
        until(&is_inside);
        cache.get_or_insert_with(&2, |_| ());
        assert!(cache.contains(&1) && cache.statistics().len == 2);
        may_go.store(1, SeqCst);
    });
}

#[test]
fn a_failed_or_panicked_computation_is_not_kept() {
    let cache = cache(2);
    assert_eq!(cache.get_or_try_insert_with(&1, |_| Err::<u8, _>("no")), Err("no"));
    assert_eq!((figures(&cache), cache.contains(&1)), ((0, 1, 0, 0), false));
    let panicked = catch_unwind(AssertUnwindSafe(|| cache.get_or_insert_with(&1, |_| panic!("on purpose"))));
    assert!(panicked.is_err());
    assert_eq!((figures(&cache), cache.contains(&1)), ((0, 2, 0, 0), false));
    assert_eq!(cache.get_or_try_insert_with(&1, |_| Ok::<_, ()>(5)), Ok(5));
    assert_eq!(cache.get_or_insert_with(&1, |_| unreachable!()), 5);
}

#[test]
fn a_value_whose_clone_panics_is_not_inserted() {
    static PANICS: AtomicBool = AtomicBool::new(true);
    #[derive(Debug, PartialEq)]
    struct Value(u8);
    impl Clone for Value {
        fn clone(&self) -> Self {
            assert!(!PANICS.load(Relaxed), "a clone that a test asked for");
            Self(self.0)
        }
    }
    let cache = cache(2);
    for _ in 0..2 {
        catch_unwind(AssertUnwindSafe(|| cache.get_or_insert_with(&1, |_| Value(5)))).expect_err("it is cloned");
        assert!(!cache.contains(&1));
    }
    PANICS.store(false, Relaxed);
    assert_eq!((cache.get_or_insert_with(&1, |_| Value(6)), figures(&cache)), (Value(6), (0, 3, 0, 1)));
    PANICS.store(true, Relaxed);
    catch_unwind(AssertUnwindSafe(|| cache.get_or_insert_with(&1, |_| unreachable!()))).expect_err("it is cloned");
    PANICS.store(false, Relaxed);
    assert_eq!(cache.get_or_insert_with(&1, |_| unreachable!()), Value(6), "what was there is still there");
}

#[test]
fn a_waiter_retries_after_a_failed_computation() {
    let (cache, tries) = (cache(2), AtomicUsize::new(0));
    thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    cache.get_or_try_insert_with(&1, |_| {
                        let number = tries.fetch_add(1, Relaxed);
                        thread::sleep(Duration::from_millis(10));
                        if number < 2 { Err(number) } else { Ok(number) }
                    })
                })
            })
            .collect();
        let outcomes: Vec<_> = threads.into_iter().map(|thread| thread.join().expect("no panic")).collect();
        assert_eq!(outcomes.iter().filter(|outcome| outcome.is_err()).count(), 2, "{outcomes:?}");
        assert_eq!(outcomes.iter().filter(|outcome| **outcome == Ok(2)).count(), 2, "{outcomes:?}");
    });
    assert_eq!((tries.load(Relaxed), cache.contains(&1)), (3, true));
}

fn rounds(failing: usize, is_there: bool) {
    const THREADS: usize = 4;
    let (cache, together) = (cache(2), Barrier::new(THREADS));
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (cache, together) = (&cache, &together);
            scope.spawn(move || {
                for round in 0..5000 {
                    together.wait();
                    let _ = cache.get_or_try_insert_with(&1, |_| {
                        if round % 2 == 0 {
                            thread::yield_now();
                        }
                        if thread < failing { Err(thread) } else { Ok(thread) }
                    });
                    together.wait();
                    assert_eq!(cache.contains(&1), is_there, "round {round}");
                    together.wait();
                    cache.remove(&1);
                }
            });
        }
    });
}

#[test]
fn concurrent_failed_computations_keep_nothing() {
    rounds(4, false);
}

#[test]
fn one_successful_computation_is_kept_among_failures() {
    rounds(3, true);
}

#[test]
fn an_unbounded_capacity_allocates_nothing_ahead() {
    let cache = LruCache::<u64, u64>::new(NonZeroUsize::MAX);
    assert_eq!((cache.get_or_insert_with(&1, |key| key + 1), figures(&cache)), (2, (0, 1, 0, 1)));
}

#[test]
fn a_hit_clones_no_key() {
    #[derive(PartialEq, Eq, Hash)]
    struct Key(u64);
    static CLONES: AtomicUsize = AtomicUsize::new(0);
    impl Clone for Key {
        fn clone(&self) -> Self {
            CLONES.fetch_add(1, Relaxed);
            Self(self.0)
        }
    }
    let cache: LruCache<Key, Arc<str>> = LruCache::new(NonZeroUsize::new(3).expect("not 0"));
    for _ in 0..10 {
        cache.get_or_insert_with(&Key(1), |_| "a long value".into());
    }
    assert_eq!(CLONES.load(Relaxed), 1, "when it was put in");
    assert!(cache.remove(&Key(1)) && !cache.remove(&Key(1)));
}

proptest! {
    #[test]
    fn random_operations_follow_a_list(capacity in 1..20_usize, keys in prop::collection::vec((0..30_u64, 0..10_u8), 0..400)) {
        let cache = cache(capacity);
        let (mut list, mut hits, mut evictions) = (Vec::new(), 0, 0);
        for (key, what) in keys {
            let place = list.iter().position(|&listed| listed == key);
            if what == 0 {
                prop_assert_eq!(cache.remove(&key), place.is_some());
                place.map(|place| list.remove(place));
                continue;
            }
            let mut computed = false;
            prop_assert_eq!(cache.get_or_insert_with(&key, |key| { computed = true; key + 1 }), key + 1);
            prop_assert_eq!(computed, place.is_none());
            match place {
                Some(place) => {
                    list.remove(place);
                    hits += 1;
                }
                None if list.len() == capacity => {
                    list.remove(0);
                    evictions += 1;
                }
                None => {}
            }
            list.push(key);
            prop_assert_eq!((cache.statistics().hits, cache.statistics().evictions, cache.statistics().len), (hits, evictions, list.len()));
            prop_assert!((0..30).all(|key| cache.contains(&key) == list.contains(&key)));
        }
    }
}
