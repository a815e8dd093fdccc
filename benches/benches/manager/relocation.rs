use std::hint::black_box;
use std::time::{Duration, Instant};

use ringmem::backend::host::HostBackend;
use ringmem::manager::MemoryManager;
use ringmem::memory::{Buffer, Device};
use ringmem::pool::Pool;
use ringmem_benches::{Workload, job, team};

const MIB: usize = 1 << 20;
const BLOCKS: usize = 16;
const MOVED: usize = BLOCKS / 4;
const KIBS: u64 = (MOVED * MIB) as u64 >> 10;

fn rounds(kibs: u64, mut round: impl FnMut() -> Duration + Send) -> f64 {
    let rounds = kibs.div_ceil(KIBS);
    let mut took = Duration::ZERO;
    let work = job(|| (0..rounds).for_each(|_| took += round()));
    team(kibs, vec![(Some(0), work)]);
    took.as_nanos() as f64 / (rounds * KIBS) as f64
}

fn defragment(kibs: u64) -> f64 {
    let backend = HostBackend::builder().device_memory(64 << 20).build().expect("a backend");
    let bytes = (BLOCKS * MIB) as u64;
    let pool = Pool::builder(Device::new(&backend, 0)).slab(bytes).limit(bytes).build().expect("a pool");
    rounds(kibs, || {
        let manager = MemoryManager::new(pool.clone());
        let ids: Vec<_> = (0..BLOCKS)
            .map(|number| {
                let mut buffer = Buffer::<u8, _>::new(pool.clone(), MIB).expect("room");
                buffer.fill(number as u8).expect("live");
                manager.register(buffer).expect("room")
            })
            .collect();
        let mut placed: Vec<_> = ids.iter().map(|&id| (manager.lease(id).expect("live").device_address(), id)).collect();
        placed.sort_unstable_by_key(|&(address, _)| address);
        placed.iter().skip(1).step_by(2).for_each(|&(_, id)| assert_eq!(manager.free(id).expect("live"), 0));
        let begun = Instant::now();
        let done = manager.defragment().expect("no failure");
        let took = begun.elapsed();
        assert_eq!((done.moved as usize, done.copied_bytes as usize), (MOVED, MOVED * MIB));
        for (number, id) in ids.iter().enumerate().filter(|&(_, &id)| manager.contains(id)) {
            let ends = manager.lease(*id).expect("live").slice(MIB - 1..).expect("within").to_vec().expect("live");
            assert_eq!(ends, [number as u8]);
        }
        took
    })
}

fn copied(kibs: u64) -> f64 {
    let mut slab = vec![1_u8; BLOCKS * MIB];
    rounds(kibs, || {
        slab.chunks_mut(MIB).zip(0..).for_each(|(block, number)| block.fill(number));
        let begun = Instant::now();
        for pair in 0..MOVED {
            let (from, to) = (BLOCKS - 2 - 2 * pair, 1 + 2 * pair);
            let (low, high) = slab.split_at_mut(from * MIB);
            low[to * MIB..(to + 1) * MIB].copy_from_slice(black_box(&high[..MIB]));
        }
        let took = begun.elapsed();
        black_box(&slab);
        took
    })
}

pub fn workloads() -> Vec<Workload> {
    vec![Workload { unit: "ns/KiB", ..Workload::one("defragment", 1.5, vec![("ringmem MemoryManager", defragment), ("memcpy", copied)]) }]
}
