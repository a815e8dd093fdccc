use std::io::{self, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant};

use ringmem::TelemetryBuffer;
use ringmem::channel::Closed;
use ringmem::streaming::{self, Interrupted, Job, Stage, Streamed, Streamer};
use serde_json::{Value, json};

use super::{Answer, Arguments, Shape};
use crate::progress::Bar;
use crate::selection::Selected;
use crate::{chart, counted, json_line, nanoseconds, percentile, percentiles, shown, size};

pub(super) struct Progress {
    bar: Bar,
    lines: bool,
    /// A closed output does not end a run that writes a file.
    writes: bool,
    length: Option<u64>,
    shown: Instant,
}

impl Progress {
    pub(super) fn new(length: Option<u64>, Arguments { json, out, .. }: &Arguments) -> Self {
        let bar = Bar::new(!*json, length, length.map_or("{spinner} {size} {rate}", |_| "{wide_bar} {size} of {sizes} {rate}"));
        Self { lines: !bar.is_shown() && !*json, bar, writes: out.is_some(), length, shown: Instant::now() }
    }

    pub(super) fn watch<S: Stage>(&mut self, streamer: &mut Streamer, job: Job<'_>, stage: &mut S, out: &mut dyn Write) -> Watched {
        let mut printed = Ok(());
        let mut shown = |progress: streaming::Progress| match self.show(progress.done, out) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                printed = Err(error);
                ControlFlow::Break(())
            }
        };
        let streamed = streamer.run(job.on_progress(&mut shown), stage);
        printed.map(|()| streamed)
    }

    fn show(&mut self, done: u64, out: &mut dyn Write) -> io::Result<()> {
        self.bar.set(done);
        if self.lines && self.shown.elapsed() > Duration::from_secs(1) {
            self.shown = Instant::now();
            let of = self.length.map_or_else(String::new, |length| format!(" of {}", size::show(length)));
            match writeln!(out, "{}{of}", size::show(done)) {
                Err(error) if self.writes && error.kind() == io::ErrorKind::BrokenPipe => self.lines = false,
                printed => printed?,
            }
        }
        Ok(())
    }

    pub(super) fn finish(&self) {
        self.bar.clear();
    }
}

type Watched = io::Result<Result<Streamed, Interrupted>>;

pub(super) struct Run {
    pub(super) answer: Answer,
    pub(super) bytes: u64,
    pub(super) chunks: u64,
    pub(super) elapsed: Duration,
    pub(super) round_trips: Vec<u64>,
    pub(super) high_water: [usize; 2],
    pub(super) closed: Closed,
    pub(super) pinned: (usize, usize),
}

pub(super) struct Report<'a> {
    pub(super) name: &'a Path,
    pub(super) arguments: &'a Arguments,
    pub(super) columns: Option<usize>,
    pub(super) selected: &'a Selected,
    pub(super) shape: &'a Shape,
    pub(super) run: &'a Run,
    pub(super) length: u64,
    pub(super) reference_time: Duration,
    pub(super) verified: bool,
}

impl Report<'_> {
    pub(super) fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        if self.arguments.json { writeln!(out, "{}", json_line(&self.json())) } else { self.page(out) }
    }

    fn json(&self) -> Value {
        let Self { arguments, run, .. } = self;
        let ring = |high_water: usize| json!({ "capacity": arguments.ring_capacity, "high_water": high_water });
        json!({
            "bytes": run.bytes,
            "chunks": run.chunks,
            "histogram": run.answer.histogram.as_slice(),
            "checksum": format!("{:016x}", run.answer.checksum),
            "entropy_bits": chart::entropy(&run.answer.histogram),
            "elapsed_ns": nanoseconds(run.elapsed),
            "throughput_bytes_per_s": rate(run.bytes, run.elapsed),
            "reference_bytes_per_s": rate(self.length, self.reference_time),
            "round_trip_ns": percentiles(&run.round_trips),
            "ring": { "input": ring(run.high_water[0]), "output": ring(run.high_water[1]) },
            "telemetry": telemetry(&run.closed.telemetry),
            "max_resident_bytes": max_resident_bytes(),
            "backend": self.selected.backend.name(),
            "why": self.selected.why,
            "verified": self.verified,
        })
    }

    fn page(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { name, arguments, shape, run, .. } = self;
        let (throughput, reference) = (rate(run.bytes, run.elapsed), rate(self.length, self.reference_time));
        let chunks = counted(run.chunks, "chunk");
        writeln!(out, "{}: {} in {chunks} of {}", shown(name), size::show(run.bytes), size::show(shape.chunk))?;
        chart::draw(&run.answer.histogram, self.columns, out)?;
        writeln!(out, "  checksum    {:016x}, {}", run.answer.checksum, if self.verified { "verified" } else { "WRONG" })?;
        writeln!(out, "  entropy     {:.4} bits a byte", chart::entropy(&run.answer.histogram))?;
        writeln!(out, "  time        {:.3} ms", run.elapsed.as_secs_f64() * 1e3)?;
        writeln!(
            out,
            "  throughput  {}/s; the same function on the host: {}/s",
            size::show(throughput as u64),
            size::show(reference as u64)
        )?;
        if let (Some(p50), Some(p99)) = (percentile(&run.round_trips, 50, 100), percentile(&run.round_trips, 99, 100)) {
            writeln!(out, "  round trip  p50 {:.1} us, p99 {:.1} us, counting included", p50 as f64 / 1e3, p99 as f64 / 1e3)?;
        }
        let [input, output] = run.high_water;
        writeln!(out, "  rings       {} each, at most {input} and {output} in use", counted(arguments.ring_capacity, "slot"))?;
        let seen = &run.closed.telemetry;
        writeln!(
            out,
            "  telemetry   {}, {} refused, mean {} ns each",
            counted(seen.processed, "message"),
            seen.dropped,
            seen.latency_mean().unwrap_or(0)
        )?;
        let (buffers, locked) = run.pinned;
        writeln!(
            out,
            "  memory      {} on the device; {locked} of {} page-locked",
            size::show(shape.slots * shape.chunk),
            counted(buffers as u64, "staging buffer")
        )?;
        writeln!(out, "  backend     {}", self.selected.words())
    }
}

fn telemetry(seen: &TelemetryBuffer<u64>) -> Value {
    json!({
        "sequence": seen.sequence,
        "processed": seen.processed,
        "dropped": seen.dropped,
        "latency_total_ns": seen.latency_total_ns,
        "latency_min_ns": seen.latency_min_ns,
        "latency_max_ns": seen.latency_max_ns,
        "depths": seen.depths,
        "updated_ns": seen.updated_ns,
    })
}

pub(super) fn rate(bytes: u64, time: Duration) -> f64 {
    if bytes == 0 { 0.0 } else { bytes as f64 / time.as_secs_f64().max(1e-9) }
}

pub(super) fn max_resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}
