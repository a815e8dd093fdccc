use std::hint::spin_loop;
use std::marker::PhantomData;
use std::time::Instant;

use ringmem_benches::{Subject, Workload, two_threads};

use crate::iceoryx::{Iceoryx, IceoryxIndex};
use crate::kind::{One, Spsc, Work};
use crate::limits::Flags;
use crate::many_kinds::{ArrayQueue, CrossbeamChannel, GilMany, HeaplessMany, OmangoMany, Thingbuf};
use crate::ours::{Flagged, Ours};
use crate::spsc::competitors;
use crate::spsc_kinds::{Disruptor, Fq, Gil, Heapless, Nexus, Omango, Quickring, Ringbuf, Ringkernel, Rtrb};

type Word = [u64; 1];

struct There<K> {
    trips: u64,
    percent: usize,
    second: PhantomData<K>,
}

impl<K: Spsc<Word>> Work<Word> for There<K> {
    fn run(self, push: impl FnMut(Word) -> bool + Send, pop: impl FnMut() -> Option<Word> + Send) -> f64 {
        K::spsc(Back { trips: self.trips, percent: self.percent, push, pop })
    }
}

struct Back<Push, Pop> {
    trips: u64,
    percent: usize,
    push: Push,
    pop: Pop,
}

impl<Push: FnMut(Word) -> bool + Send, Pop: FnMut() -> Option<Word> + Send> Work<Word> for Back<Push, Pop> {
    fn run(self, mut answer: impl FnMut(Word) -> bool + Send, mut answered: impl FnMut() -> Option<Word> + Send) -> f64 {
        let Self { trips, percent, mut push, mut pop } = self;
        let mut took = vec![0; trips as usize];
        let mut tick = 0.0;
        let ask = || {
            let (begun, first) = (Instant::now(), ticks());
            let mut last = first;
            for (number, took) in (0..).zip(&mut took) {
                assert!(push([number]));
                wait(&mut answered, number);
                let now = ticks();
                *took = now.wrapping_sub(last);
                last = now;
            }
            tick = begun.elapsed().as_nanos() as f64 / last.wrapping_sub(first) as f64;
        };
        let reply = move || {
            for number in 0..trips {
                wait(&mut pop, number);
                assert!(answer([number]));
            }
        };
        two_threads(trips, ask, reply);
        let at = (took.len() - 1) * percent / 100;
        *took.select_nth_unstable(at).1 as f64 * tick
    }
}

fn wait(pop: &mut impl FnMut() -> Option<Word>, number: u64) {
    loop {
        match pop() {
            Some([got]) => break assert!(got == number, "message {number} came as {got}"),
            None => spin_loop(),
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn ticks() -> u64 {
    // SAFETY: all x86-64 have it.
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
fn ticks() -> u64 {
    static START: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);
    START.elapsed().as_nanos() as u64
}

fn trips<K: Spsc<Word>>(trips: u64, percent: usize) -> f64 {
    K::spsc(There { trips, percent, second: PhantomData::<K> })
}

fn p50<K: Spsc<Word>>(messages: u64) -> f64 {
    trips::<K>(messages, 50)
}

fn p99<K: Spsc<Word>>(messages: u64) -> f64 {
    trips::<K>(messages, 99)
}

pub fn workloads() -> Vec<Workload> {
    macro_rules! all {
        ($turn:ident) => {{
            let more: [Subject; 4] = [
                ("ringmem", $turn::<Ours>),
                ("ringmem flagged", $turn::<Flagged>),
                ("disruptor", $turn::<Disruptor>),
                ("iceoryx2 index", $turn::<IceoryxIndex>),
            ];
            more.into_iter().chain(competitors!($turn)).collect()
        }};
    }
    let round_trips =
        |name, limit, subjects| Workload { unit: "ns/round trip", limit: Some(limit), ..Workload::two(name, [1.15; 2], subjects) };
    vec![round_trips("rtt-p50", p50::<Flags>, all!(p50)), round_trips("rtt-p99", p99::<Flags>, all!(p99))]
}
