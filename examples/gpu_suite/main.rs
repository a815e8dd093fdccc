//! Tests of a GPU, part by part: the program behind `cargo xtask gpu-bundle`.
//!
//! `gpu_suite PART [--quick] [--seconds N]`: one line per fact on stderr; one of JSON per fact, per row of a measurement and for the part on stdout.
//! Parts: `probe`, `light` (the link, memory order, placement of headers), `conformance`, `kernel`, `faults`, `short` (for a sanitizer), `soak`,
//! `bench [CASE...]`. `--quick` divides the work, `--seconds` is the time of `soak` or of a case. Exit codes: 0 every fact holds, 1 one does not, 2
//! invalid arguments, 3 no driver or no device, 4 a fact was not tested.
//!
//! `RINGMEM_BUNDLE_LIMIT`, the seconds that `run.sh` gives the part: below 100, a hung fact is given up after 3 to 5 seconds, otherwise after 10 to 15.
//!
//! It has run only on a driver double, never on a GPU.

mod bench;
mod child;
mod conformance;
mod driver;
mod exchange;
mod faults;
mod kernel;
mod light;
mod limits;
mod prefilled;
mod report;
mod rings;
mod soak;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ringmem::Error;
use ringmem::backend::cuda::{CudaBackend, Settings};

use report::{Failure, Report};

#[derive(Clone, Copy)]
struct Scale {
    messages: u64,
    /// Divides the work of the part `light`.
    divisor: u64,
    /// Size of a large copy.
    bytes: usize,
    /// Length of a large buffer that a kernel is given.
    elements: usize,
    soak: Duration,
    /// Time of a case of the part `bench`.
    case: Duration,
}

const WHOLE: Scale = Scale {
    messages: 200_000,
    divisor: 1,
    bytes: 256 << 20,
    elements: 64 << 20,
    soak: Duration::from_secs(50),
    case: Duration::from_secs(1),
};
const QUICK: Scale =
    Scale { messages: 2_000, divisor: 1000, bytes: 1 << 20, elements: 20_000, soak: Duration::from_secs(2), case: Duration::ZERO };
const LIMIT: Duration = Duration::from_secs(240);

fn main() -> ExitCode {
    if std::env::var_os("CUDA_DEVICE_MAX_CONNECTIONS").is_none() {
        // With fewer hardware queues than streams, an operation may wait for another stream's kernel.
        // SAFETY: no other thread runs yet.
        unsafe { std::env::set_var("CUDA_DEVICE_MAX_CONNECTIONS", "32") };
    }
    // The suite launches kernels while others run: none may be loaded by its first launch.
    // SAFETY: no other thread runs yet.
    unsafe { std::env::set_var("CUDA_MODULE_LOADING", "EAGER") };
    let begun = Instant::now();
    let mut arguments = std::env::args().skip(1);
    let part = arguments.next().unwrap_or_default();
    let (mut scale, mut sense, mut cases, mut first) = (WHOLE, true, Vec::new(), 0);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--quick" => scale = QUICK,
            "--seconds" => match arguments.next().and_then(|text| text.parse::<u32>().ok()) {
                Some(seconds) => (scale.soak, scale.case) = (Duration::from_secs(seconds.into()), Duration::from_secs(seconds.into())),
                None => sense = false,
            },
            number if part == "child-checks" => match number.parse() {
                Ok(number) => first = number,
                Err(_) => sense = false,
            },
            name => match bench::CASES.into_iter().find(|&case| part == "bench" && case == name) {
                Some(case) => cases.push(case),
                None => sense = false,
            },
        }
    }
    report::watch(LIMIT + scale.soak);
    match (part.as_str(), sense) {
        ("probe", true) => part_of("probe", |_, _| Ok(())),
        ("light", true) => part_of("light", |report, backend| light::run(report, backend, scale.divisor)),
        ("conformance", true) => part_of("conformance", |report, _| conformance::run(report)),
        ("kernel", true) => part_of("kernel", |report, backend| kernel::run(report, backend, scale)),
        ("faults", true) => part_of("faults", faults::run),
        ("short", true) => part_of("short", kernel::short),
        ("soak", true) => part_of("soak", |report, backend| soak::run(report, backend, begun + scale.soak)),
        ("bench", true) => part_of("bench", |report, backend| {
            let cases = if cases.is_empty() { &bench::CASES[..] } else { &cases };
            bench::run(report, backend, cases, scale.bytes, scale.case)
        }),
        ("child-checks", true) => conformance::child(first),
        ("child-allocates", true) => child::allocates(),
        ("child-listens", true) => child::listens(),
        ("child-loses-its-context", true) => child::loses_its_context(),
        _ => {
            eprintln!(
                "gpu_suite: usage: gpu_suite probe|light|conformance|kernel|faults|short|soak|bench [CASE...] [--quick] [--seconds N]"
            );
            ExitCode::from(2)
        }
    }
}

fn part_of(part: &'static str, run: impl FnOnce(&mut Report, &Arc<CudaBackend>) -> Result<(), Failure>) -> ExitCode {
    let mut report = Report::new(part);
    // With little memory, the default is too small for the long rows.
    let settings = Settings { pinned_budget: 4 << 30, ..Settings::default() };
    let opened = CudaBackend::with(settings).and_then(|backend| Ok((backend.driver().gpus()?, backend)));
    match opened {
        Ok((gpus, backend)) => {
            report.opened(backend.driver().version(), &gpus);
            if let Err(failure) = run(&mut report, &backend) {
                report.fact("it ran to its end", || Err(failure));
            }
        }
        Err(error @ (Error::NoDriver { .. } | Error::NoDevice { .. } | Error::Driver { code: 34 | 100 | 101, .. })) => {
            return report.nowhere(&error);
        }
        Err(error) => {
            report.fact("the driver opens", || Err(error.into()));
        }
    }
    report.end()
}
