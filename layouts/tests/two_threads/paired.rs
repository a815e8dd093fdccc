use std::thread;

use crate::patience::Patience;
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
        scope.spawn(move || {
            let mut patience = Patience::new();
            for number in 0..MESSAGES {
                while producer.push(value(number)).is_err() {
                    patience.wait();
                }
                patience = Patience::new();
            }
        });
        let mut patience = Patience::new();
        for number in 0..MESSAGES {
            let popped = loop {
                match consumer.pop() {
                    Ok(popped) => break popped,
                    Err(_) => patience.wait(),
                }
            };
            assert_eq!(popped, value(number));
            patience = Patience::new();
        }
    });
}
