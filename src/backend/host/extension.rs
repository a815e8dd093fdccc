use core::sync::atomic::Ordering::Relaxed;
use core::task::Waker;
use core::time::Duration;
use std::sync::{Arc, PoisonError};

use super::HostBackend;
use super::faults::Verb;
use super::link::{Route, Work};
use super::log::Facts;
use super::operation::Operation;
use crate::backend::{Block, DeviceAddress, Extension, MemoryLocation, Prefetch, StreamId, Taints, Ticket};
use crate::{Error, Result};

impl Extension for HostBackend {
    fn now_ns(&self) -> u64 {
        self.model_now().unwrap_or_else(|| self.shared.now_ns())
    }

    fn record(&self, stream: StreamId) -> Result<Option<Ticket>> {
        self.queue(Facts::of(Verb::Record, Some(stream)), stream, |_| Ok((Operation::Record(Arc::default()), Work::Nothing))).map(Some)
    }

    fn elapsed(&self, from: Ticket, to: Ticket) -> Result<Duration> {
        let (from, to) = (self.recorded(from)?, self.recorded(to)?);
        Ok(Duration::from_nanos(to.saturating_sub(from)))
    }

    fn forget(&self, ticket: Ticket) {
        if !self.shared.process.is_this() {
            return;
        }
        if let Some(stream) = self.shared.stream(ticket.stream) {
            stream.forget(ticket.number);
        }
    }

    fn notify(&self, ticket: Ticket, waker: Waker) -> Result<(), Waker> {
        match self.shared.stream(ticket.stream) {
            Some(stream) => stream.notify(&self.shared, ticket.number, waker),
            None => waker.wake(),
        }
        Ok(())
    }

    fn is_deferred(&self, block: &Block) -> bool {
        self.shared.process.is_this() && self.shared.deferred.keeps_beyond(&self.shared, block)
    }

    fn free_deferred(&self) {
        self.shared.deferred.catch_up_beyond(&self.shared);
    }

    fn largest_free(&self, device: u32, freeable: &[(DeviceAddress, u64)]) -> Option<u64> {
        self.shared.deferred.catch_up(&self.shared);
        let arena = self.shared.arena(device).ok()?;
        self.shared.knows_memory.then(|| arena.largest_free(freeable))
    }

    fn taints(&self) -> Option<&Taints> {
        Some(self.shared.ranges.taints())
    }

    fn host_access(&self, block: &Block) -> Result<()> {
        let facts = Facts { bytes: block.layout.size() as u64, from: Some(block.address()), ..Facts::of(Verb::HostAccess, None) };
        let kernels = || self.shared.streams.read().unwrap_or_else(PoisonError::into_inner).values().any(|stream| stream.has_kernels());
        self.call(
            || facts,
            || {
                if !self.shared.capabilities.concurrent_managed_access && kernels() {
                    return Err(Error::Busy {
                        what: "a kernel is queued or running, and the host must not access managed memory of this device until it ends",
                    });
                }
                self.shared.come_home(block, &facts);
                Ok(())
            },
        )
    }

    fn prefetch(&self, prefetch: &Prefetch, on: StreamId) -> Result<Ticket> {
        let Prefetch { address, bytes, to } = *prefetch;
        let facts = Facts { bytes, from: Some(address.get()), ..Facts::of(Verb::Prefetch, Some(on)) };
        self.queue(facts, on, |stream| {
            if self.shared.ranges.read().find(address.get(), bytes, false, Verb::Prefetch.name())?.location != MemoryLocation::Unified {
                return Err(Error::Unsupported { what: "a prefetch of memory that is not managed" });
            }
            let route = match to {
                _ if !self.shared.capabilities.concurrent_managed_access => {
                    return Err(Error::Unsupported { what: "a prefetch on a device without concurrent managed access" });
                }
                _ if self.shared.capabilities.shared_memory => None,
                Some(device) => self.shared.arena(device).map(|_| Some(Route::Upload { to: device, pageable: false }))?,
                None => Some(Route::Download { from: stream.device, pageable: false }),
            };
            Ok((Operation::Prefetch(*prefetch), route.map_or(Work::Nothing, |route| Work::Bytes(route, bytes))))
        })
    }

    fn set_peer(&self, device: u32, peer: u32, enabled: bool) -> Result<()> {
        let shared = &self.shared;
        self.call(
            || Facts::of(if enabled { Verb::EnablePeer } else { Verb::DisablePeer }, None),
            || {
                if shared.peers.set(device, peer, enabled)? {
                    if enabled { &shared.counts.peer_enables } else { &shared.counts.peer_disables }.fetch_add(1, Relaxed);
                }
                Ok(())
            },
        )
    }
}
