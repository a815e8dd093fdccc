//! A bounded single-producer single-consumer queue. Loads and stores only.
//!
//! 1. Every value is popped once, in order. `push` on a full ring returns `Err(PushError::Full(value))`.
//! 2. Wait-free: every operation takes a bounded number of steps.
//! 3. `push` and `pop` publish at once. [`Producer::batch`] and [`Consumer::batch`] publish several messages at a time; see there when.
//! 4. Grants ([`Producer::reserve`], [`Consumer::peek`]) work in place. Written slots are published; messages that are not released stay.
//!
//! It does not wait or wake. `is_disconnected` reports ends that announced themselves and were dropped.
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
super::alias::one_producer! { Indexed, "spsc" }
super::alias::one_consumer! { Indexed, "spsc" }
