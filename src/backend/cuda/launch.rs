//! Kernels: images loaded once per device, launches, and which persistent kernels are resident.
//!
//! Nothing waits for a running kernel:
//!
//! 1. A module stays loaded as long as the backend.
//! 2. Every function is loaded with its module, not at its first launch, if the driver has `cuFuncLoad`.
//! 3. While a persistent kernel runs, a kernel that needs more local memory than any before is refused.
//! 4. Loading while a kernel runs is refused.
//!
//! # Launches and calls that would wait for a kernel
//!
//! Some driver calls synchronise with every kernel (see `deferred.rs`). Such a call must know that no kernel is queued, until it returns. A lock in each launch
//! would be too slow, so there are two ways to launch, chosen by the counter `Launching::slow_reasons`:
//!
//! | way | if | locks |
//! |---|---|---|
//! | fast | `slow_reasons` is 0, read under the queue's lock | the queue's |
//! | slow | otherwise, and for each persistent kernel | `Occupancy`, then `Launching::lock` for reading, then the queue's |
//!
//! [`Inner::require_slow_launches`] increments the counter, then takes and releases each queue's lock: a fast launch that still read 0 is queued by then, and
//! later ones are slow. [`Inner::block_launches`] also holds `Launching::lock` for writing: until the guard is dropped, no thread queues a kernel. A reason
//! ends when it is dropped; that of a persistent kernel lasts until [`Inner::find_place`] finds the kernel complete. Only a slow launch on the kernel's own
//! device looks for that: after the kernel's end, launches on all devices stay slow until then.
//!
//! # Order of a launch
//!
//! Checks come first (operands, stream, kernel, which may load its module on this device, grid, then residency and local memory), and each returns an error
//! with nothing queued. A persistent
//! kernel holds the `Occupancy` lock from its check until it is listed: two kernels that fit alone may not fit together. If the driver's call fails, the
//! reason is dropped and nothing is listed.
//!
//! # Blocks and threads
//!
//! | launch | blocks of | number of blocks | beside persistent kernels |
//! |---|---|---|---|
//! | of groups | one warp, or as many as the caller says: 32 threads by so many, which the device code tells from those over elements by `%ntid.x` | the caller's | all must fit at once: they may wait for each other |
//! | over elements ([`Elements`]) | several warps | as many as run at once on an idle device, at most one thread an element | one must fit: a block starts when another ends. Without a size from the caller, the threads of a block are halved until one fits |
//!
//! Each thread of a launch over elements steps by the number of threads, so that any shape processes each element once. With the default shape, the threads of
//! a block are halved until there are as many blocks as multiprocessors, or until they are 64 or no multiple of 64 (768 end at 96). `find_place` decides next
//! to persistent kernels, with the same limit.

use core::cell::Cell;
use core::cmp::Reverse;
use core::ptr;
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::{Relaxed, Release};
use std::boxed::Box;
use std::ffi::{CString, c_int, c_void};
use std::string::String;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread::LocalKey;
use std::vec::Vec;

use cudarc::driver::sys::{CUfunc_st, CUfunction, CUmod_st};
use ringmem_layouts::grid::MOST_THREADS;
use ringmem_layouts::image::Entry;
use ringmem_layouts::{Abi, Image};

use super::Inner;
use super::device::Device;
use super::driver::{Calls, Handle};
use super::lookup::{Cached, CachedTable, ThreadCache};
use super::occupancy::{Fit, Resident};
use super::queue::{Length, Queue, State};
use crate::backend::{Elements, Launch, ModuleId, StreamId, Ticket, entry};
use crate::{Error, Result};

/// Arguments of a launch without a heap allocation.
const INLINE_ARGUMENTS: usize = 16;

const WARP: u32 = 32;

/// `CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK`.
const MOST_THREADS_OF_BLOCK: c_int = 0;

/// `CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES`.
const LOCAL_SIZE: c_int = 3;

/// Images by module number. An image that is loaded again is found in `images`, and gets a further number. INVARIANT: what an image in `images` has loaded
/// stays loaded until the backend ends, also without a number. An image that failed to load is listed, with nothing loaded.
#[derive(Default)]
pub(super) struct Modules {
    images: Mutex<Vec<Arc<LoadedImage>>>,
    by_id: CachedTable<ModuleId, LoadedImage>,
}

impl Modules {
    pub fn remove(&self, module: ModuleId) {
        self.by_id.remove(module);
    }

    /// Finds the image, or lists it: threads that load one image at the same time get one entry.
    fn of(&self, image: &Image, devices: u32) -> Arc<LoadedImage> {
        let mut images = self.images();
        if let Some(known) = images.iter().find(|known| is_same(&known.image, image)) {
            return Arc::clone(known);
        }
        let per_device = (0..devices).map(|_| OnceLock::new()).collect();
        let listed = Arc::new(LoadedImage { image: *image, per_device, loading: Mutex::default() });
        images.push(Arc::clone(&listed));
        listed
    }

    fn images(&self) -> MutexGuard<'_, Vec<Arc<LoadedImage>>> {
        self.images.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct LoadedImage {
    image: Image,
    per_device: Vec<OnceLock<DeviceModule>>,
    loading: Mutex<()>,
}

impl Cached for LoadedImage {
    type Key = ModuleId;

    fn cache() -> &'static LocalKey<ThreadCache<ModuleId, Self>> {
        thread_local!(static CACHE: ThreadCache<ModuleId, LoadedImage> = const { ThreadCache::new() });
        &CACHE
    }
}

struct DeviceModule {
    module: Handle<CUmod_st>,
    kernels: Vec<Kernel>,
}

#[derive(Clone, Copy)]
struct Kernel {
    function: Handle<CUfunc_st>,
    /// Of blocks of one warp.
    fit: Fit,
    /// The threads of a block with the highest occupancy, and what fits of such blocks.
    largest: (u32, Fit),
    /// Of a block, by the kernel's registers.
    most_threads: u32,
    local_bytes: u32,
}

const OF_ELEMENTS: &str = "threads of a block of this kernel";

struct Shape {
    blocks: u32,
    /// Of a block, in two dimensions.
    threads: [u32; 2],
    fit: Fit,
}

impl Kernel {
    /// See "Blocks and threads" above. The context is current.
    fn shape(&self, launch: &Launch<'_>, device: &Device) -> Result<Shape> {
        let Launch { groups, warps, .. } = *launch;
        if let Some(elements) = &launch.elements {
            elements.check()?;
            let (most, fit) = self.largest;
            if elements.threads > self.most_threads {
                return Err(self.too_many(elements.threads, 1, OF_ELEMENTS));
            }
            return Ok(Self::over(elements, most, fit));
        }
        launch.check_warps()?;
        let fit = if warps == 1 { self.fit } else { self.fit_of(WARP * warps, WARP, "warps of a group of this kernel", device)? };
        fit.check(groups)?;
        Ok(Shape { blocks: groups, threads: [WARP, warps], fit })
    }

    /// The shape of a launch over elements, with `most` threads in a block unless the caller has chosen. `fit` is that of blocks of `most` threads.
    fn over(elements: &Elements<'_>, most: u32, fit: Fit) -> Shape {
        let mut threads = if elements.threads > 0 { elements.threads } else { most };
        while elements.threads == 0
            && threads.is_multiple_of(2 * WARP)
            && threads > Elements::LEAST_THREADS
            && elements.count / u64::from(threads) < fit.processors.into()
        {
            threads /= 2;
        }
        let wanted = u32::try_from(elements.count.div_ceil(threads.max(1).into())).unwrap_or(u32::MAX);
        // Smaller blocks than `most`: as many threads as of these. What does not run at once runs later.
        let at_once = u64::from(fit.max_groups()) * u64::from(most) / u64::from(threads.max(1));
        let at_once = u32::try_from(at_once).unwrap_or(u32::MAX).max(1);
        let blocks = if elements.blocks > 0 { elements.blocks } else { wanted.clamp(1, at_once) };
        // The device numbers its threads with 32 bits.
        let blocks = blocks.min(MOST_THREADS / threads.max(1));
        Shape { blocks, threads: [threads, 1], fit }
    }

    /// What fits of blocks of so many threads. The error counts in units of so many threads.
    fn fit_of(&self, threads: u32, unit: u32, what: &'static str, device: &Device) -> Result<Fit> {
        let per_processor = blocks_of(device.calls, self.function.0, threads)?;
        if per_processor == 0 {
            return Err(self.too_many(threads, unit, what));
        }
        Ok(Fit { per_processor, ..self.fit })
    }

    /// The error of more threads than a block of this kernel can have, in units of so many.
    fn too_many(&self, threads: u32, unit: u32, what: &'static str) -> Error {
        Error::Size { what, asked: (threads / unit).into(), least: 1, most: u64::from(self.most_threads) / u64::from(unit) }
    }
}

/// Blocks of so many threads that fit on a multiprocessor.
fn blocks_of(calls: &Calls, function: CUfunction, threads: u32) -> Result<u32> {
    let mut blocks = 0;
    // SAFETY: the function is of a loaded module. The call writes one integer, to a local variable.
    unsafe { calls.cuOccupancyMaxActiveBlocksPerMultiprocessor(&raw mut blocks, function, threads.cast_signed(), 0) }?;
    Ok(blocks.try_into().unwrap_or(0))
}

impl Inner {
    pub(super) fn load_image(&self, image: &Image, expected: &Abi) -> Result<ModuleId> {
        if image.abi.hash != expected.hash {
            return Err(Error::Abi { expected: *expected, got: image.abi });
        }
        let loaded = self.modules.of(image, self.devices());
        if !loaded.is_on_any_device() {
            let first = (0..self.devices()).find(|&ordinal| self.is_open(ordinal)).unwrap_or(0);
            loaded.on(self, self.device(first)?)?;
        }
        let id = ModuleId::next();
        self.modules.by_id.insert(id, loaded);
        Ok(id)
    }

    /// Unloads the modules of a device, from which no thread launches any more.
    pub(super) fn unload_all(&self, device: &Device) {
        self.modules.images().iter().for_each(|image| image.unload(device));
    }

    /// # Safety
    ///
    /// As `Backend::launch`.
    pub(super) unsafe fn launch_queued(&self, launch: &Launch<'_>, on: StreamId) -> Result<Ticket> {
        let Launch { module, name, arguments, stays, operands, elements, .. } = *launch;
        operands.iter().try_for_each(|operand| self.ranges.taints().check(operand.address, operand.bytes))?;
        let queue = self.stream(on)?;
        let kernel = self.kernel(module, name, arguments.len(), &queue.device)?;
        let bound = queue.device.bind()?;
        let mut shape = kernel.shape(launch, &queue.device)?;
        let (mut occupancy, mut reason, mut launching) = (None, None, None);
        let state = match if stays { None } else { self.launching.try_fast(&queue) } {
            Some(state) => state,
            None => {
                let mut others = queue.device.occupancy.lock();
                shape = self.find_place(shape, &kernel, launch, &mut others, &queue.device, on)?;
                if kernel.local_bytes > queue.device.local_bytes.load(Relaxed) && !others.is_empty() {
                    return Err(Error::Busy {
                        what: "a persistent kernel is running, and allocating more local memory for this one may wait for it: launch this one once before the persistent kernel",
                    });
                }
                if stays {
                    // Two kernels that fit alone may not fit together.
                    (occupancy, reason) = (Some(others), Some(self.require_slow_launches()));
                }
                launching = Some(self.launching.slow());
                // `others`, unless kept, is unlocked after the queue is locked. The next persistent launch that gets it waits for this queue in
                // `require_slow_launches`: it is queued after this kernel, for which the local memory was checked.
                queue.state()
            }
        };
        let Shape { blocks, threads: [columns, rows], fit } = shape;
        let number = queue.push_bound(&bound, state, None, Length::Kernel, None, |op| {
            let (mut few, mut many) = ([ptr::null_mut::<c_void>(); INLINE_ARGUMENTS], Vec::new());
            let places = if arguments.len() > INLINE_ARGUMENTS {
                many.resize(arguments.len(), ptr::null_mut());
                many.as_mut_slice()
            } else {
                few.as_mut_slice()
            };
            // A parameter of several words is passed by the address of its first.
            let words = elements.map_or(&[][..], |elements| elements.words);
            let (mut words, mut rest) = (words.iter().map(|&words| usize::from(words)), arguments);
            for place in &mut *places {
                let Some((first, others)) = rest.split_first() else { break };
                *place = (&raw const *first).cast_mut().cast();
                rest = others.get(words.next().unwrap_or(1).saturating_sub(1)..).unwrap_or_default();
            }
            let places = places.as_mut_ptr();
            let (calls, function) = (queue.device.calls, kernel.function.0);
            op.call(|stream| {
                // Whether a cooperative grid overlaps a persistent one is undocumented; so only persistent grids, whose blocks wait for each other, are
                // cooperative.
                if stays && blocks > 1 && queue.device.facts.cooperative {
                    // SAFETY: the function is of a loaded module. `places` has a pointer for each parameter, to its words, whose number `kernel` checked, and
                    // the driver copies them. The caller promises that the memory which the kernel accesses is valid until it is complete.
                    unsafe { calls.cuLaunchCooperativeKernel(function, blocks, 1, 1, columns, rows, 1, 0, stream, places) }
                } else {
                    // SAFETY: the function is of a loaded module. `places` has a pointer for each parameter, to its words, whose number `kernel` checked, and
                    // the driver copies them. The caller promises that the memory which the kernel accesses is valid until it is complete.
                    unsafe { calls.cuLaunchKernel(function, blocks, 1, 1, columns, rows, 1, 0, stream, places, ptr::null_mut()) }
                }
            })
        })?;
        if kernel.local_bytes > 0 {
            queue.device.local_bytes.fetch_max(kernel.local_bytes, Relaxed);
        }
        let ticket = Ticket { stream: on, number };
        drop(launching);
        if let (Some(occupancy), Some(reason)) = (&mut occupancy, reason) {
            occupancy.push(Resident::new(ticket, fit, blocks));
            reason.keep();
        }
        self.counts.launches.fetch_add(1, Relaxed);
        Ok(ticket)
    }

    /// Finds a thread's last kernels without a lock, since none is unloaded before the backend's end.
    fn kernel(&self, module: ModuleId, name: &str, arguments: usize, device: &Device) -> Result<Kernel> {
        let stamp = self.modules.by_id.now();
        let is_match = |known: &CachedKernel| {
            known.stamp == stamp
                && known.module == module
                && known.ordinal == device.ordinal
                && known.entry.name == name
                && known.entry.arguments == arguments
        };
        let known = CACHED_KERNELS.with(|known| known.rows.iter().filter_map(Cell::get).find(is_match));
        if let Some(known) = known {
            return Ok(known.kernel);
        }
        let loaded = self.modules.by_id.get(module);
        let entries = loaded.as_ref().map_or(&[][..], |loaded| loaded.image.host);
        let entry = entry(entries, name, arguments)?;
        let unknown = || Error::NotFound { what: "kernel", name: name.into(), known: crate::backend::operation::names(entries) };
        let on_device = loaded.as_ref().ok_or_else(unknown)?.on(self, device)?;
        let place = entries.iter().position(|other| ptr::eq(other, entry));
        let kernel = *place.and_then(|place| on_device.kernels.get(place)).ok_or_else(unknown)?;
        CACHED_KERNELS.with(|known| {
            let next = known.next.replace((known.next.get() + 1) % known.rows.len());
            known.rows[next].set(Some(CachedKernel { stamp, module, ordinal: device.ordinal, entry, kernel }));
        });
        Ok(kernel)
    }
}

#[derive(Clone, Copy)]
struct CachedKernel {
    stamp: u64,
    module: ModuleId,
    ordinal: u32,
    entry: &'static Entry,
    kernel: Kernel,
}

struct KernelCache {
    rows: [Cell<Option<CachedKernel>>; 4],
    next: Cell<usize>,
}

thread_local! {
    static CACHED_KERNELS: KernelCache = const { KernelCache { rows: [const { Cell::new(None) }; 4], next: Cell::new(0) } };
}

/// Addresses do not identify an image: a constant has one per use.
fn is_same(one: &Image, other: &Image) -> bool {
    let shape = |image: &Image| image.host.iter().map(|entry| (entry.name, entry.arguments)).collect::<Vec<_>>();
    one.abi.hash == other.abi.hash && one.ptx == other.ptx && shape(one) == shape(other)
}

impl LoadedImage {
    fn is_on_any_device(&self) -> bool {
        self.per_device.iter().any(|on_device| on_device.get().is_some())
    }

    /// Loads it on the device, if it is not loaded there.
    fn on(&self, backend: &Inner, device: &Device) -> Result<&DeviceModule> {
        let Some(place) = self.per_device.get(device.ordinal as usize) else {
            return Err(Error::NoDevice { asked: device.ordinal, devices: self.per_device.len() as u32 });
        };
        if let Some(on_device) = place.get() {
            return Ok(on_device);
        }
        let _loading = self.loading.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(on_device) = place.get() {
            return Ok(on_device);
        }
        let _bound = device.bind()?;
        // All launches of the backend wait meanwhile, on every device: a compilation may take seconds. After a failure nothing is loaded here, and the next
        // use compiles again.
        let _no_launches = backend.block_launches();
        if backend.has_kernels() {
            return Err(Error::Busy { what: "a kernel is running, and loading a module may wait for it: load modules first" });
        }
        let on_device = DeviceModule::load(device, &self.image)?;
        Ok(place.get_or_init(|| on_device))
    }

    fn unload(&self, device: &Device) {
        if let Some(on_device) = self.per_device.get(device.ordinal as usize).and_then(OnceLock::get) {
            on_device.unload(device.calls);
        }
    }
}

impl DeviceModule {
    fn load(device: &Device, image: &Image) -> Result<Self> {
        let calls = device.calls;
        if image.ptx.is_empty() {
            return Err(Error::Unsupported {
                what: "an image without PTX (its kernels are compiled for the host alone: a build script with `ringmem_ptx_builder::embed` compiles those of its package's library)",
            });
        }
        let module = compile(calls, image.ptx)?;
        let mut on_device = Self { module, kernels: Vec::with_capacity(image.host.len()) };
        let filled = on_device.check_abi(device, image).and_then(|()| {
            for entry in image.host {
                on_device.kernels.push(on_device.kernel(device, entry)?);
            }
            Ok(())
        });
        match filled {
            Ok(()) => Ok(on_device),
            Err(error) => {
                on_device.unload(calls);
                Err(error)
            }
        }
    }

    fn check_abi(&self, device: &Device, image: &Image) -> Result<()> {
        let (mut address, mut bytes) = (0, 0);
        // SAFETY: the module is loaded, and the name ends with 0. The call writes two integers, to local variables.
        unsafe { device.calls.cuModuleGetGlobal_v2(&raw mut address, &raw mut bytes, self.module.0, c"RINGMEM_ABI".as_ptr()) }?;
        let hash = if bytes == size_of::<u64>() {
            device.run_and_wait(|internal| {
                // SAFETY: the global has 8 bytes. The stream's word is exclusive to this call until the stream is synchronised.
                unsafe {
                    device.calls.cuMemcpyDtoHAsync_v2(internal.word().as_ptr().cast(), address, size_of::<u64>(), internal.stream())
                }?;
                // SAFETY: the stream is held by this call.
                unsafe { device.calls.cuStreamSynchronize(internal.stream()) }?;
                // SAFETY: the driver has written the word, which is exclusive to this call.
                Ok(unsafe { internal.word().read() })
            })?
        } else {
            0
        };
        if hash == image.abi.hash {
            return Ok(());
        }
        Err(Error::Abi { expected: image.abi, got: Abi { layouts: &[], hash } })
    }

    fn kernel(&self, device: &Device, entry: &Entry) -> Result<Kernel> {
        let calls = device.calls;
        let Ok(name) = CString::new(entry.name) else { return Err(Error::Unsupported { what: "a kernel name with a NUL byte" }) };
        let mut function: CUfunction = ptr::null_mut();
        // SAFETY: the module is loaded, and the name ends with 0. The call writes one handle, to a local variable.
        unsafe { calls.cuModuleGetFunction(&raw mut function, self.module.0, name.as_ptr()) }?;
        if calls.cuFuncLoad.is_some() {
            // SAFETY: the function is of a loaded module.
            unsafe { calls.cuFuncLoad(function) }?;
        }
        let processors = device.facts.processors;
        let fit = Fit { per_processor: blocks_of(calls, function, WARP)?, processors };
        let (mut blocks, mut threads) = (0, 0);
        // SAFETY: the function is of a loaded module, and needs no shared memory. The call writes two integers, to local variables.
        unsafe { calls.cuOccupancyMaxPotentialBlockSize(&raw mut blocks, &raw mut threads, function, ptr::null(), 0, 0) }?;
        let [blocks, threads] = [blocks, threads].map(|number| u32::try_from(number).unwrap_or(0));
        let largest =
            (threads.clamp(Elements::LEAST_THREADS, Elements::MOST_THREADS), Fit { per_processor: blocks / processors.max(1), processors });
        let attribute = |number| -> Result<u32> {
            let mut value = 0;
            // SAFETY: the function is of a loaded module. The call writes one integer, to a local variable.
            unsafe { calls.cuFuncGetAttribute(&raw mut value, number, function) }?;
            Ok(value.try_into().unwrap_or(0))
        };
        let (most_threads, local_bytes) = (attribute(MOST_THREADS_OF_BLOCK)?, attribute(LOCAL_SIZE)?);
        Ok(Kernel { function: Handle(function), fit, largest, most_threads, local_bytes })
    }

    fn unload(&self, calls: &Calls) {
        // SAFETY: the module was loaded once, and no thread launches from it any more. If the call fails, the end of the context frees it.
        let _ = unsafe { calls.cuModuleUnload(self.module.0) };
    }
}

fn compile(calls: &Calls, image: &[u8]) -> Result<Handle<CUmod_st>> {
    /// `CU_JIT_ERROR_LOG_BUFFER`, `CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES`.
    const LOG: [c_int; 2] = [5, 6];
    let text = [image, &[0]].concat();
    let mut module = ptr::null_mut();
    if calls.cuModuleLoadDataEx.is_none() {
        // SAFETY: the text ends with 0. The call writes one handle, to a local variable.
        unsafe { calls.cuModuleLoadData(&raw mut module, text.as_ptr().cast()) }?;
        return Ok(Handle(module));
    }
    let (mut options, mut log) = (LOG, std::vec![0_u8; 8 << 10]);
    let mut values = [log.as_mut_ptr().cast(), ptr::without_provenance_mut::<c_void>(log.len())];
    // SAFETY: the text ends with 0. Both options have a value, and the log has the given size. The call writes one handle, to a local variable.
    let said = unsafe { calls.cuModuleLoadDataEx(&raw mut module, text.as_ptr().cast(), 2, options.as_mut_ptr(), values.as_mut_ptr()) };
    match said {
        Ok(()) => Ok(Handle(module)),
        Err(Error::Driver { call, code, name, .. }) => {
            let end = log.iter().position(|&byte| byte == 0).unwrap_or(log.len());
            let log: Box<str> = String::from_utf8_lossy(&log[..end]).trim().into();
            let log = Some(log).filter(|log| !log.is_empty());
            Err(Error::Driver { call, code, name, log })
        }
        Err(error) => Err(error),
    }
}

#[derive(Default)]
pub(super) struct Launching {
    /// Read by slow launches, written by calls that would wait for a kernel.
    lock: RwLock<()>,
    /// Persistent kernels, launched or about to be, and holders of [`NoLaunches`].
    slow_reasons: AtomicUsize,
}

struct Reason<'a>(&'a Launching);

/// A guard: no thread queues a kernel while it exists.
pub(super) struct NoLaunches<'a> {
    _reason: Reason<'a>,
    _lock: RwLockWriteGuard<'a, ()>,
}

impl Launching {
    fn try_fast<'a>(&self, queue: &'a Queue) -> Option<MutexGuard<'a, State>> {
        let state = queue.state();
        // SYNC POINT: slow launches. Pairs with the lock that `Inner::require_slow_launches` takes after its increment: 0 means that this launch is
        // queued before that lock is taken.
        (self.slow_reasons.load(Relaxed) == 0).then_some(state)
    }

    fn slow(&self) -> RwLockReadGuard<'_, ()> {
        self.lock.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn remove_reasons(&self, kernels: usize) {
        self.slow_reasons.fetch_sub(kernels, Release);
    }
}

impl Reason<'_> {
    fn keep(self) {
        core::mem::forget(self);
    }
}

impl Drop for Reason<'_> {
    fn drop(&mut self) {
        self.0.remove_reasons(1);
    }
}

impl Inner {
    fn require_slow_launches(&self) -> Reason<'_> {
        self.launching.slow_reasons.fetch_add(1, Relaxed);
        // SYNC POINT: slow launches. Pairs with the lock of `Launching::try_fast`: a launch that takes a queue's lock later sees the increment.
        // A queue that is listed later was inserted after the increment, under the same lock; one that was removed is closed, and refuses.
        self.queues().iter().for_each(|queue| drop(queue.state()));
        Reason(&self.launching)
    }

    pub(super) fn block_launches(&self) -> NoLaunches<'_> {
        let lock = self.launching.lock.write().unwrap_or_else(PoisonError::into_inner);
        NoLaunches { _reason: self.require_slow_launches(), _lock: lock }
    }
}

impl Inner {
    /// Removes complete kernels, then fails if the blocks do not fit next to the others; nothing is queued then. Blocks over elements become smaller until one
    /// fits; the error is that of the smallest.
    fn find_place(
        &self,
        shape: Shape,
        kernel: &Kernel,
        launch: &Launch<'_>,
        occupancy: &mut Vec<Resident>,
        device: &Device,
        on: StreamId,
    ) -> Result<Shape> {
        let before = occupancy.len();
        occupancy.retain(|resident| !self.is_complete(resident.ticket));
        self.launching.remove_reasons(before - occupancy.len());
        if occupancy.is_empty() {
            return Ok(shape);
        }
        let Some(elements) = &launch.elements else { return fits(occupancy, shape.fit, shape.blocks, on).and(Ok(shape)) };
        // These blocks do not wait for each other.
        let has_place = |fit| fits(occupancy, fit, 1, on);
        let mut threads = shape.threads[0];
        // Where one of the largest blocks fits, a smaller one does: no call of the driver.
        if threads <= kernel.largest.0 && has_place(shape.fit).is_ok() {
            return Ok(shape);
        }
        loop {
            let fit = kernel.fit_of(threads, 1, OF_ELEMENTS, device)?;
            let is_last = elements.threads > 0 || threads < 2 * Elements::LEAST_THREADS || !threads.is_multiple_of(2 * WARP);
            match has_place(fit) {
                Err(_) if !is_last => threads /= 2,
                found => return found.and(Ok(Kernel::over(elements, threads, fit))),
            }
        }
    }
}

/// Fails if the blocks do not fit next to the others. Kernels of one stream run in sequence.
fn fits(occupancy: &[Resident], fit: Fit, groups: u32, on: StreamId) -> Result<()> {
    let mut others: Vec<_> = occupancy.iter().filter(|resident| resident.ticket.stream != on).copied().collect();
    others.sort_unstable_by_key(|other| (other.ticket.stream, Reverse(other.share.saturating_mul(other.groups.into()))));
    others.dedup_by_key(|other| other.ticket.stream);
    let free = fit.free_groups(&others);
    if groups > free {
        let resident = others.iter().map(|other| u64::from(other.groups)).sum();
        return Err(Error::Residency { asked: groups.into(), free: free.into(), most: fit.max_groups().into(), resident });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_filled_by_blocks_of_any_size() {
        let fit = Fit { per_processor: 2, processors: 132 };
        let shape = |count, threads, blocks| {
            let Shape { blocks, threads: [threads, 1], .. } = Kernel::over(&Elements { count, threads, blocks, words: &[] }, 1024, fit)
            else {
                panic!("blocks of one row");
            };
            (threads, blocks)
        };
        for threads in [64, 96, 128, 1024] {
            let (chosen, blocks) = shape(1 << 30, threads, 0);
            assert_eq!((chosen, blocks), (threads, 132 * 2048 / threads), "as many threads at once as of the largest blocks");
        }
        assert_eq!(shape(1 << 30, 0, 0), (1024, 264));
        assert_eq!(shape(100_000, 0, 0), (512, 196), "a block for each multiprocessor");
        assert_eq!(shape(1000, 0, 0), (64, 16), "an element for each thread");
        assert_eq!(shape(1000, 256, 7), (256, 7));
    }
}
