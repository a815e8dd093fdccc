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
use core::task::Waker;
use core::time::Duration;
use std::boxed::Box;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use ringmem_layouts::image::Entry;
use ringmem_layouts::{Abi, Image};

use crate::{DeviceBytes, Result};

pub use block::{Block, DeviceAddress, MemoryLocation, Options};
pub use taint::Taints;
pub use ticket::{StreamId, Ticket, Uses};

/// What runs kernels and gives the memory for them: a driver, or the simulation of one.
///
/// Every method may be called from any thread, also while a kernel runs. `device` is an ordinal, from 0.
///
/// # Safety
///
/// An implementation gives blocks that are as long and aligned as asked for, initialised where the host can read them, and nobody else's until
/// they are freed; it frees a block after its uses, and executes what is queued on a stream in order.
pub unsafe trait Backend: fmt::Debug + Send + Sync + 'static {
    /// Its number in this process, from [`next_id`].
    fn id(&self) -> u64;

    /// The same backend, its type forgotten.
    fn erased(self: Arc<Self>) -> Arc<dyn Backend>;

    /// What kind of backend it is, in a word.
    fn name(&self) -> &'static str;

    /// Whether its devices are simulated: what is called device memory is then the host's, and nothing is quicker there. No call falls back from a
    /// driver to a simulation; whoever wants one makes one.
    fn is_simulated(&self) -> bool {
        false
    }

    /// How many devices it drives.
    fn devices(&self) -> u32;

    /// What a device can do.
    ///
    /// # Errors
    ///
    /// [`NoDevice`](crate::Error::NoDevice).
    fn capabilities(&self, device: u32) -> Result<Capabilities>;

    /// What time it is for who measures its work, in ns from some moment: the process's clock, unless the devices are simulated and keep another.
    fn now_ns(&self) -> u64 {
        static BEGUN: OnceLock<Instant> = OnceLock::new();
        u64::try_from(BEGUN.get_or_init(Instant::now).elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// How much memory a device has; `None` where nobody knows.
    ///
    /// # Errors
    ///
    /// [`NoDevice`](crate::Error::NoDevice), or what the driver said.
    fn memory_info(&self, device: u32) -> Result<Option<MemoryInfo>>;

    /// Memory, to be used by whoever waits for its [`ready`](Block::ready) ticket, if it has one.
    ///
    /// # Errors
    ///
    /// [`Size`](crate::Error::Size) for no bytes, [`Align`](crate::Error::Align), [`Unsupported`](crate::Error::Unsupported) for an option that this location does
    /// not have, [`OutOfMemory`](crate::Error::OutOfMemory).
    fn allocate(&self, request: &Request, on: Option<StreamId>) -> Result<Block>;

    /// Frees a block after its uses. It does not wait for them.
    ///
    /// # Errors
    ///
    /// [`Foreign`](crate::Error::Foreign) for what is no live block of this backend, and with both layouts for one that was allocated
    /// otherwise and stays; what the driver said, and then the block is gone all the same.
    ///
    /// # Safety
    ///
    /// The block is freed once, and nobody uses it but the operations that `uses` names.
    unsafe fn free(&self, block: &Block, uses: &Uses) -> Result<()>;

    /// Whether a block, which is live, would not go when it is freed: where a driver's free waits for every kernel, and one is queued or running, it is
    /// put off.
    fn puts_off(&self, block: &Block) -> bool {
        let _ = block;
        false
    }

    /// Whether a block that was freed after its uses, or one that it was a part of, has not gone yet because its free was [put off](Self::puts_off), or
    /// something that is [kept beyond](Self::keep_beyond) it has not been dropped yet.
    fn has_put_off(&self, block: &Block) -> bool {
        let _ = block;
        false
    }

    /// Copies at once, and returns when it is done. Waits for no stream. A copy of one word, 8 bytes at multiples of 8, is one load with all that
    /// was published by it, and one store with all that was done before: others may load and store those words meanwhile.
    ///
    /// # Errors
    ///
    /// [`Foreign`](crate::Error::Foreign) or [`Range`](crate::Error::Range) for a place that is not in live memory; what the driver said.
    ///
    /// # Safety
    ///
    /// Both places are valid for so many bytes and do not overlap, and a source of one word is valid for writes, too, since others may store to it; nobody
    /// else writes to the source or uses the target meanwhile.
    unsafe fn copy_now(&self, copy: &Copy) -> Result<()>;

    /// Fills at once, and returns when it is done. Waits for no stream.
    ///
    /// # Errors
    ///
    /// As [`copy_now`](Self::copy_now); [`Cast`](crate::Error::Cast) for a place that is not aligned to the elements,
    /// [`Unsupported`](crate::Error::Unsupported) for elements of another size than 1, 2, 4 or 8.
    ///
    /// # Safety
    ///
    /// The place is valid for so many elements, and nobody uses it meanwhile.
    unsafe fn fill_now(&self, fill: &Fill) -> Result<()>;

    /// A stream of a device, running.
    ///
    /// # Errors
    ///
    /// [`NoDevice`](crate::Error::NoDevice), [`System`](crate::Error::System), what the driver said.
    fn open_stream(&self, device: u32) -> Result<StreamId>;

    /// Ends a stream after what is queued on it. Does not wait for it if a kernel is queued or running there.
    fn close_stream(&self, stream: StreamId);

    /// Queues a copy; its ticket. The source is read when it is executed.
    ///
    /// # Errors
    ///
    /// As [`copy_now`](Self::copy_now), and [`Closed`](crate::Error::Closed); nothing was queued.
    ///
    /// # Safety
    ///
    /// As [`copy_now`](Self::copy_now), until it has been executed.
    unsafe fn copy(&self, copy: &Copy, on: StreamId) -> Result<Ticket>;

    /// Queues a fill; its ticket.
    ///
    /// # Errors
    ///
    /// As [`copy`](Self::copy).
    ///
    /// # Safety
    ///
    /// As [`fill_now`](Self::fill_now), until it has been executed.
    unsafe fn fill(&self, fill: &Fill, on: StreamId) -> Result<Ticket>;

    /// Stores a word that others may be reading: with all that was done before on the host, and by calls that have returned, visible to
    /// whoever sees it.
    ///
    /// # Errors
    ///
    /// As [`fill_now`](Self::fill_now).
    ///
    /// # Safety
    ///
    /// The place is valid for 8 bytes, and others only load from it meanwhile, or store words.
    unsafe fn publish_now(&self, word: Place, value: u64) -> Result<()>;

    /// Copies at once, and then stores a word: as [`copy_now`](Self::copy_now) of each and [`publish_now`](Self::publish_now), with one wait for all of it where a
    /// driver has an order for them. Where a copy fails nothing is stored.
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

    /// Queues the store of a word that others may be reading: with all that was executed before on this stream visible to whoever sees
    /// it, and only if nothing has failed there from the ticket `since` on. Its ticket.
    ///
    /// # Errors
    ///
    /// As [`fill`](Self::fill). What comes from waiting: [`Operation`](crate::Error::Operation), if something had failed.
    ///
    /// # Safety
    ///
    /// As [`publish_now`](Self::publish_now), until it has been executed; `since` is of this stream.
    unsafe fn publish(&self, word: Place, value: u64, since: Ticket, on: StreamId) -> Result<Ticket>;

    /// Makes what is queued on `stream` from now on wait for a ticket of another.
    ///
    /// # Errors
    ///
    /// [`Closed`](crate::Error::Closed), what the driver said.
    fn after(&self, ticket: Ticket, stream: StreamId) -> Result<()>;

    /// A ticket of its own, reached when everything that was queued before on a stream is.
    ///
    /// # Errors
    ///
    /// [`Closed`](crate::Error::Closed), what the driver said.
    fn mark(&self, stream: StreamId) -> Result<Ticket>;

    /// A ticket as [`mark`](Self::mark) gives one, of which is remembered when it was reached, until it is [forgotten](Self::forget). Whoever waits for it
    /// is told what the first operation before it failed with that nobody was told of, as by [`synchronize`](Self::synchronize).
    ///
    /// With a driver: an event with timing (`cuEventCreate`, `cuEventRecord`), kept under the ticket. Where nothing is timed, a mark.
    ///
    /// # Errors
    ///
    /// As [`mark`](Self::mark).
    fn record(&self, stream: StreamId) -> Result<Ticket> {
        self.mark(stream)
    }

    /// How long after one recorded ticket another was reached, on any stream: nothing if it was reached before. With a driver `cuEventElapsedTime`.
    ///
    /// # Errors
    ///
    /// [`Operation`](crate::Error::Operation), also for one that failed; [`Unsupported`](crate::Error::Unsupported) for one that was not recorded, or was
    /// forgotten, and where nothing is timed.
    fn elapsed(&self, from: Ticket, to: Ticket) -> Result<Duration> {
        let _ = (from, to);
        Err(crate::Error::Unsupported { what: "the time of a ticket that was not recorded" })
    }

    /// Forgets when a recorded ticket was reached, or will be. With a driver `cuEventDestroy`.
    fn forget(&self, ticket: Ticket) {
        let _ = ticket;
    }

    /// Whether everything before a ticket was executed. A stream that was closed and has ended has reached all its tickets.
    fn reached(&self, ticket: Ticket) -> bool;

    /// Waits until a ticket is reached, not longer than `timeout` if there is one: whether it was.
    ///
    /// # Errors
    ///
    /// What the ticket's operation failed with. It is told once, also of a stream that was closed and has ended, as long as the backend remembers it: those
    /// here remember the last 64 that ended with something to tell.
    fn wait(&self, ticket: Ticket, timeout: Option<Duration>) -> Result<bool>;

    /// The same for who relies on what the ticket's operation has done, and holds its stream: it is an error also where somebody else was told what that
    /// failed with.
    ///
    /// # Errors
    ///
    /// As [`wait`](Self::wait), and [`Operation`](crate::Error::Operation). The backends here remember some hundred runs of failures of each stream; of older
    /// ones they say so too many, and never too few.
    fn outcome(&self, ticket: Ticket, timeout: Option<Duration>) -> Result<bool>;

    /// Waits until everything that was queued on a stream so far has been executed.
    ///
    /// # Errors
    ///
    /// What the first operation failed with that nobody was told of; it and its successors are told now.
    fn synchronize(&self, stream: StreamId) -> Result<()>;

    /// The kernels of an image, if it was compiled with the layouts that are expected.
    ///
    /// # Errors
    ///
    /// [`Abi`](crate::Error::Abi) with both sides' tables; what the driver said.
    fn load(&self, image: &Image, expected: &Abi) -> Result<ModuleId>;

    /// Forgets a module after the launches of it.
    fn unload(&self, module: ModuleId);

    /// Queues a kernel; its ticket.
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

    /// Holds on to a value until its uses are over, and drops it then.
    fn keep(&self, value: Box<dyn Send>, uses: &Uses);

    /// Holds on to a value until a block that was freed has gone, and drops it then: after its uses, also where it is [put off](Self::puts_off). Others may
    /// [wait](Self::catch_up) for it meanwhile: dropping it waits for nobody.
    fn keep_beyond(&self, value: Box<dyn Send>, block: &Block, uses: &Uses) {
        let _ = block;
        self.keep(value, uses);
    }

    /// Gives back what was freed, and drops what is kept [beyond](Self::keep_beyond) a block, as far as their uses are over; and waits for other threads that
    /// are about to. Until then it counts against limits.
    fn catch_up(&self) {}

    /// Wakes a task when a ticket is reached, at once if it has been, and drops its waker then. Nobody need call the backend for that.
    ///
    /// A backend that has nobody to do so leaves it to a thread of this process, which looks whether the ticket is [`reached`](Self::reached), first often
    /// and at last every millisecond, while there is any to look for. With a driver: `cuLaunchHostFunc` after the ticket's event, on a stream of its own.
    fn notify(self: Arc<Self>, ticket: Ticket, waker: Waker) {
        watch::watch(self.erased(), ticket, waker);
    }

    /// Counts an error that nobody was there to be told of: a free in a destructor.
    fn unreported(&self, error: crate::Error);

    /// Returns the memory that failed operations have left invalid, or `None` if the backend does not track it.
    ///
    /// The backend's operations check and update [`Taints`] when they are executed.
    fn taints(&self) -> Option<&Taints> {
        None
    }

    /// Refuses the host's touching a block of managed memory where a kernel that runs must not meet it there.
    ///
    /// # Errors
    ///
    /// [`Busy`](crate::Error::Busy).
    fn host_access(&self, block: &Block) -> Result<()> {
        let _ = block;
        Ok(())
    }

    /// Queues that managed memory moves to a device, or home to the host; its ticket. A hint: what is touched elsewhere moves there anyway.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::Error::Unsupported) where nothing can be moved ahead or the memory is not managed; as [`copy`](Self::copy).
    fn prefetch(&self, prefetch: &Prefetch, on: StreamId) -> Result<Ticket> {
        let _ = (prefetch, on);
        Err(crate::Error::Unsupported { what: "a prefetch" })
    }

    /// Lets a device reach another's memory: its kernels do, and copies between the two need no host. Nothing happens the second time, nor for a
    /// device and itself.
    ///
    /// # Errors
    ///
    /// [`NoDevice`](crate::Error::NoDevice), [`Unsupported`](crate::Error::Unsupported) where [`Capabilities::peers`] does not list it, what the driver said.
    fn enable_peer(&self, device: u32, peer: u32) -> Result<()> {
        no_peers(self.devices(), device, peer)
    }

    /// Takes that back. Wait for what uses it first.
    ///
    /// # Errors
    ///
    /// As [`enable_peer`](Self::enable_peer).
    fn disable_peer(&self, device: u32, peer: u32) -> Result<()> {
        no_peers(self.devices(), device, peer)
    }

    /// Waits until uses are over.
    ///
    /// # Errors
    ///
    /// As [`wait`](Self::wait), the first of several.
    fn settle(&self, uses: &Uses) -> Result<()> {
        let mut outcome = Ok(());
        // All of them, also after one has failed.
        for ticket in uses.iter() {
            let waited = self.wait(ticket, None).map(drop);
            outcome = outcome.and(waited);
        }
        outcome
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
    /// The devices whose memory this one can [reach](Backend::enable_peer), by ordinal; itself is not among them.
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

/// Where no device reaches another.
fn no_peers(devices: u32, device: u32, peer: u32) -> Result<()> {
    match [device, peer].into_iter().find(|&asked| asked >= devices) {
        Some(asked) => Err(crate::Error::NoDevice { asked, devices }),
        None if device == peer => Ok(()),
        None => Err(crate::Error::Unsupported { what: "reaching that device's memory from this one" }),
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
