//! [`Flight`]: a chunk under way.

use super::Chunk;
use super::streamer::{Slot, Staging};
use crate::backend::Ticket;
use crate::stream::Pending;

/// A chunk under way.
pub(super) struct Flight {
    pub(super) chunk: Chunk,
    /// What it was read into, and will be written from; `None` where it is used for another already.
    pub(super) staging: Option<Staging>,
    /// There, but for the moment in which its way back is queued.
    pub(super) slot: Option<Slot>,
    pub(super) state: State,
    pub(super) upload: Option<Ticket>,
    pub(super) work: Option<Pending<()>>,
    pub(super) download: Option<Ticket>,
}

/// How far a chunk has come.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// On its way to the device.
    Uploading,
    /// There, and nobody has been told.
    Arrived,
    /// Requested from the kernel, which has not answered.
    Requested,
    /// All that is left to do is queued, or done.
    Leaving,
}
