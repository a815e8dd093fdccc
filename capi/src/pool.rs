//! [`Pool`]: memory for callers that order its uses by streams, as programs with CUDA's runtime do.
//!
//! # Device memory
//!
//! A block is allocated for its *home* stream. Its free takes effect in the order of that stream: work that the caller queued there before the free may still
//! use the block, and work that it queues there after the next allocation may use it again, without a wait and without an event.
//!
//! ```text
//!   home A   alloc x   kernel(x)   free x   alloc y (= x)   kernel(y)
//!            ---------------- the order of stream A --------------->
//! ```
//!
//! So each stream has a pool of its own, to which a freed block is unused at once; `HomeMemory` keeps memory that leaves such a pool from being used too
//! early. A block that other streams use too (`Pool::record`) has the positions of these streams at its free as uses, and is free when they are complete.
//!
//! The pools of a device allocate from one [`Limited`] memory. When a pool finds neither memory of its own nor room within the limit or on the device, it
//! takes the idle memory of the others (`Pool::reclaim`): they free it, and the request waits for their streams. PyTorch's allocator does the same before it
//! reports that memory is exhausted.
//!
//! # Pinned and managed memory
//!
//! The host accesses it in no stream's order. One pool serves all streams, and the position of each stream that uses a block, also that of its allocation, is a
//! use.
//!
//! # Tables
//!
//! `live` has each block that the caller has, by its address. An entry is made after the allocation and removed before the free, so an address is in the table
//! once at most, and a block is freed once; if a free fails, its entry is made again. No table is locked during a call of a pool. A lent block is in it too,
//! but only its tensor frees it.
//!
//! In a forked process, an allocation fails before any lock is taken, because another thread may have held it; a free is ignored, and so is the close.

use core::alloc::Layout;
use core::ffi::{c_char, c_void};
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};
use std::thread;
use std::time::Instant;

use ringmem::__dlpack::device_of;
use ringmem::__process::Process;
use ringmem::__size::show;
use ringmem::Error;
use ringmem::backend::{Backend, Block, StreamId, Uses};
use ringmem::dlpack::DlDevice;
use ringmem::memory::{Device, Limited, Memory as _, Pinned, Unified};
use ringmem::pool::{self, AnyMemory, Hygiene, PinnedPool, Statistics};
use ringmem::snapshot::Snapshot;

use crate::arguments::{Output, Versioned, borrowed, handle, path, read, write};
use crate::devices::Devices;
use crate::home_memory::{Calls, HomeMemory, add, position};
use crate::status::{Failure, Status, call};
use crate::streams::{Listener, Raw, Streams};

/// The alignment of each block, that of `cudaMalloc`.
const ALIGN: usize = 256;
/// The limit of pinned and managed memory by default.
const HOST_LIMIT: u64 = 4 << 30;
/// Parts of the table of live blocks: threads that use different blocks rarely meet.
const SHARDS: usize = 16;
/// Reclaiming passes of one request, at most.
const MOST_PASSES: u32 = 16;
/// So many passes in a row that find nothing end a request: what another thread is freeing is in no pool for a moment.
const PASSES_IN_VAIN: u32 = 2;
/// The longest pause for calls of other threads.
const MOST_PAUSE: Duration = Duration::from_millis(64);
/// The longest wait of a request for streams.
const PATIENCE: Duration = Duration::from_secs(30);

/// A kind of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Memory {
    /// Device memory. A block is reused on its stream at once, in the order of the stream.
    Device = 0,
    /// Page-locked host memory. A block is reused once the streams that use it are complete.
    Pinned = 1,
    /// Managed memory. A block is reused once the streams that use it are complete.
    Managed = 2,
}

/// Options of a pool. Set `size`, and others to 0 for their defaults.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct PoolOptions {
    /// `sizeof(ringmem_pool_options)`.
    pub size: usize,
    /// Number of the device.
    pub device: u32,
    /// A `ringmem_memory`.
    pub memory: i32,
    /// Most bytes that the pool reserves. 0: of device memory, all that the device has; of pinned and managed memory, 4 GiB.
    pub limit: u64,
    /// Bytes of a slab, 64 KiB to just below 1 TiB. 0: device memory is mapped behind an address range if the device can, else slabs have 32 MiB. Not for
    /// pinned memory.
    pub slab: u64,
}

// SAFETY: integers without padding, the size first.
unsafe impl Versioned for PoolOptions {
    const NAME: &'static str = "options";
}

/// Figures of a pool. Sizes are in bytes. Set `size` before the call.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct PoolStatistics {
    /// `sizeof(ringmem_pool_statistics)`.
    pub size: usize,
    /// Live blocks.
    pub live: u64,
    /// Requested bytes of live blocks.
    pub live_bytes: u64,
    /// High-water mark of `live_bytes`.
    pub live_peak: u64,
    /// Bytes that the pool has from the device.
    pub reserved_bytes: u64,
    /// High-water mark of `reserved_bytes`, also during an allocation that failed in the end.
    pub reserved_peak: u64,
    /// Bytes of the reserved ones that no live block has.
    pub idle_bytes: u64,
    /// The limit of `reserved_bytes`.
    pub limit: u64,
    /// Allocated blocks so far.
    pub allocations: u64,
    /// Those of them that a freed block served: of a thread's cache, or, above 1 MiB, any free memory of the pool.
    pub hits: u64,
    /// Freed blocks that wait for other streams.
    pub pending: u64,
    /// Allocations from the device so far.
    pub device_allocations: u64,
    /// Frees to the device so far.
    pub device_frees: u64,
    /// Pieces of memory that have moved to other addresses so far.
    pub moves: u64,
}

// SAFETY: integers without padding, the size first.
unsafe impl Versioned for PoolStatistics {
    const NAME: &'static str = "statistics";
}

/// A pool of one kind of memory of a device.
pub struct Pool {
    process: Process,
    streams: Arc<Streams>,
    backend: Arc<dyn Backend>,
    device: u32,
    source: Source,
    live: [Mutex<HashMap<u64, Live, foldhash::fast::RandomState>>; SHARDS],
    live_blocks: AtomicU64,
    live_bytes: AtomicU64,
    live_peak: AtomicU64,
    /// The turn of a thread that is short of memory.
    reclaiming: Mutex<()>,
    /// Counts of stream pools that have ended.
    ended: Arc<Mutex<Statistics>>,
}

enum Source {
    /// A pool for each home stream in use, within one limit.
    Streams {
        memory: Limited<Device>,
        slab: Option<u64>,
        pools: RwLock<StreamPools>,
    },
    Shared {
        memory: AnyMemory,
        limit: u64,
    },
}

#[derive(Default)]
struct StreamPools {
    /// By home stream. A stream's handle is no key: it may stand for another stream once this one was forgotten.
    open: HashMap<StreamId, Arc<StreamPool>, foldhash::fast::RandomState>,
    /// Those of forgotten streams, while blocks of them are live.
    orphans: Vec<Weak<StreamPool>>,
}

/// The pool of a home stream.
struct StreamPool {
    home: StreamId,
    raw: Raw,
    pool: pool::Pool<HomeMemory>,
    calls: Arc<Calls>,
    /// Gets the counts when this ends.
    ended: Arc<Mutex<Statistics>>,
}

impl Drop for StreamPool {
    fn drop(&mut self) {
        let counts = self.pool.statistics();
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        ended.hits += counts.hits;
        ended.misses += counts.misses;
        ended.memory_allocations += counts.memory_allocations;
        ended.memory_frees += counts.memory_frees + counts.slabs;
        ended.memory_moves += counts.memory_moves;
    }
}

struct Live {
    /// `None`: of the shared pool.
    home: Option<Arc<StreamPool>>,
    block: Block,
    /// Streams that use the block, but for the home stream. A forgotten one had completed its work.
    users: Vec<StreamId>,
    /// A tensor frees it.
    is_lent: bool,
}

impl Live {
    fn note(&mut self, stream: StreamId) {
        if self.home.as_ref().is_none_or(|home| home.home != stream) && !self.users.contains(&stream) {
            self.users.push(stream);
        }
    }
}

/// A block that a tensor owns.
pub(crate) struct Loan {
    pub data: *mut c_void,
    pub device: DlDevice,
}

impl Pool {
    pub(crate) fn new(streams: &Arc<Streams>, options: &PoolOptions) -> Result<Arc<Self>, Failure> {
        let PoolOptions { device, limit, slab, .. } = *options;
        let (backend, limit, slab) = (streams.backend(), (limit > 0).then_some(limit), (slab > 0).then_some(slab));
        backend.capabilities(device)?;
        let source = match options.memory {
            0 => {
                let total = || backend.memory_info(device).map(|info| info.map_or(u64::MAX, |info| info.total));
                let memory = Limited::new(Device::new(&backend, device), limit.map_or_else(total, Ok)?);
                // An invalid slab is this call's error, not that of the first allocation.
                slab.into_iter().fold(pool::Pool::builder(Device::new(&backend, device)), pool::Builder::slab).build()?;
                Source::Streams { memory, slab, pools: RwLock::default() }
            }
            1 if slab.is_some() => return Err(Failure::new(Status::Unsupported, "`options.slab` is not for pinned memory")),
            1 => {
                let limit = limit.unwrap_or(HOST_LIMIT);
                Source::Shared { memory: AnyMemory::Pinned(PinnedPool::new(Pinned::new(&backend, device), limit)?), limit }
            }
            2 => {
                let limit = limit.unwrap_or(HOST_LIMIT);
                let builder = pool::Pool::builder(Unified::new(&backend, device)).limit(limit).hygiene(Hygiene::Leave);
                Source::Shared { memory: AnyMemory::Unified(slab.into_iter().fold(builder, pool::Builder::slab).build()?), limit }
            }
            other => return Err(Failure::new(Status::Invalid, format!("`options.memory` is {other}: expected 0, 1 or 2"))),
        };
        let pool = Arc::new(Self {
            process: Process::this(),
            streams: Arc::clone(streams),
            backend,
            device,
            source,
            live: Default::default(),
            live_blocks: AtomicU64::new(0),
            live_bytes: AtomicU64::new(0),
            live_peak: AtomicU64::new(0),
            reclaiming: Mutex::default(),
            ended: Arc::default(),
        });
        let listener: Weak<Self> = Arc::downgrade(&pool);
        streams.add_listener(listener);
        Ok(pool)
    }

    /// Allocates a block for a stream; returns its address.
    ///
    /// # Safety
    ///
    /// As [`Streams::id`].
    pub(crate) unsafe fn allocate(self: &Arc<Self>, bytes: usize, stream: Raw) -> Result<u64, Failure> {
        self.check_process()?;
        let layout = Layout::from_size_align(bytes, ALIGN).ok().filter(|layout| layout.size() > 0);
        let layout = layout.ok_or_else(|| Failure::new(Status::Invalid, format!("invalid size: {bytes} bytes")))?;
        let limit = self.limit();
        if bytes as u64 > limit {
            let mut sizes = [bytes as u64, limit].map(show);
            if bytes as u64 - limit < limit / 64 {
                // Rounded, they may be equal.
                sizes = [bytes as u64, limit].map(|bytes| format!("{bytes} bytes"));
            }
            let text = format!("out of memory: {} requested, more than the limit of the pool, {}", sizes[0], sizes[1]);
            return Err(Failure::new(Status::OutOfMemory, text));
        }
        let (home, allocated, users) = match &self.source {
            Source::Streams { memory, slab, pools } => {
                // SAFETY: the caller promises that the stream is 0, of `Streams::create`, or of the device's primary context and live until it is forgotten.
                let home = unsafe { self.pool_of(stream, memory, *slab, pools) }?;
                let allocated = self.allocate_or_reclaim(memory, &home, layout);
                (Some(home), allocated, Vec::new())
            }
            Source::Shared { memory, .. } => {
                // Now, so that an invalid handle is this call's error, not that of the free.
                // SAFETY: the caller promises that the stream is 0, of `Streams::create`, or of the device's primary context and live until it is forgotten.
                let user = unsafe { self.streams.id(self.device, stream) }?;
                (None, memory.alloc(layout, None), vec![user])
            }
        };
        let block = allocated.map_err(|error| self.explained(error))?;
        let address = address_of(&block);
        if let Some(ready) = block.ready {
            // A failed wait leaves the block live, for the caller's free: it has no other owner.
            let _ = self.backend.wait(ready, None);
        }
        // SAFETY: the start is within the block.
        if let (Some(taints), Some(place)) = (self.backend.taints(), unsafe { block.address_at(0) }) {
            // A failed copy was to write for the previous owner.
            taints.remove(place, bytes as u64);
        }
        self.live_blocks.fetch_add(1, Relaxed);
        let live = self.live_bytes.fetch_add(bytes as u64, Relaxed) + bytes as u64;
        self.live_peak.fetch_max(live, Relaxed);
        self.shard(address).insert(address, Live { home, block, users, is_lent: false });
        Ok(address)
    }

    /// Frees a block after the work that is queued on `last`, on its home stream, and on the recorded streams. In a forked process it stays the parent's.
    ///
    /// # Safety
    ///
    /// As [`Streams::id`]. All work that uses the block was queued on those streams, or is complete.
    pub(crate) unsafe fn free(&self, address: u64, last: Option<Raw>) -> Result<(), Failure> {
        if !self.process.is_this() {
            return Ok(());
        }
        // Before anything changes: an invalid handle changes nothing.
        // SAFETY: the caller promises that the stream is 0, of `Streams::create`, or of the device's primary context and live until it is forgotten.
        let last = last.map(|last| unsafe { self.streams.id(self.device, last) }).transpose()?;
        let live = {
            let mut shard = self.shard(address);
            if shard.get(&address).is_some_and(|live| live.is_lent) {
                return Err(lent(address));
            }
            shard.remove(&address).ok_or_else(|| unknown(address))?
        };
        // SAFETY: all work that uses the block was queued on its streams, of which `last` is one, or is complete, as the caller promises.
        unsafe { self.give_back(address, live, last) }
    }

    /// Frees a lent block after the work that is queued on its home stream and on the recorded streams, of which the consumer's is one.
    ///
    /// # Safety
    ///
    /// All work that uses the block was queued on those streams, or is complete.
    pub(crate) unsafe fn free_lent(&self, address: u64) -> Result<(), Failure> {
        let live = self.shard(address).remove(&address).ok_or_else(|| unknown(address))?;
        // SAFETY: all work that uses the block was queued on its streams, or is complete, as the caller promises.
        unsafe { self.give_back(address, live, None) }
    }

    /// # Safety
    ///
    /// As [`free`](Self::free), for a block that was removed from the table.
    unsafe fn give_back(&self, address: u64, mut live: Live, last: Option<StreamId>) -> Result<(), Failure> {
        let recorded = live.users.len();
        if let Some(last) = last {
            live.note(last);
        }
        let uses = match self.positions(&live.users) {
            Ok(uses) => uses,
            Err(failure) => {
                // Without the positions the block cannot be reused. It stays live: the caller may try again.
                live.users.truncate(recorded);
                self.shard(address).insert(address, live);
                return Err(failure.into());
            }
        };
        let Live { home, block, .. } = live;
        self.live_blocks.fetch_sub(1, Relaxed);
        self.live_bytes.fetch_sub(block.layout.size() as u64, Relaxed);
        match (home, &self.source) {
            // SAFETY: a block of that pool, which left the table above, so that it is freed once. `uses` are all streams but the home stream, in whose order the
            // pool uses the block again. `HomeMemory` adds its position to a free, and refuses a move before that is complete.
            (Some(home), _) => unsafe { home.pool.free(&block, &uses) }?,
            // SAFETY: a block of that memory, which left the table above, so that it is freed once; `uses` are all streams.
            (None, Source::Shared { memory, .. }) => unsafe { memory.free(&block, &uses) }?,
            (None, Source::Streams { .. }) => {}
        }
        Ok(())
    }

    /// Notes that a further stream uses a block, which is then reused after the work that is queued there before its free.
    ///
    /// # Safety
    ///
    /// As [`Streams::id`].
    pub(crate) unsafe fn record(&self, address: u64, stream: Raw) -> Result<(), Failure> {
        if !self.process.is_this() {
            return Ok(());
        }
        // SAFETY: the caller promises that the stream is 0, of `Streams::create`, or of the device's primary context and live until it is forgotten.
        let stream = unsafe { self.streams.id(self.device, stream) }?;
        let mut shard = self.shard(address);
        shard.get_mut(&address).ok_or_else(|| unknown(address))?.note(stream);
        Ok(())
    }

    /// Lends a block of at least `bytes` bytes to a tensor, until [`free_lent`](Self::free_lent). The consumer's stream waits, on the device, for the work that
    /// is queued on the block's streams.
    ///
    /// # Safety
    ///
    /// As [`Streams::id`].
    pub(crate) unsafe fn lend(&self, address: u64, bytes: u64, consumer: Raw) -> Result<Loan, Failure> {
        self.check_process()?;
        // SAFETY: the caller promises that the stream is 0, of `Streams::create`, or of the device's primary context and live until it is forgotten.
        let consumer = unsafe { self.streams.id(self.device, consumer) }?;
        let mut ordered = vec![consumer];
        loop {
            let others: Vec<StreamId> = {
                let mut shard = self.shard(address);
                let live = shard.get_mut(&address).ok_or_else(|| unknown(address))?;
                let loan = self.loan(address, bytes, live)?;
                let home = live.home.iter().map(|home| home.home);
                let others: Vec<StreamId> = home.chain(live.users.iter().copied()).filter(|other| !ordered.contains(other)).collect();
                if others.is_empty() {
                    live.note(consumer);
                    live.is_lent = true;
                    return Ok(loan);
                }
                others
            };
            for other in others {
                if let Some(position) = position(&*self.backend, other)? {
                    self.backend.stream_wait(position, consumer)?;
                }
                // Meanwhile another thread may record further streams, or lend the block.
                ordered.push(other);
            }
        }
    }

    fn loan(&self, address: u64, bytes: u64, live: &Live) -> Result<Loan, Failure> {
        let Live { block, is_lent, .. } = live;
        let size = block.layout.size() as u64;
        if *is_lent {
            return Err(lent(address));
        }
        if bytes > size {
            return Err(Failure::new(Status::Invalid, format!("the tensor has {bytes} bytes, the block at {address:#x} has {size}")));
        }
        let device = device_of(block, &*self.backend)?;
        let data = block.host.map_or(core::ptr::without_provenance_mut(address as usize), |host| host.as_ptr().cast());
        Ok(Loan { data, device })
    }

    /// Returns the number of live blocks that no tensor owns, and their bytes.
    fn owned(&self) -> (u64, u64) {
        let mut sums = (0, 0);
        for shard in &self.live {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            for live in shard.values().filter(|live| !live.is_lent) {
                sums = (sums.0 + 1, sums.1 + live.block.layout.size() as u64);
            }
        }
        sums
    }

    fn limit(&self) -> u64 {
        match &self.source {
            Source::Streams { memory, .. } => memory.limit(),
            Source::Shared { limit, .. } => *limit,
        }
    }

    fn check_process(&self) -> Result<(), Failure> {
        if self.process.is_this() {
            return Ok(());
        }
        Err(Failure::new(Status::Unsupported, "the pool belongs to the parent process: after a fork, create another"))
    }

    pub(crate) const fn process(&self) -> &Process {
        &self.process
    }

    /// Frees idle memory until at most `keep` bytes are reserved; returns the freed bytes. The device has them once the streams have completed their work.
    pub(crate) fn trim(&self, keep: u64) -> u64 {
        if !self.process.is_this() {
            return 0;
        }
        let pools = match &self.source {
            Source::Streams { .. } => self.stream_pools(),
            Source::Shared { memory: AnyMemory::Unified(pool), .. } => return pool.trim_to(keep),
            // It has no trim to a size.
            Source::Shared { memory: AnyMemory::Pinned(pool), .. } => {
                return if pool.locked() > keep { pool.trim_older_than(core::time::Duration::ZERO) } else { 0 };
            }
            Source::Shared { .. } => return 0,
        };
        let reserved: Vec<u64> = pools.iter().map(|pool| pool.pool.statistics().reserved_bytes).collect();
        let (mut sum, mut freed) = (reserved.iter().sum::<u64>(), 0);
        for (pool, own) in pools.iter().zip(reserved) {
            if sum > keep {
                let bytes = pool.pool.trim_to(own.saturating_sub(sum - keep));
                (freed, sum) = (freed + bytes, sum.saturating_sub(bytes));
            }
        }
        self.streams.trim(self.device);
        freed
    }

    /// Returns whether a live block begins at an address.
    pub(crate) fn has(&self, address: u64) -> bool {
        self.process.is_this() && self.shard(address).contains_key(&address)
    }

    pub(crate) fn statistics(&self) -> PoolStatistics {
        if !self.process.is_this() {
            return PoolStatistics { size: size_of::<PoolStatistics>(), ..PoolStatistics::default() };
        }
        let (pools, reserved) = match &self.source {
            Source::Streams { memory, .. } => {
                let pools: Vec<Statistics> = self.stream_pools().iter().map(|pool| pool.pool.statistics()).collect();
                (pools, Some((memory.used(), memory.peak())))
            }
            Source::Shared { memory: AnyMemory::Pinned(pool), .. } => (vec![pool.statistics()], None),
            Source::Shared { memory: AnyMemory::Unified(pool), .. } => (vec![pool.statistics()], None),
            Source::Shared { .. } => (Vec::new(), None),
        };
        let ended = *self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let sum = |figure: fn(&Statistics) -> u64| pools.iter().map(figure).sum::<u64>();
        let total = |figure: fn(&Statistics) -> u64| figure(&ended) + sum(figure);
        // With several pools, freed memory counts until the device has it, and the peak is one of all together.
        let (reserved_bytes, reserved_peak) = reserved.unwrap_or_else(|| (sum(|pool| pool.reserved_bytes), sum(|pool| pool.reserved_peak)));
        PoolStatistics {
            size: size_of::<PoolStatistics>(),
            live: self.live_blocks.load(Relaxed),
            live_bytes: self.live_bytes.load(Relaxed),
            live_peak: self.live_peak.load(Relaxed),
            reserved_bytes,
            reserved_peak,
            idle_bytes: reserved_bytes.saturating_sub(sum(|pool| pool.held_bytes)),
            limit: self.limit(),
            allocations: total(Statistics::acquires),
            hits: total(|pool| pool.hits),
            pending: sum(|pool| pool.pending),
            device_allocations: total(|pool| pool.memory_allocations),
            device_frees: total(|pool| pool.memory_frees),
            moves: total(|pool| pool.memory_moves),
        }
    }

    /// Adds the pools to a snapshot.
    fn add_to(&self, snapshot: &mut Snapshot) {
        let device = self.device;
        match &self.source {
            Source::Streams { .. } => {
                let mut pools = self.stream_pools();
                pools.sort_unstable_by_key(|pool| (pool.raw, pool.home));
                for StreamPool { raw, pool, .. } in pools.iter().map(|pool| &**pool) {
                    snapshot.pool(&format!("device {device}, stream {raw:#x}"), pool);
                }
            }
            Source::Shared { memory: AnyMemory::Pinned(pool), .. } => {
                snapshot.slabs(&format!("pinned, device {device}"), &pool.statistics(), &pool.snapshot());
            }
            Source::Shared { memory: AnyMemory::Unified(pool), .. } => {
                snapshot.pool(&format!("managed, device {device}"), pool);
            }
            Source::Shared { .. } => {}
        }
    }

    /// The present positions of streams that were not forgotten.
    fn positions(&self, streams: &[StreamId]) -> Result<Uses, Error> {
        let mut uses = Uses::NONE;
        for &stream in streams {
            if let Some(position) = position(&*self.backend, stream)? {
                add(&*self.backend, &mut uses, position)?;
            }
        }
        Ok(uses)
    }

    /// Returns the pool of a home stream, created at the first request.
    ///
    /// # Safety
    ///
    /// As [`Streams::id`].
    unsafe fn pool_of(
        self: &Arc<Self>,
        raw: Raw,
        memory: &Limited<Device>,
        slab: Option<u64>,
        pools: &RwLock<StreamPools>,
    ) -> Result<Arc<StreamPool>, Failure> {
        // SAFETY: the caller promises that the stream is 0, of `Streams::create`, or of the device's primary context and live until it is forgotten.
        let home = unsafe { self.streams.id(self.device, raw) }?;
        if let Some(pool) = pools.read().unwrap_or_else(PoisonError::into_inner).open.get(&home) {
            return Ok(Arc::clone(pool));
        }
        let calls = Arc::<Calls>::default();
        let below = HomeMemory { memory: memory.clone(), home, calls: Arc::clone(&calls) };
        let builder = pool::Pool::builder(below).limit(memory.limit()).hygiene(Hygiene::Leave);
        let pool = slab.into_iter().fold(builder, pool::Builder::slab).build()?;
        let new = Arc::new(StreamPool { home, raw, pool, calls, ended: Arc::clone(&self.ended) });
        let mut pools = pools.write().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have been first; then the new pool is dropped, without memory.
        Ok(Arc::clone(pools.open.entry(home).or_insert(new)))
    }

    /// Allocates from a stream's pool; reclaims memory until that succeeds, or until there is none to reclaim.
    ///
    /// Memory that a pass frees is there for all threads, and a thread that is not short of memory can be the first to take it; what that thread frees later
    /// is idle in its own pool. So one pass does not suffice. Threads that reclaim take turns, or they would free memory for each other in vain. A turn waits
    /// for streams at most [`PATIENCE`] in all: their work may wait for another thread that is short of memory.
    ///
    /// A call of another thread that takes memory from the device has bytes of the limit, and gives them back if the device refuses. So an attempt during
    /// which such a call ran tells nothing, and is repeated after a pause.
    fn allocate_or_reclaim(&self, memory: &Limited<Device>, home: &StreamPool, layout: Layout) -> ringmem::Result<Block> {
        let outcome = home.pool.alloc(layout, None);
        if !is_shortage(&outcome) {
            return outcome;
        }
        let _turn = self.reclaiming.lock().unwrap_or_else(PoisonError::into_inner);
        let until = Instant::now() + PATIENCE;
        let (mut passes, mut in_vain) = (0, 0);
        loop {
            let (ended, begun) = self.calls_but(home.home);
            // The first of them: the thread before may have reclaimed enough.
            let outcome = home.pool.alloc(layout, None);
            if !is_shortage(&outcome) || passes == MOST_PASSES || in_vain == PASSES_IN_VAIN {
                return outcome;
            }
            let has_found = self.reclaim(memory, home.home, until);
            let (ended_since, begun_since) = self.calls_but(home.home);
            let has_met = ended != begun || begun != begun_since;
            if ended_since != begun_since {
                thread::sleep(MOST_PAUSE.min(Duration::from_millis(1 << passes)));
            }
            in_vain = if has_found || has_met { 0 } else { in_vain + 1 };
            passes += 1;
        }
    }

    /// The numbers of ended and of begun calls, of all stream pools but one.
    fn calls_but(&self, home: StreamId) -> (u64, u64) {
        let others = self.stream_pools().into_iter().filter(|pool| pool.home != home);
        others.map(|pool| pool.calls.ended_and_begun()).fold((0, 0), |sum, pool| (sum.0 + pool.0, sum.1 + pool.1))
    }

    /// Makes memory available that is free but for queued work, and the idle memory of all stream pools but one, or else of that one. Returns whether there was
    /// any, or other threads have taken or freed memory meanwhile.
    ///
    /// Blocks wait for recorded streams, and freed memory for the streams that used it; only these tell when it is free. So this waits for the present work of
    /// all streams of the device, as PyTorch's allocator does before it reports that memory is exhausted. Blocks of streams that do not complete their work
    /// in time are no find.
    fn reclaim(&self, memory: &Limited<Device>, but: StreamId, until: Instant) -> bool {
        let (before, pools) = (memory.used(), self.stream_pools());
        let is_pending = pools.iter().any(|pool| pool.pool.statistics().pending > 0);
        let is_complete = self.wait_for_all(until);
        let trimmed: u64 = pools.iter().filter(|pool| pool.home != but).map(|other| other.pool.trim_to(0)).sum();
        // Freed memory follows in the order of its stream.
        self.wait_for_all(until);
        if (is_pending && is_complete) || trimmed > 0 || memory.used() != before {
            return true;
        }
        // Free memory between live blocks could not move, if others keep the stream busy. Freed, it waits for the present work alone.
        let own: u64 = pools.iter().filter(|pool| pool.home == but).map(|own| own.pool.trim_to(0)).sum();
        own > 0 && self.wait_for_all(until)
    }

    /// Waits for the present work of all streams; returns whether all has completed in time.
    fn wait_for_all(&self, until: Instant) -> bool {
        let mut is_complete = true;
        for stream in self.streams.all(self.device) {
            if let Ok(position) = self.backend.record_position(stream) {
                // A failure of the stream's work is reported to its owner. The position is complete then, too.
                is_complete &= self.backend.wait(position, Some(until.saturating_duration_since(Instant::now()))).unwrap_or(true);
            }
        }
        is_complete
    }

    fn explained(&self, error: Error) -> Failure {
        let is_shortage = of_memory(&error);
        let failure = Failure::from(error);
        if !is_shortage {
            return failure;
        }
        let PoolStatistics { live_bytes, reserved_bytes, limit, .. } = self.statistics();
        let [live, reserved, limit] = [live_bytes, reserved_bytes, limit].map(show);
        failure.with(&format!(" (pool of device {}: {live} live, {reserved} reserved, limit {limit})", self.device))
    }

    fn stream_pools(&self) -> Vec<Arc<StreamPool>> {
        let Source::Streams { pools, .. } = &self.source else { return Vec::new() };
        let pools = pools.read().unwrap_or_else(PoisonError::into_inner);
        pools.open.values().cloned().chain(pools.orphans.iter().filter_map(Weak::upgrade)).collect()
    }

    /// The part of the table for an address. Blocks are multiples of [`ALIGN`].
    fn shard(&self, address: u64) -> MutexGuard<'_, HashMap<u64, Live, foldhash::fast::RandomState>> {
        // The upper bits of the product depend on all bits of the address.
        let number = (address / ALIGN as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (u64::BITS - SHARDS.ilog2());
        let [first, ..] = &self.live;
        self.live.get(number as usize).unwrap_or(first).lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const fn of_memory(error: &Error) -> bool {
    matches!(error, Error::OutOfMemory { .. } | Error::Limit { .. })
}

const fn is_shortage(outcome: &ringmem::Result<Block>) -> bool {
    matches!(outcome, Err(error) if of_memory(error))
}

impl Listener for Pool {
    fn device(&self) -> u32 {
        self.device
    }

    /// Ends the pool of a stream whose work is complete: it serves no further request, but for those that have found it already, and its memory is freed with
    /// its last block.
    fn stream_is_forgotten(&self, stream: StreamId) {
        let Source::Streams { pools, .. } = &self.source else { return };
        if !self.process.is_this() {
            return;
        }
        let pool = {
            let mut pools = pools.write().unwrap_or_else(PoisonError::into_inner);
            let pool = pools.open.remove(&stream);
            pools.orphans.retain(|orphan| orphan.strong_count() > 0);
            pools.orphans.extend(pool.as_ref().map(Arc::downgrade));
            pool
        };
        if let Some(pool) = pool {
            pool.pool.trim_to(0);
        }
    }
}

/// Writes the state of pools to a file.
pub(crate) fn write_snapshot<'a>(pools: impl IntoIterator<Item = &'a Arc<Pool>>, file: &Path) -> Result<(), Failure> {
    let mut snapshot = Snapshot::new();
    pools.into_iter().for_each(|pool| pool.add_to(&mut snapshot));
    snapshot.write(file).map_err(|error| Failure::new(Status::System, error.to_string()))
}

fn address_of(block: &Block) -> u64 {
    match (block.host, block.device_address) {
        (Some(host), _) => host.as_ptr().addr() as u64,
        (None, address) => address.map_or(0, |address| address.get()),
    }
}

fn unknown(address: u64) -> Failure {
    Failure::new(Status::Invalid, format!("no live block of this pool at {address:#x}"))
}

fn lent(address: u64) -> Failure {
    Failure::new(Status::Invalid, format!("the block at {address:#x} is lent: its tensor frees it"))
}

/// The handle of a pool.
pub struct PoolHandle(pub(crate) Arc<Pool>);

/// Creates a pool. It reserves no memory yet.
///
/// Any thread. Close it with `ringmem_pool_close`.
///
/// # Safety
///
/// `devices` is null or open. `options` is null, or to as many readable bytes as its `size` says. `pool` is null, or valid for the write of a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringmem_pool_create(devices: *const Devices, options: *const PoolOptions, pool: *mut *mut PoolHandle) -> Status {
    call(|| {
        // SAFETY: each is null, or open, readable as its `size` says, or valid for the write of a pointer, as the caller promises.
        let (devices, options, place) = unsafe { (borrowed(devices, "devices")?, read(options)?, Output::new(pool, "pool")?) };
        place.set(handle(PoolHandle(Pool::new(&devices.streams, &options)?)));
        Ok(())
    })
}

/// Closes a pool and frees its memory once the streams that use it are complete. Returns `RINGMEM_STATUS_BUSY` while blocks are live: then it stays open.
/// Blocks that tensors own do not keep it open; the memory is freed after the last of these tensors. Null is ignored. In a forked process, does nothing.
///
/// # Safety
///
/// `pool` is null, or open and not used by another call, now or later.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringmem_pool_close(pool: *mut PoolHandle) -> Status {
    call(|| {
        if pool.is_null() {
            return Ok(());
        }
        // SAFETY: `pool` is null or open, as the caller promises.
        let PoolHandle(closing) = unsafe { borrowed(pool, "pool") }?;
        if !closing.process.is_this() {
            return Ok(());
        }
        let (live, live_bytes) = closing.owned();
        if live > 0 {
            let blocks = if live == 1 { "block" } else { "blocks" };
            return Err(Failure::new(Status::Busy, format!("the pool has {live} live {blocks} of {}", show(live_bytes))));
        }
        // SAFETY: of `handle`, and closed once: the caller's promise.
        drop(unsafe { Box::from_raw(pool) });
        Ok(())
    })
}

/// Allocates `bytes` bytes, aligned to 256, for use on a stream. `stream` is a `CUstream` or `cudaStream_t` of the device's primary context, or of
/// `ringmem_stream_create`; null is the legacy default stream. The per-thread default stream is not supported.
///
/// Device memory may be used by work that is queued on the stream afterwards. Before another stream uses it, that stream waits for this one, by
/// `ringmem_stream_wait` or an event of the caller, and `ringmem_pool_record_stream` is called. Pinned and managed memory may be used at once.
///
/// Any thread.
///
/// # Safety
///
/// `pool` is null or open; `address` is null, or valid for the write of a pointer. On a CUDA device the stream is one of
/// those above; a simulated device refuses others. It lives until `ringmem_stream_forget`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringmem_pool_allocate(
    pool: *const PoolHandle,
    bytes: usize,
    stream: *mut c_void,
    address: *mut *mut c_void,
) -> Status {
    call(|| {
        // SAFETY: `pool` is null or open, and `address` null or valid for the write of a pointer, as the caller promises.
        let (PoolHandle(pool), place) = unsafe { (borrowed(pool, "pool")?, Output::new(address, "address")?) };
        // SAFETY: the caller promises a stream of the device's primary context, one of `ringmem_stream_create` or null, which lives until it is forgotten.
        let address = unsafe { pool.allocate(bytes, stream.addr()) }?;
        place.set(core::ptr::with_exposed_provenance_mut(address as usize));
        Ok(())
    })
}

/// Frees a block. `stream` is the stream on which it was used last; work that is queued there, on the stream of the allocation and on recorded streams may
/// still use it. After that stream was forgotten, name any other that is not destroyed. Null as address is ignored.
///
/// After `RINGMEM_STATUS_INVALID` the block is live. After an error of the driver it may be live, or lost with its memory.
///
/// Any thread.
///
/// # Safety
///
/// `pool` is null or open. All work that uses the block was queued on the streams above, or is complete. As `ringmem_pool_allocate` for the stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringmem_pool_free(pool: *const PoolHandle, address: *mut c_void, stream: *mut c_void) -> Status {
    call(|| {
        // SAFETY: `pool` is null or open, as the caller promises.
        let PoolHandle(pool) = unsafe { borrowed(pool, "pool") }?;
        if address.is_null() {
            return Ok(());
        }
        // SAFETY: the stream lives until it is forgotten, and all work that uses the block was queued on its streams or is complete, as the caller promises.
        unsafe { pool.free(address.addr() as u64, Some(stream.addr())) }
    })
}

/// Notes that a further stream uses a block: after its free, the block is reused once the work that is queued on that stream before the free is complete.
/// The stream is one of the pool's device; null is that device's default stream. If a block has more than four streams, the last of them waits, on the
/// device, for the others at the free.
///
/// Any thread.
///
/// # Safety
///
/// `pool` is null or open. As `ringmem_pool_allocate` for the stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringmem_pool_record_stream(pool: *const PoolHandle, address: *mut c_void, stream: *mut c_void) -> Status {
    call(|| {
        // SAFETY: `pool` is null or open, and the stream lives until it is forgotten, as the caller promises.
        unsafe { borrowed(pool, "pool")?.0.record(address.addr() as u64, stream.addr()) }
    })
}

/// Frees idle memory until at most `keep` bytes are reserved, and sets `freed`, unless it is null, to the freed bytes. The device has them once the streams
/// that used them have completed their work. A pool of pinned memory frees all that is idle, or nothing.
///
/// Any thread.
///
/// # Safety
///
/// `pool` is null or open. `freed` is null, or valid for the write of an integer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringmem_pool_trim(pool: *const PoolHandle, keep: u64, freed: *mut u64) -> Status {
    call(|| {
        // SAFETY: `pool` is null or open, as the caller promises.
        let bytes = unsafe { borrowed(pool, "pool") }?.0.trim(keep);
        // SAFETY: `freed` is null or valid for the write of an integer, as the caller promises.
        if let Ok(place) = unsafe { Output::new(freed, "freed") } {
            place.set(bytes);
        }
        Ok(())
    })
}

/// Reads the figures of a pool.
///
/// Any thread. Figures that change together may be of different moments.
///
/// # Safety
///
/// `pool` is null or open. `statistics` is null, or to as many writable bytes as its `size` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringmem_pool_read_statistics(pool: *const PoolHandle, statistics: *mut PoolStatistics) -> Status {
    call(|| {
        // SAFETY: `pool` is null or open, as the caller promises.
        let figures = unsafe { borrowed(pool, "pool") }?.0.statistics();
        // SAFETY: `statistics` is null, or has as many writable bytes as its `size` says, as the caller promises.
        unsafe { write(statistics, &figures) }
    })
}

/// Writes the pool's state to a file, which `ringmem view` shows. An existing file is replaced when the new one is complete.
///
/// Any thread.
///
/// # Safety
///
/// `pool` is null or open. `file` is null, or a text that ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringmem_pool_write_snapshot(pool: *const PoolHandle, file: *const c_char) -> Status {
    call(|| {
        // SAFETY: `pool` is null or open, and `file` null or a text that ends with a zero byte, as the caller promises.
        let (PoolHandle(pool), file) = unsafe { (borrowed(pool, "pool")?, path(file, "file")?) };
        pool.check_process()?;
        write_snapshot([pool], file)
    })
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::AtomicBool;
    use core::sync::atomic::Ordering::SeqCst;

    use ringmem::backend::Launch;
    use ringmem::backend::host::HostBackend;
    use ringmem::image::{Entry, KernelHost};
    use ringmem::{Abi, Image};

    use super::*;
    use crate::streams::AnyBackend;

    const MIB: usize = 1 << 20;

    static IS_HELD: AtomicBool = AtomicBool::new(true);

    fn hold(host: &dyn KernelHost, _: &[u64]) {
        while IS_HELD.load(SeqCst) {
            host.pause(1000);
        }
    }

    const HOLD: Image = Image { ptx: b"", host: &[Entry { name: "hold", arguments: 0, run: hold }], abi: Abi::of(&[]) };

    /// A pool on a simulated device, whose streams are any numbers.
    fn pool_of(limit: usize, slab: usize) -> Arc<Pool> {
        let backend = HostBackend::builder().device_memory(64 << 20).build().expect("room");
        let streams = Arc::new(Streams::new(AnyBackend::Simulated(backend)).with_any_handle());
        let options = PoolOptions { size: size_of::<PoolOptions>(), device: 0, memory: 0, limit: limit as u64, slab: slab as u64 };
        Pool::new(&streams, &options).expect("a pool")
    }

    impl Pool {
        fn source(&self) -> (&Limited<Device>, Option<u64>, &RwLock<StreamPools>) {
            let Source::Streams { memory, slab, pools } = &self.source else { panic!("device memory") };
            (memory, *slab, pools)
        }

        fn of(self: &Arc<Self>, stream: Raw) -> Arc<StreamPool> {
            let (memory, slab, pools) = self.source();
            // SAFETY: any handle stands for a stream.
            unsafe { self.pool_of(stream, memory, slab, pools) }.expect("a pool")
        }

        fn block(self: &Arc<Self>, bytes: usize, stream: Raw) -> Result<u64, Status> {
            // SAFETY: any handle stands for a stream.
            unsafe { self.allocate(bytes, stream) }.map_err(|failure| failure.status())
        }

        fn release(&self, address: u64) {
            // SAFETY: any handle stands for a stream, and no work uses the block that is not recorded.
            unsafe { self.free(address, None) }.unwrap_or_else(|failure| panic!("{}", failure.text()));
        }
    }

    fn attempts(of: &StreamPool) -> u64 {
        of.calls.ended_and_begun().1
    }

    #[test]
    fn a_block_of_a_stream_that_does_not_end_its_work_is_no_find() {
        let pool = pool_of(4 * MIB, 0);
        let (memory, ..) = pool.source();
        let block = pool.block(2 * MIB, 1).expect("room");
        // SAFETY: any handle stands for a stream.
        let user = unsafe { pool.streams.id(0, 2) }.expect("a stream");
        let module = pool.backend.load(&HOLD, &HOLD.abi).expect("a kernel");
        let launch = Launch { module, name: "hold", arguments: &[], groups: 1, warps: 1, stays: false, operands: &[], elements: None };
        // SAFETY: the kernel accesses no memory.
        unsafe { pool.backend.launch(&launch, user) }.expect("queued");
        // SAFETY: any handle stands for a stream.
        unsafe { pool.record(block, 2) }.unwrap_or_else(|failure| panic!("{}", failure.text()));
        pool.release(block);
        let home = pool.of(1);
        assert_eq!(home.pool.statistics().pending, 1);
        assert!(!pool.reclaim(memory, home.home, Instant::now()), "the block stays pending");
        IS_HELD.store(false, SeqCst);
        assert!(pool.reclaim(memory, home.home, Instant::now() + PATIENCE), "the block is free");
    }

    #[test]
    fn the_idle_memory_of_the_stream_itself_is_the_last_find() {
        let pool = pool_of(4 * MIB, MIB);
        let (memory, ..) = pool.source();
        pool.release(pool.block(MIB / 2, 1).expect("room"));
        let home = pool.of(1);
        assert!(memory.used() > 0 && pool.reclaim(memory, home.home, Instant::now() + PATIENCE), "it could not move");
        assert_eq!(memory.used(), 0);
        assert!(!pool.reclaim(memory, home.home, Instant::now()), "there is no more");
    }

    #[test]
    fn a_request_is_tried_again_while_another_stream_takes_memory() {
        let pool = pool_of(4 * MIB, MIB);
        let [home, other] = [1, 2].map(|stream| pool.of(stream));
        let held = pool.block(3 * MIB, 2).expect("room");
        let refused = || {
            let before = attempts(&home);
            assert_eq!(pool.block(2 * MIB, 1), Err(Status::OutOfMemory));
            attempts(&home) - before
        };
        let alone = refused();
        assert!(other.calls.run(refused) > alone, "the other call may give its bytes back");
        pool.release(held);
        assert!(pool.block(2 * MIB, 1).is_ok());
    }

    #[test]
    fn a_request_whose_turn_comes_takes_what_was_freed_meanwhile() {
        let pool = pool_of(4 * MIB, MIB);
        let [home, other] = [1, 2].map(|stream| pool.of(stream));
        let (held, _rest) = (pool.block(2 * MIB, 1).expect("room"), pool.block(MIB, 3).expect("room"));
        pool.release(pool.block(MIB / 2, 2).expect("room"));
        let idle = other.pool.statistics().reserved_bytes;
        thread::scope(|scope| {
            let turn = pool.reclaiming.lock().unwrap_or_else(PoisonError::into_inner);
            let before = attempts(&home);
            let late = scope.spawn(|| pool.block(2 * MIB, 1));
            while attempts(&home) == before {
                thread::yield_now();
            }
            pool.release(held);
            drop(turn);
            assert!(late.join().is_ok_and(|block| block.is_ok()));
        });
        assert_eq!((idle, other.pool.statistics().reserved_bytes), (MIB as u64, MIB as u64), "nothing was taken from the other stream");
    }
}
