//! The machine's limits: lines moved between cores, and a flag's round trip.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use ringmem_benches::two_threads;

use crate::kind::{ManyToOne, Mpsc, Spsc, Work};

#[repr(align(64))]
struct Line([AtomicU64; 8]);

#[repr(align(128))]
struct Flag(AtomicU64);

pub fn lines<const LINES: u64>(messages: u64) -> f64 {
    const RING: u64 = 1024;
    const TOLD: u64 = 64;
    let all = (messages * LINES).next_multiple_of(TOLD);
    let ring: Vec<Line> = (0..RING).map(|_| Line([const { AtomicU64::new(0) }; 8])).collect();
    let [filled, emptied] = &[const { Flag(AtomicU64::new(0)) }; 2];
    let words = |number: u64| &ring[(number % RING) as usize].0;
    let send = || {
        for batch in (0..all).step_by(TOLD as usize) {
            while batch + TOLD - emptied.0.load(Acquire) > RING {
                spin_loop();
            }
            for number in batch..batch + TOLD {
                words(number).iter().for_each(|word| word.store(number, Relaxed));
            }
            filled.0.store(batch + TOLD, Release);
        }
    };
    let receive = || {
        for batch in (0..all).step_by(TOLD as usize) {
            while filled.0.load(Acquire) <= batch {
                spin_loop();
            }
            for number in batch..batch + TOLD {
                assert!(words(number).iter().all(|word| word.load(Relaxed) == number));
            }
            emptied.0.store(batch + TOLD, Release);
        }
    };
    two_threads(messages, send, receive)
}

/// Never tests for room: only for alternate filling and emptying.
pub struct Words;

impl Mpsc<u64> for Words {
    fn mpsc<const N: usize>(work: impl ManyToOne<u64>) -> f64 {
        let words: Vec<AtomicU64> = (0..N).map(|_| AtomicU64::new(0)).collect();
        let (words, claimed) = (&words[..], &Flag(AtomicU64::new(0)));
        let (mut values, mut count, mut popped) = ([0; 32], 0, 0);
        let push = move |value: u64| {
            values[count] = value;
            count = (count + 1) % values.len();
            if count == 0 {
                let first = claimed.0.fetch_add(values.len() as u64, Relaxed) as usize;
                for (index, value) in values.iter().enumerate() {
                    words[(first + index) % N].store(value + 1, Release);
                }
            }
            true
        };
        let pop = move || {
            let word = &words[popped % N];
            let message = word.load(Acquire).checked_sub(1)?;
            word.store(0, Relaxed);
            popped += 1;
            Some(message)
        };
        work.run(push, pop)
    }
}

/// Only for round trips: a second push overwrites the first.
pub struct Flags;

impl Spsc<[u64; 1]> for Flags {
    fn spsc(work: impl Work<[u64; 1]>) -> f64 {
        let flag = Box::new(Flag(AtomicU64::new(0)));
        let (flag, mut seen) = (&flag.0, 0);
        let push = move |[number]: [u64; 1]| {
            flag.store(number + 1, Release);
            true
        };
        let pop = move || {
            let now = flag.load(Acquire);
            (now != seen).then(|| {
                seen = now;
                [now - 1]
            })
        };
        work.run(push, pop)
    }
}
