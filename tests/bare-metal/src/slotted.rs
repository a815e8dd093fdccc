use core::mem::MaybeUninit;

use cortex_m::singleton;
use ringmem_layouts::Local;
use ringmem_layouts::ring::{Pop, PopError, Push, PushError, WordSlot, flagged, mpsc};

use crate::spsc::{Value, value};
use crate::tick::{self, Work};
use crate::{START, report};

const SLOTS: usize = 8;
const MINE: u32 = 1 << 31;

type Slots = [MaybeUninit<WordSlot<Value>>; SLOTS];

struct Pushes<P>(P);

impl<P: Push<Item = Value> + Send> Work for Pushes<P> {
    fn attempt(&mut self, number: u32) -> bool {
        match self.0.push(value(number)) {
            Ok(()) => true,
            Err(PushError::Full(_)) => false,
            Err(refused) => panic!("value {number}: {refused}"),
        }
    }
}

struct Pops<C>(C);

impl<C: Pop<Item = Value> + Send> Work for Pops<C> {
    fn attempt(&mut self, number: u32) -> bool {
        match self.0.pop() {
            Ok(seen) => assert_eq!(seen, value(number), "value {number}"),
            Err(PopError::Empty) => return false,
            Err(refused) => panic!("value {number}: {refused}"),
        }
        true
    }
}

struct PushesAndPops {
    producer: mpsc::Producer<'static, Value, Local>,
    consumer: mpsc::Consumer<'static, Value, Local>,
    pushed: u32,
    popped: u32,
}

impl Work for PushesAndPops {
    fn attempt(&mut self, number: u32) -> bool {
        if self.producer.push(value(MINE | self.pushed)).is_ok() {
            self.pushed += 1;
        }
        loop {
            match self.consumer.pop() {
                Ok(seen) if seen == value(MINE | self.popped) => self.popped += 1,
                Ok(seen) => {
                    assert_eq!(seen, value(number), "value {number}, after {} of main's", self.popped);
                    return true;
                }
                Err(PopError::Empty) => return false,
                Err(refused) => panic!("value {number}: {refused}"),
            }
        }
    }
}

macro_rules! both_ways {
    ($interrupt_to_main:ident, $main_to_interrupt:ident, $ring:ident, $name:literal) => {
        pub fn $interrupt_to_main(values: u32) {
            let Some(slots) = singleton!(: Slots = [const { MaybeUninit::uninit() }; SLOTS]) else { unreachable!("once") };
            let Ok(ring) = $ring::RingIn::over_starting_at(slots, START) else { unreachable!("a power of two") };
            let Some(ring) = singleton!(: $ring::RingIn<Value, &'static mut Slots> = ring) else { unreachable!("once") };
            let (producer, consumer) = ring.split();
            let Some(theirs) = singleton!(: Pushes<$ring::Producer<'static, Value, Local>> = Pushes(producer)) else { unreachable!("once") };
            let refused = tick::share(values, theirs, &mut Pops(consumer));
            report(concat!($name, ", interrupt to main"), values, laps(values), refused.interrupt, refused.main);
        }

        pub fn $main_to_interrupt(values: u32) {
            let Some(slots) = singleton!(: Slots = [const { MaybeUninit::uninit() }; SLOTS]) else { unreachable!("once") };
            let Ok(ring) = $ring::RingIn::over_starting_at(slots, START) else { unreachable!("a power of two") };
            let Some(ring) = singleton!(: $ring::RingIn<Value, &'static mut Slots> = ring) else { unreachable!("once") };
            let (producer, consumer) = ring.split();
            let Some(theirs) = singleton!(: Pops<$ring::Consumer<'static, Value, Local>> = Pops(consumer)) else { unreachable!("once") };
            let refused = tick::share(values, theirs, &mut Pushes(producer));
            report(concat!($name, ", main to interrupt"), values, laps(values), refused.main, refused.interrupt);
        }
    };
}

both_ways!(flagged_interrupt_to_main, flagged_main_to_interrupt, flagged, "flagged");
both_ways!(mpsc_interrupt_to_main, mpsc_main_to_interrupt, mpsc, "mpsc");

pub fn mpsc_both_to_main(values: u32) {
    let Some(slots) = singleton!(: Slots = [const { MaybeUninit::uninit() }; SLOTS]) else { unreachable!("once") };
    let Ok(ring) = mpsc::RingIn::over_starting_at(slots, START) else { unreachable!("a power of two") };
    let Some(ring) = singleton!(: mpsc::RingIn<Value, &'static mut Slots> = ring) else { unreachable!("once") };
    let (producer, consumer) = ring.split();
    let others = Pushes(producer.clone());
    let Some(theirs) = singleton!(: Pushes<mpsc::Producer<'static, Value, Local>> = others) else { unreachable!("once") };
    let mut ours = PushesAndPops { producer, consumer, pushed: 0, popped: 0 };
    let refused = tick::share(values, theirs, &mut ours);
    assert!(ours.popped >= 1000, "too few of main's: {}", ours.popped);
    report("mpsc, interrupt and main to main", values + ours.popped, laps(values + ours.popped), refused.interrupt, refused.main);
}

const fn laps(values: u32) -> u64 {
    values as u64 / SLOTS as u64
}
