//! One or two million messages of five words over each ring with a word in each slot, between real threads: none lost, doubled or torn, and those of
//! one producer in order for each consumer.
//!
//! Indices begin five short of where they wrap. Every wait has a deadline: a side that sees no progress for a minute panics. Consumers end
//! when the producers have left and nothing is there any more, which is what `is_disconnected` promises.

use std::hint::spin_loop;
use std::thread;
use std::time::{Duration, Instant};

use ringmem_layouts::Host;
use ringmem_layouts::ring::mpmc::ManyProducer;
use ringmem_layouts::ring::{flagged, mpmc, mpsc};

/// Of each producer.
const MESSAGES: u64 = 1_000_000;
const CAPACITY: usize = 256;
const START: u64 = u64::MAX - 5;

type Message = [u64; 5];

/// The first word says whose message it is and which; the others follow from it, so that a mixture of two shows.
fn message(producer: u64, number: u64) -> Message {
    std::array::from_fn(|place| follows(producer << 56 | number, place as u64))
}

const fn follows(word: u64, place: u64) -> u64 {
    if place == 0 { word } else { (word ^ place << 48).wrapping_mul(0x9e37_79b9_7f4a_7c15) }
}

/// What one consumer has got.
struct Seen {
    /// The number that each producer's next message has at least.
    next: Vec<u64>,
    /// A bit for each message.
    bits: Vec<u64>,
}

impl Seen {
    fn new(producers: usize) -> Self {
        Self { next: vec![0; producers], bits: vec![0; (producers as u64 * MESSAGES).div_ceil(64) as usize] }
    }
    fn note(&mut self, message: &Message) {
        for (word, place) in message.iter().zip(0..) {
            assert_eq!(*word, follows(message[0], place), "torn: {message:x?}");
        }
        let (producer, number) = (message[0] >> 56, message[0] & ((1 << 56) - 1));
        let next = &mut self.next[producer as usize];
        assert!(number >= *next, "producer {producer}: {number} after {}", *next - 1);
        *next = number + 1;
        let bit = producer * MESSAGES + number;
        self.bits[bit as usize / 64] |= 1 << (bit % 64);
    }
}

/// Waits, but not for ever.
struct Patience {
    times: u32,
    since: Option<Instant>,
}

impl Patience {
    const fn new() -> Self {
        Self { times: 0, since: None }
    }
    fn wait(&mut self) {
        self.times += 1;
        if !self.times.is_multiple_of(64) {
            return spin_loop();
        }
        // The other threads may have no core of their own.
        thread::yield_now();
        let since = *self.since.get_or_insert_with(Instant::now);
        assert!(since.elapsed() < Duration::from_secs(60), "no progress for a minute");
    }
}

/// Until it gives something.
fn insist<R>(mut attempt: impl FnMut() -> Option<R>) -> R {
    let mut patience = Patience::new();
    loop {
        if let Some(result) = attempt() {
            return result;
        }
        patience.wait();
    }
}

/// Each producer and each consumer on a thread of its own. `produce` sends all that one producer has; `consume` says how many it got.
fn meet<P: Send, C: Send>(
    producers: Vec<P>,
    consumers: Vec<C>,
    produce: impl Fn(&mut P, u64) + Copy + Send,
    consume: impl Fn(&mut C, &mut Seen) -> usize + Copy + Send,
    is_disconnected: impl Fn(&C) -> bool + Copy + Send,
) {
    let count = producers.len();
    let all: Vec<Seen> = thread::scope(|scope| {
        for (mut producer, number) in producers.into_iter().zip(0..) {
            scope.spawn(move || produce(&mut producer, number));
        }
        let threads: Vec<_> = consumers
            .into_iter()
            .map(|mut consumer| {
                scope.spawn(move || {
                    let mut seen = Seen::new(count);
                    let mut patience = Patience::new();
                    loop {
                        // Asked first: what was published before can still be popped.
                        let is_over = is_disconnected(&consumer);
                        if consume(&mut consumer, &mut seen) > 0 {
                            patience = Patience::new();
                        } else if is_over {
                            return seen;
                        } else {
                            patience.wait();
                        }
                    }
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let mut seen = vec![0; all[0].bits.len()];
    for (place, bits) in seen.iter_mut().enumerate() {
        for one in &all {
            assert_eq!(*bits & one.bits[place], 0, "doubled");
            *bits |= one.bits[place];
        }
    }
    let got: u64 = seen.iter().map(|bits: &u64| u64::from(bits.count_ones())).sum();
    assert_eq!(got, count as u64 * MESSAGES, "lost");
}

type Many<'a, const KIND: u64> = ManyProducer<'a, Message, Host, KIND>;

fn push<const KIND: u64>(producer: &mut Many<'_, KIND>, who: u64) {
    for number in 0..MESSAGES {
        insist(|| producer.push(message(who, number)).ok());
    }
}

fn push_slice<const KIND: u64>(producer: &mut Many<'_, KIND>, who: u64) {
    let mut number = 0;
    while number < MESSAGES {
        let messages: [Message; 19] = std::array::from_fn(|place| message(who, number + place as u64));
        let most = messages.len().min((MESSAGES - number) as usize);
        number += insist(|| Some(producer.push_slice(&messages[..most])).filter(|count| *count > 0)) as u64;
    }
}

/// Every grant has a slot more than it writes.
fn reserve<const KIND: u64>(producer: &mut Many<'_, KIND>, who: u64) {
    let mut number = 0;
    while number < MESSAGES {
        let count = (number % 13 + 1).min(MESSAGES - number);
        insist(|| {
            let mut grant = producer.reserve(count + 1).ok()?;
            Some(grant.fill((number..number + count).map(|number| message(who, number))))
        });
        number += count;
    }
}

fn batch<const KIND: u64>(producer: &mut Many<'_, KIND>, who: u64) {
    let mut batch = producer.batch(16);
    for number in 0..MESSAGES {
        insist(|| batch.push(message(who, number)).ok());
    }
}

fn note_slice(count: usize, messages: &[Message], seen: &mut Seen) -> usize {
    for message in &messages[..count] {
        seen.note(message);
    }
    count
}

fn alone<E>(end: E) -> Vec<E> {
    vec![end]
}

fn twice<E: Clone>(end: E) -> Vec<E> {
    vec![end.clone(), end]
}

/// The ring of a kind, how many have each of its ends, and each way to fill against a way to empty.
macro_rules! rings {
    ($($name:ident: $producers:ident fill and $consumers:ident empties $kind:ident [$($fact:ident: $fill:expr, $drain:expr;)+])+) => {$(
        mod $name {
            use super::*;

            $(
                #[test]
                fn $fact() {
                    #[allow(unused_mut, reason = "an MPMC ring is split by reference")]
                    let mut ring = Box::new($kind::Ring::<Message, CAPACITY>::starting_at(START));
                    let (producer, consumer) = ring.split();
                    meet($producers(producer), $consumers(consumer), $fill, $drain, |consumer| consumer.is_disconnected());
                }
            )+
        }
    )+};
}

rings! {
    two_to_two: twice fill and twice empties mpmc [
        one_by_one: |producer, who| push(producer, who), |consumer, seen| consumer.pop().map_or(0, |message| note_slice(1, &[message], seen));
        by_slices: |producer, who| push_slice(producer, who), |consumer, seen| {
            let mut messages = [[0; 5]; 17];
            note_slice(consumer.pop_slice(&mut messages), &messages, seen)
        };
        in_place: |producer, who| reserve(producer, who), |consumer, seen| {
            consumer.take(11).map_or(0, |taken| taken.map(|message| note_slice(1, &[message], seen)).sum())
        };
        in_batches: |producer, who| batch(producer, who), |consumer, seen| {
            consumer.take(16).map_or(0, |taken| taken.map(|message| note_slice(1, &[message], seen)).sum())
        };
    ]
    two_to_one: twice fill and alone empties mpsc [
        one_by_one: |producer, who| push(producer, who), |consumer, seen| consumer.pop().map_or(0, |message| note_slice(1, &[message], seen));
        by_slices: |producer, who| push_slice(producer, who), |consumer, seen| {
            let mut messages = [[0; 5]; 17];
            note_slice(consumer.pop_slice(&mut messages), &messages, seen)
        };
        in_place: |producer, who| reserve(producer, who), |consumer, seen| consumer.peek(11).map_or(0, |chunk| {
            let count = (0..chunk.len()).filter_map(|offset| chunk.with(offset, |message| seen.note(message))).count();
            chunk.release(u64::MAX);
            count
        });
        in_batches: |producer, who| batch(producer, who), |consumer, seen| {
            let mut batch = consumer.batch(16);
            std::iter::from_fn(|| batch.pop().ok()).map(|message| note_slice(1, &[message], seen)).sum()
        };
    ]
    one_to_one: alone fill and alone empties flagged [
        one_by_one: |producer, who| {
            for number in 0..MESSAGES {
                insist(|| producer.push(message(who, number)).ok());
            }
        }, |consumer, seen| consumer.pop().map_or(0, |message| note_slice(1, &[message], seen));
        by_slices: |producer, who| {
            let mut number = 0;
            while number < MESSAGES {
                let messages: [Message; 19] = std::array::from_fn(|place| message(who, number + place as u64));
                let most = messages.len().min((MESSAGES - number) as usize);
                number += insist(|| Some(producer.push_slice(&messages[..most]).unwrap()).filter(|count| *count > 0)) as u64;
            }
        }, |consumer, seen| {
            let mut messages = [[0; 5]; 17];
            note_slice(consumer.pop_slice(&mut messages), &messages, seen)
        };
        in_place: |producer, who| {
            let mut number = 0;
            while number < MESSAGES {
                let count = (number % 13 + 1).min(MESSAGES - number);
                insist(|| Some(producer.reserve(count).ok()?.fill((number..).map(|number| message(who, number)))));
                number += count;
            }
        }, |consumer, seen| consumer.peek(11).map_or(0, |chunk| {
            let count = (0..chunk.len()).filter_map(|offset| chunk.with(offset, |message| seen.note(message))).count();
            chunk.release(u64::MAX);
            count
        });
        in_batches: |producer, who| {
            let mut batch = producer.batch(16);
            for number in 0..MESSAGES {
                insist(|| batch.push(message(who, number)).ok());
            }
        }, |consumer, seen| {
            let mut batch = consumer.batch(16);
            std::iter::from_fn(|| batch.pop().ok()).map(|message| note_slice(1, &[message], seen)).sum()
        };
    ]
}
