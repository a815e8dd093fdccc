#[path = "../../tests/conformance/mod.rs"]
mod checks;

use std::panic::{set_hook, take_hook};
use std::sync::Arc;

use ringmem::backend::cuda::CudaBackend;
use ringmem_kernels::IMAGE;

use checks::{CHECKS, Subject};

use crate::report::{Failure, Report};

pub fn run(report: &mut Report, kept: &Arc<CudaBackend>) -> Result<(), Failure> {
    // Otherwise each check creates and destroys the primary context.
    kept.raw_context(0)?;
    let hook = take_hook();
    set_hook(Box::new(|_| ()));
    for check in CHECKS {
        report.fact(check.name, || {
            let backend = CudaBackend::open()?;
            let counted = Arc::clone(&backend);
            let subject = Subject::new(backend).counting(move || counted.counters().into());
            check.run(Subject { image: IMAGE, ..subject });
            Ok("passed".to_owned())
        });
    }
    set_hook(hook);
    Ok(())
}
