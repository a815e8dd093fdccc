mod events;
mod metrics;
mod outlived;
mod reported;
mod tainted;
mod tasks;
mod tokio_tasks;

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::rig::busy_stream::Held;
use crate::rig::leak_checked::Clean;
use crate::{LIMIT, eventually};
use ringmem::backend::host::{Builder, HostBackend, Link};
use ringmem::memory::{Device, GpuBuffer, Pinned, PinnedBuffer};
use ringmem::stream::Stream;

fn builder() -> Builder {
    HostBackend::builder().device_memory(1 << 20)
}

fn build(builder: Builder) -> Clean {
    Clean::build(builder)
}

fn stream(backend: &Clean) -> Stream {
    Stream::new(&**backend, 0).expect("a stream")
}

fn gpu(backend: &Clean, bytes: usize) -> GpuBuffer<u8> {
    GpuBuffer::new(Device::new(backend, 0), bytes).expect("room")
}

fn pinned(backend: &Clean, bytes: usize) -> PinnedBuffer<u8> {
    PinnedBuffer::new(Pinned::new(backend, 0), bytes).expect("room")
}

fn link() -> Link {
    let kernel_ns = Arc::new(|_: &str, arguments: &[u64]| arguments[0]);
    Link { latency_ns: 1000, pinned: 10.0, pageable: 5.0, device: 100.0, host: 20.0, peer: 4.0, kernel_ns }
}
