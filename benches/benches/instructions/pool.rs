use std::hint::black_box;

use ringmem_benches::Workload;

use crate::kinds::{Blocks, Buckets, List, Mimalloc, OurBuffers, Ours, Queue, acquire, release};

fn warm<K: Blocks, const BYTES: usize>(times: u64) -> f64 {
    let blocks = K::new(BYTES, 1);
    let blocks = black_box(&blocks);
    for mark in 0..times {
        let block = acquire(blocks, black_box(BYTES), mark);
        release(blocks, block, mark);
    }
    0.0
}

fn workload<const BYTES: usize>(name: &'static str) -> Workload {
    let subjects = vec![
        ("ringmem Pool", warm::<Ours, BYTES> as ringmem_benches::Turn),
        ("ringmem Buffer", warm::<OurBuffers, BYTES>),
        ("mutexed buckets", warm::<Buckets, BYTES>),
        ("mutexed list", warm::<List, BYTES>),
        ("crossbeam ArrayQueue", warm::<Queue, BYTES>),
        ("mimalloc", warm::<Mimalloc, BYTES>),
    ];
    Workload { unit: "instructions/block", ..Workload::one(name, 1.0, subjects) }
}

pub fn workloads() -> Vec<Workload> {
    vec![workload::<256>("pool-256"), workload::<65_536>("pool-64K"), workload::<100_000_000>("pool-100MB")]
}
