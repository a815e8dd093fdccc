//! RMM's random benchmark, a nearly full heap: with its sizes, and with those of large tensors.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::marker::PhantomData;
use std::sync::{LazyLock, Mutex};

use ringmem::memory::Device;
use ringmem_benches::{Random, Subject, Turn, Workload};
use ringmem_layouts::ring::prefetch;

use super::cold_kinds::{Heap, List, Nothing, Numbers, Offset, Ours, Tree, UNIT};
use crate::host::each;

const LIVE: u64 = 100_000;
const BEFORE: u64 = 500_000;

/// Uniform sizes, both ends included.
trait Sizes: 'static {
    const SHORTEST: u64;
    const LONGEST: u64;
    const BYTES: u64 = (LIVE * (Self::SHORTEST + Self::LONGEST + UNIT) / 2 * 100 / 97).next_multiple_of(2 << 20);
    const FULL: u64 = Self::BYTES / 100 * 97;
}

struct Rmm;

impl Sizes for Rmm {
    const SHORTEST: u64 = 1;
    const LONGEST: u64 = 64 << 10;
}

/// Sizes that our pool does not cache.
struct Large;

impl Sizes for Large {
    const SHORTEST: u64 = (1 << 20) + 1;
    const LONGEST: u64 = 2 << 20;
}

/// As long for every subject: finding a random block misses the caches alike.
#[repr(align(128))]
struct Held<P>(P);

struct Full<H: Heap, S> {
    sizes: PhantomData<fn() -> S>,
    heap: H,
    live: Vec<Held<H::Part>>,
    /// The index of the next block to free. Its handle is prefetched, as if the program had just used the block.
    victim: usize,
    used: u64,
    next: u64,
    random: Random,
    refused: u64,
    asked: u64,
}

impl<H: Heap, S: Sizes> Full<H, S> {
    fn new() -> Self {
        let (heap, live) = (H::new(S::BYTES, LIVE as usize), Vec::with_capacity(2 * LIVE as usize));
        let mut full =
            Self { sizes: PhantomData, heap, live, victim: 0, used: 0, next: S::SHORTEST, random: Random(7), refused: 0, asked: 0 };
        full.steps(LIVE + BEFORE);
        (full.refused, full.asked) = (0, 0);
        full
    }

    fn steps(&mut self, times: u64) {
        for _ in 0..times {
            let length = self.next.next_multiple_of(UNIT);
            if self.used + length > S::FULL {
                self.give();
                continue;
            }
            self.asked += 1;
            match self.heap.take(self.next) {
                Some(part) => {
                    self.live.push(Held(part));
                    self.used += length;
                }
                None => {
                    self.refused += 1;
                    self.give();
                }
            }
            self.next = S::SHORTEST + self.random.below(S::LONGEST - S::SHORTEST + 1);
        }
    }

    fn give(&mut self) {
        let last = self.live.len() - 1;
        let Held(part) = self.live.swap_remove(self.victim.min(last));
        self.used -= H::extent(&part).1.next_multiple_of(UNIT);
        self.heap.give(part);
        self.victim = self.random.below(last.max(1) as u64) as usize;
        if let Some(next) = self.live.get(self.victim) {
            [0, 64].into_iter().for_each(|line| prefetch::<false>(core::ptr::from_ref(next).cast::<u8>().wrapping_add(line)));
        }
    }

    fn check(&self) {
        let mut extents: Vec<_> = self.live.iter().map(|Held(part)| H::extent(part)).collect();
        extents.sort_unstable_by_key(|&(offset, _)| offset);
        assert!(extents.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0), "two blocks share bytes");
    }
}

fn with<H: Heap, S: Sizes, R>(f: impl FnOnce(&mut Full<H, S>) -> R) -> R {
    static HEAPS: LazyLock<Mutex<HashMap<TypeId, Box<dyn Any + Send>>>> = LazyLock::new(Mutex::default);
    let mut heaps = HEAPS.lock().expect("no panic");
    let full = heaps.entry(TypeId::of::<Full<H, S>>()).or_insert_with(|| Box::new(Full::<H, S>::new()));
    f(full.downcast_mut().expect("of this kind"))
}

fn cold<H: Heap, S: Sizes>(times: u64) -> f64 {
    with::<H, S, _>(|full| {
        let took = each(times, || full.steps(times));
        full.check();
        took
    })
}

fn refused<H: Heap, S: Sizes>(times: u64) -> f64 {
    with::<H, S, _>(|full| {
        (full.refused, full.asked) = (0, 0);
        full.steps(times);
        full.refused as f64 * 1000.0 / full.asked as f64
    })
}

pub fn workloads() -> Vec<Workload> {
    let rmm: Vec<Subject> = vec![
        ("ringmem Pool, exact", cold::<Ours<Numbers>, Rmm>),
        ("offset-allocator", cold::<Offset, Rmm>),
        ("best fit, BTreeMap", cold::<Tree, Rmm>),
        ("RMM's list", cold::<List, Rmm>),
    ];
    let large: Vec<Subject> = vec![
        ("ringmem Pool", cold::<Ours<Device>, Large>),
        ("offset-allocator", cold::<Offset, Large>),
        ("best fit, BTreeMap", cold::<Tree, Large>),
    ];
    let workload = |name, aim_ns, limit: Turn, subjects| Workload {
        unit: "ns/operation",
        aim_ns: Some(aim_ns),
        limit: Some(limit),
        ..Workload::one(name, 1.0, subjects)
    };
    vec![workload("pool-cold-rmm", 60.0, cold::<Nothing, Rmm>, rmm), workload("pool-cold-large", 150.0, cold::<Nothing, Large>, large)]
}

pub fn counted() -> Vec<Workload> {
    let rmm: Vec<Subject> = vec![
        ("ringmem Pool, exact", refused::<Ours<Numbers>, Rmm>),
        ("offset-allocator", refused::<Offset, Rmm>),
        ("best fit, BTreeMap", refused::<Tree, Rmm>),
        ("RMM's list", refused::<List, Rmm>),
    ];
    let large: Vec<Subject> = vec![
        ("ringmem Pool", refused::<Ours<Device>, Large>),
        ("offset-allocator", refused::<Offset, Large>),
        ("best fit, BTreeMap", refused::<Tree, Large>),
    ];
    let workload = |name, subjects| Workload { unit: "refused/1000", ..Workload::one(name, 1.0, subjects) };
    vec![workload("pool-cold-refused", rmm), workload("pool-cold-large-refused", large)]
}
