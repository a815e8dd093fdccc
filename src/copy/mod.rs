//! How bytes are moved well between a host and a device: few copies, of the right shape, at a rate that is known.
//!
//! 1. [`Coalescer`]: many small writes to one buffer become as few copies as there are runs of neighbours.
//! 2. [`Chunks`] cuts so many elements into ranges of bytes and loses none; [`Chunked`] is a copy in such chunks, of which a few are queued at a time.
//! 3. [`split`], [`padded`]: ranges and lengths in whole units of an alignment.
//! 4. [`bandwidth`]: what the ways to a device and back carry, and what to do about one that carries too little.
//!
//! Nothing here is needed to move a buffer: a [`Stream`](crate::stream::Stream) does.

mod bandwidth;
mod chunked;
mod chunks;
mod coalescer;
mod lent;
mod parts;

pub use bandwidth::{Bandwidth, Circumstances, Diagnosis, LEAST_GB_PER_S, Rate, Suggestion, bandwidth, diagnose};
pub use chunked::{Chunked, Copied, MOST_DEPTH, Progress};
pub(crate) use chunked::{Ended, Plan, Way, check_depth};
pub use chunks::Chunks;
pub use coalescer::Coalescer;
pub(crate) use lent::Lent;
pub use parts::{Parts, padded, period, split};
