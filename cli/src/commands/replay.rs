//! `ringmem replay`: replays recorded allocations on this pool and on models of other allocators.
//!
//! 1. The requests run once on the pool with the user's options, for the time and the figures, which are read at the end. To read them earlier would change
//!    later ones, because it coalesces free blocks. So the figures at the peak are of a second run, on a new backend, which ends there. Both runs are equal up
//!    to the peak. All figures of the report are of these two.
//! 2. A file of the run is of a run of its own. The samples of a snapshot may change its later figures and refusals; a table of calls alone needs no samples.
//! 3. Nothing is queued on the streams, so no use is ever pending.
//! 4. A snapshot has the pool at the peak and at the end, samples between events, and each event. Times are the replay's.
//! 5. A request that is refused is counted and its free is skipped. The replay still succeeds. Requests that no memory serves, whatever its limit, are counted
//!    apart.

mod limit;
mod policies;
mod report;

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ringmem::Error;
use ringmem::backend::Backend as _;
use ringmem::backend::host::{Builder, HostBackend};
use ringmem::memory::{Call, Device, Event, Logged, Outcome, Trace};
use ringmem::pool::{Classes, Pool, Statistics};
use ringmem::snapshot::{self, Snapshot};
use ringmem::stream::Stream;
use ringmem_recordings::{self as recordings, Format, NameId, Recording};

use super::recorded::{contents, no_allocations, of_file, parse};
use crate::progress::Bar;
use crate::{Failure, Outcome as Done, absurd, chain, opened, output, size};

pub(super) const EXAMPLES: &str = "\
Examples:
  ringmem replay snapshot.pickle
  ringmem replay snapshot.pickle --device 1 --limit 40GiB
  ringmem replay snapshot.pickle --least
  ringmem replay rmm_log.csv --limit 24GiB --json
  ringmem replay app.trace --limit 1GiB --slab 2MiB
  ringmem replay app.trace --snapshot memory.json
  ringmem replay app.trace --csv memory.csv";

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Recorded allocations: a snapshot of PyTorch, a log of RMM, or a trace, table or snapshot of ringmem
    file: PathBuf,
    /// Memory of the device, such as 40GiB; without it, as much as each policy needs
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true, value_parser = size::parse)]
    limit: Option<u64>,
    /// Find for each policy, by bisection, a limit with which it refuses nothing. A smaller limit may suffice too, and a larger one may not, because allocators
    /// round. Repeats the replay ten to thirty times for each policy
    #[arg(long, conflicts_with = "limit")]
    least: bool,
    /// Only this device of the file
    #[arg(long, value_name = "NUMBER")]
    device: Option<u32>,
    /// Take memory in slabs of this size, such as 32MiB, not behind one address range
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true, value_parser = size::parse)]
    slab: Option<u64>,
    /// Size classes per power of two: 1, 2, 4 or 8
    #[arg(long, default_value_t = SUB_STEPS, allow_negative_numbers = true, value_parser = steps)]
    sub_steps: u32,
    /// Give blocks the requested size, rounded up to 256 bytes, instead of the size of their class
    #[arg(long)]
    exact: bool,
    /// Allocate every block from the device, without a pool
    #[arg(long, conflicts_with_all = ["slab", "sub_steps", "exact"])]
    no_pool: bool,
    /// Write a snapshot of the replay for `ringmem view`
    #[arg(long, value_name = "FILE")]
    snapshot: Option<PathBuf>,
    /// Write the calls to the replaying pool as comma-separated values
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Where the memory is
    #[arg(long, value_enum, default_value_t = Backend::Auto)]
    backend: Backend,
    /// Print a JSON object for each device
    #[arg(long)]
    pub json: bool,
}

/// Of the pool's size classes, by default.
const SUB_STEPS: u32 = 4;

impl Arguments {
    /// Whether the replay has hits: only blocks of size classes are cached.
    const fn has_cache(&self) -> bool {
        !self.no_pool && !self.exact
    }
}

/// Where the memory is. Both values mean the simulated device, because its backend counts its allocations.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Backend {
    /// The host backend
    Auto,
    /// The host backend, with simulated device memory
    Host,
}

/// The memory of a simulated device at most.
const DEVICE: u64 = 1 << 40;
/// Addresses that the pool reserves for each byte of its limit, and at most.
const ADDRESSES: (u64, u64) = (16, 1 << 40);

/// The memory of the simulated device. Without a limit: more than any policy needs for so many bytes in all.
///
/// It is not in proportion to the peak: with less than 64 pages of 2 MiB the pool has one zone of addresses instead of two, so the figures of recordings with
/// a low peak would change.
fn device_bytes(arguments: &Arguments, trace: &Trace, limit: Option<u64>) -> u64 {
    // A class is up to twice a request, and a slab up to twice the classes that fit, as its rest is shorter than one. By default they hardly meet.
    let factor = if arguments.slab.is_some() || arguments.sub_steps == 1 { 4 } else { 2 };
    let requested = |event: &Event| if let Event::Alloc { size, .. } | Event::Refused { size, .. } = *event { size } else { 0 };
    let enough = |requested: u64| requested.saturating_mul(factor).saturating_add(1 << 30).min(DEVICE);
    limit.unwrap_or_else(|| enough(trace.events().iter().map(requested).fold(0, u64::saturating_add)))
}

/// Most events. Each takes some hundred bytes during a replay.
const EVENTS: usize = 1 << 24;
/// Most samples of a snapshot: about a page's columns of pixels.
const SAMPLES: u64 = 2000;
/// The bar's steps in the timed pass.
const EVENTS_A_STEP: u64 = 4096;
/// Most streams; each is a thread.
const STREAMS: u64 = 256;

fn steps(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(steps @ (1 | 2 | 4 | 8)) => Ok(steps),
        _ => Err("expected 1, 2, 4 or 8".to_owned()),
    }
}

pub(super) fn run(arguments: &Arguments, out: &mut dyn std::io::Write) -> Done {
    let (Backend::Auto | Backend::Host) = arguments.backend;
    let mut source = opened(&arguments.file)?;
    let files = [("--snapshot", &arguments.snapshot), ("--csv", &arguments.csv)];
    for (option, path) in files {
        if let Some(path) = path
            && source.is_at(path).map_err(Failure::fact)?
        {
            return Err(Failure::Usage(format!("{option} {} is {} itself", path.display(), arguments.file.display())));
        }
    }
    if let (Some(snapshot), Some(csv)) = (&arguments.snapshot, &arguments.csv)
        && in_its_folder(snapshot) == in_its_folder(csv)
    {
        return Err(Failure::Usage(format!("--csv and --snapshot name one file, {}", csv.display())));
    }
    let mut recording = parse(contents(&mut source)?, EVENTS).map_err(|fact| of_file(&arguments.file, &fact))?;
    let has_history = has_history(&recording);
    let numbers: Vec<String> = recording.devices.iter().map(|device| device.number.to_string()).collect();
    if let Some(wanted) = arguments.device {
        recording.devices.retain(|device| device.number == wanted);
        if recording.devices.is_empty() {
            let there = if numbers.is_empty() { "none".to_owned() } else { numbers.join(", ") };
            return Err(of_file(&arguments.file, &format_args!("no device {wanted}; the file has {there}")));
        }
    }
    if let [_, _, ..] = recording.devices[..]
        && let Some((option, _)) = files.iter().find(|(_, path)| path.is_some())
    {
        return Err(Failure::Usage(format!("{option} is of one device: --device, one of {}", numbers.join(", "))));
    }
    if recording.devices.iter().all(|device| device.events.is_empty()) {
        return Err(of_file(&arguments.file, &no_allocations(&recording)));
    }
    for device in &recording.devices {
        one(arguments, &recording, device, has_history, out)?;
    }
    Ok(())
}

fn one(arguments: &Arguments, recording: &Recording, device: &recordings::Device, has_history: bool, out: &mut dyn std::io::Write) -> Done {
    let trace = device.trace();
    if trace.streams() > STREAMS {
        let fact = format_args!("the trace has {} streams, more than the maximum of {STREAMS}", trace.streams());
        return Err(of_file(&arguments.file, &fact));
    }
    // If nothing is refused.
    let mut expected = Tally::default();
    for event in trace.events() {
        expected.count(event, if matches!(event, Event::Free { .. }) { Outcome::Freed } else { Outcome::Allocated });
    }
    if arguments.limit.is_none() && expected.peak > DEVICE {
        let Tally { peak, peak_after, .. } = expected;
        let fact = format_args!(
            "event {peak_after}: {} are live, and a simulated device has at most {}; with --limit, the rest is refused",
            size::show(peak),
            size::show(DEVICE)
        );
        return Err(of_file(&arguments.file, &fact));
    }

    let bar = Bar::new(!arguments.json, Some(trace.events().len() as u64), "{wide_bar} {pos} of {len} events, {msg}");
    bar.say("timed pass");
    let rig = Rig::new(arguments, &trace, arguments.slab, arguments.limit)?;
    let (tally, figures, elapsed) = timed(&rig, &trace, &bar)?;
    let has_further = arguments.snapshot.is_some() || arguments.csv.is_some() || arguments.least;
    let end = |rig: Rig| match recording.devices[..] {
        // The program ends soon: to free each mapped block first would take it half as long as the replay. Of many rigs, the addresses would not suffice.
        [_] if !has_further => core::mem::forget(rig),
        _ => drop(rig),
    };
    let peak = if tally.peak_after == tally.events {
        end(rig);
        figures.end
    } else {
        drop(rig);
        bar.say("pass to the peak");
        let rig = Rig::new(arguments, &trace, arguments.slab, arguments.limit)?;
        let peak = at_the_peak(&rig, &trace, tally.peak_after, &bar)?;
        end(rig);
        peak
    };
    let mut observed = Observed::default();
    if arguments.snapshot.is_some() || arguments.csv.is_some() {
        bar.say("observed pass");
        observed = observe(arguments, recording, device, &trace, tally.peak_after, &bar)?;
    }
    bar.say("other policies");
    let live = device.peak().0;
    let mut policies = policies::all(arguments, device, &trace, &tally, &figures.end, &bar)?;
    if arguments.least && has_history {
        bar.say("least limits");
        policies::find_least(arguments, device, &trace, live, &mut policies, &bar)?;
    }
    drop(bar);
    if let Some(path) = &arguments.snapshot {
        output::replace(path, observed.snapshot.to_json().as_bytes())?;
    }
    if let Some(path) = &arguments.csv {
        output::replace(path, snapshot::csv(&observed.calls).to_string().as_bytes())?;
    }
    let report = report::Report {
        arguments,
        recording,
        device,
        trace: &trace,
        live,
        has_history,
        tally: &tally,
        peak: &peak,
        figures: &figures,
        policies: &policies,
        elapsed,
    };
    report.print(out)?;
    Ok(())
}

/// False for a snapshot of PyTorch without events of any device: it has only the blocks that were live when it was written, which tell little of the memory
/// that the program needed.
fn has_history(recording: &Recording) -> bool {
    recording.format != Format::PyTorch || recording.devices.iter().any(|device| device.events.len() > device.before)
}

/// The same for two paths of one file, which need not exist yet.
fn in_its_folder(path: &Path) -> PathBuf {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    folder.canonicalize().unwrap_or_else(|_| folder.to_owned()).join(path.file_name().unwrap_or_default())
}

struct Rig {
    streams: Vec<Stream>,
    pool: Pool<Device>,
    backend: Arc<HostBackend>,
}

impl Rig {
    fn new(arguments: &Arguments, trace: &Trace, slab: Option<u64>, limit: Option<u64>) -> Result<Self, Failure> {
        let memory = device_bytes(arguments, trace, limit);
        // The memory is never read: a pool of any size is replayed without any.
        let builder: Builder = HostBackend::builder().device_memory(memory).poison(false);
        let backend = builder.build().map_err(|error| arguments.no_addresses(error))?;
        // Without addresses the pool would take slabs in silence, and have other figures.
        if cfg!(target_os = "linux") && !arguments.no_pool && slab.is_none() {
            let (each, most) = ADDRESSES;
            backend.reserve(0, memory.saturating_mul(each).min(most)).map_err(|error| arguments.no_addresses(error))?;
        }
        let pool = Pool::builder(Device::new(&backend, 0));
        let pool = if arguments.no_pool {
            pool.enabled(false).limit(u64::MAX)
        } else {
            let classes = Classes::new(4096, 21, arguments.sub_steps)?;
            let pool = pool.limit(memory).classes(classes).exact(arguments.exact);
            if let Some(slab) = slab { pool.slab(slab) } else { pool }
        };
        let pool = pool.build().map_err(|error| absurd("--slab", error))?;
        let streams = (0..trace.streams()).map(|_| Stream::new(&backend, 0)).collect::<Result<_, _>>()?;
        Ok(Self { streams, pool, backend })
    }
}

impl Arguments {
    /// The failure of a simulated device, whose size is an option's only if that is given.
    fn no_addresses(&self, error: ringmem::Error) -> Failure {
        let option = if self.limit.is_some() { "--limit: " } else { "" };
        match error {
            ringmem::Error::Map { bytes, source } => Failure::Fact(format!(
                "{option}cannot reserve {bytes} bytes of addresses for the simulated device: {source}; raise the limit of address space (`ulimit -v`), \
                 or try --no-pool or a lower --limit"
            )),
            error => absurd("--limit", error),
        }
    }
}

#[derive(Default)]
struct Tally {
    given: u64,
    refused: u64,
    freed: u64,
    /// Frees of unknown blocks, other than refused ones.
    not_live: u64,
    failed: u64,
    /// The first refused request: event number and error.
    first_refusal: Option<(u64, String)>,
    /// Requests that no limit lets succeed, such as those of an invalid alignment, and the first.
    impossible: u64,
    first_impossible: Option<(u64, String)>,
    events: u64,
    live: u64,
    peak: u64,
    /// The event that first reached the peak.
    peak_after: u64,
    sizes: HashMap<u64, u64>,
    /// Allocated by the trace, refused to this run.
    missing: HashSet<u64>,
}

impl Tally {
    fn count(&mut self, event: &Event, outcome: Outcome) {
        self.events += 1;
        match outcome {
            Outcome::Allocated => {
                self.given += 1;
                // A request that failed in the trace does not count: it is freed at once.
                if let Event::Alloc { block, size, .. } = *event {
                    self.sizes.insert(block, size);
                    // Sizes that no run is given may exceed 64 bits together: then their peak is wrong, and a second pass follows.
                    self.live = self.live.wrapping_add(size);
                }
            }
            Outcome::Refused(error) => {
                let (count, first) = match error {
                    Error::OutOfMemory { .. } | Error::Limit { .. } => (&mut self.refused, &mut self.first_refusal),
                    _ => (&mut self.impossible, &mut self.first_impossible),
                };
                *count += 1;
                first.get_or_insert_with(|| (self.events, chain(&error)));
                if let Event::Alloc { block, .. } = *event {
                    self.missing.insert(block);
                }
            }
            Outcome::Freed | Outcome::FreeFailed(_) => {
                self.freed += 1;
                self.failed += u64::from(matches!(outcome, Outcome::FreeFailed(_)));
                if let Event::Free { block, .. } = event {
                    self.live = self.live.wrapping_sub(self.sizes.remove(block).unwrap_or(0));
                }
            }
            Outcome::NotLive => self.not_live += u64::from(!matches!(event, Event::Free { block, .. } if self.missing.remove(block))),
        }
        if self.live > self.peak {
            (self.peak, self.peak_after) = (self.live, self.events);
        }
    }
}

/// The figures of a run at its end.
#[derive(Default)]
struct Figures {
    end: Statistics,
    driver_allocations: u64,
}

/// Returns the counts, the figures, and the time without that of counting, of reading these and of the bar.
fn timed(rig: &Rig, trace: &Trace, bar: &Bar) -> Result<(Tally, Figures, Duration), Failure> {
    let last = trace.events().len() as u64;
    let (mut outcomes, mut figures, mut reading) = (Vec::with_capacity(trace.events().len()), Figures::default(), Duration::ZERO);
    let begun = Instant::now();
    trace.replay_with(&rig.pool, &rig.streams, |outcome| {
        outcomes.push(outcome);
        let events = outcomes.len() as u64;
        if events == last || events.is_multiple_of(EVENTS_A_STEP) {
            let begun = Instant::now();
            bar.set(events);
            if events == last {
                figures = Figures { end: rig.pool.statistics(), driver_allocations: rig.backend.counters().device_allocations.count };
            }
            reading += begun.elapsed();
        }
    })?;
    let elapsed = begun.elapsed().saturating_sub(reading);
    let mut tally = Tally::default();
    for (event, outcome) in trace.events().iter().zip(outcomes) {
        tally.count(event, outcome);
    }
    Ok((tally, figures, elapsed))
}

/// Returns the figures after a number of events.
fn at_the_peak(rig: &Rig, trace: &Trace, peak_after: u64, bar: &Bar) -> Result<Statistics, Failure> {
    let (mut events, mut peak) = (0, Statistics::default());
    let before = trace.events().get(..peak_after as usize).unwrap_or_default();
    // The beginning of a valid trace is valid.
    let before = Trace::new(before.to_vec()).map_err(Failure::fact)?;
    before.replay_with(&rig.pool, &rig.streams, |_| {
        events += 1;
        if events == peak_after {
            peak = rig.pool.statistics();
        }
        if events.is_multiple_of(EVENTS_A_STEP) {
            bar.set(events);
        }
    })?;
    Ok(peak)
}

/// The files of a run.
#[derive(Default)]
struct Observed {
    /// Empty unless requested.
    snapshot: Snapshot,
    calls: Vec<Call>,
}

fn observe(
    arguments: &Arguments,
    recording: &Recording,
    device: &recordings::Device,
    trace: &Trace,
    peak_after: u64,
    bar: &Bar,
) -> Result<Observed, Failure> {
    let rig = Rig::new(arguments, trace, arguments.slab, arguments.limit)?;
    let (mut observed, mut events, last) = (Observed::default(), 0, trace.events().len() as u64);
    let log = Logged::new(rig.pool.clone());
    let stride = last.div_ceil(SAMPLES).max(1);
    // The index of each call's event: an event may be no call, or two.
    let mut of_calls = Vec::new();
    trace.replay_with(&log, &rig.streams, |_| {
        of_calls.resize(log.count(), events as usize);
        events += 1;
        bar.set(events);
        if arguments.snapshot.is_some() {
            if events % stride == 0 {
                observed.snapshot.sample("replay", &rig.pool.statistics());
            }
            if events == peak_after {
                observed.snapshot.slabs("replay at the peak", &rig.pool.statistics(), &rig.pool.snapshot());
            }
        }
        if events == last {
            let mut calls = log.calls();
            describe(&mut calls, &of_calls, recording, device);
            observed.snapshot.pool("replay", &rig.pool).calls("replay", &calls);
            observed.calls = calls;
        }
    })?;
    Ok(observed)
}

/// Gives each call the name, and of another library's recording the stream, of the event at its index in `of_calls`. The replay's own line is no line of the
/// recorded program, whose lines cannot be those of a call.
fn describe(calls: &mut [Call], of_calls: &[usize], recording: &Recording, device: &recordings::Device) {
    let mut names: HashMap<NameId, Option<Arc<str>>> = HashMap::new();
    for (call, &index) in calls.iter_mut().zip(of_calls) {
        call.caller = None;
        let (Some(event), Event::Alloc { on, .. } | Event::Refused { on, .. }) = (device.events.get(index), &mut call.event) else {
            continue;
        };
        call.name = names.entry(event.name).or_insert_with(|| recording.stacks.name(event.name).map(Arc::from)).clone();
        if on.is_none() && event.stream != recordings::NO_STREAM {
            *on = Some(event.stream);
        }
    }
}
