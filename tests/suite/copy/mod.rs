mod bandwidth;
mod chain;
mod coalescer;
mod parts;

use std::sync::Arc;

use crate::LIMIT;
use crate::rig::leak_checked::Clean;
use ringmem::backend::host::{Builder, HostBackend, Link};
use ringmem::memory::{Device, GpuBuffer, Pinned};

fn backend() -> Clean {
    Clean::build(HostBackend::builder().device_memory(4 << 20))
}

fn modelled() -> Builder {
    let kernel_ns = Arc::new(|_: &str, arguments: &[u64]| arguments.last().copied().unwrap_or(0));
    let link = Link { latency_ns: 1000, pinned: 10.0, pageable: 5.0, device: 100.0, host: 20.0, peer: 10.0, kernel_ns };
    HostBackend::builder().device_memory(4 << 20).link(link)
}

fn zeros(backend: &Arc<HostBackend>, len: usize) -> GpuBuffer<u32> {
    let mut buffer = GpuBuffer::new(Device::new(backend, 0), len).expect("room");
    buffer.zero().expect("a fill");
    buffer
}

fn pinned(backend: &Arc<HostBackend>) -> Pinned {
    Pinned::new(backend, 0)
}
