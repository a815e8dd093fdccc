//! RMM's random benchmark: a nearly full heap.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::sync::{LazyLock, Mutex};

use ringmem_benches::{Random, Subject, Turn, Workload};

use super::cold_kinds::{BestFit, Heap, List, Nothing, Offset, Ours, UNIT};
use crate::host::each;

const LIVE: u64 = 100_000;
const LONGEST: u64 = 64 << 10;
const BYTES: u64 = (LIVE * (LONGEST + UNIT) / 2 * 100 / 97).next_multiple_of(2 << 20);
const FULL: u64 = BYTES / 100 * 97;
const BEFORE: u64 = 500_000;

struct Full<H: Heap> {
    heap: H,
    live: Vec<H::Part>,
    used: u64,
    next: u64,
    random: Random,
    refused: u64,
    asked: u64,
}

impl<H: Heap> Full<H> {
    fn new() -> Self {
        let (heap, live) = (H::new(BYTES, LIVE as usize), Vec::with_capacity(2 * LIVE as usize));
        let mut full = Self { heap, live, used: 0, next: 1, random: Random(7), refused: 0, asked: 0 };
        full.steps(LIVE + BEFORE);
        (full.refused, full.asked) = (0, 0);
        full
    }

    fn steps(&mut self, times: u64) {
        for _ in 0..times {
            let length = self.next.next_multiple_of(UNIT);
            if self.used + length > FULL {
                self.give();
                continue;
            }
            self.asked += 1;
            match self.heap.take(self.next) {
                Some(part) => {
                    self.live.push(part);
                    self.used += length;
                }
                None => {
                    self.refused += 1;
                    self.give();
                }
            }
            self.next = 1 + self.random.below(LONGEST);
        }
    }

    fn give(&mut self) {
        let index = self.random.index(&self.live);
        let part = self.live.swap_remove(index);
        self.used -= H::extent(&part).1.next_multiple_of(UNIT);
        self.heap.give(part);
    }

    fn check(&self) {
        let mut extents: Vec<_> = self.live.iter().map(H::extent).collect();
        extents.sort_unstable_by_key(|&(offset, _)| offset);
        assert!(extents.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0), "two blocks share bytes");
    }
}

fn with<H: Heap, R>(f: impl FnOnce(&mut Full<H>) -> R) -> R {
    static HEAPS: LazyLock<Mutex<HashMap<TypeId, Box<dyn Any + Send>>>> = LazyLock::new(Mutex::default);
    let mut heaps = HEAPS.lock().expect("no panic");
    let full = heaps.entry(TypeId::of::<H>()).or_insert_with(|| Box::new(Full::<H>::new()));
    f(full.downcast_mut().expect("of this kind"))
}

fn cold<H: Heap>(times: u64) -> f64 {
    with::<H, _>(|full| {
        let took = each(times, || full.steps(times));
        full.check();
        took
    })
}

fn refused<H: Heap>(times: u64) -> f64 {
    with::<H, _>(|full| {
        (full.refused, full.asked) = (0, 0);
        full.steps(times);
        full.refused as f64 * 1000.0 / full.asked as f64
    })
}

pub fn workloads() -> Vec<Workload> {
    let subjects: Vec<Subject> = vec![
        ("ringmem Pool, exact", cold::<Ours>),
        ("offset-allocator", cold::<Offset>),
        ("best fit, BTreeMap", cold::<BestFit>),
        ("RMM's list", cold::<List>),
    ];
    let limit = Some(cold::<Nothing> as Turn);
    vec![Workload { unit: "ns/operation", aim_ns: Some(60.0), limit, ..Workload::one("pool-cold-rmm", 1.0, subjects) }]
}

pub fn counted() -> Vec<Workload> {
    let subjects: Vec<Subject> = vec![
        ("ringmem Pool, exact", refused::<Ours>),
        ("offset-allocator", refused::<Offset>),
        ("best fit, BTreeMap", refused::<BestFit>),
        ("RMM's list", refused::<List>),
    ];
    vec![Workload { unit: "refused/1000", ..Workload::one("pool-cold-refused", 1.0, subjects) }]
}
