use std::io::Write;
use std::sync::Arc;

use clap::ValueEnum;
use ringmem::backend::Backend;
use ringmem::backend::host::Builder;
use ringmem::visibility::{self, Detected};
use ringmem::{MemoryVisibility, Result};

use super::{chain, gpu, plain, size};

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum Wanted {
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
    #[arg(long, value_enum, default_value_t = Wanted::Auto)]
    backend: Wanted,
    /// Memory that may be pinned at once; by default a quarter of the machine's memory, at most 2 GiB
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true, value_parser = size::parse)]
    pub pinned: Option<u64>,
}

pub(super) struct Place {
    pub backend: Arc<dyn Backend>,
    pub why: String,
}

impl Selection {
    pub fn open(&self, host: Builder, err: &mut dyn Write) -> Result<Place> {
        self.backend.with(host, self.pinned, err)
    }
}

impl Wanted {
    pub fn open(self, host: Builder, err: &mut dyn Write) -> Result<Place> {
        self.with(host, None, err)
    }

    fn with(self, host: Builder, pinned: Option<u64>, err: &mut dyn Write) -> Result<Place> {
        let place = self.look(pinned.into_iter().fold(host, Builder::pinned_budget), pinned)?;
        let Detected { overridden, warning, .. } = MemoryVisibility::detect(&place.backend, 0)?;
        if let (Some(said), Some(warning)) = (overridden, warning) {
            let _ = writeln!(err, "ringmem: {}={}: {warning}", visibility::VARIABLE, plain(&said));
        }
        Ok(place)
    }

    fn look(self, host: Builder, pinned: Option<u64>) -> Result<Place> {
        let simulated = |why| Ok(Place { backend: host.build()?, why });
        match self {
            Self::Host => simulated("requested".to_owned()),
            Self::Cuda => gpu::open(pinned).map(|place| Place { why: format!("requested, {}", place.why), ..place }),
            Self::Auto => gpu::open(pinned).or_else(|error| simulated(format!("no GPU: {}", plain(&chain(&error))))),
        }
    }
}

impl Place {
    pub fn words(&self) -> String {
        let what = if self.backend.is_simulated() {
            "the kernel ran on a thread, device memory is simulated"
        } else {
            "the kernel ran on the GPU"
        };
        format!("{}: {what} ({})", self.backend.name(), self.why)
    }
}
