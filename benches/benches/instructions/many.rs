use std::hint::black_box;

use ringmem_benches::{Subject, Workload};
use ringmem_layouts::ring::{mpmc, mpsc};

use crate::CAPACITY;
use crate::kind::{Mpmc, Mpsc};
use crate::many_kinds::{ArrayQueue, GilMany, HeaplessMany, OmangoMany};
use crate::ours::{OursMany, OursToOne};
use crate::work::{Alone, slots};

fn alone<K: Mpmc<[u64; 1]>>(messages: u64) -> f64 {
    K::mpmc::<CAPACITY>(Alone::<1>(messages))
}

fn alone_to_one<K: Mpsc<[u64; 1]>>(messages: u64) -> f64 {
    K::mpsc::<CAPACITY>(Alone::<1>(messages))
}

const CLAIM: usize = 32;

fn claims(messages: u64, push: impl FnMut(&[u64; CLAIM]) -> u64, pop: impl FnMut(&mut [u64; CLAIM]) -> u64) -> f64 {
    let (mut push, mut pop) = black_box((push, pop));
    let (sent, mut got) = ([0; CLAIM], [0; CLAIM]);
    for _ in 0..messages / CLAIM as u64 {
        assert_eq!(push(black_box(&sent)), CLAIM as u64);
        assert_eq!(pop(&mut got), CLAIM as u64);
        black_box(&got);
    }
    0.0
}

fn slices(messages: u64) -> f64 {
    let ring = Box::new(mpmc::Ring::<u64, CAPACITY>::new());
    let (mut producer, mut consumer) = ring.split();
    claims(messages, move |values| producer.push_slice(values) as u64, move |values| consumer.pop_slice(values) as u64)
}

fn slices_to_one(messages: u64) -> f64 {
    let mut ring = Box::new(mpsc::Ring::<u64, CAPACITY>::new());
    let (mut producer, mut consumer) = ring.split();
    claims(messages, move |values| producer.push_slice(values) as u64, move |values| consumer.pop_slice(values) as u64)
}

fn grants(messages: u64) -> f64 {
    let ring = Box::new(mpmc::Ring::<u64, CAPACITY>::new());
    let (mut producer, mut consumer) = ring.split();
    let push = move |values: &[u64; CLAIM]| producer.reserve(CLAIM).map_or(0, |mut grant| grant.fill(values.iter().copied()) as u64);
    let pop = move |values: &mut [u64; CLAIM]| {
        let Ok(taken) = consumer.take(CLAIM) else { return 0 };
        values.iter_mut().zip(taken).map(|(place, value)| *place = value).count() as u64
    };
    claims(messages, push, pop)
}

pub fn workload() -> Workload {
    let subjects: Vec<Subject> = vec![
        ("ringmem mpmc", alone::<OursMany>),
        ("ringmem mpsc", alone_to_one::<OursToOne>),
        ("ringmem mpmc claim 32", slices),
        ("ringmem mpsc claim 32", slices_to_one),
        ("ringmem mpmc grant 32", grants),
        ("crossbeam ArrayQueue", alone::<ArrayQueue>),
        ("heapless mpmc", alone::<HeaplessMany>),
        ("gil mpmc", alone::<GilMany>),
        ("omango mpmc", alone::<OmangoMany>),
    ];
    Workload { unit: "instructions/message", limit: Some(slots::<[u64; 1], 1>), ..Workload::one("mpmc-push-pop-8", 1.0, subjects) }
}
