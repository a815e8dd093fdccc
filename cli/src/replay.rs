//! `ringmem replay`: a trace of allocations, run on a pool of one's choice.
//!
//! 1. It runs twice, each time on a backend of its own: for the time, with nothing between one event and the next, and for the figures, which are
//!    read when most is asked for at once and at the end. What the trace leaves live is freed after that.
//! 2. Its streams are opened, and blocks are taken and freed in their order; nothing is queued on them, so no use is ever open.
//! 3. A request that finds no memory is counted, and its free is left out: it is no odd one. It is no failure.

mod report;

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use ringmem::backend::host::{Builder, HostBackend};
use ringmem::describe;
use ringmem::memory::{Device, Event, Outcome, Trace};
use ringmem::pool::{Classes, Pool, SlabView, Statistics};
use ringmem::stream::Stream;
use ringmem::streaming::{FileSource, Source};

use super::{Failure, Outcome as Done, absurd, chain, failed, size};

#[derive(clap::Args)]
pub(super) struct Arguments {
    /// What a `Logged` memory wrote down
    trace: PathBuf,
    /// The most bytes that the pool holds
    #[arg(long, default_value = "4GiB", allow_hyphen_values = true, value_parser = size::parse)]
    pool_limit: u64,
    /// Bytes that the pool takes at once
    #[arg(long, default_value = "32MiB", allow_hyphen_values = true, value_parser = size::parse)]
    slab: u64,
    /// Size classes from one power of two to the next: 1, 2, 4 or 8
    #[arg(long, default_value_t = 4, allow_negative_numbers = true, value_parser = steps)]
    sub_steps: u32,
    /// Blocks as long as what was asked for, to 256 bytes
    #[arg(long)]
    exact: bool,
    /// Every block from the device, and back to it
    #[arg(long, conflicts_with_all = ["pool_limit", "slab", "sub_steps", "exact"])]
    no_pool: bool,
    /// Device memory that the backend has
    #[arg(long, default_value = "1GiB", allow_hyphen_values = true, value_parser = size::parse)]
    device_memory: u64,
    /// Draw the slabs as they are when most is asked for
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Where the memory is
    #[arg(long, value_enum, default_value_t = Backend::Auto)]
    backend: Backend,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Where the memory is. What is replayed is counted in the backend, so it is the simulated one.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Backend {
    /// The host backend
    Auto,
    /// Device memory simulated
    Host,
}

/// A trace of more bytes, or of more events, is a mistake. Each event takes some hundred bytes while it is run.
const LONGEST: u64 = 1 << 30;
const EVENTS: usize = 1 << 24;
/// Each is a thread.
const STREAMS: u64 = 256;

fn steps(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(steps @ (1 | 2 | 4 | 8)) => Ok(steps),
        _ => Err("there are 1, 2, 4 or 8 classes an octave".to_owned()),
    }
}

pub(super) fn run(arguments: &Arguments, out: &mut dyn std::io::Write) -> Done {
    let (Backend::Auto | Backend::Host) = arguments.backend;
    let mut source = FileSource::open(&arguments.trace).map_err(Failure::fact)?;
    if let Some(path) = &arguments.svg
        && source.is_at(path).map_err(Failure::fact)?
    {
        return Err(Failure::Usage(format!("--svg {} is {} itself", path.display(), arguments.trace.display())));
    }
    let trace = read(&mut source)?;
    let mut tally = Tally::default();

    let rig = Rig::new(arguments, &trace)?;
    let begun = Instant::now();
    let outcomes = trace.replay(&rig.pool, &rig.streams)?;
    let elapsed = begun.elapsed();
    for (event, outcome) in trace.events().iter().zip(outcomes) {
        tally.count(event, outcome);
    }
    drop(rig);

    let seen = observe(arguments, &trace, tally.peak_after)?;
    if let Some(path) = &arguments.svg {
        let picture = describe::slabs(&seen.slabs).to_string();
        std::fs::write(path, picture).map_err(|error| of_file(path, &error))?;
    }
    report::Report { arguments, trace: &trace, tally: &tally, seen: &seen, elapsed }.print(out)?;
    Ok(())
}

/// What went wrong with a file, with its name.
fn of_file(path: &Path, fact: &dyn std::fmt::Display) -> Failure {
    Failure::Fact(format!("{}: {fact}", path.display()))
}

fn read(source: &mut FileSource) -> Result<Trace, Failure> {
    let path = source.path().to_owned();
    let fact = |fact: &dyn std::fmt::Display| of_file(&path, fact);
    if source.len() > LONGEST {
        return Err(fact(&format_args!("a trace of more than {}", size::show(LONGEST))));
    }
    let mut bytes = vec![0; source.len() as usize];
    source.read_exact(&mut bytes, 0).and_then(|()| source.check()).map_err(|cause| failed(&path, cause))?;
    if bytes.iter().filter(|&&byte| byte == b'\n').count() > EVENTS {
        return Err(fact(&format_args!("a trace of more than {EVENTS} events")));
    }
    let text = str::from_utf8(&bytes).map_err(|error| {
        let lines = bytes.iter().take(error.valid_up_to()).filter(|&&byte| byte == b'\n').count();
        fact(&format_args!("line {} is no text", lines + 1))
    })?;
    let trace = Trace::parse(text).map_err(|error| fact(&error))?;
    if trace.streams() > STREAMS {
        return Err(fact(&format_args!("the trace names {} streams where {STREAMS} are opened at most", trace.streams())));
    }
    Ok(trace)
}

/// What a trace runs on.
struct Rig {
    streams: Vec<Stream>,
    pool: Pool<Device>,
    backend: Arc<HostBackend>,
}

impl Rig {
    fn new(arguments: &Arguments, trace: &Trace) -> Result<Self, Failure> {
        let builder: Builder = HostBackend::builder().device_memory(arguments.device_memory);
        let backend = builder.build().map_err(|error| absurd("--device-memory", error))?;
        let pool = Pool::builder(Device::new(&backend, 0));
        let pool = if arguments.no_pool {
            pool.enabled(false).limit(u64::MAX)
        } else {
            let classes = Classes::new(4096, 21, arguments.sub_steps)?;
            pool.limit(arguments.pool_limit).slab(arguments.slab).classes(classes).exact(arguments.exact)
        };
        let pool = pool.build().map_err(|error| absurd("--slab", error))?;
        let streams = (0..trace.streams()).map(|_| Stream::new(&backend, 0)).collect::<Result<_, _>>()?;
        Ok(Self { streams, pool, backend })
    }
}

/// What came of a trace's events.
#[derive(Default)]
struct Tally {
    given: u64,
    refused: u64,
    freed: u64,
    /// Frees of blocks that there are not, but for those that were refused.
    not_live: u64,
    /// Frees that failed.
    failed: u64,
    /// The first that was refused: its line, and why.
    first_refusal: Option<(u64, String)>,
    events: u64,
    /// Bytes asked for and live, now and at most.
    live: u64,
    peak: u64,
    /// After which event the most were, the first such.
    peak_after: u64,
    /// Bytes of live blocks, by number.
    sizes: HashMap<u64, u64>,
    /// Blocks that the trace had and this run was refused.
    missing: HashSet<u64>,
}

impl Tally {
    fn count(&mut self, event: &Event, outcome: Outcome) {
        self.events += 1;
        match outcome {
            Outcome::Allocated => {
                self.given += 1;
                // What the trace was refused is given back at once.
                if let Event::Alloc { block, size, .. } = *event {
                    self.sizes.insert(block, size);
                    self.live += size;
                }
            }
            Outcome::Refused(error) => {
                self.refused += 1;
                self.first_refusal.get_or_insert_with(|| (self.events, chain(&error)));
                if let Event::Alloc { block, .. } = *event {
                    self.missing.insert(block);
                }
            }
            Outcome::Freed | Outcome::FreeFailed(_) => {
                self.freed += 1;
                self.failed += u64::from(matches!(outcome, Outcome::FreeFailed(_)));
                if let Event::Free { block, .. } = event {
                    self.live -= self.sizes.remove(block).unwrap_or(0);
                }
            }
            Outcome::NotLive => self.not_live += u64::from(!matches!(event, Event::Free { block, .. } if self.missing.remove(block))),
        }
        if self.live > self.peak {
            (self.peak, self.peak_after) = (self.live, self.events);
        }
    }
}

/// What a pool said of itself.
#[derive(Default)]
struct Seen {
    peak: Statistics,
    /// At the peak.
    slabs: Vec<SlabView>,
    end: Statistics,
    driver_allocations: u64,
}

fn observe(arguments: &Arguments, trace: &Trace, peak_after: u64) -> Result<Seen, Failure> {
    let rig = Rig::new(arguments, trace)?;
    let (mut seen, mut events, last) = (Seen::default(), 0, trace.events().len() as u64);
    trace.replay_with(&rig.pool, &rig.streams, |_| {
        events += 1;
        if events == peak_after {
            (seen.peak, seen.slabs) = (rig.pool.statistics(), rig.pool.snapshot());
        }
        if events == last {
            seen.end = rig.pool.statistics();
            seen.driver_allocations = rig.backend.counters().device_allocations.count;
        }
    })?;
    Ok(seen)
}
