//! One producer, one consumer, loads and stores only.
//!
//! 1. Everything pushed is popped once, in order; a push that does not fit gives its value back.
//! 2. Wait-free: every operation is a bounded number of steps, whatever the other side does.
//! 3. `push` and `pop` publish at once. [`Producer::batch`] and [`Consumer::batch`] publish every so many messages, and their
//!    documentation says when else.
//! 4. A grant ([`Producer::reserve`], [`Consumer::peek`]) works in place. What was written is published, what was not released stays.
//!
//! It does not wait and does not wake. `is_disconnected` knows of an end that said that it was there and then said that it left.
//!
//! # Two threads
//!
//! ```
//! use ringmem_layouts::ring::spsc::Ring;
//! let mut ring = Ring::<u64, 8>::new();
//! let (mut producer, mut consumer) = ring.split();
//! producer.push(7).unwrap();
//! assert_eq!(consumer.pop(), Ok(7));
//! ```
//!
//! # Orderings
//!
//! | sync point | release | acquire |
//! |---|---|---|
//! | slot published | the store of `tail` | the load of `tail` in [`Consumer::poll`] |
//! | slot released | the store of `head` | the load of `head` in [`Producer::poll`] |
//! | end closed | the store of `owner` when an end that [`announce`](Producer::announce)d itself is dropped | the load of it in `is_disconnected` |

#[cfg(any(target_has_atomic = "64", feature = "portable-atomic"))]
mod ring;
#[cfg(target_has_atomic = "64")]
pub mod untrusted;

#[cfg(all(feature = "alloc", any(target_has_atomic = "64", feature = "portable-atomic")))]
pub use ring::Boxed;
#[cfg(all(feature = "alloc", target_has_atomic = "ptr", any(target_has_atomic = "64", feature = "portable-atomic")))]
pub use ring::{OwnedConsumer, OwnedProducer};
#[cfg(any(target_has_atomic = "64", feature = "portable-atomic"))]
pub use ring::{Ring, RingIn};

pub use super::error::{PopError, PushError, ReserveError};
use super::kind::Indexed;

/// Fills slots and publishes them. One per ring.
pub type Producer<'a, T, M> = super::Producer<'a, Indexed, T, M>;
/// Empties slots and releases them. One per ring.
pub type Consumer<'a, T, M> = super::Consumer<'a, Indexed, T, M>;
/// Slots to be written in place.
pub type Grant<'p, 'a, T, M> = super::Grant<'p, 'a, Indexed, T, M>;
/// Waiting messages, seen in place.
pub type Chunk<'c, 'a, T, M> = super::Chunk<'c, 'a, Indexed, T, M>;
/// Publishes every so many messages.
pub type BatchProducer<'p, 'a, T, M> = super::BatchProducer<'p, 'a, Indexed, T, M>;
/// Releases every so many messages.
pub type BatchConsumer<'c, 'a, T, M> = super::BatchConsumer<'c, 'a, Indexed, T, M>;
