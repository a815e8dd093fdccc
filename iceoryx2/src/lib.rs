//! Connects a ring to [iceoryx2](https://docs.rs/iceoryx2) services on one host: a subscriber's samples feed a ring, for example a kernel's, and a
//! ring's messages are published.
//!
//! A [`Link`] is a service with the ring's type. A [`Feed`] is its subscriber, a [`Publish`] one of its publishers.
//!
//! | ring | filled by [`Feed::pump`] | emptied by [`Publish::pump`] |
//! |---|---|---|
//! | a running kernel's | [`Channel`](ringmem::channel::Channel) | [`Channel`](ringmem::channel::Channel) |
//! | `ring::spsc` | `OwnedProducer` | `OwnedConsumer` |
//! | `ring::framed` | `OwnedProducer` | `OwnedConsumer` |
//! | others | implement [`Sink`] | implement [`Source`] |
//!
//! ```
//! use iceoryx2::prelude::*;
//! use ringmem::backend::host::HostBackend;
//! use ringmem::channel::Channel;
//! use ringmem_iceoryx2::{Feed, Link, Message, Publish};
//! use ringmem_kernels::echo::{ECHO, Echo};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use iceoryx2::prelude::local as ipc; // in this process
//! let node = NodeBuilder::new().create::<ipc::Service>()?;
//! let questions = Link::messages::<Echo>(&node, "questions")?;
//! let answers = Link::messages::<Echo>(&node, "answers")?;
//!
//! let backend = HostBackend::builder().build()?;
//! let mut channel = Channel::open(&backend, 0, ECHO)?;
//! let (mut feed, mut publish) = (Feed::new(&questions)?, Publish::messages(&answers)?);
//!
//! // Usually in another process:
//! let publisher = questions.service().publisher_builder().create()?;
//! let subscriber = answers.service().subscriber_builder().create()?;
//! publisher.send_copy(Message(Echo { words: [7; 8] }))?;
//!
//! feed.pump(&mut channel)?; // or `run`, until a stop
//! while publish.pump(&mut channel)?.messages == 0 {}
//! assert_eq!(subscriber.receive()?.expect("an answer").0.words, [7; 8]);
//! # Ok(()) }
//! ```
//!
//! # Guarantees
//!
//! 1. **Order.** A publisher's messages stay in order.
//! 2. **No loss, no doubling while both processes live.** A sample stays in the subscriber's queue until the ring has room, a message
//!    in the ring until it is in the queue.
//! 3. **Backpressure.** A link's service has no overflow, no history and one subscriber. A full ring fills the queue, which stops the publishers: a
//!    [`Publish`] leaves messages in its ring; for your own publisher, see [`Link::service`].
//! 4. **Types.** Opening a link compares iceoryx2's type name and size, and the ABI hash, kind and fields in the service's attributes.
//!    [`Error::Mismatch`] shows both.
//! 5. **A killed publisher.** Samples that it sent arrive.
//! 6. **A killed subscriber.** The samples in its queue and one more are lost. [`Publish`] continues with the next subscriber.
//!
//! # Not guaranteed
//!
//! - The order between several publishers.
//! - A killed process with a ring in a file: the next [`Publish`] may repeat the last message.
//! - Protection from hostile processes. iceoryx2 trusts every process of the same user. Such a process can change a sample while it is copied,
//!   which yields other bytes, or corrupt iceoryx2's state, which can end the other processes by a panic or a segmentation fault. A link only bounds
//!   the length of frames and the limits of a service that another program made.
//! - Memory. iceoryx2 reserves only addresses for the queue: if `/dev/shm` is full, writing a sample ends the process (SIGBUS).
//!
//! # Copies
//!
//! One in each direction: from the sample into the ring's slot, and from the slot into a loaned sample.

mod ends;
mod error;
mod feed;
mod link;
mod payload;
mod publish;
mod run;
mod service_type;

pub use ends::{Sink, Source};
pub use error::Error;
pub use feed::Feed;
pub use link::{Link, Options};
pub use payload::{Message, Payload};
pub use publish::Publish;
pub use run::{Moved, run};
pub use service_type::ServiceType;
