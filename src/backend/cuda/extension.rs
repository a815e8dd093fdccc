use core::time::Duration;
use std::thread;

use super::{CudaBackend, process};
use crate::Result;
use crate::backend::{Block, Extension, Prefetch, StreamId, Taints, Ticket};

impl Extension for CudaBackend {
    fn record(&self, stream: StreamId) -> Result<Option<Ticket>> {
        self.shared.record_moment(stream).map(Some)
    }

    fn elapsed(&self, from: Ticket, to: Ticket) -> Result<Duration> {
        self.shared.elapsed_between(from, to)
    }

    fn forget(&self, ticket: Ticket) {
        if !process::is_home() {
            return;
        }
        self.shared.forget_moment(ticket);
    }

    fn defers_free(&self, block: &Block) -> bool {
        process::is_home() && self.shared.defers_free(block)
    }

    fn is_deferred(&self, block: &Block) -> bool {
        if !process::is_home() || self.shared.deferred.len() == 0 {
            return false;
        }
        self.shared.tidy();
        self.shared.deferred.has(&self.shared, block)
    }

    fn free_deferred(&self) {
        self.shared.tidy();
        while process::is_home() && self.shared.deferred.is_giving_back() {
            thread::yield_now();
        }
    }

    fn taints(&self) -> Option<&Taints> {
        Some(self.shared.ranges.taints())
    }

    fn host_access(&self, block: &Block) -> Result<()> {
        self.shared.host_may_touch(self.shared.device(block.device)?)
    }

    fn prefetch(&self, prefetch: &Prefetch, on: StreamId) -> Result<Ticket> {
        self.shared.prefetch_queued(prefetch, on)
    }

    fn set_peer(&self, device: u32, peer: u32, enabled: bool) -> Result<()> {
        self.shared.set_peer(device, peer, enabled)
    }
}
