//! What can go wrong on the host, as facts.

mod abi;

use core::alloc::Layout;
use core::fmt;
use std::boxed::Box;
use std::io;
use std::path::Path;
use std::sync::Arc;

use core::time::Duration;

use ringmem_layouts::Abi;
use ringmem_layouts::attach::AttachError;
use ringmem_layouts::control::{Fault, State};
use ringmem_layouts::image::Entry;
use ringmem_layouts::message::ReferenceError;
use ringmem_layouts::ring::LayoutError;

use crate::backend::MemoryLocation;
use crate::config::ConfigError;
use crate::manager::BufferConfig;
use crate::memory::TraceError;
use crate::mirror;
use crate::pool::Chosen;
use crate::registry::IdError;

/// A result whose error is [`Error`] unless it says otherwise.
pub type Result<T, E = Error> = core::result::Result<T, E>;

/// Why the host side refused or failed. Sizes and offsets are bytes.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A size that cannot be had, whatever is free: bytes, groups of a launch, or devices of a simulation.
    #[error("asked for {asked} where {least} to {most} are possible")]
    Size {
        /// What was asked for.
        asked: u64,
        /// The least that is possible.
        least: u64,
        /// The most that is possible.
        most: u64,
    },
    /// More groups of a kernel than fit beside the kernels that stay on the device until they are told to leave. They may be told.
    #[error("asked for {asked} groups where {free} of {most} are free beside {resident} groups of kernels that stay")]
    Residency {
        /// Groups that were asked for.
        asked: u64,
        /// What would fit now.
        free: u64,
        /// What would fit alone.
        most: u64,
        /// Groups of the kernels that stay, on other streams.
        resident: u64,
    },
    /// An alignment that is no power of two or above the largest.
    #[error("alignment {asked} is not a power of two up to {most}")]
    Align {
        /// What was asked for.
        asked: u64,
        /// The largest alignment.
        most: u64,
    },
    /// Memory is short now; it may do after frees.
    #[error("out of memory: {requested} bytes requested, {free} free, {largest} the largest in one piece at that alignment")]
    OutOfMemory {
        /// What was asked for.
        requested: u64,
        /// All that is free.
        free: u64,
        /// The largest block that this alignment could have had.
        largest: u64,
    },
    /// More than a memory was limited to; it may do after frees, unless more than the limit was asked for.
    #[error("{requested} bytes requested where {used} of {limit} are in use")]
    Limit {
        /// What was asked for.
        requested: u64,
        /// What counted then.
        used: u64,
        /// The most that may.
        limit: u64,
    },
    /// Bytes outside what they were to be taken from.
    #[error("{len} bytes at offset {offset} are not within {size} bytes")]
    Range {
        /// Where they begin.
        offset: u64,
        /// How many.
        len: u64,
        /// What there is.
        size: u64,
    },
    /// A range that ends before it begins.
    #[error("a range from byte {start} on ends before, at {end}")]
    Inverted {
        /// Where it begins.
        start: u64,
        /// Where it ends.
        end: u64,
    },
    /// Another number of elements than there is room for; in bytes.
    #[error("{got} bytes were given where {expected} are expected")]
    SizeMismatch {
        /// What there is.
        expected: u64,
        /// What was given.
        got: u64,
    },
    /// A copy within a buffer whose source and target share bytes.
    #[error("{len} bytes at offset {from} and as many at {to} overlap")]
    Overlap {
        /// Where they are read.
        from: u64,
        /// Where they are written.
        to: u64,
        /// How many.
        len: u64,
    },
    /// Bytes that are no whole number of the elements asked for, or not aligned for them.
    #[error("{bytes} bytes aligned to {align} are no elements of {size} bytes aligned to {needed}")]
    Cast {
        /// What there is.
        bytes: u64,
        /// To what it is aligned.
        align: u64,
        /// An element's size.
        size: u64,
        /// To what an element must be aligned.
        needed: u64,
    },
    /// The host may not touch the memory now.
    #[error("the memory is in use: {what}")]
    Busy {
        /// By whom.
        what: &'static str,
    },
    /// A frame that nobody would see.
    #[error("the reader of these frames has gone")]
    NoReader,
    /// A mirrored buffer of which there is no copy yet.
    #[error("the mirrored buffer has no copy on either side")]
    NotAllocated,
    /// A mirrored buffer without a copy on the host, or with one that is not whole.
    #[error("the mirrored buffer is {state:?} and has no copy on the host to go by")]
    NoHostCopy {
        /// Which copies are valid.
        state: mirror::State,
    },
    /// A mirrored buffer without a copy on the device, or with one that is not whole.
    #[error("the mirrored buffer is {state:?} and has no copy on the device to go by")]
    NoDeviceCopy {
        /// Which copies are valid.
        state: mirror::State,
    },
    /// Both copies of a mirrored buffer would have writes that the other has not seen. Discard one of them.
    #[error("the {} was written while the {dirty} has writes that it has not seen", dirty.other())]
    DirtyConflict {
        /// Whose writes the other side has not seen.
        dirty: mirror::Side,
    },
    /// A device that is not there.
    #[error("no device {asked}: there are {devices}")]
    NoDevice {
        /// Its ordinal.
        asked: u32,
        /// How many there are, from 0.
        devices: u32,
    },
    /// Something that this device or this kind of memory has not.
    #[error("{what} is not supported")]
    Unsupported {
        /// What was asked for.
        what: &'static str,
    },
    /// An address that is in no live memory of the backend it was used on.
    #[error("{call}: nothing of this backend lives at {address:#x}")]
    Foreign {
        /// The verb of the backend.
        call: &'static str,
        /// The address.
        address: u64,
    },
    /// A block that is given back otherwise than it was allocated. What was allocated is still there.
    #[error("the block at {address:#x} was allocated as {} and given back as {}", Piece(expected), Piece(got))]
    WrongBlock {
        /// Its address.
        address: u64,
        /// Where it is, and its bytes and alignment.
        expected: (MemoryLocation, Layout),
        /// What was said of it.
        got: (MemoryLocation, Layout),
    },
    /// More pinned memory than may be pinned at once.
    #[error("{asked} bytes cannot be pinned: {used} of {budget} are")]
    PinnedBudget {
        /// What was asked for.
        asked: u64,
        /// What is pinned.
        used: u64,
        /// The most that may be.
        budget: u64,
    },
    /// A fault that a test asked for.
    #[error("{call} number {number} was made to fail")]
    Injected {
        /// The verb of the backend or the memory.
        call: &'static str,
        /// Which call of it, from 1.
        number: u64,
    },
    /// Bytes that arrived as others than were sent. What arrived is there.
    #[error("the {len} bytes at offset {offset} have CRC-32C {got:#010x} where those they were copied from have {expected:#010x}")]
    Corrupted {
        /// Where the first chunk that differs begins.
        offset: u64,
        /// How long that chunk is.
        len: u64,
        /// The sum of the source.
        expected: u32,
        /// The sum of the target.
        got: u32,
    },
    /// A word that was to be published after operations of which one failed; nothing was stored.
    #[error("nothing was published: operation {failed} of the stream had failed")]
    Unpublished {
        /// Its number, the last that failed.
        failed: u64,
    },
    /// An operation that failed, of which another who waited for its stream was told why.
    #[error("operation {number} of stream {stream} failed, and somebody else was told why")]
    AlreadyTold {
        /// The stream's.
        stream: u64,
        /// The operation's, in its stream.
        number: u64,
    },
    /// Memory with invalid contents: the queued operation that was to write them failed, or the one that produced the source of a copy to them.
    #[error(
        "the contents are invalid since operation {number} of stream {stream} failed ({cause}): write them again with a copy or a fill"
    )]
    Tainted {
        /// The stream of the first operation that failed.
        stream: u64,
        /// The number of that operation in its stream.
        number: u64,
        /// The error of that operation.
        cause: Arc<str>,
    },
    /// An event whose time was asked for before it was reached, or that never will be.
    #[error("operation {number} of stream {stream} has not been executed")]
    NotReached {
        /// The stream's.
        stream: u64,
        /// The operation's, in its stream.
        number: u64,
    },
    /// The operating system gave no memory.
    #[error("the system maps no {bytes} bytes")]
    Map {
        /// What was asked for.
        bytes: u64,
        /// Its answer.
        source: io::Error,
    },
    /// A call to the operating system failed.
    #[error("{call} failed")]
    System {
        /// The call.
        call: &'static str,
        /// Its answer.
        source: io::Error,
    },
    /// A file that could not be opened or created.
    #[error("{}", crate::path::Sentence { action, path, answer })]
    File {
        /// The failed action: `open`, `create`.
        action: &'static str,
        /// Its path.
        path: Box<Path>,
        /// The system's error.
        answer: io::Error,
    },
    /// Memory from another process that could still cut it short.
    #[error("the memory is not sealed: it lacks {missing:?}")]
    Unsealed {
        /// The seals' names.
        missing: Box<[&'static str]>,
    },
    /// An end of a ring between processes has its owner.
    #[error("the {end} of this ring has an owner, in this process or another")]
    AlreadyOwned {
        /// Which end.
        end: &'static str,
    },
    /// A thread that the operating system did not start, or that has panicked.
    #[error("a thread that was to do the work is not there")]
    Thread {
        /// The system's answer, or what became of it.
        source: io::Error,
    },
    /// The image was compiled with other layouts than the host. The message shows both tables where they differ.
    #[error("{}", abi::Difference { expected, got })]
    Abi {
        /// The host's.
        expected: Abi,
        /// The image's.
        got: Abi,
    },
    /// The module has no such kernel.
    #[error("no kernel `{asked}` among {:?}", known.iter().map(|entry| entry.name).collect::<std::vec::Vec<_>>())]
    UnknownKernel {
        /// The name asked for.
        asked: Box<str>,
        /// What the module has.
        known: &'static [Entry],
    },
    /// A kernel was given more or fewer arguments than it takes.
    #[error("kernel `{name}` takes {expected} arguments and was given {got}")]
    Arguments {
        /// The kernel.
        name: &'static str,
        /// How many it takes.
        expected: usize,
        /// How many it was given.
        got: usize,
    },
    /// A kernel on a host thread panicked. The panic hook has shown why; the stream goes on.
    #[error("kernel `{name}` panicked")]
    KernelPanicked {
        /// The kernel.
        name: &'static str,
    },
    /// Memory or a module of one backend was used on a stream of another.
    #[error("something of backend {got} was used on backend {expected}")]
    OtherBackend {
        /// The stream's.
        expected: u64,
        /// The memory's or the module's.
        got: u64,
    },
    /// A name that is taken.
    #[error("there is a buffer `{name}`")]
    AlreadyExists {
        /// The name.
        name: Box<str>,
    },
    /// A name that nothing has.
    #[error("there is no buffer `{name}`")]
    NotFound {
        /// The name.
        name: Box<str>,
    },
    /// A buffer that is there, and configured otherwise.
    #[error("buffer `{name}` is configured as {:?} and was asked for as {:?}", both[0], both[1])]
    OtherConfig {
        /// Its name.
        name: Box<str>,
        /// What it has, and what was asked for.
        both: Box<[BufferConfig; 2]>,
    },
    /// A configuration that makes no sense.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A ring of impossible geometry.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// Memory that is not what it was said to be.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// The process's pools were configured before, and otherwise.
    #[error("the process's pools are of {is}, and were to be of {asked}")]
    Configured {
        /// What they are.
        is: Box<Chosen>,
        /// What they were to be.
        asked: Box<Chosen>,
    },
    /// An id that leads nowhere.
    #[error(transparent)]
    Id(#[from] IdError),
    /// A message that names no elements of the type that was asked for.
    #[error(transparent)]
    Reference(#[from] ReferenceError),
    /// A trace of allocations that cannot be read or run.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// A persistent kernel faulted, left, or did not do in time what it was told.
    #[error("the kernel {}", Stopped { state, is_over, fault, faults, waited })]
    Kernel {
        /// Where it was; `None` for a number that no kernel writes.
        state: Option<State>,
        /// Whether its launch was over, or there was none: where it has not said that it ends, it returned all the same.
        is_over: bool,
        /// The last fault it named.
        fault: Option<Fault>,
        /// How many it counted.
        faults: u32,
        /// How long it was waited for.
        waited: Duration,
    },
    /// No library of a CUDA driver can be loaded.
    #[error("no CUDA driver: none of {tried:?} can be loaded")]
    NoDriver {
        /// The names that were tried.
        tried: &'static [&'static str],
        /// The loader's answer to the last of them.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A CUDA driver's answer.
    #[error("{call}: {name} ({code})")]
    Driver {
        /// The call.
        call: &'static str,
        /// Its number.
        code: u32,
        /// The number's name.
        name: &'static str,
    },
    /// The driver's compiler or linker refused an image.
    #[error("{call}: {name} ({code}): {log}")]
    Compiler {
        /// The call.
        call: &'static str,
        /// Its number.
        code: u32,
        /// The number's name.
        name: &'static str,
        /// What the compiler wrote.
        log: Box<str>,
    },
    /// The stream's thread is gone and will not execute this.
    #[error("the stream executes no more")]
    StreamClosed,
}

#[cfg(any(target_os = "linux", target_os = "android"))]
impl Error {
    /// Returns an error with the system's error about a file.
    pub(crate) fn of_file(action: &'static str, path: &Path, answer: impl Into<io::Error>) -> Self {
        Self::File { action, path: path.into(), answer: answer.into() }
    }
}

/// A piece of memory in words.
struct Piece<'a>(&'a (MemoryLocation, Layout));

impl fmt::Display for Piece<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (location, layout) = self.0;
        write!(f, "{} bytes of {location:?} aligned to {}", layout.size(), layout.align())
    }
}

/// The facts of [`Error::Kernel`] as a sentence.
struct Stopped<'a> {
    state: &'a Option<State>,
    is_over: &'a bool,
    fault: &'a Option<Fault>,
    faults: &'a u32,
    waited: &'a Duration,
}

impl fmt::Display for Stopped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.state, self.is_over) {
            (Some(state), true) if state.has_ended() => write!(f, "has left, {state:?}")?,
            (Some(state), false) if state.has_ended() => write!(f, "is leaving, {state:?}, after {} ms", self.waited.as_millis())?,
            (Some(State::Created), true) => write!(f, "has returned without starting, {:?}", State::Created)?,
            (Some(state), true) => write!(f, "has returned without saying so, {state:?}")?,
            (Some(state), false) => write!(f, "is {state:?} after {} ms", self.waited.as_millis())?,
            (None, true) => f.write_str("has returned in no known state")?,
            (None, false) => f.write_str("is in no known state")?,
        }
        match self.fault {
            Some(fault) => write!(f, ": {fault} ({} faults)", self.faults),
            None => Ok(()),
        }
    }
}

/// An operation that was refused or that failed, with what it took.
pub struct Rejected<T> {
    /// Why.
    pub error: Error,
    /// The value that was passed, untouched if it was refused. If the operation failed, its target is invalid until it is written again: reading
    /// the target returns [`Error::Tainted`].
    pub value: T,
}

impl<T> Rejected<T> {
    /// The reason alone; what was passed is dropped.
    #[must_use]
    pub fn into_error(self) -> Error {
        self.error
    }
}

impl<T> From<Rejected<T>> for Error {
    fn from(rejected: Rejected<T>) -> Self {
        rejected.error
    }
}

impl<T> fmt::Debug for Rejected<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rejected").field("error", &self.error).finish_non_exhaustive()
    }
}

impl<T> fmt::Display for Rejected<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<T> std::error::Error for Rejected<T> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(&self.error)
    }
}
