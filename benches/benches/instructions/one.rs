use std::hint::black_box;

use ringmem::wait::{WaitStrategy, pair};
use ringmem_benches::{Subject, Turn, Workload};
use ringmem_layouts::ring::spsc::Ring;

use crate::CAPACITY;
use crate::iceoryx::{Iceoryx, IceoryxIndex};
use crate::kind::{Spsc, Work};
use crate::ours::{Flagged, Ours};
use crate::plain::Plain;
use crate::spsc_kinds::{Gil, Heapless, Nexus, Quickring, Ringbuf, Rtrb};
use crate::twin::{Bare, Header, One, Twin, Two};
use crate::work::{Alone, Called, Drained, Known, slots};

fn alone<K: Spsc<T>, T: Plain, const BURST: usize>(messages: u64) -> f64 {
    K::spsc(Alone::<BURST>(messages))
}

fn drained<K: Spsc<T>, T: Plain>(messages: u64) -> f64 {
    K::spsc(Drained(messages))
}

fn known<K: Spsc<T>, T: Plain>(messages: u64) -> f64 {
    K::spsc(Known(messages))
}

fn called<K: Spsc<[u64; 1]>>(messages: u64) -> f64 {
    K::spsc(Called(messages))
}

fn batched<T: Plain>(messages: u64) -> f64 {
    let mut ring = Box::new(Ring::<T, CAPACITY>::new());
    let (mut producer, mut consumer) = black_box(ring.split());
    let (mut producer, mut consumer) = (producer.batch(16), consumer.batch(16));
    let value = T::default();
    for _ in 0..messages / 64 {
        for _ in 0..64 {
            assert!(producer.push(*black_box(&value)).is_ok());
        }
        producer.flush();
        for _ in 0..64 {
            let got = consumer.pop().expect("what was pushed is there");
            black_box(&got);
        }
        consumer.flush();
    }
    0.0
}

struct Waits<const SLEEP: bool>;

impl<T: Plain, const SLEEP: bool> Spsc<T> for Waits<SLEEP> {
    fn spsc(work: impl Work<T>) -> f64 {
        let mut ring = Box::new(Ring::<T, CAPACITY>::new());
        let (producer, consumer) = ring.split();
        let (mut sender, mut receiver) = pair(producer, consumer, if SLEEP { WaitStrategy::default() } else { WaitStrategy::Spin });
        work.run(move |value| sender.send(value).is_ok(), move || receiver.recv().ok())
    }
}

macro_rules! subjects {
    ($turn:ident<_ $(, $more:ty $(, $burst:literal)?)?>) => {
        vec![
            ("ringmem", $turn::<Ours $(, $more $(, $burst)?)?>),
            ("ringmem flagged", $turn::<Flagged $(, $more $(, $burst)?)?>),
            ("twin: of ringmem", $turn::<Twin<true, Two<Header>> $(, $more $(, $burst)?)?>),
            ("twin: no index check", $turn::<Twin<false, Two<Header>> $(, $more $(, $burst)?)?>),
            ("twin: one header", $turn::<Twin<true, One<Header>> $(, $more $(, $burst)?)?>),
            ("twin: no waiting, no owner", $turn::<Twin<true, Two<Bare>> $(, $more $(, $burst)?)?>),
            ("twin: none of them", $turn::<Twin<false, One<Bare>> $(, $more $(, $burst)?)?>),
            ("rtrb", $turn::<Rtrb $(, $more $(, $burst)?)?>),
            ("ringbuf", $turn::<Ringbuf $(, $more $(, $burst)?)?>),
            ("heapless spsc", $turn::<Heapless $(, $more $(, $burst)?)?>),
            ("quickring", $turn::<Quickring $(, $more $(, $burst)?)?>),
            ("gil spsc", $turn::<Gil $(, $more $(, $burst)?)?>),
            ("nexus-queue spsc", $turn::<Nexus $(, $more $(, $burst)?)?>),
            ("iceoryx2 queue", $turn::<Iceoryx $(, $more $(, $burst)?)?>),
        ]
    };
}

fn counted(name: &'static str, subjects: Vec<Subject>) -> Workload {
    Workload { unit: "instructions/message", ..Workload::one(name, 1.0, subjects) }
}

pub fn workloads() -> Vec<Workload> {
    let with = |subjects: Vec<Subject>, more: &[Subject]| subjects.into_iter().chain(more.iter().copied()).collect();
    let index: [Subject; 3] = [
        ("iceoryx2 index queue", alone::<IceoryxIndex, [u64; 1], 1>),
        ("iceoryx2 index queue", alone::<IceoryxIndex, [u64; 1], 64>),
        ("iceoryx2 index queue", called::<IceoryxIndex>),
    ];
    let waiting: Vec<Subject> = vec![
        ("ringmem", alone::<Ours, [u64; 1], 1>),
        ("ringmem waiting, spin", alone::<Waits<false>, [u64; 1], 1>),
        ("ringmem waiting, sleep", alone::<Waits<true>, [u64; 1], 1>),
    ];
    let batch: [Subject; 2] = [("ringmem batch 16", batched::<[u64; 1]>), ("ringmem batch 16", batched::<[u64; 8]>)];
    let small = Some(slots::<[u64; 1], 1> as Turn);
    vec![
        Workload { limit: small, ..counted("push-pop-8", with(subjects!(alone<_, [u64; 1], 1>), &index[..1])) },
        Workload { limit: Some(slots::<[u64; 8], 1>), ..counted("push-pop-64", subjects!(alone<_, [u64; 8], 1>)) },
        Workload {
            limit: Some(slots::<[u64; 1], 64>),
            ..counted("burst-8", with(subjects!(alone<_, [u64; 1], 64>), &[batch[0], index[1]]))
        },
        Workload { limit: Some(slots::<[u64; 8], 64>), ..counted("burst-64", with(subjects!(alone<_, [u64; 8], 64>), &batch[1..])) },
        Workload { limit: small, ..counted("called-8", with(subjects!(called<_>), &index[2..])) },
        Workload { limit: small, ..counted("waiting-8", waiting) },
        counted("drain-8", subjects!(drained<_, [u64; 1]>)),
        counted("drain-64", subjects!(drained<_, [u64; 8]>)),
        counted("known-8", subjects!(known<_, [u64; 1]>)),
        counted("known-64", subjects!(known<_, [u64; 8]>)),
    ]
}
