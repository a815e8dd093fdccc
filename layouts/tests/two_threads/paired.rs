use std::thread;

use crate::patience::insist;
use crate::ring_memory::Memory;
use ringmem_layouts::Host;
use ringmem_layouts::ring::RingFlags;
use ringmem_layouts::ring::paired::{Consumer, Producer};

const START: u64 = u64::MAX - 5;

#[test]
fn whole_messages_are_exchanged() {
    const MESSAGES: u64 = 200_000 * crate::DEPTH;
    let memory = Memory::formatted::<[u64; 3]>(RingFlags::PAIRED, 8, START);
    // SAFETY: as long as its layout; its only ends.
    let mut producer: Producer<'_, [u64; 3], Host> = unsafe { Producer::from_raw(memory.base, memory.len()) }.unwrap();
    // SAFETY: as long as its layout; its only ends.
    let mut consumer: Consumer<'_, [u64; 3], Host> = unsafe { Consumer::from_raw(memory.base, memory.len()) }.unwrap();
    let value = |number: u64| [number, !number, number.wrapping_mul(0x9e37_79b9_7f4a_7c15)];
    thread::scope(|scope| {
        scope.spawn(move || (0..MESSAGES).for_each(|number| insist(|| producer.push(value(number)).ok())));
        for number in 0..MESSAGES {
            assert_eq!(insist(|| consumer.pop().ok()), value(number));
        }
    });
}
