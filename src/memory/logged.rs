use core::alloc::Layout;
use core::panic::Location;
use core::{fmt, mem};
use std::backtrace::Backtrace;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;
use std::vec::Vec;

use super::{Event, Memory, Origin, Trace};
use crate::Result;
use crate::backend::{Block, StreamId, Uses};
use crate::stream::Stream;

/// Records a [`Trace`] of every allocation and free, in a sequentially valid order. Clones share it.
///
/// The trace grows until [taken](Self::take). From a file, `ringmem replay` runs it on any pool. [`calls`](Self::calls) returns the same events
/// with time, address, name and source line, for a [`Snapshot`](crate::snapshot::Snapshot).
///
/// ```
/// # fn main() -> ringmem::Result<()> {
/// use ringmem::backend::host::HostBackend;
/// use ringmem::memory::{Buffer, Device, Logged};
///
/// let backend = HostBackend::builder().build()?;
/// let memory = Logged::new(Device::new(&backend, 0));
/// drop(Buffer::<f32, _>::new(memory.clone(), 1024)?);
/// assert_eq!((memory.count(), memory.trace().to_string()), (2, "alloc 0 4096 4\nfree 0\n".into()));
/// # Ok(())
/// # }
/// ```
pub struct Logged<M> {
    shared: Arc<Shared<M>>,
    name: Option<Arc<str>>,
    has_backtraces: bool,
}

struct Shared<M> {
    memory: M,
    log: Mutex<Log>,
}

#[derive(Default)]
struct Log {
    calls: Vec<Call>,
    next: u64,
    /// By [`Block::address`].
    blocks: HashMap<u64, u64>,
    /// By first use: stream ids differ between runs.
    streams: Vec<StreamId>,
}

impl<M: Memory> Logged<M> {
    /// Wraps a memory.
    #[must_use]
    pub fn new(memory: M) -> Self {
        Self { shared: Arc::new(Shared { memory, log: Mutex::default() }), name: None, has_backtraces: false }
    }

    /// Returns a handle of the same memory and trace that names its allocations. A managed buffer's name takes precedence.
    #[must_use]
    pub fn named(&self, name: &str) -> Self {
        Self { name: Some(name.into()), ..self.clone() }
    }

    /// Returns a handle of the same memory and trace that records a backtrace for each allocation, or none (default).
    ///
    /// A backtrace takes kilobytes and much longer than the allocation.
    #[must_use]
    pub fn backtraces(&self, are_kept: bool) -> Self {
        Self { has_backtraces: are_kept, ..self.clone() }
    }

    /// Returns the calls so far.
    #[must_use]
    pub fn calls(&self) -> Vec<Call> {
        self.log().calls.clone()
    }

    /// Returns the number of calls so far, since the last [`take`](Self::take).
    #[must_use]
    pub fn count(&self) -> usize {
        self.log().calls.len()
    }

    /// Returns the trace so far.
    #[must_use]
    pub fn trace(&self) -> Trace {
        Trace::of(self.log().calls.iter().map(|call| call.event.clone()).collect())
    }

    /// Returns the trace so far and empties it. Numbers continue.
    #[must_use]
    pub fn take(&self) -> Trace {
        Trace::of(mem::take(&mut self.log().calls).into_iter().map(|call| call.event).collect())
    }

    /// Returns the upstream memory.
    #[must_use]
    pub fn inner(&self) -> &M {
        &self.shared.memory
    }
}

impl<M> Logged<M> {
    fn log(&self) -> MutexGuard<'_, Log> {
        self.shared.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Log {
    fn stream(&mut self, id: StreamId) -> u32 {
        let known = self.streams.iter().position(|&stream| stream == id);
        known.unwrap_or_else(|| {
            self.streams.push(id);
            self.streams.len() - 1
        }) as u32
    }
}

// SAFETY: the upstream memory's blocks, unchanged.
unsafe impl<M: Memory> Memory for Logged<M> {
    type Visibility = M::Visibility;

    fn alloc(&self, layout: Layout, on: Option<&Stream>) -> Result<Block> {
        let caller = Location::caller();
        let Origin { name, caller } = Origin::current().unwrap_or(Origin { name: None, caller });
        let origin = Origin { name: name.or_else(|| self.name.clone()), caller };
        let outcome = origin.around(|| self.shared.memory.alloc(layout, on));
        let backtrace = self.has_backtraces.then(|| Arc::new(Backtrace::force_capture()));
        let mut log = self.log();
        let on = on.map(|stream| log.stream(stream.id()));
        let (size, align) = (layout.size() as u64, layout.align() as u64);
        let event = match &outcome {
            Ok(block) => {
                let number = log.next;
                log.next += 1;
                log.blocks.insert(block.address(), number);
                Event::Alloc { block: number, size, align, on }
            }
            Err(_) => Event::Refused { size, align, on },
        };
        log.calls.push(Call {
            event,
            time_ns: now_ns(),
            address: outcome.as_ref().ok().map(Block::address),
            name: origin.name,
            caller: Some(origin.caller),
            backtrace,
        });
        outcome
    }

    unsafe fn free(&self, block: &Block, uses: &Uses) -> Result<()> {
        {
            // First: an allocation that reuses the address must be logged later.
            let mut log = self.log();
            let after = uses.iter().map(|ticket| log.stream(ticket.stream)).collect();
            if let Some(block) = log.blocks.remove(&block.address()) {
                log.calls.push(Call::of(Event::Free { block, after }, now_ns()));
            }
        }
        // SAFETY: the caller promises that the block is of this memory and freed once, with its uses; blocks are the upstream memory's,
        // unchanged.
        unsafe { self.shared.memory.free(block, uses) }
    }

    of_upstream!(shared.memory);
}

impl<M> Clone for Logged<M> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), name: self.name.clone(), has_backtraces: self.has_backtraces }
    }
}

impl<M: fmt::Debug> fmt::Debug for Logged<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Logged").field("events", &self.log().calls.len()).field("memory", &self.shared.memory).finish()
    }
}

/// A call to a [`Logged`](super::Logged) memory. The log is in order of time.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::memory::{Buffer, Device, Logged};
///
/// let backend = HostBackend::builder().build()?;
/// let memory = Logged::new(Device::new(&backend, 0));
/// let _live = Buffer::<u8, _>::new(memory.named("positions"), 100)?;
/// let call = &memory.calls()[0];
/// assert_eq!((call.name.as_deref(), call.event.to_string().as_str()), (Some("positions"), "alloc 0 100 1"));
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Call {
    /// Event, as in the trace.
    pub event: Event,
    /// Nanoseconds on a clock that all logs and [samples](crate::snapshot::Snapshot::sample) of the process share, from its first reading.
    pub time_ns: u64,
    /// Host address of the allocated block, or device address without host access. `None` for a free and a failed allocation.
    pub address: Option<u64>,
    /// Buffer's name in its [`MemoryManager`](crate::manager::MemoryManager), else the name of [`Logged::named`](super::Logged::named). `None` for a
    /// free.
    pub name: Option<Arc<str>>,
    /// Line that allocated it, or created the value that did. `None` for a free.
    pub caller: Option<&'static Location<'static>>,
    /// Backtrace, if [enabled](super::Logged::backtraces). `None` for a free.
    pub backtrace: Option<Arc<Backtrace>>,
}

impl Call {
    pub(crate) fn of(event: Event, time_ns: u64) -> Self {
        Self { event, time_ns, address: None, name: None, caller: None, backtrace: None }
    }
}

/// Monotonic, from the first call in this process.
pub(crate) fn now_ns() -> u64 {
    static BEGUN: OnceLock<Instant> = OnceLock::new();
    u64::try_from(BEGUN.get_or_init(Instant::now).elapsed().as_nanos()).unwrap_or(u64::MAX)
}
