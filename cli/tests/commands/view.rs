use std::path::Path;
use std::process::Command;

use ringmem::backend::host::HostBackend;
use ringmem::memory::{Buffer, Device, Logged, Trace, Tracked};
use ringmem::pool::Pool;
use ringmem::snapshot::Snapshot;
use ringmem::stream::Stream;
use ringmem_kernels::IMAGE;
use serde_json::{Value, json};

use crate::bytes::{file, text};
use crate::program::{call, execute};

const TRACE: &str = "alloc 0 1048576 256\nalloc 1 2097152 256 on 1\nrefused 99999999999 256\nfree 0\nfree 9\nalloc 7 4096 256\n";

fn snapshot() -> Snapshot {
    let backend = HostBackend::builder().device_memory(16 << 20).build().expect("a backend");
    let pool = Pool::builder(Device::new(&backend, 0)).slab(1 << 20).build().expect("a pool");
    let stream = Stream::new(&backend, 0).expect("a stream");
    let memory = Logged::new(Tracked::new(pool.clone()));
    let mut snapshot = Snapshot::new();
    let _weights = Buffer::<u8, _>::new(memory.named("</script><!--<b>"), 5000).expect("room");
    drop(Buffer::<u8, _>::new_on(memory.named("scratch"), 70_000, &stream).expect("room"));
    snapshot.sample("device", &pool.statistics());
    let _traced = Buffer::<u8, _>::new(memory.backtraces(true), 300).expect("room");
    assert!(Buffer::<u8, _>::new(memory.clone(), 1 << 40).is_err());
    snapshot.sample("device", &pool.statistics());
    snapshot.pool("device", &pool).tracked("device", memory.inner()).logged("device", &memory);
    snapshot
}

fn view(snapshot: &str, format: &str) -> Vec<u8> {
    let directory = tempfile::tempdir().expect("a directory");
    let (from, to) = (directory.path().join("memory.json"), directory.path().join("out"));
    std::fs::write(&from, snapshot).expect("room");
    let ran = call(&IMAGE, ["view", text(&from), "--format", format, "--output", text(&to)]);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{ran:?}");
    std::fs::read(to).expect("it was written")
}

fn data(page: &str) -> Value {
    let (_, rest) = page.split_once(r#"<script type="application/json" id="data">"#).expect("the element");
    let (data, _) = rest.split_once("</script>").expect("its end");
    assert!(!data.contains('<'), "{data}");
    serde_json::from_str(data).expect("JSON")
}

/// The operations that memory_viz reads, by the names of Python's `pickletools`.
const OPERATIONS: &str = "APPEND BINGET BININT BININT1 BINPUT BINUNICODE EMPTY_DICT EMPTY_LIST LONG1 MARK PROTO SETITEMS STOP";

fn unpickled(pickle: &[u8]) -> Value {
    let file = file(pickle);
    let script = "import json, pickle, pickletools, sys
text = open(sys.argv[1], 'rb').read()
print(json.dumps([pickle.loads(text), sorted({operation.name for operation, _, _ in pickletools.genops(text)})]))";
    let output = Command::new("python3").args(["-c", script, text(file.path())]).output();
    let output = output.expect("this test reads a pickle with python3, which must be installed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let (value, operations): (Value, Vec<String>) = serde_json::from_slice(&output.stdout).expect("JSON");
    let unknown: Vec<_> = operations.iter().filter(|operation| !OPERATIONS.split(' ').any(|known| known == *operation)).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
    value
}

#[test]
fn a_snapshot_of_a_replay_becomes_one_html_page() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name);
    std::fs::write(path("trace"), TRACE).expect("room");
    let ran = execute(["replay", text(&path("trace")), "--slab", "8MiB", "--limit", "1GiB", "--snapshot", text(&path("memory.json"))]);
    assert_eq!(ran.code, 0, "{ran:?}");
    let json: Value = serde_json::from_slice(&std::fs::read(path("memory.json")).expect("a snapshot")).expect("JSON");
    let names: Vec<&Value> = json["pools"].as_array().expect("pools").iter().map(|pool| &pool["name"]).collect();
    assert_eq!(names, ["replay at the peak", "replay"]);
    assert_eq!([0, 1].map(|at| json["pools"][at]["statistics"]["requested_bytes"].as_u64()), [Some(3 << 20), Some((2 << 20) + 4096)]);
    assert_eq!(json["samples"].as_array().map(Vec::len), Some(6));
    // The free of an unknown block is no call.
    let events = json["traces"][0]["events"].as_array().expect("events");
    let kinds: Vec<_> = events.iter().map(|event| event["kind"].as_str().expect("a kind")).collect();
    assert_eq!(kinds, ["alloc", "alloc", "refused", "free", "alloc"]);
    assert!(events.iter().all(|event| event["place"].is_null()), "the replay's own line is no line of the program");
    assert!(events[0]["address"].is_u64() && events[0]["time_ns"].is_u64(), "{json}");

    let ran = execute(["view", text(&path("memory.json")), "--output", text(&path("memory.html"))]);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    assert!(ran.out.contains("memory.html: 2 pools, 2 slabs, 5 events; "), "{ran:?}");
    let page = std::fs::read_to_string(path("memory.html")).expect("a page");
    assert!(page.starts_with("<!DOCTYPE html>") && page.ends_with("</html>\n"));
    let data = data(&page);
    assert_eq!((&data["traces"][0]["begin"], &data["traces"][0]["end"]), (&json!([0, 1, 4]), &json!([3, -1, -1])));
    assert_eq!(
        (&data["traces"][0]["bytes"], &data["traces"][0]["refused"][0][1]),
        (&json!([1 << 20, 2 << 20, 4096]), &json!(99_999_999_999_u64))
    );
    let ran = execute(["view", text(&path("memory.json"))]);
    assert!(ran.code == 0 && ran.out == page, "without --output it is printed");
}

#[test]
fn a_page_loads_nothing_and_escapes_snapshot_text() {
    let page = String::from_utf8(view(&snapshot().to_json(), "html")).expect("text");
    // `data` asserts that the element has no `<`.
    let names = data(&page)["traces"][0]["texts"].clone();
    assert!(names.as_array().expect("texts").contains(&json!("</script><!--<b>")), "{names}");
    assert_eq!((page.matches("<script").count(), page.matches("</script>").count()), (2, 2));
    assert!(page.contains("Content-Security-Policy") && page.contains("default-src 'none'"));
    let (before, after) = page.split_once(r#"id="data">"#).expect("the element");
    let (_, after) = after.split_once("</script>").expect("its end");
    for loads in ["http:", "https:", "src=", "href=", "url(", "@import", "innerHTML", "fetch("] {
        assert!(!before.contains(loads) && !after.contains(loads), "{loads}");
    }
}

#[test]
fn an_invalid_snapshot_is_an_error_with_the_place() {
    let trace = |events: &str| format!(r#"{{"version":1,"traces":[{{"name":"t","events":[{events}]}}]}}"#);
    let slab = |parts: &str| {
        let figures =
            "hits misses live requested_bytes held_bytes reserved_bytes reserved_peak free_bytes largest_free cached_bytes largest_cached";
        let figures: Vec<String> = figures.split(' ').map(|name| format!(r#""{name}":0"#)).collect();
        let slab = format!(r#"{{"number":3,"address":null,"bytes":100,"parts":[{parts}]}}"#);
        format!(r#"{{"version":1,"pools":[{{"name":"p","statistics":{{{}}},"slabs":[{slab}]}}]}}"#, figures.join(","))
    };
    let directory = tempfile::tempdir().expect("a directory");
    let (from, to) = (directory.path().join("memory.json"), directory.path().join("memory.html"));
    for (content, facts) in [
        (String::new(), &["not a snapshot", "EOF"][..]),
        ("\u{7f}ELF".to_owned(), &["not a snapshot", "line 1 column 1"]),
        ("[1]".to_owned(), &["not a snapshot", "not an object"]),
        ("{}".to_owned(), &["not a snapshot", "`version`"]),
        (r#"{"version":2,"pools":7}"#.to_owned(), &["snapshot version 2", "version 1"]),
        (r#"{"version":"1"}"#.to_owned(), &["snapshot version \"1\""]),
        (r#"{"version":1,"pools":[{"name":"p"}]}"#.to_owned(), &["missing field `statistics`"]),
        (r#"{"version":1,"taken_ns":1e400}"#.to_owned(), &["not a snapshot", "number out of range"]),
        (r#"{"version":1,"taken_ns":99999999999999999999}"#.to_owned(), &["not a snapshot"]),
        ("[".repeat(100_000), &["not a snapshot"]),
        (json!({ "version": 1, "traces": vec![json!({ "name": "t", "events": [] }); 1001] }).to_string(), &["more than 1000 parts"]),
        (trace(r#"{"kind":"alloc","bytes":1}"#), &["trace \"t\", event 0: no `block`"]),
        (trace(r#"{"kind":"alloc","block":1}"#), &["event 0: no `bytes`"]),
        (trace(r#"{"kind":"alloc","block":1,"bytes":1},{"kind":"alloc","block":1,"bytes":1}"#), &["event 1: block 1 is live already"]),
        (trace(r#"{"kind":"free","block":1,"time_ns":5},{"kind":"free","block":1,"time_ns":4}"#), &["event 1: its time"]),
        (trace(r#"{"kind":"move","block":1}"#), &["unknown variant `move`"]),
        (slab(r#"{"offset":0,"bytes":60,"state":"live"},{"offset":50,"bytes":10,"state":"free"}"#), &["slab 3", "50", "overlaps"]),
        (slab(r#"{"offset":90,"bytes":11,"state":"live"}"#), &["slab 3", "overlaps another or the end"]),
        (slab(r#"{"offset":18446744073709551615,"bytes":2,"state":"live"}"#), &["slab 3"]),
    ] {
        std::fs::write(&from, &content).expect("room");
        let facts: Vec<&str> = facts.iter().copied().chain([text(&from)]).collect();
        for format in ["html", "pytorch", "perfetto"] {
            call(&IMAGE, ["view", text(&from), "--format", format, "--output", text(&to)]).refuses(1, &facts);
            assert!(!to.exists(), "{content}");
        }
    }
    call(&IMAGE, ["view", text(&directory.path().join("nothing"))]).refuses(1, &["nothing"]);
    call(&IMAGE, ["view", text(&from), "--format", "jpeg"]).refuses(2, &["--format", "jpeg"]);
    call(&IMAGE, ["view", text(&from), "--output", text(&from)]).refuses(2, &["--output", "itself"]);
    call(&IMAGE, ["replay", text(&from), "--snapshot", text(&from)]).refuses(2, &["--snapshot", "itself"]);
}

#[test]
fn the_largest_numbers_pass_through_every_format() {
    let most = u64::MAX;
    let alloc = |block: u64| json!({ "kind": "alloc", "time_ns": most, "block": block, "bytes": most, "stream": most, "address": most, "name": "n" });
    let events =
        json!([alloc(0), alloc(most), alloc(1), { "kind": "free", "block": 0, "time_ns": most }, { "kind": "refused", "bytes": most }]);
    let unknown = json!([{ "kind": "alloc", "block": 0, "bytes": most }, { "kind": "alloc", "block": 1, "bytes": most }]);
    let traces = json!([{ "name": "t", "events": events }, { "name": "u", "events": unknown }]);
    let json = json!({ "version": 1, "traces": traces, "a later field": 1 }).to_string();
    assert!(view(&json, "html").starts_with(b"<!DOCTYPE html>"));
    let pickle = unpickled(&view(&json, "pytorch"));
    assert_eq!((&pickle["device_traces"][0][0]["size"], pickle["device_traces"].as_array().map(Vec::len)), (&json!(most), Some(2)));
    let perfetto: Value = serde_json::from_slice(&view(&json, "perfetto")).expect("JSON");
    assert!(perfetto["traceEvents"].as_array().is_some_and(|events| events.len() > 8), "{perfetto}");
}

#[test]
fn a_pickle_has_the_structure_that_memory_viz_reads() {
    let json = snapshot().to_json();
    let known: Value = serde_json::from_str(&json).expect("JSON");
    let dump = unpickled(&view(&json, "pytorch"));
    assert_eq!(dump["allocator_settings"], json!({}));
    let [segment] = &dump["segments"].as_array().expect("segments")[..] else { panic!("one slab is one segment: {dump}") };
    let slab = &known["pools"][0]["slabs"][0];
    // The simulated device's address, in bits exact in JavaScript.
    let kept = slab["address"].as_u64().map(|address| address & ((1 << 48) - 1));
    assert_eq!((segment["address"].as_u64(), &segment["total_size"], &segment["device"]), (kept, &json!(1 << 20), &json!(0)));
    assert_eq!((&segment["segment_type"], &segment["stream"]), (&json!("small"), &json!(0)));
    let blocks = segment["blocks"].as_array().expect("blocks");
    let mut address = segment["address"].as_u64().expect("an address");
    for block in blocks {
        assert_eq!(block["address"], address, "memory_viz adds sizes");
        address += block["size"].as_u64().expect("a size");
    }
    assert_eq!(address, segment["address"].as_u64().expect("an address") + (1 << 20));
    let live: Vec<&Value> = blocks.iter().filter(|block| block["state"] == "active_allocated").collect();
    let mut requested: Vec<_> = live.iter().map(|block| block["requested_size"].as_u64().expect("a size")).collect();
    requested.sort_unstable();
    assert_eq!(requested, [300, 5000], "the requested bytes, which are less than a block");
    let weights = live.iter().find(|block| block["requested_size"] == 5000).expect("it is live");
    let (frame, place) = (&weights["frames"][0], known["traces"][0]["events"][0]["place"].as_str().expect("a place"));
    assert_eq!(frame["name"], "</script><!--<b>");
    assert!(
        frame["filename"].as_str().is_some_and(|file| file.ends_with("view.rs")) && place.contains(&format!(":{}:", frame["line"])),
        "{frame}"
    );
    let traced = live.iter().find(|block| block["requested_size"] == 300).expect("it is live");
    let frames = traced["frames"].as_array().expect("frames");
    assert!(
        frames
            .iter()
            .any(|frame| frame["line"].as_u64() == weights["frames"][0]["line"].as_u64().map(|line| line + 3) && frame["name"] != ""),
        "the backtrace: {frames:?}"
    );

    let [events] = &dump["device_traces"].as_array().expect("traces")[..] else { panic!("one trace: {dump}") };
    let events = events.as_array().expect("events");
    let actions: Vec<_> = events.iter().map(|event| event["action"].as_str().expect("an action")).collect();
    assert_eq!(actions, ["alloc", "alloc", "free_requested", "free_completed", "alloc", "oom"]);
    assert_eq!((&events[1]["size"], &events[1]["stream"], &events[0]["stream"]), (&json!(70_000), &json!(1), &json!(0)));
    assert_eq!((&events[3]["addr"], &events[5]["size"]), (&events[1]["addr"], &json!(1_u64 << 40)));
    assert!(events.iter().all(|event| event["time_us"].is_u64() && event["frames"].is_array()), "{events:?}");
}

#[test]
fn blocks_outside_slabs_become_their_own_segments() {
    let trace = Trace::parse("alloc 0 1000 256\nalloc 1 3000000000 256 on 4\nfree 0\n").expect("a trace");
    let dump = unpickled(&view(&Snapshot::new().trace("recorded", &trace).to_json(), "pytorch"));
    let actions: Vec<_> =
        dump["device_traces"][0].as_array().expect("events").iter().map(|event| event["action"].as_str().expect("text")).collect();
    assert_eq!(actions, ["segment_alloc", "alloc", "segment_alloc", "alloc", "free_requested", "free_completed", "segment_free"]);
    let [segment] = &dump["segments"].as_array().expect("segments")[..] else { panic!("one live block: {dump}") };
    assert_eq!(
        (&segment["total_size"], &segment["stream"], &segment["segment_type"]),
        (&json!(3_000_000_000_u64), &json!(5), &json!("large"))
    );
    assert_eq!(segment["address"], dump["device_traces"][0][3]["addr"]);
    assert_ne!(segment["address"], dump["device_traces"][0][1]["addr"]);
}

#[test]
fn trace_events_have_slices_per_block_and_bytes_in_use() {
    let json = snapshot().to_json();
    let object: Value = serde_json::from_slice(&view(&json, "perfetto")).expect("JSON");
    let events = object["traceEvents"].as_array().expect("events");
    let of = |phase: &str| events.iter().filter(|event| event["ph"] == phase).collect::<Vec<_>>();
    assert!(events.iter().all(|event| event["pid"].is_u64() && event["name"].is_string()), "{events:?}");
    // Chrome's viewer names a counter without one "undefined.NAME".
    assert!(events.iter().all(|event| event["ph"] == "M" || event["cat"] == "memory"), "{events:?}");
    let slices = of("X");
    let names: Vec<_> = slices.iter().map(|slice| slice["name"].as_str().expect("a name")).collect();
    assert_eq!(names[..2], ["</script><!--<b>", "scratch"]);
    assert_eq!(
        (&slices[1]["args"]["bytes"], &slices[1]["args"]["freed"], &slices[0]["args"]["freed"]),
        (&json!(70_000), &json!(true), &json!(false))
    );
    assert!(slices[2]["args"]["backtrace"].as_str().is_some_and(|text| text.contains("tests/commands/view.rs")));
    // The third block may use the freed second's thread.
    assert_eq!([0, 1, 2].map(|at| slices[at]["tid"].as_u64()), [Some(1), Some(2), Some(2)]);
    let times: Value = serde_json::from_str::<Value>(&json).expect("JSON")["traces"][0]["events"].take();
    let nanos = |at: usize| times[at]["time_ns"].as_u64().expect("a time");
    let micros = |nanos: u64| Some(nanos as f64 / 1000.0);
    assert_eq!((slices[1]["ts"].as_f64(), slices[1]["dur"].as_f64()), (micros(nanos(1)), micros(nanos(2) - nanos(1))));
    let in_use: Vec<_> =
        of("C").into_iter().filter(|event| event["name"] == "in use").map(|event| event["args"]["bytes"].as_u64()).collect();
    assert_eq!(in_use, [Some(5000), Some(75_000), Some(5000), Some(5300), Some(5300)]);
    let fragmentation: Vec<_> = of("C").into_iter().filter(|event| event["name"] == "device: fragmentation").collect();
    assert_eq!(fragmentation.len(), 2);
    assert!(
        fragmentation.iter().all(|event| event["args"]["percent"].as_f64().is_some_and(|percent| (0.0..100.0).contains(&percent))),
        "{fragmentation:?}"
    );
    assert_eq!(of("i")[0]["args"]["bytes"], 1_u64 << 40);
    assert_eq!(of("M").len(), 2);
}

#[test]
fn an_empty_snapshot_has_a_page_and_exports() {
    let json = Snapshot::new().to_json();
    assert_eq!(data(&String::from_utf8(view(&json, "html")).expect("text"))["traces"], json!([]));
    assert_eq!(unpickled(&view(&json, "pytorch")), json!({ "segments": [], "device_traces": [], "allocator_settings": {} }));
    assert!(serde_json::from_slice::<Value>(&view(&json, "perfetto")).is_ok());
}

#[test]
fn an_unwritable_output_is_named_in_the_error() {
    let directory = tempfile::tempdir().expect("a directory");
    let from = directory.path().join("memory.json");
    Snapshot::new().write(&from).expect("room");
    let nowhere: &Path = &directory.path().join("no/memory.html");
    call(&IMAGE, ["view", text(&from), "--output", text(nowhere)]).refuses(1, &["no/memory.html"]);
    std::fs::write(&from, TRACE).expect("room");
    call(&IMAGE, ["replay", text(&from), "--snapshot", text(nowhere)]).refuses(1, &["cannot write", "no/memory.html"]);
}
