//! [`Stream`]: a queue of copies, fills and kernels that a device executes in order.
//!
//! 1. What is queued takes its buffers, or [leases](crate::registry) on them, by value and gives them back as a [`Pending`]. The stream owns them
//!    meanwhile, so nothing that a caller drops or forgets is freed under it.
//! 2. An operation waits for whatever else is queued on its buffers, on whatever stream that is.
//! 3. What is refused was not queued, and comes back.
//! 4. An operation that fails invalidates its target. Reads of the target, on any stream or on the host, return [`Error::Tainted`] with the first
//!    cause until the target is written again.
//! 5. A thread, with or without a deadline, a task of any executor ([`Completion`]), and another stream ([`Event`]) can wait for a queued operation.
#![allow(clippy::result_large_err, reason = "what comes back is as large as what went in")]

mod completion;
mod event;
mod launch;
mod metrics;
mod module;
mod operand;
mod pending;
mod policy;
mod set;

use core::fmt;
use core::ops::RangeBounds;
use core::ptr::NonNull;
use std::boxed::Box;
use std::sync::{Arc, OnceLock};

use ringmem_layouts::kernel::{Arguments, Kernel};

use crate::DeviceBytes;
use crate::backend::{Backend, Copy, Fill, Launch, Place, Prefetch, StreamId, Ticket, Uses};
use crate::memory::{Buffer, DeviceReadable, Memory, Slice, end, same_backend};
use crate::{Error, Rejected, Result};

pub use completion::Completion;
pub use event::Event;
pub use launch::Operands;
pub use metrics::{Kernels, Metrics, Traffic};
pub use module::Module;
pub(crate) use operand::sealed::Elements;
pub use operand::{Operand, Source, Target};
pub(crate) use pending::sealed::Settle;
pub use pending::{Pending, Queued};
pub use policy::{Action, ErrorGuard, ErrorPolicy, Guarded, Kind};
pub use set::{Failures, Role, StreamSet};

use metrics::{Meter, Work};

/// A stream of a device. Clones are the same stream; what is queued is executed also when the last of them is gone.
///
/// # Dropping
///
/// The last one to go waits for what is queued, unless a kernel is queued or running, here or where this stream waits for another: a persistent
/// kernel ends only when its host says so. Then the stream is left to itself and ends after its last operation.
#[derive(Clone)]
pub struct Stream {
    shared: Arc<Shared>,
}

struct Shared {
    backend: Arc<dyn Backend>,
    id: StreamId,
    device: u32,
    /// From when on somebody asks for metrics.
    meter: OnceLock<Meter>,
}

impl Stream {
    /// A stream of a device, running.
    ///
    /// # Errors
    ///
    /// [`NoDevice`](Error::NoDevice), [`System`](Error::System), what the driver said.
    pub fn new<B: Backend + ?Sized>(backend: &Arc<B>, device: u32) -> Result<Self> {
        let backend = Arc::clone(backend).erased();
        let id = backend.open_stream(device)?;
        Ok(Self { shared: Arc::new(Shared { backend, id, device, meter: OnceLock::new() }) })
    }

    /// Its number, never used twice in a process.
    #[must_use]
    pub fn id(&self) -> StreamId {
        self.shared.id
    }

    /// Whose it is: an ordinal.
    #[must_use]
    pub fn device(&self) -> u32 {
        self.shared.device
    }

    /// Who executes it.
    #[must_use]
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.shared.backend
    }

    /// Queues a copy of all of `from` to all of `to`.
    ///
    /// # Errors
    ///
    /// The buffers, with [`Size`](Error::Size) or [`OtherBackend`](Error::OtherBackend) or what the backend said; nothing was queued.
    pub fn copy<A: Source, B: Target<Element = A::Element>>(&self, from: A, to: B) -> Queue<(A, B)> {
        let lengths = [to.elements().len(), from.elements().len()];
        if lengths[0] != lengths[1] {
            let [expected, got] = lengths.map(|len| (len * size_of::<A::Element>()) as u64);
            return Err(Rejected {
                error: Error::Size { what: "length in bytes", asked: got, least: expected, most: expected },
                value: (from, to),
            });
        }
        self.copy_range(from, .., to, 0)
    }

    /// Queues a copy of some elements of `from` to those of `to` from `at` on. The source is read when it is executed.
    ///
    /// # Errors
    ///
    /// As [`copy`](Self::copy), and [`Range`](Error::Range).
    pub fn copy_range<A: Source, B: Target<Element = A::Element>>(
        &self,
        from: A,
        range: impl RangeBounds<usize>,
        to: B,
        at: usize,
    ) -> Queue<(A, B)> {
        let queued = (|| {
            let (source, target) = (from.elements().slice(range)?, to.elements());
            let target = target.slice(at..end::<A::Element>(at, source.len(), target.len())?)?;
            // SAFETY: what this operation has alone, or in common with others that read, until it is executed: whoever drops them frees them after it.
            unsafe { self.queue_copy(source, target, [from.last(), to.last()]) }
        })();
        self.pending(queued, (from, to))
    }

    /// Queues a fill of a range of elements with `value`.
    ///
    /// Elements of 1, 2, 4 or 8 bytes, and others whose bytes repeat (all zero, or equal numbers), take one fill. Any other element is copied once from
    /// the host; then each copy doubles the written range: log2(n) + 1 copies, rounded up.
    ///
    /// # Errors
    ///
    /// The buffer, as [`copy_range`](Self::copy_range). If one of several copies is refused, those before it are queued: the buffer lists them, and
    /// the contents of the range are unspecified.
    pub fn fill<B: Target>(&self, to: B, range: impl RangeBounds<usize>, value: B::Element) -> Queue<B> {
        let (ticket, outcome) = match to.elements().slice(range) {
            // SAFETY: what is this operation's own until it is executed.
            Ok(target) => unsafe { self.queue_fill(target, value, to.last()) },
            Err(error) => (None, Err(error)),
        };
        let pending = Pending::new(to, ticket, self.clone());
        match outcome {
            Ok(()) => Ok(pending),
            Err(error) => Err(Rejected { error, value: pending.ordered() }),
        }
    }

    /// Queues a copy of as many elements as both slices have, after their uses and `last`; `None` where there was nothing to do.
    ///
    /// # Safety
    ///
    /// The target is the caller's alone and apart from the source, and the ticket is listed as a use of both buffers before anything else is
    /// done with them.
    pub(crate) unsafe fn queue_copy<T: DeviceBytes, A: Memory, B: Memory>(
        &self,
        from: Slice<'_, T, A>,
        to: Slice<'_, T, B>,
        last: [Option<Ticket>; 2],
    ) -> Result<Option<Ticket>> {
        self.owns(from.memory())?;
        self.owns(to.memory())?;
        let bytes = (from.len().min(to.len()) * size_of::<T>()) as u64;
        let (Some(source), Some(target), 1..) = (from.place(), to.place(), bytes) else { return Ok(None) };
        let copy = Copy { to: target, from: source, bytes };
        let last = last.map(Uses::from);
        let work = Work::copy(from.device(), to.device(), bytes);
        // SAFETY: both within their buffers, by the slices' invariant; the caller's promise.
        self.queue(&[from.uses(), to.uses(), &last[0], &last[1]], work, |backend, id| unsafe { backend.copy(&copy, id) }).map(Some)
    }

    /// Queues a fill of elements with `value`, after their uses and `last`. Returns the last operation that was queued, if any, and whether all were.
    /// The outcome of the last one is that of all.
    ///
    /// # Safety
    ///
    /// As [`queue_copy`](Self::queue_copy).
    pub(crate) unsafe fn queue_fill<T: DeviceBytes, M: Memory>(
        &self,
        to: Slice<'_, T, M>,
        value: T,
        last: Option<Ticket>,
    ) -> (Option<Ticket>, Result<()>) {
        let mut ticket = None;
        // SAFETY: the caller's promise.
        let outcome = unsafe { self.queue_filling(to, value, last, &mut ticket) };
        (ticket, outcome)
    }

    /// # Safety
    ///
    /// As [`queue_copy`](Self::queue_copy).
    unsafe fn queue_filling<T: DeviceBytes, M: Memory>(
        &self,
        to: Slice<'_, T, M>,
        value: T,
        last: Option<Ticket>,
        ticket: &mut Option<Ticket>,
    ) -> Result<()> {
        self.owns(to.memory())?;
        let size = size_of::<T>() as u64;
        let (Some(place), count @ 1.., 1..) = (to.place(), to.len() as u64, size) else { return Ok(()) };
        let uses = [to.uses(), &Uses::from(last)];
        if let Some(fill) = Fill::repeating(place, &value, count) {
            // SAFETY: the place is within the buffer, by the slice's invariant; otherwise the caller's promise.
            *ticket = Some(self.queue(&uses, Work::fill(fill.bytes()), |backend, id| unsafe { backend.fill(&fill, id) })?);
            return Ok(());
        }
        let mut element = Box::new(value);
        let first = Copy { to: place, from: Place::Host(NonNull::from(&mut *element).cast()), bytes: size };
        // SAFETY: as above; the source is kept until this operation is complete.
        let queued = self.queue(&uses, Work::copy(None, to.device(), size), |backend, id| unsafe { backend.copy(&first, id) })?;
        self.backend().keep(element, &Uses::of(queued), None);
        *ticket = Some(queued);
        for doubling in place.doublings(size, count) {
            let work = Work::copy(to.device(), to.device(), doubling.bytes);
            // SAFETY: both are within the buffer and do not overlap; otherwise the caller's promise.
            *ticket = Some(self.queue(&[], work, |backend, id| unsafe { backend.copy(&doubling, id) })?);
        }
        Ok(())
    }

    /// Queues that managed memory is moved to a device, or to the host for `None`: a hint that changes no byte.
    ///
    /// # Errors
    ///
    /// The buffer, with [`OtherBackend`](Error::OtherBackend), or [`Unsupported`](Error::Unsupported) for memory that does not move, and on a device without
    /// [`concurrent_managed_access`](crate::backend::Capabilities::concurrent_managed_access).
    pub fn prefetch<T: DeviceBytes, M: Memory<Visibility: DeviceReadable>>(
        &self,
        buffer: Buffer<T, M>,
        to: Option<u32>,
    ) -> Queue<Buffer<T, M>> {
        let queued = (|| {
            self.owns(buffer.memory())?;
            let Some(address) = buffer.device_address() else { return Ok(None) };
            let prefetch = Prefetch { address, bytes: buffer.size_bytes() as u64, to };
            self.queue(&[buffer.uses()], Work::prefetch(prefetch.bytes), |backend, id| backend.extension().prefetch(&prefetch, id))
                .map(Some)
        })();
        self.pending(queued, buffer)
    }

    /// Queues a kernel with one group, by its name and with arguments as numbers. [`start`](Self::start) is the typed form, and
    /// [`launch_with`](Self::launch_with) owns the buffers that it works on.
    ///
    /// # Errors
    ///
    /// [`NotFound`](Error::NotFound), [`Arguments`](Error::Arguments), [`OtherBackend`](Error::OtherBackend),
    /// [`Residency`](Error::Residency) or what the driver said; nothing was queued. What comes from waiting: [`KernelPanicked`](Error::KernelPanicked), after which the stream goes on.
    ///
    /// # Safety
    ///
    /// Until the kernel has left, which a wait for the launch shows and dropping the stream does not:
    ///
    /// - the arguments are what the kernel takes, and memory that it finds by them or otherwise is live: wait before you free a buffer,
    ///   or list the launch with [`Buffer::used_by`] after this call;
    /// - nothing else touches the bytes that it touches, neither host code nor a transfer on any stream, except as the kernel's own
    ///   protocol says;
    /// - where the device has no [`concurrent_managed_access`](crate::backend::Capabilities::concurrent_managed_access), nobody holds a host slice of
    ///   managed memory.
    pub unsafe fn launch(&self, module: &Module, name: &str, arguments: &[u64]) -> Result<Pending<()>> {
        // SAFETY: the caller's promise.
        unsafe { self.queue_launch(module, name, arguments, 1, false) }
    }

    /// As [`launch`](Self::launch), of a kernel that stays until it is told to leave.
    ///
    /// # Safety
    ///
    /// As [`launch`](Self::launch).
    pub(crate) unsafe fn launch_to_stay(&self, module: &Module, name: &str, arguments: &[u64]) -> Result<Pending<()>> {
        // SAFETY: the caller's promise.
        unsafe { self.queue_launch(module, name, arguments, 1, true) }
    }

    /// # Safety
    ///
    /// As [`launch`](Self::launch).
    unsafe fn queue_launch(&self, module: &Module, name: &str, arguments: &[u64], groups: u32, stays: bool) -> Result<Pending<()>> {
        same_backend(&*self.shared.backend, &**module.backend())?;
        let launch = Launch { module: module.id(), name, arguments, groups, stays, operands: &[] };
        // SAFETY: the caller's promise.
        let ticket = self.queue(&[], Work::Kernel, |backend, id| unsafe { backend.launch(&launch, id) })?;
        Ok(Pending::new((), Some(ticket), self.clone()))
    }

    /// Queues a kernel with so many groups: the typed form of [`launch`](Self::launch). Arguments of other types than the
    /// [kernel](ringmem_layouts::kernel)'s, or another number of them, do not compile.
    ///
    /// ```
    /// use ringmem::backend::host::HostBackend;
    /// use ringmem::kernel::{DevicePointer, Kernel};
    /// use ringmem::memory::{Device, GpuBuffer};
    /// use ringmem::stream::{Module, Stream};
    /// # use ringmem::{Abi, Image, image::KernelHost};
    ///
    /// /// Adds one to so many words from the first on.
    /// const INCREMENT: Kernel<(DevicePointer<u64>, u64)> = Kernel::new("increment");
    /// # unsafe fn run(host: &dyn KernelHost, words: &[u64]) {
    /// #     let Some((first, count)) = INCREMENT.arguments(words) else { return };
    /// #     for place in (0..count).filter_map(|i| host.translate(first.add(i).address(), 8)) {
    /// #         // SAFETY: a live word, the launch's alone.
    /// #         unsafe { *place.cast::<u64>().as_mut() += 1 };
    /// #     }
    /// # }
    /// # const ABI: Abi = Abi::of(&[]);
    /// # const IMAGE: Image = Image { ptx: b"", host: &[INCREMENT.entry(run)], abi: ABI };
    ///
    /// let backend = HostBackend::builder().device_memory(1 << 20).build()?;
    /// let module = Module::load(&backend, &IMAGE, &ABI)?;
    /// let stream = Stream::new(&backend, 0)?;
    /// let words = GpuBuffer::<u64>::from_slice(Device::new(&backend, 0), &[1, 2, 3])?;
    /// let first = words.device_pointer().expect("it has bytes");
    /// // SAFETY: the words live until the launch has been waited for, and nobody else touches them meanwhile.
    /// unsafe { stream.start(&module, &INCREMENT, (first, 3), 1) }?.wait()?;
    /// assert_eq!(words.to_vec()?, [2, 3, 4]);
    /// # Ok::<(), ringmem::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`launch`](Self::launch), [`Size`](Error::Size) for no groups or more than the device can run at once, and [`Residency`](Error::Residency) for more than
    /// fit beside kernels that stay. A kernel that takes an [`Epoch`](crate::kernel::Epoch) is one.
    ///
    /// # Safety
    ///
    /// As [`launch`](Self::launch); a pointer's type says what its elements are, not that they are there.
    pub unsafe fn start<A: Arguments>(&self, module: &Module, kernel: &Kernel<A>, arguments: A, groups: u32) -> Result<Pending<()>> {
        // SAFETY: the caller's promise.
        unsafe { self.queue_launch(module, kernel.name(), arguments.words().as_ref(), groups, A::STAYS) }
    }

    /// Makes what is queued here from now on wait for everything that is queued on another stream now.
    ///
    /// # Errors
    ///
    /// [`OtherBackend`](Error::OtherBackend), what the driver said.
    pub fn wait_for(&self, other: &Self) -> Result<()> {
        same_backend(&*self.shared.backend, &*other.shared.backend)?;
        let ticket = other.mark()?;
        self.shared.backend.after(ticket, self.shared.id)
    }

    /// Waits until everything that was queued before has been executed: for a kernel that nobody tells to end, for ever.
    ///
    /// # Errors
    ///
    /// What the first operation failed with whose [`Pending`] was not waited for.
    pub fn synchronize(&self) -> Result<()> {
        self.shared.backend.synchronize(self.shared.id)
    }

    pub(crate) fn mark(&self) -> Result<Ticket> {
        self.shared.backend.mark(self.shared.id)
    }

    /// Its number, for a backend whose stream it is.
    pub(crate) fn on(&self, backend: &dyn Backend) -> Result<StreamId> {
        same_backend(&*self.shared.backend, backend)?;
        Ok(self.shared.id)
    }

    fn owns(&self, memory: &impl Memory) -> Result<()> {
        same_backend(&*self.shared.backend, &**memory.backend())
    }

    /// Queues an operation after the uses of what it touches; its ticket.
    fn queue(&self, uses: &[&Uses], work: Work, operation: impl FnOnce(&dyn Backend, StreamId) -> Result<Ticket>) -> Result<Ticket> {
        uses.iter().try_for_each(|uses| self.come_after(uses))?;
        let Shared { backend, id, meter, .. } = &*self.shared;
        match meter.get() {
            None => operation(&**backend, *id),
            Some(meter) => meter.timed(&**backend, *id, work, operation),
        }
    }

    /// Makes what is queued here from now on wait for uses on other streams.
    fn come_after(&self, uses: &Uses) -> Result<()> {
        let Shared { backend, id, .. } = &*self.shared;
        // Also a ticket that was reached: whether there is something to wait for is the backend's to say, which may keep another time than ours.
        uses.iter().filter(|ticket| ticket.stream != *id).try_for_each(|ticket| backend.after(ticket, *id))
    }

    /// What was queued, or what was refused. `queued` has no ticket where there was nothing to do.
    pub(crate) fn pending<T: Queued>(&self, queued: Result<Option<Ticket>>, value: T) -> Queue<T> {
        match queued {
            Ok(ticket) => Ok(Pending::new(value, ticket, self.clone())),
            Err(error) => Err(Rejected { error, value }),
        }
    }
}

/// What queueing gives: the operation, or its operands and why not.
pub type Queue<T> = Result<Pending<T>, Rejected<T>>;

impl Drop for Shared {
    fn drop(&mut self) {
        if let Some(meter) = self.meter.get() {
            meter.forget(&*self.backend);
        }
        self.backend.close_stream(self.id);
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").field("id", &self.shared.id.get()).field("device", &self.shared.device).finish_non_exhaustive()
    }
}
