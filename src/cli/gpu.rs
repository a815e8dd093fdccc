//! The GPUs of this machine, for a program that was built with the feature `cuda`.

use std::ptr;
use std::sync::Arc;

use serde_json::{Value, json};

use super::{chain, plain};
use crate::Result;
use crate::backend::cuda::cudarc::driver::sys::{self, CUmemPool_attribute};
use crate::backend::cuda::{CudaBackend, Driver, check};
use crate::backend::{Backend, Copy, Place, StreamId};

/// The backend of the GPUs that a driver drives, the driver under it, and their names.
pub(super) fn open() -> Result<(Arc<dyn Backend>, Bare, String)> {
    let backend = CudaBackend::open()?;
    let names: Vec<String> = backend.driver().gpus()?.into_iter().map(|gpu| gpu.name).collect();
    Ok((Arc::clone(&backend).erased(), Bare(backend), names.join(", ")))
}

/// The driver's own calls on device 0, which what this library makes of them is measured against.
pub(super) struct Bare(Arc<CudaBackend>);

impl Bare {
    /// Whose figures the device's are, as rows have it.
    pub fn source(&self) -> Result<String> {
        let name = self.0.driver().gpus()?.into_iter().next().map(|gpu| gpu.name).unwrap_or_default();
        Ok(if name.starts_with("ringmem driver double") { "double".to_owned() } else { format!("gpu:{name}") })
    }

    /// Binds the device's context to this thread, and lets the device's own pool keep what is freed, as this library's does.
    pub fn bind(&self) -> Result<()> {
        // SAFETY: a context that is live while the backend is.
        check("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(self.0.raw_context(0)?) })?;
        let (mut pool, mut threshold) = (ptr::null_mut(), u64::MAX);
        // SAFETY: writes one handle.
        check("cuDeviceGetDefaultMemPool", unsafe { sys::cuDeviceGetDefaultMemPool(&raw mut pool, 0) })?;
        let attribute = CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        // SAFETY: this attribute is one word of 64 bits.
        check("cuMemPoolSetAttribute", unsafe { sys::cuMemPoolSetAttribute(pool, attribute, (&raw mut threshold).cast()) })
    }

    /// A copy, and the wait for it.
    ///
    /// # Safety
    ///
    /// As [`Backend::copy`], until this returns.
    pub unsafe fn copy(&self, copy: &Copy, on: StreamId) -> Result<()> {
        let (stream, bytes) = (self.0.raw_stream(on)?, copy.bytes as usize);
        let (call, said) = match (copy.to, copy.from) {
            (Place::Device(to), Place::Host(from)) => {
                // SAFETY: the caller's promise.
                ("cuMemcpyHtoDAsync_v2", unsafe { sys::cuMemcpyHtoDAsync_v2(to.get(), from.as_ptr().cast(), bytes, stream) })
            }
            (Place::Host(to), Place::Device(from)) => {
                // SAFETY: the caller's promise.
                ("cuMemcpyDtoHAsync_v2", unsafe { sys::cuMemcpyDtoHAsync_v2(to.as_ptr().cast(), from.get(), bytes, stream) })
            }
            (Place::Device(to), Place::Device(from)) => {
                // SAFETY: the caller's promise.
                ("cuMemcpyDtoDAsync_v2", unsafe { sys::cuMemcpyDtoDAsync_v2(to.get(), from.get(), bytes, stream) })
            }
            (Place::Host(_), Place::Host(_)) => return Err(crate::Error::Unsupported { what: "a copy in which no device has a part" }),
        };
        check(call, said)?;
        // SAFETY: a live stream.
        check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(stream) })
    }

    /// A block of the device's own pool, allocated and freed in the order of a stream.
    pub fn ordered_block(&self, bytes: usize, on: StreamId) -> Result<()> {
        let (stream, mut address) = (self.0.raw_stream(on)?, 0);
        // SAFETY: writes one address.
        check("cuMemAllocAsync", unsafe { sys::cuMemAllocAsync(&raw mut address, bytes, stream) })?;
        // SAFETY: just allocated, and used by nobody.
        check("cuMemFreeAsync", unsafe { sys::cuMemFreeAsync(address, stream) })
    }

    /// A block, allocated and freed.
    pub fn block(&self, bytes: usize) -> Result<()> {
        let mut address = 0;
        // SAFETY: writes one address.
        check("cuMemAlloc_v2", unsafe { sys::cuMemAlloc_v2(&raw mut address, bytes) })?;
        // SAFETY: just allocated, and used by nobody.
        check("cuMemFree_v2", unsafe { sys::cuMemFree_v2(address) })
    }
}

/// What to do where a watchdog ends kernels.
const WATCHED: &str = "it also shows a screen, and a watchdog ends each kernel after some seconds: for one that stays take another GPU, or let this one show nothing";

/// What a driver drives, or why there is none.
pub(super) fn driver() -> Value {
    match Driver::load().and_then(|driver| Ok((driver, driver.gpus()?))) {
        Ok((driver, gpus)) => {
            let gpus: Vec<Value> = gpus
                .iter()
                .map(|gpu| {
                    let (timeout, advice) = (gpu.kernel_timeout, gpu.kernel_timeout.then_some(WATCHED));
                    json!({ "name": gpu.name, "memory": gpu.memory, "kernel_timeout": timeout, "advice": advice })
                })
                .collect();
            json!({ "version": driver.version(), "gpus": gpus })
        }
        Err(error) => Value::String(format!("{}: install NVIDIA's driver if there is a GPU", plain(&chain(&error)))),
    }
}
