//! [`Error`]: the errors of the host side.

mod abi_mismatch;
mod config;
mod id;
mod tensor;
mod text;

use core::alloc::Layout;
use core::fmt::{self, Write as _};
use std::boxed::Box;
use std::io;
use std::path::Path;
use std::string::String;
use std::sync::Arc;

use core::time::Duration;

use ringmem_layouts::Abi;
use ringmem_layouts::attach::{AttachError, Corrupt};
use ringmem_layouts::control::{Fault, State};
use ringmem_layouts::message::ReferenceError;
use ringmem_layouts::ring::LayoutError;
use ringmem_layouts::telemetry;

use crate::location::MemoryLocation;
pub use config::ConfigError;
pub use id::IdError;
pub use tensor::TensorError;
use text::{Bounds, Bytes, Cause, Differing, Elements, Known, Log, More, Stopped, SystemCall, Unknown};

/// A result with [`Error`] by default.
///
/// ```
/// use ringmem::Error;
/// use ringmem::config::{Config, ConfigError};
///
/// fn config(pool_bytes: u64) -> ringmem::Result<Config> {
///     let config = Config::cuda().with_pool_bytes(pool_bytes);
///     config.validate()?; // a `ConfigError` becomes an `Error`
///     Ok(config)
/// }
///
/// assert!(config(1 << 30).is_ok());
/// assert!(matches!(config(0), Err(Error::Config(ConfigError::Bytes { .. }))));
/// ```
pub type Result<T, E = Error> = core::result::Result<T, E>;

/// An error of the host side. Sizes and offsets are in bytes.
///
/// ```
/// use ringmem::Error;
/// use ringmem::backend::host::HostBackend;
/// use ringmem::memory::{Buffer, Device, Limited};
///
/// let backend = HostBackend::builder().build()?;
/// let memory = Limited::new(Device::new(&backend, 0), 1 << 20);
/// let error = Buffer::<u8, _>::new(memory, 2 << 20).expect_err("over the limit");
/// assert!(matches!(error, Error::Limit { requested, limit, .. } if requested > limit));
/// assert_eq!(error.to_string(), "memory limit reached: requested 2 MiB, 0 bytes of 1 MiB in use");
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A number, such as a size or count, that can never succeed.
    #[error("{}", Bounds { what, asked, least, most })]
    Size {
        /// Quantity, with its unit.
        what: &'static str,
        /// Refused value.
        asked: u64,
        /// Smallest possible value.
        least: u64,
        /// Largest possible value.
        most: u64,
    },
    /// An alignment that is not a power of two, or too large.
    #[error("invalid alignment: {asked} is not a power of two up to {most}")]
    Align {
        /// Requested alignment.
        asked: u64,
        /// Largest possible alignment.
        most: u64,
    },
    /// More groups than fit next to persistent kernels.
    #[error(
        "{asked} groups requested, {free} of {most} free next to {resident} groups of persistent kernels: request fewer, or end a kernel"
    )]
    Residency {
        /// Requested groups.
        asked: u64,
        /// Groups that fit now.
        free: u64,
        /// Groups on an idle device.
        most: u64,
        /// Groups of persistent kernels on other streams.
        resident: u64,
    },
    /// Not enough free memory.
    #[error("out of memory: requested {}, free {}, largest free block at that alignment {}{}{}", Bytes(*requested), Bytes(*free), Bytes(*largest), Cause(*limit), More(unavailable))]
    OutOfMemory {
        /// Requested bytes.
        requested: u64,
        /// Free bytes.
        free: u64,
        /// Largest possible allocation at that alignment.
        largest: u64,
        /// If a pool's limit is the cause: bytes then in use, and the limit.
        limit: Option<[u64; 2]>,
        /// Memory of a pool that might have served the request, but could not be used.
        unavailable: Option<Box<Unavailable>>,
    },
    /// A limit on memory would be exceeded.
    #[error("{of} limit reached: requested {}, {} of {} in use", Bytes(*requested), Bytes(*used), Bytes(*limit))]
    Limit {
        /// Limited memory.
        of: LimitOf,
        /// Requested bytes.
        requested: u64,
        /// Bytes in use then.
        used: u64,
        /// Limit.
        limit: u64,
    },
    /// The staging buffers of a stream exceed the pinned memory that is left.
    #[error(
        "{buffers} staging buffers of {} are {} of pinned memory, {} of {} in use: use a smaller chunk or fewer staging buffers",
        Bytes(*bytes), Bytes(u64::from(*buffers).saturating_mul(*bytes)), Bytes(*used), Bytes(*limit)
    )]
    Staging {
        /// Number of staging buffers.
        buffers: u32,
        /// Bytes of each.
        bytes: u64,
        /// Pinned bytes in use then.
        used: u64,
        /// Limit on pinned memory.
        limit: u64,
    },
    /// A range beyond a buffer's end, in elements.
    #[error("invalid range: {len} {0} at offset {offset} are not within {size} {0}", Elements(*element_bytes))]
    Range {
        /// Start of the range.
        offset: u64,
        /// Length of the range.
        len: u64,
        /// Length of the buffer.
        size: u64,
        /// Size of an element; 1 for bytes.
        element_bytes: u64,
    },
    /// A part of an [address range](crate::backend::AddressRange) that is not whole units, or empty.
    #[error("cannot map {} at offset {offset}: both must be multiples of {}, and some bytes", Bytes(*bytes), Bytes(*granularity))]
    Granularity {
        /// Start of the part.
        offset: u64,
        /// Length of the part.
        bytes: u64,
        /// Unit of both.
        granularity: u64,
    },
    /// A copy between overlapping ranges of a buffer.
    #[error("cannot copy {len} bytes from offset {from} to offset {to} of the same buffer: the ranges overlap")]
    Overlap {
        /// Start of the source.
        from: u64,
        /// Start of the target.
        to: u64,
        /// Length of both.
        len: u64,
    },
    /// Bytes that are not whole, aligned elements.
    #[error("cannot cast {bytes} bytes (align {align}) to elements of size {size}, align {needed}")]
    Cast {
        /// Length of the memory.
        bytes: u64,
        /// Alignment of the memory.
        align: u64,
        /// Size of an element.
        size: u64,
        /// Alignment of an element.
        needed: u64,
    },
    /// It may succeed later.
    #[error("busy: {what}")]
    Busy {
        /// The reason.
        what: &'static str,
    },
    /// The stream or reader has ended.
    #[error("the {what} is closed")]
    Closed {
        /// Closed object: `stream`, `reader of these frames`.
        what: &'static str,
    },
    /// A call that a mirrored buffer's copies do not allow.
    #[error("{what}: the mirrored buffer is {state}")]
    Mirror {
        /// Missing or conflicting copy.
        what: MirrorFault,
        /// Name of the buffer's [`State`](crate::mirror::State).
        state: &'static str,
    },
    /// A device ordinal that does not exist.
    #[error("no device {asked}: the backend has {devices}")]
    NoDevice {
        /// Requested ordinal.
        asked: u32,
        /// Number of devices.
        devices: u32,
    },
    /// A feature that the device or memory lacks.
    #[error("{what} is not supported")]
    Unsupported {
        /// Requested feature.
        what: &'static str,
    },
    /// An address outside the backend's live memory, or a free with another location or layout than the allocation's, which stays.
    #[error("{call}: {}", Unknown { address, layouts })]
    Foreign {
        /// Backend's operation.
        call: &'static str,
        /// Address.
        address: u64,
        /// For a free: location and layout of allocation and free.
        layouts: Option<Box<[(MemoryLocation, Layout); 2]>>,
    },
    /// Memory or a module of another backend than the stream's.
    #[error("memory or module of backend {got} used on backend {expected}")]
    OtherBackend {
        /// Stream's backend.
        expected: u64,
        /// Backend of the memory or module.
        got: u64,
    },
    /// A fault injected by a test.
    #[error("{call} number {number} failed: injected fault")]
    Injected {
        /// Operation of the backend or the memory.
        call: &'static str,
        /// Number of the call, from 1.
        number: u64,
    },
    /// A verified copy's target differs from its source, and stays as it arrived.
    #[error("corrupted copy: {len} bytes at offset {offset} have CRC-32C {got:#010x}, the source has {expected:#010x}")]
    Corrupted {
        /// First differing chunk's start.
        offset: u64,
        /// That chunk's length.
        len: u64,
        /// Checksum of the source.
        expected: u32,
        /// Checksum of the target.
        got: u32,
    },
    /// A queued operation failed, or was not executed.
    #[error("operation {number} on stream {stream} {what}")]
    Operation {
        /// Why its result cannot be used.
        what: OperationFault,
        /// Stream.
        stream: u64,
        /// Number of the operation in its stream.
        number: u64,
    },
    /// Invalid contents: a queued operation failed to write them, or their source.
    #[error("invalid contents: operation {number} on stream {stream} failed ({cause}); write them again with a copy or a fill")]
    Tainted {
        /// Stream of the first failed operation.
        stream: u64,
        /// Its number in the stream.
        number: u64,
        /// Error of that operation.
        cause: Arc<str>,
    },
    /// The operating system cannot map memory.
    #[error("cannot map {bytes} bytes")]
    Map {
        /// Requested bytes.
        bytes: u64,
        /// System's error.
        source: io::Error,
    },
    /// A call to the operating system failed.
    #[error("{}", SystemCall { call, path, answer })]
    System {
        /// Call; with a path, the action.
        call: &'static str,
        /// File.
        path: Option<Box<Path>>,
        /// System's error, in the message and so no `source`.
        answer: io::Error,
    },
    /// An image compiled with a different layout.
    #[error("{}", abi_mismatch::Difference { expected, got })]
    Abi {
        /// Host's ABI.
        expected: Abi,
        /// Image's ABI.
        got: Abi,
    },
    /// A name that does not exist.
    #[error("no {what} `{name}`{}", Known(known))]
    NotFound {
        /// `buffer` or `kernel`.
        what: &'static str,
        /// Requested name.
        name: Box<str>,
        /// A module's kernels.
        known: Box<[&'static str]>,
    },
    /// A wrong number of arguments to a kernel.
    #[error("kernel `{name}` takes {expected} arguments, got {got}")]
    Arguments {
        /// Kernel.
        name: &'static str,
        /// Number of its parameters.
        expected: usize,
        /// Number of arguments given.
        got: usize,
    },
    /// Buffers of different lengths for a kernel over buffers, which is called for each element.
    #[error(
        "kernel `{kernel}` is called for each element: `{}` has {}, and `{}` has {}",
        parameters[0], lengths[0], parameters[1], lengths[1]
    )]
    Lengths {
        /// Kernel.
        kernel: &'static str,
        /// Its first parameter with elements, and one whose buffer has another length.
        parameters: Box<[&'static str; 2]>,
        /// Number of elements of each.
        lengths: [u64; 2],
    },
    /// A kernel on a host thread panicked; the stream continues.
    #[error("kernel `{name}` panicked")]
    KernelPanicked {
        /// Kernel.
        name: &'static str,
    },
    /// A taken name, or another configuration.
    #[error("`{name}` already exists{}", Differing(configs))]
    AlreadyExists {
        /// Buffer's name, or `process-wide pools`.
        name: Box<str>,
        /// Present and the requested one.
        configs: Option<Box<[String; 2]>>,
    },
    /// An invalid configuration, also of a ring.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Memory with unexpected contents.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// An id or a message that refers to nothing.
    #[error(transparent)]
    Id(#[from] IdError),
    /// A buffer that cannot be lent, or a tensor that cannot be taken.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// A persistent kernel faulted, ended, or timed out.
    #[error("the kernel {}", Stopped { state, is_over, fault, faults, waited })]
    Kernel {
        /// Kernel's state; `None` for an invalid value.
        state: Option<State>,
        /// Its launch is complete; without a final state, it returned without a report.
        is_over: bool,
        /// Its last fault.
        fault: Option<Fault>,
        /// Number of faults.
        faults: u32,
        /// Time waited for it.
        waited: Duration,
    },
    /// No CUDA driver library can be loaded.
    #[error("no CUDA driver: none of {tried:?} can be loaded")]
    NoDriver {
        /// Names that were tried.
        tried: &'static [&'static str],
        /// Loader's error for the last name.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// An error of a CUDA driver.
    #[error("{call}: {name} ({code}){}", Log(log))]
    Driver {
        /// Failed call.
        call: &'static str,
        /// Error's number.
        code: u32,
        /// Error's name.
        name: &'static str,
        /// Output of the driver's compiler or linker.
        log: Option<Box<str>>,
    },
}

// Each allocation returns a `Result` with it: a larger one cost 7 instructions more for a block of a warm pool. Long facts of rare errors are boxed.
const _: () = assert!(size_of::<Error>() <= 64);

#[cfg(any(target_os = "linux", target_os = "android"))]
impl Error {
    pub(crate) fn of_file(action: &'static str, path: &Path, answer: impl Into<io::Error>) -> Self {
        Self::System { call: action, path: Some(path.into()), answer: answer.into() }
    }
}

/// Writes the text of an error, and of each cause that does not end it: `main` and `unwrap` print `Debug`.
pub(crate) fn with_causes(error: &dyn std::error::Error, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    // A foreign cause may be its own.
    const MOST: usize = 16;
    let mut before = String::new();
    let causes = std::iter::successors(Some(error), |cause| cause.source()).take(MOST);
    for (place, cause) in causes.enumerate() {
        let mut text = String::new();
        // Not `to_string`, which panics if `Display` fails.
        write!(text, "{cause}")?;
        match place {
            0 => f.write_str(&text)?,
            _ if before.ends_with(&text) => {}
            _ => write!(f, ": {text}")?,
        }
        before = text;
    }
    Ok(())
}

macro_rules! debug_with_causes {
    ($($error:ty)+) => {$(
        /// Like `Display`, followed by the causes.
        impl core::fmt::Debug for $error {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                $crate::error::with_causes(self, f)
            }
        }
    )+};
}
pub(crate) use debug_with_causes;

debug_with_causes! { Error }

impl Error {
    /// Returns whether a wait for a kernel reached its limit: the kernel runs, has reported no fault, and may still answer.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use ringmem::backend::host::HostBackend;
    /// use ringmem::channel::Channel;
    /// use ringmem::control::Command;
    /// use ringmem_kernels::echo::ECHO;
    ///
    /// let backend = HostBackend::builder().build()?;
    /// let mut channel = Channel::open(&backend, 0, ECHO)?;
    /// let error = channel.recv_timeout(Duration::from_millis(1)).expect_err("nothing was sent");
    /// assert!(error.is_timeout());
    /// channel.command(Command::TERMINATE)?;
    /// let error = channel.recv_timeout(Duration::from_secs(60)).expect_err("it has ended");
    /// assert!(!error.is_timeout());
    /// # Ok::<(), ringmem::Error>(())
    /// ```
    #[must_use]
    pub const fn is_timeout(&self) -> bool {
        match self {
            Self::Kernel { state: Some(state), is_over: false, fault: None, .. } => !state.has_ended(),
            _ => false,
        }
    }
}

impl From<LayoutError> for Error {
    fn from(error: LayoutError) -> Self {
        Self::Config(ConfigError::Ring(error))
    }
}

impl From<Corrupt> for Error {
    fn from(corrupt: Corrupt) -> Self {
        Self::Attach(AttachError::Corrupt(corrupt))
    }
}

impl From<telemetry::Busy> for Error {
    fn from(_: telemetry::Busy) -> Self {
        Self::Busy { what: "telemetry is being written, or its writer stopped in the middle" }
    }
}

impl From<ReferenceError> for Error {
    fn from(error: ReferenceError) -> Self {
        Self::Id(IdError::Reference(error))
    }
}

/// The memory that a limit applies to.
///
/// ```
/// use ringmem::Error;
/// use ringmem::backend::host::HostBackend;
/// use ringmem::error::LimitOf;
/// use ringmem::memory::{Pinned, PinnedBuffer};
///
/// let backend = HostBackend::builder().pinned_budget(4096).build()?;
/// let error = PinnedBuffer::<u8>::new(Pinned::new(&backend, 0), 8192).expect_err("over the budget");
/// assert!(matches!(error, Error::Limit { of: LimitOf::Pinned, limit: 4096, .. }));
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitOf {
    /// The memory of a budget or of [`Limited`](crate::memory::Limited).
    #[error("memory")]
    Memory,
    /// The memory of a [pool](crate::pool::Builder::limit).
    #[error("pool")]
    Pool,
    /// The pinned memory of a backend or of pools.
    #[error("pinned memory")]
    Pinned,
}

/// Memory that a pool could not use for a request.
///
/// ```
/// use ringmem::Error;
/// use ringmem::error::Unavailable;
///
/// let caches = Unavailable::Caches { bytes: 4 << 20, caches: 2 };
/// let error = Error::OutOfMemory { requested: 1 << 20, free: 0, largest: 0, limit: None, unavailable: Some(Box::new(caches)) };
/// assert!(error.to_string().contains("membarrier"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unavailable {
    /// Blocks in caches of other threads. A pool reaches them by the system call `membarrier`, which the program forbade after it had created a pool.
    #[error(
        "{} are live or in {caches} caches of other threads, which cannot be flushed because the system call membarrier fails: allow it, or forbid it before the first pool is created",
        Bytes(*bytes)
    )]
    Caches {
        /// Bytes of live blocks and of blocks in these caches. Their shares are unknown.
        bytes: u64,
        /// Number of these caches.
        caches: u64,
    },
    /// Memory that the upstream memory is allocating.
    #[error("the upstream memory has not returned from an allocation of {} for {} ms", Bytes(*bytes), age.as_millis())]
    Allocation {
        /// Bytes of that allocation; of several, the oldest.
        bytes: u64,
        /// Time since its begin.
        age: Duration,
    },
    /// Free memory of a pool over an [address range](crate::backend::AddressRange) that does not suffice, with what the limit and the device have left.
    #[error("{} are free in mapped blocks that can be moved together, {} in those that live blocks, or a running kernel, hold in place", Bytes(*movable), Bytes(*held))]
    Fragments {
        /// Bytes of mapped blocks without a live byte: the pool moves them together for a request that they serve.
        movable: u64,
        /// Free bytes of other mapped blocks.
        held: u64,
    },
}

/// Why a mirrored buffer refuses a call.
///
/// ```
/// use ringmem::Error;
/// use ringmem::backend::host::HostBackend;
/// use ringmem::error::MirrorFault;
/// use ringmem::memory::{Device, Pinned};
/// use ringmem::mirror::MirroredBuffer;
///
/// let backend = HostBackend::builder().build()?;
/// let mut mirror = MirroredBuffer::<u32, _, _>::new(Pinned::new(&backend, 0), Device::new(&backend, 0), 4)?;
/// mirror.copy_from(&[1, 2, 3, 4])?; // not on the device yet
/// let error = mirror.mark_device_dirty().expect_err("both sides would have writes");
/// assert!(matches!(error, Error::Mirror { what: MirrorFault::DirtyConflict, .. }));
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MirrorFault {
    /// Nothing was written yet.
    #[error("no copy on either side")]
    NotAllocated,
    /// The host has no complete copy.
    #[error("no complete copy on the host")]
    NoHostCopy,
    /// The device has no complete copy.
    #[error("no complete copy on the device")]
    NoDeviceCopy,
    /// Both copies would have newer writes.
    #[error("conflict: the other copy has newer writes; synchronize or discard one copy")]
    DirtyConflict,
}

/// Why an operation's result cannot be used.
///
/// ```
/// use ringmem::Error;
/// use ringmem::backend::host::{Fault, Faults, HostBackend, Verb};
/// use ringmem::error::OperationFault;
/// use ringmem::memory::{Device, GpuBuffer};
/// use ringmem::stream::Stream;
///
/// let faults = Faults::new().on(Verb::Fill, Fault::nth(1).when_executed());
/// let backend = HostBackend::builder().faults(faults).build()?;
/// let stream = Stream::new(&backend, 0)?;
/// let pending = stream.fill(GpuBuffer::<u8>::new(Device::new(&backend, 0), 8)?, .., 7)?;
/// assert!(matches!(stream.synchronize(), Err(Error::Injected { .. }))); // reported here, once
/// let rejected = pending.wait().expect_err("the fill failed");
/// assert!(matches!(rejected.error, Error::Operation { what: OperationFault::AlreadyReported, .. }));
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OperationFault {
    /// It failed, and another waiter got the error.
    #[error("failed; its error was already reported to an earlier waiter")]
    AlreadyReported,
    /// It failed, so nothing was published.
    #[error("failed; nothing was published")]
    Unpublished,
    /// It was not executed.
    #[error("has not been executed")]
    NotReached,
}

/// An error with the passed value.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::memory::{Device, GpuBuffer};
/// use ringmem::stream::Stream;
///
/// let backend = HostBackend::builder().build()?;
/// let stream = Stream::new(&backend, 0)?;
/// let buffer = GpuBuffer::<u8>::new(Device::new(&backend, 0), 8)?;
/// let rejected = stream.fill(buffer, 4..9, 0).expect_err("out of range");
/// println!("{}", rejected.error);
/// assert_eq!(rejected.value.len(), 8); // the buffer is returned
/// # Ok::<(), ringmem::Error>(())
/// ```
pub struct Rejected<T> {
    /// Error.
    pub error: Error,
    /// The value, untouched if refused.
    pub value: T,
}

impl<T> Rejected<T> {
    /// Returns the error, and drops the value.
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
        fmt::Debug::fmt(&self.error, f)
    }
}

impl<T> fmt::Display for Rejected<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.error, f)
    }
}

impl<T> std::error::Error for Rejected<T> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(&self.error)
    }
}
