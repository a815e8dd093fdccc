//! The GPUs of this machine (feature `cuda`).

use std::sync::Arc;

use ringmem::Result;
use ringmem::backend::Backend;
use ringmem::backend::cuda::{CudaBackend, Driver, Settings};
use serde_json::{Value, json};

use super::{chain, plain};

/// Returns the backend, and the names of its GPUs.
pub(super) fn open(pinned: Option<u64>) -> Result<(Arc<dyn Backend>, String)> {
    let default = Settings::default();
    let backend = CudaBackend::with(Settings { pinned_budget: pinned.unwrap_or(default.pinned_budget), ..default })?;
    let gpus: Vec<String> = backend.driver().gpus()?.into_iter().map(|gpu| plain(&gpu.name)).collect();
    Ok((backend, gpus.join(", ")))
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
