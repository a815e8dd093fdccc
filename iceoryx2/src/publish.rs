//! [`Publish`]: messages of a ring to a service.

use core::fmt;

use iceoryx2::port::publisher::Publisher;
use iceoryx2::prelude::{AllocationStrategy, BackpressureStrategy, Service};
use ringmem::RingMessage;

use crate::{Error, Link, Message, Moved, Payload, Source};

/// A link's publisher, which empties a ring. A message stays in the ring until it is in the subscriber's queue.
///
/// ```
/// use iceoryx2::prelude::*;
/// use ringmem::ring::framed;
/// use ringmem_iceoryx2::{Link, Publish};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use iceoryx2::prelude::local as ipc; // in this process
/// let node = NodeBuilder::new().create::<ipc::Service>()?;
/// let link = Link::frames(&node, "log", 64)?;
/// let (mut producer, mut consumer) = framed::bounded(256);
/// let mut publish = Publish::frames(&link)?;
///
/// producer.push(b"started")?;
/// assert_eq!(publish.pump(&mut consumer)?.messages, 0); // there is no subscriber
/// let subscriber = link.service().subscriber_builder().create()?;
/// assert_eq!(publish.pump(&mut consumer)?.bytes, 7);
/// assert_eq!(subscriber.receive()?.as_deref(), Some(&b"started"[..]));
/// # Ok(()) }
/// ```
pub struct Publish<S: Service, P: Payload + ?Sized> {
    publisher: Publisher<S, P, ()>,
    largest: usize,
    most: usize,
    total: Moved,
}

impl<S: Service, T: RingMessage> Publish<S, Message<T>> {
    /// Becomes a publisher of messages.
    ///
    /// # Errors
    ///
    /// [`Error::Publisher`], for example if there are [`Options::publishers`](crate::Options::publishers) already.
    pub fn messages(link: &Link<S, Message<T>>) -> Result<Self, Error> {
        let builder = link.service().publisher_builder().backpressure_strategy(BackpressureStrategy::DiscardData);
        Ok(Self::over(link, builder.max_loaned_samples(1).create().map_err(Error::Publisher)?))
    }
}

impl<S: Service> Publish<S, [u8]> {
    /// Becomes a publisher of frames.
    ///
    /// # Errors
    ///
    /// As [`messages`](Publish::messages).
    pub fn frames(link: &Link<S, [u8]>) -> Result<Self, Error> {
        let builder = link.service().publisher_builder().backpressure_strategy(BackpressureStrategy::DiscardData);
        let builder = builder.initial_max_slice_len(link.largest).allocation_strategy(AllocationStrategy::Static);
        Ok(Self::over(link, builder.max_loaned_samples(1).create().map_err(Error::Publisher)?))
    }
}

impl<S: Service, P: Payload + ?Sized> Publish<S, P> {
    fn over(link: &Link<S, P>, publisher: Publisher<S, P, ()>) -> Self {
        Self { publisher, largest: link.largest, most: link.queue(), total: Moved::default() }
    }

    /// Publishes messages of `ring`, at most as many as the [queue](Link::queue) holds. Never waits.
    ///
    /// Messages stay in the ring while the queue is full or there is no subscriber.
    ///
    /// # Errors
    ///
    /// [`Error::Loan`], [`Error::Send`], [`Error::TooLarge`] and the ring's. The message stays in the ring; [`total`](Self::total) includes earlier
    /// ones.
    pub fn pump(&mut self, ring: &mut impl Source<P::Ring>) -> Result<Moved, Error> {
        let before = self.total;
        ring.flush()?;
        for _ in 0..self.most {
            if !self.send_one(ring)? {
                break;
            }
        }
        Ok(self.total.since(before))
    }

    fn send_one(&mut self, ring: &mut impl Source<P::Ring>) -> Result<bool, Error> {
        let (publisher, largest, total) = (&self.publisher, self.largest, &mut self.total);
        ring.pop(|message| {
            let bytes = size_of_val(message);
            if bytes > largest {
                return Err(Error::TooLarge { bytes, largest });
            }
            let sample = P::loan(publisher, message).map_err(Error::Loan)?;
            // 0 without a subscriber, or if its queue is full: the sample is discarded, not the message.
            let is_sent = sample.send().map_err(Error::Send)? > 0;
            if is_sent {
                total.count(bytes);
            }
            Ok(is_sent)
        })
    }

    /// Returns the counts so far.
    #[must_use]
    pub const fn total(&self) -> Moved {
        self.total
    }
}

impl<S: Service, P: Payload + ?Sized> fmt::Debug for Publish<S, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Publish").field("total", &self.total).finish_non_exhaustive()
    }
}
