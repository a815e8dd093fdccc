//! An SPSC queue of messages of any length, each contiguous, written and read in place.
//!
//! 1. Every message is popped once, in order, with its length, which may be 0.
//! 2. Messages are 8-byte aligned.
//! 3. A message of up to [`Producer::largest`] fits an empty ring at every position.
//! 4. Wait-free.
//! 5. A length is read once, then checked.
//! 6. A dropped or forgotten grant publishes nothing; an unreleased message stays.
//!
//! `free`, `available` and `len` are bytes, including lengths and padding.
//!
//! ```
//! # use ringmem_layouts as ringmem;
//! use ringmem::ring::framed::{PopError, Ring};
//! let mut ring = Ring::<64>::new();
//! let (mut producer, mut consumer) = ring.split();
//!
//! producer.push(b"copied").unwrap();
//! let mut grant = producer.reserve(20).unwrap();
//! grant[..8].copy_from_slice(b"in place");
//! grant.commit(8);
//!
//! let mut bytes = [0; 24];
//! assert_eq!(consumer.pop(&mut bytes), Ok(6));
//! assert_eq!(&bytes[..6], b"copied");
//! let frame = consumer.peek().unwrap();
//! assert_eq!(&*frame, b"in place");
//! frame.release();
//! assert_eq!(consumer.pop(&mut bytes), Err(PopError::Empty));
//! ```
//!
//! # The bytes
//!
//! An index counts 8-byte words: the header's `capacity` is `bytes / 8`, and its message is `u64` ([`layout`]).
//!
//! | in the slots | words | contents |
//! |---|---:|---|
//! | frame | 1 | the message's length in bytes, at most [`Producer::largest`] |
//! | | length / 8, rounded up | the message; the padding of its last word is unspecified |
//! | marker | 1 | all ones: skip to the wrap, where its frame begins |
//!
//! A frame that would cross the wrap begins after it, so a frame of `n` words takes at most `2n - 1`. A marker is published with its frame and
//! skips less than half of the ring; any other marker is corrupt.

mod consumer;
mod end;
mod error;
mod message;
mod producer;

pub use consumer::BatchConsumer;
pub use end::{Consumer, End, Producer};
pub use error::{PopError, PushError};
pub use message::{Chunk, Frame, Message};
pub use producer::{BatchProducer, Grant};

super::alias::host! { framed, boxed }

use super::layout::LayoutError;
use super::{RingFlags, RingLayout};
use crate::attach::AttachError;

pub(super) const WORD: usize = 8;
pub(super) const SMALLEST: u64 = 2;
const SKIP: u64 = u64::MAX;

/// Returns the layout of a ring of `bytes` bytes, a power of two of at least 16.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::ring::framed;
/// let layout = framed::layout(4096).unwrap();
/// assert_eq!((layout.capacity(), layout.size()), (512, 384 + 4096));
/// assert!(framed::layout(8).is_err() && framed::layout(100).is_err());
/// ```
///
/// # Errors
///
/// [`LayoutError`]; less than 16 bytes are a capacity of 0.
pub const fn layout(bytes: u64) -> Result<RingLayout, LayoutError> {
    let word = WORD as u64;
    if !bytes.is_power_of_two() {
        return Err(LayoutError::NotAPowerOfTwo { capacity: bytes });
    }
    RingLayout::of_kind::<u64>(RingFlags::FRAMED, if bytes < SMALLEST * word { 0 } else { bytes / word })
}

#[inline(always)]
const fn largest(capacity: u64) -> u64 {
    capacity * (WORD as u64 / 2) - WORD as u64
}

#[inline(always)]
const fn frame(bytes: u64) -> u64 {
    (bytes + 2 * WORD as u64 - 1) / WORD as u64
}

fn large_enough(layout: &RingLayout) -> Result<u64, AttachError> {
    let word = WORD as u64;
    match layout.capacity() {
        capacity @ SMALLEST.. => Ok(capacity),
        capacity => Err(AttachError::TooSmall { needed: SMALLEST * word, got: capacity * word }),
    }
}
