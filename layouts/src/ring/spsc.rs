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

#[cfg(target_has_atomic = "64")]
pub mod untrusted;

super::alias::rings! { Indexed, BareSlot, "spsc" }
super::alias::one_producer! { Indexed }
super::alias::one_consumer! { Indexed }
