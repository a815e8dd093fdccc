use std::hint::black_box;

use ringmem::backend::host::HostBackend;
use ringmem::memory::{Buffer, Device};
use ringmem::stream::Stream;
use ringmem::wait;
use ringmem_benches::{Growth, Line, Random, Work, job, team};
use ringmem_layouts::ring::{mpmc, spsc};

use crate::each;

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
        /// Messages from an index on; from before the wrap at `u64::MAX`.
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

fn threads(count: u64, of_one: impl Fn(u64) + Sync + 'static) -> Work {
    Box::new(move |times| {
        let share = times.div_ceil(count);
        let work = &of_one;
        team(share * count, (0..count).map(|_| (None, job(move || work(share)))).collect())
    })
}

fn one_ring_of(count: u64) -> Work {
    let ring: &'static mpmc::Ring<u64, 1024> = Box::leak(Box::new(mpmc::Ring::new()));
    threads(count, move |times| {
        let (mut producer, mut consumer) = ring.split();
        for number in 0..times {
            // A preempted thread holds a claimed slot: the others yield to it.
            while producer.push(black_box(number)).is_err() {
                std::thread::yield_now();
            }
            while consumer.pop().is_err() {
                std::thread::yield_now();
            }
        }
    })
}

pub fn quantities() -> Vec<Growth> {
    vec![
        Growth {
            name: "rings",
            lines: vec![
                Line::decades("ringmem spsc, round robin", 4, round_robin),
                Line::decades("ringmem wait::select", 4, selected).linear(),
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
        Growth { name: "threads", lines: vec![Line::doublings("ringmem mpmc, push and pop", 6, one_ring_of)] },
    ]
}
