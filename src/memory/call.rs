use core::panic::Location;
use std::backtrace::Backtrace;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use super::Event;

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
