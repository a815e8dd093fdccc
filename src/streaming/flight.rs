//! [`Flight`]: a chunk in flight.

use super::Chunk;
use super::streamer::{Slot, Staging};
use crate::backend::Ticket;
use crate::stream::Pending;

/// A chunk in flight.
pub(super) struct Flight {
    pub(super) chunk: Chunk,
    /// The buffer that it was read into, and is written from; `None` if another chunk uses it already.
    pub(super) staging: Option<Staging>,
    /// `None` only while its download is queued.
    pub(super) slot: Option<Slot>,
    pub(super) state: State,
    pub(super) upload: Option<Ticket>,
    pub(super) work: Option<Pending<()>>,
    pub(super) download: Option<Ticket>,
}

/// How far a chunk has come.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// The upload is in flight.
    Uploading,
    /// In device memory, and not requested.
    Arrived,
    /// Requested from the kernel, which has not answered.
    Requested,
    /// All that is left to do is queued or complete.
    Leaving,
}
