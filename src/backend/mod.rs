//! Backends: who gives memory, moves bytes and runs kernels.
//!
//! 1. [`Backend`] has only the verbs that differ from one backend to another. They are raw: addresses, numbers, promises. The safe types are
//!    [`memory`](crate::memory) and [`Stream`](crate::stream::Stream), once, above all backends.
//! 2. Device memory has addresses, not references: the host never reads it, it copies it.
//! 3. What is queued on a stream is executed in order, and has a [`Ticket`]; numbers of streams are never used twice.
//! 4. Bad input is an error before anything is done, and names the facts.
//!
//! There are two: [`host`], whose device is simulated, and with the feature `cuda` one over NVIDIA's driver, `cuda`, which no GPU has run yet.

mod block;
mod bytes;
mod counters;
#[cfg(feature = "cuda")]
pub mod cuda;
mod ended;
mod extension;
mod failures;
pub mod host;
pub(crate) mod panic;
mod ranges;
#[cfg(feature = "cuda")]
mod recent;
mod taint;
mod ticket;
pub(crate) mod watch;

use core::alloc::Layout;
use core::fmt;
use core::ptr::{self, NonNull};
use core::slice;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use std::boxed::Box;
use std::sync::Arc;

use ringmem_layouts::image::Entry;
use ringmem_layouts::{Abi, Image};

use crate::{DeviceBytes, Result};

pub use block::{Block, DeviceAddress, MemoryLocation, Options};
pub use extension::Extension;
pub use taint::Taints;
pub use ticket::{StreamId, Ticket, Uses};

/// A source of devices, memory, streams and kernels: a driver, or a simulation of one.
///
/// Every method may be called from any thread, also while a kernel runs. `device` is an ordinal, from 0. What a backend may lack is in its
/// [`Extension`].
///
/// # Safety
///
/// An implementation returns blocks with the requested size and alignment, initialised where the host can read them, and not shared with any other
/// live block. It frees a block after its uses, and executes the operations of a stream in order.
pub unsafe trait Backend: fmt::Debug + Send + Sync + 'static {
    /// Returns the backend's number, unique in this process, from [`next_id`].
    fn id(&self) -> u64;

    /// Returns the same backend as a trait object.
    fn erased(self: Arc<Self>) -> Arc<dyn Backend>;

    /// Returns the kind of backend in one word.
    fn name(&self) -> &'static str;

    /// Returns true if the devices are simulated: device memory is host memory, and nothing is faster there.
    ///
    /// No call falls back from a driver to a simulation.
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

    /// Returns the size of a device's memory, or `None` if it is unknown.
    ///
    /// # Errors
    ///
    /// [`NoDevice`](crate::Error::NoDevice), the driver's error.
    fn memory_info(&self, device: u32) -> Result<Option<MemoryInfo>>;

    /// Allocates memory, stream-ordered if `on` is a stream. Wait for its [`ready`](Block::ready) ticket, if it has one, before using it elsewhere.
    ///
    /// # Errors
    ///
    /// [`Size`](crate::Error::Size) for no bytes, [`Align`](crate::Error::Align), [`Unsupported`](crate::Error::Unsupported) for an option that the
    /// location does not have, [`OutOfMemory`](crate::Error::OutOfMemory).
    fn allocate(&self, request: &Request, on: Option<StreamId>) -> Result<Block>;

    /// Frees a block after its uses, without waiting for them.
    ///
    /// # Errors
    ///
    /// [`Foreign`](crate::Error::Foreign) if it is not a live block of this backend; with both layouts if the block is live but was allocated with
    /// another layout, and it stays allocated. The driver's error; the block is freed anyway.
    ///
    /// # Safety
    ///
    /// The block is freed once, and only the operations in `uses` still use it.
    unsafe fn free(&self, block: &Block, uses: &Uses) -> Result<()>;

    /// Copies and returns when the copy is complete. Waits for no stream.
    ///
    /// A copy of one word, 8 bytes aligned to 8, is one acquire load and one release store: other threads and kernels may load and store those words
    /// meanwhile.
    ///
    /// # Errors
    ///
    /// [`Foreign`](crate::Error::Foreign) or [`Range`](crate::Error::Range) for a place that is not in live memory; the driver's error.
    ///
    /// # Safety
    ///
    /// Both places are valid for `bytes` bytes and do not overlap. A source of one word is valid for writes too, since others may store to it. No
    /// other code writes to the source or accesses the target meanwhile.
    unsafe fn copy_now(&self, copy: &Copy) -> Result<()>;

    /// Fills and returns when the fill is complete. Waits for no stream.
    ///
    /// # Errors
    ///
    /// As [`copy_now`](Self::copy_now); [`Cast`](crate::Error::Cast) for a place that is not aligned to the elements;
    /// [`Unsupported`](crate::Error::Unsupported) for an element size other than 1, 2, 4 or 8 bytes.
    ///
    /// # Safety
    ///
    /// The place is valid for all elements, and no other code accesses it meanwhile.
    unsafe fn fill_now(&self, fill: &Fill) -> Result<()>;

    /// Opens a stream on a device.
    ///
    /// # Errors
    ///
    /// [`NoDevice`](crate::Error::NoDevice), [`System`](crate::Error::System), the driver's error.
    fn open_stream(&self, device: u32) -> Result<StreamId>;

    /// Closes a stream after its queued operations. Does not wait for them if a kernel is queued or running there.
    fn close_stream(&self, stream: StreamId);

    /// Queues a copy and returns its ticket. The source is read when the copy is executed.
    ///
    /// # Errors
    ///
    /// As [`copy_now`](Self::copy_now), and [`Closed`](crate::Error::Closed); nothing was queued.
    ///
    /// # Safety
    ///
    /// As [`copy_now`](Self::copy_now), until it has been executed.
    unsafe fn copy(&self, copy: &Copy, on: StreamId) -> Result<Ticket>;

    /// Queues a fill and returns its ticket.
    ///
    /// # Errors
    ///
    /// As [`fill_now`](Self::fill_now), and [`Closed`](crate::Error::Closed); nothing was queued.
    ///
    /// # Safety
    ///
    /// As [`fill_now`](Self::fill_now), until it has been executed.
    unsafe fn fill(&self, fill: &Fill, on: StreamId) -> Result<Ticket>;

    /// Stores a word that others may be reading. An acquire load of it also sees all earlier writes of the host and of calls that have returned.
    ///
    /// # Errors
    ///
    /// As [`fill_now`](Self::fill_now).
    ///
    /// # Safety
    ///
    /// The place is valid for 8 bytes, and others access it meanwhile only by loads and stores of the word.
    unsafe fn publish_now(&self, word: Place, value: u64) -> Result<()>;

    /// Copies, and then stores a word: like [`copy_now`](Self::copy_now) of each and [`publish_now`](Self::publish_now), with one wait for all if the
    /// driver can order them. If a copy fails, nothing is stored.
    ///
    /// # Errors
    ///
    /// As those two.
    ///
    /// # Safety
    ///
    /// As those two.
    unsafe fn copy_and_publish_now(&self, copies: &[Copy], word: Place, value: u64) -> Result<()> {
        for copy in copies {
            // SAFETY: the caller's promise.
            unsafe { self.copy_now(copy) }?;
        }
        // SAFETY: the caller's promise.
        unsafe { self.publish_now(word, value) }
    }

    /// Queues the store of a word that others may be reading, and returns its ticket. An acquire load of it also sees all earlier operations of the
    /// stream. The word is stored only if no operation of the stream has failed from the ticket `since` on.
    ///
    /// # Errors
    ///
    /// As [`fill`](Self::fill). If an operation had failed, waiting returns [`Operation`](crate::Error::Operation).
    ///
    /// # Safety
    ///
    /// As [`publish_now`](Self::publish_now), until it has been executed; `since` is of this stream.
    unsafe fn publish(&self, word: Place, value: u64, since: Ticket, on: StreamId) -> Result<Ticket>;

    /// Makes later operations of `stream` wait for a ticket of another stream.
    ///
    /// # Errors
    ///
    /// [`Closed`](crate::Error::Closed), the driver's error.
    fn after(&self, ticket: Ticket, stream: StreamId) -> Result<()>;

    /// Returns a ticket that is reached when all earlier operations of a stream are complete.
    ///
    /// # Errors
    ///
    /// [`Closed`](crate::Error::Closed), the driver's error.
    fn mark(&self, stream: StreamId) -> Result<Ticket>;

    /// Returns true if every operation up to a ticket is complete. A stream that was closed and has ended has reached all its tickets.
    fn reached(&self, ticket: Ticket) -> bool;

    /// Waits until a ticket is reached, or until the timeout; returns whether it was reached.
    ///
    /// # Errors
    ///
    /// The error of the ticket's operation, once. For a stream that was closed and has ended, only while the backend remembers it: the backends of
    /// this crate remember the last 64 that ended with an unreported error.
    fn wait(&self, ticket: Ticket, timeout: Option<Duration>) -> Result<bool>;

    /// Like [`wait`](Self::wait), for a caller that relies on the operation's effect and holds its stream: also fails if the operation's error was
    /// already reported to another waiter.
    ///
    /// # Errors
    ///
    /// As [`wait`](Self::wait), and [`Operation`](crate::Error::Operation). The backends of this crate remember some hundred runs of failures of each
    /// stream. Of older ones they may report a success as a failure, and never the reverse.
    fn outcome(&self, ticket: Ticket, timeout: Option<Duration>) -> Result<bool>;

    /// Waits until all operations queued on a stream so far are complete.
    ///
    /// # Errors
    ///
    /// The first unreported error of those operations; all of them count as reported then.
    fn synchronize(&self, stream: StreamId) -> Result<()>;

    /// Loads the kernels of an image, if it was compiled with the expected layouts.
    ///
    /// # Errors
    ///
    /// [`Abi`](crate::Error::Abi) with both layouts; the driver's error.
    fn load(&self, image: &Image, expected: &Abi) -> Result<ModuleId>;

    /// Unloads a module after its queued launches.
    fn unload(&self, module: ModuleId);

    /// Queues a kernel and returns its ticket.
    ///
    /// # Errors
    ///
    /// [`NotFound`](crate::Error::NotFound), [`Arguments`](crate::Error::Arguments), [`Residency`](crate::Error::Residency),
    /// [`Closed`](crate::Error::Closed); nothing was queued.
    ///
    /// # Safety
    ///
    /// The promise of [`Stream::launch`](crate::stream::Stream::launch).
    unsafe fn launch(&self, launch: &Launch<'_>, on: StreamId) -> Result<Ticket>;

    /// Keeps a value until its uses are complete, then drops it; if a block that was freed is named, not before the memory of that block is free
    /// (see [`Extension::is_deferred`]). Others may [wait](Extension::free_deferred) for the drop, so it must not block.
    fn keep(&self, value: Box<dyn Send>, uses: &Uses, beyond: Option<&Block>);

    /// Counts an error that could not be returned: of a free in a destructor.
    fn unreported(&self, error: crate::Error);

    /// Returns the features that a backend may lack. The default has none of them.
    fn extension(&self) -> &dyn Extension {
        &()
    }
}

/// A module that a backend has loaded; never used twice in a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ModuleId(u64);

impl ModuleId {
    /// A number that no module has had.
    #[must_use]
    pub fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Relaxed))
    }
}

/// A number that no backend of this process has had.
#[must_use]
pub fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Relaxed)
}

/// Memory that is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Where.
    pub location: MemoryLocation,
    /// Whose, or near whom.
    pub device: u32,
    /// Bytes, at least one, and their alignment.
    pub layout: Layout,
    /// What else.
    pub options: Options,
}

/// One end of a copy.
#[derive(Clone, Copy, Debug)]
pub enum Place {
    /// In a device's memory.
    Device(DeviceAddress),
    /// In the host's: pinned, managed or any other.
    Host(NonNull<u8>),
}

// SAFETY: a place is a number with provenance. Whoever copies to it promises that it may be used.
unsafe impl Send for Place {}
// SAFETY: as above.
unsafe impl Sync for Place {}

/// A copy of `bytes` bytes.
#[derive(Clone, Copy, Debug)]
pub struct Copy {
    /// Where it is written.
    pub to: Place,
    /// Where it is read.
    pub from: Place,
    /// Bytes.
    pub bytes: u64,
}

/// `count` elements of `size` bytes each, all with the same bytes.
#[derive(Clone, Copy, Debug)]
pub struct Fill {
    /// Where the first is written; aligned to `size`.
    pub to: Place,
    /// The element's bytes, in the low bytes.
    pub pattern: u64,
    /// 1, 2, 4 or 8.
    pub size: u8,
    /// Elements.
    pub count: u64,
}

impl Fill {
    /// `count` times this element. It has 1, 2, 4 or 8 bytes: others do not compile.
    pub fn of<T: DeviceBytes>(to: Place, value: T, count: u64) -> Self {
        const { assert!(matches!(size_of::<T>(), 1 | 2 | 4 | 8), "a fill takes elements of 1, 2, 4 or 8 bytes") };
        let mut bytes = [0; 8];
        // SAFETY: so many initialised bytes, by the promise of `DeviceBytes`, fit into eight.
        unsafe { ptr::copy_nonoverlapping((&raw const value).cast::<u8>(), bytes.as_mut_ptr(), size_of::<T>()) };
        Self { to, pattern: u64::from_le_bytes(bytes), size: size_of::<T>() as u8, count }
    }

    /// Returns a fill with `count` copies of an element. `None` unless it has 1, 2, 4 or 8 bytes, or its bytes repeat within its alignment: zeroes,
    /// or equal numbers.
    pub(crate) fn repeating<T: DeviceBytes>(to: Place, value: &T, count: u64) -> Option<Self> {
        // SAFETY: `DeviceBytes` promises that these bytes are initialised; they are borrowed with the value.
        let bytes = unsafe { slice::from_raw_parts((&raw const *value).cast::<u8>(), size_of::<T>()) };
        let repeats = |&size: &usize| bytes.len().is_multiple_of(size) && bytes.chunks(size).all(|chunk| chunk == &bytes[..size]);
        let size = match bytes.len() {
            size @ (1 | 2 | 4 | 8) => size,
            _ => [1, 2, 4, 8].into_iter().filter(|&size| size <= align_of::<T>()).find(repeats)?,
        };
        let mut pattern = [0; 8];
        pattern[..size].copy_from_slice(&bytes[..size]);
        let count = count.checked_mul((bytes.len() / size) as u64)?;
        Some(Self { to, pattern: u64::from_le_bytes(pattern), size: size as u8, count })
    }

    /// Bytes in all.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.count.saturating_mul(self.size as u64)
    }
}

/// Managed memory that is wanted somewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefetch {
    /// From where on.
    pub address: DeviceAddress,
    /// Bytes.
    pub bytes: u64,
    /// The device; `None` for the host.
    pub to: Option<u32>,
}

impl Place {
    /// Returns the place `bytes` bytes after this one.
    pub(crate) fn further(self, bytes: u64) -> Self {
        match self {
            Self::Device(address) => Self::Device(DeviceAddress::new(address.get() + bytes)),
            Self::Host(host) => match NonNull::new(host.as_ptr().wrapping_add(bytes as usize)) {
                Some(further) => Self::Host(further),
                // No memory wraps around the end of the address space.
                None => self,
            },
        }
    }

    /// Returns the copies that spread the first of `count` elements over all of them. Each writes as many elements as precede its target, or one less,
    /// and reads the elements right before it. So if one fails, the contents of the last target are invalid too.
    pub(crate) fn doublings(self, size: u64, count: u64) -> impl Iterator<Item = Copy> {
        let written = move |step: u32| count.div_ceil(1 << step);
        (0..count.next_power_of_two().trailing_zeros()).rev().map(move |step| {
            let (before, after) = (written(step + 1), written(step));
            let len = after - before;
            Copy { to: self.further(before * size), from: self.further((before - len) * size), bytes: len * size }
        })
    }

    /// Returns the device or host address.
    pub(crate) fn address(self) -> u64 {
        match self {
            Self::Device(address) => address.get(),
            Self::Host(host) => host.as_ptr().addr() as u64,
        }
    }
}

/// Memory that a kernel accesses, as declared by its launch.
#[derive(Clone, Copy, Debug)]
pub struct Operand {
    /// Where it begins.
    pub place: Place,
    /// Its size in bytes.
    pub bytes: u64,
    /// Whether the kernel may write to it.
    pub is_written: bool,
}

/// A kernel that is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'a> {
    /// Whose kernel.
    pub module: ModuleId,
    /// As in the image.
    pub name: &'a str,
    /// Integers and device addresses.
    pub arguments: &'a [u64],
    /// Groups of lanes: blocks. At least 1.
    pub groups: u32,
    /// It stays until it is told to leave: nobody else has its groups' places meanwhile.
    pub stays: bool,
    /// The memory that the kernel accesses; may be incomplete. [Tainted](Taints) memory is refused. A launch that fails taints the operands that it may
    /// have written.
    pub operands: &'a [Operand],
}

/// What a device can do.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// Has managed memory.
    pub unified: bool,
    /// The host may touch managed memory while a kernel runs.
    pub concurrent_managed_access: bool,
    /// Loads and stores of host and kernel on pinned memory are visible to the other at system scope.
    pub system_scope: bool,
    /// Read-modify-write operations of host and kernel on one word of pinned memory are atomic.
    pub host_native_atomics: bool,
    /// Host and device share one memory: nothing is gained by a copy.
    pub shared_memory: bool,
    /// Allocations take effect in the order of a stream.
    pub stream_ordered: bool,
    /// The largest alignment that can be asked for, bytes.
    pub largest_align: u64,
    /// The devices whose memory this one can [access](Extension::set_peer), by ordinal; itself is not among them.
    pub peers: std::vec::Vec<u32>,
}

/// A device's memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// All of it.
    pub total: u64,
    /// What neither an allocation nor a page of managed memory holds; not necessarily in one piece.
    pub free: u64,
}

impl MemoryInfo {
    /// What is not free.
    #[must_use]
    pub const fn used(&self) -> u64 {
        self.total.saturating_sub(self.free)
    }
}

/// The names in a table of kernels.
pub(crate) fn names(entries: &[Entry]) -> Box<[&'static str]> {
    entries.iter().map(|entry| entry.name).collect()
}

/// The kernel of a name that takes so many arguments, in a table of them.
pub(crate) fn entry(entries: &'static [Entry], name: &str, arguments: usize) -> Result<&'static Entry> {
    let Some(entry) = entries.iter().find(|entry| entry.name == name) else {
        return Err(crate::Error::NotFound { what: "kernel", name: name.into(), known: names(entries) });
    };
    if entry.arguments != arguments {
        return Err(crate::Error::Arguments { name: entry.name, expected: entry.arguments, got: arguments });
    }
    Ok(entry)
}
