//! Copies between host and device memory in better shapes: merged, in chunks, aligned, and measured.
//!
//! 1. [`Coalescer`] merges many small writes to one buffer into one copy per contiguous run.
//! 2. [`Chunked`] copies one buffer in chunks with a bounded number in flight, and reports progress. [`Chunks`] are its byte ranges.
//! 3. [`split`] and [`padded`] round ranges and lengths to whole units of an alignment.
//! 4. [`bandwidth`] measures the copies between a host and a device, and [`diagnose`] suggests causes of a low rate.
//!
//! To copy a whole buffer, use [`Stream::copy`](crate::stream::Stream::copy). To copy between devices, use [`peer`](crate::peer); for data larger than device memory,
//! [`streaming`](crate::streaming); to move messages between rings, a [`TransferStrategy`](crate::bridge::TransferStrategy) of a bridge. Nothing here chooses a memory
//! kind or allocates in the background.

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
