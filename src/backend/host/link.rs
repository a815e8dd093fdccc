//! The link model: the time of a run if copies crossed a bus.
//!
//! 1. Time is virtual and repeatable; no thread sleeps.
//! 2. A device copies in, copies out and works at once, each in call order. A queued operation begins after its call, the stream's earlier
//!    operations, and its engines' work. A blocking call or a wait occupies the host.
//! 3. Page migration on access is not modelled.

use core::fmt;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::vec::Vec;

use crate::backend::counters::Counts;
use crate::backend::{StreamId, Ticket};
use crate::config::ConfigError;

/// The parameters: latencies in ns, rates in bytes per ns (GB/s).
///
/// ```
/// use ringmem::backend::host::{HostBackend, Link};
/// use ringmem::memory::{Device, GpuBuffer, Pinned, PinnedBuffer};
/// use ringmem::stream::Stream;
///
/// let backend = HostBackend::builder().link(Link { latency_ns: 1000, pinned: 10.0, ..Link::default() }).build()?;
/// let stream = Stream::new(&backend, 0)?;
/// stream.measure()?;
/// let pinned = PinnedBuffer::<u8>::new(Pinned::new(&backend, 0), 10_000)?;
/// stream.copy(pinned, GpuBuffer::<u8>::new(Device::new(&backend, 0), 10_000)?)?.wait()?;
/// stream.synchronize()?; // the event after the copy is complete too
/// assert_eq!(stream.metrics().expect("measured").uploads.time.as_nanos(), 2000); // model time
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone)]
pub struct Link {
    /// Latency of each copy between host and device.
    pub latency_ns: u64,
    /// Rate between pinned memory and a device, per direction.
    pub pinned: f64,
    /// Rate between pageable memory and a device.
    pub pageable: f64,
    /// Rate within a device, also of fills.
    pub device: f64,
    /// Rate within the host.
    pub host: f64,
    /// Rate between devices with peer access.
    pub peer: f64,
    /// Duration of a kernel; must not call the backend.
    pub kernel_ns: KernelTime,
}

/// A kernel's duration in ns, from its name and arguments.
///
/// ```
/// use std::sync::Arc;
///
/// use ringmem::backend::host::{HostBackend, KernelTime, Link};
/// use ringmem::memory::{Device, GpuBuffer};
/// use ringmem::stream::{Module, Stream};
///
/// let kernel_ns: KernelTime = Arc::new(|_, arguments| 10 * arguments[1]); // 10 ns per byte
/// let backend = HostBackend::builder().link(Link { kernel_ns, ..Link::default() }).build()?;
/// let module = Module::load(&backend, &ringmem_kernels::IMAGE, &ringmem_kernels::ABI)?;
/// let bytes = GpuBuffer::<u8>::new(Device::new(&backend, 0), 100)?;
/// // SAFETY: `increment` uses 100 bytes, which the launch owns.
/// unsafe { Stream::new(&backend, 0)?.launch_with(&module, "increment", bytes, &[100]) }?.wait()?;
/// assert_eq!(backend.model_now(), Some(1000));
/// # Ok::<(), ringmem::Error>(())
/// ```
pub type KernelTime = Arc<dyn Fn(&str, &[u64]) -> u64 + Send + Sync>;

impl Default for Link {
    /// Returns figures like PCIe 3.0 x16: 10 us, 12 GB/s pinned and between devices, 6 pageable, 10 within the host, 500 within a device;
    /// kernels take no time.
    fn default() -> Self {
        let (latency_ns, pinned, pageable, device, host, peer) = (10_000, 12.0, 6.0, 500.0, 10.0, 12.0);
        Self { latency_ns, pinned, pageable, device, host, peer, kernel_ns: Arc::new(|_, _| 0) }
    }
}

impl Link {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let &Self { pinned, pageable, device, host, peer, .. } = self;
        let rates =
            [("link.pinned", pinned), ("link.pageable", pageable), ("link.device", device), ("link.host", host), ("link.peer", peer)];
        match rates.into_iter().find(|&(_, rate)| rate.is_nan() || rate <= 0.0) {
            Some((field, got)) => Err(ConfigError::Rate { field, got }),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { latency_ns, pinned, pageable, device, host, peer, .. } = self;
        f.debug_struct("Link")
            .field("latency_ns", latency_ns)
            .field("pinned", pinned)
            .field("pageable", pageable)
            .field("device", device)
            .field("host", host)
            .field("peer", peer)
            .finish_non_exhaustive()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route {
    /// From the host.
    Upload { to: u32, pageable: bool },
    /// To the host.
    Download { from: u32, pageable: bool },
    /// Within a device.
    Device(u32),
    /// With peer access.
    Peer { from: u32, to: u32 },
    /// Through the host.
    Staged { from: u32, to: u32 },
    /// Within the host.
    Host,
}

impl Route {
    pub fn counted(self, counts: &Counts, bytes: u64) {
        match self {
            Self::Upload { pageable, .. } => counts.uploads[usize::from(pageable)].add(bytes),
            Self::Download { pageable, .. } => counts.downloads[usize::from(pageable)].add(bytes),
            Self::Device(_) => counts.device_copies.add(bytes),
            Self::Peer { .. } => counts.peer_copies.add(bytes),
            Self::Staged { .. } => {
                counts.downloads[0].add(bytes);
                counts.uploads[0].add(bytes);
            }
            Self::Host => counts.host_copies.add(bytes),
        }
    }
}

pub(super) enum Work<'a> {
    Bytes(Route, u64),
    Kernel { device: u32, name: &'a str, arguments: &'a [u64] },
    Nothing,
}

pub(super) struct Model {
    link: Link,
    times: Mutex<Times>,
}

struct Times {
    host: u64,
    engines: Vec<Engines>,
    streams: HashMap<StreamId, Line>,
}

#[derive(Clone, Default)]
struct Engines {
    upload: u64,
    download: u64,
    device: u64,
}

#[derive(Default)]
struct Line {
    end: u64,
    /// By number less 1.
    ends: Vec<u64>,
}

impl Model {
    pub fn new(link: Link, devices: u32) -> Self {
        let engines = (0..devices).map(|_| Engines::default()).collect();
        Self { link, times: Mutex::new(Times { host: 0, engines, streams: HashMap::new() }) }
    }

    pub fn now(&self) -> u64 {
        self.with(|times| times.host)
    }

    pub fn work(&self, ns: u64) {
        self.with(|times| times.host = times.host.saturating_add(ns));
    }

    pub fn blocking(&self, work: &Work<'_>) {
        self.with(|times| times.host = times.spend(&self.link, work, times.host));
    }

    pub fn queued(&self, stream: StreamId, number: u64, work: &Work<'_>) {
        self.with(|times| {
            let from = times.streams.entry(stream).or_default().end.max(times.host);
            let end = times.spend(&self.link, work, from);
            let line = times.streams.entry(stream).or_default();
            line.end = end;
            // An announced operation that was never queued had this number.
            line.ends.truncate(usize::try_from(number - 1).unwrap_or(usize::MAX));
            line.ends.push(end);
        });
    }

    pub fn after(&self, ticket: Ticket, stream: StreamId) {
        self.with(|times| {
            let end = times.end(ticket);
            let line = times.streams.entry(stream).or_default();
            line.end = line.end.max(end);
        });
    }

    pub fn waited(&self, ticket: Ticket) {
        self.with(|times| times.host = times.host.max(times.end(ticket)));
    }

    pub fn synchronized(&self, stream: StreamId) {
        self.with(|times| times.host = times.host.max(times.streams.get(&stream).map_or(0, |line| line.end)));
    }

    pub fn end(&self, ticket: Ticket) -> u64 {
        self.with(|times| times.end(ticket))
    }

    fn with<R>(&self, look: impl FnOnce(&mut Times) -> R) -> R {
        look(&mut self.times.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Times {
    fn end(&self, ticket: Ticket) -> u64 {
        let ends = self.streams.get(&ticket.stream).map(|line| &line.ends[..]).unwrap_or_default();
        let last = ends.len().min(usize::try_from(ticket.number).unwrap_or(usize::MAX));
        last.checked_sub(1).map_or(0, |last| ends[last])
    }

    /// Returns the end.
    fn spend(&mut self, link: &Link, work: &Work<'_>, from: u64) -> u64 {
        let engines = &mut self.engines;
        let hop = |pageable, bytes| link.latency_ns.saturating_add(time(bytes, if pageable { link.pageable } else { link.pinned }));
        match *work {
            Work::Bytes(Route::Upload { to, pageable }, bytes) => occupy([&mut engines[to as usize].upload], from, hop(pageable, bytes)),
            Work::Bytes(Route::Download { from: source, pageable }, bytes) => {
                occupy([&mut engines[source as usize].download], from, hop(pageable, bytes))
            }
            Work::Bytes(Route::Device(device), bytes) => occupy([&mut engines[device as usize].device], from, time(bytes, link.device)),
            Work::Bytes(Route::Peer { from: source, to }, bytes) => {
                let Ok([source, target]) = engines.get_disjoint_mut([source as usize, to as usize]) else { return from };
                let takes = link.latency_ns.saturating_add(time(bytes, link.peer));
                occupy([&mut source.download, &mut target.upload], from, takes)
            }
            Work::Bytes(Route::Staged { from: source, to }, bytes) => {
                let half = occupy([&mut engines[source as usize].download], from, hop(false, bytes));
                occupy([&mut engines[to as usize].upload], half, hop(false, bytes))
            }
            Work::Bytes(Route::Host, bytes) => from.saturating_add(time(bytes, link.host)),
            Work::Kernel { device, name, arguments } => {
                occupy([&mut engines[device as usize].device], from, (link.kernel_ns)(name, arguments))
            }
            Work::Nothing => from,
        }
    }
}

/// Returns the end.
fn occupy<const N: usize>(engines: [&mut u64; N], from: u64, takes: u64) -> u64 {
    let begin = engines.iter().fold(from, |begin, engine| begin.max(**engine));
    let end = begin.saturating_add(takes);
    for engine in engines {
        *engine = end;
    }
    end
}

/// Rounds up; infinite for a rate of 0.
fn time(bytes: u64, rate: f64) -> u64 {
    if bytes == 0 { 0 } else { (bytes as f64 / rate.max(0.0)).ceil() as u64 }
}
