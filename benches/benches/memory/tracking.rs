use std::hint::black_box;

use ringmem::memory::{Buffer, Device, Memory, Tracked};
use ringmem::pool::Pool;
use ringmem_benches::{Subject, Workload, job, team};

use crate::host::{backend, each};

const BYTES: usize = 4096;

const BUFFERS: usize = 4;
const OPERATIONS: u64 = 128;

/// Minimum time to queue an operation. Added, because waiting adds more noise than the effect.
const OPERATION_NS: f64 = 2000.0;

const TIMES: u64 = 64;

type DevicePool = Pool<Device>;

fn pool() -> DevicePool {
    Pool::builder(Device::new(&backend(), 0)).slab(1 << 19).build().expect("a pool")
}

fn acquired<M: Memory + Clone>(buffers: u64, memory: &M) -> f64 {
    each(buffers, || {
        for _ in 0..buffers {
            drop(black_box(Buffer::<u8, _>::new(memory.clone(), black_box(BYTES)).expect("room")));
        }
    })
}

fn acquired_by_two<M: Memory + Clone>(buffers: u64, memory: &M) -> f64 {
    let half = || {
        job(|| {
            for _ in 0..buffers / 2 {
                drop(black_box(Buffer::<u8, _>::new(memory.clone(), black_box(BYTES)).expect("room")));
            }
        })
    };
    team(buffers, vec![(Some(0), half()), (Some(1), half())])
}

fn frames<M: Memory + Clone>(count: u64, memory: &M) -> f64 {
    let mut held = Vec::with_capacity(BUFFERS);
    let frame = each(count * TIMES, || {
        for _ in 0..count * TIMES {
            held.extend((0..BUFFERS).map(|_| Buffer::<u8, _>::new(memory.clone(), black_box(BYTES)).expect("room")));
            black_box(&mut held).clear();
        }
    });
    frame + OPERATIONS as f64 * OPERATION_NS
}

fn pooled(buffers: u64) -> f64 {
    acquired(buffers, &pool())
}

fn tracked(buffers: u64) -> f64 {
    acquired(buffers, &Tracked::new(pool()).named("temporary"))
}

fn pooled_by_two(buffers: u64) -> f64 {
    acquired_by_two(buffers, &pool())
}

fn tracked_by_two(buffers: u64) -> f64 {
    acquired_by_two(buffers, &Tracked::new(pool()).named("temporary"))
}

fn untracked_frames(count: u64) -> f64 {
    frames(count, &pool())
}

fn tracked_frames(count: u64) -> f64 {
    frames(count, &Tracked::new(pool()).named("temporary"))
}

pub fn workloads() -> Vec<Workload> {
    let acquire: Vec<Subject> = vec![("ringmem Tracked<Pool>", tracked), ("Pool", pooled)];
    let by_two: Vec<Subject> = vec![("ringmem Tracked<Pool>", tracked_by_two), ("Pool", pooled_by_two)];
    let frames: Vec<Subject> = vec![("ringmem Tracked<Pool>", tracked_frames), ("Pool", untracked_frames)];
    vec![
        Workload { unit: "ns/buffer", aim_added_ns: Some(50.0), ..Workload::one("tracked-acquire", 2.0, acquire) },
        Workload { unit: "ns/buffer", ..Workload::two("tracked-acquire-2", [2.0; 2], by_two) },
        Workload { unit: "ns/frame", ..Workload::one("tracked-frames", 1.001, frames) },
    ]
}
