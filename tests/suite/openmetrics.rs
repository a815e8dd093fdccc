use std::time::Duration;

use ringmem::backend::host::HostBackend;
use ringmem::channel::Channel;
use ringmem::manager::{BufferConfig, MemoryManager};
use ringmem::memory::{Buffer, Device, GpuBuffer, Statistics};
use ringmem::openmetrics::OpenMetrics;
use ringmem::pool::Pool;
use ringmem::stream::Stream;
use ringmem::{ControlBlock, bridge, control};
use ringmem_kernels::echo::{ECHO, Echo};
use zerocopy::FromZeros;

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

    let text = OpenMetrics::new()
        .pool("p", &pool.statistics())
        .manager("m", &manager.statistics())
        .memory("s", &memory.scope())
        .stream("t", &stream.metrics().unwrap())
        .kernel("k", &closed.control, Some(&closed.telemetry))
        .to_string();
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

#[test]
fn samples_of_a_metric_follow_one_header() {
    let metrics = [bridge::Metrics::default(); 2];
    let text = OpenMetrics::new().bridge("a", &metrics).bridge("b", &metrics).to_string();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(
        lines[..6],
        [
            "# TYPE ringmem_bridge_messages counter",
            "# HELP ringmem_bridge_messages Messages that arrived.",
            "ringmem_bridge_messages_total{name=\"a\",direction=\"to_device\"} 0",
            "ringmem_bridge_messages_total{name=\"a\",direction=\"to_host\"} 0",
            "ringmem_bridge_messages_total{name=\"b\",direction=\"to_device\"} 0",
            "ringmem_bridge_messages_total{name=\"b\",direction=\"to_host\"} 0",
        ]
    );
    assert_eq!(lines.iter().filter(|line| line.starts_with("# TYPE ringmem_bridge_copied_bytes ")).count(), 1);
    assert!(lines.contains(&"# UNIT ringmem_bridge_copied_bytes bytes"));
    assert_eq!(lines.last(), Some(&"# EOF"));
    assert_eq!(OpenMetrics::new().to_string(), "# EOF\n");
}

#[test]
fn names_are_escaped_and_times_are_in_seconds() {
    let mut metrics = ringmem::stream::Metrics::default();
    metrics.fills.time = Duration::new(3, 7);
    let text = OpenMetrics::new().stream("a\"b\\c\nd", &metrics).to_string();
    assert_eq!(value(&text, "ringmem_stream_busy_seconds_total{name=\"a\\\"b\\\\c\\nd\",direction=\"fill\"}"), "3.000000007");
}

#[test]
fn an_invalid_state_is_exported_as_no_state() {
    let mut control = ControlBlock::<u64>::new_zeroed();
    (control.state, control.processed) = (99, u64::MAX);
    let text = OpenMetrics::new().kernel("k", &control, None).to_string();
    for state in control::State::ALL {
        let sample = format!("ringmem_kernel_state{{name=\"k\",ringmem_kernel_state=\"{}\"}}", format!("{state:?}").to_lowercase());
        assert_eq!(value(&text, &sample), "0");
    }
    assert_eq!(value(&text, "ringmem_kernel_messages_total{name=\"k\"}"), "18446744073709551615");
}
