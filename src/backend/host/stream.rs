//! A stream: a thread that executes what is queued, in order.

use core::fmt;
use core::sync::atomic::Ordering::{Acquire, Relaxed};
use core::sync::atomic::{AtomicU64, AtomicUsize};
use std::format;
use std::sync::Arc;
use std::sync::mpsc::{self, SendError, Sender};
use std::thread::{self, JoinHandle};

use super::device::Device;
use super::memory::DeviceMemory;
use super::module::Module;
use super::operation::{Launch, Operation, Transfer};
use super::pending::Pending;
use super::pinned::PinnedMemory;
use super::trace;
use crate::{Error, Rejected, Result};

/// A queue of operations and the thread that executes them, one after the other. Operations of two streams are in no order.
///
/// # Dropping
///
/// What is queued is executed all the same. Without a launch queued or running, the drop waits for it. With one it does not, since a
/// persistent kernel ends only when its host says so: the thread is left to itself, keeps the device and everything that is queued,
/// and ends after its last operation.
pub struct Stream {
    device: Arc<Device>,
    id: u64,
    /// How many launches are queued or running.
    launches: Arc<AtomicUsize>,
    /// Taken by the drop alone.
    worker: Option<Worker>,
}

struct Worker {
    queue: Sender<Operation>,
    thread: JoinHandle<()>,
}

impl Stream {
    pub(super) fn new(device: &Arc<Device>) -> Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = NEXT.fetch_add(1, Relaxed);
        let launches = Arc::new(AtomicUsize::new(0));
        let (queue, operations) = mpsc::channel::<Operation>();
        let thread = thread::Builder::new().name(format!("ringmem-{id}")).spawn({
            let (device, launches) = (Arc::clone(device), Arc::clone(&launches));
            move || {
                for operation in operations {
                    operation.execute(&device, &launches);
                }
            }
        });
        let thread = thread.map_err(|source| Error::Thread { source })?;
        device.counts.streams.fetch_add(1, Relaxed);
        Ok(Self { device: Arc::clone(device), id, launches, worker: Some(Worker { queue, thread }) })
    }

    /// Queues a copy of the first `len` bytes of `source` to `offset` of `to`. The source is read when this is executed.
    ///
    /// # Errors
    ///
    /// The source, with [`Range`](Error::Range) or [`OtherBackend`](Error::OtherBackend); nothing was queued.
    pub fn upload(
        &self,
        source: PinnedMemory,
        len: u64,
        to: &DeviceMemory,
        offset: u64,
    ) -> Result<Pending<PinnedMemory>, Rejected<PinnedMemory>> {
        self.transfer(Operation::Upload, source, len, to, offset)
    }

    /// Queues a copy of `len` bytes at `offset` of `from` to the beginning of `into`.
    ///
    /// # Errors
    ///
    /// What was to be written, with [`Range`](Error::Range) or [`OtherBackend`](Error::OtherBackend); nothing was queued.
    pub fn download(
        &self,
        from: &DeviceMemory,
        offset: u64,
        into: PinnedMemory,
        len: u64,
    ) -> Result<Pending<PinnedMemory>, Rejected<PinnedMemory>> {
        self.transfer(Operation::Download, into, len, from, offset)
    }

    /// Queues that `len` bytes at `offset` of `to` become `byte`.
    ///
    /// # Errors
    ///
    /// [`Range`](Error::Range) or [`OtherBackend`](Error::OtherBackend); nothing was queued.
    pub fn fill(&self, to: &DeviceMemory, offset: u64, len: u64, byte: u8) -> Result<Pending<()>> {
        let block = Arc::clone(to.block());
        self.device.owns(&block.device)?;
        block.check(offset, len)?;
        let (pending, done) = Pending::new();
        self.queue(Operation::Fill { block, offset, len, byte, done }).map_err(|_| Error::StreamClosed)?;
        Ok(pending)
    }

    /// Queues a kernel. Memory of this backend that an argument is an address in lives until the kernel has left.
    ///
    /// # Errors
    ///
    /// [`UnknownKernel`](Error::UnknownKernel), [`Arguments`](Error::Arguments) or [`OtherBackend`](Error::OtherBackend); nothing was
    /// queued. What comes from waiting: [`KernelPanicked`](Error::KernelPanicked), after which the stream goes on.
    ///
    /// # Safety
    ///
    /// Until the kernel has left, which a wait for the launch shows and dropping the stream does not:
    ///
    /// - the arguments are what the kernel takes, and memory that it finds by other addresses than these is live;
    /// - nothing else touches the bytes that it touches, neither host code nor a transfer on any stream, except as the kernel's own
    ///   protocol says.
    pub unsafe fn launch(&self, module: &Module, name: &str, args: &[u64]) -> Result<Pending<()>> {
        self.device.owns(module.device())?;
        let entry = module.kernel(name, args.len())?;
        let (pending, done) = Pending::new();
        let launch = Launch { entry, arguments: args.into(), owners: self.device.ranges.owners(args), done };
        self.launches.fetch_add(1, Relaxed);
        self.queue(Operation::Launch(launch)).map_err(|_| Error::StreamClosed)?;
        Ok(pending)
    }

    /// Waits until everything that was queued before has been executed: for a kernel that nobody tells to end, for ever.
    ///
    /// # Errors
    ///
    /// [`StreamClosed`](Error::StreamClosed). What an operation failed with is with its [`Pending`].
    pub fn synchronize(&self) -> Result<()> {
        let (pending, done) = Pending::new();
        self.queue(Operation::Mark(done)).map_err(|_| Error::StreamClosed)?;
        pending.wait()?;
        self.device.counts.synchronizations.fetch_add(1, Relaxed);
        Ok(())
    }

    fn transfer(
        &self,
        direction: fn(Transfer) -> Operation,
        pinned: PinnedMemory,
        len: u64,
        device: &DeviceMemory,
        offset: u64,
    ) -> Result<Pending<PinnedMemory>, Rejected<PinnedMemory>> {
        let block = Arc::clone(device.block());
        let checked = (self.device.owns(&block.device))
            .and_then(|()| self.device.owns(pinned.device()))
            .and_then(|()| block.check(offset, len))
            .and_then(|()| pinned.check(len));
        if let Err(error) = checked {
            return Err(Rejected { error, value: pinned });
        }
        let (pending, done) = Pending::new();
        match self.queue(direction(Transfer { pinned, block, offset, len, done })) {
            Err(Operation::Upload(transfer) | Operation::Download(transfer)) => {
                Err(Rejected { error: Error::StreamClosed, value: transfer.pinned })
            }
            _ => Ok(pending),
        }
    }

    /// Gives back what the thread is not there to execute.
    fn queue(&self, operation: Operation) -> Result<(), Operation> {
        trace::queued(self.id, &operation);
        match &self.worker {
            Some(worker) => worker.queue.send(operation).map_err(|SendError(operation)| operation),
            None => Err(operation),
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let Some(Worker { queue, thread }) = self.worker.take() else { return };
        drop(queue);
        // SYNC POINT: launch over. Pairs with Launch::execute. Nobody queues another: `self` is borrowed mutably.
        if self.launches.load(Acquire) == 0 {
            // A thread that panicked has dropped what it had, and each `Pending` of it says so.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").field("id", &self.id).field("launches", &self.launches).finish_non_exhaustive()
    }
}
