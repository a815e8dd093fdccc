//! [`Snapshot`]: the state of memory as one JSON document, which `ringmem view` shows.
//!
//! Use it to see what holds memory: pools with their slabs, live blocks with source lines, buffers, and a log of allocations.
//!
//! 1. Each method reads its part when called; parts read at different times may differ.
//! 2. Collecting copies the state, and then holds no lock on it.
//! 3. Names are arbitrary text for people; two parts may have the same name.
//!
//! ```
//! use ringmem::backend::host::HostBackend;
//! use ringmem::memory::{Buffer, Device, Logged, Tracked};
//! use ringmem::pool::Pool;
//! use ringmem::snapshot::Snapshot;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let backend = HostBackend::builder().build()?;
//! let pool = Pool::builder(Device::new(&backend, 0)).slab(2 << 20).build()?;
//! let memory = Logged::new(Tracked::new(pool.clone()));
//! let mut snapshot = Snapshot::new();
//! let mut live = Vec::new();
//! for step in 0..4 {
//!     live.push(Buffer::<f32, _>::new(memory.named("positions"), 1000 * (step + 1))?);
//!     snapshot.sample("device", &pool.statistics()); // fragmentation over time
//! }
//! snapshot.pool("device", &pool).tracked("device", memory.inner()).logged("device", &memory);
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("memory.json");
//! snapshot.write(&path)?; // then: ringmem view memory.json --output memory.html
//!
//! let json: serde_json::Value = serde_json::from_str(&snapshot.to_json())?;
//! assert_eq!((&json["version"], &json["traces"][0]["events"][3]["bytes"]), (&1.into(), &16_000.into()));
//! assert_eq!(json["trackers"][0]["leaks"][0]["name"], "positions");
//! # Ok(())
//! # }
//! ```
//!
//! # Format
//!
//! One object. Sizes, offsets and alignments are in bytes, times in nanoseconds, all whole numbers of at most 64 bits. An unknown fact is
//! `null`. Readers ignore unknown fields; a change that old readers would misread changes `version`.
//!
//! | field | contents |
//! |---|---|
//! | `version` | 1 |
//! | `taken_ns` | time of [`to_json`](Snapshot::to_json), on the clock of samples and logged calls |
//! | `pools` | objects: `name`; `time_ns`, when added; `statistics`, the fields of [`pool::Statistics`](crate::pool::Statistics); `slabs`, each with `number`, `address`, `bytes` and `parts`, each with `offset` (ascending), `bytes` and `state`: `live`, `cached`, `pending` or `free` |
//! | `samples` | objects by time: `pool`, `time_ns`, `statistics` |
//! | `trackers` | objects: `name`, `peak_bytes`, `leaks`: each live block with `number`, `name`, `bytes`, `align`, `address`, `stream`, `place`, `age_ns`, `backtrace` |
//! | `managers` | objects: `name`, `used_bytes`, `peak_bytes`, `limit_bytes`, `created`, `registered`, `released`, `freed`, `leases`, `retired`, `buffers`, the created ones: each with `name`, `element`, `used_bytes`, `capacity_bytes`, `resizes`, `age_ns`, `idle_ns` |
//! | `traces` | objects: `name`, `events` |
//!
//! Events, in order of time, have `kind` and `time_ns`. An `alloc` has `block`, a number that identifies the block in this trace, `bytes`,
//! `align`, `stream`, `address`, `name`, `place` and `backtrace`. A `refused` has the same fields, with `block` and `address` null. A `free` has
//! `block` and `after`, the streams whose operations may still use it. `place` is `FILE:LINE:COLUMN`. `backtrace` is text of several lines,
//! innermost function first. [`csv`] writes the same facts as a table.

mod csv;
mod json;

use core::fmt::{self, Display};
use std::io;
use std::path::Path;
use std::string::{String, ToString};
use std::vec::Vec;

use crate::describe::json::list;
use crate::escape::json as quoted;
use crate::manager::MemoryManager;
use crate::memory::{Call, Logged, Memory, Trace, Tracked, now_ns};
use crate::pool::{Pool, SlabView, Statistics};
use crate::sys::file::{self, Accepts};
use crate::sys::path::named;

pub use csv::csv;

/// The version of the [format](self#format).
pub const VERSION: u32 = 1;

/// The state of memory. Each method adds a part.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::manager::{BufferConfig, MemoryManager};
/// use ringmem::memory::Device;
/// use ringmem::snapshot::Snapshot;
///
/// let backend = HostBackend::builder().build()?;
/// let manager = MemoryManager::new(Device::new(&backend, 0));
/// manager.create::<f32>("weights", 1000, BufferConfig::new())?;
/// let json = Snapshot::new().manager("nodes", &manager).to_json();
/// assert!(json.contains(r#""name":"weights","element":"f32","used_bytes":4000"#));
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    pools: Vec<String>,
    samples: Vec<String>,
    trackers: Vec<String>,
    managers: Vec<String>,
    traces: Vec<String>,
}

impl Snapshot {
    /// Returns a snapshot without parts.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the statistics and slabs of a pool.
    pub fn pool<M: Memory>(&mut self, name: &str, pool: &Pool<M>) -> &mut Self {
        self.slabs(name, &pool.statistics(), &pool.snapshot())
    }

    /// Adds statistics and slabs read before, or of a [`PinnedPool`](crate::pool::PinnedPool).
    pub fn slabs(&mut self, name: &str, statistics: &Statistics, slabs: &[SlabView]) -> &mut Self {
        self.pools.push(json::pool(name, now_ns(), statistics, slabs).to_string());
        self
    }

    /// Adds a pool's statistics as of now.
    pub fn sample(&mut self, pool: &str, statistics: &Statistics) -> &mut Self {
        self.samples.push(json::sample(pool, now_ns(), statistics).to_string());
        self
    }

    /// Adds a tracked memory's live blocks.
    pub fn tracked<M: Memory>(&mut self, name: &str, memory: &Tracked<M>) -> &mut Self {
        self.trackers.push(json::tracker(name, &memory.report()).to_string());
        self
    }

    /// Adds a manager's buffers and figures.
    pub fn manager<M: Memory>(&mut self, name: &str, manager: &MemoryManager<M>) -> &mut Self {
        self.managers.push(json::manager(name, &manager.statistics()).to_string());
        self
    }

    /// Adds a logged memory's calls.
    pub fn logged<M: Memory>(&mut self, name: &str, memory: &Logged<M>) -> &mut Self {
        self.calls(name, &memory.calls())
    }

    /// Adds calls, in order of time.
    pub fn calls(&mut self, name: &str, calls: &[Call]) -> &mut Self {
        self.traces.push(json::trace(name, calls.iter().map(|call| (&call.event, Some(call)))).to_string());
        self
    }

    /// Adds a trace: events without times, addresses, names and places.
    pub fn trace(&mut self, name: &str, trace: &Trace) -> &mut Self {
        self.traces.push(json::trace(name, trace.events().iter().map(|event| (event, None))).to_string());
        self
    }

    /// Returns the document: one line, in the [format](self#format).
    #[must_use]
    pub fn to_json(&self) -> String {
        self.document().to_string()
    }

    /// Writes the document to a file. It replaces an existing one as a [`FileSink`](crate::streaming::FileSink) does: when complete and on disk.
    ///
    /// # Errors
    ///
    /// The system's error, with the path; the old file stays.
    pub fn write(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let path = path.as_ref();
        file::replace(path, self.to_json().as_bytes(), Accepts::Any).map_err(named("write", path))
    }

    fn document(&self) -> impl Display {
        fmt::from_fn(|f| {
            write!(f, r#"{{"version":{VERSION},"taken_ns":{}"#, now_ns())?;
            let Self { pools, samples, trackers, managers, traces } = self;
            let sections = [("pools", pools), ("samples", samples), ("trackers", trackers), ("managers", managers), ("traces", traces)];
            for (name, parts) in sections {
                write!(f, ",{}:", quoted(name))?;
                list(f, parts, |part, f| f.write_str(part))?;
            }
            f.write_str("}\n")
        })
    }
}
