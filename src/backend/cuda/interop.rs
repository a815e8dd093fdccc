//! Contexts, streams and memory of cudarc and other libraries: adopted by a backend, or lent to them.
//!
//! | from outside | check | kept by | end |
//! |---|---|---|---|
//! | stream | its context is the device's primary one, and it is no default stream | a queue, with the caller's value | `close_stream`; the value is dropped once the queue is |
//! | device memory | overlaps no listed range | a range, with the caller's value | `free`; the value is dropped after the uses |
//! | host memory | overlaps no listed range | [`Registered`] and a range | the drop of [`Registered`]: unlocked after the uses, and after every kernel |
//!
//! An adopted stream is not destroyed here, nor is adopted memory freed. Its owner may queue operations at any time, so a position in it is complete only after
//! an event that was recorded later. The default streams synchronise with other streams implicitly, and are refused; the legacy one can be adopted for
//! positions ([`CudaBackend::adopt_default_stream`]).
//!
//! cudarc's first stream in a context synchronises the context. So [`CudaBackend::context`] creates one before any kernel runs, and the backend keeps it.
//! Page-locking takes the budget first, then locks, then lists the range; a step that fails undoes those before it.

use core::alloc::Layout;
use core::fmt;
use core::mem::ManuallyDrop;
use core::ptr::{self, NonNull};
use std::boxed::Box;
use std::sync::{Arc, PoisonError};

use cudarc::driver::sys::{CUcontext, CUstream};
use cudarc::driver::{CudaContext, CudaStream, DriverError};

use super::device::Device;
use super::driver::{self, Handle, check};
use super::memory::Owner;
use super::queue::Queue;
use super::resources::device_shift;
use super::{CudaBackend, Inner};
use crate::backend::ranges::Range;
use crate::backend::{Backend, Block, DeviceAddress, MemoryLocation, Options, Request, StreamId, Uses};
use crate::{Error, Result};

/// `CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP`.
const EVERYWHERE: u32 = 3;

/// `CU_STREAM_LEGACY`.
const LEGACY: usize = 1;
/// `CU_STREAM_PER_THREAD`.
const PER_THREAD: usize = 2;

impl CudaBackend {
    /// Returns the ordinal of a primary cudarc context.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](Error::Unsupported) for another context; [`NoDevice`](Error::NoDevice), the driver's error.
    pub fn ordinal_of(&self, context: &CudaContext) -> Result<u32> {
        let ordinal = u32::try_from(context.ordinal()).unwrap_or(u32::MAX);
        if self.inner.device(ordinal)?.context().0 != context.cu_ctx() {
            return Err(Error::Unsupported { what: "a context other than the device's primary context" });
        }
        Ok(ordinal)
    }

    /// Returns a device's primary context for cudarc, the same at each call.
    ///
    /// # Errors
    ///
    /// [`Busy`](Error::Busy) if a kernel is queued or running at the first call; [`NoDevice`](Error::NoDevice), the driver's error.
    pub fn context(&self, device: u32) -> Result<Arc<CudaContext>> {
        // cudarc would call the driver.
        driver::check_callable("cuDevicePrimaryCtxRetain")?;
        self.inner.device(device)?;
        let _no_launches = self.inner.block_launches();
        let mut opened = self.inner.cudarc.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(stream) = opened.get(&device) {
            return Ok(Arc::clone(stream.context()));
        }
        if self.inner.has_kernels() {
            return Err(Error::Busy {
                what: "a kernel is running, and cudarc's first stream in a context waits for it: call `context` before the launch",
            });
        }
        let failed = |call| move |error: DriverError| check(call, error.0).err().unwrap_or(Error::Closed { what: "stream" });
        let context = CudaContext::new(device as usize).map_err(failed("CudaContext::new"))?;
        // cudarc synchronises the context at its first stream, and at others only if none lives.
        let stream = context.new_stream().map_err(failed("CudaContext::new_stream"))?;
        opened.insert(device, ManuallyDrop::new(stream));
        Ok(context)
    }

    /// Returns the driver's context handle, valid while this backend lives.
    ///
    /// # Errors
    ///
    /// [`NoDevice`](Error::NoDevice), the driver's error.
    pub fn raw_context(&self, device: u32) -> Result<CUcontext> {
        Ok(self.inner.device(device)?.context().0)
    }

    /// Adopts a cudarc stream; closing it waits as usual, without destroying it.
    ///
    /// Operations that cudarc queues are ordered with those here. A [position](Backend::record_position) after them covers them; an earlier
    /// [`Ticket`](crate::backend::Ticket) need not.
    ///
    /// # Errors
    ///
    /// As [`ordinal_of`](Self::ordinal_of); [`Unsupported`](Error::Unsupported) for the legacy and the per-thread default stream.
    pub fn adopt_stream(&self, stream: &Arc<CudaStream>) -> Result<StreamId> {
        let raw = check_stream(stream.cu_stream())?;
        let home = self.inner.device(self.ordinal_of(stream.context())?)?;
        Queue::adopt(home, &self.inner.counts, raw, Box::new(Arc::clone(stream))).map(|queue| self.inner.list(queue))
    }

    /// Adopts another library's stream by its handle; drops `keeps` when unused.
    ///
    /// # Errors
    ///
    /// [`NoDevice`](Error::NoDevice), the driver's error; [`Unsupported`](Error::Unsupported) for a context other than the device's primary one,
    /// for the legacy and the per-thread default stream, and without `cuStreamGetCtx`.
    ///
    /// # Safety
    ///
    /// The handle is a stream of this process until `keeps` is dropped.
    pub unsafe fn adopt_raw_stream(&self, device: u32, stream: CUstream, keeps: Box<dyn Send + Sync>) -> Result<StreamId> {
        let stream = check_stream(stream)?;
        let home = self.inner.device(device)?;
        let bound = home.bind()?;
        let mut context = ptr::null_mut();
        // SAFETY: the handle is a live stream of this process until `keeps` is dropped: the caller's promise. The call writes one handle, to a local
        // variable.
        unsafe { home.calls.cuStreamGetCtx(stream, &raw mut context) }?;
        drop(bound);
        if context != home.context().0 {
            return Err(Error::Unsupported { what: "a stream of a context other than the device's primary context" });
        }
        Queue::adopt(home, &self.inner.counts, stream, keeps).map(|queue| self.inner.list(queue))
    }

    /// Adopts the legacy default stream of a device's primary context, the stream 0 of other libraries.
    ///
    /// It is for positions, not for operations: the driver orders its operations with those of every other stream that was not created as non-blocking, such as
    /// a persistent kernel's. Streams of this backend are non-blocking.
    ///
    /// # Errors
    ///
    /// [`NoDevice`](Error::NoDevice), the driver's error.
    pub fn adopt_default_stream(&self, device: u32) -> Result<StreamId> {
        let legacy = ptr::without_provenance_mut(LEGACY);
        Queue::adopt(self.inner.device(device)?, &self.inner.counts, legacy, Box::new(())).map(|queue| self.inner.list(queue))
    }

    /// Returns a stream's driver handle, valid until it is closed. Operations that others queue on it are covered by later
    /// [positions](Backend::record_position), as on an adopted stream.
    ///
    /// # Errors
    ///
    /// [`Closed`](Error::Closed).
    pub fn raw_stream(&self, stream: StreamId) -> Result<CUstream> {
        let queue = self.inner.stream(stream)?;
        // The driver may reuse a closed stream's handle while it is still listed.
        if queue.is_closed() { Err(Error::Closed { what: "stream" }) } else { Ok(queue.lend()) }
    }

    /// Adopts device memory as a block; freeing it drops `keeps`, after its uses.
    ///
    /// # Errors
    ///
    /// [`NoDevice`](Error::NoDevice), the driver's error; [`Size`](Error::Size) for no bytes, [`Unsupported`](Error::Unsupported) for
    /// listed memory.
    ///
    /// # Safety
    ///
    /// The bytes are that device's memory until `keeps` is dropped; streams order other accesses with this backend's.
    pub unsafe fn adopt(&self, device: u32, address: DeviceAddress, layout: Layout, keeps: Box<dyn Send + Sync>) -> Result<Block> {
        self.inner.device(device)?;
        let place = NonNull::new(ptr::without_provenance_mut(address.get() as usize));
        let (Some(place), 1..) = (place, layout.size()) else {
            return Err(Error::Size { what: "size in bytes", asked: layout.size() as u64, least: 1, most: isize::MAX as u64 });
        };
        self.inner.check_new(address.get(), layout)?;
        let request = Request { location: MemoryLocation::Device, device, layout, options: Options::empty() };
        Ok(self.inner.list_range(address.get(), Range::of(&request, place, Owner::Adopted(keeps))))
    }

    /// Page-locks another allocator's host memory for every device; copies are then as fast as pinned ones.
    ///
    /// # Errors
    ///
    /// As [`adopt`](Self::adopt), and [`Limit`](Error::Limit).
    ///
    /// # Safety
    ///
    /// The bytes are valid until unlocked: after the returned value, its uses and every running kernel of this backend.
    /// [`waiting`](Self::waiting) is 0 then.
    pub unsafe fn register(self: &Arc<Self>, device: u32, place: NonNull<u8>, bytes: usize) -> Result<Registered> {
        let home = self.inner.device(device)?;
        let layout = Layout::from_size_align(bytes, 1).ok().filter(|layout| layout.size() > 0);
        let Some(layout) = layout else {
            return Err(Error::Size { what: "size in bytes", asked: bytes as u64, least: 1, most: isize::MAX as u64 });
        };
        let start = place.as_ptr().addr() as u64;
        self.inner.check_new(start, layout)?;
        self.inner.budget.take(bytes as u64)?;
        // SAFETY: the bytes are valid until they are unregistered: the caller promises it until the uses are complete, and `Deferred` unregisters after them.
        let shift = unsafe { register_bytes(home, place, bytes) }.inspect_err(|_| self.inner.budget.give(bytes as u64))?;
        let request = Request { location: MemoryLocation::Pinned, device, layout, options: Options::empty() };
        let block = self.inner.list_range(start, Range { shift, ..Range::of(&request, place, Owner::Registered(Handle(place.as_ptr()))) });
        Ok(Registered { backend: Arc::clone(self), block, uses: Uses::NONE })
    }
}

fn check_stream(stream: CUstream) -> Result<CUstream> {
    match stream.addr() {
        0 | LEGACY => Err(Error::Unsupported { what: "the legacy default stream" }),
        PER_THREAD => Err(Error::Unsupported { what: "the per-thread default stream" }),
        _ => Ok(stream),
    }
}

/// Returns device minus host address.
///
/// # Safety
///
/// The bytes are valid until unregistered.
unsafe fn register_bytes(home: &Device, place: NonNull<u8>, bytes: usize) -> Result<u64> {
    let _bound = home.bind()?;
    // SAFETY: the bytes are valid until they are unregistered: the caller's promise.
    unsafe { home.calls.cuMemHostRegister_v2(place.as_ptr().cast(), bytes, EVERYWHERE) }?;
    // SAFETY: the bytes were just registered, and mapped for every device.
    unsafe { device_shift(home.calls, place) }.inspect_err(|_| {
        // SAFETY: the bytes were just registered, and nothing uses them yet.
        let _ = unsafe { home.calls.cuMemHostUnregister(place.as_ptr().cast()) };
    })
}

impl Inner {
    fn check_new(&self, address: u64, layout: Layout) -> Result<()> {
        driver::check_not_forked("cuMemHostRegister_v2")?;
        if self.ranges.read().overlaps(address, layout.size() as u64) {
            return Err(Error::Unsupported { what: "memory that is already registered with this backend" });
        }
        Ok(())
    }
}

/// Host memory that stays page-locked until dropped, or longer under a kernel.
///
/// ```
/// use std::ptr::NonNull;
///
/// use ringmem::backend::cuda::CudaBackend;
///
/// let mut bytes = vec![0_u8; 1 << 20];
/// match CudaBackend::open() {
///     Ok(backend) => {
///         // SAFETY: the bytes outlive the returned value, and no kernel runs.
///         let registered = unsafe { backend.register(0, NonNull::from(&mut bytes[..]).cast(), bytes.len()) }?;
///         assert!(registered.block().is_pinned);
///     }
///     Err(error) => println!("{error}"),
/// }
/// # Ok::<(), ringmem::Error>(())
/// ```
pub struct Registered {
    backend: Arc<CudaBackend>,
    block: Block,
    uses: Uses,
}

impl Registered {
    /// Returns it as a pinned block.
    #[must_use]
    pub const fn block(&self) -> &Block {
        &self.block
    }

    /// Returns the uses after which it is unlocked.
    pub const fn uses(&mut self) -> &mut Uses {
        &mut self.uses
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // SAFETY: the block is freed only here. The owner has added its uses: the promise of `register`.
        if let Err(error) = unsafe { self.backend.free(&self.block, &self.uses) } {
            self.backend.unreported(error);
        }
    }
}

impl fmt::Debug for Registered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Registered").field(&self.block).finish()
    }
}
