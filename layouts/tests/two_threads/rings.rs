use std::iter::from_fn;
use std::thread;

use crate::count::Count;
use crate::patience::{Patience, insist};
use ringmem_layouts::Local;
use ringmem_layouts::ring::mpmc::ManyProducer;
use ringmem_layouts::ring::{flagged, mpmc, mpsc, spsc};

const START: u64 = u64::MAX - 5;

type Message<const N: usize> = [u64; N];

fn message<const N: usize>(producer: u64, number: u64) -> Message<N> {
    std::array::from_fn(|place| follows(producer << 56 | number, place as u64))
}

const fn follows(word: u64, place: u64) -> u64 {
    if place == 0 { word } else { (word ^ place << 48).wrapping_mul(0x9e37_79b9_7f4a_7c15) }
}

struct Seen {
    messages: u64,
    next: Vec<u64>,
    bits: Vec<u64>,
}

impl Seen {
    fn new(producers: usize, messages: u64) -> Self {
        Self { messages, next: vec![0; producers], bits: vec![0; (producers as u64 * messages).div_ceil(64) as usize] }
    }
    fn note<const N: usize>(&mut self, message: &Message<N>) {
        for (word, place) in message.iter().zip(0..) {
            assert_eq!(*word, follows(message[0], place), "torn: {message:x?}");
        }
        let (producer, number) = (message[0] >> 56, message[0] & ((1 << 56) - 1));
        let next = &mut self.next[producer as usize];
        assert!(number >= *next, "producer {producer}: {number} after {}", *next - 1);
        *next = number + 1;
        let bit = producer * self.messages + number;
        self.bits[bit as usize / 64] |= 1 << (bit % 64);
    }
    fn note_all<'m, const N: usize>(&mut self, messages: impl IntoIterator<Item = &'m Message<N>>) -> usize {
        messages.into_iter().map(|message| self.note(message)).count()
    }
}

trait Fill {
    fn one_by_one(&mut self, who: u64, messages: u64);
    fn in_batches(&mut self, who: u64, messages: u64);
    fn by_slices(&mut self, who: u64, messages: u64);
    fn in_place(&mut self, who: u64, messages: u64);
}

macro_rules! fill {
    ($($producer:ty [$($kind:tt)*], spare $spare:literal;)+) => {$(
        impl<const N: usize, $($kind)*> Fill for $producer {
            fn one_by_one(&mut self, who: u64, messages: u64) {
                for number in 0..messages {
                    let message = message(who, number);
                    insist(|| self.push(message).ok());
                }
            }
            fn in_batches(&mut self, who: u64, messages: u64) {
                let mut batch = self.batch(16);
                for number in 0..messages {
                    let message = message(who, number);
                    insist(|| batch.push(message).ok());
                }
            }
            fn by_slices(&mut self, who: u64, messages: u64) {
                let mut number = 0;
                while number < messages {
                    let slice: [Message<N>; 32] = std::array::from_fn(|place| message(who, number + place as u64));
                    let most = slice.len().min((messages - number) as usize);
                    number += insist(|| Some(self.push_slice(&slice[..most]).count()).filter(|count| *count > 0)) as u64;
                }
            }
            fn in_place(&mut self, who: u64, messages: u64) {
                let mut number = 0;
                while number < messages {
                    let count = (number % 31 + 1).min(messages - number);
                    let values = (number..number + count).map(|number| message(who, number));
                    number += insist(|| self.reserve(count as usize + $spare).ok().map(|mut grant| grant.fill(values.clone()))) as u64;
                }
            }
        }
    )+};
}

fill! {
    spsc::Producer<'_, Message<N>, Local> [], spare 0;
    flagged::Producer<'_, Message<N>, Local> [], spare 0;
    ManyProducer<'_, Message<N>, Local, KIND> [const KIND: u64], spare 1;
}

trait Drain {
    fn is_disconnected(&self) -> bool;
    fn head(&self) -> Option<u64> {
        None
    }
    fn one_by_one(&mut self, seen: &mut Seen) -> usize;
    fn in_batches(&mut self, seen: &mut Seen) -> usize;
    fn by_slices(&mut self, seen: &mut Seen) -> usize;
    fn in_place(&mut self, seen: &mut Seen) -> usize;
}

macro_rules! drain {
    ($($kind:ident $(, $shared:ident)* { $($own:item)* })+) => {$(
        impl<const N: usize> Drain for $kind::Consumer<'_, Message<N>, Local> {
            fn is_disconnected(&self) -> bool {
                self.is_disconnected()
            }
            fn one_by_one(&mut self, seen: &mut Seen) -> usize {
                self.pop().map_or(0, |message| seen.note_all([&message]))
            }
            fn by_slices(&mut self, seen: &mut Seen) -> usize {
                let mut messages = [[0; N]; 29];
                let count = self.pop_slice(&mut messages).count();
                seen.note_all(&messages[..count])
            }
            $(drain! { @$shared })*
            $($own)*
        }
    )+};
    (@in_batches) => {
        fn in_batches(&mut self, seen: &mut Seen) -> usize {
            let mut batch = self.batch(16);
            from_fn(|| batch.pop().ok()).map(|message| seen.note(&message)).count()
        }
    };
    (@by_offset) => {
        fn in_place(&mut self, seen: &mut Seen) -> usize {
            self.peek(11).map_or(0, |chunk| {
                let count = (0..chunk.len()).filter_map(|offset| chunk.with(offset, |message| seen.note(message))).count();
                chunk.release(usize::MAX);
                count
            })
        }
    };
}

drain! {
    spsc, in_batches {
        fn head(&self) -> Option<u64> {
            Some(self.head())
        }
        fn in_place(&mut self, seen: &mut Seen) -> usize {
            self.peek(29).map_or(0, |chunk| {
                let count = seen.note_all(chunk.as_slices().into_iter().flatten());
                chunk.release(usize::MAX);
                count
            })
        }
    }
    flagged, in_batches, by_offset {
        fn head(&self) -> Option<u64> {
            Some(self.head())
        }
    }
    mpsc, in_batches, by_offset {}
    mpmc {
        fn in_batches(&mut self, seen: &mut Seen) -> usize {
            self.take(16).map_or(0, |taken| taken.map(|message| seen.note(&message)).count())
        }
        fn in_place(&mut self, seen: &mut Seen) -> usize {
            self.take(11).map_or(0, |taken| taken.map(|message| seen.note(&message)).count())
        }
    }
}

fn meet<P: Fill + Send, C: Drain + Send>(
    producers: Vec<P>,
    consumers: Vec<C>,
    messages: u64,
    fill: fn(&mut P, u64, u64),
    drain: fn(&mut C, &mut Seen) -> usize,
) {
    let count = producers.len();
    let all: Vec<Seen> = thread::scope(|scope| {
        for (mut producer, who) in producers.into_iter().zip(0..) {
            scope.spawn(move || fill(&mut producer, who, messages));
        }
        let follow = |mut consumer: C| {
            let mut seen = Seen::new(count, messages);
            let mut patience = Patience::new();
            loop {
                if drain(&mut consumer, &mut seen) == 0 {
                    let is_over = consumer.is_disconnected();
                    if drain(&mut consumer, &mut seen) == 0 {
                        if is_over {
                            assert!(consumer.head().is_none_or(|head| head == START.wrapping_add(messages)));
                            return seen;
                        }
                        patience.wait();
                        continue;
                    }
                }
                patience = Patience::new();
            }
        };
        let threads: Vec<_> = consumers.into_iter().map(|consumer| scope.spawn(move || follow(consumer))).collect();
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
    assert_eq!(got, count as u64 * messages, "lost");
}

fn alone<E>(end: E) -> Vec<E> {
    vec![end]
}

fn twice<E: Clone>(end: E) -> Vec<E> {
    vec![end.clone(), end]
}

macro_rules! rings {
    ($($name:ident: $producers:ident to $consumers:ident, $messages:literal of $words:literal in $kind:ident of $capacity:literal
        [$($way:ident)+];)+) => {$(
        mod $name {
            use super::*;

            $(
                #[test]
                fn $way() {
                    #[allow(unused_mut, reason = "an MPMC ring is split by reference")]
                    let mut ring = Box::new($kind::Ring::<Message<$words>, $capacity>::starting_at(START));
                    let (producer, consumer) = ring.split();
                    meet($producers(producer), $consumers(consumer), $messages * crate::DEPTH, Fill::$way, Drain::$way);
                }
            )+
        }
    )+};
}

rings! {
    spsc_words: alone to alone, 1_250_000 of 1 in spsc of 1024 [one_by_one in_batches by_slices];
    spsc_lines: alone to alone, 1_250_000 of 8 in spsc of 1024 [one_by_one in_batches in_place];
    spsc_of_256_bytes: alone to alone, 1_250_000 of 32 in spsc of 1024 [one_by_one in_batches];
    flagged_one_to_one: alone to alone, 125_000 of 5 in flagged of 256 [one_by_one in_batches by_slices in_place];
    mpsc_two_to_one: twice to alone, 125_000 of 5 in mpsc of 256 [one_by_one in_batches by_slices in_place];
    mpmc_two_to_two: twice to twice, 125_000 of 5 in mpmc of 256 [one_by_one in_batches by_slices in_place];
}
