use std::thread;

use crate::patience::insist;
use ringmem_layouts::Local;
use ringmem_layouts::ring::framed::{Consumer, PopError, Producer, Ring};

const MESSAGES: u64 = 250_000 * crate::DEPTH;
const BYTES: usize = 4096;
const LONGEST: usize = BYTES / 2 - 8;
const START: u64 = u64::MAX - 5;

const fn length(number: u64) -> usize {
    let hash = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    match hash % 256 {
        0 => LONGEST,
        1..9 => (hash / 256) as usize % LONGEST,
        _ => (hash / 256) as usize % 97,
    }
}

const fn byte(number: u64, place: usize) -> u8 {
    (number.wrapping_mul(0xff51_afd7_ed55_8ccd) >> 32) as u8 ^ (place as u8).wrapping_mul(0x9d)
}

fn write(number: u64, into: &mut [u8]) {
    for (place, at) in into.iter_mut().enumerate() {
        *at = byte(number, place);
    }
}

fn verify(number: u64, message: &[u8]) {
    assert_eq!(message.len(), length(number), "message {number}");
    let wrong = message.iter().enumerate().position(|(place, seen)| *seen != byte(number, place));
    assert_eq!(wrong, None, "message {number}");
}

fn between_two_threads(produce: impl FnOnce(&mut Producer<'_, Local>) + Send, consume: impl FnOnce(&mut Consumer<'_, Local>)) {
    let mut ring = Box::new(Ring::<BYTES>::starting_at(START));
    let (mut producer, mut consumer) = ring.split();
    thread::scope(|scope| {
        scope.spawn(|| produce(&mut producer));
        consume(&mut consumer);
    });
    assert_eq!(consumer.peek().map(drop), Err(PopError::Empty), "more came out than went in");
    assert_eq!((consumer.head(), producer.refresh()), (producer.tail(), Ok(BYTES)));
}

#[test]
fn push_and_pop_transfer_whole_messages_in_order() {
    between_two_threads(
        |producer| {
            let mut message = [0; LONGEST];
            for number in 0..MESSAGES {
                let message = &mut message[..length(number)];
                write(number, message);
                insist(|| producer.push(message).ok());
            }
        },
        |consumer| {
            let mut message = [0; LONGEST];
            for number in 0..MESSAGES {
                let len = insist(|| consumer.pop(&mut message).ok());
                verify(number, &message[..len]);
            }
        },
    );
}

#[test]
fn reserve_and_peek_transfer_whole_messages_in_order() {
    between_two_threads(
        |producer| {
            for number in 0..MESSAGES {
                let len = length(number);
                let more = if number.is_multiple_of(3) { LONGEST.min(len + 40) } else { len };
                insist(|| {
                    let mut grant = producer.reserve(more).ok()?;
                    write(number, &mut grant[..len]);
                    grant.commit(len);
                    Some(())
                });
            }
        },
        |consumer| {
            for number in 0..MESSAGES {
                insist(|| {
                    let frame = consumer.peek().ok()?;
                    verify(number, &frame);
                    frame.release();
                    Some(())
                });
            }
        },
    );
}

#[test]
fn batches_transfer_whole_messages_in_order() {
    between_two_threads(
        |producer| {
            let mut batch = producer.batch(16);
            let mut message = [0; LONGEST];
            for number in 0..MESSAGES {
                let message = &mut message[..length(number)];
                write(number, message);
                insist(|| batch.push(message).ok());
            }
        },
        |consumer| {
            let mut batch = consumer.batch(16);
            let mut message = [0; LONGEST];
            for number in 0..MESSAGES {
                let len = insist(|| batch.pop(&mut message).ok());
                verify(number, &message[..len]);
            }
        },
    );
}

#[test]
fn push_many_and_peek_many_keep_message_order() {
    between_two_threads(
        |producer| {
            let mut bytes = vec![[0; LONGEST]; 8];
            let mut number = 0;
            while number < MESSAGES {
                let count = 8.min(MESSAGES - number);
                for (message, number) in bytes.iter_mut().zip(number..) {
                    write(number, &mut message[..length(number)]);
                }
                let messages = bytes.iter().zip(number..number + count).map(|(message, number)| &message[..length(number)]);
                number += insist(|| Some(producer.push_many(messages.clone()).0).filter(|taken| *taken > 0)) as u64;
            }
        },
        |consumer| {
            let mut number = 0;
            while number < MESSAGES {
                number += insist(|| {
                    let chunk = consumer.peek_many().ok()?;
                    let mut next = number;
                    while let Ok(message) = chunk.next() {
                        verify(next, &message);
                        next += 1;
                    }
                    Some(chunk.release() as u64)
                });
            }
        },
    );
}
