//! [`CudaBackend`]: the public type, its settings, its opening and closing, and [`Backend`] for it. [`Inner`] has the state.

use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use core::{fmt, mem};
use std::boxed::Box;
use std::sync::Arc;
use std::thread;

use ringmem_layouts::{Abi, Image};

use super::Inner;
use super::driver::{self, Driver};
use super::process;
use super::queue::{Length, Queue};
use crate::backend::counters::Counters;
use crate::backend::host;
use crate::backend::{
    Address, AddressRange, Backend, Block, Capabilities, Copy, Fill, Launch, MemoryInfo, MemoryLocation, ModuleId, Prefetch, Request,
    StreamId, Taints, Ticket, Uses,
};
use crate::{Error, Result};

/// The GPUs of this machine. Each primary context is retained from first use until the backend is dropped.
///
/// ```
/// use ringmem::backend::Backend;
/// use ringmem::backend::cuda::CudaBackend;
///
/// match CudaBackend::open() {
///     Ok(backend) => assert!(backend.devices() > 0 && !backend.is_simulated()),
///     Err(error) => println!("{error}"), // no driver, or no GPU
/// }
/// ```
pub struct CudaBackend {
    pub(super) inner: Arc<Inner>,
}

/// Settings of a backend.
///
/// ```
/// use ringmem::backend::cuda::{CudaBackend, Settings};
///
/// let settings = Settings { threshold: 1 << 30, pinned_budget: 512 << 20, ..Settings::default() };
/// assert!(settings.stream_ordered);
/// match CudaBackend::with(settings) {
///     Ok(backend) => println!("{backend:?}"),
///     Err(error) => println!("{error}"),
/// }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Use a stream-ordered pool if possible: allocate and free then wait for no kernel. Otherwise each block is a `cuMemAlloc`.
    pub stream_ordered: bool,
    /// Freed bytes that a device's pool keeps at a synchronisation.
    pub threshold: u64,
    /// Bytes that may be pinned at once, deferred frees included, the backend's own excluded.
    pub pinned_budget: u64,
}

impl Default for Settings {
    /// Returns a pool that keeps everything, and the [budget](host::pinned_budget) for this machine.
    fn default() -> Self {
        Self { stream_ordered: true, threshold: u64::MAX, pinned_budget: host::pinned_budget(host::host_memory()) }
    }
}

impl CudaBackend {
    /// Opens the GPUs with the default settings.
    ///
    /// # Errors
    ///
    /// [`NoDriver`](Error::NoDriver), [`NoDevice`](Error::NoDevice), [`Driver`](Error::Driver).
    pub fn open() -> Result<Arc<Self>> {
        Self::with(Settings::default())
    }

    /// Opens the GPUs.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn with(settings: Settings) -> Result<Arc<Self>> {
        let driver = Driver::load()?;
        let count = driver.count()?;
        if count == 0 {
            return Err(Error::NoDevice { asked: 0, devices: 0 });
        }
        Ok(Arc::new(Self { inner: Arc::new(Inner::new(driver, settings, count)) }))
    }

    /// Returns the driver.
    #[must_use]
    pub fn driver(&self) -> &Driver {
        &self.inner.driver
    }

    /// Returns the counters; an operation counts once the backend sees it complete.
    #[must_use]
    pub fn counters(&self) -> Counters {
        if process::is_forked() {
            return self.inner.counts.read();
        }
        for queue in self.inner.queues() {
            let _ = queue.is_complete(queue.last());
        }
        self.inner.tidy();
        let counters = self.inner.counts.read();
        Counters { unreported: counters.unreported + self.inner.unreported_of_ended(), ..counters }
    }

    /// Returns the number of pending frees, kept values, and address ranges to be given back.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.inner.tidy();
        self.inner.deferred.len()
    }

    /// Releases a device's unused pool memory.
    ///
    /// # Errors
    ///
    /// [`Busy`](Error::Busy) while a kernel is queued or running: unmapping may wait for it; [`NoDevice`](Error::NoDevice), the driver's
    /// error.
    pub fn trim(&self, device: u32) -> Result<()> {
        let home = self.inner.device(device)?;
        let _bound = home.bind()?;
        let _no_launches = self.inner.block_launches();
        if self.inner.has_kernels() {
            return Err(Error::Busy { what: "a kernel is running, and releasing memory of the pool may wait for it" });
        }
        home.pool.as_ref().map_or(Ok(()), |pool| pool.trim())
    }
}

impl Drop for CudaBackend {
    fn drop(&mut self) {
        // In a fork, the caller's values are the parent's. Of a backend that was not closed completely, queued work may still use them.
        if process::is_forked() || !self.inner.close() {
            mem::forget(Arc::clone(&self.inner));
        }
    }
}

impl fmt::Debug for CudaBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaBackend").field("id", &self.inner.id).field("devices", &self.inner.devices()).finish_non_exhaustive()
    }
}

// SAFETY: each block comes from an allocator (the driver, its pool or Rust's) that returns no live memory twice. `Inner::allocate` checks size and alignment,
// and zeroes memory that the host reads. `Deferred` frees a block after its uses. The operations of a stream execute in the order of the driver's stream.
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
        self.inner.devices()
    }

    fn capabilities(&self, device: u32) -> Result<Capabilities> {
        self.inner.capabilities_of(device)
    }

    fn memory_info(&self, device: u32) -> Result<Option<MemoryInfo>> {
        let home = self.inner.device(device)?;
        self.inner.tidy();
        let (free, total) = self.inner.memory(home)?;
        Ok(Some(MemoryInfo { total, free }))
    }

    /// Unknown beside managed memory, whose resident pages count as used, but give way.
    fn mappable(&self, device: u32) -> Option<u64> {
        let has_managed = self.inner.counts.of(MemoryLocation::Unified).live_bytes() > 0;
        if has_managed { None } else { Some(self.memory_info(device).ok()??.free) }
    }

    fn allocate(&self, request: &Request, on: Option<StreamId>) -> Result<Block> {
        driver::check_not_forked("cuMemAlloc_v2")?;
        self.inner.tidy();
        self.inner.allocate(request, on)
    }

    unsafe fn free(&self, block: &Block, uses: &Uses) -> Result<()> {
        if process::is_forked() {
            return driver::check_callable("cuMemFree_v2");
        }
        self.inner.ranges.kill(block)?;
        let outcome = self.inner.deferred.free(&self.inner, uses, Block { ready: None, ..*block });
        self.inner.tidy();
        outcome
    }

    unsafe fn copy_now(&self, copy: &Copy) -> Result<()> {
        // SAFETY: the contract is the same: both ends have all bytes, without overlap, nothing else writes the source or accesses the target until this
        // returns, except one aligned word as a word, and a source of one word is writable.
        unsafe { self.inner.copy_now(copy) }
    }

    unsafe fn fill_now(&self, fill: &Fill) -> Result<()> {
        // SAFETY: the contract is the same: the target has all elements, exclusively until this returns.
        unsafe { self.inner.fill_now(fill) }
    }

    fn open_stream(&self, device: u32) -> Result<StreamId> {
        let home = self.inner.device(device)?;
        Queue::open(home, &self.inner.counts).map(|queue| self.inner.list(queue))
    }

    fn close_stream(&self, stream: StreamId) {
        if let Some(queue) = self.inner.listed(stream) {
            self.inner.close_queue(&queue);
            self.inner.tidy();
        }
    }

    unsafe fn copy(&self, copy: &Copy, on: StreamId) -> Result<Ticket> {
        // SAFETY: the contract is the same: both ends have all bytes, without overlap, nothing else writes the source or accesses the target until the copy is
        // executed, except one aligned word as a word, and a source of one word is writable.
        unsafe { self.inner.copy_queued(copy, on) }
    }

    unsafe fn fill(&self, fill: &Fill, on: StreamId) -> Result<Ticket> {
        // SAFETY: the contract is the same: the target has all elements, exclusively until the fill is executed.
        unsafe { self.inner.fill_queued(fill, on) }
    }

    unsafe fn publish_now(&self, word: Address, value: u64) -> Result<()> {
        // SAFETY: the contract is the same: the word has 8 bytes, which others access only as a word until this returns.
        unsafe { self.inner.publish_now(word, value) }
    }

    unsafe fn copy_and_publish_now(&self, copies: &[Copy], word: Address, value: u64) -> Result<()> {
        // SAFETY: the contract is the same. For each copy, both ends have all bytes, without overlap, nothing else writes the source or accesses the target
        // until this returns, except one aligned word as a word, and a source of one word is writable. The word has 8 bytes, which others access only as a word
        // until then.
        unsafe { self.inner.copy_and_publish_now(copies, word, value) }
    }

    unsafe fn publish(&self, word: Address, value: u64, since: Ticket, on: StreamId) -> Result<Ticket> {
        // SAFETY: the contract is the same: the word has 8 bytes, which others access only as a word until the store is executed, and `since` is of this
        // stream.
        unsafe { self.inner.publish_queued(word, value, since.number, on) }
    }

    fn stream_wait(&self, ticket: Ticket, stream: StreamId) -> Result<()> {
        let queue = self.inner.stream(stream)?;
        let Some(other) = self.inner.listed(ticket.stream).filter(|other| !other.is_complete(ticket.number)) else { return Ok(()) };
        let Some(event) = other.event(ticket.number)? else { return Ok(()) };
        let length = if other.may_be_unbounded() { Length::Wait } else { Length::Bytes(0) };
        let wait = |stream| {
            // SAFETY: the stream lives as long as `queue`. The event lives as long as this reference, and is not recorded again while it exists.
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
        if process::is_forked() {
            return driver::check_callable("cuEventQuery").map(|()| true);
        }
        let inner = &self.inner;
        let Some(queue) = inner.listed_or_ended(ticket.stream) else { return Ok(true) };
        let outcome = queue.wait(ticket.number, timeout, inner.timing_events.has(ticket));
        if !matches!(outcome, Ok(false)) {
            self.inner.tidy();
        }
        outcome
    }

    fn outcome(&self, ticket: Ticket, timeout: Option<Duration>) -> Result<bool> {
        // The wait may forget an ended stream.
        let queue = self.inner.listed_or_ended(ticket.stream);
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
        driver::check_not_forked("cuModuleLoadData")?;
        self.inner.load_image(image, expected)
    }

    fn unload(&self, module: ModuleId) {
        if process::is_forked() {
            return;
        }
        self.inner.modules.remove(module);
    }

    unsafe fn launch(&self, launch: &Launch<'_>, on: StreamId) -> Result<Ticket> {
        // SAFETY: the contract is the same: all memory that the kernel accesses is valid until it is complete.
        unsafe { self.inner.launch_queued(launch, on) }
    }

    fn unreported(&self, _error: Error) {
        self.inner.counts.unreported.fetch_add(1, Relaxed);
    }

    fn keep(&self, value: Box<dyn Send>, uses: &Uses, beyond: Option<&Block>) {
        let beyond = beyond.filter(|_| !process::is_forked());
        self.inner.deferred.keep(&self.inner, uses, beyond, value);
        self.inner.tidy();
        self.inner.start_watch();
    }

    fn record(&self, stream: StreamId) -> Result<Option<Ticket>> {
        self.inner.record_timing(stream).map(Some)
    }

    fn elapsed(&self, from: Ticket, to: Ticket) -> Result<Duration> {
        self.inner.elapsed_between(from, to)
    }

    fn forget(&self, ticket: Ticket) {
        if process::is_forked() {
            return;
        }
        self.inner.forget_timing(ticket);
    }

    fn defers_free(&self, block: &Block) -> bool {
        !process::is_forked() && self.inner.defers_free(block)
    }

    fn is_deferred(&self, block: &Block) -> bool {
        if process::is_forked() || self.inner.deferred.len() == 0 {
            return false;
        }
        self.inner.tidy();
        self.inner.deferred.has(&self.inner, block)
    }

    fn free_deferred(&self) {
        self.inner.tidy();
        while !process::is_forked() && self.inner.deferred.is_freeing() {
            thread::yield_now();
        }
    }

    fn taints(&self) -> Option<&Taints> {
        Some(self.inner.ranges.taints())
    }

    fn host_access(&self, block: &Block) -> Result<()> {
        self.inner.check_host_access(self.inner.device(block.device)?)
    }

    fn prefetch(&self, prefetch: &Prefetch, on: StreamId) -> Result<Ticket> {
        self.inner.prefetch_queued(prefetch, on)
    }

    fn reserve(&self, device: u32, bytes: u64) -> Result<AddressRange> {
        self.inner.reserve_addresses(device, bytes)
    }

    fn map(&self, range: &AddressRange, offset: u64, bytes: u64) -> Result<Block> {
        driver::check_not_forked("cuMemMap")?;
        self.inner.tidy();
        self.inner.map_part(range, offset, bytes)
    }

    unsafe fn remap(&self, block: &mut Block, offset: u64) -> Result<()> {
        driver::check_not_forked("cuMemMap")?;
        self.inner.tidy();
        // SAFETY: the contract is the same: nothing uses the block.
        unsafe { self.inner.move_part(block, offset) }
    }

    fn set_peer(&self, device: u32, peer: u32, enabled: bool) -> Result<()> {
        self.inner.set_peer(device, peer, enabled)
    }
}
