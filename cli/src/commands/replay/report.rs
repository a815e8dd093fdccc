use std::fmt::Display;
use std::io::{self, Write};
use std::time::Duration;

use ringmem::memory::Trace;
use ringmem::pool::Statistics;
use ringmem_recordings::{Device, Event, Format, Kind, NO_STREAM, Recording};
use serde_json::{Value, json};

use super::super::recorded::left_out;
use super::policies::{Policy, Rule, SLAB, step};
use super::{Arguments, Figures, SUB_STEPS, Tally, device_bytes, limit};
use crate::{counted, json_line, nanoseconds, plain, shown, size};

pub(super) struct Report<'a> {
    pub(super) arguments: &'a Arguments,
    pub(super) recording: &'a Recording,
    pub(super) device: &'a Device,
    pub(super) trace: &'a Trace,
    /// The most bytes live or refused at one time, as recorded.
    pub(super) live: u64,
    /// Of any device.
    pub(super) has_history: bool,
    pub(super) tally: &'a Tally,
    /// At the peak.
    pub(super) peak: &'a Statistics,
    /// At the end.
    pub(super) figures: &'a Figures,
    pub(super) policies: &'a [Policy],
    pub(super) elapsed: Duration,
}

/// As a setting has it: without a space, and not rounded.
fn in_full(bytes: u64) -> String {
    let shown = size::show(bytes).replace(' ', "");
    if size::parse(&shown) == Ok(bytes) { shown } else { format!("{bytes}B") }
}

impl Report<'_> {
    pub(super) fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        if self.arguments.json { writeln!(out, "{}", json_line(&self.json())) } else { self.page(out) }
    }

    fn json(&self) -> Value {
        let Self { arguments, tally, peak, figures, .. } = self;
        let end = &figures.end;
        let first = |refusal: &Option<(u64, String)>| refusal.as_ref().map(|(event, why)| json!({ "event": event, "why": why }));
        let pool = (!arguments.no_pool).then(|| {
            json!({
                "slab": arguments.slab, "sub_steps": arguments.sub_steps, "exact": arguments.exact,
            })
        });
        json!({
            "events": tally.events,
            "streams": self.streams(),
            "allocations": tally.given,
            "refused": tally.refused,
            "first_refusal": first(&tally.first_refusal),
            "impossible": tally.impossible,
            "first_impossible": first(&tally.first_impossible),
            "frees": tally.freed,
            "failed_frees": tally.failed,
            "frees_of_nothing": tally.not_live,
            "hits": end.hits,
            "misses": end.misses,
            "hit_rate": arguments.has_cache().then(|| end.hit_rate()),
            "driver_allocations": figures.driver_allocations,
            "driver_moves": end.memory_moves,
            "driver_frees": end.memory_frees,
            "requested_peak": tally.peak,
            "held_at_peak": peak.held_bytes,
            "reserved_peak": end.reserved_peak,
            "live_at_end": tally.live,
            "fragmentation": { "peak": peak.fragmentation(), "end": end.fragmentation() },
            "waste": { "peak": peak.internal_waste(), "end": end.internal_waste() },
            "elapsed_ns": nanoseconds(self.elapsed),
            "pool": pool,
            "limit": arguments.limit,
            "device": self.device.number,
            "name": self.device.name,
            "history": self.has_history,
            "live_before": self.device.before,
            "missing_frees": self.device.missing_frees,
            "unknown_frees": self.device.unknown_frees,
            "wanted_peak": self.live,
            "out_of_memory": self.out_of_memory(),
            "left_out": self.recording.left_out.iter().map(|part| json!({ "kind": part.kind, "count": part.count })).collect::<Vec<_>>(),
            "least_limit_step": (arguments.least && self.has_history).then(|| step(self.device, self.live)),
            "recorded_reserved": self.device.reserved.map(|reserved| reserved.peak),
            "policies": self.policies.iter().map(|policy| self.policy(policy)).collect::<Vec<_>>(),
            "backend": "host",
        })
    }

    fn streams(&self) -> u64 {
        match self.recording.format {
            Format::Ringmem => self.trace.streams(),
            _ => self
                .device
                .events
                .iter()
                .filter(|event| event.stream != NO_STREAM)
                .map(|event| u64::from(event.stream) + 1)
                .max()
                .unwrap_or(0),
        }
    }

    fn policy(&self, policy: &Policy) -> Value {
        let first = policy.first_refusal.and_then(|index| Some((index + 1, self.device.events.get(index)?)));
        json!({
            "policy": policy.rule.name(),
            "model": policy.rule.is_model(),
            "reserved_peak": policy.reserved,
            "of_peak": ratio(policy.reserved, self.live),
            "driver_calls": policy.calls,
            "refused": policy.refused,
            "least_limit": policy.least,
            "first_refusal": first.map(|(number, event)| self.request(number, event)),
            "impossible": policy.impossible,
            "first_impossible": policy.first_impossible.as_ref().map(|(index, why)| json!({ "event": index + 1, "why": why })),
        })
    }

    fn request(&self, number: usize, event: &Event) -> Value {
        json!({
            "event": number, "bytes": event.size, "name": self.recording.stacks.name(event.name),
            "place": self.place(event), "stack": self.stack(event),
        })
    }

    /// The requests that the recorded program was refused.
    fn refused(&self) -> impl Iterator<Item = (usize, &Event)> {
        (1..).zip(&self.device.events).filter(|(_, event)| event.kind == Kind::Refused)
    }

    fn out_of_memory(&self) -> Value {
        let first = self.refused().next();
        let index = first.map(|(number, _)| number - 1);
        json!({
            "count": self.refused().count(),
            "first": first.map(|(number, event)| self.request(number, event)),
            "device_free": index.and_then(|index| self.device.device_free(index)),
            "obtainable": index.and_then(|index| self.device.obtainable(index)),
        })
    }

    fn place(&self, event: &Event) -> Option<String> {
        self.recording.stacks.place(event.stack).map(|frame| frame.to_string())
    }

    fn stack(&self, event: &Event) -> Vec<String> {
        self.recording.stacks.frames(event.stack).map(|frame| frame.to_string()).collect()
    }

    fn page(&self, out: &mut dyn Write) -> io::Result<()> {
        self.head(out)?;
        self.table(out)?;
        self.details(out)
    }

    fn head(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { arguments, device, recording, .. } = self;
        let streams = self.streams();
        let events = counted(device.events.len() as u64, "event");
        write!(out, "{}: {events} on {}", shown(&arguments.file), counted(streams, "stream"))?;
        match (&device.name, recording.format) {
            (Some(name), _) => writeln!(out, ", trace {:?}", plain(name))?,
            (None, Format::PyTorch) => writeln!(out, " of device {}", device.number)?,
            _ => writeln!(out)?,
        }
        let before = device.events.iter().take(device.before).fold(0, |bytes: u64, event| bytes.saturating_add(event.size));
        if !self.has_history {
            writeln!(
                out,
                "  no history     only the blocks live at the dump; call torch.cuda.memory._record_memory_history before the first allocation"
            )?;
        } else if device.before > 0 {
            let blocks = counted(device.before as u64, "block");
            writeln!(out, "  before         {blocks}, {}, live before the recording: allocated first", size::show(before))?;
        }
        let is_native = recording.format == Format::Ringmem;
        if !is_native && device.missing_frees + device.unknown_frees > 0 {
            let unknown = counted(device.unknown_frees, "free");
            writeln!(
                out,
                "  repaired       {} added before reuses, {unknown} of no live block left out",
                counted(device.missing_frees, "free")
            )?;
        }
        if let Some(reserved) = device.reserved {
            let when = if self.has_history { "at most" } else { "at the dump" };
            write!(out, "  recorded       {} reserved {when}", size::show(reserved.peak))?;
            // With another limit than the recorded program, the model differs because it must.
            let is_like = self.has_history && arguments.limit.is_none() && device.events.iter().all(|event| event.kind != Kind::Refused);
            let model = self.policies.iter().find(|policy| policy.rule == Rule::PyTorch).filter(|_| is_like);
            match model.map(|model| (model.reserved, model.reserved.abs_diff(reserved.peak))) {
                None => writeln!(out)?,
                Some((_, 0)) => writeln!(out, "; the model of PyTorch's allocator: the same")?,
                Some((model, by)) => {
                    let than = if model < reserved.peak { "less" } else { "more" };
                    writeln!(out, "; the model of PyTorch's allocator: {} {than}", size::show(by))?;
                }
            }
        }
        if let Some((number, event)) = self.refused().next() {
            write!(out, "  out of memory  event {number}: {} were refused", size::show(event.size))?;
            self.write_place(event, out)?;
            match self.refused().count() - 1 {
                0 => {}
                more => write!(out, "; {more} more")?,
            }
            if let Some(bytes) = device.obtainable(number - 1).filter(|&bytes| bytes > 0) {
                let text = limit::down(bytes);
                write!(out, "; the program could have {text}: `--limit {}`", text.replace(' ', ""))?;
            }
            writeln!(out)?;
        }
        left_out(&recording.left_out).map_or(Ok(()), |parts| writeln!(out, "  left out       {}", plain(&parts)))
    }

    /// The place and the name, if they are known.
    fn write_place(&self, event: &Event, out: &mut dyn Write) -> io::Result<()> {
        self.place(event).map_or(Ok(()), |place| write!(out, ", {}", plain(&place)))?;
        self.recording.stacks.name(event.name).map_or(Ok(()), |name| write!(out, ", {:?}", plain(name)))
    }

    fn table(&self, out: &mut dyn Write) -> io::Result<()> {
        let has_history = self.has_history;
        let limit = self.arguments.limit.filter(|_| has_history).map(size::show);
        let has_refused = self.device.events.iter().any(|event| event.kind == Kind::Refused);
        let what = if has_refused { "wanted" } else { "live" };
        let title = format!("{} {what} {}", size::show(self.live), if has_history { "at most" } else { "at the dump" });
        let of = format!("of {what}");
        write!(out, "\n  {title:<38} {:>12} {of:>9} {:>13}", "reserved", "driver calls")?;
        match &limit {
            Some(limit) => writeln!(out, "  fits in {limit}")?,
            None if self.arguments.least && has_history => writeln!(out, "  {:>12}", "least limit")?,
            None => writeln!(out)?,
        }
        for policy in self.policies {
            let name = policy.rule.name();
            let name = if policy.rule.is_model() && policy.rule != Rule::Direct { format!("{name} (model)") } else { name.to_owned() };
            // A policy that refuses some of the requests may have less than they need.
            let ratio = ratio(policy.reserved, self.live).filter(|_| policy.refuses_nothing());
            let ratio = ratio.map_or_else(String::new, |ratio| format!("{ratio:.4}"));
            write!(out, "  {name:<38} {:>12} {ratio:>9} {:>13}", size::show(policy.reserved), policy.calls)?;
            if let Some(least) = &policy.least_text {
                write!(out, "  {least:>12}")?;
            }
            if !has_history {
                // Neither yes nor no.
            } else if let Some(index) = policy.first_refusal {
                let size = self.device.events.get(index).map_or(0, |event| event.size);
                write!(out, "  no: event {} refused, {}", index + 1, size::show(size))?;
                self.device.events.get(index).map_or(Ok(()), |event| self.write_place(event, out))?;
                if policy.refused > 1 {
                    write!(out, "; {} more", policy.refused - 1)?;
                }
            } else if let Some((index, why)) = &policy.first_impossible {
                write!(out, "  not possible: {why}; event {}", index + 1)?;
                if policy.impossible > 1 {
                    write!(out, " and {} more", policy.impossible - 1)?;
                }
            } else if limit.is_some() {
                write!(out, "  yes")?;
            }
            writeln!(out)?;
        }
        if let Some(remedy) = limit.and_then(|_| self.remedy()) {
            writeln!(out, "\n  fits with      {remedy}")?;
        }
        if self.arguments.least && has_history {
            writeln!(
                out,
                "\n  least limit    refuses nothing; from a bisection to within {}, rounded up. A smaller limit may suffice too, a larger one may not",
                size::show(step(self.device, self.live))
            )?;
        }
        writeln!(out)
    }

    /// The allocators that refuse nothing, and how to choose them, if PyTorch's with its default settings refuses a request.
    fn remedy(&self) -> Option<String> {
        let fits = |rule| self.policies.iter().find(|policy| policy.rule == rule).is_some_and(Policy::refuses_nothing);
        if fits(Rule::PyTorch) {
            return None;
        }
        // The library has no other classes, nor blocks of exact size.
        let is_its_own = !self.arguments.exact && self.arguments.sub_steps == SUB_STEPS;
        let pool = [(Rule::Pool, self.arguments.slab), (Rule::Slabs, Some(SLAB))].into_iter().find(|&(rule, _)| is_its_own && fits(rule));
        let pool = pool.map(|(rule, slab)| {
            let setting = slab.map_or_else(String::new, |bytes| format!(" with `RINGMEM_TORCH=slab={}`", in_full(bytes)));
            format!("{}: load `libringmem_capi.so` as PyTorch's allocator{setting}, see docs/guide/python.md", rule.name())
        });
        let expandable = format!("{}: set `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`", Rule::Expandable.name());
        let remedies: Vec<String> = Some(expandable).filter(|_| fits(Rule::Expandable)).into_iter().chain(pool).collect();
        (!remedies.is_empty()).then(|| remedies.join("; "))
    }

    fn details(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { arguments, tally, peak, figures, .. } = self;
        let end = &figures.end;
        let limit = match arguments.limit {
            Some(limit) => format!("limit {}", size::show(limit)),
            None if tally.refused > 0 => format!("no limit on a device of {}", size::show(device_bytes(self.arguments, self.trace, None))),
            None => "no limit".to_owned(),
        };
        match arguments.no_pool {
            true => writeln!(out, "  pool           none, {limit}")?,
            false => writeln!(
                out,
                "  pool           {}, {} classes per power of two{}, {limit}",
                match arguments.slab {
                    None if cfg!(target_os = "linux") => "one address range".to_owned(),
                    slab => format!("slabs of {}", size::show(slab.unwrap_or(SLAB))),
                },
                arguments.sub_steps,
                if arguments.exact { ", exact blocks" } else { "" },
            )?,
        }
        write!(out, "  allocations    {} given, {} refused", tally.given, tally.refused)?;
        if tally.impossible > 0 {
            write!(out, ", {} not possible", tally.impossible)?;
        }
        writeln!(out, "; {} freed", tally.freed)?;
        if let Some((event, why)) = &tally.first_refusal {
            writeln!(out, "  first refusal  event {event}: {why}")?;
        }
        if let Some((event, why)) = &tally.first_impossible {
            writeln!(out, "  not possible   event {event}: {why}")?;
        }
        if tally.not_live + tally.failed > 0 {
            writeln!(out, "  bad frees      {} of unknown blocks, {} failed", tally.not_live, tally.failed)?;
        }
        match (arguments.no_pool, arguments.has_cache()) {
            (_, true) => writeln!(out, "  hits           {} of {}, {}", end.hits, end.acquires(), percent(end.hit_rate()))?,
            (true, false) => writeln!(out, "  hits           none: without a pool, each request is a driver allocation")?,
            (false, false) => writeln!(out, "  hits           none: blocks of exact size are not cached, the heap serves each request")?,
        }
        let (moves, frees) = (counted(end.memory_moves, "move"), counted(end.memory_frees, "free"));
        writeln!(out, "  driver         {}, {moves}, {frees}", counted(figures.driver_allocations, "allocation"))?;
        writeln!(
            out,
            "  peak           {} requested, {} in blocks, {} reserved at most",
            size::show(tally.peak),
            size::show(peak.held_bytes),
            size::show(end.reserved_peak)
        )?;
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

/// `None` without live bytes.
fn ratio(reserved: u64, live: u64) -> Option<f64> {
    (live > 0).then(|| reserved as f64 / live as f64)
}
