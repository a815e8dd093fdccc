mod cleanup;
mod concurrency;
mod defragment;
mod figures;
#[cfg(target_os = "linux")]
mod forked;
mod group;
mod growth;
mod guard;
mod limit;
mod model;
mod names;
mod nodes;
mod numbered;
mod queued;
mod resize;
mod threads;
mod together;

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::rig::leak_checked::Clean;
use crate::{LIMIT, eventually};
use ringmem::backend::host::{Faults, HostBackend, Verb};
use ringmem::manager::{BufferConfig, BufferId, Growth, MemoryManager};
use ringmem::memory::Device;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

type Manager = MemoryManager<Device>;

const VERBS: [Verb; 7] = [Verb::Allocate, Verb::Free, Verb::Copy, Verb::StreamWait, Verb::RecordPosition, Verb::Wait, Verb::Synchronize];

fn backend() -> Clean {
    Clean::build(HostBackend::builder().device_memory(64 * MIB).faults(Faults::new()))
}

fn manager(backend: &Arc<HostBackend>) -> Manager {
    MemoryManager::new(Device::new(backend, 0))
}

fn plain() -> BufferConfig {
    BufferConfig::new().with_bytes(0, 16 * MIB).with_growth(Growth::new(3, 2))
}

fn numbers(from: u32, count: usize) -> Vec<u32> {
    (from..).take(count).collect()
}

fn holding(manager: &Manager, name: &str, numbers: &[u32]) -> BufferId<u32> {
    let id = manager.create::<u32>(name, numbers.len(), plain()).expect("room");
    manager.lease_mut(id).expect("nobody else").view_mut().copy_from(numbers).expect("a copy");
    id
}

fn read(manager: &Manager, id: BufferId<u32>) -> Vec<u32> {
    manager.lease(id).expect("nobody else").to_vec().expect("a copy")
}

fn is_empty(backend: &HostBackend) -> bool {
    let counters = backend.counters();
    (counters.device_live.bytes, counters.unreported) == (0, 0)
}
