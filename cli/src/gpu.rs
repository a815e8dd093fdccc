//! The GPUs of this machine (feature `cuda`).

use std::ptr;
use std::sync::Arc;

use ringmem::Result;
use ringmem::backend::cuda::cudarc::driver::sys::{self, CUmemPool_attribute};
use ringmem::backend::cuda::{CudaBackend, Driver, Settings, check};
use ringmem::backend::{self, Copy, StreamId};
use serde_json::{Value, json};

use super::place::{Calls, Place};
use super::{chain, plain};

pub(super) fn open(pinned: Option<u64>) -> Result<Place> {
    let default = Settings::default();
    let backend = CudaBackend::with(Settings { pinned_budget: pinned.unwrap_or(default.pinned_budget), ..default })?;
    let gpus: Vec<String> = backend.driver().gpus()?.into_iter().map(|gpu| plain(&gpu.name)).collect();
    let why = gpus.join(", ");
    Ok(Place { backend: backend.clone(), driver: Some(Box::new(Bare(backend))), gpus, why })
}

struct Bare(Arc<CudaBackend>);

impl Calls for Bare {
    fn bind(&self) -> Result<()> {
        // SAFETY: the context is live while the backend is.
        check("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(self.0.raw_context(0)?) })?;
        let (mut pool, mut threshold) = (ptr::null_mut(), u64::MAX);
        // SAFETY: writes one handle.
        check("cuDeviceGetDefaultMemPool", unsafe { sys::cuDeviceGetDefaultMemPool(&raw mut pool, 0) })?;
        let attribute = CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        // SAFETY: this attribute is a 64-bit word.
        check("cuMemPoolSetAttribute", unsafe { sys::cuMemPoolSetAttribute(pool, attribute, (&raw mut threshold).cast()) })
    }

    unsafe fn copy(&self, copy: &Copy, on: StreamId) -> Result<()> {
        let (stream, bytes) = (self.0.raw_stream(on)?, copy.bytes as usize);
        let (call, said) = match (copy.to, copy.from) {
            (backend::Place::Device(to), backend::Place::Host(from)) => {
                // SAFETY: caller's promise.
                ("cuMemcpyHtoDAsync_v2", unsafe { sys::cuMemcpyHtoDAsync_v2(to.get(), from.as_ptr().cast(), bytes, stream) })
            }
            (backend::Place::Host(to), backend::Place::Device(from)) => {
                // SAFETY: caller's promise.
                ("cuMemcpyDtoHAsync_v2", unsafe { sys::cuMemcpyDtoHAsync_v2(to.as_ptr().cast(), from.get(), bytes, stream) })
            }
            (backend::Place::Device(to), backend::Place::Device(from)) => {
                // SAFETY: caller's promise.
                ("cuMemcpyDtoDAsync_v2", unsafe { sys::cuMemcpyDtoDAsync_v2(to.get(), from.get(), bytes, stream) })
            }
            (backend::Place::Host(_), backend::Place::Host(_)) => {
                return Err(ringmem::Error::Unsupported { what: "a copy from host to host" });
            }
        };
        check(call, said)?;
        // SAFETY: a live stream.
        check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(stream) })
    }

    fn ordered_block(&self, bytes: usize, on: StreamId) -> Result<()> {
        let (stream, mut address) = (self.0.raw_stream(on)?, 0);
        // SAFETY: writes one address.
        check("cuMemAllocAsync", unsafe { sys::cuMemAllocAsync(&raw mut address, bytes, stream) })?;
        // SAFETY: just allocated, unused.
        check("cuMemFreeAsync", unsafe { sys::cuMemFreeAsync(address, stream) })
    }

    fn block(&self, bytes: usize) -> Result<()> {
        let mut address = 0;
        // SAFETY: writes one address.
        check("cuMemAlloc_v2", unsafe { sys::cuMemAlloc_v2(&raw mut address, bytes) })?;
        // SAFETY: just allocated, unused.
        check("cuMemFree_v2", unsafe { sys::cuMemFree_v2(address) })
    }
}

const WATCHED: &str = "it drives a display, so a watchdog ends each kernel after some seconds: run persistent kernels on another GPU, or detach the display from this one";

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
