use std::num::NonZeroUsize;
use std::sync::Arc;

use disruptor::Producer as _;
use ringkernel_core::queue::{MessageQueue, MpscQueue};

use crate::kind::{ManyToMany, ManyToOne, Mpmc, Mpsc};
use crate::plain::Plain;
use crate::spsc_kinds::{envelope, payload};

macro_rules! kind {
    ($(#[$doc:meta])* $kind:ident: $trait:ident::$method:ident($work:ident), |$t:ident, $n:ident| $ends:expr) => {
        $(#[$doc])*
        pub struct $kind;
        impl<$t: Plain> $trait<$t> for $kind {
            fn $method<const $n: usize>(work: impl $work<$t>) -> f64 {
                let (push, pop) = $ends;
                work.run(push, pop)
            }
        }
    };
}

kind!(
    ArrayQueue: Mpmc::mpmc(ManyToMany),
    |T, N| {
        let queue = Arc::new(crossbeam_queue::ArrayQueue::<T>::new(N));
        let other = queue.clone();
        (move |value| other.push(value).is_ok(), move || queue.pop())
    }
);

kind!(
    CrossbeamChannel: Mpmc::mpmc(ManyToMany),
    |T, N| {
        let (sender, receiver) = crossbeam_channel::bounded::<T>(N);
        (move |value| sender.try_send(value).is_ok(), move || receiver.try_recv().ok())
    }
);

kind!(
    Thingbuf: Mpmc::mpmc(ManyToMany),
    |T, N| {
        let queue = Arc::new(thingbuf::ThingBuf::<T>::new(N));
        let other = queue.clone();
        (move |value| other.push(value).is_ok(), move || queue.pop())
    }
);

kind!(
    OmangoMany: Mpmc::mpmc(ManyToMany),
    |T, N| {
        let (sender, receiver) = omango::queue::mpmc::bounded::<T>(N as u32);
        (move |value| sender.try_send(value).is_ok(), move || receiver.try_recv().ok())
    }
);

kind!(
    GilMany: Mpmc::mpmc(ManyToMany),
    |T, N| {
        let (mut sender, mut receiver) = gil::mpmc::channel::<T>(const { NonZeroUsize::new(N).unwrap() });
        (move |value| sender.try_send(value).is_ok(), move || receiver.try_recv())
    }
);

kind!(
    HeaplessMany: Mpmc::mpmc(ManyToMany),
    |T, N| {
        // Deprecated because a suspended thread blocks the others; here that only costs time.
        #[expect(deprecated)]
        let queue = Arc::new(heapless::mpmc::Queue::<T, N>::new());
        let other = queue.clone();
        (move |value| other.enqueue(value).is_ok(), move || queue.dequeue())
    }
);

kind!(
    GilToOne: Mpsc::mpsc(ManyToOne),
    |T, N| {
        let (mut sender, mut receiver) = gil::mpsc::channel::<T>(const { NonZeroUsize::new(N).unwrap() });
        (move |value| sender.try_send(value).is_ok(), move || receiver.try_recv())
    }
);

kind!(
    NexusToOne: Mpsc::mpsc(ManyToOne),
    |T, N| {
        let (producer, consumer) = nexus_queue::mpsc::ring_buffer::<T>(N);
        (move |value| producer.push(value).is_ok(), move || consumer.pop())
    }
);

kind!(
    DisruptorToOne: Mpsc::mpsc(ManyToOne),
    |T, N| {
        let (mut poller, builder) = disruptor::build_multi_producer(N, T::default, disruptor::BusySpin).new_event_poller();
        let mut producer = builder.build();
        let mut polled = Vec::<T>::with_capacity(N).into_iter();
        let pop = move || {
            if polled.len() == 0 && let Ok(mut events) = poller.poll() {
                polled = (&mut events).copied().collect::<Vec<T>>().into_iter();
            }
            polled.next()
        };
        (move |value| producer.try_publish(|event| *event = value).is_ok(), pop)
    }
);

kind!(
    RingkernelToOne: Mpsc::mpsc(ManyToOne),
    |T, N| {
        let queue = Arc::new(MpscQueue::new(N));
        let full = queue.clone();
        let push = move |value| !full.is_full() && full.try_enqueue(envelope(&value)).is_ok();
        (push, move || queue.try_dequeue().ok().map(|envelope| payload(&envelope)))
    }
);
