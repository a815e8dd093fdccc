use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use ringmem::backend::host::{HostBackend, Link, Phase, Verb};
use ringmem::streaming::{Job, Sink, Source, Through};

use crate::rig::leak_checked::Clean;
use crate::streaming::rig::{build, incremented, noise, streamer};

const CHUNK: u64 = 9000;
const CHUNKS: u64 = 40;
const STAGE: u64 = 10_000;

fn modelled() -> Clean {
    let link = Link {
        latency_ns: 1000,
        pinned: 1.0,
        pageable: 1.0,
        device: 1.0,
        host: 1.0,
        peer: 1.0,
        kernel_ns: Arc::new(|_, arguments| arguments[1] + 1000),
    };
    build(HostBackend::builder().device_memory(1 << 20).link(link))
}

struct Disk<'a> {
    backend: &'a Clean,
    bytes: Vec<u8>,
}

impl Source for Disk<'_> {
    fn length(&self) -> Option<u64> {
        Some(self.bytes.len() as u64)
    }

    fn read_at(&mut self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        self.backend.model_work(1000 + buffer.len() as u64);
        (&self.bytes[..]).read_at(buffer, at)
    }
}

impl Sink for Disk<'_> {
    fn write_at(&mut self, bytes: &[u8], at: u64) -> io::Result<usize> {
        self.backend.model_work(1000 + bytes.len() as u64);
        self.bytes.write_at(bytes, at)
    }
}

fn takes(depth: u32, written: bool) -> u64 {
    let backend = modelled();
    let mut source = Disk { backend: &backend, bytes: noise((CHUNK * CHUNKS) as usize) };
    let mut sink = Disk { backend: &backend, bytes: Vec::new() };
    let mut streamer = streamer(&backend, CHUNK, depth);
    let before = backend.model_now().expect("a model");
    let job = Job::new(&mut source);
    let job = if written { job.to(&mut sink) } else { job };
    streamer.run(job, &mut incremented(&backend)).expect("no fault");
    backend.model_now().expect("a model") - before
}

#[test]
fn three_equal_stages_overlap_to_little_more_than_one() {
    let (alone, overlapped) = (takes(1, false), takes(3, false));
    assert_eq!(alone, 3 * STAGE * CHUNKS, "one at a time");
    assert_eq!(overlapped, STAGE * (CHUNKS + 2), "one after the other only for the first and the last");
    assert!(overlapped * 5 <= alone * 2, "2.5 times at least");
    assert!(overlapped * 100 <= STAGE * CHUNKS * 110, "1.10 of the slowest at most");
    assert_eq!(takes(2, false), takes(2, false), "virtual time is the same every time");
    assert!(takes(2, false) > overlapped && takes(8, false) == overlapped);
}

#[test]
fn host_copies_both_ways_overlap_with_the_device() {
    let (alone, overlapped) = (takes(1, true), takes(4, true));
    assert_eq!(alone, 5 * STAGE * CHUNKS);
    assert!(overlapped * 100 <= 2 * STAGE * CHUNKS * 110, "{overlapped}");
}

#[test]
fn a_place_is_refilled_after_its_read_within_the_depth() {
    let backend = build(HostBackend::builder().device_memory(1 << 20).log(true));
    let bytes = noise(10_000);
    let mut sink = Vec::new();
    let mut streamer = streamer(&backend, 1000, 3);
    streamer.run(Job::new(&mut &bytes[..]).to(&mut sink), &mut incremented(&backend)).expect("no fault");
    let home = streamer.address()..streamer.address() + streamer.size();
    let log = backend.call_log();

    let mut places: HashMap<u64, Vec<&str>> = HashMap::new();
    for call in log.iter().filter(|call| call.phase == Phase::Executed && call.verb == Verb::Copy) {
        assert!(call.ok);
        let (from, to) = (call.from.expect("a source"), call.to.expect("a target"));
        let (place, way) = if home.contains(&to) { (to, "there") } else { (from, "back") };
        assert!(home.contains(&place), "{call:?}");
        places.entry(place).or_default().push(way);
    }
    assert_eq!(places.len(), 3);
    for ways in places.values() {
        assert!(ways.chunks(2).all(|pair| pair == ["there", "back"]), "{ways:?}");
    }
    assert_eq!(log.iter().filter(|call| call.phase == Phase::Executed && call.verb == Verb::Launch).count(), 10);

    let mut ahead = 0;
    let mut most = 0;
    for call in log.iter().filter(|call| call.phase == Phase::Called && call.verb == Verb::Copy && call.stream.is_some()) {
        if home.contains(&call.to.expect("a target")) {
            ahead += 1;
            most = most.max(ahead);
        }
    }
    let first_wait = log.iter().position(|call| call.phase == Phase::Called && call.verb == Verb::Wait).expect("it waits");
    let uploads = |calls: &[ringmem::backend::host::Call]| {
        calls
            .iter()
            .filter(|call| call.phase == Phase::Called && call.verb == Verb::Copy && home.contains(&call.to.expect("a target")))
            .count()
    };
    assert_eq!((uploads(&log[..first_wait]), uploads(&log), most), (3, 10, 10));
}

#[test]
fn streaming_unchanged_bytes_queues_only_copies() {
    let backend = build(HostBackend::builder().device_memory(1 << 20).log(true));
    let bytes = noise(5000);
    let mut sink = Vec::new();
    streamer(&backend, 1000, 2).run(Job::new(&mut &bytes[..]).to(&mut sink), &mut Through).expect("no fault");
    let log = backend.call_log();
    let copies = log.iter().filter(|call| call.phase == Phase::Executed && call.verb == Verb::Copy).count();
    assert_eq!((copies, backend.counters().launches), (10, 0));
}
