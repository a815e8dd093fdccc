//! Calls of the driver without the crate between: what the parts `light` and `bench` measure, and compare with.

use std::ffi::{CString, c_void};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ringmem::backend::cuda::cudarc::driver::sys::{self, CUdevice_attribute, CUfunction, CUmemPool_attribute, CUmodule, CUstream};
use ringmem::backend::cuda::{CudaBackend, check};
use ringmem::backend::{Address, Copy};
use ringmem::{Error, Result};
use ringmem_kernels::IMAGE;
use ringmem_kernels::probe::{BYTES, mode};

/// Device 0 in the backend's context, bound to the thread that opened it, and a module of this program's kernels.
pub struct Gpu {
    pub backend: Arc<CudaBackend>,
    device: i32,
    module: CUmodule,
}

#[derive(Clone, Copy)]
pub struct Pinned {
    pub host: NonNull<u8>,
    pub device: u64,
}

impl Gpu {
    pub fn open(backend: &Arc<CudaBackend>) -> Result<Self> {
        let (context, mut device, mut module) = (backend.raw_context(0)?, 0, null_mut());
        // The driver expects a terminating 0.
        let text: Vec<u8> = IMAGE.ptx.iter().copied().filter(|&byte| byte != 0).chain([0]).collect();
        // SAFETY: the context is live while the backend is, which this value keeps; the other calls write one handle each; the text ends with 0.
        unsafe {
            check("cuDeviceGet", sys::cuDeviceGet(&raw mut device, 0))?;
            check("cuCtxSetCurrent", sys::cuCtxSetCurrent(context))?;
            check("cuModuleLoadData", sys::cuModuleLoadData(&raw mut module, text.as_ptr().cast()))?;
        }
        Ok(Self { backend: Arc::clone(backend), device, module })
    }

    pub fn close(self) -> Result<()> {
        // SAFETY: loaded by `open`, unloaded once.
        check("cuModuleUnload", unsafe { sys::cuModuleUnload(self.module) })
    }

    pub fn abi(&self) -> Result<u64> {
        let (mut address, mut bytes, mut hash) = (0, 0, 0_u64);
        // SAFETY: a zero-terminated name; 8 bytes are read into 8 bytes.
        unsafe {
            check(
                "cuModuleGetGlobal_v2",
                sys::cuModuleGetGlobal_v2(&raw mut address, &raw mut bytes, self.module, c"RINGMEM_ABI".as_ptr()),
            )?;
            check("cuMemcpyDtoH_v2", sys::cuMemcpyDtoH_v2((&raw mut hash).cast(), address, 8.min(bytes)))?;
        }
        Ok(hash)
    }

    pub fn attribute(&self, which: CUdevice_attribute) -> i32 {
        let mut value = 0;
        // SAFETY: writes one integer.
        let said = unsafe { sys::cuDeviceGetAttribute(&raw mut value, which, self.device) };
        check("cuDeviceGetAttribute", said).map_or(0, |()| value)
    }

    pub fn bus(&self) -> Result<String> {
        let mut text = [0_u8; 32];
        // SAFETY: the buffer has the length passed.
        check("cuDeviceGetPCIBusId", unsafe { sys::cuDeviceGetPCIBusId(text.as_mut_ptr().cast(), 32, self.device) })?;
        Ok(text.iter().take_while(|&&byte| byte != 0).map(|&byte| char::from(byte)).collect::<String>().to_lowercase())
    }

    pub fn kernel(&self, name: &str) -> Result<CUfunction> {
        let mut function = null_mut();
        let name = CString::new(name).unwrap_or_default();
        // SAFETY: a zero-terminated name; writes one handle.
        check("cuModuleGetFunction", unsafe { sys::cuModuleGetFunction(&raw mut function, self.module, name.as_ptr()) })?;
        Ok(function)
    }

    pub fn residency(&self, kernel: CUfunction) -> Result<u32> {
        let mut blocks = 0;
        // SAFETY: writes one integer.
        let said = unsafe { sys::cuOccupancyMaxActiveBlocksPerMultiprocessor(&raw mut blocks, kernel, 32, 0) };
        check("cuOccupancyMaxActiveBlocksPerMultiprocessor", said)?;
        let processors = self.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
        Ok(blocks.saturating_mul(processors).unsigned_abs())
    }

    pub fn pinned(&self, bytes: usize) -> Result<Pinned> {
        let (mut host, mut device) = (null_mut::<c_void>(), 0);
        // SAFETY: writes one pointer and one address of an allocation of `bytes`.
        unsafe {
            let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
            check("cuMemHostAlloc", sys::cuMemHostAlloc(&raw mut host, bytes, flags))?;
            host.cast::<u8>().write_bytes(0, bytes);
            check("cuMemHostGetDevicePointer_v2", sys::cuMemHostGetDevicePointer_v2(&raw mut device, host, 0))?;
        }
        let host = NonNull::new(host.cast()).unwrap_or(NonNull::dangling());
        Ok(Pinned { host, device })
    }

    pub fn free_pinned(&self, memory: Pinned) -> Result<()> {
        // SAFETY: allocated by `pinned`; unused.
        check("cuMemFreeHost", unsafe { sys::cuMemFreeHost(memory.host.as_ptr().cast()) })
    }

    pub fn alloc(&self, bytes: usize) -> Result<u64> {
        let mut address = 0;
        // SAFETY: writes one address.
        check("cuMemAlloc_v2", unsafe { sys::cuMemAlloc_v2(&raw mut address, bytes) })?;
        Ok(address)
    }

    pub fn free(&self, address: u64) -> Result<()> {
        // SAFETY: allocated by `alloc`; unused.
        check("cuMemFree_v2", unsafe { sys::cuMemFree_v2(address) })
    }

    /// Allocates and frees a block in stream order.
    pub fn ordered_block(&self, bytes: usize, on: &Stream) -> Result<()> {
        let mut address = 0;
        // SAFETY: writes one address; a live stream.
        check("cuMemAllocAsync", unsafe { sys::cuMemAllocAsync(&raw mut address, bytes, on.0) })?;
        // SAFETY: just allocated, unused.
        check("cuMemFreeAsync", unsafe { sys::cuMemFreeAsync(address, on.0) })
    }

    /// Lets the device's default pool keep freed memory, as the crate's pools do.
    pub fn keep_freed_memory(&self) -> Result<()> {
        let (mut pool, mut threshold) = (null_mut(), u64::MAX);
        // SAFETY: writes one handle.
        check("cuDeviceGetDefaultMemPool", unsafe { sys::cuDeviceGetDefaultMemPool(&raw mut pool, self.device) })?;
        let attribute = CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        // SAFETY: this attribute is a 64-bit word.
        check("cuMemPoolSetAttribute", unsafe { sys::cuMemPoolSetAttribute(pool, attribute, (&raw mut threshold).cast()) })
    }

    /// Launches kernels for `time`: an idle GPU lowers its clocks, and takes part of a second to raise them.
    pub fn raise_clocks(&self, time: Duration) -> Result<()> {
        let (words, kernel, stream) = (self.pinned(BYTES as usize)?, self.kernel("publish")?, self.stream()?);
        let begun = Instant::now();
        while begun.elapsed() < time {
            // SAFETY: its three arguments; the words are live until the stream is synchronised.
            unsafe { stream.launch(kernel, 1, &[words.device, 10_000, mode::RELAXED])? };
            stream.synchronize()?;
        }
        self.free_pinned(words)
    }

    pub fn stream(&self) -> Result<Stream> {
        let mut stream = null_mut();
        // SAFETY: writes one handle.
        let said = unsafe { sys::cuStreamCreate(&raw mut stream, sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32) };
        check("cuStreamCreate", said)?;
        Ok(Stream(stream))
    }
}

pub struct Stream(CUstream);

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: a live stream, destroyed once.
        let _ = unsafe { sys::cuStreamDestroy_v2(self.0) };
    }
}

// SAFETY: any thread with the context bound may use it.
unsafe impl Send for Stream {}

impl Stream {
    /// # Safety
    ///
    /// The kernel takes these arguments; their memory is live until it exits.
    pub unsafe fn launch(&self, kernel: CUfunction, groups: u32, arguments: &[u64]) -> Result<()> {
        let mut places: Vec<*mut c_void> = arguments.iter().map(|argument| (&raw const *argument).cast_mut().cast()).collect();
        let list = places.as_mut_ptr();
        // SAFETY: a pointer per argument, to 8 bytes that the driver copies; the caller promises that the kernel takes them and that their
        // memory is live.
        let said = unsafe { sys::cuLaunchKernel(kernel, groups, 1, 1, 32, 1, 1, 0, self.0, list, null_mut()) };
        check("cuLaunchKernel", said)
    }

    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: a live stream.
        check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(self.0) })
    }

    /// Queues a copy between host and device, or within the device.
    ///
    /// # Safety
    ///
    /// Both ranges are live and `copy.bytes` long until the stream is synchronised, and nothing else accesses them.
    pub unsafe fn copy(&self, copy: &Copy) -> Result<()> {
        let bytes = copy.bytes as usize;
        let (call, said) = match (copy.to, copy.from) {
            (Address::Device(to), Address::Host(from)) => {
                // SAFETY: a live stream; the caller promises that both ranges are live and otherwise unused until the stream is
                // synchronised.
                ("cuMemcpyHtoDAsync_v2", unsafe { sys::cuMemcpyHtoDAsync_v2(to.get(), from.as_ptr().cast(), bytes, self.0) })
            }
            (Address::Host(to), Address::Device(from)) => {
                // SAFETY: a live stream; the caller promises that both ranges are live and otherwise unused until the stream is
                // synchronised.
                ("cuMemcpyDtoHAsync_v2", unsafe { sys::cuMemcpyDtoHAsync_v2(to.as_ptr().cast(), from.get(), bytes, self.0) })
            }
            (Address::Device(to), Address::Device(from)) => {
                // SAFETY: a live stream; the caller promises that both ranges are live and otherwise unused until the stream is
                // synchronised.
                ("cuMemcpyDtoDAsync_v2", unsafe { sys::cuMemcpyDtoDAsync_v2(to.get(), from.get(), bytes, self.0) })
            }
            (Address::Host(_), Address::Host(_)) => return Err(Error::Unsupported { what: "a copy from host to host" }),
        };
        check(call, said)
    }

    /// # Safety
    ///
    /// The word is live until the stream is synchronised.
    pub unsafe fn write_word(&self, address: u64, value: u64) -> Result<()> {
        // SAFETY: a live stream; the caller promises that the word is live until the stream is synchronised.
        check("cuStreamWriteValue64_v2", unsafe { sys::cuStreamWriteValue64_v2(self.0, address, value, 0) })
    }
}
