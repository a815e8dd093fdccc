use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use ringmem::backend::host::HostBackend;
use ringmem::manager::{BufferConfig, MemoryManager};
use ringmem::memory::{Buffer, Device, Event, GpuBuffer, Logged, Pinned, Trace, Tracked};
use ringmem::pool::{PinnedPool, Pool};
use ringmem::snapshot::{Snapshot, csv};
use ringmem::stream::Stream;
use serde_json::{Value, json};

use crate::rig::busy_stream::Held;

fn backend() -> Arc<HostBackend> {
    HostBackend::builder().device_memory(16 << 20).build().expect("a backend")
}

fn parsed(snapshot: &Snapshot) -> Value {
    let text = snapshot.to_json();
    assert_eq!((text.lines().count(), text.ends_with('\n')), (1, true));
    serde_json::from_str(&text).expect("JSON")
}

#[test]
fn an_empty_snapshot_has_every_section_and_its_version() {
    let mut json = parsed(&Snapshot::new());
    assert!(json["taken_ns"].take().is_u64());
    let expected = json!({ "version": 1, "taken_ns": null, "pools": [], "samples": [], "trackers": [], "managers": [], "traces": [] });
    assert_eq!(json, expected);
}

#[test]
fn slab_parts_of_a_snapshot_cover_the_slab() {
    let backend = backend();
    let stream = Stream::new(&backend, 0).expect("a stream");
    let pool = Pool::builder(Device::new(&backend, 0)).slab(1 << 20).build().expect("a pool");
    let give = |bytes: usize| Buffer::<u8, _>::new(pool.clone(), bytes).expect("room");
    let (live, cached) = (give(4096), give(8192));
    let held = Held::new(&backend, &stream);
    let mut pending = give(16_384);
    pending.used_by(&stream).expect("listed");
    drop(pending);
    drop(cached);
    let earlier = parsed(&Snapshot::new());
    let json = parsed(Snapshot::new().pool("a \"pool\"", &pool));
    held.let_go();
    let pool = &json["pools"][0];
    assert_eq!((&pool["name"], &pool["statistics"]["live"]), (&json!("a \"pool\""), &json!(1)));
    let times = [&earlier["taken_ns"], &pool["time_ns"], &json["taken_ns"]];
    assert!(times.map(Value::as_u64).is_sorted() && earlier["taken_ns"].is_u64(), "{times:?}");
    let slab = &pool["slabs"][0];
    let parts = slab["parts"].as_array().expect("parts");
    let of =
        |state: &str| parts.iter().filter(|part| part["state"] == state).map(|part| part["bytes"].as_u64().expect("bytes")).sum::<u64>();
    assert_eq!((of("live"), of("cached"), of("pending")), (4096, 8192, 16_384));
    assert_eq!((of("free"), &slab["bytes"]), ((1 << 20) - 4096 - 8192 - 16_384, &json!(1 << 20)));
    let mut end = 0;
    for part in parts {
        assert_eq!(part["offset"], end);
        end += part["bytes"].as_u64().expect("bytes");
    }
    let address = slab["address"].as_u64().expect("an address");
    assert!((address..address + (1 << 20)).contains(&live.device_address().expect("it has bytes").get()));
}

#[test]
fn a_pinned_pool_lists_the_slabs_of_both_its_pools() {
    let backend = backend();
    let pool = PinnedPool::new(Pinned::new(&backend, 0), 8 << 20).expect("a pool");
    let _blocks = [1000, 3 << 20].map(|bytes| Buffer::<u8, _>::new(pool.clone(), bytes).expect("room"));
    let json = parsed(Snapshot::new().slabs("pinned", &pool.statistics(), &pool.snapshot()));
    let slabs = json["pools"][0]["slabs"].as_array().expect("slabs");
    let numbers: Vec<_> = slabs.iter().map(|slab| slab["number"].as_u64().expect("a number")).collect();
    assert_eq!((numbers, pool.statistics().slabs), (vec![0, 1], 2));
    let bytes: u64 = slabs.iter().map(|slab| slab["bytes"].as_u64().expect("bytes")).sum();
    assert_eq!(json["pools"][0]["statistics"]["reserved_bytes"], bytes);
}

#[test]
fn leaks_have_name_line_stream_age_and_backtrace() {
    let backend = backend();
    let memory = Tracked::with_clock(Device::new(&backend, 0), || 7);
    let stream = Stream::new(&backend, 0).expect("a stream");
    let (_large, line) = (Buffer::<u8, _>::new_on(memory.named("a\\b\n\"<c>"), 200, &stream).expect("room"), line!());
    let _small = Buffer::<u16, _>::new(memory.backtraces(true), 50).expect("room");
    drop(Buffer::<u8, _>::new(memory.clone(), 700).expect("room"));
    let json = parsed(Snapshot::new().tracked("device", &memory));
    let tracker = &json["trackers"][0];
    assert_eq!((&tracker["name"], &tracker["peak_bytes"]), (&json!("device"), &json!(1000)));
    let [large, small] = &tracker["leaks"].as_array().expect("leaks")[..] else { panic!("two leaks in {json}") };
    let place = large["place"].as_str().expect("a place");
    assert!(place.contains("snapshot.rs") && place.contains(&format!(":{line}:")), "{place}");
    assert_eq!((&large["name"], &large["bytes"], &large["number"]), (&json!("a\\b\n\"<c>"), &json!(200), &json!(1)));
    assert_eq!((&large["stream"], &large["age_ns"], &large["backtrace"]), (&json!(stream.id().get()), &json!(0), &Value::Null));
    assert_eq!((&small["name"], &small["align"], &small["stream"]), (&Value::Null, &json!(2), &Value::Null));
    assert!(small["backtrace"].as_str().is_some_and(|text| text.contains("leaks_have_name_line_stream_age_and_backtrace")), "{small}");
}

#[test]
fn logged_calls_have_times_names_lines_and_addresses() {
    let backend = backend();
    let stream = Stream::new(&backend, 0).expect("a stream");
    let memory = Logged::new(Device::new(&backend, 0));
    let (mut first, line) = (Buffer::<u8, _>::new(memory.named("weights"), 100).expect("room"), line!());
    let address = first.device_address().expect("it has bytes").get();
    let _second = Buffer::<u8, _>::new_on(memory.backtraces(true), 300, &stream).expect("room");
    assert!(Buffer::<u8, _>::new(memory.clone(), 1 << 40).is_err());
    first.used_by(&stream).expect("listed");
    drop(first);
    let json = parsed(Snapshot::new().logged("device", &memory));
    let events = json["traces"][0]["events"].as_array().expect("events");
    let kinds: Vec<_> = events.iter().map(|event| event["kind"].as_str().expect("a kind")).collect();
    assert_eq!(kinds, ["alloc", "alloc", "refused", "free"]);
    let times: Vec<u64> = events.iter().map(|event| event["time_ns"].as_u64().expect("a time")).collect();
    assert!(times.is_sorted() && json["taken_ns"].as_u64() >= times.last().copied(), "{json}");
    let [first, second, refused, free] = &events[..] else { panic!("four events") };
    assert_eq!((&first["block"], &first["bytes"], &first["name"]), (&json!(0), &json!(100), &json!("weights")));
    assert_eq!((&first["address"], &first["stream"], &first["backtrace"]), (&json!(address), &Value::Null, &Value::Null));
    assert!(first["place"].as_str().is_some_and(|place| place.contains(&format!("snapshot.rs:{line}:"))), "{first}");
    assert_eq!((&second["stream"], &second["name"], second["backtrace"].is_string()), (&json!(0), &Value::Null, true));
    assert_eq!((&refused["block"], &refused["address"], &refused["bytes"]), (&Value::Null, &Value::Null, &json!(1_u64 << 40)));
    assert_eq!((&free["block"], &free["after"]), (&json!(0), &json!([0])));
}

#[test]
fn a_parsed_trace_has_null_for_missing_fields() {
    let trace = Trace::parse("alloc 3 4096 256 on 1\nfree 3 after 1 0\nfree 9\n").expect("a trace");
    let json = parsed(Snapshot::new().trace("recorded", &trace));
    let none = Value::Null;
    let expected = json!([
        { "kind": "alloc", "time_ns": none, "block": 3, "bytes": 4096, "align": 256, "stream": 1, "address": none, "name": none, "place": none, "backtrace": none },
        { "kind": "free", "time_ns": none, "block": 3, "after": [1, 0] },
        { "kind": "free", "time_ns": none, "block": 9, "after": [] },
    ]);
    assert_eq!(json["traces"], json!([{ "name": "recorded", "events": expected }]));
}

#[test]
fn snapshots_contain_samples_and_managers() {
    let backend = backend();
    let pool = Pool::builder(Device::new(&backend, 0)).slab(1 << 20).build().expect("a pool");
    let clock = Arc::new(AtomicU64::new(1000));
    let shown = Arc::clone(&clock);
    let manager = MemoryManager::builder(Device::new(&backend, 0)).limit(1 << 20).clock(move || shown.load(Relaxed)).build();
    let weights = manager.create::<f32>("weights", 100, BufferConfig::new()).expect("room");
    let freed = manager.create::<f32>("freed", 5000, BufferConfig::new()).expect("room");
    manager.free(freed).expect("no lease");
    clock.store(1300, Relaxed);
    manager.resize_group([(weights.into(), 2000)]).expect("room");
    manager.resize_group([(weights.into(), 1500)]).expect("room");
    clock.store(1700, Relaxed);
    let figures = manager.statistics();
    assert!(figures.peak_bytes > figures.used_bytes && figures.buffers[0].capacity_bytes() > 6000, "{figures:?}");
    let numbered = MemoryManager::new(Device::new(&backend, 0));
    let ids = [100, 200, 300, 400, 500, 600]
        .map(|bytes| numbered.register(GpuBuffer::<u8>::new(Device::new(&backend, 0), bytes).expect("room")).expect("a slot"));
    let _leases = [0, 0, 1, 2].map(|at| numbered.lease(ids[at]).expect("it is registered"));
    for at in [1, 3, 4] {
        numbered.free(ids[at]).expect("it is registered");
    }
    let mut snapshot = Snapshot::new();
    let earlier = parsed(&Snapshot::new());
    snapshot.sample("device", &pool.statistics());
    let _live = Buffer::<u8, _>::new(pool.clone(), 5000).expect("room");
    snapshot.sample("device", &pool.statistics()).manager("buffers", &manager).manager("numbered", &numbered);
    let json = parsed(&snapshot);
    let held = |at: usize| json["samples"][at]["statistics"]["requested_bytes"].as_u64();
    assert_eq!((held(0), held(1), &json["samples"][1]["pool"]), (Some(0), Some(5000), &json!("device")));
    let times = [&earlier["taken_ns"], &json["samples"][0]["time_ns"], &json["samples"][1]["time_ns"], &json["taken_ns"]];
    assert!(times.map(Value::as_u64).is_sorted() && earlier["taken_ns"].is_u64(), "{times:?}");
    let buffer = &json["managers"][0]["buffers"][0];
    let capacity = figures.buffers[0].capacity_bytes();
    let expected = json!({
        "name": "weights", "element": "f32", "used_bytes": 6000, "capacity_bytes": capacity, "resizes": 1, "age_ns": 700, "idle_ns": 400
    });
    assert_eq!(buffer, &expected);
    let of_manager = ["name", "used_bytes", "peak_bytes", "limit_bytes"].map(|field| &json["managers"][0][field]);
    assert_eq!(of_manager, [&json!("buffers"), &json!(figures.used_bytes), &json!(figures.peak_bytes), &json!(1 << 20)]);
    let expected = json!({
        "name": "numbered", "used_bytes": 1200, "peak_bytes": 2100, "limit_bytes": 6_u64 << 30, "created": 0, "registered": 6, "released": 3,
        "freed": 2, "leases": 4, "retired": 0, "buffers": []
    });
    assert_eq!(json["managers"][1], expected);
}

#[test]
fn write_replaces_the_file_and_its_errors_name_the_path() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("memory.json");
    std::fs::write(&path, "a longer file that was here before, and must not show through").expect("room");
    Snapshot::new().write(&path).expect("room");
    let text = std::fs::read_to_string(&path).expect("it is there");
    assert!(text.starts_with(r#"{"version":1,"#) && text.ends_with("]}\n"), "{text}");
    let error = Snapshot::new().write(folder.path().join("no/where.json")).expect_err("no folder");
    assert!(error.to_string().contains("cannot write ") && error.to_string().contains("where.json"), "{error}");
}

#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_keeps_the_old_snapshot() {
    use crate::rig::rerun_or_skip::{is_again, passes_again};
    if !is_again() {
        return passes_again("snapshot::a_full_disk_keeps_the_old_snapshot", "ulimit -f 100; trap '' XFSZ;", &["sys_resource"]);
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("memory.json");
    std::fs::write(&path, "old").expect("room");
    let mut snapshot = Snapshot::new();
    snapshot.slabs(&"long".repeat(1 << 18), &ringmem::pool::Statistics::default(), &[]);
    let error = snapshot.write(&path).expect_err("no room");
    assert!(error.kind() == std::io::ErrorKind::FileTooLarge && error.to_string().contains("memory.json"), "{error}");
    assert!(std::fs::read(&path).expect("it is there") == b"old");
    assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 1, "no temporary file is left");
}

#[test]
fn a_reader_of_comma_separated_values_gets_the_calls_back() {
    let backend = backend();
    let streams = [Stream::new(&backend, 0).expect("a stream"), Stream::new(&backend, 0).expect("a stream")];
    let memory = Logged::new(Device::new(&backend, 0));
    let names = ["plain", "a,b", "\"quoted\"", "two\nlines", "\r", "", " space ", "\u{e9}"];
    for name in names {
        drop(Buffer::<u8, _>::new(memory.named(name), 100).expect("room"));
    }
    let mut used = Buffer::<u8, _>::new_on(memory.clone(), 100, &streams[1]).expect("room");
    used.used_by(&streams[0]).expect("listed");
    used.used_by(&streams[1]).expect("listed");
    drop(used);
    let _live = Buffer::<u64, _>::new(memory.clone().backtraces(true), 1).expect("room");
    Buffer::<u8, _>::new(memory.clone(), 1 << 40).expect_err("more than the device has");

    let calls = memory.calls();
    let text = csv(&calls).to_string();
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    let header: Vec<_> = reader.headers().expect("a header").iter().map(str::to_owned).collect();
    let records: Vec<csv::StringRecord> = reader.records().collect::<Result<_, _>>().expect("as many fields in each line");
    assert_eq!(records.len(), calls.len());
    let text = |value: Option<String>| value.unwrap_or_default();
    for (call, record) in calls.iter().zip(&records) {
        let (kind, block, request, after) = match &call.event {
            Event::Alloc { block, size, align, on } => ("alloc", Some(block), Some((size, align, *on)), Vec::new()),
            Event::Refused { size, align, on } => ("refused", None, Some((size, align, *on)), Vec::new()),
            Event::Free { block, after } => ("free", Some(block), None, after.to_vec()),
        };
        let expected = [
            ("kind", kind.to_owned()),
            ("time_ns", call.time_ns.to_string()),
            ("block", text(block.map(ToString::to_string))),
            ("bytes", text(request.map(|(size, ..)| size.to_string()))),
            ("align", text(request.map(|(_, align, _)| align.to_string()))),
            ("stream", text(request.and_then(|(.., on)| on).map(|on| on.to_string()))),
            ("address", text(call.address.map(|address| address.to_string()))),
            ("name", text(call.name.as_ref().map(ToString::to_string))),
            ("place", text(call.caller.map(ToString::to_string))),
            ("after", after.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")),
            ("backtrace", text(call.backtrace.as_ref().map(ToString::to_string))),
        ];
        for ((column, value), (title, field)) in expected.iter().zip(header.iter().zip(record)) {
            assert_eq!((*column, value.as_str()), (title.as_str(), field));
        }
        assert_eq!((header.len(), record.len()), (expected.len(), expected.len()));
    }
    let of = |column: &str| header.iter().position(|title| title == column).expect("a column");
    let seen: Vec<&str> = records.iter().filter(|record| &record[0] == "alloc").map(|record| &record[of("name")]).collect();
    assert_eq!(seen[..names.len()], names);
    assert!(records.iter().any(|record| &record[of("after")] == "0 1" || &record[of("after")] == "1 0"), "{records:?}");
    assert!(records.iter().any(|record| record[of("backtrace")].contains('\n')), "a backtrace has lines");
}

#[test]
fn a_spreadsheet_evaluates_no_name_of_comma_separated_values() {
    let memory = Logged::new(Device::new(&backend(), 0));
    for name in ["=HYPERLINK(\"http://x\")", "+1", "-1", "@SUM(1)", "1+1"] {
        drop(Buffer::<u8, _>::new(memory.named(name), 100).expect("room"));
    }
    let text = csv(&memory.calls()).to_string();
    let names: Vec<_> = csv::Reader::from_reader(text.as_bytes()).records().map(|record| record.expect("a row")[7].to_owned()).collect();
    let allocated: Vec<_> = names.iter().filter(|name| !name.is_empty()).collect();
    assert_eq!(allocated, ["'=HYPERLINK(\"http://x\")", "'+1", "'-1", "'@SUM(1)", "1+1"], "{text}");
}
