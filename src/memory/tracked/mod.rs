//! [`Tracked`].

mod exit;
mod report;
mod slots;

use core::alloc::Layout;
use core::fmt;
use core::panic::Location;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use std::backtrace::Backtrace;
use std::collections::HashMap;
use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};
use std::vec::Vec;

use super::{Memory, Origin};
use crate::backend::{Block, Uses};
use crate::stream::Stream;
use crate::sys::clock::{Clock, Clocks};
use crate::{CacheLineAligned, Error, Result};

use slots::{Record, Slots};

pub use exit::AtExit;
pub use report::{Leak, Named, Report};

/// Lists live blocks: those that are still live after the program has dropped its last buffer are leaks. Clones share the list.
///
/// 1. A block is listed before the caller gets it, and removed before the upstream free.
/// 2. An allocation and its free cost four atomic operations and a clock read, without locks; only growth of the list allocates. Reading
///    the list blocks no thread.
/// 3. The list never shrinks. It takes 72 bytes a slot, with at least 64 slots and at most 8 for each 3 in use at once.
/// 4. No panic of the upstream memory, the clock or another thread removes a block from the list.
///
/// The reported line called [`Buffer::new`](super::Buffer::new), or a `#[track_caller]` function that leads there. For
/// [managers](crate::manager::MemoryManager), [mirrors](crate::mirror::MirroredBuffer) and [frames](crate::double_buffer) it created the
/// buffer, mirror or frames, also after growth. A manager's blocks have its buffers' names, at the cost of a lock. Track a
/// [`Pool`](crate::pool::Pool), not its upstream memory: there, the lines are the pool's.
///
/// ```
/// # fn main() -> ringmem::Result<()> {
/// use ringmem::backend::host::HostBackend;
/// use ringmem::memory::{Buffer, Device, Tracked};
///
/// let backend = HostBackend::builder().build()?;
/// let memory = Tracked::new(Device::new(&backend, 0));
/// let _report = memory.report_at_exit();
/// drop(Buffer::<u8, _>::new(memory.clone(), 100)?);
/// std::mem::forget(Buffer::<u8, _>::new(memory.named("positions"), 200)?);
/// let leaks = memory.leaks();
/// assert_eq!((leaks.len(), leaks[0].number, leaks[0].bytes, leaks[0].name.as_deref()), (1, 2, 200, Some("positions")));
/// assert_eq!(leaks[0].caller.line(), line!() - 3);
/// # Ok(())
/// # }
/// ```
#[doc(alias = "GPUMemoryTracker")]
pub struct Tracked<M> {
    shared: Arc<Shared<M>>,
    /// 0 for none.
    name: u32,
    has_backtraces: bool,
}

struct Shared<M> {
    memory: M,
    clock: Clock,
    slots: Slots,
    counts: CacheLineAligned<Counts>,
    /// From 1. Never removed: a handle may have any.
    names: Mutex<HashMap<Arc<str>, u32>>,
    /// By block number.
    notes: Mutex<HashMap<u64, Note>>,
}

#[derive(Clone, Default)]
struct Note {
    name: Option<Arc<str>>,
    backtrace: Option<Arc<Backtrace>>,
}

#[derive(Default)]
struct Counts {
    given: AtomicU64,
    bytes: AtomicU64,
    peak: AtomicU64,
}

impl<M: Memory> Tracked<M> {
    /// Wraps a memory; ages are by the system's monotonic clock, a few milliseconds coarse on Linux.
    #[must_use]
    pub fn new(memory: M) -> Self {
        Self::over(memory, Clocks::of_system().coarse)
    }

    /// As [`new`](Self::new), with a monotonic clock in nanoseconds.
    #[must_use]
    pub fn with_clock(memory: M, clock: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        Self::over(memory, Arc::new(clock))
    }

    fn over(memory: M, clock: Clock) -> Self {
        let shared = Shared {
            memory,
            clock,
            slots: Slots::new(),
            counts: CacheLineAligned::default(),
            names: Mutex::default(),
            notes: Mutex::default(),
        };
        Self { shared: Arc::new(shared), name: 0, has_backtraces: false }
    }

    /// Returns a handle that names its allocations. The list keeps the name.
    #[must_use]
    pub fn named(&self, name: &str) -> Self {
        Self { name: self.shared.number_of(name), ..self.clone() }
    }

    /// Returns a handle that records backtraces, or none (default): see [`Logged::backtraces`](super::Logged::backtraces).
    #[must_use]
    pub fn backtraces(&self, are_kept: bool) -> Self {
        Self { has_backtraces: are_kept, ..self.clone() }
    }

    /// Returns the live blocks, oldest first. Blocks that are allocated or freed during the call may or may not be included.
    #[must_use]
    pub fn leaks(&self) -> Vec<Leak> {
        let mut records: Vec<Record> = self.shared.slots.records().collect();
        records.sort_unstable_by_key(|record| record.number);
        // After the records: a name precedes its first block.
        let names = self.shared.names();
        let now = (self.shared.clock)();
        let notes = self.shared.notes.lock().unwrap_or_else(PoisonError::into_inner);
        let leak = |record: Record, Note { name, backtrace }: Note| Leak {
            number: record.number,
            name: name.or_else(|| names.get(&record.name).cloned()),
            bytes: record.bytes,
            align: record.align,
            location: record.location,
            address: record.address,
            stream: record.stream,
            caller: record.caller,
            age: Duration::from_nanos(now.saturating_sub(record.since)),
            backtrace,
        };
        records.into_iter().map(|record| leak(record, notes.get(&record.number).cloned().unwrap_or_default())).collect()
    }

    /// Returns the live blocks, printable.
    #[must_use]
    pub fn report(&self) -> Report {
        Report::of(self.leaks(), self.peak_bytes())
    }

    /// Prints the report to standard error on the guard's drop, if there are live blocks.
    pub fn report_at_exit(&self) -> AtExit {
        // A broken standard error cannot be reported.
        self.at_exit(|report| drop(writeln!(std::io::stderr(), "{report}")))
    }

    /// As [`report_at_exit`](Self::report_at_exit), but calls `say` with the report.
    pub fn at_exit(&self, say: impl FnOnce(&Report) + Send + 'static) -> AtExit {
        AtExit::new(self.clone(), say)
    }

    /// Returns the number of live blocks.
    #[must_use]
    pub fn live_blocks(&self) -> usize {
        self.shared.slots.records().count()
    }

    /// Returns the requested bytes of live blocks.
    #[must_use]
    pub fn live_bytes(&self) -> u64 {
        self.shared.counts.bytes.load(Relaxed)
    }

    /// Returns the high-water mark of live bytes.
    #[must_use]
    pub fn peak_bytes(&self) -> u64 {
        self.shared.counts.peak.load(Relaxed)
    }

    /// Returns the upstream memory.
    #[must_use]
    pub fn inner(&self) -> &M {
        &self.shared.memory
    }
}

impl Counts {
    #[inline(always)]
    fn add(&self, bytes: u64) -> u64 {
        let live = self.bytes.fetch_add(bytes, Relaxed) + bytes;
        if live > self.peak.load(Relaxed) {
            self.peak.fetch_max(live, Relaxed);
        }
        self.given.fetch_add(1, Relaxed) + 1
    }
}

impl<M> Shared<M> {
    fn number_of(&self, name: &str) -> u32 {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&number) = names.get(name) {
            return number;
        }
        let number = names.len() as u32 + 1;
        names.insert(name.into(), number);
        number
    }

    fn names(&self) -> HashMap<u32, Arc<str>> {
        let names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        names.iter().map(|(name, &number)| (number, Arc::clone(name))).collect()
    }

    #[cold]
    fn keep_note(&self, number: u64, name: Option<Arc<str>>, has_backtrace: bool) {
        let backtrace = has_backtrace.then(|| Arc::new(Backtrace::force_capture()));
        self.notes.lock().unwrap_or_else(PoisonError::into_inner).insert(number, Note { name, backtrace });
    }

    #[cold]
    fn forget_note(&self, number: u64) {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner).remove(&number);
    }
}

// SAFETY: the upstream memory's blocks, unchanged but for the tag, restored before the free.
unsafe impl<M: Memory> Memory for Tracked<M> {
    type Visibility = M::Visibility;

    fn alloc(&self, layout: Layout, on: Option<&Stream>) -> Result<Block> {
        let shared = &*self.shared;
        let Some(slot) = shared.slots.claim() else { return Err(Error::Unsupported { what: "tracking more than 2^31 blocks at once" }) };
        let since = (shared.clock)();
        let mut block = shared.memory.alloc(layout, on)?;
        let number = shared.counts.add(layout.size() as u64);
        let origin = Origin::current();
        // A closure would be the caller.
        let (name, caller) = match origin {
            Some(origin) => (origin.name, origin.caller),
            None => (None, Location::caller()),
        };
        let has_note = self.has_backtraces || name.is_some();
        if has_note {
            shared.keep_note(number, name, self.has_backtraces);
        }
        block.tag = slot.fill(&Record {
            number,
            since,
            bytes: layout.size() as u64,
            align: layout.align() as u64,
            address: block.address(),
            tag: block.tag,
            stream: on.map(Stream::id),
            location: block.location,
            name: self.name,
            has_note,
            caller,
        });
        Ok(block)
    }

    // Inlined, together with `take`: a copy of the block through memory loads wider words than were stored, and so waits for these stores.
    #[inline(always)]
    unsafe fn free(&self, block: &Block, uses: &Uses) -> Result<()> {
        let (shared, mut block) = (&*self.shared, Block { ..*block });
        // First: after the upstream free, another block may get this address.
        if let Some(record) = shared.slots.take(block.tag) {
            shared.counts.bytes.fetch_sub(record.bytes, Relaxed);
            if record.has_note {
                shared.forget_note(record.number);
            }
            block.tag = record.tag;
        }
        // SAFETY: the caller promises that the block is of this memory and freed once, with its uses; with its old tag it is the upstream
        // memory's block.
        unsafe { shared.memory.free(&block, uses) }
    }

    of_upstream!(shared.memory);
}

impl<M> Clone for Tracked<M> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), ..*self }
    }
}

impl<M: fmt::Debug> fmt::Debug for Tracked<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shared { memory, slots, counts, .. } = &*self.shared;
        f.debug_struct("Tracked").field("blocks", &slots.records().count()).field("bytes", &counts.bytes).field("memory", memory).finish()
    }
}
