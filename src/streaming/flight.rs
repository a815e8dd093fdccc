use super::Chunk;
use super::streamer::{Slot, Staging};
use crate::backend::Ticket;
use crate::stream::Pending;

pub(super) struct Flight {
    pub(super) chunk: Chunk,
    pub(super) staging: Option<Staging>,
    pub(super) slot: Option<Slot>,
    pub(super) state: State,
    pub(super) upload: Option<Ticket>,
    pub(super) work: Option<Pending<()>>,
    pub(super) download: Option<Ticket>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Uploading,
    Arrived,
    /// Requested, not answered.
    Requested,
    /// The rest is queued.
    Leaving,
}
