use cortex_m::singleton;
use ringmem_layouts::Local;
use ringmem_layouts::ring::spsc::{Consumer, PopError, Producer, PushError, Ring};

use crate::tick::{self, Work};
use crate::{START, report};

const SLOTS: usize = 8;

pub type Value = [u32; 8];

pub fn value(number: u32) -> Value {
    core::array::from_fn(|place| number.wrapping_mul(0x9e37_79b9) ^ place as u32)
}

/// Not inlined: its size is printed.
#[inline(never)]
fn push(producer: &mut Producer<'_, Value, Local>, value: Value) -> Result<(), PushError<Value>> {
    producer.push(value)
}

#[inline(never)]
fn pop(consumer: &mut Consumer<'_, Value, Local>) -> Result<Value, PopError> {
    consumer.pop()
}

struct Pushes(Producer<'static, Value, Local>);

impl Work for Pushes {
    fn attempt(&mut self, number: u32) -> bool {
        match push(&mut self.0, value(number)) {
            Ok(()) => true,
            Err(PushError::Full(_)) => false,
            Err(refused) => panic!("value {number}: {refused}"),
        }
    }
}

struct Pops(Consumer<'static, Value, Local>);

impl Work for Pops {
    fn attempt(&mut self, number: u32) -> bool {
        match pop(&mut self.0) {
            Ok(seen) => assert_eq!(seen, value(number), "value {number}"),
            Err(PopError::Empty) => return false,
            Err(refused) => panic!("value {number}: {refused}"),
        }
        true
    }
}

const fn laps(index: u64) -> u64 {
    index.wrapping_sub(START) / SLOTS as u64
}

pub fn interrupt_to_main(values: u32) {
    let Some(ring) = singleton!(: Ring<Value, SLOTS> = Ring::starting_at(START)) else { unreachable!("once") };
    let (producer, consumer) = ring.split();
    let Some(theirs) = singleton!(: Pushes = Pushes(producer)) else { unreachable!("once") };
    let mut ours = Pops(consumer);
    let refused = tick::share(values, theirs, &mut ours);
    report("spsc, interrupt to main", values, laps(ours.0.head()), refused.interrupt, refused.main);
}

pub fn main_to_interrupt(values: u32) {
    let Some(ring) = singleton!(: Ring<Value, SLOTS> = Ring::starting_at(START)) else { unreachable!("once") };
    let (producer, consumer) = ring.split();
    let Some(theirs) = singleton!(: Pops = Pops(consumer)) else { unreachable!("once") };
    let mut ours = Pushes(producer);
    let refused = tick::share(values, theirs, &mut ours);
    report("spsc, main to interrupt", values, laps(ours.0.tail()), refused.main, refused.interrupt);
}
