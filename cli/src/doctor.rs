//! `ringmem doctor`: what this machine has, who sees what on it, and what to do about what is short.

use std::io::Write;

use ringmem::MemoryVisibility;
use ringmem::backend::host::{HostBackend, host_memory, pinned_budget};
use ringmem::bridge::TransferStrategy;
use ringmem::copy::{Circumstances, Diagnosis, Rate, Suggestion, bandwidth, diagnose};
use ringmem::stream::Stream;
use ringmem::visibility::{self, Detected};
use serde_json::{Value, json};

use super::place::Wanted;
use super::{Outcome, counted, gpu, plain, size};

#[derive(clap::Args)]
pub(super) struct Arguments {
    /// Whose devices to ask
    #[arg(long, value_enum, default_value_t = Wanted::Auto)]
    backend: Wanted,
    /// One JSON object instead of lines
    #[arg(long)]
    json: bool,
}

/// Something that this machine has so much of, and what to do where that is too little.
struct Limit {
    name: &'static str,
    /// `None` where there is none.
    bytes: Option<u64>,
    advice: Option<&'static str>,
}

/// A way to a device or back, and what it carries.
struct Way {
    name: &'static str,
    rate: Rate,
    diagnosis: Diagnosis,
}

pub(super) fn run(arguments: &Arguments, out: &mut dyn Write) -> Outcome {
    // What is to be warned about is printed beside what it is about.
    let place = arguments.backend.open(HostBackend::builder(), &mut std::io::sink())?;
    let backend = &place.backend;
    let detected = MemoryVisibility::detect(backend, 0)?;
    let strategy = TransferStrategy::for_device(detected.visibility, &backend.capabilities(0)?);
    let devices = (0..backend.devices())
        .map(|device| Ok(json!({ "ordinal": device, "memory": backend.memory_info(device)?.map(|memory| memory.total) })))
        .collect::<ringmem::Result<Vec<Value>>>()?;
    let (driver, limits) = (gpu::driver(), limits());
    let ways = ways(&Stream::new(backend, 0)?, detected.visibility)?;
    if arguments.json {
        let ways: Vec<Value> = ways
            .iter()
            .map(|Way { name, rate, diagnosis }| {
                let advice: Vec<String> = advice(diagnosis).iter().map(ToString::to_string).collect();
                json!({ "name": name, "bytes": rate.bytes, "ns": rate.ns, "gb_per_s": rate.gb_per_s(), "advice": advice })
            })
            .collect();
        let limits: Vec<Value> =
            limits.iter().map(|limit| json!({ "name": limit.name, "bytes": limit.bytes, "advice": limit.advice })).collect();
        let Detected { visibility, why, overruled, warning } = detected;
        let object = json!({
            "visibility": visibility.name(), "why": why, "overruled": overruled, "warning": warning,
            "backend": backend.name(), "chosen": place.why, "devices": devices, "strategy": strategy.name(), "driver": driver, "limits": limits,
            "bandwidth": ways,
        });
        return Ok(writeln!(out, "{object}")?);
    }
    writeln!(out, "visibility  {}: {}", detected.visibility, detected.why)?;
    if let (Some(said), Some(warning)) = (&detected.overruled, detected.warning) {
        writeln!(out, "            {}={}: {warning}", visibility::VARIABLE, plain(said))?;
    }
    writeln!(out, "strategy    {}", strategy.name())?;
    let simulated = if backend.is_simulated() { " simulated" } else { "" };
    writeln!(out, "backend     {}, {}{simulated}: {}", backend.name(), counted(devices.len() as u64, "device"), place.why)?;
    match &driver {
        Value::String(why) => writeln!(out, "CUDA        {why}")?,
        driver => writeln!(out, "CUDA        {driver}")?,
    }
    for gpu in driver["gpus"].as_array().into_iter().flatten() {
        if let (Some(name), Some(advice)) = (gpu["name"].as_str(), gpu["advice"].as_str()) {
            writeln!(out, "watchdog    {name}: {advice}")?;
        }
    }
    for limit in limits {
        let bytes = limit.bytes.map_or_else(|| "no limit".to_owned(), size::show);
        writeln!(out, "{:<11} {bytes}{}", limit.name, limit.advice.map(|advice| format!(": {advice}")).unwrap_or_default())?;
    }
    writeln!(out, "bandwidth   of a {} device, copies of {} MiB", if backend.is_simulated() { "simulated" } else { "real" }, BYTES >> 20)?;
    for Way { name, rate, diagnosis } in &ways {
        let figure = rate.gb_per_s().map_or_else(|| "unknown".to_owned(), |rate| format!("{rate:.1} GB/s"));
        writeln!(out, "  {name:<14} {figure}")?;
        for suggestion in advice(diagnosis) {
            writeln!(out, "    slow: {suggestion}")?;
        }
    }
    Ok(())
}

/// Of each copy that is timed.
const BYTES: usize = 8 << 20;

/// What the ways to a stream's device carry.
fn ways(stream: &Stream, visibility: MemoryVisibility) -> ringmem::Result<[Way; 5]> {
    let measured = bandwidth(stream, BYTES)?;
    let way = |name, rate, is_pinned| Way { name, rate, diagnosis: diagnose(rate, Circumstances { is_pinned, visibility }) };
    Ok([
        way("up", measured.up, measured.is_pinned),
        way("down", measured.down, measured.is_pinned),
        way("up, pageable", measured.pageable_up, false),
        way("down, pageable", measured.pageable_down, false),
        // No host memory has a part in it.
        way("on the device", measured.on_device, true),
    ])
}

fn advice(diagnosis: &Diagnosis) -> &[Suggestion] {
    match diagnosis {
        Diagnosis::Slow(suggestions) => suggestions,
        Diagnosis::Fine | Diagnosis::Unknown => &[],
    }
}

#[cfg(unix)]
fn limits() -> Vec<Limit> {
    use rustix::process::{Resource, getrlimit};
    const ENOUGH: u64 = 256 << 20;
    // Who may lock more than the limit says has none.
    let locked = getrlimit(Resource::Memlock).current.filter(|&locked| !is_more_locked(locked));
    let budget = pinned_budget(host_memory());
    let short = locked.is_some_and(|locked| locked < ENOUGH);
    vec![
        Limit {
            name: "mlock",
            bytes: locked,
            advice: short.then_some("larger pinned buffers are not locked, and say so; raise it by `ulimit -l` or LimitMEMLOCK="),
        },
        Limit { name: "pinned", bytes: Some(budget), advice: None },
    ]
}

/// Whether this process, which may be privileged, locks more than its limit says. No page is touched for that.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn is_more_locked(limit: u64) -> bool {
    use rustix::mm::{MapFlags, MlockFlags, ProtFlags, mlock_with, mmap_anonymous, munmap};
    let Some(bytes) = limit.checked_add(4096).and_then(|bytes| usize::try_from(bytes).ok()) else { return false };
    // SAFETY: no address is asked for, so nothing that exists is replaced.
    let Ok(place) = (unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, ProtFlags::READ, MapFlags::PRIVATE | MapFlags::NORESERVE) })
    else {
        return false;
    };
    // SAFETY: locking changes where pages are, not what they hold.
    let is_locked = unsafe { mlock_with(place, bytes, MlockFlags::ONFAULT) }.is_ok();
    // SAFETY: of the call above, and nothing refers to it. It unlocks, and fails only for ranges that were never mapped.
    let unmapped = unsafe { munmap(place, bytes) };
    debug_assert!(unmapped.is_ok());
    is_locked
}

#[cfg(all(unix, not(any(target_os = "linux", target_os = "android"))))]
const fn is_more_locked(_: u64) -> bool {
    false
}

#[cfg(not(unix))]
fn limits() -> Vec<Limit> {
    vec![Limit { name: "pinned", bytes: Some(pinned_budget(host_memory())), advice: None }]
}
