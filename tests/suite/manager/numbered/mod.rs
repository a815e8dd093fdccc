//! Buffers and mirrors with a number only: ids, leases, references and relocation.

mod ids;
mod leases;
mod messages;
mod mirrors;
mod model;
mod queued;
mod relocation;
mod threads;

use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fmt, thread};

use crate::rig::leak_checked::Clean;
use crate::{LIMIT, eventually};
use ringmem::backend::MemoryLocation;
use ringmem::backend::host::HostBackend;
use ringmem::error::IdError;
use ringmem::manager::MemoryManager;
use ringmem::memory::{Buffer, Device, GpuBuffer};
use ringmem::{DeviceBytes, Error};

type DeviceMemory = Device;

fn backend() -> Clean {
    Clean::build(HostBackend::builder().device_memory(64 << 20).log(true))
}

fn buffer<T: DeviceBytes>(backend: &Arc<HostBackend>, elements: &[T]) -> Buffer<T, DeviceMemory> {
    GpuBuffer::from_slice(Device::new(backend, 0), elements).expect("room")
}

fn manager(backend: &Arc<HostBackend>) -> MemoryManager<DeviceMemory> {
    MemoryManager::new(Device::new(backend, 0))
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
