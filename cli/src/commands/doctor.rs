use std::io::Write;

use ringmem::MemoryVisibility;
use ringmem::backend::host::{HostBackend, host_memory, pinned_budget};
use ringmem::bridge::TransferStrategy;
use ringmem::copy::{Circumstances, Diagnosis, Rate, Suggestion, bandwidth, diagnose};
use ringmem::stream::Stream;
use ringmem::visibility::{self, Detected};
use serde_json::{Value, json};

use crate::selection::Selection;
use crate::{Failure, Outcome, counted, gpu, json_line, plain, size};

pub(super) const EXAMPLES: &str = "\
RINGMEM_VISIBILITY=system, device or dma in the environment overrides the detected memory visibility, for every command

Examples:
  ringmem doctor
  ringmem doctor --backend cuda --json
  RINGMEM_VISIBILITY=dma ringmem doctor";

#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    selection: Selection,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

struct Limit {
    name: &'static str,
    bytes: Option<u64>,
    advice: Option<&'static str>,
}

struct Variable {
    name: &'static str,
    value: Option<String>,
    advice: &'static str,
}

struct MeasuredPath {
    name: &'static str,
    rate: Rate,
    diagnosis: Diagnosis,
}

pub(super) fn run(arguments: &Arguments, out: &mut dyn Write) -> Outcome {
    let selected = arguments.selection.open(HostBackend::builder(), &mut std::io::sink())?;
    let backend = &selected.backend;
    let detected = MemoryVisibility::detect(backend, 0)?;
    let strategy = TransferStrategy::for_device(detected.visibility, &backend.capabilities(0)?);
    let granularities = (0..backend.devices())
        .map(|device| Ok(backend.capabilities(device)?.mapping_granularity))
        .collect::<ringmem::Result<Vec<Option<u64>>>>()?;
    let devices = (0..)
        .zip(&granularities)
        .map(|(device, granularity)| {
            let memory = backend.memory_info(device)?.map(|memory| memory.total);
            Ok(json!({ "ordinal": device, "memory": memory, "mapping_granularity": granularity }))
        })
        .collect::<ringmem::Result<Vec<Value>>>()?;
    let (driver, limits) = (gpu::driver(), limits(arguments.selection.pinned));
    let variables = variables(&driver);
    // Little pinned or device memory hides no other finding.
    let (ways, unmeasured) = match Stream::new(backend, 0).and_then(|stream| ways(&stream, detected.visibility)) {
        Ok(ways) => (Vec::from(ways), None),
        Err(error) => (Vec::new(), Some(Failure::Call(error).to_string())),
    };
    if arguments.json {
        let ways: Vec<Value> = ways
            .iter()
            .map(|MeasuredPath { name, rate, diagnosis }| {
                let advice: Vec<String> = advice(diagnosis).iter().map(ToString::to_string).collect();
                json!({ "name": name, "bytes": rate.bytes, "ns": rate.ns, "gb_per_s": rate.gb_per_s(), "advice": advice })
            })
            .collect();
        let limits: Vec<Value> =
            limits.iter().map(|limit| json!({ "name": limit.name, "bytes": limit.bytes, "advice": limit.advice })).collect();
        let variables: Vec<Value> =
            variables.iter().map(|Variable { name, value, advice }| json!({ "name": name, "value": value, "advice": advice })).collect();
        let Detected { visibility, why, overridden, warning } = detected;
        let object = json!({
            "visibility": visibility.name(), "why": why, "overridden": overridden, "warning": warning,
            "backend": backend.name(), "chosen": selected.why, "devices": devices, "strategy": strategy.name(), "driver": driver,
            "environment": variables, "limits": limits, "bandwidth": ways, "bandwidth_error": unmeasured,
        });
        return Ok(writeln!(out, "{}", json_line(&object))?);
    }
    writeln!(out, "visibility  {}: {}", detected.visibility, detected.why)?;
    if let (Some(said), Some(warning)) = (&detected.overridden, detected.warning) {
        writeln!(out, "            {}={}: {warning}", visibility::VARIABLE, plain(said))?;
    }
    writeln!(out, "strategy    {}: a bridge {}", strategy.name(), action(strategy))?;
    let simulated = if backend.is_simulated() { " simulated" } else { "" };
    // The next line has the cause.
    let why = if driver.is_string() { selected.why.split(':').next().unwrap_or_default() } else { &selected.why };
    writeln!(out, "backend     {}, {}{simulated}: {why}", backend.name(), counted(devices.len() as u64, "device"))?;
    match &driver {
        Value::String(why) => writeln!(out, "CUDA        {why}")?,
        driver => writeln!(out, "CUDA        {}", json_line(driver))?,
    }
    for (device, granularity) in granularities.iter().enumerate() {
        match granularity {
            Some(bytes) => {
                writeln!(out, "addresses   device {device} maps memory at reserved addresses, in units of {}", size::show(*bytes))?
            }
            None => writeln!(out, "addresses   device {device} cannot reserve addresses")?,
        }
    }
    for gpu in driver["gpus"].as_array().into_iter().flatten() {
        if let (Some(name), Some(advice)) = (gpu["name"].as_str(), gpu["advice"].as_str()) {
            writeln!(out, "watchdog    {}: {advice}", plain(name))?;
        }
    }
    for Variable { name, value, advice } in variables {
        let value = value.map_or_else(|| " is not set".to_owned(), |value| format!("={}", plain(&value)));
        writeln!(out, "environment {name}{value}: {advice}")?;
    }
    for limit in limits {
        let bytes = limit.bytes.map_or_else(|| "no limit".to_owned(), size::show);
        writeln!(out, "{:<11} {bytes}{}", limit.name, limit.advice.map(|advice| format!(": {advice}")).unwrap_or_default())?;
    }
    if let Some(reason) = unmeasured {
        writeln!(out, "bandwidth   not measured with copies of {}: {}", size::show(BYTES as u64), plain(&reason))?;
        return Ok(());
    }
    writeln!(
        out,
        "bandwidth   of a {} device, copies of {}",
        if backend.is_simulated() { "simulated" } else { "real" },
        size::show(BYTES as u64)
    )?;
    for MeasuredPath { name, rate, diagnosis } in &ways {
        let figure = rate.gb_per_s().map_or_else(|| "unknown".to_owned(), |rate| format!("{rate:.1} GB/s"));
        writeln!(out, "  {name:<18} {figure}")?;
        for suggestion in advice(diagnosis) {
            writeln!(out, "    slow: {suggestion}")?;
        }
    }
    Ok(())
}

const fn action(strategy: TransferStrategy) -> &'static str {
    match strategy {
        TransferStrategy::Unified | TransferStrategy::Flagged => "copies nothing, host and kernel map one ring",
        TransferStrategy::Async => "queues copies between a ring on each side",
        TransferStrategy::DmaPolling { .. } => "queues copies between a ring on each side, with an interval between polls",
        TransferStrategy::Sync => "copies between a ring on each side, and waits",
    }
}

const BYTES: usize = 8 << 20;

fn ways(stream: &Stream, visibility: MemoryVisibility) -> ringmem::Result<[MeasuredPath; 5]> {
    let measured = bandwidth(stream, BYTES)?;
    let way = |name, rate, is_pinned| MeasuredPath { name, rate, diagnosis: diagnose(rate, Circumstances { is_pinned, visibility }) };
    Ok([
        way("upload", measured.upload, measured.is_pinned),
        way("download", measured.download, measured.is_pinned),
        way("upload, pageable", measured.pageable_upload, false),
        way("download, pageable", measured.pageable_download, false),
        way("on the device", measured.on_device, true),
    ])
}

fn advice(diagnosis: &Diagnosis) -> &[Suggestion] {
    match diagnosis {
        Diagnosis::Slow(suggestions) => suggestions,
        Diagnosis::Fine | Diagnosis::Unknown => &[],
    }
}

/// Returns the variables of the CUDA driver whose values stop persistent kernels; none without a GPU.
fn variables(driver: &Value) -> Vec<Variable> {
    if driver["gpus"].as_array().is_none_or(Vec::is_empty) {
        return Vec::new();
    }
    let variable = |name, is_right: fn(Option<&str>) -> bool, advice| {
        let value = std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
        (!is_right(value.as_deref())).then_some(Variable { name, value, advice })
    };
    [
        variable(
            "CUDA_MODULE_LOADING",
            |value| value == Some("EAGER"),
            "the first launch of a kernel that any library in the process loads lazily may wait for a persistent kernel; set it to EAGER",
        ),
        variable(
            "CUDA_LAUNCH_BLOCKING",
            |value| matches!(value, None | Some("" | "0")),
            "a launch waits for the end of its kernel, so the launch of a persistent kernel does not return; unset it",
        ),
    ]
    .into_iter()
    .flatten()
    .collect()
}

#[cfg(unix)]
fn limits(pinned: Option<u64>) -> Vec<Limit> {
    use rustix::process::{Resource, getrlimit};
    const ENOUGH: u64 = 256 << 20;
    // With more locked than the limit, the process is unlimited.
    let locked = getrlimit(Resource::Memlock).current.filter(|&locked| !is_more_locked(locked));
    let budget = pinned.unwrap_or_else(|| pinned_budget(host_memory()));
    let short = locked.is_some_and(|locked| locked < ENOUGH);
    vec![
        Limit {
            name: "mlock",
            bytes: locked,
            advice: short.then_some(
                "larger pinned buffers are not page-locked; raise the limit with `ulimit -l`, or with LimitMEMLOCK= in a systemd unit",
            ),
        },
        Limit { name: "pinned", bytes: Some(budget), advice: None },
    ]
}

/// A privileged process can lock more. Touches no page.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn is_more_locked(limit: u64) -> bool {
    use rustix::mm::{MapFlags, MlockFlags, ProtFlags, mlock_with, mmap_anonymous, munmap};
    let Some(bytes) = limit.checked_add(4096).and_then(|bytes| usize::try_from(bytes).ok()) else { return false };
    // SAFETY: no fixed address, so no mapping is replaced.
    let Ok(place) = (unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, ProtFlags::READ, MapFlags::PRIVATE | MapFlags::NORESERVE) })
    else {
        return false;
    };
    // SAFETY: locking does not change contents.
    let is_locked = unsafe { mlock_with(place, bytes, MlockFlags::ONFAULT) }.is_ok();
    // SAFETY: mapped above, unused. `munmap` also unlocks; it fails only for invalid ranges.
    let unmapped = unsafe { munmap(place, bytes) };
    debug_assert!(unmapped.is_ok());
    is_locked
}

#[cfg(all(unix, not(any(target_os = "linux", target_os = "android"))))]
const fn is_more_locked(_: u64) -> bool {
    false
}

#[cfg(not(unix))]
fn limits(pinned: Option<u64>) -> Vec<Limit> {
    vec![Limit { name: "pinned", bytes: Some(pinned.unwrap_or_else(|| pinned_budget(host_memory()))), advice: None }]
}
