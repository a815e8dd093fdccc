//! Several producers, one or several consumers, on two cores. Order and totals are checked.

use std::hint::spin_loop;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use ringmem_benches::{Gate, Job, Workload, job, team, two_threads};

use crate::CAPACITY;
use crate::kind::{ManyToMany, ManyToOne, Mpmc, Mpsc, One};
use crate::limits::Words;
use crate::many_kinds::{
    ArrayQueue, CrossbeamChannel, DisruptorToOne, GilMany, GilToOne, HeaplessMany, NexusToOne, OmangoMany, RingkernelToOne, Thingbuf,
};
use crate::ours::{Claiming, OursMany, OursToOne};

const PRODUCERS: usize = 2;

/// Occasionally yields the core.
struct Patience(u32);

impl Patience {
    fn wait(&mut self) {
        spin_loop();
        self.0 += 1;
        if self.0.is_multiple_of(64) {
            std::thread::yield_now();
        }
    }
}

fn message(producer: usize, number: u64) -> u64 {
    number * PRODUCERS as u64 + producer as u64
}

#[derive(Clone, Copy, Default)]
struct Seen {
    next: [u64; PRODUCERS],
    count: u64,
    sum: u64,
}

impl Seen {
    #[inline(always)]
    fn check(&mut self, message: u64) {
        let (producer, number) = ((message % PRODUCERS as u64) as usize, message / PRODUCERS as u64);
        assert!(number >= self.next[producer], "message {number} of {producer} came after {}", self.next[producer]);
        self.next[producer] = number + 1;
        self.count += 1;
        self.sum += message;
    }

    fn check_all(all: &[Self], each: u64) {
        let count = each * PRODUCERS as u64;
        assert_eq!(all.iter().map(|seen| seen.count).sum::<u64>(), count);
        assert_eq!(all.iter().map(|seen| seen.sum).sum::<u64>(), count * (count - 1) / 2);
    }
}

fn producer<'a>(core: usize, each: u64, mut push: impl FnMut(u64) -> bool + Send + 'a) -> (Option<usize>, Job<'a>) {
    let send = move || {
        let mut patience = Patience(0);
        for number in 0..each {
            while !push(message(core, number)) {
                patience.wait();
            }
        }
    };
    (Some(core), job(send))
}

fn consumer<'a>(count: u64, mut pop: impl FnMut() -> Option<u64> + Send + 'a, seen: &'a Mutex<Vec<Seen>>) -> (Option<usize>, Job<'a>) {
    let receive = move || {
        let (mut patience, mut mine) = (Patience(0), Seen::default());
        while mine.count < count {
            match pop() {
                Some(message) => mine.check(message),
                None => patience.wait(),
            }
        }
        lock(seen).push(mine);
    };
    (None, job(receive))
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

struct TwoToOne(u64);

impl ManyToOne<u64> for TwoToOne {
    fn run(self, push: impl FnMut(u64) -> bool + Send + Clone, pop: impl FnMut() -> Option<u64> + Send) -> f64 {
        let each = self.0.div_ceil(2);
        let seen = Mutex::default();
        let took = team(2 * each, vec![producer(0, each, push.clone()), producer(1, each, push), consumer(2 * each, pop, &seen)]);
        Seen::check_all(&lock(&seen), each);
        took
    }
}

fn two_to_one<K: Mpsc<u64>>(messages: u64) -> f64 {
    K::mpsc::<CAPACITY>(TwoToOne(messages))
}

struct TwoToTwo(u64);

impl ManyToMany<u64> for TwoToTwo {
    fn run(self, push: impl FnMut(u64) -> bool + Send + Clone, pop: impl FnMut() -> Option<u64> + Send + Clone) -> f64 {
        let each = self.0.div_ceil(2);
        let seen = Mutex::default();
        let members =
            vec![producer(0, each, push.clone()), producer(1, each, push), consumer(each, pop.clone(), &seen), consumer(each, pop, &seen)];
        let took = team(2 * each, members);
        Seen::check_all(&lock(&seen), each);
        took
    }
}

fn two_to_two<K: Mpmc<u64>>(messages: u64) -> f64 {
    K::mpmc::<CAPACITY>(TwoToTwo(messages))
}

struct Pairs(u64);

impl ManyToMany<u64> for Pairs {
    fn run(self, push: impl FnMut(u64) -> bool + Send + Clone, pop: impl FnMut() -> Option<u64> + Send + Clone) -> f64 {
        let each = self.0.div_ceil(2);
        let seen = &Mutex::<Vec<Seen>>::default();
        let pair = |producer: usize| {
            let (mut push, mut pop) = (push.clone(), pop.clone());
            move || {
                let mut mine = Seen::default();
                for number in 0..each {
                    while !push(message(producer, number)) {
                        spin_loop();
                    }
                    let got = loop {
                        match pop() {
                            Some(got) => break got,
                            None => spin_loop(),
                        }
                    };
                    mine.check(got);
                }
                lock(seen).push(mine);
            }
        };
        let took = two_threads(2 * each, pair(0), pair(1));
        Seen::check_all(&lock(seen), each);
        took
    }
}

fn pairs<K: Mpmc<u64>>(messages: u64) -> f64 {
    K::mpmc::<CAPACITY>(Pairs(messages))
}

const DEEP: usize = 1 << 14;

/// Times filling, except in the first round, which touches new memory.
struct Enqueue(u64);

impl ManyToOne<u64> for Enqueue {
    fn run(self, push: impl FnMut(u64) -> bool + Send + Clone, mut pop: impl FnMut() -> Option<u64> + Send) -> f64 {
        const EACH: u64 = DEEP as u64 / 2;
        let rounds = self.0.div_ceil(DEEP as u64) + 1;
        let gate = &Gate::new(2);
        let fill = |producer: usize| {
            let mut push = push.clone();
            move || {
                gate.wait();
                let begun = Instant::now();
                for number in 0..EACH {
                    assert!(push(message(producer, number)), "a queue that has room refused");
                }
                gate.wait();
                begun.elapsed()
            }
        };
        let (mut first, mut second, mut took) = (fill(0), fill(1), Duration::ZERO);
        let sum = &mut took;
        let here = move || {
            for round in 0..rounds {
                let filling = first();
                *sum += if round == 0 { Duration::ZERO } else { filling };
                let mut seen = Seen::default();
                while let Some(message) = pop() {
                    seen.check(message);
                }
                Seen::check_all(&[seen], EACH);
            }
        };
        let there = move || {
            for _ in 0..rounds {
                second();
            }
        };
        two_threads(1, here, there);
        took.as_nanos() as f64 / ((rounds - 1) * DEEP as u64) as f64
    }
}

fn enqueue<K: Mpsc<u64>>(messages: u64) -> f64 {
    K::mpsc::<DEEP>(Enqueue(messages))
}

macro_rules! both {
    ($turn:ident) => {
        vec![
            ("ringmem mpmc", $turn::<OursMany> as ringmem_benches::Turn),
            ("crossbeam ArrayQueue", $turn::<ArrayQueue>),
            ("crossbeam-channel", $turn::<CrossbeamChannel>),
            ("thingbuf", $turn::<Thingbuf>),
            ("omango", $turn::<OmangoMany>),
            ("gil mpmc", $turn::<GilMany>),
            ("heapless mpmc", $turn::<HeaplessMany>),
        ]
    };
}

macro_rules! to_one {
    ($turn:ident) => {
        vec![
            ("ringmem mpsc", $turn::<OursToOne> as ringmem_benches::Turn),
            ("ringmem mpmc", $turn::<One<OursMany>>),
            ("crossbeam ArrayQueue", $turn::<One<ArrayQueue>>),
            ("crossbeam-channel", $turn::<One<CrossbeamChannel>>),
            ("thingbuf", $turn::<One<Thingbuf>>),
            ("omango", $turn::<One<OmangoMany>>),
            ("gil mpmc", $turn::<One<GilMany>>),
            ("gil mpsc", $turn::<GilToOne>),
            ("heapless mpmc", $turn::<One<HeaplessMany>>),
            ("nexus-queue", $turn::<NexusToOne>),
            ("disruptor", $turn::<DisruptorToOne>),
            ("ringkernel-core", $turn::<RingkernelToOne>),
        ]
    };
}

pub fn workloads() -> Vec<Workload> {
    vec![
        Workload::two("mpsc-2-1", [1.15; 2], to_one!(two_to_one)),
        Workload::two("mpmc-2-2", [1.15; 2], both!(two_to_two)),
        Workload::two("mpmc-pairs", [1.15; 2], both!(pairs)),
        Workload {
            limit: Some(enqueue::<Words>),
            ..Workload::two("enqueue-2", [1.15; 2], [vec![("ringmem claim 32", enqueue::<Claiming> as _)], to_one!(enqueue)].concat())
        },
    ]
}
