//! One writer that never waits and overwrites the oldest; any number of readers, each of which sees all that it was quick enough for.
//!
//! 1. `push` always succeeds, whatever any reader does. Readers write nothing, so one writer serves any number of them.
//! 2. Every message of the ring is either read once, in order and whole, by a given reader, or counted by it as lost: read + lost = written.
//! 3. Wait-free at both ends: [`Reader::pop`] looks at one slot, once. A writer that died in the middle of a message costs a reader the one
//!    message that it was overwriting. Only [`Reader::latest`] tries again, [`TRIES`] times, and then says [`LatestError::Busy`].
//! 4. Messages move word by word, never as plain bytes, and no handle gives out a reference into the ring. So there is no in-place grant
//!    here; and whatever a hostile writer stores, a reader gets some message or an error, and stays within the memory.
//!
//! It does not wait, does not wake, and does not tell the writer who reads.
//!
//! ```
//! use ringmem_layouts::ring::lossy::{ReadError, Ring};
//! let mut ring = Ring::<[u64; 3], 4>::new();
//! let (mut writer, mut reader) = ring.split();
//! let mut other = reader.clone();
//! for n in 0..6 {
//!     writer.push([n; 3]);
//! }
//! assert_eq!(reader.pop(), Err(ReadError::Overrun { lost: 2 }));
//! assert_eq!((reader.pop(), reader.pop()), (Ok([2; 3]), Ok([3; 3])));
//! assert_eq!(other.skip(1), 5);
//! assert_eq!((other.pop(), other.pop()), (Ok([5; 3]), Err(ReadError::Empty)));
//! ```
//!
//! # The protocol
//!
//! The header is [`RingHeader`](crate::RingHeader) with [`RingFlags::LOSSY`](crate::ring::RingFlags::LOSSY). `producer.tail` is the index of
//! the next message, as in any ring. `consumer.head` is where the indices began, and nobody writes it after the creator. A slot is a word
//! `sequence` and the payload in words, the last one filled up with zeros.
//!
//! To write message `i`: store `i + 1` to its slot's `sequence`, then the payload, each word by release, then publish `tail`. To read message
//! `i` once `tail` has passed it: load the payload, each word by acquire, then look whether `sequence` is still `i + 1`.
//!
//! A seqlock has two stores of the sequence, an odd one before and an even one after. Here `tail` is the second: whoever has acquired a tail
//! past `i` sees all of message `i` or of a later one, and a word of a later one brings the later `sequence` with it. So a slot may hold
//! any bytes before its first message, and the whole index is in `sequence`: no two laps look alike.
//!
//! | sync point | release | acquire |
//! |---|---|---|
//! | message published | the store of `tail` | the load of `tail` in [`Reader::poll`] |
//! | slot overwritten | each store of a word of payload, after `sequence` | each load of a word of payload, before `sequence` |
//! | end closed | the store of `owner` when a writer that [`announce`](Writer::announce)d itself is dropped | the load of it in `is_disconnected` |

mod error;
mod reader;
#[cfg(any(target_has_atomic = "64", feature = "portable-atomic"))]
mod ring;
mod slots;
mod writer;

pub use error::{LatestError, Overrun, ReadError};
pub use reader::{Reader, TRIES};
#[cfg(all(feature = "alloc", any(target_has_atomic = "64", feature = "portable-atomic")))]
pub use ring::Boxed;
#[cfg(any(target_has_atomic = "64", feature = "portable-atomic"))]
pub use ring::{Inline, Ring, RingIn, words};
#[cfg(all(feature = "alloc", target_has_atomic = "ptr", any(target_has_atomic = "64", feature = "portable-atomic")))]
pub use ring::{OwnedReader, OwnedWriter, bounded};
pub use writer::{BatchWriter, Writer};
