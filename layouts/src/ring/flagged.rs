//! One producer, one consumer, a flag in each slot: what the consumer polls is the slot itself.
//!
//! 1. Everything pushed is popped once, in order; a push that does not fit gives its value back.
//! 2. Wait-free: every operation is a bounded number of steps, whatever the other side does. Loads and stores only.
//! 3. A message and its flag travel together. Across a bus that saves the consumer the read of an index for every message, which is why
//!    this ring is there; between two threads [`spsc`](crate::ring::spsc) publishes less.
//! 4. A batch is published with one release store: its first slot's flag, last.
//!
//! The flag of index `i` is `lap(i) << 1 | 1`, where the lap is the index with which it began. So it tells a message from one a lap older, and
//! zeroed memory is empty. A flag names a stale slot, it does not protect a live one: the producer asks the consumer's index before it
//! writes.
//!
//! It does not wait and does not wake. Slots lie apart by their flags, so there are no slices in place.
//!
//! # Orderings
//!
//! | sync point | release | acquire |
//! |---|---|---|
//! | slot published | the store of a slot's flag by the producer, the first of a batch last | the load of it by the consumer |
//! | slot released | the store of `head` | the load of `head` in [`Producer::refresh`] |
//! | end closed | the store of `owner` when an end that announced itself is dropped | the load of it in `is_disconnected` |
//!
//! ```
//! use ringmem_layouts::ring::flagged::Ring;
//! let mut ring = Ring::<u64, 8>::new();
//! let (mut producer, mut consumer) = ring.split();
//! producer.push(7).unwrap();
//! assert_eq!(consumer.pop(), Ok(7));
//! ```

super::alias::rings! { Flagged, WordSlot, "flagged" }
super::alias::one_producer! { Flagged }
super::alias::one_consumer! { Flagged }
