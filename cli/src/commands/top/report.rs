use ringmem::dump::Indices;
use ringmem::monitor::Figures;
use ringmem::shared::{self, OwnerState};
use serde_json::{Value, json};

use super::reading::{Reading, Region};
use crate::{counted, plain, shown, size};

pub(super) fn name(region: &Region) -> String {
    region.published.as_ref().map_or_else(|| shown(&region.path), |(_, name)| plain(name))
}

pub(super) fn lines(region: &Region) -> Vec<String> {
    match &region.reading {
        Err(error) => vec![format!("{}: {}", name(region), plain(error))],
        Ok(Reading::Channel { figures, is_live }) => channel(region, figures, *is_live),
        Ok(Reading::Ring(figures)) => {
            let shared::Figures { indices, slot_size, producer, consumer, .. } = figures;
            vec![
                format!("{}: shared ring, {} messages/s", name(region), per_second(region.rate)),
                format!("  ring         {}, slots of {}", fill(indices), size::show(*slot_size)),
                format!("  producer     {}", owner(*producer)),
                format!("  consumer     {}", owner(*consumer)),
            ]
        }
    }
}

fn channel(region: &Region, figures: &Figures, is_live: bool) -> Vec<String> {
    let Figures { pid, control, telemetry, rings: [input, output], high_water, round_trips, .. } = figures;
    let dead = if is_live { "" } else { ", ended: these are its last figures" };
    let idle = figures.idle_for_ns().map_or_else(String::new, |ns| format!(", as of the last call, {} ago", time(Some(ns))));
    let mut lines = vec![
        format!("{}: kernel {}, process {pid}{dead}", name(region), figures.kernel),
        format!("  state        {}: {}{idle}", state(figures), figures.conclusion()),
        format!("  epoch        {} in the kernel, {} set by the host", control.kernel_epoch(), control.epoch),
        format!(
            "  heartbeat    {}, unchanged for {} at the last sample, {} ago",
            control.heartbeat,
            time(figures.quiet_for_ns),
            time(figures.age_ns)
        ),
        format!("  messages     {} sent, {} received, {}/s", figures.sent, figures.received, per_second(region.rate)),
    ];
    for (label, ring, most) in [("input ring ", input, high_water[0]), ("output ring", output, high_water[1])] {
        let absurd = if most > ring.capacity { ", which is impossible" } else { "" };
        lines.push(format!("  {label}  {}, at most {most}{absurd}", fill(ring)));
    }
    let [p50, p90, p99] = [50, 90, 99].map(|percent| round_trips.percentile(percent).map(|ns| time(Some(ns))));
    if let (Some(p50), Some(p90), Some(p99)) = (p50, p90, p99) {
        lines.push(format!("  round trip   p50 {p50}, p90 {p90}, p99 {p99}, of {} measured", round_trips.count()));
    }
    lines.push(format!(
        "  telemetry    {} processed, {} refused, latency mean {}, max {}",
        telemetry.processed,
        telemetry.dropped,
        time(telemetry.latency_mean()),
        time(Some(telemetry.latency_max_ns))
    ));
    if let Some(pool) = figures.pool {
        let requests = pool.hits.saturating_add(pool.misses);
        lines.push(format!(
            "  pool         {} of {} in {}, peak {}, {} of {} hits",
            size::show(pool.held_bytes),
            size::show(pool.reserved_bytes),
            counted(pool.live, "block"),
            size::show(pool.reserved_peak),
            pool.hits,
            counted(requests, "request"),
        ));
    }
    lines
}

pub(super) fn state(figures: &Figures) -> String {
    let control = &figures.control;
    control.kernel_state().map_or_else(|| format!("number {}", control.state as u32), |state| state.to_string())
}

pub(super) fn fill(ring: &Indices) -> String {
    match ring.fill() {
        Ok(fill) => format!("{fill} of {}", ring.capacity),
        Err(corrupt) => corrupt.to_string(),
    }
}

pub(super) fn per_second(rate: Option<f64>) -> String {
    rate.map_or_else(|| "?".to_owned(), |rate| format!("{rate:.0}"))
}

/// In the unit that fits; `?` for a time in the future.
pub(super) fn time(ns: Option<u64>) -> String {
    match ns {
        None => "?".to_owned(),
        Some(ns @ 0..1_000) => format!("{ns} ns"),
        Some(ns @ 1_000..1_000_000) => format!("{:.1} us", ns as f64 / 1e3),
        Some(ns @ 1_000_000..1_000_000_000) => format!("{:.1} ms", ns as f64 / 1e6),
        Some(ns) => format!("{:.1} s", ns as f64 / 1e9),
    }
}

fn owner((state, generation): (OwnerState, u64)) -> String {
    format!("{}, {}", owned(state), counted(generation, "owner"))
}

const fn owned(state: OwnerState) -> &'static str {
    match state {
        OwnerState::NotYet => "no owner yet",
        OwnerState::Alive => "alive",
        OwnerState::Left => "left",
        OwnerState::Died => "died",
    }
}

/// Impossible figures are null.
pub(super) fn json(region: &Region) -> Value {
    let path = region.path.to_string_lossy();
    match &region.reading {
        Err(error) => json!({ "kind": "unreadable", "path": path, "name": name(region), "error": error }),
        Ok(Reading::Ring(ring)) => {
            let owner = |(state, generation): (OwnerState, u64)| json!({ "state": owned(state), "owners": generation });
            json!({
                "kind": "ring", "path": path, "name": name(region), "messages_per_s": region.rate, "ring": indices(&ring.indices, None),
                "slot_size": ring.slot_size, "producer": owner(ring.producer), "consumer": owner(ring.consumer),
            })
        }
        Ok(Reading::Channel { figures, is_live }) => {
            let Figures { control, telemetry, rings: [input, output], high_water, round_trips, .. } = &**figures;
            let percentile = |percent| round_trips.percentile(percent);
            let pool = figures.pool.map(|pool| {
                json!({
                    "held_bytes": pool.held_bytes, "reserved_bytes": pool.reserved_bytes, "reserved_peak": pool.reserved_peak,
                    "live": pool.live, "hits": pool.hits, "misses": pool.misses,
                })
            });
            json!({
                "kind": "channel", "path": path, "name": name(region), "pid": figures.pid, "live": is_live, "kernel": figures.kernel,
                "state": state(figures), "conclusion": figures.conclusion().to_string(),
                "epoch": control.epoch, "kernel_epoch": control.kernel_epoch(),
                "idle_for_ns": figures.idle_for_ns(),
                "heartbeat": control.heartbeat, "quiet_for_ns": figures.quiet_for_ns, "age_ns": figures.age_ns, "open_for_ns": figures.open_for_ns,
                "sent": figures.sent, "received": figures.received, "messages_per_s": region.rate,
                "input": indices(input, Some(high_water[0])), "output": indices(output, Some(high_water[1])),
                "round_trip_ns": { "count": round_trips.count(), "p50": percentile(50), "p90": percentile(90), "p99": percentile(99) },
                "telemetry": {
                    "processed": telemetry.processed, "dropped": telemetry.dropped, "latency_mean_ns": telemetry.latency_mean(),
                    "latency_max_ns": telemetry.latency_max_ns,
                },
                "pool": pool,
            })
        }
    }
}

fn indices(ring: &Indices, high_water: Option<u64>) -> Value {
    json!({ "head": ring.head, "tail": ring.tail, "capacity": ring.capacity, "fill": ring.fill().ok(), "high_water": high_water })
}
