//! Copies between host and device memory: merged, in chunks, aligned, measured.
//!
//! [`Coalescer`] merges small writes, [`Chunked`] copies in [`Chunks`], [`split`] and [`padded`] align, [`bandwidth`] and [`diagnose`]
//! measure.
//!
//! Use [`Stream::copy`](crate::stream::Stream::copy) for a whole buffer, [`peer`](crate::peer) between devices,
//! [`streaming`](crate::streaming) beyond device memory, a [`bridge`](crate::bridge) for messages.

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
