//! A ring with one writer that never waits and overwrites the oldest message, and any number of readers.
//!
//! 1. `push` always succeeds. Readers write nothing.
//! 2. For each reader, every message since it attached is read once, in order and whole, or counted as lost, unless the reader itself
//!    [skips](Reader::skip) it.
//! 3. Wait-free: [`Reader::pop`] reads one slot once. A writer that died while it wrote costs only the messages that it was overwriting: one, or those of a
//!    batch or slice.
//! 4. A malicious writer can cause any message or error, but no access outside the ring.
//!
//! ```
//! # use ringmem_layouts as ringmem;
//! use ringmem::ring::lossy::{ReadError, Ring};
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
//! `producer.tail` is the next index; `consumer.head` is the constant first index. A slot is a word `sequence` and the payload in zero-padded words.
//!
//! To write message `i`, unless newer ones of the same slice would overwrite it: store `i + 1` to its slot's `sequence`, then each word of payload with
//! release, then publish `tail`. To read it once `tail` has passed it: load each word of payload with acquire, then check that `sequence` is still `i + 1`.
//!
//! After acquiring a tail past `i`, a reader sees all of message `i`; or it sees a word of a later message, and then also that message's `sequence`. So a slot
//! may initially hold any bytes.

mod error;
mod reader;
pub(super) mod slots;
mod writer;

pub use error::{LatestError, Overrun, ReadError};
pub use reader::{Reader, TRIES};
pub use writer::{BatchWriter, Writer};

super::alias::host! { lossy, boxed }
