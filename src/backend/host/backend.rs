use core::cell::Cell;
use core::mem;
use core::sync::atomic::Ordering::Relaxed;
use core::task::Waker;
use core::time::Duration;
use std::boxed::Box;
use std::sync::{Arc, PoisonError};

use ringmem_layouts::{Abi, Image};

use super::HostBackend;
use super::faults::{Struck, Verb};
use super::inner::Held;
use super::link::{Route, Work};
use super::log::{Facts, Phase};
use super::queue::{self, Operation, Queue};
use crate::backend::{
    Address, AddressRange, Backend, Block, Capabilities, Copy, DeviceAddress, Fill, Launch, MemoryInfo, MemoryLocation, ModuleId, Prefetch,
    Request, StreamId, Taints, Ticket, Uses, entry,
};
use crate::sys::panic::both;
use crate::{Error, Result};

// SAFETY: blocks are exclusive parts of arenas or mappings. `allocate` checks size and alignment and zeroes what the host reads; `Deferred`
// frees after the uses; a stream executes in order.
unsafe impl Backend for HostBackend {
    fn id(&self) -> u64 {
        self.inner.id
    }

    fn erased(self: Arc<Self>) -> Arc<dyn Backend> {
        self
    }

    fn name(&self) -> &'static str {
        "host"
    }

    fn is_simulated(&self) -> bool {
        true
    }

    fn devices(&self) -> u32 {
        self.inner.arenas.len() as u32
    }

    fn capabilities(&self, device: u32) -> Result<Capabilities> {
        self.inner.arena(device)?;
        Ok(Capabilities { peers: self.inner.peers.of(device), ..self.inner.capabilities.clone() })
    }

    fn memory_info(&self, device: u32) -> Result<Option<MemoryInfo>> {
        self.inner.deferred.catch_up(&self.inner);
        let info = self.inner.arena(device)?.info();
        Ok(self.inner.knows_memory.then_some(info))
    }

    fn mappable(&self, device: u32) -> Option<u64> {
        self.inner.deferred.catch_up(&self.inner);
        let arena = self.inner.arena(device).ok()?;
        self.inner.knows_memory.then(|| arena.mappable())
    }

    fn allocate(&self, request: &Request, on: Option<StreamId>) -> Result<Block> {
        let Some(facts) = self.inner.watched(|| Facts::allocation(request, on)) else { return self.give_or_wait(request, on) };
        self.call_for_block(&facts, || self.give_or_wait(request, on), |_| self.shortage(request))
    }

    unsafe fn free(&self, block: &Block, uses: &Uses) -> Result<()> {
        let inner = &self.inner;
        if !inner.process.is_this() {
            return Ok(());
        }
        let watched =
            inner.watched(|| Facts { bytes: block.layout.size() as u64, from: Some(block.address()), ..Facts::of(Verb::Free, None) });
        let struck = watched.and_then(|facts| inner.plan.next(facts.verb));
        let is_over = inner.are_over(uses);
        let killed = if is_over { inner.ranges.take(block).map(Some) } else { inner.ranges.kill(block).map(|()| None) };
        let is_ok = killed.is_ok() && struck.is_none();
        let go = |killed: Result<Option<_>>| -> Result<()> {
            match killed? {
                Some(range) => inner.release(block.address(), range),
                None => inner.deferred.after(inner, uses, Held::Block(Block { ready: None, ..*block })),
            }
            Ok(())
        };
        match &watched {
            Some(facts) => both(|| inner.log(facts, Phase::Called, None, is_ok), |_| go(killed))?,
            None => go(killed)?,
        }
        struck.map_or(Ok(()), |struck| Err(struck.error()))
    }

    unsafe fn copy_now(&self, copy: &Copy) -> Result<()> {
        // SAFETY: the caller promises that both ends have all bytes, without overlap, that nothing else writes the source or accesses the target until this
        // returns, except one aligned word as a word, and that a source of one word is writable. The copy is complete by then.
        self.at_once(|| Facts::copy(copy, None), copy.bytes, || unsafe { self.inner.copy(copy, None, None) })
    }

    unsafe fn fill_now(&self, fill: &Fill) -> Result<()> {
        // SAFETY: the caller promises that the place has all elements, exclusively until this returns. The fill is complete by then.
        self.at_once(|| Facts::fill(fill, None), fill.bytes(), || unsafe { self.inner.fill(fill, None, None) })
    }

    fn open_stream(&self, device: u32) -> Result<StreamId> {
        let (opened, mut outcome) = (Cell::new(None), Err(Error::Closed { what: "stream" }));
        let open = || {
            self.inner.arena(device)?;
            Queue::open(&self.inner, device).inspect(|&id| opened.set(Some(id)))
        };
        let close = |has_panicked| {
            if let (true, Some(id)) = (has_panicked, opened.get()) {
                self.close_stream(id);
            }
        };
        both(|| outcome = self.call(|| Facts::of(Verb::OpenStream, None), open), close);
        outcome
    }

    fn close_stream(&self, stream: StreamId) {
        if !self.inner.process.is_this() {
            return;
        }
        if let Some(stream) = self.inner.stream(stream) {
            stream.close();
        }
    }

    unsafe fn copy(&self, copy: &Copy, on: StreamId) -> Result<Ticket> {
        self.queue(Facts::copy(copy, Some(on)), on, |_| {
            let (route, pageable) = self.inner.check_copy(copy)?;
            Ok((Operation::Copy(*copy, route, pageable), Work::Bytes(route, copy.bytes)))
        })
    }

    unsafe fn fill(&self, fill: &Fill, on: StreamId) -> Result<Ticket> {
        self.queue(Facts::fill(fill, Some(on)), on, |_| {
            let (route, pageable) = self.inner.check_fill(fill)?;
            Ok((Operation::Fill(*fill, pageable), Work::Bytes(route, fill.bytes())))
        })
    }

    unsafe fn publish_now(&self, word: Address, value: u64) -> Result<()> {
        // SAFETY: the caller promises that the word has 8 bytes, which others access only as a word until this returns. The store is complete by then.
        self.at_once(|| Facts::publish(word, None), size_of::<u64>() as u64, || unsafe { self.inner.publish(word, value, None) })
    }

    unsafe fn publish(&self, word: Address, value: u64, since: Ticket, on: StreamId) -> Result<Ticket> {
        let facts = Facts::publish(word, Some(on));
        self.queue(facts, on, |_| {
            let (found, route) = self.inner.check_word(word, None)?;
            let operation = Operation::Publish { word, value, since: since.number, pageable: found.in_no_range };
            Ok((operation, Work::Bytes(route, facts.bytes)))
        })
    }

    fn stream_wait(&self, ticket: Ticket, stream: StreamId) -> Result<()> {
        let facts = Facts::of(Verb::StreamWait, Some(stream));
        let model = || self.inner.model.iter().for_each(|model| model.after(ticket, stream));
        match self.inner.stream(ticket.stream).filter(|other| !other.is_complete(ticket.number)) {
            Some(other) => {
                let wait = |_: &Queue| {
                    model();
                    Ok((Operation::StreamWait { may_last: other.may_last(), stream: other, number: ticket.number }, Work::Nothing))
                };
                self.queue(facts, stream, wait).map(drop)
            }
            None => self.call(|| facts, || self.stream(stream).map(|_| model())),
        }
    }

    fn record_position(&self, stream: StreamId) -> Result<Ticket> {
        self.call(
            || Facts::of(Verb::RecordPosition, Some(stream)),
            || {
                let model = |number| self.inner.model.iter().for_each(|model| model.queued(stream, number, &Work::Nothing));
                Ok(Ticket { stream, number: self.stream(stream)?.record_position(model)? })
            },
        )
    }

    fn is_complete(&self, ticket: Ticket) -> bool {
        self.inner.is_complete(ticket)
    }

    fn wait(&self, ticket: Ticket, timeout: Option<Duration>) -> Result<bool> {
        self.wait_for(ticket, |stream| stream.wait(ticket.number, timeout))
    }

    fn outcome(&self, ticket: Ticket, timeout: Option<Duration>) -> Result<bool> {
        self.wait_for(ticket, |stream| {
            let is_over = stream.wait(ticket.number, timeout)?;
            if is_over && stream.has_failed(ticket.number) { Err(ticket.already_told()) } else { Ok(is_over) }
        })
    }

    fn synchronize(&self, stream: StreamId) -> Result<()> {
        self.waited(Verb::Synchronize, stream, None, || {
            self.stream(stream)?.synchronize()?;
            self.inner.counts.synchronizations.fetch_add(1, Relaxed);
            Ok(true)
        })
        .map(drop)
    }

    fn load(&self, image: &Image, expected: &Abi) -> Result<ModuleId> {
        self.call(
            || Facts::of(Verb::Load, None),
            || {
                if image.abi.hash != expected.hash {
                    return Err(Error::Abi { expected: *expected, got: image.abi });
                }
                let id = ModuleId::next();
                self.inner.modules.write().unwrap_or_else(PoisonError::into_inner).insert(id, image.host);
                Ok(id)
            },
        )
    }

    fn unload(&self, module: ModuleId) {
        self.inner.modules.write().unwrap_or_else(PoisonError::into_inner).remove(&module);
    }

    unsafe fn launch(&self, launch: &Launch<'_>, on: StreamId) -> Result<Ticket> {
        let Launch { module, name, arguments, groups, warps, operands, elements, .. } = *launch;
        self.queue(Facts::of(Verb::Launch, Some(on)), on, |stream| {
            let entries = self.inner.modules.read().unwrap_or_else(PoisonError::into_inner).get(&module).copied().unwrap_or(&[]);
            let entry = *entry(entries, name, arguments.len())?;
            let most = self.inner.resident_groups;
            let (groups, warps) = match elements {
                Some(elements) => {
                    elements.check()?;
                    (host_groups(elements.count).min(most), 1)
                }
                None => {
                    launch.check_warps()?;
                    (groups, warps)
                }
            };
            // If each lane is a thread, `most` is a number of warps. A launch over elements has no lanes.
            let each = if self.inner.thread_per_lane { warps } else { 1 };
            let asked = u64::from(groups) * u64::from(each);
            if asked == 0 || asked > most.into() {
                let what = if each > 1 { "warps of all groups" } else { "number of groups" };
                return Err(Error::Size { what, asked, least: 1, most: most.into() });
            }
            let operation =
                Operation::Launch(queue::Launch { entry, arguments: arguments.into(), groups, warps, operands: operands.into() });
            Ok((operation, Work::Kernel { device: stream.device, name: entry.name, arguments }))
        })
    }

    fn unreported(&self, _error: Error) {
        self.inner.counts.unreported.fetch_add(1, Relaxed);
    }

    fn keep(&self, value: Box<dyn Send>, uses: &Uses, beyond: Option<&Block>) {
        if self.inner.process.is_this() {
            self.inner.deferred.after(&self.inner, uses, Held::Value(value, beyond.map(Block::addresses)));
        } else {
            // In a fork no use is ever complete.
            mem::forget(value);
        }
    }

    fn now_ns(&self) -> u64 {
        self.model_now().unwrap_or_else(|| self.inner.now_ns())
    }

    fn record(&self, stream: StreamId) -> Result<Option<Ticket>> {
        self.queue(Facts::of(Verb::Record, Some(stream)), stream, |_| Ok((Operation::Record(Arc::default()), Work::Nothing))).map(Some)
    }

    fn elapsed(&self, from: Ticket, to: Ticket) -> Result<Duration> {
        let (from, to) = (self.recorded(from)?, self.recorded(to)?);
        Ok(Duration::from_nanos(to.saturating_sub(from)))
    }

    fn forget(&self, ticket: Ticket) {
        if !self.inner.process.is_this() {
            return;
        }
        if let Some(stream) = self.inner.stream(ticket.stream) {
            stream.forget(ticket.number);
        }
    }

    fn notify(&self, ticket: Ticket, waker: Waker) -> Result<(), Waker> {
        match self.inner.stream(ticket.stream) {
            Some(stream) => stream.notify(&self.inner.counts, ticket.number, waker),
            None => waker.wake(),
        }
        Ok(())
    }

    fn is_deferred(&self, block: &Block) -> bool {
        self.inner.process.is_this() && self.inner.deferred.keeps_beyond(&self.inner, block)
    }

    fn free_deferred(&self) {
        self.inner.deferred.catch_up_beyond(&self.inner);
    }

    fn largest_free(&self, device: u32, freeable: &[(DeviceAddress, u64)]) -> Option<u64> {
        self.inner.deferred.catch_up(&self.inner);
        let arena = self.inner.arena(device).ok()?;
        self.inner.knows_memory.then(|| arena.largest_free(freeable))
    }

    fn taints(&self) -> Option<&Taints> {
        Some(self.inner.ranges.taints())
    }

    fn host_access(&self, block: &Block) -> Result<()> {
        let facts = Facts { bytes: block.layout.size() as u64, from: Some(block.address()), ..Facts::of(Verb::HostAccess, None) };
        let kernels = || self.inner.streams.read().unwrap_or_else(PoisonError::into_inner).values().any(|stream| stream.has_kernels());
        self.call(
            || facts,
            || {
                if !self.inner.capabilities.concurrent_managed_access && kernels() {
                    return Err(Error::Busy {
                        what: "a kernel is queued or running, and the host must not access managed memory of this device until it ends",
                    });
                }
                self.inner.come_home(block, &facts);
                Ok(())
            },
        )
    }

    fn prefetch(&self, prefetch: &Prefetch, on: StreamId) -> Result<Ticket> {
        let Prefetch { address, bytes, to } = *prefetch;
        let facts = Facts { bytes, from: Some(address.get()), ..Facts::of(Verb::Prefetch, Some(on)) };
        self.queue(facts, on, |stream| {
            if self.inner.ranges.read().find(address.get(), bytes, false, Verb::Prefetch.name())?.location != MemoryLocation::Unified {
                return Err(Error::Unsupported { what: "a prefetch of memory that is not managed" });
            }
            let route = match to {
                _ if !self.inner.capabilities.concurrent_managed_access => {
                    return Err(Error::Unsupported { what: "a prefetch on a device without concurrent managed access" });
                }
                _ if self.inner.capabilities.shared_memory => None,
                Some(device) => self.inner.arena(device).map(|_| Some(Route::Upload { to: device, pageable: false }))?,
                None => Some(Route::Download { from: stream.device, pageable: false }),
            };
            Ok((Operation::Prefetch(*prefetch), route.map_or(Work::Nothing, |route| Work::Bytes(route, bytes))))
        })
    }

    fn reserve(&self, device: u32, bytes: u64) -> Result<AddressRange> {
        self.call(|| Facts { bytes, ..Facts::of(Verb::Reserve, None) }, || self.reserve_addresses(device, bytes))
    }

    fn map(&self, range: &AddressRange, offset: u64, bytes: u64) -> Result<Block> {
        let facts = Facts { bytes, ..Facts::of(Verb::Map, None) };
        let run = || self.map_or_wait(range, offset, bytes, &facts);
        if self.inner.is_watched() { self.call_for_block(&facts, run, Struck::error) } else { run() }
    }

    unsafe fn remap(&self, block: &mut Block, offset: u64) -> Result<()> {
        let facts = Facts { bytes: block.layout.size() as u64, from: Some(block.address()), ..Facts::of(Verb::Remap, None) };
        // SAFETY: the caller promises that nothing uses the block.
        self.call(|| facts, || unsafe { self.move_or_wait(block, offset) })
    }

    fn set_peer(&self, device: u32, peer: u32, enabled: bool) -> Result<()> {
        let inner = &self.inner;
        self.call(
            || Facts::of(if enabled { Verb::EnablePeer } else { Verb::DisablePeer }, None),
            || {
                if inner.peers.set(device, peer, enabled)? {
                    if enabled { &inner.counts.peer_enables } else { &inner.counts.peer_disables }.fetch_add(1, Relaxed);
                }
                Ok(())
            },
        )
    }
}

/// Returns the threads for so many elements: starting one takes as long as thousands of them.
fn host_groups(count: u64) -> u32 {
    const ELEMENTS: u64 = 1 << 16;
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
    (count / ELEMENTS).clamp(1, cores) as u32
}
