//! Rings: a header of words, slots behind it, and a handle at each end.
//!
//! 1. Indices are free-running 64-bit numbers; the slot of index `i` is `i & (capacity - 1)`. All of the capacity is usable, and any
//!    start index works.
//! 2. What the other side wrote is an allegation: an index that claims more than the capacity is [`Corrupt`](crate::attach::Corrupt), and
//!    geometry is read once, checked, and kept.
//! 3. A handle is told where it *reads* the other's index (`own`) and where it *publishes* its own (`peer`). In shared memory both are one
//!    header. Across a bus each side keeps the header that it polls in memory that is near to it, and only writes across.

pub mod aggregate;
mod alias;
mod batch;
mod chunk;
mod consumer;
mod end;
mod ends;
mod error;
pub mod flagged;
pub mod framed;
mod grant;
mod header;
mod host_ring;
mod kind;
mod layout;
pub mod lossy;
pub mod mailbox;
pub mod mpmc;
pub mod mpsc;
mod owned;
mod owner;
mod pace;
mod policy;
mod port;
mod producer;
mod slots;
pub mod spsc;
mod storage;

pub use batch::{BatchConsumer, BatchProducer};
pub use chunk::{Chunk, Drain};
pub use consumer::Consumer;
pub use end::{Bells, End, Follow, Pop, PopBytes, Publish, Push, PushBytes};
pub use error::{PopError, PushError, ReserveError};
pub use grant::Grant;
pub use header::{ConstantLine, ConsumerLine, MAGIC, ProducerLine, RingFlags, RingHeader};
#[cfg(any(target_has_atomic = "64", feature = "portable-atomic"))]
pub use host_ring::RingIn;
pub use kind::{Flagged, Indexed, Mpmc, Mpsc};
pub use layout::{LayoutError, RingLayout};
#[cfg(all(feature = "alloc", target_has_atomic = "ptr", any(target_has_atomic = "64", feature = "portable-atomic")))]
pub use owned::{Lent, Owned};
pub use policy::{Counts, Evict, Policed};
pub use producer::Producer;
pub use slots::{Row, Slot};
#[cfg(any(target_has_atomic = "64", feature = "portable-atomic"))]
pub use storage::{BareSlot, Storage, WordSlot};
