#[path = "../../tests/conformance/mod.rs"]
mod checks;

use std::io::Write;
use std::panic::set_hook;
use std::process::ExitCode;
use std::sync::Arc;

use ringmem::backend::cuda::CudaBackend;
use ringmem_kernels::IMAGE;

use checks::{CHECKS, Subject};

use crate::child::Child;
use crate::limits::limits;
use crate::report::{Failure, Report};

/// The child's line before its first check.
const READY: &str = "ready";

/// Runs the checks in a child process. If one hangs or ends the process, its kernels and its memory end with the process, and another child runs the
/// checks after it.
pub fn run(report: &mut Report) -> Result<(), Failure> {
    let mut next = 0;
    while next < CHECKS.len() {
        let mut child = Child::start("child-checks", &[&next.to_string()])?;
        let said = child.line(limits().start)?;
        if said != READY {
            return Err(format!("the child that runs the checks said `{said}`").into());
        }
        next += run_in(&mut child, report, next)?;
    }
    Ok(())
}

/// Returns the number of checks with a result: all checks from `first` on, or those up to a check that did not end.
fn run_in(child: &mut Child, report: &mut Report, first: usize) -> Result<usize, Failure> {
    for (done, check) in (1..).zip(&CHECKS[first..]) {
        // This check allocates all memory of the device.
        let limit = limits().check * if check.name.starts_with("out_of_memory") { 3 } else { 1 };
        let found = match child.line(limit) {
            Ok(said) if !said.is_empty() => {
                report.relay(&said)?;
                continue;
            }
            Ok(_) => format!("its process ended: {}", child.kill()?),
            Err(failure) => format!("not done in time: {failure}, and was killed"),
        };
        report.fact(check.name, || Err(found.into()));
        return Ok(done);
    }
    let status = child.end(limits().start)?;
    if status.success() { Ok(CHECKS.len() - first) } else { Err(format!("the child that ran the checks ended: {status}").into()) }
}

/// Runs the checks from this one on, and prints a line for each.
pub fn child(first: usize) -> ExitCode {
    let opened = CudaBackend::open().and_then(|backend| backend.raw_context(0).map(|_| backend));
    // Kept: otherwise each check creates and destroys the primary context.
    let kept = match opened {
        Ok(backend) => backend,
        Err(error) => {
            println!("{error}");
            return ExitCode::FAILURE;
        }
    };
    println!("{READY}");
    let mut report = Report::new("conformance");
    set_hook(Box::new(|_| ()));
    for check in CHECKS.iter().skip(first) {
        report.fact(check.name, || {
            let backend = CudaBackend::open()?;
            let counted = Arc::clone(&backend);
            let subject = Subject::new(backend).counting(move || counted.counters().into());
            check.run(Subject { image: IMAGE, ..subject });
            Ok("passed".to_owned())
        });
    }
    drop(kept);
    ExitCode::from(u8::from(std::io::stdout().flush().is_err()))
}
