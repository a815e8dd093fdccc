//! [`OpenMetrics`]: figures of pools, bridges, kernels and others as OpenMetrics text, for Prometheus.
//!
//! For programs that already expose metrics: serve or write the text yourself. This module has no server, history or clock. To log them, use
//! `Debug` of the same statistics; for charts, the program `ringmem`.
//!
//! Names begin with `ringmem_`. You choose the label `name`; the methods document `direction` and `state`.
//!
//! ```
//! use ringmem::backend::host::HostBackend;
//! use ringmem::memory::{Buffer, Device};
//! use ringmem::openmetrics::OpenMetrics;
//! use ringmem::pool::Pool;
//!
//! let backend = HostBackend::builder().build()?;
//! let pool = Pool::builder(Device::new(&backend, 0)).build()?;
//! let _live = Buffer::<u8, _>::new(pool.clone(), 5000)?;
//! let mut metrics = OpenMetrics::new();
//! metrics.pool("weights", &pool.statistics());
//! let text = metrics.to_string();
//! assert!(text.contains("ringmem_pool_requested_bytes{name=\"weights\"} 5000\n"));
//! assert!(text.ends_with("# EOF\n"));
//! # Ok::<(), ringmem::Error>(())
//! ```

use core::fmt;
use core::time::Duration;
use std::string::{String, ToString};
use std::vec::Vec;

use Kind::{Counter, Gauge, StateSet};

use crate::control::State;
use crate::memory::Scope;
use crate::{ControlBlock, TelemetryBuffer, bridge, escape, manager, pool, stream};

/// A set of metrics. Its `Display` is a complete OpenMetrics 1.0 text.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::manager::{BufferConfig, MemoryManager};
/// use ringmem::memory::Device;
/// use ringmem::openmetrics::OpenMetrics;
///
/// let backend = HostBackend::builder().build()?;
/// let [nodes, edges] = [(); 2].map(|()| MemoryManager::new(Device::new(&backend, 0)));
/// nodes.create::<f32>("weights", 1000, BufferConfig::new())?;
/// let mut metrics = OpenMetrics::new();
/// metrics.manager("nodes", &nodes.statistics()).manager("edges", &edges.statistics());
/// assert!(metrics.to_string().contains("ringmem_manager_buffers{name=\"nodes\"} 1\nringmem_manager_buffers{name=\"edges\"} 0\n"));
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct OpenMetrics {
    families: Vec<Family>,
}

#[derive(Clone, Debug)]
struct Family {
    name: &'static str,
    kind: Kind,
    help: &'static str,
    samples: Vec<(String, Value)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Counter,
    Gauge,
    /// One sample per state, 1 for the current one.
    StateSet,
}

#[derive(Clone, Copy, Debug)]
enum Value {
    Whole(i128),
    Seconds(Duration),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(value) => value.fmt(f),
            Self::Seconds(time) => write!(f, "{}.{:09}", time.as_secs(), time.subsec_nanos()),
        }
    }
}

impl From<u64> for Value {
    fn from(value: u64) -> Self {
        Self::Whole(value.into())
    }
}

impl From<i64> for Value {
    fn from(value: i64) -> Self {
        Self::Whole(value.into())
    }
}

impl From<Duration> for Value {
    fn from(time: Duration) -> Self {
        Self::Seconds(time)
    }
}

impl OpenMetrics {
    /// Returns an empty set.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the counters and sizes of a pool.
    pub fn pool(&mut self, name: &str, statistics: &pool::Statistics) -> &mut Self {
        let labels = [("name", name)];
        self.add("ringmem_pool_hits", Counter, "Requests that a cached block served.", &labels, statistics.hits)
            .add("ringmem_pool_misses", Counter, "Requests that slabs or the upstream memory served.", &labels, statistics.misses)
            .add(
                "ringmem_pool_memory_allocations",
                Counter,
                "Allocations from the upstream memory.",
                &labels,
                statistics.memory_allocations,
            )
            .add("ringmem_pool_memory_frees", Counter, "Frees to the upstream memory.", &labels, statistics.memory_frees)
            .add("ringmem_pool_live_blocks", Gauge, "Live blocks.", &labels, statistics.live)
            .add("ringmem_pool_requested_bytes", Gauge, "Requested bytes of live blocks.", &labels, statistics.requested_bytes)
            .add("ringmem_pool_held_bytes", Gauge, "Allocated bytes of live blocks.", &labels, statistics.held_bytes)
            .add("ringmem_pool_cached_bytes", Gauge, "Bytes of returned blocks that have not coalesced.", &labels, statistics.cached_bytes)
            .add("ringmem_pool_free_bytes", Gauge, "Free bytes of slabs.", &labels, statistics.free_bytes)
            .add("ringmem_pool_largest_free_bytes", Gauge, "Largest contiguous free bytes.", &labels, statistics.largest_free)
            .add("ringmem_pool_reserved_bytes", Gauge, "Bytes allocated from the upstream memory.", &labels, statistics.reserved_bytes)
            .add("ringmem_pool_reserved_peak_bytes", Gauge, "High-water mark of the reserved bytes.", &labels, statistics.reserved_peak)
            .add("ringmem_pool_pending_blocks", Gauge, "Freed blocks that queued work still uses.", &labels, statistics.pending)
    }

    /// Adds the figures of a [scope](crate::memory::Statistics::scope) of a memory.
    pub fn memory(&mut self, name: &str, scope: &Scope) -> &mut Self {
        let labels = [("name", name)];
        self.add("ringmem_memory_live_bytes", Gauge, "Bytes allocated and not freed.", &labels, scope.bytes.live)
            .add("ringmem_memory_peak_bytes", Gauge, "High-water mark of the live bytes.", &labels, scope.bytes.peak)
            .add("ringmem_memory_live_blocks", Gauge, "Blocks allocated and not freed.", &labels, scope.blocks.live)
            .add("ringmem_memory_allocated_bytes", Counter, "Bytes of all allocations.", &labels, scope.bytes.total)
            .add("ringmem_memory_allocations", Counter, "Allocations.", &labels, scope.blocks.total)
            .add("ringmem_memory_failures", Counter, "Allocations that failed.", &labels, scope.refused)
    }

    /// Adds the counters and sizes of a manager, without its buffers.
    pub fn manager(&mut self, name: &str, statistics: &manager::Statistics) -> &mut Self {
        let labels = [("name", name)];
        let buffers = statistics.buffers.len() as u64;
        self.add("ringmem_manager_buffers", Gauge, "Named buffers.", &labels, buffers)
            .add("ringmem_manager_used_bytes", Gauge, "Bytes of blocks and reservations.", &labels, statistics.used_bytes)
            .add("ringmem_manager_peak_bytes", Gauge, "High-water mark of the used bytes.", &labels, statistics.peak_bytes)
            .add("ringmem_manager_limit_bytes", Gauge, "Limit of the used bytes.", &labels, statistics.limit_bytes)
            .add("ringmem_manager_resizes", Counter, "Blocks replaced by larger or smaller ones.", &labels, statistics.resizes)
            .add("ringmem_manager_resize_copied_bytes", Counter, "Bytes copied for resizes.", &labels, statistics.resize_bytes)
            .add("ringmem_manager_retries", Counter, "Failed allocations and transfers that were repeated.", &labels, statistics.retries)
            .add("ringmem_manager_fallbacks", Counter, "Blocks allocated from the fallback memory.", &labels, statistics.fallbacks)
            .add("ringmem_manager_resets", Counter, "Times that the error policy wanted a reset.", &labels, statistics.resets)
    }

    /// Adds a bridge's [`metrics`](bridge::RingBufferBridge::metrics), with the label `direction` (`to_device`, `to_host`).
    pub fn bridge(&mut self, name: &str, metrics: &[bridge::Metrics; 2]) -> &mut Self {
        for (direction, metrics) in ["to_device", "to_host"].into_iter().zip(metrics) {
            let labels = [("name", name), ("direction", direction)];
            self.add("ringmem_bridge_messages", Counter, "Messages that arrived.", &labels, metrics.messages)
                .add("ringmem_bridge_flushes", Counter, "Flushes that moved messages.", &labels, metrics.flushes)
                .add("ringmem_bridge_copies", Counter, "Copies of messages.", &labels, metrics.copies)
                .add("ringmem_bridge_copied_bytes", Counter, "Bytes of these copies.", &labels, metrics.bytes)
                .add("ringmem_bridge_polls", Counter, "Polls of the kernel's index.", &labels, metrics.polls)
                .add("ringmem_bridge_full", Counter, "Flushes that found no free slot.", &labels, metrics.full)
                .add("ringmem_bridge_failures", Counter, "Flushes that failed.", &labels, metrics.failures);
        }
        self
    }

    /// Adds a persistent kernel's state and counters, from [`Channel::control`](crate::channel::Channel::control) and, if readable,
    /// [`Channel::telemetry`](crate::channel::Channel::telemetry). `ringmem_kernel_state` has one sample per state, with the label
    /// `ringmem_kernel_state`; all are 0 for an invalid state. Counters begin again with each launch.
    pub fn kernel(&mut self, name: &str, control: &ControlBlock<u64>, telemetry: Option<&TelemetryBuffer<u64>>) -> &mut Self {
        let labels = [("name", name)];
        for state in State::ALL {
            let labels = [("name", name), ("ringmem_kernel_state", state_name(state))];
            self.add("ringmem_kernel_state", StateSet, "State of the kernel.", &labels, u64::from(control.kernel_state() == Some(state)));
        }
        self.add("ringmem_kernel_epoch", Gauge, "Launch generation.", &labels, u64::from(control.kernel_epoch()))
            .add("ringmem_kernel_messages", Counter, "Messages processed.", &labels, control.processed)
            .add("ringmem_kernel_in_flight", Gauge, "Messages popped and not answered.", &labels, control.in_flight)
            .add("ringmem_kernel_faults", Counter, "Faults reported.", &labels, u64::from(control.faults().0))
            .add("ringmem_kernel_heartbeats", Counter, "Changes of the heartbeat.", &labels, control.heartbeat);
        let Some(telemetry) = telemetry else { return self };
        let ns = Duration::from_nanos;
        self.add("ringmem_kernel_dropped", Counter, "Messages dropped.", &labels, telemetry.dropped)
            .add(
                "ringmem_kernel_latency_seconds",
                Counter,
                "Time from pop to answer of all messages.",
                &labels,
                ns(telemetry.latency_total_ns),
            )
            .add("ringmem_kernel_latency_max_seconds", Gauge, "Longest time from pop to answer.", &labels, ns(telemetry.latency_max_ns))
            .add("ringmem_kernel_input_messages", Gauge, "Messages in the input ring.", &labels, u64::from(telemetry.input_depth()))
            .add("ringmem_kernel_output_messages", Gauge, "Messages in the output ring.", &labels, u64::from(telemetry.output_depth()))
    }

    /// Adds a [measured](stream::Stream::measure) stream's operations, with the label `direction` (`upload`, `download`, `device`, `peer`,
    /// `host`, `fill`, `prefetch`).
    pub fn stream(&mut self, name: &str, metrics: &stream::Metrics) -> &mut Self {
        let traffic = [
            ("upload", &metrics.uploads),
            ("download", &metrics.downloads),
            ("device", &metrics.device_copies),
            ("peer", &metrics.peer_copies),
            ("host", &metrics.host_copies),
            ("fill", &metrics.fills),
            ("prefetch", &metrics.prefetches),
        ];
        for (direction, traffic) in traffic {
            let labels = [("name", name), ("direction", direction)];
            self.add("ringmem_stream_operations", Counter, "Operations that moved or set bytes.", &labels, traffic.count)
                .add("ringmem_stream_moved_bytes", Counter, "Bytes of these operations.", &labels, traffic.bytes)
                .add("ringmem_stream_busy_seconds", Counter, "Time of these operations.", &labels, traffic.time);
        }
        let labels = [("name", name)];
        self.add("ringmem_stream_kernels", Counter, "Completed kernels.", &labels, metrics.kernels.count).add(
            "ringmem_stream_kernel_seconds",
            Counter,
            "Time of these kernels.",
            &labels,
            metrics.kernels.time,
        )
    }

    fn add(&mut self, name: &'static str, kind: Kind, help: &'static str, labels: &[(&str, &str)], value: impl Into<Value>) -> &mut Self {
        let mut text = String::new();
        for (label, value) in labels {
            text.extend([if text.is_empty() { "{" } else { "," }, label, "=", &escape::openmetrics(value).to_string()]);
        }
        text.push('}');
        let sample = (text, value.into());
        match self.families.iter_mut().find(|family| family.name == name) {
            Some(family) => family.samples.push(sample),
            None => self.families.push(Family { name, kind, help, samples: Vec::from([sample]) }),
        }
        self
    }
}

impl fmt::Display for OpenMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Family { name, kind, help, samples } in &self.families {
            let (kind, suffix) = match kind {
                Counter => ("counter", "_total"),
                Gauge => ("gauge", ""),
                StateSet => ("stateset", ""),
            };
            writeln!(f, "# TYPE {name} {kind}")?;
            for unit in ["bytes", "seconds"] {
                if name.ends_with(unit) {
                    writeln!(f, "# UNIT {name} {unit}")?;
                }
            }
            writeln!(f, "# HELP {name} {help}")?;
            for (labels, value) in samples {
                writeln!(f, "{name}{suffix}{labels} {value}")?;
            }
        }
        f.write_str("# EOF\n")
    }
}

const fn state_name(state: State) -> &'static str {
    match state {
        State::Created => "created",
        State::Ready => "ready",
        State::Active => "active",
        State::Paused => "paused",
        State::Draining => "draining",
        State::Terminated => "terminated",
        State::Faulted => "faulted",
    }
}
