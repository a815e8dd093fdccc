use std::io::Write;
use std::sync::Arc;

use clap::ValueEnum;
use ringmem::backend::Backend;
use ringmem::backend::host::Builder;
use ringmem::visibility::{self, Detected};
use ringmem::{MemoryVisibility, Result};

use super::{chain, gpu, plain, size};

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum Choice {
    /// A GPU if the driver has one, else the host backend; prints which and why
    Auto,
    /// The host backend: kernels on a thread, simulated device memory
    Host,
    /// A GPU
    Cuda,
}

#[derive(clap::Args)]
pub(super) struct Selection {
    /// Where the kernels run
    #[arg(long, value_enum, default_value_t = Choice::Auto)]
    backend: Choice,
    /// Memory that may be pinned at once; by default a quarter of the machine's memory, at most 2 GiB
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true, value_parser = size::parse)]
    pub pinned: Option<u64>,
}

pub(super) struct Selected {
    pub backend: Arc<dyn Backend>,
    pub why: String,
}

impl Selection {
    pub fn open(&self, host: Builder, err: &mut dyn Write) -> Result<Selected> {
        self.backend.with(host, self.pinned, err)
    }
}

impl Choice {
    pub fn open(self, host: Builder, err: &mut dyn Write) -> Result<Selected> {
        self.with(host, None, err)
    }

    fn with(self, host: Builder, pinned: Option<u64>, err: &mut dyn Write) -> Result<Selected> {
        let selected = self.select(pinned.into_iter().fold(host, Builder::pinned_budget), pinned)?;
        let Detected { overridden, warning, .. } = MemoryVisibility::detect(&selected.backend, 0)?;
        if let (Some(said), Some(warning)) = (overridden, warning) {
            let _ = writeln!(err, "ringmem: {}={}: {warning}", visibility::VARIABLE, plain(&said));
        }
        Ok(selected)
    }

    fn select(self, host: Builder, pinned: Option<u64>) -> Result<Selected> {
        let simulated = |why| Ok(Selected { backend: host.build()?, why });
        match self {
            Self::Host => simulated("requested".to_owned()),
            Self::Cuda => gpu::open(pinned).map(|(backend, names)| Selected { backend, why: format!("requested, {names}") }),
            Self::Auto => gpu::open(pinned)
                .map(|(backend, why)| Selected { backend, why })
                .or_else(|error| simulated(format!("no GPU: {}", plain(&chain(&error))))),
        }
    }
}

impl Selected {
    pub fn words(&self) -> String {
        let what = if self.backend.is_simulated() {
            "the kernel ran on a thread, device memory is simulated"
        } else {
            "the kernel ran on the GPU"
        };
        format!("{}: {what} ({})", self.backend.name(), self.why)
    }
}
