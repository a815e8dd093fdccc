use std::num::NonZeroUsize;
use std::sync::Arc;

use disruptor::Producer as _;
use ringbuf::traits::{Consumer as _, Producer as _, Split as _};
use ringkernel_core::hlc::HlcTimestamp;
use ringkernel_core::message::MessageEnvelope;
use ringkernel_core::queue::{MessageQueue, SpscQueue};

use crate::CAPACITY;
use crate::kind::{Spsc, Work};
use crate::plain::Plain;

pub const NON_ZERO: NonZeroUsize = NonZeroUsize::new(CAPACITY).unwrap();

macro_rules! kind {
    ($(#[$doc:meta])* $kind:ident, |$t:ident| $ends:expr) => {
        $(#[$doc])*
        pub struct $kind;
        impl<$t: Plain> Spsc<$t> for $kind {
            fn spsc(work: impl Work<$t>) -> f64 {
                let (push, pop) = $ends;
                work.run(push, pop)
            }
        }
    };
}

kind!(Rtrb, |T| {
    let (mut producer, mut consumer) = rtrb::RingBuffer::<T>::new(CAPACITY);
    (move |value| producer.push(value).is_ok(), move || consumer.pop().ok())
});

kind!(Ringbuf, |T| {
    let (mut producer, mut consumer) = ringbuf::HeapRb::<T>::new(CAPACITY).split();
    (move |value| producer.try_push(value).is_ok(), move || consumer.try_pop())
});

kind!(Gil, |T| {
    let (mut sender, mut receiver) = gil::spsc::channel::<T>(NON_ZERO);
    (move |value| sender.try_send(value).is_ok(), move || receiver.try_recv())
});

kind!(Nexus, |T| {
    let (producer, consumer) = nexus_queue::spsc::ring_buffer::<T>(CAPACITY);
    (move |value| producer.push(value).is_ok(), move || consumer.pop())
});

kind!(Omango, |T| {
    let (sender, receiver) = omango::queue::spsc::bounded::<T>(CAPACITY as u32);
    (move |value| sender.try_send(value).is_ok(), move || receiver.try_recv().ok())
});

kind!(Quickring, |T| {
    let (mut producer, mut consumer) = quickring::RingBuffer::<T, CAPACITY>::new().split();
    (move |value| producer.push(value), move || consumer.pop())
});

kind!(Fq, |T| {
    let (mut producer, mut consumer) = fq::FastQueue::<T>::new(CAPACITY);
    (move |value| producer.push(value).is_ok(), move || consumer.pop())
});

kind!(Disruptor, |T| {
    let (mut poller, builder) = disruptor::build_single_producer(CAPACITY, T::default, disruptor::BusySpin).new_event_poller();
    let mut producer = builder.build();
    let pop = move || poller.take(1).ok().and_then(|mut events| (&mut events).next().copied());
    (move |value| producer.try_publish(|event| *event = value).is_ok(), pop)
});

kind!(
    /// Its envelopes have a header of 256 bytes and a heap payload.
    Ringkernel,
    |T| {
        let queue = Arc::new(SpscQueue::new(CAPACITY));
        let full = queue.clone();
        // A failed push does not return the envelope.
        (move |value| !full.is_full() && full.try_enqueue(envelope(&value)).is_ok(), move || queue.try_dequeue().ok().map(|envelope| payload(&envelope)))
    }
);

pub fn envelope_of(payload: Vec<u8>) -> MessageEnvelope {
    MessageEnvelope { payload, ..MessageEnvelope::empty(0, 1, HlcTimestamp::zero()) }
}

pub fn envelope<T: Plain>(value: &T) -> MessageEnvelope {
    envelope_of(value.as_bytes().to_vec())
}

pub fn payload<T: Plain>(envelope: &MessageEnvelope) -> T {
    T::read_from_bytes(&envelope.payload).unwrap_or_else(|_| panic!("a payload of {} bytes", envelope.payload.len()))
}

pub struct Heapless;

impl<T: Plain> Spsc<T> for Heapless {
    fn spsc(work: impl Work<T>) -> f64 {
        let mut queue = Box::new(heapless::spsc::Queue::<T, CAPACITY>::new());
        let (mut producer, mut consumer) = queue.split();
        work.run(move |value| producer.enqueue(value).is_ok(), move || consumer.dequeue())
    }
}
