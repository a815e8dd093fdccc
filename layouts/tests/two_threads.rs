//! Ten million numbered messages of 8, 64 and 256 bytes between two threads: none lost, doubled, reordered or torn.
//!
//! Indices begin five short of where they wrap. Every wait has a deadline: a side that sees no progress for a minute panics.

use std::hint::spin_loop;
use std::thread;
use std::time::{Duration, Instant};

use ringmem_layouts::Host;
use ringmem_layouts::ring::spsc::{Consumer, PopError, Producer, Ring};

const MESSAGES: u64 = 10_000_000;
const CAPACITY: usize = 1024;
const START: u64 = u64::MAX - 5;

/// A message whose every word follows from its number, so that a mixture of two shows.
trait Numbered: Copy + Send {
    fn numbered(number: u64) -> Self;
    fn check(&self, number: u64);
}

/// A different value in every word of every message.
const fn word(number: u64, place: usize) -> u64 {
    (number ^ (place as u64) << 56).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl Numbered for u64 {
    fn numbered(number: u64) -> Self {
        word(number, 0)
    }
    fn check(&self, number: u64) {
        assert_eq!(*self, word(number, 0), "message {number}");
    }
}

impl<const N: usize> Numbered for [u64; N] {
    fn numbered(number: u64) -> Self {
        std::array::from_fn(|place| word(number, place))
    }
    fn check(&self, number: u64) {
        for (place, seen) in self.iter().enumerate() {
            assert_eq!(*seen, word(number, place), "message {number}, word {place}");
        }
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
    fn progress(&mut self) {
        *self = Self::new();
    }
    fn wait(&mut self) {
        self.times += 1;
        if !self.times.is_multiple_of(256) {
            return spin_loop();
        }
        // The other thread may have no core of its own.
        thread::yield_now();
        let since = *self.since.get_or_insert_with(Instant::now);
        assert!(since.elapsed() < Duration::from_secs(60), "no progress for a minute");
    }
}

fn between_two_threads<T: Numbered>(
    produce: impl FnOnce(&mut Producer<'_, T, Host>) + Send,
    consume: impl FnOnce(&mut Consumer<'_, T, Host>),
) {
    let mut ring = Box::new(Ring::<T, CAPACITY>::starting_at(START));
    let (mut producer, mut consumer) = ring.split();
    thread::scope(|scope| {
        scope.spawn(|| produce(&mut producer));
        consume(&mut consumer);
    });
    assert!(matches!(consumer.pop(), Err(PopError::Empty)), "more came out than went in");
    assert_eq!(consumer.head(), START.wrapping_add(MESSAGES));
}

/// Until there is something to give back.
fn insist<R, E>(mut attempt: impl FnMut() -> Result<R, E>) -> R {
    let mut patience = Patience::new();
    loop {
        if let Ok(result) = attempt() {
            return result;
        }
        patience.wait();
    }
}

fn one_by_one<T: Numbered>() {
    between_two_threads::<T>(
        |producer| {
            for number in 0..MESSAGES {
                let message = T::numbered(number);
                insist(|| producer.push(message));
            }
        },
        |consumer| {
            for number in 0..MESSAGES {
                insist(|| consumer.pop()).check(number);
            }
        },
    );
}

fn in_batches<T: Numbered>() {
    between_two_threads::<T>(
        |producer| {
            let mut batch = producer.batch(16);
            for number in 0..MESSAGES {
                let message = T::numbered(number);
                insist(|| batch.push(message));
            }
        },
        |consumer| {
            let mut batch = consumer.batch(16);
            for number in 0..MESSAGES {
                insist(|| batch.pop()).check(number);
            }
        },
    );
}

fn in_place<T: Numbered>() {
    between_two_threads::<T>(
        |producer| {
            let mut number = 0;
            while number < MESSAGES {
                let count = (number % 31 + 1).min(MESSAGES - number);
                insist(|| producer.reserve(count).map(|mut grant| grant.fill((number..).map(T::numbered))));
                number += count;
            }
        },
        |consumer| {
            let mut number = 0;
            while number < MESSAGES {
                number += insist(|| {
                    consumer.peek(29).map(|chunk| {
                        for (message, number) in chunk.as_slices().into_iter().flatten().zip(number..) {
                            message.check(number);
                        }
                        let count = chunk.len();
                        chunk.release(count);
                        count
                    })
                });
            }
        },
    );
}

fn by_slices<T: Numbered>() {
    between_two_threads::<T>(
        |producer| {
            let mut patience = Patience::new();
            let mut number = 0;
            while number < MESSAGES {
                let messages: [T; 32] = std::array::from_fn(|place| T::numbered(number + place as u64));
                let most = messages.len().min((MESSAGES - number) as usize);
                let count = producer.push_slice(&messages[..most]).unwrap() as u64;
                number += count;
                if count == 0 { patience.wait() } else { patience.progress() }
            }
        },
        |consumer| {
            let mut patience = Patience::new();
            let mut messages = [T::numbered(0); 29];
            let mut number = 0;
            while number < MESSAGES {
                let count = consumer.pop_slice(&mut messages).unwrap();
                for message in &messages[..count] {
                    message.check(number);
                    number += 1;
                }
                if count == 0 { patience.wait() } else { patience.progress() }
            }
        },
    );
}

#[test]
fn words_arrive_in_order_one_by_one() {
    one_by_one::<u64>();
}

#[test]
fn words_arrive_in_order_in_batches() {
    in_batches::<u64>();
}

#[test]
fn words_arrive_in_order_by_slices() {
    by_slices::<u64>();
}

#[test]
fn lines_arrive_whole_one_by_one() {
    one_by_one::<[u64; 8]>();
}

#[test]
fn lines_arrive_whole_in_batches() {
    in_batches::<[u64; 8]>();
}

#[test]
fn lines_arrive_whole_in_place() {
    in_place::<[u64; 8]>();
}

#[test]
fn messages_of_256_bytes_arrive_whole_one_by_one() {
    one_by_one::<[u64; 32]>();
}

#[test]
fn messages_of_256_bytes_arrive_whole_in_batches() {
    in_batches::<[u64; 32]>();
}
