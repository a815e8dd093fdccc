use cortex_m::singleton;
use ringmem_layouts::Local;
use ringmem_layouts::ring::framed::{Consumer, PopError, Producer, PushError, Ring};

use crate::tick::{self, Work};
use crate::{START, report};

const BYTES: usize = 512;
const LONGEST: usize = BYTES / 2 - 8;

const fn length(number: u32) -> usize {
    let hash = (number.wrapping_mul(0x9e37_79b9) >> 12) as usize;
    match hash % 64 {
        0 => LONGEST,
        1..5 => hash / 64 % LONGEST,
        _ => hash / 64 % 49,
    }
}

fn message(number: u32, into: &mut [u8; LONGEST]) -> &mut [u8] {
    let message = &mut into[..length(number)];
    for (place, byte) in message.iter_mut().enumerate() {
        *byte = (number.wrapping_mul(0xff51_afd7) >> 8) as u8 ^ (place as u8).wrapping_mul(0x9d);
    }
    message
}

/// Not inlined: its size is printed.
#[inline(never)]
fn push(producer: &mut Producer<'_, Local>, message: &[u8]) -> Result<(), PushError> {
    producer.push(message)
}

#[inline(never)]
fn pop(consumer: &mut Consumer<'_, Local>, into: &mut [u8]) -> Result<usize, PopError> {
    consumer.pop(into)
}

struct Pushes(Producer<'static, Local>);

impl Work for Pushes {
    fn attempt(&mut self, number: u32) -> bool {
        match push(&mut self.0, message(number, &mut [0; LONGEST])) {
            Ok(()) => true,
            Err(PushError::Full) => false,
            Err(refused) => panic!("framed message {number}: {refused}"),
        }
    }
}

struct Pops(Consumer<'static, Local>);

impl Work for Pops {
    fn attempt(&mut self, number: u32) -> bool {
        let mut seen = [0; LONGEST];
        let len = match pop(&mut self.0, &mut seen) {
            Ok(len) => len,
            Err(PopError::Empty) => return false,
            Err(refused) => panic!("framed message {number}: {refused}"),
        };
        assert_eq!(len, length(number), "length of framed message {number}");
        assert_eq!(seen[..len], *message(number, &mut [0; LONGEST]), "framed message {number}");
        true
    }
}

const fn laps(index: u64) -> u64 {
    index.wrapping_sub(START) / (BYTES as u64 / 8)
}

pub fn interrupt_to_main(messages: u32) {
    let Some(ring) = singleton!(: Ring<BYTES> = Ring::starting_at(START)) else { unreachable!("once") };
    let (producer, consumer) = ring.split();
    let Some(theirs) = singleton!(: Pushes = Pushes(producer)) else { unreachable!("once") };
    let mut ours = Pops(consumer);
    let refused = tick::share(messages, theirs, &mut ours);
    report("framed, interrupt to main", messages, laps(ours.0.head()), refused.interrupt, refused.main);
}

pub fn main_to_interrupt(messages: u32) {
    let Some(ring) = singleton!(: Ring<BYTES> = Ring::starting_at(START)) else { unreachable!("once") };
    let (producer, consumer) = ring.split();
    let Some(theirs) = singleton!(: Pops = Pops(consumer)) else { unreachable!("once") };
    let mut ours = Pushes(producer);
    let refused = tick::share(messages, theirs, &mut ours);
    report("framed, main to interrupt", messages, laps(ours.0.tail()), refused.main, refused.interrupt);
}
