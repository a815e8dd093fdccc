use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use std::boxed::Box;
use std::sync::Arc;
use std::thread;

use ringmem_layouts::{Abi, Image};

use super::queue::{Length, Queue};
use super::{CudaBackend, process};
use crate::backend::{
    Backend, Block, Capabilities, Copy, Fill, Launch, MemoryInfo, ModuleId, Place, Prefetch, Request, StreamId, Taints, Ticket, Uses,
};
use crate::{Error, Result};

// SAFETY: the driver and the pool return each block once until freed. `give` checks size and alignment and zeroes what the host reads;
// `Deferred` frees after the uses; streams execute in order.
unsafe impl Backend for CudaBackend {
    fn id(&self) -> u64 {
        self.inner.id
    }

    fn erased(self: Arc<Self>) -> Arc<dyn Backend> {
        self
    }

    fn name(&self) -> &'static str {
        "cuda"
    }

    fn devices(&self) -> u32 {
        self.inner.devices.len() as u32
    }

    fn capabilities(&self, device: u32) -> Result<Capabilities> {
        self.inner.able(device)
    }

    fn memory_info(&self, device: u32) -> Result<Option<MemoryInfo>> {
        let home = self.inner.device(device)?;
        self.inner.tidy();
        let (free, total) = self.inner.memory(home)?;
        Ok(Some(MemoryInfo { total, free }))
    }

    fn allocate(&self, request: &Request, on: Option<StreamId>) -> Result<Block> {
        process::takes_locks("cuMemAlloc_v2")?;
        self.inner.tidy();
        self.inner.give(request, on)
    }

    unsafe fn free(&self, block: &Block, uses: &Uses) -> Result<()> {
        if !process::is_home() {
            return process::admits("cuMemFree_v2");
        }
        self.inner.ranges.kill(block)?;
        let outcome = self.inner.deferred.free(&self.inner, uses, Block { ready: None, ..*block });
        self.inner.tidy();
        outcome
    }

    unsafe fn copy_now(&self, copy: &Copy) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.inner.copy_at_once(copy) }
    }

    unsafe fn fill_now(&self, fill: &Fill) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.inner.fill_at_once(fill) }
    }

    fn open_stream(&self, device: u32) -> Result<StreamId> {
        let home = self.inner.device(device)?;
        Queue::open(home, &self.inner.counts).map(|queue| self.inner.list(queue))
    }

    fn close_stream(&self, stream: StreamId) {
        if let Some(queue) = self.inner.listed(stream) {
            if queue.close() {
                self.inner.closing.fetch_add(1, Relaxed);
            }
            self.inner.tidy();
        }
    }

    unsafe fn copy(&self, copy: &Copy, on: StreamId) -> Result<Ticket> {
        // SAFETY: the caller's promise.
        unsafe { self.inner.copy_queued(copy, on) }
    }

    unsafe fn fill(&self, fill: &Fill, on: StreamId) -> Result<Ticket> {
        // SAFETY: the caller's promise.
        unsafe { self.inner.fill_queued(fill, on) }
    }

    unsafe fn publish_now(&self, word: Place, value: u64) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.inner.publish_at_once(word, value) }
    }

    unsafe fn copy_and_publish_now(&self, copies: &[Copy], word: Place, value: u64) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.inner.copy_and_publish_at_once(copies, word, value) }
    }

    unsafe fn publish(&self, word: Place, value: u64, since: Ticket, on: StreamId) -> Result<Ticket> {
        // SAFETY: the caller's promise.
        unsafe { self.inner.publish_queued(word, value, since.number, on) }
    }

    fn stream_wait(&self, ticket: Ticket, stream: StreamId) -> Result<()> {
        let queue = self.inner.stream(stream)?;
        let Some(other) = self.inner.listed(ticket.stream).filter(|other| !other.is_complete(ticket.number)) else { return Ok(()) };
        let Some(event) = other.event(ticket.number)? else { return Ok(()) };
        let length = if other.may_be_unbounded() { Length::Wait } else { Length::Bytes(0) };
        let wait = |stream| {
            // SAFETY: both are live.
            unsafe { self.inner.calls().cuStreamWaitEvent(stream, event.handle(), 0) }
        };
        queue.push(length, None, |op| op.call(wait)).map(drop)
    }

    fn record_position(&self, stream: StreamId) -> Result<Ticket> {
        Ok(Ticket { stream, number: self.inner.stream(stream)?.record_position()? })
    }

    fn is_complete(&self, ticket: Ticket) -> bool {
        self.inner.is_complete(ticket)
    }

    fn wait(&self, ticket: Ticket, timeout: Option<Duration>) -> Result<bool> {
        if !process::is_home() {
            return process::admits("cuEventQuery").map(|()| true);
        }
        let inner = &self.inner;
        let Some(queue) = inner.remembered(ticket.stream) else { return Ok(true) };
        let outcome = queue.wait(ticket.number, timeout, inner.timing_events.has(ticket));
        if !matches!(outcome, Ok(false)) {
            self.inner.tidy();
        }
        outcome
    }

    fn outcome(&self, ticket: Ticket, timeout: Option<Duration>) -> Result<bool> {
        // The wait may forget an ended stream.
        let queue = self.inner.remembered(ticket.stream);
        let is_over = self.wait(ticket, timeout)?;
        let queue = queue.filter(|_| is_over);
        if queue.is_some_and(|queue| queue.has_failed(ticket.number)) { Err(ticket.already_told()) } else { Ok(is_over) }
    }

    fn synchronize(&self, stream: StreamId) -> Result<()> {
        let outcome = self.inner.stream(stream)?.synchronize();
        self.inner.tidy();
        outcome?;
        self.inner.counts.synchronizations.fetch_add(1, Relaxed);
        Ok(())
    }

    fn load(&self, image: &Image, expected: &Abi) -> Result<ModuleId> {
        process::takes_locks("cuModuleLoadData")?;
        self.inner.load_image(image, expected)
    }

    fn unload(&self, module: ModuleId) {
        if !process::is_home() {
            return;
        }
        self.inner.modules.remove(module);
    }

    unsafe fn launch(&self, launch: &Launch<'_>, on: StreamId) -> Result<Ticket> {
        // SAFETY: the caller's promise.
        unsafe { self.inner.launch_queued(launch, on) }
    }

    fn unreported(&self, _error: Error) {
        self.inner.counts.unreported.fetch_add(1, Relaxed);
    }

    fn keep(&self, value: Box<dyn Send>, uses: &Uses, beyond: Option<&Block>) {
        let beyond = beyond.filter(|_| process::is_home());
        self.inner.deferred.keep(&self.inner, uses, beyond, value);
        self.inner.tidy();
        self.inner.watch();
    }

    fn record(&self, stream: StreamId) -> Result<Option<Ticket>> {
        self.inner.record_timing(stream).map(Some)
    }

    fn elapsed(&self, from: Ticket, to: Ticket) -> Result<Duration> {
        self.inner.elapsed_between(from, to)
    }

    fn forget(&self, ticket: Ticket) {
        if !process::is_home() {
            return;
        }
        self.inner.forget_timing(ticket);
    }

    fn defers_free(&self, block: &Block) -> bool {
        process::is_home() && self.inner.defers_free(block)
    }

    fn is_deferred(&self, block: &Block) -> bool {
        if !process::is_home() || self.inner.deferred.len() == 0 {
            return false;
        }
        self.inner.tidy();
        self.inner.deferred.has(&self.inner, block)
    }

    fn free_deferred(&self) {
        self.inner.tidy();
        while process::is_home() && self.inner.deferred.is_giving_back() {
            thread::yield_now();
        }
    }

    fn taints(&self) -> Option<&Taints> {
        Some(self.inner.ranges.taints())
    }

    fn host_access(&self, block: &Block) -> Result<()> {
        self.inner.host_may_touch(self.inner.device(block.device)?)
    }

    fn prefetch(&self, prefetch: &Prefetch, on: StreamId) -> Result<Ticket> {
        self.inner.prefetch_queued(prefetch, on)
    }

    fn set_peer(&self, device: u32, peer: u32, enabled: bool) -> Result<()> {
        self.inner.set_peer(device, peer, enabled)
    }
}
