use std::hint::spin_loop;
use std::sync::Arc;

use ringbuf::traits::{Consumer as _, Observer as _, Producer as _, Split as _};
use ringkernel_core::queue::{MessageQueue, SpscQueue};
use ringmem_benches::{Workload, two_threads};
use ringmem_layouts::CacheLineAligned;
use ringmem_layouts::ring::framed;

use crate::CAPACITY;
use crate::spsc_kinds::envelope_of;

const LONGEST: usize = 256;
const BYTES: usize = 128 * CAPACITY;

#[inline(always)]
fn length(number: u64) -> usize {
    let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    8 + ((mixed * 249) >> 32) as usize
}

#[inline(always)]
fn fill(bytes: &mut [u8], number: u64) {
    let (head, rest) = bytes.split_at_mut(8);
    head.copy_from_slice(&number.to_le_bytes());
    rest.fill(number as u8);
}

#[inline(always)]
fn check(bytes: &[u8], number: u64) {
    assert!(bytes.len() == length(number), "message {number} has {} bytes", bytes.len());
    let (head, rest) = bytes.split_at(8);
    assert!(head == number.to_le_bytes() && rest.iter().fold(0, |all, byte| all | (byte ^ number as u8)) == 0, "message {number}");
}

fn race(messages: u64, mut send: impl FnMut(u64, usize) -> bool + Send, mut receive: impl FnMut(u64) -> bool + Send) -> f64 {
    let send = move || {
        for number in 0..messages {
            while !send(number, length(number)) {
                spin_loop();
            }
        }
    };
    let receive = move || {
        for number in 0..messages {
            while !receive(number) {
                spin_loop();
            }
        }
    };
    two_threads(messages, send, receive)
}

macro_rules! in_place {
    ($messages:expr, $producer:ident.$reserve:ident($length:ty), $consumer:ident.$peek:ident()) => {
        race(
            $messages,
            move |number, length| {
                let Ok(mut grant) = $producer.$reserve(length as $length) else { return false };
                fill(&mut grant, number);
                grant.commit(length as $length);
                true
            },
            move |number| {
                let Ok(frame) = $consumer.$peek() else { return false };
                check(&frame, number);
                frame.release();
                true
            },
        )
    };
}

fn ours_in_place(messages: u64) -> f64 {
    let mut ring = Box::new(framed::Ring::<BYTES>::new());
    let (mut producer, mut consumer) = ring.split();
    in_place!(messages, producer.reserve(usize), consumer.peek())
}

fn ours_batched(messages: u64) -> f64 {
    let mut ring = Box::new(framed::Ring::<BYTES>::new());
    let (producer, consumer) = ring.split();
    let (mut producer, mut consumer) = (CacheLineAligned::new(producer), CacheLineAligned::new(consumer));
    let (mut producer, mut consumer) = (producer.batch(16), consumer.batch(16));
    in_place!(messages, producer.reserve(usize), consumer.peek())
}

fn ours_copying(messages: u64) -> f64 {
    let mut ring = Box::new(framed::Ring::<BYTES>::new());
    let (mut producer, mut consumer) = ring.split();
    let (mut sent, mut got) = ([0; LONGEST], [0; LONGEST]);
    let send = move |number, length| {
        fill(&mut sent[..length], number);
        producer.push(&sent[..length]).is_ok()
    };
    let receive = move |number| {
        let Ok(length) = consumer.pop(&mut got) else { return false };
        check(&got[..length], number);
        true
    };
    race(messages, send, receive)
}

fn bbqueue(messages: u64) -> f64 {
    let queue = bbqueue::nicknames::YakiNiku::new_with_storage(bbqueue::traits::storage::BoxedSlice::new(BYTES));
    let (producer, consumer) = (queue.framed_producer(), queue.framed_consumer());
    in_place!(messages, producer.grant(u16), consumer.read())
}

const PREFIX: usize = size_of::<u16>();

struct Frame([u8; PREFIX + LONGEST]);

impl Frame {
    fn new() -> Self {
        Self([0; PREFIX + LONGEST])
    }

    #[inline(always)]
    fn filled(&mut self, number: u64, length: usize) -> &[u8] {
        let frame = &mut self.0[..PREFIX + length];
        let (prefix, message) = frame.split_at_mut(PREFIX);
        prefix.copy_from_slice(&(length as u16).to_le_bytes());
        fill(message, number);
        frame
    }
}

fn rtrb(messages: u64) -> f64 {
    let (mut producer, mut consumer) = rtrb::RingBuffer::<u8>::new(BYTES);
    let (mut sent, mut got) = (Frame::new(), Frame::new());
    let send = move |number, length| producer.push_entire_slice(sent.filled(number, length)).is_ok();
    let receive = move |number| {
        let mut prefix = [0; PREFIX];
        let Ok(chunk) = consumer.read_chunk(PREFIX) else { return false };
        chunk.as_slices().0.iter().chain(chunk.as_slices().1).zip(&mut prefix).for_each(|(byte, place)| *place = *byte);
        let frame = &mut got.0[..PREFIX + usize::from(u16::from_le_bytes(prefix))];
        let popped = consumer.pop_entire_slice(frame).is_ok();
        check(&frame[PREFIX..], number);
        popped
    };
    race(messages, send, receive)
}

fn ringbuf(messages: u64) -> f64 {
    let (mut producer, mut consumer) = ringbuf::HeapRb::<u8>::new(BYTES).split();
    let (mut sent, mut got) = (Frame::new(), Frame::new());
    let send = move |number, length| {
        let frame = sent.filled(number, length);
        producer.vacant_len() >= frame.len() && producer.push_slice(frame) == frame.len()
    };
    let receive = move |number| {
        let mut prefix = [0; PREFIX];
        if consumer.peek_slice(&mut prefix) < PREFIX {
            return false;
        }
        let frame = &mut got.0[..PREFIX + usize::from(u16::from_le_bytes(prefix))];
        assert!(consumer.pop_slice(frame) == frame.len());
        check(&frame[PREFIX..], number);
        true
    };
    race(messages, send, receive)
}

fn channel(messages: u64) -> f64 {
    let (sender, receiver) = crossbeam_channel::bounded::<Vec<u8>>(CAPACITY);
    let send = move |number, length| {
        if sender.is_full() {
            return false;
        }
        let mut message = vec![0; length];
        fill(&mut message, number);
        sender.try_send(message).is_ok()
    };
    let receive = move |number| {
        receiver.try_recv().is_ok_and(|message| {
            check(&message, number);
            true
        })
    };
    race(messages, send, receive)
}

fn ringkernel(messages: u64) -> f64 {
    let queue = Arc::new(SpscQueue::new(CAPACITY));
    let full = queue.clone();
    let send = move |number, length| {
        if full.is_full() {
            return false;
        }
        let mut message = vec![0; length];
        fill(&mut message, number);
        full.try_enqueue(envelope_of(message)).is_ok()
    };
    let receive = move |number| {
        queue.try_dequeue().is_ok_and(|envelope| {
            check(&envelope.payload, number);
            true
        })
    };
    race(messages, send, receive)
}

pub fn workload() -> Workload {
    let subjects = vec![
        ("ringmem in place", ours_in_place as _),
        ("ringmem copying", ours_copying as _),
        ("ringmem in place batch 16", ours_batched as _),
        ("bbqueue", bbqueue as _),
        ("rtrb bytes", rtrb as _),
        ("ringbuf bytes", ringbuf as _),
        ("crossbeam-channel Vec", channel as _),
        ("ringkernel-core", ringkernel as _),
    ];
    Workload::two("framed", [1.15; 2], subjects)
}
