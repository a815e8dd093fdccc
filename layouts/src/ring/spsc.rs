//! A bounded single-producer single-consumer queue.
//!
//! 1. Every value is popped once, in order. `push` on a full ring returns `Err(PushError::Full(value))`.
//! 2. Wait-free, by loads and stores only.
//! 3. `push` and `pop` publish at once; [`Producer::batch`] and [`Consumer::batch`] publish several messages at a time.
//! 4. [`Producer::reserve`] and [`Consumer::peek`] work in place.
//!
//! The ends are those of all rings with one producer or consumer (`producer.rs`, `consumer.rs`); what distinguishes an index ring, with its fields and
//! invariants, is in `kind/indexed.rs`.
//!
//! # Two threads
//!
//! ```
//! # use ringmem_layouts as ringmem;
//! use ringmem::ring::spsc::Ring;
//! let mut ring = Ring::<u64, 8>::new();
//! let (mut producer, mut consumer) = ring.split();
//! producer.push(7).unwrap();
//! assert_eq!(consumer.pop(), Ok(7));
//! ```

pub(super) mod constant;
#[cfg(target_has_atomic = "64")]
pub mod untrusted;

super::alias::host! { spsc, boxed }
pub use super::error::{PopError, PushError, ReserveError};
super::alias::one_producer! { Indexed, "spsc" }
super::alias::one_consumer! { Indexed, "spsc" }
