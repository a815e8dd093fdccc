//! A single-producer single-consumer queue of messages of variable length, each contiguous, written and read in place.
//!
//! 1. Every message is popped once, in order and with its length. Messages without bytes are allowed.
//! 2. A message is contiguous, and aligned to 8 bytes.
//! 3. The largest message is [`Producer::largest`]. It fits an empty ring at every position. A longer one never fits: [`PushError::TooLarge`], not
//!    [`PushError::Full`].
//! 4. Wait-free: every operation on one message takes a bounded number of steps.
//! 5. The other side's words are not trusted. A length is read once and checked against the published words, the wrap and the largest message
//!    before any byte is read: [`PopError::BadFrame`].
//! 6. A grant that is dropped or forgotten publishes nothing; a message that was read and not released stays in the ring.
//!
//! It does not wait or wake, and does not count messages: `free`, `available` and `len` are bytes, including lengths and padding.
//!
//! ```
//! use ringmem_layouts::ring::framed::{PopError, Ring};
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
//! A slot is a word of 8 bytes, and an index counts words: the header's `capacity` is `bytes / 8`, and its message is `u64` ([`layout`]). So an
//! index cannot point into a word, and a model checker watches whole words.
//!
//! | in the slots | words | contents |
//! |---|---:|---|
//! | frame | 1 | length of the message in bytes, at most [`Producer::largest`] |
//! | | length / 8, rounded up | the message; the padding of its last word is unspecified |
//! | marker | 1 | all ones: skip to the wrap; the frame that belongs to it begins at the first slot |
//!
//! A frame that would cross the wrap begins after it, and the words before the wrap are skipped. So a frame of `n` words takes at most `2n - 1`
//! words. That is why half of the ring, less the word of the length, always fits: with `n` of half the capacity it takes at most the capacity less
//! one word. One word more may not fit: from the middle of the ring, half is skipped and more than half is needed. A marker is published together
//! with its frame and skips less than half of the ring; any other marker is corrupt.
//!
//! # Orderings
//!
//! | sync point | release | acquire |
//! |---|---|---|
//! | frame published | the store of `tail` | the load of `tail` when the consumer has consumed all known messages |
//! | frame released | the store of `head` | the load of `head` when the known room is too small |
//! | end closed | the store of `owner` when an end that [`announce`](Producer::announce)d itself is dropped | the load of it in `is_disconnected` |

mod consumer;
mod end;
mod error;
mod message;
mod producer;
#[cfg(any(target_has_atomic = "64", feature = "portable-atomic"))]
mod ring;

pub use consumer::BatchConsumer;
pub use end::{Consumer, End, Producer};
pub use error::{PopError, PushError};
pub use message::{Chunk, Frame, Message};
pub use producer::{BatchProducer, Grant};
#[cfg(all(feature = "alloc", any(target_has_atomic = "64", feature = "portable-atomic")))]
pub use ring::Boxed;
#[cfg(any(target_has_atomic = "64", feature = "portable-atomic"))]
pub use ring::{Inline, Ring, RingIn};
#[cfg(all(feature = "alloc", target_has_atomic = "ptr", any(target_has_atomic = "64", feature = "portable-atomic")))]
pub use ring::{OwnedConsumer, OwnedProducer, bounded};

use super::layout::LayoutError;
use super::{RingFlags, RingLayout};
use crate::attach::AttachError;

/// Bytes of a word, of a length, and of the alignment of messages.
const WORD: usize = 8;
/// Words of the smallest ring: one for a length, and one more so that half of them is not none.
const SMALLEST: u64 = 2;
/// In place of a length: skip the words before the wrap. No message has this length.
const SKIP: u64 = u64::MAX;

/// The layout of a framed ring of so many bytes, a power of two of at least 16.
///
/// ```
/// use ringmem_layouts::ring::framed;
/// let layout = framed::layout(4096).unwrap();
/// assert_eq!((layout.capacity(), layout.size()), (512, 384 + 4096));
/// assert!(framed::layout(8).is_err() && framed::layout(100).is_err());
/// ```
///
/// # Errors
///
/// [`LayoutError`] with the requested value; less than 16 bytes are a capacity of 0.
pub const fn layout(bytes: u64) -> Result<RingLayout, LayoutError> {
    let word = WORD as u64;
    if !bytes.is_power_of_two() {
        return Err(LayoutError::NotAPowerOfTwo { capacity: bytes });
    }
    RingLayout::of_kind::<u64>(RingFlags::FRAMED, if bytes < SMALLEST * word { 0 } else { bytes / word })
}

/// Bytes of the largest message of a ring of so many words: half of it, less the word of the length.
#[inline(always)]
const fn largest(capacity: u64) -> u64 {
    capacity * (WORD as u64 / 2) - WORD as u64
}

/// Words of a frame around so many bytes; `bytes` is at most the largest message, so nothing overflows.
#[inline(always)]
const fn frame(bytes: u64) -> u64 {
    // The word of the length, and the message rounded up.
    (bytes + 2 * WORD as u64 - 1) / WORD as u64
}

/// Refuses a ring that no frame fits.
fn large_enough(layout: &RingLayout) -> Result<u64, AttachError> {
    let word = WORD as u64;
    match layout.capacity() {
        capacity @ SMALLEST.. => Ok(capacity),
        capacity => Err(AttachError::TooSmall { needed: SMALLEST * word, got: capacity * word }),
    }
}
