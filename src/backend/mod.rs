//! Backends: allocate memory, copy bytes and run kernels.
//!
//! 1. [`Backend`] has raw addresses; [`memory`](crate::memory) and [`Stream`](crate::stream::Stream) are safe.
//! 2. A stream executes in order; each operation has a [`Ticket`].
//! 3. Invalid input is an error, without effects.
//!
//! [`host`] simulates devices; `cuda`, a feature, uses NVIDIA's driver.

mod address_range;
mod block;
mod bytes;
mod capabilities;
mod counters;
#[cfg(feature = "cuda")]
pub mod cuda;
mod failures;
pub(crate) mod fill;
pub mod host;
mod operation;
mod ranges;
mod taint;
mod ticket;
pub(crate) mod watch;

use core::fmt;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use core::task::Waker;
use core::time::Duration;
use std::boxed::Box;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Instant;

use ringmem_layouts::{Abi, Image};

use crate::Result;

pub use crate::location::MemoryLocation;
pub use address_range::{AddressRange, Place};
pub use block::{Block, DeviceAddress, Options, Request};
pub use capabilities::{Capabilities, MemoryInfo};
pub use fill::Fill;
pub(crate) use operation::entry;
pub use operation::{Address, Copy, Elements, Launch, ModuleId, Operand, Prefetch};
pub use taint::Taints;
pub use ticket::{StreamId, Ticket, Uses};

/// A source of devices, memory, streams and kernels. Any thread may call any method, also while a kernel runs.
///
/// # Safety
///
/// Blocks have the requested size and alignment, are initialised where the host reads them, overlap no live block, and are freed after
/// their uses. Streams execute in order. Queries do not panic: [`is_complete`](Self::is_complete), [`is_deferred`](Self::is_deferred),
/// [`defers_free`](Self::defers_free).
///
/// ```
/// use ringmem::backend::Backend;
/// use ringmem::backend::host::HostBackend;
///
/// /// The device with the most free memory.
/// fn emptiest(backend: &dyn Backend) -> Option<u32> {
///     let free = |&device: &u32| backend.memory_info(device).ok().flatten().map(|memory| memory.free);
///     (0..backend.devices()).max_by_key(free)
/// }
///
/// let backend = HostBackend::builder().device_memories([1 << 20, 4 << 20, 2 << 20]).build()?;
/// assert_eq!(emptiest(&*backend), Some(1));
/// # Ok::<(), ringmem::Error>(())
/// ```
#[allow(unused_variables, reason = "the defaults of optional methods ignore their arguments")]
pub unsafe trait Backend: fmt::Debug + Send + Sync + 'static {
    /// Returns the backend's number, from [`next_id`].
    fn id(&self) -> u64;

    /// Returns a trait object of it.
    fn erased(self: Arc<Self>) -> Arc<dyn Backend>;

    /// Returns its kind, in one word.
    fn name(&self) -> &'static str;

    /// Returns true for simulated devices. No call falls back to a simulation except [`pool::global`](crate::pool::global).
    fn is_simulated(&self) -> bool {
        false
    }

    /// Returns the number of devices.
    fn devices(&self) -> u32;

    /// Returns the features of a device.
    ///
    /// # Errors
    ///
    /// [`NoDevice`](crate::Error::NoDevice).
    fn capabilities(&self, device: u32) -> Result<Capabilities>;

    /// Returns the size of a device's memory; `None` if unknown.
    ///
    /// # Errors
    ///
    /// [`NoDevice`](crate::Error::NoDevice), the driver's error.
    fn memory_info(&self, device: u32) -> Result<Option<MemoryInfo>>;

    /// Returns a number of bytes above which [`map`](Self::map) surely fails on a device, if one is known. Pages of managed memory give way, so they do not
    /// count as used.
    fn mappable(&self, device: u32) -> Option<u64> {
        Some(self.memory_info(device).ok()??.free)
    }

    /// Allocates memory, stream-ordered with `on`. Wait for its [`ready`](Block::ready) ticket before using it elsewhere.
    ///
    /// # Errors
    ///
    /// [`Size`](crate::Error::Size) for no bytes, [`Align`](crate::Error::Align), [`Unsupported`](crate::Error::Unsupported) for an option,
    /// [`OutOfMemory`](crate::Error::OutOfMemory).
    fn allocate(&self, request: &Request, on: Option<StreamId>) -> Result<Block>;

    /// Frees a block after its uses, without waiting for them.
    ///
    /// # Errors
    ///
    /// [`Foreign`](crate::Error::Foreign) unless it is a live block of this backend and layout: nothing is freed. A driver's error: it is
    /// freed anyway.
    ///
    /// # Safety
    ///
    /// It is freed once, and only `uses` still use it.
    unsafe fn free(&self, block: &Block, uses: &Uses) -> Result<()>;

    /// Copies without waiting for a stream, and returns when complete.
    ///
    /// One aligned 8-byte word is an acquire load and a release store: others may access it as a word meanwhile.
    ///
    /// # Errors
    ///
    /// [`Foreign`](crate::Error::Foreign) or [`Range`](crate::Error::Range) for a place outside live memory, except the caller's pageable
    /// memory; the driver's error.
    ///
    /// # Safety
    ///
    /// Both have `bytes` bytes, without overlap. Meanwhile no one else writes the source or accesses the target, except one aligned 8-byte word as a word. A
    /// source of one word is writable.
    unsafe fn copy_now(&self, copy: &Copy) -> Result<()>;

    /// Fills like [`copy_now`](Self::copy_now).
    ///
    /// # Errors
    ///
    /// As [`copy_now`](Self::copy_now); [`Cast`](crate::Error::Cast) for a misaligned place; [`Unsupported`](crate::Error::Unsupported)
    /// unless elements have 1, 2, 4, 8 or 16 bytes.
    ///
    /// # Safety
    ///
    /// The place has all elements, exclusively.
    unsafe fn fill_now(&self, fill: &Fill) -> Result<()>;

    /// As [`Stream::new`](crate::stream::Stream::new).
    fn open_stream(&self, device: u32) -> Result<StreamId>;

    /// Closes a stream after its queued operations, without waiting for kernels.
    fn close_stream(&self, stream: StreamId);

    /// Queues a copy, which reads the source at execution.
    ///
    /// # Errors
    ///
    /// As [`copy_now`](Self::copy_now), and [`Closed`](crate::Error::Closed); nothing was queued.
    ///
    /// # Safety
    ///
    /// As [`copy_now`](Self::copy_now), until it is executed.
    unsafe fn copy(&self, copy: &Copy, on: StreamId) -> Result<Ticket>;

    /// Queues a fill.
    ///
    /// # Errors
    ///
    /// As [`fill_now`](Self::fill_now), and [`Closed`](crate::Error::Closed).
    ///
    /// # Safety
    ///
    /// As [`fill_now`](Self::fill_now), until it is executed.
    unsafe fn fill(&self, fill: &Fill, on: StreamId) -> Result<Ticket>;

    /// Stores a word: an acquire load also sees all earlier writes of the host and of returned calls.
    ///
    /// # Errors
    ///
    /// As [`fill_now`](Self::fill_now).
    ///
    /// # Safety
    ///
    /// 8 bytes, which others meanwhile access only as a word.
    unsafe fn publish_now(&self, word: Address, value: u64) -> Result<()>;

    /// Makes each copy, then stores the word, with one wait if the driver can order them. If a copy fails, nothing is stored.
    ///
    /// # Errors
    ///
    /// As those two.
    ///
    /// # Safety
    ///
    /// As those two.
    unsafe fn copy_and_publish_now(&self, copies: &[Copy], word: Address, value: u64) -> Result<()> {
        for copy in copies {
            // SAFETY: the caller promises for each copy that both ends have all bytes, without overlap, that nothing else writes the source or accesses the
            // target until this returns, except one aligned word as a word, and that a source of one word is writable.
            unsafe { self.copy_now(copy) }?;
        }
        // SAFETY: the caller promises that the word has 8 bytes, which others access only as a word until this returns.
        unsafe { self.publish_now(word, value) }
    }

    /// Queues the store of a word: an acquire load also sees all earlier operations of the stream. A failure from `since` on prevents it.
    ///
    /// # Errors
    ///
    /// As [`fill`](Self::fill). After a failure, waiting returns [`Operation`](crate::Error::Operation).
    ///
    /// # Safety
    ///
    /// As [`publish_now`](Self::publish_now), until it is executed; `since` is of this stream.
    unsafe fn publish(&self, word: Address, value: u64, since: Ticket, on: StreamId) -> Result<Ticket>;

    /// Makes later operations of `stream` wait for another's ticket.
    ///
    /// # Errors
    ///
    /// [`Closed`](crate::Error::Closed), the driver's error.
    fn stream_wait(&self, ticket: Ticket, stream: StreamId) -> Result<()>;

    /// Returns a ticket for the completion of all earlier operations.
    ///
    /// # Errors
    ///
    /// [`Closed`](crate::Error::Closed), the driver's error.
    fn record_position(&self, stream: StreamId) -> Result<Ticket>;

    /// Returns true if all operations up to a ticket are complete, or its stream has ended.
    fn is_complete(&self, ticket: Ticket) -> bool;

    /// Waits until a ticket is complete; false on timeout.
    ///
    /// # Errors
    ///
    /// The ticket's error, once. The backends here remember 64 ended streams with unreported errors.
    fn wait(&self, ticket: Ticket, timeout: Option<Duration>) -> Result<bool>;

    /// Waits like [`wait`](Self::wait), but also fails if another waiter got the error. The caller holds the stream.
    ///
    /// # Errors
    ///
    /// As [`wait`](Self::wait), and [`Operation`](crate::Error::Operation). After hundreds of failures, a success may be reported as a
    /// failure, never the reverse.
    fn outcome(&self, ticket: Ticket, timeout: Option<Duration>) -> Result<bool>;

    /// Waits until all operations queued on a stream are complete.
    ///
    /// # Errors
    ///
    /// The first unreported error; all then count as reported.
    fn synchronize(&self, stream: StreamId) -> Result<()>;

    /// As [`Module::load`](crate::stream::Module::load).
    fn load(&self, image: &Image, expected: &Abi) -> Result<ModuleId>;

    /// Unloads a module after its queued launches.
    fn unload(&self, module: ModuleId);

    /// Queues a kernel.
    ///
    /// # Errors
    ///
    /// [`NotFound`](crate::Error::NotFound), [`Arguments`](crate::Error::Arguments), [`Residency`](crate::Error::Residency),
    /// [`Closed`](crate::Error::Closed); nothing was queued.
    ///
    /// # Safety
    ///
    /// The promise of [`Stream::launch`](crate::stream::Stream::launch). The kernel is declared for as many groups and warps: [`Launch::warps`].
    unsafe fn launch(&self, launch: &Launch<'_>, on: StreamId) -> Result<Ticket>;

    /// Drops a value after its uses; with a freed block `beyond`, also after [its memory is free](Self::is_deferred). The drop must
    /// not block, since [`free_deferred`](Self::free_deferred) waits for it.
    fn keep(&self, value: Box<dyn Send>, uses: &Uses, beyond: Option<&Block>);

    /// Counts an error that a destructor cannot return.
    fn unreported(&self, error: crate::Error);

    // Optional: each has a default for a backend that lacks it.

    /// Returns the ns since an unspecified start, of the process's or simulated clock.
    fn now_ns(&self) -> u64 {
        static BEGUN: OnceLock<Instant> = OnceLock::new();
        u64::try_from(BEGUN.get_or_init(Instant::now).elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Like [`record_position`](Self::record_position), but timed, if the backend supports it. Release it with [`forget`](Self::forget).
    /// [Waiting](Self::wait) returns the stream's first unreported error.
    ///
    /// # Errors
    ///
    /// As [`record_position`](Self::record_position).
    fn record(&self, stream: StreamId) -> Result<Option<Ticket>> {
        Ok(None)
    }

    /// Returns the time between recorded tickets of any streams; zero if `to` came first.
    ///
    /// # Errors
    ///
    /// [`Operation`](crate::Error::Operation) for a ticket that is not complete, or failed; [`Unsupported`](crate::Error::Unsupported) unless recorded.
    fn elapsed(&self, from: Ticket, to: Ticket) -> Result<Duration> {
        Err(crate::Error::Unsupported { what: "the time of a ticket without a recorded event" })
    }

    /// Releases the timestamp of a recorded ticket.
    fn forget(&self, ticket: Ticket) {}

    /// Wakes a task when a ticket is complete, without further calls.
    ///
    /// # Errors
    ///
    /// The waker, if the backend cannot.
    fn notify(&self, ticket: Ticket, waker: Waker) -> Result<(), Waker> {
        Err(waker)
    }

    /// Returns true if freeing this live block now would be deferred: it would synchronise with a kernel.
    fn defers_free(&self, block: &Block) -> bool {
        false
    }

    /// Returns true if a freed, unused block, or one around it, is not free yet: its free is [deferred](Self::defers_free), or a
    /// [kept](Self::keep) value lives.
    fn is_deferred(&self, block: &Block) -> bool {
        false
    }

    /// Frees deferred blocks and drops kept values that are due.
    fn free_deferred(&self) {}

    /// Returns the bytes of the longest free range of a device's memory, if known, as if the ranges `freeable`, by address and size, were freed.
    ///
    /// A device that maps its memory page by page has none: there, any free bytes serve an allocation.
    fn largest_free(&self, device: u32, freeable: &[(DeviceAddress, u64)]) -> Option<u64> {
        None
    }

    /// Returns the memory that failed operations left invalid, if tracked; operations check and update it at execution, on
    /// CUDA at queueing.
    fn taints(&self) -> Option<&Taints> {
        None
    }

    /// Checks that the host may access a managed block now.
    ///
    /// # Errors
    ///
    /// [`Busy`](crate::Error::Busy) under a kernel without [`concurrent_managed_access`](Capabilities::concurrent_managed_access).
    fn host_access(&self, block: &Block) -> Result<()> {
        Ok(())
    }

    /// Queues the move of managed memory to a device or the host: a hint.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::Error::Unsupported) for a device without prefetches or other memory; as [`copy`](Self::copy).
    fn prefetch(&self, prefetch: &Prefetch, on: StreamId) -> Result<Ticket> {
        Err(crate::Error::Unsupported { what: "a prefetch" })
    }

    /// Reserves at least `bytes` addresses of a device, without memory, for [`map`](Self::map).
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::Error::Unsupported) without a [granularity](Capabilities::mapping_granularity),
    /// [`NoDevice`](crate::Error::NoDevice), [`Size`](crate::Error::Size), the system's error.
    fn reserve(&self, device: u32, bytes: u64) -> Result<AddressRange> {
        Err(crate::Error::Unsupported { what: "an address range" })
    }

    /// Allocates device memory at an offset of an address range. [Freed](Self::free) like any block.
    ///
    /// # Errors
    ///
    /// As [`occupy`](AddressRange::occupy); [`OutOfMemory`](crate::Error::OutOfMemory); [`OtherBackend`](crate::Error::OtherBackend);
    /// [`Busy`](crate::Error::Busy) while it would wait for a kernel; the system's error.
    fn map(&self, range: &AddressRange, offset: u64, bytes: u64) -> Result<Block> {
        Err(crate::Error::Unsupported { what: "an address range" })
    }

    /// Moves a mapped block with its bytes to another offset of its range, which it does not overlap.
    ///
    /// # Errors
    ///
    /// As [`map`](Self::map), and [`Foreign`](crate::Error::Foreign) unless it is a live mapped block: it stays as it is. A target that overlaps it is
    /// [`Busy`](crate::Error::Busy). After the system's error it stays where it is, or, if its old place is refused too, is freed and becomes
    /// [empty](Block::empty).
    ///
    /// # Safety
    ///
    /// Nothing uses the block, now or later at its old address.
    unsafe fn remap(&self, block: &mut Block, offset: u64) -> Result<()> {
        Err(crate::Error::Unsupported { what: "an address range" })
    }

    /// Enables or disables a device's access to another's memory; before disabling, wait for its uses.
    ///
    /// # Errors
    ///
    /// [`NoDevice`](crate::Error::NoDevice); [`Unsupported`](crate::Error::Unsupported) for other [peers](Capabilities::peers); the driver's
    /// error.
    fn set_peer(&self, device: u32, peer: u32, enabled: bool) -> Result<()> {
        if device == peer { Ok(()) } else { Err(crate::Error::Unsupported { what: "peer access between these devices" }) }
    }
}

/// Returns a backend number, unique in this process.
#[must_use]
pub fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Relaxed)
}

/// Waits without limit, also for a backend that does not answer: a failed wait says nothing about the operation.
pub(crate) fn until_complete(backend: &dyn Backend, ticket: Ticket) {
    while !backend.is_complete(ticket) {
        if backend.wait(ticket, None).is_err() {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

pub(crate) fn same_backend(expected: &dyn Backend, got: &dyn Backend) -> Result<()> {
    let (expected, got) = (expected.id(), got.id());
    if expected == got { Ok(()) } else { Err(crate::Error::OtherBackend { expected, got }) }
}
