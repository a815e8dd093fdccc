use ringmem_benches::{Turn, Workload};

use super::kinds::{Blocks, Direct, Ours, acquire, release};
use crate::host::each;

const MB: usize = 1_000_000;
const HUNDRED: usize = 100;

fn one_by_one<K: Blocks, const BYTES: usize, const MOST: u64>(times: u64) -> f64 {
    let blocks = K::new(BYTES, 1);
    let times = times.min(MOST);
    each(times, || {
        for mark in 0..times {
            let block = acquire(&blocks, BYTES, mark);
            release(&blocks, block, mark);
        }
    })
}

fn hundreds<K: Blocks, const MOST: u64>(times: u64) -> f64 {
    let blocks = &K::new(MB, HUNDRED);
    let times = times.min(MOST);
    let mut held = Vec::with_capacity(HUNDRED);
    each(times, move || {
        for mark in 0..times {
            held.extend((0..HUNDRED).map(|_| acquire(blocks, MB, mark)));
            held.drain(..).for_each(|block| release(blocks, block, mark));
        }
    })
}

pub fn workloads() -> Vec<Workload> {
    let one = |name, aim, ours: Turn, direct: Turn| {
        let subjects = vec![("ringmem Pool", ours), ("mmap, populated, munmap", direct)];
        Workload { unit: "ns/block", ..Workload::one(name, aim, subjects) }
    };
    vec![
        one("pool-vs-direct-1MB", 1.0 / 11.1, one_by_one::<Ours, MB, { u64::MAX }>, one_by_one::<Direct, MB, 20>),
        one("pool-vs-direct-10MB", 1.0 / 43.8, one_by_one::<Ours, { 10 * MB }, { u64::MAX }>, one_by_one::<Direct, { 10 * MB }, 4>),
        one("pool-vs-direct-100MB", 1.0 / 352.0, one_by_one::<Ours, { 100 * MB }, { u64::MAX }>, one_by_one::<Direct, { 100 * MB }, 1>),
        Workload { unit: "ns/100 blocks", ..one("pool-vs-direct-100x", 1.0 / 9.8, hundreds::<Ours, { u64::MAX }>, hundreds::<Direct, 1>) },
    ]
}
