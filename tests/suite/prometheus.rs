use std::sync::{Arc, Mutex};
use std::time::Duration;

use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use ringmem::backend::host::HostBackend;
use ringmem::channel::Channel;
use ringmem::manager::{BufferConfig, MemoryManager};
use ringmem::memory::{Buffer, Device, Figures, GpuBuffer, Scope, Statistics};
use ringmem::pool::{self, Pool};
use ringmem::prometheus::Collector;
use ringmem::stream::{self, Stream, Traffic};
use ringmem::{ControlBlock, TelemetryBuffer, bridge, control, manager};
use ringmem_kernels::echo::{ECHO, Echo};
use zerocopy::FromZeros;

fn scrape(collector: &Collector) -> String {
    let (mut registry, mut text) = (Registry::default(), String::new());
    registry.register_collector(Box::new(collector.clone()));
    encode(&mut text, &registry).expect("a string");
    text
}

fn value<'a>(text: &'a str, sample: &str) -> &'a str {
    let lines: Vec<_> = text.lines().filter_map(|line| line.strip_prefix(sample)?.strip_prefix(' ')).collect();
    assert_eq!(lines.len(), 1, "{sample} in {text}");
    lines[0]
}

#[test]
fn every_source_exports_its_figures() {
    let backend = HostBackend::builder().build().unwrap();
    let pool = Pool::builder(Statistics::new(Device::new(&backend, 0))).build().unwrap();
    let manager = MemoryManager::with_limit(Device::new(&backend, 0), 1 << 20);
    let _buffer = manager.create::<u32>("counts", 4, BufferConfig::new()).unwrap();
    drop(Buffer::<u8, _>::new(pool.clone(), 5000).unwrap());
    let live = Buffer::<u8, _>::new(pool.clone(), 5000).unwrap();
    let memory = Statistics::new(Device::new(&backend, 0));
    let _hundred = Buffer::<u8, _>::new(memory.clone(), 100).unwrap();
    let stream = Stream::new(&backend, 0).unwrap();
    stream.measure().unwrap();
    drop(stream.fill(GpuBuffer::<u8>::new(Device::new(&backend, 0), 4096).unwrap(), .., 1).unwrap().wait().unwrap());
    stream.synchronize().unwrap();
    let mut channel = Channel::open(&backend, 0, ECHO).unwrap();
    channel.send(Echo { words: [1; 8] }).unwrap();
    channel.recv().unwrap();
    let closed = channel.close().unwrap();

    let collector = Collector::new();
    collector
        .pool("p", move || pool.statistics())
        .manager("m", move || manager.statistics())
        .memory("s", move || memory.scope())
        .stream("t", move || stream.metrics())
        .kernel("k", move || (closed.control, Some(closed.telemetry)));
    let text = scrape(&collector);
    assert_eq!(value(&text, "ringmem_pool_hits_total{name=\"p\"}"), "1");
    assert_eq!(value(&text, "ringmem_pool_requested_bytes{name=\"p\"}"), "5000");
    assert_eq!(value(&text, "ringmem_manager_limit_bytes{name=\"m\"}"), "1048576");
    assert_eq!(value(&text, "ringmem_memory_live_bytes{name=\"s\"}"), "100");
    assert_eq!(value(&text, "ringmem_stream_moved_bytes_total{name=\"t\",direction=\"fill\"}"), "4096");
    assert_eq!(value(&text, "ringmem_kernel_messages_total{name=\"k\"}"), "1");
    assert_eq!(value(&text, "ringmem_kernel_state{name=\"k\",ringmem_kernel_state=\"terminated\"}"), "1");
    assert_eq!(value(&text, "ringmem_kernel_state{name=\"k\",ringmem_kernel_state=\"active\"}"), "0");
    drop(live);
}

/// Each figure has a value that no other has, so that a figure exported under another name changes the text.
#[test]
fn every_figure_is_exported_under_its_own_name() {
    let mut of_pool = pool::Statistics::default();
    (of_pool.hits, of_pool.misses, of_pool.returns, of_pool.live) = (101, 102, 103, 104);
    (of_pool.requested_bytes, of_pool.held_bytes, of_pool.reserved_bytes, of_pool.reserved_peak) = (105, 106, 107, 108);
    (of_pool.slabs, of_pool.free_bytes, of_pool.free_blocks, of_pool.largest_free) = (109, 110, 111, 112);
    (of_pool.cached_bytes, of_pool.largest_cached, of_pool.pending) = (113, 114, 115);
    (of_pool.memory_allocations, of_pool.memory_frees, of_pool.memory_moves, of_pool.movable_bytes) = (116, 117, 118, 119);
    let figures = |first: i64| Figures { live: first, peak: first + 1, total: first as u64 + 2 };
    let scope = Scope { bytes: figures(201), blocks: figures(204), refused: 207 };
    let mut of_manager = manager::Statistics::default();
    (of_manager.used_bytes, of_manager.peak_bytes, of_manager.limit_bytes) = (301, 302, 303);
    (of_manager.created, of_manager.freed, of_manager.resizes, of_manager.resize_bytes, of_manager.queued) = (304, 305, 306, 307, 308);
    (of_manager.retries, of_manager.fallbacks, of_manager.resets) = (309, 310, 311);
    let of_bridge = [400, 410].map(|base| {
        let mut metrics = bridge::Metrics::default();
        (metrics.messages, metrics.flushes, metrics.copies, metrics.bytes) = (base + 1, base + 2, base + 3, base + 4);
        (metrics.publications, metrics.polls, metrics.full) = (base + 5, base + 6, base + 7);
        (metrics.fences, metrics.failures) = (base + 8, base + 9);
        metrics
    });
    let mut control = ControlBlock::<u64>::new_zeroed();
    control.state = 501 << 32 | control::State::Paused as u64;
    (control.processed, control.in_flight, control.heartbeat) = (502, 503, 505);
    control.error = 504 << 32 | 1;
    let telemetry = TelemetryBuffer {
        sequence: 510,
        processed: 511,
        dropped: 512,
        latency_total_ns: 513,
        latency_min_ns: 514,
        latency_max_ns: 515,
        depths: 517 << 32 | 516,
        updated_ns: 518,
    };
    let mut of_stream = stream::Metrics::default();
    let stream::Metrics { uploads, downloads, device_copies, peer_copies, host_copies, fills, prefetches, .. } = &mut of_stream;
    for (number, traffic) in (0..).zip([uploads, downloads, device_copies, peer_copies, host_copies, fills, prefetches]) {
        let first = 601 + 10 * number;
        *traffic = Traffic { count: first, bytes: first + 1, time: Duration::from_nanos(first + 2) };
    }
    (of_stream.kernels.count, of_stream.kernels.time, of_stream.lost) = (671, Duration::from_nanos(672), 673);

    let collector = Collector::new();
    collector
        .pool("p", move || of_pool)
        .memory("s", move || scope)
        .manager("m", move || of_manager.clone())
        .bridge("b", move || of_bridge)
        .kernel("k", move || (control, Some(telemetry)))
        .stream("t", move || of_stream.clone());
    let text = scrape(&collector);
    let expected = include_str!("prometheus.txt");
    for (line, expected) in text.lines().zip(expected.lines()) {
        assert_eq!(line, expected);
    }
    assert_eq!(text, expected, "a line is missing at the end");
}

#[test]
fn samples_of_a_metric_follow_one_header() {
    let (collector, metrics) = (Collector::new(), [bridge::Metrics::default(); 2]);
    assert_eq!(scrape(&collector), "# EOF\n");
    collector.bridge("b", move || metrics).bridge("a", move || metrics);
    let text = scrape(&collector);
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(
        lines[..6],
        [
            "# HELP ringmem_bridge_messages Messages that arrived.",
            "# TYPE ringmem_bridge_messages counter",
            "ringmem_bridge_messages_total{name=\"a\",direction=\"to_device\"} 0",
            "ringmem_bridge_messages_total{name=\"a\",direction=\"to_host\"} 0",
            "ringmem_bridge_messages_total{name=\"b\",direction=\"to_device\"} 0",
            "ringmem_bridge_messages_total{name=\"b\",direction=\"to_host\"} 0",
        ]
    );
    assert_eq!(lines.iter().filter(|line| line.starts_with("# TYPE ringmem_bridge_copied_bytes ")).count(), 1);
    assert!(lines.contains(&"# UNIT ringmem_bridge_copied_bytes bytes"));
    assert_eq!(lines.last(), Some(&"# EOF"));
}

#[test]
fn names_are_escaped_and_times_are_in_seconds() {
    let (collector, mut metrics) = (Collector::new(), stream::Metrics::default());
    metrics.fills.time = Duration::new(3, 7);
    collector.stream("a\"b\\c\nd", move || metrics.clone());
    let sample = "ringmem_stream_busy_seconds_total{name=\"a\\\"b\\\\c\\nd\",direction=\"fill\"}";
    assert_eq!(value(&scrape(&collector), sample), "3.000000007");
}

#[test]
fn an_invalid_state_is_exported_as_no_state() {
    let mut control = ControlBlock::<u64>::new_zeroed();
    (control.state, control.processed) = (99, u64::MAX);
    let collector = Collector::new();
    collector.kernel("k", move || (control, None));
    let text = scrape(&collector);
    for state in control::State::ALL {
        let sample = format!("ringmem_kernel_state{{name=\"k\",ringmem_kernel_state=\"{}\"}}", format!("{state:?}").to_lowercase());
        assert_eq!(value(&text, &sample), "0");
    }
    assert_eq!(value(&text, "ringmem_kernel_messages_total{name=\"k\"}"), "18446744073709551615");
    assert!(!text.contains("ringmem_kernel_dropped"), "{text}");
}

#[test]
fn sources_are_read_at_each_scrape_replaced_by_name_and_removed() {
    let (collector, latest) = (Collector::new(), Arc::new(Mutex::new(None)));
    let read = Arc::clone(&latest);
    collector.bridge("b", move || *read.lock().unwrap());
    assert_eq!(scrape(&collector), "# EOF\n", "the source has no figures yet");
    let mut metrics = [bridge::Metrics::default(); 2];
    metrics[0].messages = 7;
    *latest.lock().unwrap() = Some(metrics);
    let sample = "ringmem_bridge_messages_total{name=\"b\",direction=\"to_device\"}";
    assert_eq!(value(&scrape(&collector), sample), "7");
    metrics[0].messages = 8;
    collector.bridge("b", move || metrics);
    assert_eq!(value(&scrape(&collector), sample), "8");

    let (inner, pool) = (collector.clone(), pool::Statistics::default());
    collector.pool("b", move || {
        inner.remove("b"); // a source may use its collector
        pool
    });
    assert_eq!(value(&scrape(&collector), "ringmem_pool_hits_total{name=\"b\"}"), "0");
    assert_eq!(scrape(&collector), "# EOF\n");
}

#[test]
fn values_of_removed_and_replaced_sources_may_use_the_collector_as_they_are_dropped() {
    struct Removes(Collector, &'static str);
    impl Drop for Removes {
        fn drop(&mut self) {
            self.0.remove(self.1);
        }
    }
    let collector = Collector::new();
    let add = |name: &str, other: &'static str| {
        let held = Removes(collector.clone(), other);
        collector.pool(name, move || (&held, pool::Statistics::default()).1);
    };
    let hits = |name: &str| scrape(&collector).contains(&format!("ringmem_pool_hits_total{{name=\"{name}\"}}"));
    add("removed", "beside");
    add("beside", "none");
    collector.remove("removed");
    assert!(!hits("removed") && !hits("beside"));
    add("replaced", "beside");
    add("beside", "none");
    add("replaced", "none");
    assert!(hits("replaced") && !hits("beside"));
}

#[test]
#[cfg(any(target_os = "linux", target_os = "android"))]
fn a_published_channel_is_exported_from_its_page() {
    let backend = HostBackend::builder().build().unwrap();
    let mut channel = Channel::builder(ECHO).publish("prometheus").open(&backend, 0).unwrap();
    channel.send(Echo { words: [1; 8] }).unwrap();
    channel.recv().unwrap();
    let published = ringmem::monitor::list().unwrap();
    let published = published.iter().find(|one| one.name == "prometheus" && one.pid == std::process::id()).unwrap();
    let view = ringmem::monitor::View::open(&published.path).unwrap();
    let collector = Collector::new();
    collector.kernel("k", move || view.read().ok().map(|figures| (figures.control, Some(figures.telemetry))));
    channel.dump().unwrap();
    assert_eq!(value(&scrape(&collector), "ringmem_kernel_messages_total{name=\"k\"}"), "1");
    channel.close().unwrap();
}
