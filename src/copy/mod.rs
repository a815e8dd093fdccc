//! Copies between host and device memory: merged, in chunks, aligned, measured.
//!
//! [`Coalescer`] merges small writes, [`Chunked`] copies in [`Chunks`], [`split`] and [`padded`] align, [`bandwidth`] and [`diagnose`]
//! measure.
//!
//! Use [`Stream::copy`](crate::stream::Stream::copy) for a whole buffer, [`peer`](crate::peer) between devices,
//! [`streaming`](crate::streaming) beyond device memory, a [`bridge`](crate::bridge) for messages.

mod bandwidth;
mod borrowed_end;
mod chunked;
mod chunks;
mod coalescer;
mod parts;

pub use bandwidth::{Bandwidth, Circumstances, Diagnosis, LEAST_GB_PER_S, Rate, Suggestion, bandwidth, diagnose};
pub(crate) use borrowed_end::BorrowedEnd;
pub(crate) use chunked::{ChunkPath, Ended, Plan, check_depth};
pub use chunked::{Chunked, Copied, MOST_DEPTH, Progress};
pub use chunks::Chunks;
pub use coalescer::Coalescer;
pub use parts::{Parts, padded, period, split};
