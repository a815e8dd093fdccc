use std::hint::spin_loop;
use std::mem::MaybeUninit;

use disruptor::Producer as _;
use ringbuf::traits::{Consumer as _, Producer as _, Raw as _, Split as _};
use ringmem_benches::{Workload, two_threads};
use ringmem_layouts::ring::spsc;
use zerocopy::{FromBytes, IntoBytes};

use crate::CAPACITY;
use crate::limits::lines;
use crate::plain::Message;
use crate::spsc_kinds::NON_ZERO;

const BATCH: usize = 32;

type Line = [u64; 8];

fn race(messages: u64, mut send: impl FnMut(u64) -> usize + Send, mut receive: impl FnMut(u64) -> usize + Send) -> f64 {
    let messages = messages.next_multiple_of(BATCH as u64);
    fn all(messages: u64, mut some: impl FnMut(u64) -> usize) {
        let mut number = 0;
        while number < messages {
            match some(number) {
                0 => spin_loop(),
                done => number += done as u64,
            }
        }
    }
    two_threads(messages, move || all(messages, &mut send), move || all(messages, &mut receive))
}

fn numbered(first: u64) -> impl Iterator<Item = Line> {
    (first..).map(Line::numbered)
}

fn block(first: u64) -> [Line; BATCH] {
    std::array::from_fn(|index| Line::numbered(first + index as u64))
}

fn write(slots: &mut [MaybeUninit<Line>], first: u64) {
    for (slot, line) in slots.iter_mut().zip(numbered(first)) {
        slot.write(line);
    }
}

fn check<'a>(lines: impl IntoIterator<Item = &'a Line>, first: u64) -> usize {
    let checked = lines.into_iter().zip(first..).map(|(line, number)| line.check(number));
    checked.count()
}

fn ours_in_place(messages: u64) -> f64 {
    let mut ring = Box::new(spsc::Ring::<Line, CAPACITY>::new());
    let (mut producer, mut consumer) = ring.split();
    let send = move |first| {
        let Ok(mut grant) = producer.reserve(BATCH) else { return 0 };
        grant.fill(numbered(first))
    };
    let receive = move |first| {
        let Ok(chunk) = consumer.peek(BATCH) else { return 0 };
        let [head, rest] = chunk.as_slices();
        check(head.iter().chain(rest), first);
        let count = chunk.len();
        chunk.release(count);
        count
    };
    race(messages, send, receive)
}

fn ours_copying(messages: u64) -> f64 {
    let mut ring = Box::new(spsc::Ring::<Line, CAPACITY>::new());
    let (mut producer, mut consumer) = ring.split();
    let mut got = [Line::default(); BATCH];
    let send = move |first| producer.push_slice(&block(first)).unwrap_or(0);
    let receive = move |first| {
        let count = consumer.pop_slice(&mut got).unwrap_or(0);
        check(&got[..count], first)
    };
    race(messages, send, receive)
}

fn rtrb_in_place(messages: u64) -> f64 {
    let (mut producer, mut consumer) = rtrb::RingBuffer::<Line>::new(CAPACITY);
    let send = move |first| producer.write_chunk_uninit(BATCH).map_or(0, |chunk| chunk.fill_from_iter(numbered(first)));
    let receive = move |first| {
        let Ok(chunk) = consumer.read_chunk(BATCH) else { return 0 };
        let (head, rest) = chunk.as_slices();
        check(head.iter().chain(rest), first);
        chunk.commit_all();
        BATCH
    };
    race(messages, send, receive)
}

fn rtrb_copying(messages: u64) -> f64 {
    let (mut producer, mut consumer) = rtrb::RingBuffer::<Line>::new(CAPACITY);
    let mut got = [Line::default(); BATCH];
    let send = move |first| producer.push_partial_slice(&block(first)).0.len();
    let receive = move |first| {
        let count = consumer.pop_partial_slice(&mut got).0.len();
        check(&got[..count], first)
    };
    race(messages, send, receive)
}

fn ringbuf_in_place(messages: u64) -> f64 {
    let (mut producer, mut consumer) = ringbuf::HeapRb::<Line>::new(CAPACITY).split();
    let send = move |first: u64| {
        let (head, rest) = producer.vacant_slices_mut();
        let count = BATCH.min(head.len() + rest.len());
        let split = count.min(head.len());
        write(&mut head[..split], first);
        write(&mut rest[..count - split], first + split as u64);
        // SAFETY: `count` vacant slots were just written.
        unsafe { producer.advance_write_index(count) };
        count
    };
    let receive = move |first| {
        let (head, rest) = consumer.as_slices();
        let count = BATCH.min(head.len() + rest.len());
        check(head.iter().chain(rest).take(count), first);
        consumer.skip(count)
    };
    race(messages, send, receive)
}

fn ringbuf_copying(messages: u64) -> f64 {
    let (mut producer, mut consumer) = ringbuf::HeapRb::<Line>::new(CAPACITY).split();
    let mut got = [Line::default(); BATCH];
    let send = move |first| producer.push_slice(&block(first));
    let receive = move |first| {
        let count = consumer.pop_slice(&mut got);
        check(&got[..count], first)
    };
    race(messages, send, receive)
}

fn gil_in_place(messages: u64) -> f64 {
    let (mut sender, mut receiver) = gil::spsc::channel::<Line>(NON_ZERO);
    let send = move |first| {
        let slots = sender.write_buffer();
        let count = BATCH.min(slots.len());
        write(&mut slots[..count], first);
        // SAFETY: `count` vacant slots were just written.
        unsafe { sender.commit(count) };
        count
    };
    let receive = move |first| {
        let mut guard = receiver.read_guard();
        let count = BATCH.min(guard.len());
        check(&guard.as_slice()[..count], first);
        guard.advance(count);
        count
    };
    race(messages, send, receive)
}

fn gil_copying(messages: u64) -> f64 {
    let (mut sender, mut receiver) = gil::spsc::channel::<Line>(NON_ZERO);
    let mut got = [Line::default(); BATCH];
    let send = move |first| {
        let slots = sender.write_buffer();
        let count = BATCH.min(slots.len());
        slots[..count].write_copy_of_slice(&block(first)[..count]);
        // SAFETY: `count` vacant slots were just written.
        unsafe { sender.commit(count) };
        count
    };
    let receive = move |first| {
        let count = receiver.read_guard().copy_into(&mut got);
        check(&got[..count], first)
    };
    race(messages, send, receive)
}

fn fq_copying(messages: u64) -> f64 {
    let (mut producer, mut consumer) = fq::FastQueue::<Line>::new(CAPACITY);
    let mut got = [Line::default(); BATCH];
    let send = move |first| producer.push_slice(&block(first));
    let receive = move |first| {
        let count = consumer.pop_slice(&mut got);
        check(&got[..count], first)
    };
    race(messages, send, receive)
}

fn disruptor_in_place(messages: u64) -> f64 {
    let (mut poller, builder) = disruptor::build_single_producer(CAPACITY, Line::default, disruptor::BusySpin).new_event_poller();
    let mut producer = builder.build();
    let send = move |first| {
        let sent = producer.try_batch_publish(BATCH, |events| events.zip(numbered(first)).for_each(|(event, line)| *event = line));
        sent.map_or(0, |_| BATCH)
    };
    let receive = move |first| {
        let Ok(mut events) = poller.take(BATCH as u64) else { return 0 };
        check(&mut events, first)
    };
    race(messages, send, receive)
}

fn bbqueue_in_place(messages: u64) -> f64 {
    const LINE: usize = size_of::<Line>();
    let queue = bbqueue::nicknames::YakiNiku::new_with_storage(bbqueue::traits::storage::BoxedSlice::new(CAPACITY * LINE));
    let (producer, consumer) = (queue.stream_producer(), queue.stream_consumer());
    let send = move |first| {
        let Ok(mut grant) = producer.grant_exact(BATCH * LINE) else { return 0 };
        for (bytes, line) in grant.chunks_exact_mut(LINE).zip(numbered(first)) {
            bytes.copy_from_slice(line.as_bytes());
        }
        grant.commit(BATCH * LINE);
        BATCH
    };
    let receive = move |first: u64| {
        let Ok(grant) = consumer.read() else { return 0 };
        let count = BATCH.min(grant.len() / LINE);
        for (bytes, number) in grant.chunks_exact(LINE).take(count).zip(first..) {
            Line::read_from_bytes(bytes).unwrap_or_default().check(number);
        }
        grant.release(count * LINE);
        count
    };
    race(messages, send, receive)
}

pub fn workload() -> Workload {
    let subjects = vec![
        ("ringmem in place", ours_in_place as _),
        ("ringmem copying", ours_copying as _),
        ("rtrb in place", rtrb_in_place as _),
        ("rtrb copying", rtrb_copying as _),
        ("ringbuf in place", ringbuf_in_place as _),
        ("ringbuf copying", ringbuf_copying as _),
        ("gil in place", gil_in_place as _),
        ("gil copying", gil_copying as _),
        ("fq copying", fq_copying as _),
        ("disruptor in place", disruptor_in_place as _),
        ("bbqueue in place", bbqueue_in_place as _),
    ];
    Workload { limit: Some(lines::<1>), ..Workload::two("batch32-64", [1.15; 2], subjects) }
}
