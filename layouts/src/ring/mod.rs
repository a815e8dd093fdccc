//! Lock-free rings: each has a header of words, then slots, and a handle for each end.
//!
//! 1. Indices are free-running 64-bit numbers; index `i` uses slot `i & (capacity - 1)`. The full capacity is usable.
//! 2. If the other end's index is outside the ring, operations return [`Corrupt`](crate::attach::Corrupt), unless only [`Local`](crate::Local) ends
//!    write it; geometry is read and checked once.
//! 3. An end polls the header `own` and publishes in `peer`. In shared memory both are the same header; across a bus each side has the header that it
//!    polls: only writes cross the bus.
//! 4. Dropping an announced end stores its word `owner` with release; `is_disconnected` loads it with acquire.
//!
//! | ring | producers | consumers | polled word |
//! |---|---|---|---|
//! | [`spsc`] | one | one | the other end's index |
//! | [`flagged`] | one | one | a flag in each slot |
//! | [`paired`] | one | one | a flag in each word |
//! | [`mpsc`] | many | one | a word in each slot |
//! | [`mpmc`] | many | many | a word in each slot |
//! | [`framed`] | one | one | the other end's index; messages of any length |
//! | [`lossy`] | one, overwrites the oldest | any number | the writer's index |
//! | [`mailbox`] | one, overwrites | any number | the writer's index; the latest value only |
//! | [`groups`] | the groups of one launch, of an `spsc` ring of answers | the same groups, of an `spsc` ring of messages | the other end's index |
//!
//! [`Producer`] and [`Consumer`] are generic over the kind ([`Indexed`], [`Flagged`], [`Mpsc`]); the modules have aliases.
//!
//! Rings do not wait, wake or resize; only `embedded-io` traits poll in a loop.

mod alias;
mod batch;
mod chunk;
mod consumer;
mod error;
pub mod flagged;
pub mod framed;
mod grant;
pub mod groups;
mod header;
#[cfg(any(target_has_atomic = "64", feature = "portable-atomic"))]
mod host;
mod impls;
mod kind;
mod layout;
pub mod lossy;
pub mod mailbox;
pub mod mpmc;
pub mod mpsc;
#[doc(hidden)]
pub mod owner;
mod pace;
pub mod paired;
mod port;
mod producer;
mod slots;
#[doc(alias("HeapRb", "RingBuffer"))]
pub mod spsc;
mod stream;
mod traits;
mod value;

pub use batch::{BatchConsumer, BatchProducer};
pub use chunk::{Chunk, Drain};
pub use consumer::Consumer;
pub use error::{PopError, PushError, ReserveError};
pub use grant::Grant;
pub use header::{ConstantLine, ConsumerLine, MAGIC, ProducerLine, RingFlags, RingHeader, abi_of};
#[cfg(all(feature = "alloc", target_has_atomic = "ptr", any(target_has_atomic = "64", feature = "portable-atomic")))]
pub use host::owned::{Owned, Reborrow};
#[cfg(any(target_has_atomic = "64", feature = "portable-atomic"))]
pub use host::{BareSlot, RingIn, Storage, WordSlot};
pub use kind::{Flagged, Indexed, Mpmc, Mpsc};
pub use layout::{LayoutError, RingLayout};
pub use producer::Producer;
#[doc(hidden)]
pub use slots::prefetch;
pub use slots::{Row, Slot};
#[doc(hidden)]
pub use stream::{Broken, ReadBytes, WriteBytes};
pub use traits::{End, Follow, Pop, PopBytes, Publish, Push, PushBytes, WaitWords};
