use std::hint::black_box;

use ringmem::memory::{Arena, Buffer, Memory, Pinned};
use ringmem_benches::Workload;

use crate::host::{backend, each};

const LARGE: usize = 64 << 10;

const COUNT: usize = 100;
const SMALL: usize = 256;

fn once(copies: u64) -> f64 {
    let memory: Pinned = Pinned::new(&backend(), 0);
    let mut buffer = Buffer::<u64, _>::new(memory, LARGE / 8).expect("room");
    each(copies, || {
        for number in 0..copies {
            buffer.copy_from_at(0, black_box(&[number; 8])).expect("it fits");
        }
    })
}

fn in_the_loop(copies: u64) -> f64 {
    let memory: Pinned = Pinned::new(&backend(), 0);
    each(copies, || {
        for number in 0..copies {
            let mut buffer = Buffer::<u64, _>::new(memory.clone(), LARGE / 8).expect("room");
            buffer.copy_from_at(0, black_box(&[number; 8])).expect("it fits");
        }
    })
}

fn hundreds<M: Memory + Clone>(times: u64, memory: &M) -> f64 {
    let mut buffers = Vec::with_capacity(COUNT);
    each(times, || {
        for _ in 0..times {
            buffers.extend((0..COUNT).map(|_| Buffer::<u8, _>::new(memory.clone(), SMALL).expect("room")));
            black_box(&mut buffers).clear();
        }
    })
}

fn from_an_arena(times: u64) -> f64 {
    let memory: Pinned = Pinned::new(&backend(), 0);
    hundreds(times, &Arena::new(memory, COUNT * SMALL, SMALL).expect("room"))
}

fn one_by_one(times: u64) -> f64 {
    let memory: Pinned = Pinned::new(&backend(), 0);
    hundreds(times, &memory)
}

pub fn workloads() -> Vec<Workload> {
    vec![
        Workload {
            unit: "ns/copy",
            ..Workload::one("alloc-once-vs-loop", 0.1, vec![("ringmem, made once", once), ("made for each copy", in_the_loop)])
        },
        Workload {
            unit: "ns/100 buffers",
            ..Workload::one("suballocate-100", 0.01, vec![("ringmem Arena", from_an_arena), ("each from the backend", one_by_one)])
        },
    ]
}
