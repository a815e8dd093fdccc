use std::hint::black_box;
use std::sync::Arc;

use crossbeam_queue::ArrayQueue;
use ringmem::memory::Buffer;
use ringmem_benches::{Turn, Workload, job, team, two_threads};

use super::kinds::{Blocks, Buckets, List, Mimalloc, OurBuffers, Ours, Queue, Ringkernel, acquire, release};
use crate::host::each;

const BYTES: usize = 4096;
const LOT: usize = 64;
const LOTS: usize = 16;

fn pairs<K: Blocks>(blocks: &K, bytes: usize, times: u64) {
    for mark in 0..times {
        let block = acquire(blocks, black_box(bytes), mark);
        release(blocks, block, mark);
    }
}

fn warm<K: Blocks, const BYTES: usize>(times: u64) -> f64 {
    let blocks = K::new(BYTES, 1);
    each(times, || pairs(&blocks, BYTES, times))
}

/// Not moved: a move reads 16 bytes at once, and waits for stores of 8.
fn in_place<const BYTES: usize>(times: u64) -> f64 {
    let OurBuffers(pool) = OurBuffers::new(BYTES, 1);
    each(times, || {
        for mark in 0..times {
            let mut buffer = Buffer::<u64, _>::new(pool.clone(), black_box(BYTES / 8)).expect("room");
            // SAFETY: the first of at least 32 words.
            unsafe { buffer.as_mut_slice().expect("idle").as_mut_ptr().write_volatile(mark) };
            // SAFETY: the first of at least 32 words, written above.
            assert_eq!(unsafe { buffer.as_mut_slice().expect("idle").as_ptr().read_volatile() }, mark, "another's block");
        }
    })
}

fn two<K: Blocks>(times: u64) -> f64 {
    let blocks = &K::new(BYTES, 4);
    let half = || job(move || pairs(blocks, BYTES, times.div_ceil(2)));
    team(times, vec![(Some(0), half()), (Some(1), half())])
}

fn two_handles(times: u64) -> f64 {
    let OurBuffers(pool) = OurBuffers::new(BYTES, 4);
    let half = || {
        let handle = Arc::new(pool.clone());
        job(move || {
            for mark in 0..times.div_ceil(2) {
                let mut buffer = Buffer::<u64, _>::new(Arc::clone(&handle), black_box(BYTES / 8)).expect("room");
                buffer.as_mut_slice().expect("idle")[0] = mark;
                assert_eq!(black_box(&buffer).as_slice().expect("idle")[0], mark, "another's block");
            }
        })
    };
    team(times, vec![(Some(0), half()), (Some(1), half())])
}

fn foreign<K: Blocks>(times: u64) -> f64 {
    let blocks = &K::new(BYTES, (LOTS + 2) * LOT);
    hand_over(times, |mark| acquire(blocks, black_box(BYTES), mark), |block, mark| release(blocks, block, mark))
}

fn handed_over(times: u64) -> f64 {
    hand_over(times, |mark| mark, |block, mark| assert_eq!(block, mark))
}

fn hand_over<B: Send>(times: u64, take: impl Fn(u64) -> B + Sync, give: impl Fn(B, u64) + Sync) -> f64 {
    let (full, empty) = (ArrayQueue::<Vec<B>>::new(LOTS), ArrayQueue::new(LOTS));
    for _ in 0..LOTS {
        let _ = empty.push(Vec::with_capacity(LOT));
    }
    let wait = |queue: &ArrayQueue<Vec<B>>| {
        let mut tries = 0_u32;
        loop {
            if let Some(lot) = queue.pop() {
                return lot;
            }
            tries += 1;
            if tries.is_multiple_of(1024) { std::thread::yield_now() } else { std::hint::spin_loop() }
        }
    };
    let lots = times.div_ceil(LOT as u64);
    let taker = || {
        for number in 0..lots {
            let mut lot = wait(&empty);
            lot.extend((0..LOT as u64).map(|mark| take(number ^ mark)));
            assert!(full.push(lot).is_ok(), "as many lots as places");
        }
    };
    let giver = || {
        for number in 0..lots {
            let mut lot = wait(&full);
            lot.drain(..).zip(0..).for_each(|(block, mark)| give(block, number ^ mark));
            assert!(empty.push(lot).is_ok(), "as many lots as places");
        }
    };
    two_threads(lots * LOT as u64, taker, giver)
}

macro_rules! subjects {
    ($turn:ident $(, $bytes:literal)?; $($more:expr),*) => {
        vec![
            ("ringmem Pool", $turn::<Ours $(, $bytes)?> as Turn),
            ("ringmem Buffer", $turn::<OurBuffers $(, $bytes)?>),
            ("mutexed buckets", $turn::<Buckets $(, $bytes)?>),
            ("mutexed list", $turn::<List $(, $bytes)?>),
            ("crossbeam ArrayQueue", $turn::<Queue $(, $bytes)?>),
            ("mimalloc", $turn::<Mimalloc $(, $bytes)?>),
            $($more),*
        ]
    };
}

pub fn workloads() -> Vec<Workload> {
    const RINGKERNEL: &str = "ringkernel-core";
    const IN_PLACE: &str = "ringmem Buffer, in place";
    let warm_ns = |name, subjects| Workload { unit: "ns/block", aim_ns: Some(10.0), ..Workload::one(name, 1.15, subjects) };
    let both = subjects!(two;
        (RINGKERNEL, two::<Ringkernel>), ("ringmem Buffer, a handle each", two_handles), ("twin: one thread", warm::<Ours, BYTES>));
    vec![
        warm_ns("pool-warm-256", subjects!(warm, 256; (IN_PLACE, in_place::<256>), (RINGKERNEL, warm::<Ringkernel, 256>))),
        warm_ns("pool-warm-4K", subjects!(warm, 4096; (IN_PLACE, in_place::<4096>), (RINGKERNEL, warm::<Ringkernel, 4096>))),
        warm_ns("pool-warm-64K", subjects!(warm, 65_536; (IN_PLACE, in_place::<65_536>), (RINGKERNEL, warm::<Ringkernel, 65_536>))),
        warm_ns("pool-warm-1M", subjects!(warm, 1_048_576; (IN_PLACE, in_place::<1_048_576>))),
        warm_ns("pool-warm-100MB", subjects!(warm, 100_000_000; (IN_PLACE, in_place::<100_000_000>))),
        Workload { unit: "ns/block", ..Workload::one("pool-2t", 1.15, both) },
        Workload {
            unit: "ns/block",
            aim_ns: Some(60.0),
            limit: Some(handed_over),
            ..Workload::two("pool-foreign-free", [1.0; 2], subjects!(foreign; (RINGKERNEL, foreign::<Ringkernel>)))
        },
    ]
}
