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
const OPERATIONS: &str =
    "APPEND BINGET BININT BININT1 BINPUT BINUNICODE EMPTY_DICT EMPTY_LIST LONG1 MARK NEWFALSE NEWTRUE PROTO SETITEMS STOP";

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
fn a_page_is_not_written_to_a_terminal() {
    let file = file(TRACE.as_bytes());
    for (options, name) in
        [(&[][..], "memory.html"), (&["--format", "pytorch"], "memory.pickle"), (&["--format", "perfetto"], "events.json")]
    {
        let arguments = ["ringmem", "view", text(file.path())].into_iter().chain(options.iter().copied()).map(Into::into);
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let terminal = ringmem_cli::Terminal { columns: 80, has_colours: false };
        let code = ringmem_cli::run(arguments, &IMAGE, Some(terminal), &mut out, &mut err);
        let err = String::from_utf8(err).expect("text");
        assert_eq!((code, out.len()), (2, 0), "{err}");
        assert!(err.ends_with(&format!(": use --output {name}, or redirect\n")), "{err}");
        let redirected = execute(["view", text(file.path()), "--format", "perfetto"]);
        assert!(redirected.code == 0 && redirected.out.starts_with('{'), "{redirected:?}");
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_page_fits_no_terminal_but_its_file_is_written() {
    let file = file(TRACE.as_bytes());
    let page = tempfile::NamedTempFile::new().expect("a file");
    let lines = crate::pty::Pty::start(60, ["view", text(file.path()), "--output", text(page.path())]).lines();
    assert!(lines.iter().any(|line| line.contains("6 events")), "{lines:?}");
    let mut pty = crate::pty::Pty::start(60, ["view", text(file.path())]);
    assert_eq!(pty.wait().code(), Some(2));
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
    // Events since the allocation before, and until the free.
    assert_eq!((&data["traces"][0]["begin"], &data["traces"][0]["life"]), (&json!([0, 1, 3]), &json!([3, 0, 0])));
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
    let names = data(&page)["texts"].clone();
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
        (String::new(), &["the file is empty"][..]),
        ("{".to_owned(), &["not a snapshot", "EOF"]),
        ("\u{7f}ELF".to_owned(), &["line 1: no recording is recognised"]),
        ("[1]".to_owned(), &["line 1: no recording is recognised"]),
        ("alloc 0 1 256\nalloc 0 1 256\n".to_owned(), &["line 2: block number 0 is not above those before it"]),
        ("\u{80}".to_owned(), &["line 1: no recording is recognised"]),
        ("{}".to_owned(), &["not a snapshot", "`version`"]),
        (r#"{"version":2,"pools":7}"#.to_owned(), &["snapshot version 2", "version 1"]),
        (r#"{"version":"1"}"#.to_owned(), &["snapshot version \"1\""]),
        (r#"{"version":1,"pools":[{"name":"p"}]}"#.to_owned(), &["missing field `statistics`"]),
        (r#"{"version":1,"taken_ns":1e400}"#.to_owned(), &["not a snapshot", "number out of range"]),
        (r#"{"version":1,"taken_ns":99999999999999999999}"#.to_owned(), &["not a snapshot"]),
        ("[".repeat(100_000), &["no recording is recognised"]),
        (format!("{{\"a\":{}", "[".repeat(100_000)), &["not a snapshot"]),
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
    let (most, bytes) = (u64::MAX, 1_u64 << 45);
    let alloc = |block: u64| json!({ "kind": "alloc", "time_ns": most, "block": block, "bytes": bytes, "stream": most, "address": most, "name": "n" });
    let events =
        json!([alloc(0), alloc(most), alloc(1), { "kind": "free", "block": 0, "time_ns": most }, { "kind": "refused", "bytes": most }]);
    let unknown = json!([{ "kind": "alloc", "block": 0, "bytes": bytes }, { "kind": "alloc", "block": 1, "bytes": bytes }]);
    let traces = json!([{ "name": "t", "events": events }, { "name": "u", "events": unknown }]);
    let json = json!({ "version": 1, "traces": traces, "a later field": 1 }).to_string();
    assert!(view(&json, "html").starts_with(b"<!DOCTYPE html>"));
    let pickle = unpickled(&view(&json, "pytorch"));
    assert_eq!((&pickle["device_traces"][0][0]["size"], pickle["device_traces"].as_array().map(Vec::len)), (&json!(bytes), Some(2)));
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
    call(&IMAGE, ["replay", text(&from), "--snapshot", text(nowhere)]).refuses(1, &["cannot create", "no/memory.html"]);
}

/// The `snapshot` of a script, as `python3` pickles it: no torch is needed.
fn pytorch(script: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let script = format!("import pickle, sys\n{script}\npickle.dump(snapshot, open(sys.argv[1], 'wb'), protocol=4)");
    let status = Command::new("python3").args(["-c", &script, text(file.path())]).status();
    assert!(status.expect("this test writes a pickle with python3, which must be installed").success());
    file
}

fn written_again(path: &Path) -> tempfile::NamedTempFile {
    let again = tempfile::NamedTempFile::new().expect("a file");
    let ran = execute(["view", text(path), "--format", "pytorch", "--output", text(again.path())]);
    assert_eq!(ran.code, 0, "{ran:?}");
    again
}

const PYTORCH: &str = "
MIB = 1 << 20
def frames(line): return [
    {'name': 'malloc', 'filename': 'CUDACachingAllocator.cpp', 'line': 0}, {'name': 'forward', 'filename': 'model.py', 'line': line}]
def event(action, addr, size, line=7, time=0):
    at = 'device_free' if action == 'oom' else 'addr'
    return {'action': action, at: addr, 'size': size, 'stream': 0, 'time_us': time, 'frames': frames(line)}
trace = [
    event('segment_alloc', 64 * MIB, 20 * MIB, time=1000), event('alloc', 64 * MIB, 3 * MIB, 8, 1001), event('alloc', 70 * MIB, 2 * MIB, 9, 1002),
    event('free_requested', 64 * MIB, 3 * MIB, 8, 1003), event('free_completed', 64 * MIB, 3 * MIB, 8, 1003), event('free_completed', 40 * MIB, MIB, 3, 1004),
    event('segment_free', 40 * MIB, 2 * MIB, time=1005), event('oom', MIB, 1 << 40, 10, 1006)]
block = {'address': 70 * MIB, 'size': 2 * MIB, 'requested_size': 2 * MIB, 'state': 'active_allocated', 'frames': frames(9)}
segment = {'device': 0, 'address': 64 * MIB, 'total_size': 20 * MIB, 'stream': 0, 'blocks': [block]}
snapshot = {'segments': [segment], 'device_traces': [trace], 'external_annotations': [{'device': 0, 'time_us': 1002, 'name': 'step', 'stage': 'START'}]}";

#[test]
fn a_snapshot_of_pytorch_becomes_a_page_with_its_segments_and_stacks() {
    let file = pytorch(PYTORCH);
    let ran = execute(["view", text(file.path())]);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    let data = data(&ran.out);
    let trace = &data["traces"][0];
    // The block that is freed without an allocation is there from the beginning.
    assert_eq!((&trace["name"], &trace["before"], &trace["events"]), (&json!("device 0"), &json!(1), &json!(6)));
    assert_eq!(
        (&trace["begin"], &trace["life"], &trace["bytes"]),
        (&json!([0, 1, 1]), &json!([4, 2, 0]), &json!([1 << 20, 3 << 20, 2 << 20]))
    );
    assert_eq!((&trace["begun"], &trace["times"]), (&json!(1_001_000), &json!([0, 0, 1000, 1000, 1000, 2000])));
    assert_eq!(trace["address"], json!([40 << 20, 64 << 20, 70 << 20]));
    assert_eq!(trace["segments"], json!([[40 << 20, 2 << 20, 0, -1, 5, false], [64 << 20, 20 << 20, 0, 1, -1, false]]));
    let text = |at: &Value| data["texts"][at.as_u64().expect("a text") as usize].as_str().expect("text");
    let frame = |at: &Value| &data["frames"][at.as_u64().expect("a frame") as usize];
    let stack = trace["stack"][1].as_u64().expect("a stack") as usize;
    assert_eq!(data["stacks"][stack].as_array().map(Vec::len), Some(2));
    let place = frame(&data["places"][stack]);
    assert_eq!((text(&place[0]), text(&place[1]), &place[2]), ("forward", "model.py", &json!(8)));
    assert_eq!((&trace["label"][1], text(&trace["label"][2])), (&json!(-1), "step"));
    assert_eq!((&trace["refused"][0][0], &trace["refused"][0][1]), (&json!(5), &json!(1_u64 << 40)));
}

#[test]
fn a_snapshot_of_pytorch_is_the_same_after_it_was_written_again() {
    let file = pytorch(PYTORCH);
    let again = written_again(file.path());
    let dump = unpickled(&std::fs::read(again.path()).expect("it was written"));
    let [segment] = &dump["segments"].as_array().expect("segments")[..] else { panic!("one is left: {dump}") };
    let states: Vec<_> = segment["blocks"].as_array().expect("blocks").iter().map(|block| (&block["size"], &block["state"])).collect();
    let [inactive, active] = ["inactive", "active_allocated"].map(Value::from);
    assert_eq!(states, [(&json!(6 << 20), &inactive), (&json!(2 << 20), &active), (&json!(12 << 20), &inactive)]);
    let data = [file.path(), again.path()].map(|path| {
        let ran = execute(["view", text(path)]);
        let data = data(&ran.out);
        (data["traces"].clone(), data["stacks"].as_array().map(Vec::len))
    });
    let without_labels = |traces: &Value| {
        let mut trace = traces[0].clone();
        trace["label"].take();
        // In memory_viz a name is a frame.
        trace["stack"].take();
        trace["refused"].take();
        trace
    };
    assert_eq!(without_labels(&data[0].0), without_labels(&data[1].0));
}

#[test]
fn logs_traces_and_tables_have_pages() {
    let directory = tempfile::tempdir().expect("a directory");
    let log = "Thread,Time,Action,Pointer,Size,Stream\n1,10:00:00:000100,allocate,0x7f0000000000,1000,0x0\n\
               1,10:00:00:000300,allocate,0x7f0000001000,500,0x1\n1,10:00:00:000400,free,0x7f0000000000,1000,0x0\n";
    let table = "kind,time_ns,block,bytes,align,stream,address,name,place,after,backtrace\nalloc,5,0,1000,256,,,weights,src/a.rs:3:5,,\n";
    for (name, content, expected) in [
        (
            "rmm.csv",
            log,
            json!({ "name": "rmm.csv", "bytes": [1000, 500], "life": [2, 0], "stream": [0, 1], "times": [0, 200_000, 100_000] }),
        ),
        (
            "app.trace",
            TRACE,
            json!({ "name": "app.trace", "bytes": [1 << 20, 2 << 20, 4096], "stream": [-1, 1, -1], "begun": null, "times": [] }),
        ),
        ("table.csv", table, json!({ "name": "table.csv", "bytes": [1000], "stream": [-1], "times": [0], "address": [null] })),
    ] {
        let path = directory.path().join(name);
        std::fs::write(&path, content).expect("room");
        let ran = execute(["view", text(&path)]);
        assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{name}");
        let data = data(&ran.out);
        for (key, value) in expected.as_object().expect("fields") {
            assert_eq!(&data["traces"][0][key], value, "{name}: {key}");
        }
        let dump = execute(["view", text(&path), "--format", "perfetto"]);
        assert!(serde_json::from_str::<Value>(&dump.out).is_ok_and(|object| object["traceEvents"].is_array()), "{name}");
    }
}

#[test]
fn trace_events_of_a_recording_have_its_reserved_bytes() {
    let file = pytorch(PYTORCH);
    let ran = execute(["view", text(file.path()), "--format", "perfetto"]);
    let object: Value = serde_json::from_str(&ran.out).expect("JSON");
    let events = object["traceEvents"].as_array().expect("events").iter().filter(|event| event["name"] == "reserved");
    let reserved: Vec<_> = events.map(|event| event["args"]["bytes"].as_u64()).collect();
    assert_eq!(reserved, [Some(2 << 20), Some(22 << 20), Some(20 << 20)]);
    assert!(ran.out.contains(r#""place":"model.py:8""#) && ran.out.contains("forward in model.py:8"), "{}", ran.out);
}

/// Memory that comes and goes at one event, after the last, or again at an address that was another's; a block outside all of it; a gap among the devices.
const SEGMENTS: &str = "
MIB = 1 << 20
def event(action, addr, size): return {'action': action, 'addr': addr, 'size': size, 'stream': 3}
trace = [
    event('segment_alloc', 64 * MIB, 20 * MIB), event('alloc', 74 * MIB, MIB), event('free_completed', 74 * MIB, MIB), event('segment_free', 64 * MIB, 20 * MIB),
    event('segment_alloc', 64 * MIB, 2 * MIB), event('segment_map', 200 * MIB, 8 * MIB), event('segment_unmap', 200 * MIB, 8 * MIB), event('segment_map', 200 * MIB, 4 * MIB),
    event('segment_unmap', 202 * MIB, 2 * MIB), event('alloc', 65 * MIB, 1000), event('alloc', 500 * MIB, 2000), event('free_completed', 500 * MIB, 2000),
    event('segment_alloc', 600 * MIB, 6 * MIB), event('segment_free', 600 * MIB, 6 * MIB), event('segment_free', 900 * MIB, 2 * MIB)]
def segment(address, total, expandable, blocks): return {
    'device': 2, 'address': address, 'total_size': total, 'stream': 3, 'is_expandable': expandable, 'blocks': blocks}
block = {'address': 65 * MIB, 'size': 1024, 'requested_size': 1000, 'state': 'active_allocated'}
snapshot = {'segments': [segment(64 * MIB, 2 * MIB, False, [block]), segment(200 * MIB, 2 * MIB, True, [])], 'device_traces': [[], [], trace]}";

#[test]
fn segments_are_written_in_their_order() {
    let file = pytorch(SEGMENTS);
    let again = written_again(file.path());
    let dump = unpickled(&std::fs::read(again.path()).expect("it was written"));
    let actions = |device: usize| -> Vec<(&str, u64)> {
        let events = dump["device_traces"][device].as_array().expect("events");
        events.iter().map(|event| (event["action"].as_str().expect("text"), event["addr"].as_u64().expect("an address") >> 20)).collect()
    };
    assert_eq!((actions(0), actions(1)), (vec![], vec![]));
    let moved = ["segment_alloc", "alloc", "free_requested", "free_completed", "segment_free"];
    let expected = [
        &[64, 74, 74, 74, 64].into_iter().zip(moved).collect::<Vec<_>>()[..],
        // What came and went at once, in the order of addresses; then what stayed.
        &[
            (200, "segment_map"),
            (200, "segment_unmap"),
            (202, "segment_map"),
            (202, "segment_unmap"),
            (64, "segment_alloc"),
            (200, "segment_map"),
            (65, "alloc"),
        ],
        &[500, 500, 500, 500, 500].into_iter().zip(moved).collect::<Vec<_>>(),
        &[(900, "segment_free"), (600, "segment_alloc"), (600, "segment_free")],
    ]
    .concat();
    assert_eq!(actions(2).into_iter().map(|(action, at)| (at, action)).collect::<Vec<_>>(), expected);
    let replayed = [file.path(), again.path()].map(|path| execute(["replay", text(path), "--json"]).json());
    for key in ["device", "events", "wanted_peak", "allocations", "frees"] {
        assert_eq!(replayed[0][key], replayed[1][key], "{key}");
    }
    assert_eq!(replayed[0]["device"], 2);
}

#[test]
fn a_byte_order_mark_changes_nothing() {
    let json = snapshot().to_json();
    assert_eq!(
        data(&String::from_utf8(view(&format!("\u{feff} {json}"), "html")).expect("text")),
        data(&String::from_utf8(view(&json, "html")).expect("text"))
    );
}

#[test]
fn a_slice_has_the_callers_of_its_place() {
    let deep =
        PYTORCH.replace("'line': line}]", "'line': line}] + [{'name': f'f{k}', 'filename': 'main.py', 'line': k + 1} for k in range(60)]");
    let file = pytorch(&deep);
    let ran = execute(["view", text(file.path()), "--format", "perfetto"]);
    let object: Value = serde_json::from_str(&ran.out).expect("JSON");
    let slices: Vec<&Value> = object["traceEvents"].as_array().expect("events").iter().filter(|event| event["ph"] == "X").collect();
    let lines: Vec<&str> = slices[1]["args"]["backtrace"].as_str().expect("text").lines().collect();
    assert_eq!((lines.len(), lines[0], lines[7]), (8, "forward in model.py:8", "f6 in main.py:7"));
}

#[test]
fn streams_have_their_recorded_names_on_the_page_and_in_exports() {
    let directory = tempfile::tempdir().expect("a directory");
    let log = directory.path().join("rmm.csv");
    std::fs::write(&log, "Action,Pointer,Size,Stream\nallocate,0x1000,1000,0x7f2a38001020\nallocate,0x2000,512,0x0\n").expect("room");
    let recorded = pytorch(
        "def alloc(addr, stream): return {'action': 'alloc', 'addr': addr, 'size': 512, 'stream': stream}
snapshot = {'segments': [{'device': 0, 'address': 4096, 'total_size': 2 << 20, 'stream': 140000000000000, 'blocks': []}],
    'device_traces': [[alloc(4096, 140000000000000), alloc(8192, 0), alloc(1 << 30, -1)]]}",
    );
    for (path, names, handles, shown) in [
        (log.as_path(), json!(["0x7f2a38001020", "0x0"]), vec![0x7f2a_3800_1020_i64, 0], vec![json!("0x7f2a38001020"), json!("0x0")]),
        (
            recorded.path(),
            json!(["140000000000000", "0", "-1"]),
            vec![140_000_000_000_000, 0, -1],
            [140_000_000_000_000_i64, 0, -1].map(Value::from).into(),
        ),
    ] {
        let data = data(&execute(["view", text(path)]).out);
        assert_eq!((&data["traces"][0]["streams"], data["traces"][0]["stream"][1].as_i64()), (&names, Some(1)));
        let again = written_again(path);
        let dump = unpickled(&std::fs::read(again.path()).expect("it was written"));
        let events = dump["device_traces"][0].as_array().expect("events").iter().filter(|event| event["action"] == "alloc");
        assert_eq!(events.map(|event| event["stream"].as_i64().expect("a number")).collect::<Vec<_>>(), handles);
        assert_eq!(dump["segments"][0]["stream"].as_i64(), Some(if handles.len() == 3 { 140_000_000_000_000 } else { handles[0] }));
        let object: Value = serde_json::from_str(&execute(["view", text(path), "--format", "perfetto"]).out).expect("JSON");
        let slices = object["traceEvents"].as_array().expect("events").iter().filter(|event| event["ph"] == "X");
        assert_eq!(slices.map(|slice| slice["args"]["stream"].clone()).collect::<Vec<_>>(), shown);
        let data_again = execute(["view", text(again.path())]).out;
        assert!(handles.iter().all(|handle| data_again.contains(&format!("\"{handle}\""))), "they are the same after a second conversion");
    }
}

#[test]
fn blocks_of_pytorch_are_as_long_as_its_allocator_makes_them() {
    let recorded = pytorch(
        "blocks = [(4096, 1024, 700, 'active_allocated'), (5120, 1024, 0, 'inactive'), (6144, 512, 512, 'active_allocated'), (6656, (2 << 20) - 2560, 0, 'inactive')]
blocks = [{'address': a, 'size': s, 'requested_size': r, 'state': state} for a, s, r, state in blocks]
segments = [{'device': 0, 'address': 4096, 'total_size': 2 << 20, 'stream': 0, 'is_expandable': True, 'blocks': blocks},
    {'device': 0, 'address': 1 << 30, 'total_size': 12 << 20, 'stream': 0, 'blocks': []}]
snapshot = {'segments': segments, 'device_traces': []}",
    );
    let again = written_again(recorded.path());
    let dump = unpickled(&std::fs::read(again.path()).expect("it was written"));
    let blocks = dump["segments"][0]["blocks"].as_array().expect("blocks").iter();
    let facts: Vec<_> =
        blocks.map(|block| [&block["size"], &block["requested_size"]].map(|number| number.as_u64().expect("a number"))).collect();
    assert_eq!(facts, [[1024, 700], [1024, 0], [512, 512], [(2 << 20) - 2560, 0]]);
    let sums = ["allocated_size", "active_size", "requested_size"].map(|sum| dump["segments"][0][sum].as_u64().expect("a number"));
    assert_eq!(sums, [1536, 1536, 1212]);
    let kinds: Vec<_> = dump["segments"]
        .as_array()
        .expect("segments")
        .iter()
        .map(|segment| (&segment["segment_type"], &segment["is_expandable"]))
        .collect();
    assert_eq!(kinds, [(&json!("small"), &json!(true)), (&json!("large"), &json!(false))]);
    // A log of RMM has no such rounding, and no segments: each block is one.
    let log = file(b"Action,Pointer,Size,Stream\nallocate,0x1000,700,0\n");
    let dump = unpickled(&std::fs::read(written_again(log.path()).path()).expect("it was written"));
    assert_eq!((&dump["segments"][0]["total_size"], &dump["segments"][0]["blocks"][0]["size"]), (&json!(700), &json!(700)));
}
