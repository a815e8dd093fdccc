//! Where kernels run: what was asked for, or what there is.

use std::io::Write;
use std::sync::Arc;

use clap::ValueEnum;

use super::{chain, gpu, plain};
use crate::backend::Backend;
use crate::backend::host::Builder;
use crate::visibility::{self, Detected};
use crate::{MemoryVisibility, Result};

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
    /// The driver under it, where there is one.
    pub driver: Option<gpu::Bare>,
    pub why: String,
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
        let simulated = |why| Ok(Place { backend: host.build()?, driver: None, why });
        match self {
            Self::Host => simulated("asked for".to_owned()),
            Self::Cuda => {
                gpu::open().map(|(backend, driver, gpus)| Place { backend, driver: Some(driver), why: format!("asked for, {gpus}") })
            }
            Self::Auto => match gpu::open() {
                Ok((backend, driver, why)) => Ok(Place { backend, driver: Some(driver), why }),
                Err(error) => simulated(format!("no GPU: {}", plain(&chain(&error)))),
            },
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
