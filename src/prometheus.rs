//! [`Collector`]: figures of pools, bridges, kernels and others for a [`Registry`](prometheus_client::registry::Registry) of the crate
//! `prometheus-client`.
//!
//! For programs that already export metrics to Prometheus. To log the figures, use `Debug` of the same statistics; for charts, the program
//! `ringmem`.
//!
//! 1. A source is read at each scrape, by a function that you pass. If it returns `None`, the scrape has no sample of it.
//! 2. Each sample has the label `name`, which you choose; the methods document `direction` and `state`. Names of metrics begin with
//!    `ringmem_`.
//! 3. All sources of a metric follow one description. A registry takes one collector: a second one would repeat the descriptions.
//!
//! ```
//! use prometheus_client::encoding::text::encode;
//! use prometheus_client::registry::Registry;
//! use ringmem::backend::host::HostBackend;
//! use ringmem::memory::{Buffer, Device};
//! use ringmem::pool::Pool;
//! use ringmem::prometheus::Collector;
//!
//! let (mut registry, collector) = (Registry::default(), Collector::new());
//! registry.register_collector(Box::new(collector.clone()));
//!
//! let backend = HostBackend::builder().build()?;
//! let pool = Pool::builder(Device::new(&backend, 0)).build()?;
//! let weights = pool.clone();
//! collector.pool("weights", move || weights.statistics());
//!
//! let _live = Buffer::<u8, _>::new(pool, 5000)?;
//! let mut text = String::new();
//! encode(&mut text, &registry).expect("a string");
//! assert!(text.contains("ringmem_pool_requested_bytes{name=\"weights\"} 5000\n"));
//! # Ok::<(), ringmem::Error>(())
//! ```

use core::fmt;
use core::time::Duration;
use std::boxed::Box;
use std::collections::BTreeMap;
use std::string::{String, ToString};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

use prometheus_client::encoding::{DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;

use crate::control::State;
use crate::memory::Scope;
use crate::{ControlBlock, TelemetryBuffer, bridge, manager, pool, stream};

/// Named sources of figures. Clones share the sources, so that some can be added and removed after the registration.
///
/// Adding a source replaces the one of the same kind and name. A thread that owns a channel or a bridge can export it in that way: it adds
/// the latest figures at intervals.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::channel::Channel;
/// use ringmem::prometheus::Collector;
/// use ringmem_kernels::echo::{ECHO, Echo};
///
/// let collector = Collector::new();
/// let backend = HostBackend::builder().build()?;
/// let mut channel = Channel::open(&backend, 0, ECHO)?;
/// for _ in 0..3 {
///     channel.send(Echo { words: [1; 8] })?;
///     channel.recv()?;
///     let (control, telemetry, metrics) = (channel.control(), channel.telemetry().ok(), channel.metrics());
///     collector.kernel("echo", move || (control, telemetry)).bridge("echo", move || metrics);
/// }
/// channel.close()?;
/// collector.remove("echo");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Default)]
pub struct Collector {
    sources: Arc<Mutex<BTreeMap<(Kind, String), Source>>>,
}

/// A part of the names of a source's metrics.
type Kind = &'static str;

/// Reads a source and adds its samples.
type Source = Arc<dyn Fn(&mut Samples<'_, '_>) + Send + Sync>;

impl Collector {
    /// Returns a collector without sources.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the counters and sizes of a pool: `ringmem_pool_*`.
    pub fn pool<R: Into<Option<pool::Statistics>>>(&self, name: &str, read: impl Fn() -> R + Send + Sync + 'static) -> &Self {
        self.add("pool", name, read, |samples, statistics| {
            samples
                .counter("ringmem_pool_hits", "Requests that a freed block served.", statistics.hits)
                .counter("ringmem_pool_misses", "Requests that slabs or the upstream memory served.", statistics.misses)
                .counter("ringmem_pool_memory_allocations", "Allocations from the upstream memory.", statistics.memory_allocations)
                .counter("ringmem_pool_memory_frees", "Frees to the upstream memory.", statistics.memory_frees)
                .counter("ringmem_pool_memory_moves", "Mapped blocks that moved to other addresses.", statistics.memory_moves)
                .gauge("ringmem_pool_live_blocks", "Live blocks.", statistics.live)
                .gauge("ringmem_pool_requested_bytes", "Requested bytes of live blocks.", statistics.requested_bytes)
                .gauge("ringmem_pool_held_bytes", "Allocated bytes of live blocks.", statistics.held_bytes)
                .gauge("ringmem_pool_cached_bytes", "Bytes of returned blocks that have not coalesced.", statistics.cached_bytes)
                .gauge("ringmem_pool_free_bytes", "Free bytes of slabs.", statistics.free_bytes)
                .gauge("ringmem_pool_movable_bytes", "Bytes of mapped blocks that are free as a whole.", statistics.movable_bytes)
                .gauge("ringmem_pool_largest_free_bytes", "Largest contiguous free bytes.", statistics.largest_free)
                .gauge("ringmem_pool_reserved_bytes", "Bytes allocated from the upstream memory.", statistics.reserved_bytes)
                .gauge("ringmem_pool_reserved_peak_bytes", "High-water mark of the reserved bytes.", statistics.reserved_peak)
                .gauge("ringmem_pool_pending_blocks", "Freed blocks that queued work still uses.", statistics.pending);
        })
    }

    /// Adds the figures of a [scope](crate::memory::Statistics::scope) of a memory: `ringmem_memory_*`.
    pub fn memory<R: Into<Option<Scope>>>(&self, name: &str, read: impl Fn() -> R + Send + Sync + 'static) -> &Self {
        self.add("memory", name, read, |samples, scope| {
            samples
                .gauge("ringmem_memory_live_bytes", "Bytes allocated and not freed.", scope.bytes.live)
                .gauge("ringmem_memory_peak_bytes", "High-water mark of the live bytes.", scope.bytes.peak)
                .gauge("ringmem_memory_live_blocks", "Blocks allocated and not freed.", scope.blocks.live)
                .counter("ringmem_memory_allocated_bytes", "Bytes of all allocations.", scope.bytes.total)
                .counter("ringmem_memory_allocations", "Allocations.", scope.blocks.total)
                .counter("ringmem_memory_failures", "Allocations that failed.", scope.refused);
        })
    }

    /// Adds the counters and sizes of a manager, without its buffers: `ringmem_manager_*`.
    pub fn manager<R: Into<Option<manager::Statistics>>>(&self, name: &str, read: impl Fn() -> R + Send + Sync + 'static) -> &Self {
        self.add("manager", name, read, |samples, statistics| {
            samples
                .gauge("ringmem_manager_buffers", "Named buffers.", statistics.buffers.len() as u64)
                .gauge("ringmem_manager_used_bytes", "Bytes of blocks and reservations.", statistics.used_bytes)
                .gauge("ringmem_manager_peak_bytes", "High-water mark of the used bytes.", statistics.peak_bytes)
                .gauge("ringmem_manager_limit_bytes", "Limit of the used bytes.", statistics.limit_bytes)
                .counter("ringmem_manager_resizes", "Blocks replaced by larger or smaller ones.", statistics.resizes)
                .counter("ringmem_manager_resize_copied_bytes", "Bytes copied for resizes.", statistics.resize_bytes)
                .counter("ringmem_manager_retries", "Failed allocations and transfers that were repeated.", statistics.retries)
                .counter("ringmem_manager_fallbacks", "Blocks allocated from the fallback memory.", statistics.fallbacks)
                .counter("ringmem_manager_resets", "Times that the error policy wanted a reset.", statistics.resets);
        })
    }

    /// Adds the [metrics](bridge::RingBufferBridge::metrics) of a bridge or a channel: `ringmem_bridge_*`, with the label `direction`
    /// (`to_device`, `to_host`).
    pub fn bridge<R: Into<Option<[bridge::Metrics; 2]>>>(&self, name: &str, read: impl Fn() -> R + Send + Sync + 'static) -> &Self {
        self.add("bridge", name, read, |samples, metrics| {
            for (direction, metrics) in ["to_device", "to_host"].into_iter().zip(metrics) {
                samples
                    .with("direction", direction)
                    .counter("ringmem_bridge_messages", "Messages that arrived.", metrics.messages)
                    .counter("ringmem_bridge_flushes", "Flushes that moved messages.", metrics.flushes)
                    .counter("ringmem_bridge_copies", "Copies of messages.", metrics.copies)
                    .counter("ringmem_bridge_copied_bytes", "Bytes of these copies.", metrics.bytes)
                    .counter("ringmem_bridge_polls", "Polls of the kernel's index.", metrics.polls)
                    .counter("ringmem_bridge_full", "Flushes that found no free slot.", metrics.full)
                    .counter("ringmem_bridge_failures", "Flushes that failed.", metrics.failures);
            }
        })
    }

    /// Adds a persistent kernel's state and counters: `ringmem_kernel_*`. They come from
    /// [`Channel::control`](crate::channel::Channel::control) and, if readable, [`Channel::telemetry`](crate::channel::Channel::telemetry),
    /// or from the `monitor::View` of a published channel.
    ///
    /// `ringmem_kernel_state` has one sample per state, with the label `ringmem_kernel_state`: 1 for the current state, otherwise 0. All are
    /// 0 for an invalid state. Counters begin again with each launch.
    pub fn kernel<R>(&self, name: &str, read: impl Fn() -> R + Send + Sync + 'static) -> &Self
    where
        R: Into<Option<(ControlBlock<u64>, Option<TelemetryBuffer<u64>>)>>,
    {
        self.add("kernel", name, read, |samples, (control, telemetry)| {
            for state in State::ALL {
                let is_current = u64::from(control.kernel_state() == Some(state));
                samples.with("ringmem_kernel_state", state_name(state)).gauge("ringmem_kernel_state", "State of the kernel.", is_current);
            }
            samples
                .gauge("ringmem_kernel_epoch", "Launch generation.", control.kernel_epoch())
                .counter("ringmem_kernel_messages", "Messages processed.", control.processed)
                .gauge("ringmem_kernel_in_flight", "Messages popped and not answered.", control.in_flight)
                .counter("ringmem_kernel_faults", "Faults reported.", control.faults().0)
                .counter("ringmem_kernel_heartbeats", "Changes of the heartbeat.", control.heartbeat);
            let Some(telemetry) = telemetry else { return };
            let seconds = |ns| Duration::from_nanos(ns).as_secs_f64();
            samples
                .counter("ringmem_kernel_dropped", "Messages dropped.", telemetry.dropped)
                .counter("ringmem_kernel_latency_seconds", "Time from pop to answer of all messages.", seconds(telemetry.latency_total_ns))
                .gauge("ringmem_kernel_latency_max_seconds", "Longest time from pop to answer.", seconds(telemetry.latency_max_ns))
                .gauge("ringmem_kernel_input_messages", "Messages in the input ring.", telemetry.input_depth())
                .gauge("ringmem_kernel_output_messages", "Messages in the output ring.", telemetry.output_depth());
        })
    }

    /// Adds a [measured](stream::Stream::measure) stream's operations: `ringmem_stream_*`, with the label `direction` (`upload`, `download`,
    /// `device`, `peer`, `host`, `fill`, `prefetch`).
    pub fn stream<R: Into<Option<stream::Metrics>>>(&self, name: &str, read: impl Fn() -> R + Send + Sync + 'static) -> &Self {
        self.add("stream", name, read, |samples, metrics| {
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
                samples
                    .with("direction", direction)
                    .counter("ringmem_stream_operations", "Operations that moved or set bytes.", traffic.count)
                    .counter("ringmem_stream_moved_bytes", "Bytes of these operations.", traffic.bytes)
                    .counter("ringmem_stream_busy_seconds", "Time of these operations.", traffic.time.as_secs_f64());
            }
            samples.counter("ringmem_stream_kernels", "Completed kernels.", metrics.kernels.count).counter(
                "ringmem_stream_kernel_seconds",
                "Time of these kernels.",
                metrics.kernels.time.as_secs_f64(),
            );
        })
    }

    /// Removes the sources of a name.
    pub fn remove(&self, name: &str) {
        let removed: Vec<_> = self.lock().extract_if(.., |(_, of), _| of == name).collect();
        // Without the lock: the user's values may use this collector.
        drop(removed);
    }

    fn add<S, R: Into<Option<S>>>(
        &self,
        kind: Kind,
        name: &str,
        read: impl Fn() -> R + Send + Sync + 'static,
        export: impl Fn(&mut Samples<'_, '_>, S) + Send + Sync + 'static,
    ) -> &Self {
        let source = move |samples: &mut Samples<'_, '_>| {
            if let Some(figures) = read().into() {
                export(samples, figures);
            }
        };
        let replaced = self.lock().insert((kind, name.to_string()), Arc::new(source));
        // As in `remove`.
        drop(replaced);
        self
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(Kind, String), Source>> {
        self.sources.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl prometheus_client::collector::Collector for Collector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        // Unlocked before the sources are read: the user's functions may use this collector.
        let sources = self.lock().clone();
        let mut families = Vec::new();
        for ((_, name), source) in &sources {
            source(&mut Samples { families: &mut families, labels: Vec::from([("name", name.as_str())]) });
        }
        for Family { name, help, samples } in &families {
            // The encoder appends the unit to the name.
            let of_unit = |unit: &'static Unit| Some((name.strip_suffix(unit.as_str())?.strip_suffix('_')?, Some(unit)));
            let (name, unit) = UNITS.iter().find_map(of_unit).unwrap_or((name, None));
            let mut family = encoder.encode_descriptor(name, help, unit, samples[0].1.metric_type())?;
            for (labels, metric) in samples {
                metric.encode(family.encode_family(labels)?)?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Collector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.lock().keys()).finish()
    }
}

static UNITS: [Unit; 2] = [Unit::Bytes, Unit::Seconds];

/// INVARIANT: it has a sample.
struct Family<'a> {
    name: &'static str,
    help: &'static str,
    samples: Vec<(Labels<'a>, Box<dyn EncodeMetric>)>,
}

type Labels<'a> = Vec<(&'static str, &'a str)>;

/// Where a source adds its samples, and the labels that they have.
struct Samples<'a, 'n> {
    families: &'a mut Vec<Family<'n>>,
    labels: Labels<'n>,
}

impl<'n> Samples<'_, 'n> {
    fn with(&mut self, label: &'static str, value: &'static str) -> Samples<'_, 'n> {
        let mut labels = self.labels.clone();
        labels.push((label, value));
        Samples { families: self.families, labels }
    }

    fn counter(&mut self, name: &'static str, help: &'static str, value: impl EncodeCounterValue + 'static) -> &mut Self {
        self.add(name, help, ConstCounter::new(value))
    }

    fn gauge(&mut self, name: &'static str, help: &'static str, value: impl EncodeGaugeValue + 'static) -> &mut Self {
        self.add(name, help, ConstGauge::new(value))
    }

    fn add(&mut self, name: &'static str, help: &'static str, metric: impl EncodeMetric + 'static) -> &mut Self {
        let sample = (self.labels.clone(), Box::new(metric) as Box<dyn EncodeMetric>);
        match self.families.iter_mut().find(|family| family.name == name) {
            Some(family) => family.samples.push(sample),
            None => self.families.push(Family { name, help, samples: Vec::from([sample]) }),
        }
        self
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
