use std::hint::{black_box, spin_loop};
use std::marker::PhantomData;
use std::panic::resume_unwind;
use std::thread;
use std::time::Instant;

use disruptor::Producer as _;
use ringmem_benches::{Subject, Turn, Workload, job, pin, team, two_threads};
use ringmem_layouts::ring::{flagged, spsc};

use crate::CAPACITY;
use crate::iceoryx::{Iceoryx, IceoryxIndex};
use crate::kind::{One, Spsc, Work};
use crate::limits::lines;
use crate::many_kinds::{ArrayQueue, CrossbeamChannel, GilMany, HeaplessMany, OmangoMany, Thingbuf};
use crate::ours::{Flagged, Ours};
use crate::plain::Message;
use crate::spsc_kinds::{Disruptor, Fq, Gil, Heapless, Nexus, Omango, Quickring, Ringbuf, Ringkernel, Rtrb};

fn send_all<T: Message>(messages: u64, mut push: impl FnMut(T) -> bool) {
    for number in 0..messages {
        while !push(T::numbered(number)) {
            spin_loop();
        }
    }
}

fn receive_all<T: Message>(messages: u64, mut pop: impl FnMut() -> Option<T>) {
    for number in 0..messages {
        loop {
            match pop() {
                Some(got) => break got.check(number),
                None => spin_loop(),
            }
        }
    }
}

struct Stream(u64);

impl<T: Message> Work<T> for Stream {
    fn run(self, push: impl FnMut(T) -> bool + Send, pop: impl FnMut() -> Option<T> + Send) -> f64 {
        let Self(messages) = self;
        two_threads(messages, move || send_all(messages, push), move || receive_all(messages, pop))
    }
}

fn stream<K: Spsc<T>, T: Message>(messages: u64) -> f64 {
    K::spsc(Stream(messages))
}

macro_rules! batches {
    ($turn:ident, $module:ident) => {
        fn $turn<T: Message, const EVERY: usize>(messages: u64) -> f64 {
            let mut ring = Box::new($module::Ring::<T, CAPACITY>::new());
            let (mut producer, mut consumer) = ring.split();
            let send = move || {
                let mut batch = producer.batch(EVERY);
                send_all(messages, |value| batch.push(value).is_ok());
            };
            let receive = move || {
                let mut batch = consumer.batch(EVERY);
                receive_all(messages, || batch.pop().ok());
            };
            two_threads(messages, send, receive)
        }
    };
}

batches!(ours_batched, spsc);
batches!(flagged_batched, flagged);

fn drained<T: Message>(messages: u64, push: impl FnMut(T) -> bool + Send, mut drain: impl FnMut(u64) -> u64 + Send) -> f64 {
    let receive = move || {
        let mut number = 0;
        while number < messages {
            let next = drain(number);
            if next == number {
                spin_loop();
            }
            number = next;
        }
    };
    two_threads(messages, move || send_all(messages, push), receive)
}

fn ours_drained<T: Message>(messages: u64) -> f64 {
    let mut ring = Box::new(spsc::Ring::<T, CAPACITY>::new());
    let (mut producer, mut consumer) = ring.split();
    let drain = move |number| {
        let Ok(chunk) = consumer.peek(CAPACITY) else { return number };
        (number..).zip(chunk.as_slices().into_iter().flatten()).for_each(|(number, message)| message.check(number));
        let count = chunk.len();
        chunk.release(count);
        number + count as u64
    };
    drained(messages, move |value: T| producer.push(value).is_ok(), drain)
}

fn disruptor_drained<T: Message>(messages: u64) -> f64 {
    let (mut poller, builder) = disruptor::build_single_producer(CAPACITY, T::default, disruptor::BusySpin).new_event_poller();
    let mut producer = builder.build();
    let drain = move |number| {
        let Ok(mut events) = poller.poll() else { return number };
        let mut next = number;
        for event in &mut events {
            event.check(next);
            next += 1;
        }
        next
    };
    drained(messages, move |value: T| producer.try_publish(|event| *event = value).is_ok(), drain)
}

struct Alone<T>(u64, PhantomData<T>);

impl<T: Message> Alone<T> {
    fn go(self, mut push: impl FnMut(T) -> bool, mut pop: impl FnMut() -> Option<T>) {
        for number in 0..self.0 {
            assert!(push(black_box(T::numbered(number))));
            match pop() {
                Some(got) => black_box(got).check(number),
                None => panic!("what was pushed is not there"),
            }
        }
    }
}

impl<T: Message> Work<T> for Alone<T> {
    fn run(self, push: impl FnMut(T) -> bool + Send, pop: impl FnMut() -> Option<T> + Send) -> f64 {
        let (messages, begun) = (self.0, Instant::now());
        self.go(push, pop);
        begun.elapsed().as_nanos() as f64 / messages as f64
    }
}

fn alone<K: Spsc<T>, T: Message>(messages: u64) -> f64 {
    let here = move || {
        pin(0);
        K::spsc(Alone(messages, PhantomData))
    };
    thread::scope(|scope| scope.spawn(here).join().unwrap_or_else(|panic| resume_unwind(panic)))
}

/// Boxed: the compiler knows nothing about the ring, and both ends' fields compete for registers.
struct Moved<T>(Alone<T>);

impl<T: Message> Work<T> for Moved<T> {
    fn run(self, push: impl FnMut(T) -> bool + Send, pop: impl FnMut() -> Option<T> + Send) -> f64 {
        team(self.0.0, vec![(Some(0), job(move || self.0.go(push, pop)))])
    }
}

fn moved<K: Spsc<T>, T: Message>(messages: u64) -> f64 {
    K::spsc(Moved(Alone(messages, PhantomData)))
}

macro_rules! competitors {
    ($turn:ident $(, $t:ty)?) => {
        [
            ("rtrb", $turn::<Rtrb $(, $t)?> as ringmem_benches::Turn),
            ("ringbuf", $turn::<Ringbuf $(, $t)?>),
            ("gil", $turn::<Gil $(, $t)?>),
            ("gil mpmc", $turn::<One<GilMany> $(, $t)?>),
            ("nexus-queue", $turn::<Nexus $(, $t)?>),
            ("omango", $turn::<Omango $(, $t)?>),
            ("omango mpmc", $turn::<One<OmangoMany> $(, $t)?>),
            ("quickring", $turn::<Quickring $(, $t)?>),
            ("fq", $turn::<Fq $(, $t)?>),
            ("heapless", $turn::<Heapless $(, $t)?>),
            ("heapless mpmc", $turn::<One<HeaplessMany> $(, $t)?>),
            ("iceoryx2", $turn::<Iceoryx $(, $t)?>),
            ("crossbeam ArrayQueue", $turn::<One<ArrayQueue> $(, $t)?>),
            ("crossbeam-channel", $turn::<One<CrossbeamChannel> $(, $t)?>),
            ("thingbuf", $turn::<One<Thingbuf> $(, $t)?>),
            ("ringkernel-core", $turn::<Ringkernel $(, $t)?>),
        ]
    };
}
pub(crate) use competitors;

fn streams<T: Message>(ours: &[Subject], poll: &'static str) -> Vec<Subject> {
    let disruptor = [("disruptor", stream::<Disruptor, T> as Turn), (poll, disruptor_drained::<T>)];
    ours.iter().copied().chain(competitors!(stream, T)).chain(disruptor).collect()
}

fn each<T: Message>() -> Vec<Subject> {
    let ours = [("ringmem", stream::<Ours, T> as Turn), ("ringmem flagged", stream::<Flagged, T>), ("ringmem peek", ours_drained::<T>)];
    streams::<T>(&ours, "disruptor poll")
}

/// A poll takes all available messages: it is a batch and no baseline.
fn batched<T: Message>() -> Vec<Subject> {
    let ours = [
        ("ringmem batch 16", ours_batched::<T, 16> as Turn),
        ("ringmem batch 64", ours_batched::<T, 64>),
        ("ringmem flagged batch 16", flagged_batched::<T, 16>),
    ];
    streams::<T>(&ours, "beside: disruptor poll")
}

macro_rules! both {
    ($turn:ident, $t:ty) => {{
        let ours = [("ringmem", $turn::<Ours, $t> as Turn), ("ringmem flagged", $turn::<Flagged, $t>)];
        ours.into_iter().chain(competitors!($turn, $t)).chain([("disruptor", $turn::<Disruptor, $t> as _)]).collect::<Vec<_>>()
    }};
}

pub fn workloads() -> Vec<Workload> {
    let index = |turn| {
        move |mut subjects: Vec<Subject>| {
            subjects.push(("iceoryx2 index", turn));
            subjects
        }
    };
    let streamed = index(stream::<IceoryxIndex, [u64; 1]>);
    let (alone_index, moved_index) = (index(alone::<IceoryxIndex, [u64; 1]>), index(moved::<IceoryxIndex, [u64; 1]>));
    vec![
        Workload::two("spsc-8", [1.15; 2], streamed(each::<[u64; 1]>())),
        Workload { limit: Some(lines::<1>), ..Workload::two("spsc-64", [1.15; 2], each::<[u64; 8]>()) },
        Workload { limit: Some(lines::<4>), ..Workload::two("spsc-256", [1.15; 2], each::<[u64; 32]>()) },
        Workload::two("spsc-8-batch", [1.0; 2], streamed(batched::<[u64; 1]>())),
        Workload { limit: Some(lines::<1>), ..Workload::two("spsc-64-batch", [0.625, 0.33], batched::<[u64; 8]>()) },
        Workload { limit: Some(lines::<4>), ..Workload::two("spsc-256-batch", [0.625, 0.33], batched::<[u64; 32]>()) },
        Workload { aim_ns: Some(1.3), ..Workload::one("oneshot-8", 1.0, alone_index(both!(alone, [u64; 1]))) },
        Workload::one("oneshot-64", 1.0, both!(alone, [u64; 8])),
        Workload::one("oneshot-8-moved", 1.15, moved_index(both!(moved, [u64; 1]))),
    ]
}
