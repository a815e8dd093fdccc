//! A registry on the host backend: lookups by valid and invalid ids.
use crate::clean;
use crate::clocks;
#[cfg(target_os = "linux")]
use crate::fork;
use crate::held;
mod ids;
mod leases;
mod messages;
mod model;
mod queued;
mod relocation;
mod threads;

use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fmt, thread};

use clean::Clean;
use ringmem::backend::MemoryLocation;
use ringmem::backend::host::HostBackend;
use ringmem::memory::{Buffer, Device, GpuBuffer};
use ringmem::registry::{IdError, Registry};
use ringmem::{DeviceBytes, Error};

/// No wait is longer.
const LIMIT: Duration = Duration::from_secs(60);

type DeviceMemory = Device;

fn backend() -> Clean {
    Clean::build(HostBackend::builder().device_memory(64 << 20).log(true))
}

fn buffer<T: DeviceBytes>(backend: &Arc<HostBackend>, elements: &[T]) -> Buffer<T, DeviceMemory> {
    GpuBuffer::from_slice(Device::new(backend, 0), elements).expect("room")
}

fn blocks(backend: &HostBackend) -> u64 {
    backend.counters().device_allocations.count - backend.counters().device_frees.count
}

fn id_error<T: fmt::Debug>(outcome: Result<T, Error>) -> IdError {
    match outcome {
        Err(Error::Id(error)) => error,
        other => panic!("an id that leads nowhere was expected, not {other:?}"),
    }
}

fn is_busy<T>(outcome: Result<T, Error>) -> bool {
    matches!(outcome.map(drop), Err(Error::Busy { .. }))
}

fn eventually(fact: &str, holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < LIMIT, "not in time: {fact}");
        thread::sleep(Duration::from_millis(1));
    }
}
