use core::ffi::c_int;
use core::fmt;
use core::time::Duration;
use core::{iter, ptr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;
use std::vec::Vec;

use super::super::call::Handle;
use super::super::device::Device;
use super::super::queue::Queue;
use super::super::{CudaBackend, LEAVING, process};
use super::collective::Collective;
use super::library::{Calls, Comm, IN_PROGRESS, UniqueId, checked, library};
use crate::backend::{Backend, Place, Ticket};
use crate::stream::{Operand, Pending, Queued, Stream};
use crate::{Error, Rejected, Result};

const POLL: Duration = Duration::from_millis(1);

/// One rank of a group of devices that operate together.
///
/// Each thread may use it; its calls take turns. The [module](super) has an example with one thread. With a thread or a process per rank:
///
/// ```no_run
/// use std::sync::Arc;
///
/// use ringmem::backend::cuda::CudaBackend;
/// use ringmem::backend::cuda::nccl::{Communicator, Reduce, UniqueId};
/// use ringmem::memory::GpuBuffer;
/// use ringmem::stream::Stream;
///
/// /// All ranks call it, with the number that one of them made.
/// fn sum(backend: &Arc<CudaBackend>, rank: u32, id: UniqueId, buffer: GpuBuffer<f32>) -> ringmem::Result<GpuBuffer<f32>> {
///     let communicator = Communicator::new(backend, rank, id, 8, rank)?; // device `rank`, of 8 ranks
///     let stream = Stream::new(backend, rank)?;
///     let buffer = communicator.wait(communicator.on(&stream, buffer).all_reduce(Reduce::Sum, ..).queue()?)?;
///     communicator.close()?;
///     Ok(buffer)
/// }
/// ```
///
/// # Dropping
///
/// Waits 2 seconds for its queued operations and for every kernel of the process. Then, or after an error, it aborts incomplete operations,
/// or leaks the communicator under another kernel; the error is counted as unreported.
pub struct Communicator {
    pub(super) backend: Arc<CudaBackend>,
    pub(super) library: &'static Calls,
    pub(super) device: Arc<Device>,
    pub(super) id: UniqueId,
    pub(super) rank: u32,
    pub(super) ranks: u32,
    state: Mutex<State>,
}

pub(super) struct State {
    comm: Option<Handle<core::ffi::c_void>>,
    failure: Option<Error>,
    pub flights: Vec<Flight>,
}

pub(super) struct Flight {
    pub queue: Arc<Queue>,
    pub ticket: Ticket,
    pub written: Vec<(Place, u64)>,
}

impl Communicator {
    /// Makes one rank of a communicator, in any thread or process, and waits until all ranks are made.
    ///
    /// # Errors
    ///
    /// [`NoNccl`](Error::NoNccl), [`NoDevice`](Error::NoDevice); [`Size`](Error::Size) for no ranks, or a rank not below their number;
    /// [`Busy`](Error::Busy) while a kernel is queued or running; the error of NCCL or the driver.
    pub fn new(backend: &Arc<CudaBackend>, device: u32, id: UniqueId, ranks: u32, rank: u32) -> Result<Self> {
        let mut made = Self::made(backend, &[device], id, ranks, rank)?;
        made.pop().ok_or(Error::Closed { what: "communicator" })
    }

    /// Makes a communicator whose ranks are these devices, in this order.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new); [`Size`](Error::Size) for no devices, [`Unsupported`](Error::Unsupported) for a repeated device.
    pub fn all(backend: &Arc<CudaBackend>, devices: &[u32]) -> Result<Vec<Self>> {
        let ranks = u32::try_from(devices.len()).unwrap_or(u32::MAX);
        within("number of devices", ranks, 1, backend.devices())?;
        if (1..devices.len()).any(|index| devices[..index].contains(&devices[index])) {
            return Err(Error::Unsupported { what: "one device as two ranks of a communicator" });
        }
        Self::made(backend, devices, UniqueId::new()?, ranks, 0)
    }

    fn made(backend: &Arc<CudaBackend>, devices: &[u32], id: UniqueId, ranks: u32, first: u32) -> Result<Vec<Self>> {
        let library = library()?;
        within("number of ranks", ranks, 1, c_int::MAX.cast_unsigned())?;
        within("rank", first, 0, ranks - 1)?;
        let homes = devices.iter().map(|&device| backend.shared.device(device).cloned()).collect::<Result<Vec<_>>>()?;
        if backend.shared.has_kernels() {
            return Err(Error::Busy { what: "a kernel is queued or running, and making a communicator may wait for it" });
        }
        let mut comms: Vec<Comm> = devices.iter().map(|_| ptr::null_mut()).collect();
        // After an error, NCCL's own state of them is unknown: they are leaked.
        grouped(library, homes.len(), || {
            iter::zip(&homes, &mut comms).zip(first..).try_for_each(|((home, comm), rank)| {
                let _bound = home.bind()?;
                // SAFETY: writes one handle, at the latest when the group ends.
                unsafe { library.ncclCommInitRank(comm, ranks as c_int, id, rank as c_int) }
            })
        })?;
        let made = iter::zip(homes, comms).zip(first..).map(|((device, comm), rank)| Self {
            backend: Arc::clone(backend),
            library,
            device,
            id,
            rank,
            ranks,
            state: Mutex::new(State { comm: Some(Handle(comm)), failure: None, flights: Vec::new() }),
        });
        Ok(made.collect())
    }

    /// Returns the rank.
    #[must_use]
    pub const fn rank(&self) -> u32 {
        self.rank
    }

    /// Returns the number of ranks.
    #[must_use]
    pub const fn ranks(&self) -> u32 {
        self.ranks
    }

    /// Returns the ordinal of its device.
    #[must_use]
    pub fn device(&self) -> u32 {
        self.device.ordinal
    }

    /// Begins operations on a buffer or lease in device memory, which they own.
    pub fn on<'a, T: Operand>(&'a self, stream: &'a Stream, operand: T) -> Collective<'a, T> {
        Collective::new(self, stream, operand)
    }

    /// Returns an asynchronous error. Operations in flight may then never end: [`abort`](Self::abort).
    ///
    /// # Errors
    ///
    /// [`Nccl`](Error::Nccl); the first error also later. [`Closed`](Error::Closed) after an abort.
    pub fn check(&self) -> Result<()> {
        process::takes_locks("ncclCommGetAsyncError")?;
        self.poll(&mut self.state())
    }

    /// Waits for an operation of this communicator. After an asynchronous error, aborts both.
    ///
    /// # Errors
    ///
    /// The operand, with the error of the operation or of [`check`](Self::check).
    pub fn wait<T: Queued>(&self, mut pending: Pending<T>) -> Result<T, Rejected<T>> {
        loop {
            match pending.wait_timeout(POLL) {
                Ok(outcome) => return outcome,
                Err(still) => pending = still,
            }
            let Err(error) = self.check() else { continue };
            let error = self.state().end(self, &error).err().unwrap_or(error);
            return pending.wait_timeout(LEAVING).unwrap_or_else(|pending| Err(Rejected { error, value: pending.ordered() }));
        }
    }

    /// Ends the communicator; its incomplete operations fail. The other ranks get an asynchronous error and must abort too.
    ///
    /// # Errors
    ///
    /// The error of NCCL or the driver.
    pub fn abort(&self) -> Result<()> {
        process::takes_locks("ncclCommAbort")?;
        self.state().end(self, &Error::Closed { what: "communicator" })
    }

    /// Ends the communicator after its operations and every kernel of the process.
    ///
    /// # Errors
    ///
    /// The error of [`check`](Self::check): incomplete operations were aborted. The error of NCCL or the driver.
    pub fn close(self) -> Result<()> {
        process::takes_locks("ncclCommDestroy")?;
        self.finish(None)
    }

    fn finish(&self, patience: Option<Duration>) -> Result<()> {
        let begun = Instant::now();
        loop {
            let is_late = patience.is_some_and(|patience| begun.elapsed() >= patience);
            let mut state = self.state();
            if state.comm.is_none() {
                return Ok(());
            }
            if let Err(error) = self.poll(&mut state) {
                return state.end(self, &error).and(Err(error));
            }
            state.forget();
            match (state.flights.is_empty(), self.backend.shared.has_kernels()) {
                (true, false) => {
                    let Some(comm) = state.comm.take() else { return Ok(()) };
                    let _bound = self.device.bind()?;
                    // SAFETY: a live communicator, used no more.
                    return unsafe { self.library.ncclCommDestroy(comm.0) };
                }
                (false, _) if is_late => {
                    let error = Error::Busy { what: "operations of a dropped communicator are incomplete; they were aborted" };
                    return state.end(self, &error).and(Err(error));
                }
                (true, true) if is_late => {
                    state.comm = None;
                    return Err(Error::Busy { what: "a kernel is running, so a dropped communicator was leaked" });
                }
                _ => {}
            }
            drop(state);
            thread::sleep(POLL);
        }
    }

    fn poll(&self, state: &mut State) -> Result<()> {
        let comm = state.open()?;
        let mut code = 0;
        // SAFETY: a live communicator; writes one integer.
        let said = unsafe { self.library.ncclCommGetAsyncError(comm, &raw mut code) };
        let said = said.and_then(|()| checked("ncclCommGetAsyncError", if code == IN_PROGRESS { 0 } else { code }));
        said.inspect_err(|error| state.failure = Some(again(error)))
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    pub fn open(&self) -> Result<Comm> {
        match (&self.failure, self.comm) {
            (Some(error), _) => Err(again(error)),
            (None, Some(comm)) => Ok(comm.0),
            (None, None) => Err(Error::Closed { what: "communicator" }),
        }
    }

    pub fn forget(&mut self) {
        self.flights.retain(|flight| !flight.queue.reached(flight.ticket.number));
    }

    /// Marks incomplete operations as failed, then aborts: a waiter must not see a success.
    pub fn end(&mut self, of: &Communicator, error: &Error) -> Result<()> {
        let Some(comm) = self.comm.take() else { return Ok(()) };
        self.failure.get_or_insert_with(|| again(error));
        self.forget();
        self.flights.drain(..).for_each(|flight| flight.fail(of, error));
        let _bound = of.device.bind()?;
        // SAFETY: a live communicator, used no more.
        unsafe { of.library.ncclCommAbort(comm.0) }
    }
}

impl Flight {
    /// If the memory already has a new owner, its contents become invalid too, until written.
    pub fn fail(self, of: &Communicator, error: &Error) {
        let taints = of.backend.shared.ranges.taints();
        self.written.iter().for_each(|&(place, bytes)| taints.add(place, bytes, self.ticket, error));
        self.queue.fail(self.ticket.number, again(error));
    }
}

pub(super) fn again(error: &Error) -> Error {
    match *error {
        Error::Nccl { call, code, name } => Error::Nccl { call, code, name },
        Error::Driver { call, code, name, .. } => Error::Driver { call, code, name, log: None },
        Error::Busy { what } => Error::Busy { what },
        _ => Error::Closed { what: "communicator" },
    }
}

pub(super) fn grouped(library: &Calls, calls: usize, run: impl FnOnce() -> Result<()>) -> Result<()> {
    if calls < 2 {
        return run();
    }
    // SAFETY: ended below, in this thread.
    unsafe { library.ncclGroupStart() }?;
    let outcome = run();
    // SAFETY: begun above; the places of the calls are live.
    let ended = unsafe { library.ncclGroupEnd() };
    outcome.and(ended)
}

pub(super) fn within(what: &'static str, asked: u32, least: u32, most: u32) -> Result<()> {
    if (least..=most).contains(&asked) {
        return Ok(());
    }
    let [asked, least, most] = [asked, least, most].map(u64::from);
    Err(Error::Size { what, asked, least, most })
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if !process::is_home() {
            return;
        }
        let is_known = self.state().failure.is_some();
        match self.finish(Some(LEAVING)) {
            Err(error) if !is_known => self.backend.unreported(error),
            _ => {}
        }
    }
}

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, ranks, device, .. } = self;
        f.debug_struct("Communicator").field("rank", rank).field("ranks", ranks).field("device", &device.ordinal).finish_non_exhaustive()
    }
}
