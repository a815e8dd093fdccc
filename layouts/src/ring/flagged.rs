//! An SPSC queue with a flag in each slot: the consumer polls the slot itself.
//!
//! 1. Every value is popped once, in order.
//! 2. Wait-free, by loads and stores only.
//! 3. A message travels with its flag, which saves one bus read per message. Between threads use [`spsc`](crate::ring::spsc).
//! 4. A batch is published by its first slot's flag, stored last, with release.
//!
//! The flag of index `i` is `lap(i) << 1 | 1`, where `lap(i)` is the first index of its lap: flags of older laps differ, and zeroed memory is an
//! empty ring. There are no slices in place.
//!
//! ```
//! # use ringmem_layouts as ringmem;
//! use ringmem::ring::flagged::Ring;
//! let mut ring = Ring::<u64, 8>::new();
//! let (mut producer, mut consumer) = ring.split();
//! producer.push(7).unwrap();
//! assert_eq!(consumer.pop(), Ok(7));
//! ```

super::alias::host! { flagged, boxed }
pub use super::error::{PopError, PushError, ReserveError};
super::alias::one_producer! { Flagged, "flagged" }
super::alias::one_consumer! { Flagged, "flagged" }
