//! The part `bench`: copies, pools and messages of the crate, each against baselines in the same run.

mod copies;
mod files;
mod kernels;
mod pools;

use std::sync::Arc;
use std::time::{Duration, Instant};

use ringmem::backend::cuda::CudaBackend;
use ringmem::stream::Module;
use ringmem_kernels::{ABI, IMAGE};

use crate::driver::Gpu;
use crate::report::{Failure, Report, Row};

pub const CASES: [&str; 21] = [
    "round-trip",
    "round-trip-p99",
    "flagged-trip",
    "messages",
    "accounts",
    "h2d",
    "d2h",
    "d2d",
    "stream",
    "stream-back",
    "flush",
    "flush-16M",
    "flush-large",
    "flush-back",
    "flush-back-large",
    "overlap",
    "pool-64K",
    "pool-1M",
    "pool-100M",
    "pool-1G",
    "messages-8",
];
const TURNS: std::ops::RangeInclusive<usize> = 3..=51;
const CLOCKS: Duration = Duration::from_millis(500);

struct Rig {
    backend: Arc<CudaBackend>,
    gpu: Gpu,
    module: Module,
    /// Size of a large copy.
    bytes: usize,
    /// Approximate time of a case, which has at least the first of `TURNS`.
    time: Duration,
    source: String,
}

type Turn<'a> = Box<dyn FnMut() -> Result<f64, Failure> + 'a>;

/// Ours begin with `ringmem`, partial baselines with `alone:`.
struct Subject<'a> {
    name: &'static str,
    turn: Turn<'a>,
}

struct Workload<'a> {
    name: &'static str,
    unit: &'static str,
    aim: f64,
    subjects: Vec<Subject<'a>>,
}

pub fn run(report: &mut Report, backend: &Arc<CudaBackend>, cases: &[&'static str], bytes: usize, time: Duration) -> Result<(), Failure> {
    let (gpu, module) = (Gpu::open(backend)?, Module::load(backend, &IMAGE, &ABI)?);
    gpu.keep_freed_memory()?;
    if !time.is_zero() {
        gpu.raise_clocks(CLOCKS)?;
    }
    let rig = Rig { backend: Arc::clone(backend), gpu, module, bytes, time, source: report.source.clone() };
    for &case in cases {
        report.fact(case, || {
            match case {
                "h2d" | "d2h" | "d2d" => copies::large(&rig, case),
                "stream" | "stream-back" => files::stream(&rig, case),
                "flush" | "flush-16M" | "flush-large" | "flush-back" | "flush-back-large" => copies::flush(&rig, case),
                "overlap" => copies::overlap(&rig),
                "round-trip" | "round-trip-p99" | "flagged-trip" => kernels::round_trip(&rig, case),
                "accounts" => kernels::accounts(&rig),
                "messages" => kernels::messages(&rig),
                "messages-8" => kernels::many(&rig),
                pool => pools::warm(&rig, pool),
            }?;
            Ok("measured".to_owned())
        });
    }
    Ok(rig.gpu.close()?)
}

impl Rig {
    /// Gives the subjects turns, one after another, and prints a row for each.
    fn measure(&self, workload: Workload<'_>) -> Result<(), Failure> {
        let Workload { name, unit, aim, mut subjects } = workload;
        let mut samples = vec![Vec::new(); subjects.len()];
        let begun = Instant::now();
        for round in 0..*TURNS.end() {
            if round >= *TURNS.start() && begun.elapsed() > self.time {
                break;
            }
            for (subject, samples) in subjects.iter_mut().zip(&mut samples) {
                samples.push((subject.turn)()?);
            }
        }
        for samples in &mut samples {
            samples.sort_by(f64::total_cmp);
        }
        let mut rows: Vec<(&str, [f64; 3])> = subjects
            .iter()
            .zip(&samples)
            .filter_map(|(subject, samples)| Some((subject.name, [*samples.get(samples.len() / 2)?, *samples.first()?, *samples.last()?])))
            .collect();
        rows.sort_by(|(_, [one, ..]), (_, [other, ..])| one.total_cmp(other));
        let is_limit = |name: &str| !name.starts_with("ringmem") && !name.starts_with("alone:");
        let limit = rows.iter().find(|(name, _)| is_limit(name)).map(|(_, [median, ..])| *median);
        for (subject, [median, low, high]) in rows {
            Row { workload: name, subject, unit, median, low, high, aim: Some(aim), aim_ns: None, limit }.print(&self.source);
        }
        Ok(())
    }
}
