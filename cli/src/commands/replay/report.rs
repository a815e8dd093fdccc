use std::fmt::Display;
use std::io::{self, Write};
use std::time::Duration;

use ringmem::memory::Trace;
use serde_json::{Value, json};

use super::{Arguments, Seen, Tally};
use crate::{counted, json_line, nanoseconds, shown, size};

pub(super) struct Report<'a> {
    pub(super) arguments: &'a Arguments,
    pub(super) trace: &'a Trace,
    pub(super) tally: &'a Tally,
    pub(super) seen: &'a Seen,
    pub(super) elapsed: Duration,
}

impl Report<'_> {
    pub(super) fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        if self.arguments.json { writeln!(out, "{}", json_line(&self.json())) } else { self.page(out) }
    }

    fn json(&self) -> Value {
        let Self { arguments, tally, seen, .. } = self;
        let refusal = tally.first_refusal.as_ref().map(|(line, why)| json!({ "line": line, "why": why }));
        let pool = (!arguments.no_pool).then(|| {
            json!({
                "limit": arguments.pool_limit, "slab": arguments.slab, "sub_steps": arguments.sub_steps, "exact": arguments.exact,
            })
        });
        json!({
            "events": tally.events,
            "streams": self.trace.streams(),
            "allocations": tally.given,
            "refused": tally.refused,
            "first_refusal": refusal,
            "frees": tally.freed,
            "failed_frees": tally.failed,
            "frees_of_nothing": tally.not_live,
            "hits": seen.end.hits,
            "misses": seen.end.misses,
            "hit_rate": arguments.has_cache().then(|| seen.end.hit_rate()),
            "driver_allocations": seen.driver_allocations,
            "requested_peak": tally.peak,
            "held_at_peak": seen.peak.held_bytes,
            "reserved_peak": seen.end.reserved_peak,
            "live_at_end": tally.live,
            "fragmentation": { "peak": seen.peak.fragmentation(), "end": seen.end.fragmentation() },
            "waste": { "peak": seen.peak.internal_waste(), "end": seen.end.internal_waste() },
            "elapsed_ns": nanoseconds(self.elapsed),
            "pool": pool,
            "device_memory": arguments.device_memory,
            "backend": "host",
        })
    }

    fn page(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { arguments, tally, seen, .. } = self;
        writeln!(out, "{}: {} on {}", shown(&arguments.trace), counted(tally.events, "event"), counted(self.trace.streams(), "stream"))?;
        match arguments.no_pool {
            true => writeln!(out, "  pool           none, {} of device memory", size::show(arguments.device_memory))?,
            false => writeln!(
                out,
                "  pool           {}, {} classes per power of two{}, limit {}, {} of device memory",
                match arguments.slab {
                    None if cfg!(target_os = "linux") => "one address range".to_owned(),
                    slab => format!("slabs of {}", size::show(slab.unwrap_or(32 << 20))),
                },
                arguments.sub_steps,
                if arguments.exact { ", exact blocks" } else { "" },
                size::show(arguments.pool_limit),
                size::show(arguments.device_memory)
            )?,
        }
        writeln!(out, "  allocations    {} given, {} refused; {} freed", tally.given, tally.refused, tally.freed)?;
        if let Some((line, why)) = &tally.first_refusal {
            writeln!(out, "  first refusal  line {line}: {why}")?;
        }
        if tally.not_live + tally.failed > 0 {
            writeln!(out, "  bad frees      {} of unknown blocks, {} failed", tally.not_live, tally.failed)?;
        }
        match (arguments.no_pool, arguments.has_cache()) {
            (_, true) => writeln!(out, "  hits           {} of {}, {}", seen.end.hits, seen.end.acquires(), percent(seen.end.hit_rate()))?,
            (true, false) => writeln!(out, "  hits           none: without a pool, each request is a driver allocation")?,
            (false, false) => writeln!(out, "  hits           none: blocks of exact size are not cached, the heap serves each request")?,
        }
        writeln!(out, "  driver         {}", counted(seen.driver_allocations, "allocation"))?;
        writeln!(
            out,
            "  peak           {} requested, {} in blocks, {} reserved at most",
            size::show(tally.peak),
            size::show(seen.peak.held_bytes),
            size::show(seen.end.reserved_peak)
        )?;
        let [peak, end] = [&seen.peak, &seen.end];
        writeln!(
            out,
            "  fragmentation  {} at the peak, {} at the end, of the free bytes",
            percent(peak.fragmentation()),
            percent(end.fragmentation())
        )?;
        writeln!(
            out,
            "  waste          {} at the peak, {} at the end, of the bytes in blocks",
            percent(peak.internal_waste()),
            percent(end.internal_waste())
        )?;
        let each = nanoseconds(self.elapsed).checked_div(tally.events).unwrap_or(0);
        writeln!(out, "  time           {:.3} ms, {each} ns an event", self.elapsed.as_secs_f64() * 1e3)?;
        writeln!(out, "  backend        host: device memory is simulated, and never touched")
    }
}

fn percent(part: f64) -> impl Display {
    std::fmt::from_fn(move |f| write!(f, "{:.1} %", part * 100.0))
}
