//! `ringmem doctor`: what this machine has, who sees what on it, and what to do about what is short.

use std::io::Write;

use serde_json::{Value, json};

use super::Outcome;
use crate::MemoryVisibility;
use crate::backend::Backend as _;
use crate::backend::host::{HostBackend, host_memory, pinned_budget};
use crate::bridge::TransferStrategy;
use crate::visibility::{self, Detected};

#[derive(clap::Args)]
pub(super) struct Arguments {
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

pub(super) fn run(arguments: &Arguments, out: &mut dyn Write) -> Outcome {
    let backend = HostBackend::builder().build()?;
    let detected = MemoryVisibility::detect(&backend, 0)?;
    let strategy = TransferStrategy::for_device(detected.visibility, &backend.capabilities(0)?);
    let devices = (0..backend.devices())
        .map(|device| Ok(json!({ "ordinal": device, "memory": backend.memory_info(device)?.map(|memory| memory.total) })))
        .collect::<crate::Result<Vec<Value>>>()?;
    let (driver, limits) = (driver(), limits());
    if arguments.json {
        let limits: Vec<Value> =
            limits.iter().map(|limit| json!({ "name": limit.name, "bytes": limit.bytes, "advice": limit.advice })).collect();
        let Detected { visibility, why, overruled, warning } = detected;
        let object = json!({
            "visibility": visibility.name(), "why": why, "overruled": overruled, "warning": warning,
            "backend": backend.name(), "devices": devices, "strategy": strategy.name(), "driver": driver, "limits": limits,
        });
        return Ok(writeln!(out, "{object}")?);
    }
    writeln!(out, "visibility  {}: {}", detected.visibility, detected.why)?;
    if let (Some(said), Some(warning)) = (&detected.overruled, detected.warning) {
        writeln!(out, "            {}={said}: {warning}", visibility::VARIABLE)?;
    }
    writeln!(out, "strategy    {}", strategy.name())?;
    writeln!(out, "backend     {}, {} simulated", backend.name(), counted(devices.len(), "device"))?;
    match &driver {
        Value::String(why) => writeln!(out, "CUDA        {why}")?,
        driver => writeln!(out, "CUDA        {driver}")?,
    }
    for limit in limits {
        let bytes = limit.bytes.map_or_else(|| "no limit".to_owned(), |bytes| format!("{} KiB", bytes / 1024));
        writeln!(out, "{:<11} {bytes}{}", limit.name, limit.advice.map(|advice| format!(": {advice}")).unwrap_or_default())?;
    }
    Ok(())
}

fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// What a CUDA driver drives, or why there is none.
#[cfg(feature = "cuda")]
fn driver() -> Value {
    use crate::backend::cuda::Driver;
    match Driver::load().and_then(|driver| Ok((driver, driver.gpus()?))) {
        Ok((driver, gpus)) => {
            let gpus: Vec<Value> = gpus.iter().map(|gpu| json!({ "name": gpu.name, "memory": gpu.memory })).collect();
            json!({ "version": driver.version(), "gpus": gpus })
        }
        Err(error) => Value::String(format!("{error}: install NVIDIA's driver if there is a GPU")),
    }
}

/// What a CUDA driver drives, or why there is none.
#[cfg(not(feature = "cuda"))]
fn driver() -> Value {
    Value::String("not asked for: built without the feature `cuda`".to_owned())
}

#[cfg(unix)]
fn limits() -> Vec<Limit> {
    use rustix::process::{Resource, getrlimit};
    const ENOUGH: u64 = 256 << 20;
    let locked = getrlimit(Resource::Memlock).current;
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

#[cfg(not(unix))]
fn limits() -> Vec<Limit> {
    vec![Limit { name: "pinned", bytes: Some(pinned_budget(host_memory())), advice: None }]
}
