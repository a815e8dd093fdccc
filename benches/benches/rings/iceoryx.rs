//! iceoryx2's queues, except the overflowing one, which drops the oldest message.

use std::fmt::Arguments;

use iceoryx2_bb_lock_free::spsc::index_queue::FixedSizeIndexQueue;
use iceoryx2_bb_lock_free::spsc::queue::Queue;
use iceoryx2_log::{Log, LogLevel};

use crate::CAPACITY;
use crate::kind::{Spsc, Work};
use crate::plain::Plain;

pub struct Iceoryx;

impl<T: Plain> Spsc<T> for Iceoryx {
    fn spsc(work: impl Work<T>) -> f64 {
        let queue = Box::new(Queue::<T, CAPACITY>::new());
        match (queue.acquire_producer(), queue.acquire_consumer()) {
            (Some(mut producer), Some(mut consumer)) => work.run(move |value| producer.push(&value), move || consumer.pop()),
            _ => panic!("the ends of a new queue are taken"),
        }
    }
}

/// Indices into a pool of samples: all that iceoryx2 sends between processes.
pub struct IceoryxIndex;

impl Spsc<[u64; 1]> for IceoryxIndex {
    fn spsc(work: impl Work<[u64; 1]>) -> f64 {
        let queue = Box::new(FixedSizeIndexQueue::<CAPACITY>::new());
        match (queue.acquire_producer(), queue.acquire_consumer()) {
            (Some(mut producer), Some(mut consumer)) => {
                work.run(move |[index]| producer.push(index), move || consumer.pop().map(|index| [index]))
            }
            _ => panic!("the ends of a new queue are taken"),
        }
    }
}

struct Logger;

impl Log for Logger {
    fn log(&self, level: LogLevel, origin: Arguments, message: Arguments) {
        eprintln!("iceoryx2: {level:?} {origin} {message}");
    }
}

// SAFETY: name and signature match the declaration; no other definition.
#[unsafe(no_mangle)]
fn __internal_default_logger() -> &'static dyn Log {
    &Logger
}
