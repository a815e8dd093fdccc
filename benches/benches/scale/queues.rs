use std::hint::black_box;

use ringmem::backend::host::HostBackend;
use ringmem::memory::{Buffer, Device, GpuBuffer, Memory, Pinned};
use ringmem::peer::Peers;
use ringmem::pool::Pool;
use ringmem::stream::Stream;
use ringmem::wait;
use ringmem_benches::{Growth, Line, Random, Work, job, team};
use ringmem_layouts::ring::{mpmc, spsc};

use crate::each;
use crate::memory::{KIB, alloc, free, pool, tracker};

fn round_robin(rings: u64) -> Work {
    let mut ends: Vec<_> = (0..rings).map(|_| spsc::bounded::<u64>(8)).collect();
    let mut next = 0;
    each(move || {
        let (producer, consumer) = &mut ends[next];
        assert!(producer.push(black_box(7)).is_ok());
        black_box(consumer.pop().expect("just pushed"));
        next = if next + 1 == ends.len() { 0 } else { next + 1 };
    })
}

fn selected(rings: u64) -> Work {
    let (mut senders, mut receivers): (Vec<_>, Vec<_>) = (0..rings).map(|_| wait::bounded::<u64>(8)).unzip();
    let mut random = Random(7);
    each(move || {
        let number = random.index(&senders);
        senders[number].send(7).expect("room");
        assert_eq!(wait::select(&mut receivers, None), Some((number, Ok(7))));
    })
}

macro_rules! at_index {
    ($name:ident: $kind:ident) => {
        /// From an index on, for the wrap at `u64::MAX`.
        fn $name(index: u64) -> Work {
            Box::new(move |times| {
                let start = if index == u64::MAX { u64::MAX - times / 2 } else { index };
                #[allow(unused_mut, reason = "only one of the kinds is split exclusively")]
                let mut ring = Box::new($kind::Ring::<u64, 64>::starting_at(start));
                let (mut producer, mut consumer) = ring.split();
                let begun = std::time::Instant::now();
                for number in 0..times {
                    assert!(producer.push(black_box(number)).is_ok());
                    assert_eq!(black_box(consumer.pop()), Ok(number));
                }
                begun.elapsed().as_nanos() as f64 / times as f64
            })
        }
    };
}

at_index!(spsc_at: spsc);
at_index!(mpmc_at: mpmc);

fn indexes(subject: &'static str, work: fn(u64) -> Work) -> Line {
    let mut line = Line::decades(subject, 19, work).timed_only();
    line.sizes.push(u64::MAX);
    line
}

fn streams(count: u64) -> (Vec<Stream>, std::sync::Arc<HostBackend>) {
    let backend = HostBackend::builder().build().expect("a backend");
    ((0..count).map(|_| Stream::new(&backend, 0).expect("a thread")).collect(), backend)
}

fn synchronized(count: u64) -> Work {
    let ((streams, _), mut random) = (streams(count), Random(7));
    each(move || streams[random.index(&streams)].synchronize().expect("nothing queued"))
}

fn queued(count: u64) -> Work {
    let ((streams, backend), mut random) = (streams(count), Random(7));
    let mut buffer = Some(Buffer::<u8, _>::new(Device::new(&backend, 0), 64).expect("room"));
    each(move || {
        let stream = &streams[random.index(&streams)];
        buffer = buffer.take().map(|buffer| stream.fill(buffer, .., 7).expect("open").wait().expect("no fault"));
    })
}

/// The host backend's most devices.
fn devices(count: u64) -> std::sync::Arc<HostBackend> {
    HostBackend::builder().devices(count as u32).device_memory(4 << 20).build().expect("a backend")
}

fn pools_of_devices(count: u64) -> Work {
    let (backend, mut random) = (devices(count), Random(7));
    let of_device = |device| Pool::builder(Device::new(&backend, device)).slab(1 << 20).build().expect("a pool");
    let pools: Vec<_> = (0..count as u32).map(of_device).collect();
    // The first block adds a slab.
    pools.iter().for_each(|pool| free(pool, &alloc(pool, 4 * KIB)));
    each(move || {
        let pool = &pools[random.index(&pools)];
        let block = alloc(pool, 4 * KIB);
        free(pool, &block);
    })
}

fn copied_between_devices(count: u64) -> Work {
    let (backend, mut random) = (devices(count), Random(7));
    let peers = Peers::new(Pinned::new(&backend, 0)).expect("threads");
    let of_device = |device| GpuBuffer::<u8>::new(Device::new(&backend, device), 64).expect("room");
    let mut buffers: Vec<_> = (1..count as u32).map(of_device).collect();
    let source = of_device(0);
    each(move || {
        let at = random.index(&buffers);
        peers.copy(&source, &mut buffers[at]).expect("no fault");
    })
}

/// A thread's least operations: starting more threads than cores takes milliseconds.
const SHARE: u64 = 1 << 15;

fn threads(count: u64, of_one: impl Fn(u64) + Sync + 'static) -> Work {
    Box::new(move |times| {
        let share = times.div_ceil(count).max(SHARE);
        let work = &of_one;
        team(share * count, (0..count).map(|number| (Some(number as usize % 2), job(move || work(share)))).collect())
    })
}

fn one_ring_of(count: u64) -> Work {
    let ring: &'static mpmc::Ring<u64, 1024> = Box::leak(Box::new(mpmc::Ring::new()));
    threads(count, move |times| {
        let (mut producer, mut consumer) = ring.split();
        for number in 0..times {
            // A preempted thread holds a claimed slot: the others yield.
            while producer.push(black_box(number)).is_err() {
                std::thread::yield_now();
            }
            while consumer.pop().is_err() {
                std::thread::yield_now();
            }
        }
    })
}

/// Each thread allocates and frees one block at a time.
fn threads_of(memory: impl Memory + 'static, count: u64) -> Work {
    threads(count, move |times| {
        for _ in 0..times {
            let block = alloc(&memory, black_box(4 * KIB));
            free(&memory, &block);
        }
    })
}

/// More blocks than a thread's cache holds.
fn threads_of_central_pool(count: u64) -> Work {
    const HELD: u64 = 128;
    let pool = pool(false, 32 << 20);
    threads(count, move |times| {
        let mut blocks = Vec::with_capacity(HELD as usize);
        for _ in 0..times.div_ceil(HELD) {
            blocks.extend((0..HELD).map(|_| alloc(&pool, 4 * KIB)));
            blocks.drain(..).for_each(|block| free(&pool, &block));
        }
    })
}

fn threads_of_pool(count: u64) -> Work {
    threads_of(pool(false, 32 << 20), count)
}

fn threads_of_exact_pool(count: u64) -> Work {
    threads_of(pool(true, 32 << 20), count)
}

fn threads_of_tracker(count: u64) -> Work {
    threads_of(tracker(), count)
}

pub fn quantities() -> Vec<Growth> {
    vec![
        Growth {
            name: "rings",
            lines: vec![
                Line::decades("ringmem spsc, round robin", 4, round_robin),
                Line::decades("ringmem wait::select", 4, selected).above_log("visits all rings"),
            ],
        },
        Growth { name: "indexes", lines: vec![indexes("ringmem spsc", spsc_at), indexes("ringmem mpmc", mpmc_at)] },
        Growth {
            name: "streams",
            lines: vec![
                Line::decades("ringmem synchronize, idle", 3, synchronized).timed_only(),
                Line::decades("ringmem fill and wait", 3, queued).timed_only(),
            ],
        },
        Growth {
            name: "devices",
            lines: vec![
                Line::doublings("ringmem Pool, one each", 6, pools_of_devices),
                Line { sizes: vec![2, 4, 8, 16, 32, 64], ..Line::doublings("ringmem Peers, copy", 6, copied_between_devices) },
            ],
        },
        Growth {
            name: "threads",
            lines: vec![
                Line::doublings("ringmem Pool", 6, threads_of_pool),
                Line::doublings("ringmem Pool, 128 blocks", 6, threads_of_central_pool),
                Line::doublings("ringmem Pool, exact", 6, threads_of_exact_pool),
                Line::doublings("ringmem Tracked", 6, threads_of_tracker),
                Line::doublings("ringmem mpmc, push and pop", 6, one_ring_of),
            ],
        },
    ]
}
