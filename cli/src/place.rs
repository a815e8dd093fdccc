//! Where kernels run: what was asked for, or what there is.

use std::io::Write;
use std::sync::Arc;

use clap::ValueEnum;
use ringmem::backend::host::Builder;
use ringmem::backend::{Backend, Copy, StreamId};
use ringmem::visibility::{self, Detected};
use ringmem::{MemoryVisibility, Result};

use super::{chain, gpu, plain};

/// Where the kernel runs.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum Wanted {
    /// A GPU where a driver drives one, else the host backend; says which and why
    Auto,
    /// Kernels on a thread, device memory simulated
    Host,
    /// A GPU
    Cuda,
}

/// A backend, and why it is that one.
pub(super) struct Place {
    pub backend: Arc<dyn Backend>,
    /// The driver below the CUDA backend.
    pub driver: Option<Box<dyn Calls>>,
    /// The names of the driver's GPUs.
    pub gpus: Vec<String>,
    pub why: String,
}

/// Direct calls of the CUDA driver on device 0. The library is measured against them.
pub(super) trait Calls {
    /// Binds the device's context to this thread. Sets the device's own pool to keep freed memory, as the library's pool does.
    fn bind(&self) -> Result<()>;

    /// Copies, and waits for the copy.
    ///
    /// # Safety
    ///
    /// As [`Backend::copy`], until this returns.
    unsafe fn copy(&self, copy: &Copy, on: StreamId) -> Result<()>;

    /// Allocates a block of the device's own pool in stream order, and frees it.
    fn ordered_block(&self, bytes: usize, on: StreamId) -> Result<()>;

    /// Allocates a block, and frees it.
    fn block(&self, bytes: usize) -> Result<()>;
}

impl Wanted {
    /// Opens it; `host` is the host backend if it is to be that. What the environment should not say of it is told.
    pub fn open(self, host: Builder, err: &mut dyn Write) -> Result<Place> {
        let place = self.look(host)?;
        let Detected { overruled, warning, .. } = MemoryVisibility::detect(&place.backend, 0)?;
        if let (Some(said), Some(warning)) = (overruled, warning) {
            // Where nobody listens it is as where nobody reads.
            let _ = writeln!(err, "ringmem: {}={}: {warning}", visibility::VARIABLE, plain(&said));
        }
        Ok(place)
    }

    fn look(self, host: Builder) -> Result<Place> {
        let simulated = |why| Ok(Place { backend: host.build()?, driver: None, gpus: Vec::new(), why });
        match self {
            Self::Host => simulated("asked for".to_owned()),
            Self::Cuda => gpu::open().map(|place| Place { why: format!("asked for, {}", place.why), ..place }),
            Self::Auto => gpu::open().or_else(|error| simulated(format!("no GPU: {}", plain(&chain(&error))))),
        }
    }
}

impl Place {
    /// Where the kernel ran, in words.
    pub fn words(&self) -> String {
        let what = if self.backend.is_simulated() {
            "the kernel ran on a thread, device memory is simulated"
        } else {
            "the kernel ran on the GPU"
        };
        format!("{}: {what} ({})", self.backend.name(), self.why)
    }
}
