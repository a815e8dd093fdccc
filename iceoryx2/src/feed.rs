//! [`Feed`]: samples of a service into a ring.

use core::fmt;

use iceoryx2::port::subscriber::Subscriber;
use iceoryx2::prelude::Service;
use iceoryx2::sample::Sample;

use crate::{Error, Link, Moved, Payload, Sink};

/// A link's subscriber, whose samples feed a ring.
///
/// ```
/// use iceoryx2::prelude::*;
/// use ringmem::ring::spsc;
/// use ringmem_iceoryx2::{Feed, Link, Message};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use iceoryx2::prelude::local as ipc; // in this process
/// let node = NodeBuilder::new().create::<ipc::Service>()?;
/// let link = Link::messages::<u64>(&node, "numbers")?;
/// let (mut producer, mut consumer) = spsc::bounded::<u64>(2);
/// let mut feed = Feed::new(&link)?;
///
/// let publisher = link.service().publisher_builder().create()?;
/// (1..=3).try_for_each(|value| publisher.send_copy(Message(value)).map(|_| ()))?;
/// assert_eq!(feed.pump(&mut producer)?.messages, 2); // the third waits for room
/// assert_eq!((consumer.pop(), feed.pump(&mut producer)?.messages), (Ok(1), 1));
/// # Ok(()) }
/// ```
pub struct Feed<S: Service, P: Payload + ?Sized> {
    subscriber: Subscriber<S, P, ()>,
    /// A sample that is not in the ring yet.
    held: Option<Sample<S, P, ()>>,
    largest: usize,
    most: usize,
    total: Moved,
}

impl<S: Service, P: Payload + ?Sized> Feed<S, P> {
    /// Becomes the link's subscriber.
    ///
    /// # Errors
    ///
    /// [`Error::Subscriber`], also if there is another one. A killed one is removed when a node is made or a link is opened.
    pub fn new(link: &Link<S, P>) -> Result<Self, Error> {
        let subscriber = link.service().subscriber_builder().create().map_err(Error::Subscriber)?;
        Ok(Self { subscriber, held: None, largest: link.largest, most: link.queue(), total: Moved::default() })
    }

    /// Copies waiting samples into `ring`, at most as many as the [queue](Link::queue) holds. Never waits.
    ///
    /// If the ring is full, samples stay in the queue; a full queue stops the publishers.
    ///
    /// # Errors
    ///
    /// [`Error::Receive`], [`Error::TooLarge`] and the ring's. [`total`](Self::total) includes the samples moved before the error.
    pub fn pump(&mut self, ring: &mut impl Sink<P::Ring>) -> Result<Moved, Error> {
        let before = self.total;
        let pushed = self.push_all(ring);
        ring.flush()?;
        pushed?;
        Ok(self.total.since(before))
    }

    fn push_all(&mut self, ring: &mut impl Sink<P::Ring>) -> Result<(), Error> {
        for _ in 0..self.most {
            if !self.push_one(ring)? {
                break;
            }
        }
        Ok(())
    }

    fn push_one(&mut self, ring: &mut impl Sink<P::Ring>) -> Result<bool, Error> {
        if self.held.is_none() {
            self.held = P::receive(&self.subscriber).map_err(Error::Receive)?;
        }
        let Some(sample) = &self.held else { return Ok(false) };
        // First: another process wrote the slice's length.
        let bytes = P::size(sample);
        if bytes > self.largest {
            return Err(Error::TooLarge { bytes, largest: self.largest });
        }
        let is_pushed = ring.push(P::get(sample))?;
        if is_pushed {
            self.total.count(bytes);
            self.held = None;
        }
        Ok(is_pushed)
    }

    /// Drops the sample that did not fit; returns whether there was one.
    pub fn skip(&mut self) -> bool {
        self.held.take().is_some()
    }

    /// Returns the counts so far.
    #[must_use]
    pub const fn total(&self) -> Moved {
        self.total
    }
}

impl<S: Service, P: Payload + ?Sized> fmt::Debug for Feed<S, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Feed").field("total", &self.total).field("holds_one", &self.held.is_some()).finish_non_exhaustive()
    }
}
