use std::fmt::Write;
use std::path::{Path, PathBuf};

use ringmem::backend::host::HostBackend;
use ringmem::memory::{Buffer, Device, Logged, Trace};
use ringmem::stream::Stream;
use ringmem_kernels::IMAGE;
use ringmem_kernels::histogram::splitmix64;
use serde_json::{Value, json};

use crate::bytes::{file, text};
use crate::program::{Ran, call, execute};

const RECORDED: &str = "tests/commands/inference.trace";

/// An inference server: permanent weights, a cache per prompt, scratch memory per layer.
fn inference() -> Trace {
    let backend = HostBackend::builder().device_memory(64 << 20).build().expect("a backend");
    let streams = [(); 3].map(|()| Stream::new(&backend, 0).expect("a stream"));
    let memory = Logged::new(Device::new(&backend, 0));
    let _weights = [3 << 20, 786_432, 786_432, 50_257 * 64, 3072].map(|bytes| Buffer::<u8, _>::new(memory.clone(), bytes).expect("room"));
    let mut caches = Vec::new();
    for prompt in 0..24 {
        let (tokens, stream) = (64 + splitmix64(prompt) as usize % 448, &streams[prompt as usize % 3]);
        let give = |bytes: usize| Buffer::<u8, _>::new_on(memory.clone(), bytes, stream).expect("room");
        if caches.len() == 8 {
            drop(caches.remove(0));
        }
        let mut cache = give(tokens * 1536);
        for _ in 0..4 {
            let mut scratch = [give(tokens * 3072), give(tokens * tokens)];
            scratch.iter_mut().for_each(|buffer| buffer.used_by(stream).expect("listed"));
        }
        cache.used_by(stream).expect("listed");
        caches.push(cache);
    }
    memory.trace()
}

fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(RECORDED)
}

fn recorded() -> String {
    std::fs::read_to_string(path()).expect("it is checked in")
}

fn replay(trace: &str, options: &[&str]) -> Value {
    let file = file(trace.as_bytes());
    call(&IMAGE, ["replay", text(file.path()), "--json"].iter().chain(options)).json()
}

fn number(object: &Value, name: &str) -> u64 {
    object[name].as_u64().unwrap_or_else(|| panic!("no number `{name}` in {object}"))
}

fn part(object: &Value, name: &str, when: &str) -> f64 {
    object[name][when].as_f64().unwrap_or_else(|| panic!("no `{name}` at the {when} in {object}"))
}

fn known() -> String {
    let mut trace = String::new();
    (0..1051).for_each(|block| writeln!(trace, "alloc {block} 4096 256").expect("room"));
    (1051..10_523).for_each(|block| write!(trace, "alloc {block} 40960 256\nfree {block}\n").expect("room"));
    trace
}

#[test]
fn the_recorded_trace_matches_its_generator() {
    let asked = inference().to_string();
    if std::env::var_os("RINGMEM_TEST_RECORDS").is_some() {
        std::fs::write(path(), &asked).expect("room for it");
    }
    assert_eq!(asked, recorded());
}

#[test]
fn known_requests_give_the_known_figures() {
    let pooled = replay(&known(), &[]);
    let figures = ["events", "allocations", "hits", "misses", "frees", "refused", "streams"].map(|name| number(&pooled, name));
    assert_eq!(figures, [1051 + 2 * 9472, 10_523, 9_471, 1_052, 9_472, 0, 0]);
    assert_eq!((pooled["hit_rate"].as_f64().expect("a rate") * 1000.0).round(), 900.0);
    let reserved = |object| (number(object, "driver_allocations"), number(object, "reserved_peak"));
    let expected = if cfg!(target_os = "linux") { (3, 6 << 20) } else { (1, 32 << 20) };
    assert_eq!((reserved(&pooled), reserved(&replay(&known(), &["--slab", "32MiB"]))), (expected, (1, 32 << 20)));
    assert_eq!((number(&pooled, "requested_peak"), number(&pooled, "live_at_end")), (1051 * 4096 + 40_960, 1051 * 4096));
    assert_eq!(number(&pooled, "held_at_peak"), number(&pooled, "requested_peak"), "each is as long as its class");
    assert!(number(&pooled, "elapsed_ns") > 0);

    let alone = replay(&known(), &["--no-pool"]);
    let figures = ["allocations", "hits", "misses", "driver_allocations"].map(|name| number(&alone, name));
    assert_eq!(figures, [10_523, 0, 10_523, 10_523]);
    assert_eq!((number(&alone, "reserved_peak"), &alone["pool"]), (1051 * 4096 + 40_960, &Value::Null));
}

#[test]
fn a_recorded_trace_replays_on_every_pool_setting() {
    let trace = recorded();
    let events = trace.lines().count() as u64;
    let allocations = trace.lines().filter(|line| line.starts_with("alloc")).count() as u64;
    let figures: Vec<Value> = [
        &["--no-pool"][..],
        &["--sub-steps", "1", "--slab", "2MiB"],
        &["--sub-steps", "4", "--slab", "2MiB"],
        &["--sub-steps", "8", "--slab", "2MiB"],
        &["--exact", "--slab", "2MiB"],
        &["--slab", "64MiB"],
    ]
    .map(|options| replay(&trace, options))
    .into();
    for object in &figures {
        let [given, hits, misses] = ["allocations", "hits", "misses"].map(|name| number(object, name));
        assert_eq!((number(object, "events"), given, hits + misses, number(object, "streams")), (events, allocations, allocations, 3));
        assert_eq!((number(object, "refused"), number(object, "frees_of_nothing"), number(object, "failed_frees")), (0, 0, 0));
        assert_eq!(number(object, "requested_peak"), number(&figures[0], "requested_peak"), "the trace decides that");
        assert!(number(object, "reserved_peak") >= number(object, "held_at_peak"));
        assert!(number(object, "held_at_peak") >= number(object, "requested_peak"));
        for name in ["fragmentation", "waste"] {
            assert!(["peak", "end"].iter().all(|when| (0.0..1.0).contains(&part(object, name, when))), "{object}");
        }
    }
    let [none, doubling, quarters, eighths, exact, wide] = &figures[..] else { panic!("six figures") };
    assert_eq!((number(none, "driver_allocations"), number(none, "hits")), (allocations, 0));
    assert_eq!(number(none, "reserved_peak"), number(none, "requested_peak"));
    let waste = [doubling, quarters, eighths, exact].map(|object| part(object, "waste", "peak"));
    assert!(waste.is_sorted_by(|more, less| more > less), "{waste:?}");
    assert!(waste[0] > 0.2 && waste[3] < 0.01, "{waste:?}");
    assert!([doubling, quarters, eighths].iter().all(|object| number(object, "driver_allocations") * 10 < allocations), "{figures:?}");
    assert!([doubling, quarters, eighths].iter().all(|object| number(object, "hits") > 0));
    assert_eq!((number(wide, "driver_allocations"), number(wide, "reserved_peak")), (1, 64 << 20));
}

#[test]
fn failed_allocations_are_counted_and_the_first_is_named() {
    let trace = "alloc 0 1048576 256\nalloc 1 3145728 256\nfree 1\nrefused 4194304 256\nfree 9\nfree 0\nrefused 1024 256\n";
    for options in [&["--limit", "3MiB"][..], &["--slab", "1MiB", "--limit", "3MiB"], &["--no-pool", "--limit", "3MiB"]] {
        let object = replay(trace, options);
        let figures = ["events", "allocations", "refused", "frees", "frees_of_nothing"].map(|name| number(&object, name));
        assert_eq!(figures, [7, 2, 2, 1, 1], "{object}");
        assert_eq!(object["first_refusal"]["event"], 2);
        assert!(object["first_refusal"]["why"].as_str().is_some_and(|why| why.contains("requested 3 MiB")), "{object}");
        assert_eq!((number(&object, "requested_peak"), number(&object, "live_at_end")), (1 << 20, 0));
    }
}

#[test]
fn impossible_sizes_are_errors_and_refused_ones_are_counted() {
    for (trace, fact) in [
        (
            "alloc 0 1 256\nalloc 1 18446744073709551615 256\n",
            "line 2: a block of 18446744073709551615 bytes; no device has more than 2^47 (128 TiB)",
        ),
        ("alloc 0 140737488355328 256\nalloc 1 1 256\n", "line 2: 140737488355329 bytes are live with this block"),
        ("alloc 0 1099511627776 256\nalloc 1 1 256\n", " TiB are live, and a simulated device has at most 1 TiB; with --limit"),
    ] {
        call(&IMAGE, ["replay", text(file(trace.as_bytes()).path())]).refuses(1, &[fact]);
    }
    let refused = "alloc 0 4096 256\nrefused 18446744073709551615 256\nalloc 1 1 256\n";
    let object = replay(refused, &[]);
    let figures = |object: &Value| ["refused", "impossible", "allocations", "requested_peak"].map(|name| number(object, name));
    assert_eq!(figures(&object), [0, 1, 2, 4097]);
    let refused = "alloc 0 4096 256\nrefused 1125899906842624 256\nalloc 1 1 256\n";
    assert_eq!(figures(&replay(refused, &[])), [1, 0, 2, 4097]);
    let ran = call(&IMAGE, ["replay", text(file(refused.as_bytes()).path())]);
    assert!(ran.out.contains(", no limit on a device of 1 TiB\n"), "{ran:?}");
    assert_eq!(number(&replay("alloc 0 1099511627776 256\nalloc 1 1 256\n", &["--limit", "1GiB"]), "refused"), 1);
}

#[test]
fn fragmentation_is_reported_at_the_peak_and_the_end() {
    let mut trace = String::new();
    (0..8).for_each(|block| writeln!(trace, "alloc {block} 1048576 256").expect("room"));
    (0..8).step_by(2).for_each(|block| writeln!(trace, "free {block}").expect("room"));
    trace.push_str("refused 4194304 256\n");
    let object = replay(&trace, &["--slab", "8MiB", "--limit", "8MiB"]);
    assert_eq!((part(&object, "fragmentation", "peak"), part(&object, "fragmentation", "end")), (0.0, 0.75), "{object}");
    assert_eq!((number(&object, "reserved_peak"), number(&object, "refused")), (8 << 20, 1));
}

#[test]
fn the_text_output_has_the_figures_of_the_object() {
    let (directory, known) = (tempfile::tempdir().expect("a directory"), known());
    let path = directory.path().join("known.trace");
    std::fs::write(&path, known.clone() + "refused 9999999999 1\nfree 77777\n").expect("room for it");
    let slabs = ["replay", text(&path), "--slab", "32MiB", "--limit", "4GiB"];
    for ran in [call(&IMAGE, slabs), execute(slabs)] {
        let Ran { code, out, err } = &ran;
        assert_eq!((*code, err.as_str()), (0, ""));
        for fact in [
            "known.trace: 19997 events on 0 streams",
            "slabs of 32 MiB, 4 classes per power of two, limit 4 GiB",
            "10523 given, 1 refused; 9472 freed",
            "event 19996: pool limit reached: requested 9999999999 bytes, 32 MiB of 4 GiB in use",
            "1 of unknown blocks, 0 failed",
            "9471 of 10523, 90.0 %",
            "driver         1 allocation, 0 moves, 0 frees\n",
            "4.14 MiB requested, 4.14 MiB in blocks, 32 MiB reserved at most",
            "0.0 % at the peak, 0.0 % at the end",
            " ns an event",
        ] {
            assert!(out.contains(fact), "`{fact}` is not in\n{out}");
        }
    }
    let ran = call(&IMAGE, ["replay", text(&path)]);
    assert_eq!(ran.out.contains("one address range, 4 classes per power of two, no limit"), cfg!(target_os = "linux"), "{ran:?}");
    let ran = call(&IMAGE, ["replay", text(&path), "--no-pool", "--limit", "4GiB"]);
    assert!(ran.out.contains("pool           none, limit 4 GiB") && ran.out.contains("10523 allocations"), "{ran:?}");
    let ran = call(&IMAGE, ["replay", text(&path), "--exact"]);
    assert!(ran.out.contains("per power of two, exact blocks, no limit"), "{ran:?}");
    assert!(
        ran.out.contains("hits           none: blocks of exact size are not cached") && !ran.out.contains("hits           0 of"),
        "{ran:?}"
    );
    for options in [&["--exact"][..], &["--no-pool"]] {
        assert!(replay(&known, options)["hit_rate"].is_null(), "a rate of 0 would mean misses");
    }
}

#[test]
fn a_recording_without_allocations_is_an_error_of_replay_and_view() {
    let none = "no allocations were recorded: ";
    for (content, fact) in [
        (&b""[..], "the file is empty"),
        (b"\n\n", "the file has only blank lines"),
        (b"Thread,Time,Action,Pointer,Size,Stream\n", none),
        (b"Thread,Time,Action,Pointer,Size,Stream\n1,t,allocate,(nil),0,0\n1,t,free,(nil),0,0\n", none),
        (b"kind,time_ns,block,bytes,align,stream,address,name,place,after,backtrace\n", none),
        (b"\x80\x04].", "see `torch.cuda.memory._record_memory_history`"),
    ] {
        let file = file(content);
        for command in ["replay", "view"] {
            let ran = call(&IMAGE, [command, text(file.path())]);
            ran.refuses(1, &[fact, text(file.path())]);
            assert_eq!(ran.out, "");
        }
    }
    // A snapshot may have pools alone: those are no events.
    for snapshot in [r#"{"version":1}"#, r#"{"version":1,"traces":[{"name":"t","events":[]}]}"#] {
        call(&IMAGE, ["replay", text(file(snapshot.as_bytes()).path())]).refuses(1, &[none, "`Logged`"]);
    }
}

#[test]
fn comma_separated_values_have_a_line_for_each_event() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("events.csv");
    replay("alloc 0 1048576 256\nrefused 99999999999 256\nfree 0\n", &["--csv", text(&path), "--limit", "1GiB"]);
    let table = std::fs::read_to_string(&path).expect("a table");
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split(',').collect()).collect();
    let columns = |names: [&str; 4]| names.map(|name| rows[0].iter().position(|title| *title == name).expect("a column"));
    let facts = columns(["kind", "block", "bytes", "place"]);
    let shown: Vec<[&str; 4]> = rows[1..].iter().map(|row| facts.map(|column| row[column])).collect();
    assert_eq!(shown, [["alloc", "0", "1048576", ""], ["refused", "", "99999999999", ""], ["free", "0", "", ""]], "{table}");
    let nowhere = directory.path().join("no/events.csv");
    let source = file(b"alloc 0 4096 256\n");
    call(&IMAGE, ["replay", text(source.path()), "--csv", text(&nowhere)]).refuses(1, &["no/events.csv"]);
}

#[test]
fn a_trace_is_not_overwritten_by_any_name() {
    let directory = tempfile::tempdir().expect("a directory");
    let (trace, other) = (directory.path().join("a.trace"), directory.path().join("other"));
    std::fs::write(&trace, "alloc 0 4096 256\n").expect("room for it");
    std::fs::hard_link(&trace, &other).expect("a link");
    for (option, file) in [("--snapshot", &trace), ("--snapshot", &other), ("--csv", &trace), ("--csv", &other)] {
        call(&IMAGE, ["replay", text(&trace), option, text(file)]).refuses(2, &[option, text(file), "itself"]);
    }
    assert_eq!(std::fs::read_to_string(&trace).expect("it is there"), "alloc 0 4096 256\n");
}

#[test]
fn the_recorded_trace_has_known_hits() {
    // Over an address range, any free memory of the pool is a hit for a block above 1 MiB.
    for (options, hits) in [(&["--slab", "32MiB"][..], 180), (&[], if cfg!(target_os = "linux") { 168 } else { 180 })] {
        let object = replay(&recorded(), options);
        assert_eq!(["hits", "allocations"].map(|name| number(&object, name)), [hits, 221], "{object}");
    }
}

#[test]
fn an_invalid_trace_is_an_error_with_its_line() {
    let directory = tempfile::tempdir().expect("a directory");
    for (content, facts) in [
        (&b"alloc 0 4096 256\nalloc one 1 1\n"[..], &["line 2: not `alloc BLOCK SIZE ALIGN [on STREAM]`"][..]),
        (b"alloc 0 4096 256\n\nfree 0\n", &["line 2: not `alloc ..., refused ... or free ...`"]),
        (b"alloc 0 4096 256\nfree 0\nalloc 1 4096 2", &["line 3: no line end: the trace is truncated"]),
        (b"alloc 0 4096 256\nalloc 0 4096 256\n", &["line 2: block number 0 is not above those before it"]),
        (b"alloc 0 4096 256\nfree 0\n\xff\xfe\n", &["line 3: not UTF-8"]),
        (b"\x7fELF\x02\x01\x01\0\0\0\0\n", &["line 1: no recording is recognised"]),
        (b"alloc 0 4096 256 on 256\n", &["257 streams", "256"]),
    ] {
        let path = directory.path().join("trace");
        std::fs::write(&path, content).expect("room for it");
        let facts: Vec<&str> = facts.iter().copied().chain([text(&path)]).collect();
        for ran in [call(&IMAGE, ["replay", text(&path), "--json"]), execute(["replay", text(&path)])] {
            ran.refuses(1, &facts);
            assert_eq!(ran.out, "");
        }
    }
    call(&IMAGE, ["replay", text(&directory.path().join("nothing"))]).refuses(1, &["nothing"]);
    call(&IMAGE, ["replay", text(directory.path())]).refuses(1, &["is a directory"]);
}

#[test]
fn invalid_options_are_named_in_the_error() {
    let file = file(b"alloc 0 4096 256\n");
    for (options, facts) in [
        (&["--sub-steps", "3"][..], &["--sub-steps", "1, 2, 4 or 8"][..]),
        (&["--sub-steps", "-1"], &["--sub-steps", "-1"]),
        (&["--slab", "1KiB"], &["--slab", "slab size", "1024", "65536"]),
        (&["--slab", "0"], &["--slab", "zero"]),
        (&["--limit", "-5"], &["--limit", "-5"]),
        (&["--limit", "much"], &["--limit", "much"]),
        (&["--limit", "2TiB"], &["--limit", "2199023255552"]),
        (&["--device", "one"], &["--device", "one"]),
        (&["--no-pool", "--slab", "2MiB"], &["--no-pool", "--slab"]),
        (&["--no-pool", "--exact"], &["--no-pool", "--exact"]),
        (&["--backend", "abacus"], &["--backend", "abacus"]),
        (&["--fast"], &["--fast"]),
    ] {
        for ran in [
            call(&IMAGE, ["replay", text(file.path())].iter().chain(options)),
            execute(["replay", text(file.path())].iter().chain(options)),
        ] {
            ran.refuses(2, facts);
            assert_eq!(ran.out, "");
        }
    }
    call(&IMAGE, ["replay"]).refuses(2, &["FILE"]);
    let help = call(&IMAGE, ["replay", "--help"]).out;
    for option in ["--limit <SIZE>", "--slab <SIZE>", "such as 40GiB", "such as 32MiB"] {
        assert!(help.contains(option), "`{option}` is not in\n{help}");
    }
}

#[test]
fn a_trace_of_too_many_events_is_an_error() {
    let file = file(&[b"free 0\n".as_slice(), &vec![b'\n'; (1 << 24) + 1]].concat());
    call(&IMAGE, ["replay", text(file.path())]).refuses(1, &["more than 16777216 events"]);
}

#[test]
fn lines_of_a_backtrace_are_no_events() {
    let head = "kind,time_ns,block,bytes,align,stream,address,name,place,after,backtrace\n";
    let file = file(&[head.as_bytes(), b"alloc,1,0,4096,256,,,,,,\"", &vec![b'\n'; (1 << 24) + 2], b"\"\n"].concat());
    assert_eq!(call(&IMAGE, ["replay", text(file.path()), "--json"]).json()["events"], 1);
}

/// A block of each slab's length and of each class wastes most.
#[test]
fn without_a_limit_nothing_is_refused_on_slabs_of_a_chosen_size() {
    let events: String = (0..60).map(|block| format!("alloc {block} 34603008 256\n")).collect();
    let file = file(events.as_bytes());
    let ran = call(&IMAGE, ["replay", text(file.path()), "--sub-steps", "1", "--slab", "96MiB", "--json"]);
    assert_eq!(ran.json()["refused"], 0, "{ran:?}");
}

/// 3 MiB and 18 MiB, of which the first is freed; then 21 MiB.
const PROGRAM: &str = "alloc 0 3145728 256\nalloc 1 18874368 256\nfree 0\nalloc 2 22020096 256\n";

fn policy<'a>(object: &'a Value, name: &str) -> &'a Value {
    let policies = object["policies"].as_array().expect("policies");
    policies.iter().find(|policy| policy["policy"] == name).unwrap_or_else(|| panic!("no {name} in {object}"))
}

#[test]
fn each_policy_has_its_row() {
    let object = replay(PROGRAM, &[]);
    let rows = ["PyTorch's allocator", "PyTorch's, expandable segments", "no pool"].map(|name| {
        let row = policy(&object, name);
        (number(row, "reserved_peak") >> 20, number(row, "driver_calls"), row["model"].as_bool())
    });
    // Segments of 20, 18 and 22 MiB; steps of 20 MiB; three allocations and a free.
    assert_eq!(rows, [(20 + 18 + 22, 3, Some(true)), (60, 3, Some(true)), (39, 4, Some(true))]);
    assert_eq!(number(&object, "wanted_peak"), 39 << 20);
    let ours = policy(&object, "ringmem's pool");
    assert_eq!((number(ours, "reserved_peak"), ours["model"].as_bool()), (number(&object, "reserved_peak"), Some(false)));
    assert!((ours["of_peak"].as_f64().expect("a ratio") - number(ours, "reserved_peak") as f64 / (39 << 20) as f64).abs() < 1e-9);
    assert_eq!(number(policy(&object, "ringmem's pool, slabs"), "reserved_peak"), 64 << 20);
    let names = |options: &[&str]| -> Vec<String> {
        let object = replay(PROGRAM, options);
        object["policies"].as_array().expect("policies").iter().map(|row| row["policy"].as_str().expect("a name").to_owned()).collect()
    };
    assert_eq!(names(&["--no-pool"]), ["PyTorch's allocator", "PyTorch's, expandable segments", "no pool"]);
    assert_eq!(names(&["--slab", "2MiB"]).len(), 4, "the same row twice");
}

#[test]
fn a_limit_shows_where_each_policy_fails() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("table.csv");
    let head = "kind,time_ns,block,bytes,align,stream,address,name,place,after,backtrace\n";
    let rows = "alloc,1,0,2097152,256,,,,src/a.rs:1:2,,\nalloc,2,1,19922944,256,,,,src/a.rs:2:2,,\n\
                alloc,4,2,19922944,256,,,weights,src/b.rs:30:5,,\nalloc,5,3,20971520,256,,,,src/c.rs:4:4,,\n";
    std::fs::write(&path, format!("{head}{rows}")).expect("room for it");
    let ran = call(&IMAGE, ["replay", text(&path), "--limit", "40MiB"]);
    let lines: Vec<&str> =
        ran.out.lines().filter(|line| line.contains("yes") || line.contains("no: ") || line.contains("fits in")).collect();
    let [title, ours, .., pytorch, _, direct] = &lines[..] else { panic!("{ran:?}") };
    assert!(title.contains("60 MiB live at most") && title.ends_with("fits in 40 MiB"), "{title}");
    assert!(ours.contains("ringmem's pool") && ours.ends_with("no: event 4 refused, 20 MiB, src/c.rs:4"), "{ours}");
    assert!(pytorch.ends_with("no: event 3 refused, 19 MiB, src/b.rs:30, \"weights\"; 1 more"), "{pytorch}");
    assert!(direct.ends_with("no: event 4 refused, 20 MiB, src/c.rs:4"), "{direct}");
    let object = call(&IMAGE, ["replay", text(&path), "--limit", "40MiB", "--json"]).json();
    let first = &policy(&object, "PyTorch's allocator")["first_refusal"];
    assert_eq!((number(first, "event"), number(first, "bytes")), (3, 19 << 20));
    assert_eq!(
        (first["name"].as_str(), first["place"].as_str(), first["stack"][0].as_str()),
        (Some("weights"), Some("src/b.rs:30"), Some("src/b.rs:30"))
    );
    assert_eq!(number(&object, "limit"), 40 << 20);
    let ran = call(&IMAGE, ["replay", text(&path), "--limit", "128MiB"]);
    assert_eq!(ran.out.matches("  yes\n").count(), 5, "{ran:?}");
}

#[test]
fn the_least_limit_suffices_and_little_less_does_not() {
    let object = replay(PROGRAM, &["--least"]);
    let least = |name: &str| number(policy(&object, name), "least_limit");
    // At its limit it frees the segment of 20 MiB: 18 and 22 are left.
    assert_eq!((least("PyTorch's allocator"), least("no pool")), (40 << 20, 39 << 20), "{object}");
    assert_eq!(number(&object, "least_limit_step"), 512);
    for (trace, live) in [(PROGRAM.to_owned(), 39 << 20), (recorded(), number(&replay(&recorded(), &[]), "wanted_peak"))] {
        let object = replay(&trace, &["--least"]);
        for row in object["policies"].as_array().expect("policies") {
            let (name, least) = (row["policy"].as_str().expect("a name"), number(row, "least_limit"));
            let refused = |limit: u64| number(policy(&replay(&trace, &["--limit", &limit.to_string()]), name), "refused");
            assert_eq!(refused(least), 0, "{name}");
            assert_ne!(refused((least - 512).max(live - 1)), 0, "{name}");
        }
    }
    let file = file(PROGRAM.as_bytes());
    let ran = call(&IMAGE, ["replay", text(file.path()), "--least"]);
    let rows: Vec<&str> = ran.out.lines().filter(|line| line.ends_with("least limit") || line.starts_with("  no pool")).collect();
    assert!(matches!(rows[..], [title, row] if title.ends_with("least limit") && row.ends_with("  39 MiB")), "{ran:?}");
    assert!(
        ran.out.contains(
            "refuses nothing; from a bisection to within 512 bytes, rounded up. A smaller limit may suffice too, a larger one may not\n"
        ),
        "{ran:?}"
    );
    let without = replay(PROGRAM, &[]);
    assert!(policy(&without, "no pool")["least_limit"].is_null() && without["least_limit_step"].is_null());
    // Far below the first piece that the pool maps without a limit.
    let small = replay("alloc 0 9000 256\nalloc 1 5000 256\nfree 0\nfree 1\n", &["--least"]);
    for row in small["policies"].as_array().expect("policies") {
        let least = number(row, "least_limit");
        assert!(!row["policy"].as_str().is_some_and(|name| name.starts_with("ringmem's")) || least < 32 << 10, "{row}");
    }
}

/// The column behind each policy's name.
fn column<'a>(ran: &'a Ran, policy: &str, title: &str) -> &'a str {
    let line = |begin: &str| ran.out.lines().find(|line| line.contains(begin)).unwrap_or_else(|| panic!("no {begin} in {ran:?}"));
    let end = line(" reserved ").find(title).expect("the title") + title.len();
    let row = line(&format!("  {policy} "));
    row.get(end - 12..end).unwrap_or_default().trim()
}

#[test]
fn the_printed_least_limit_suffices() {
    let name = |object: &Value| object["policy"].as_str().expect("a name").to_owned();
    let odd = "alloc 0 9000 256\nalloc 1 1234567 256\nfree 0\nalloc 2 2345678 256\n".to_owned();
    for trace in [recorded(), PROGRAM.to_owned(), odd] {
        let file = file(trace.as_bytes());
        let (object, ran) = (replay(&trace, &["--least"]), call(&IMAGE, ["replay", text(file.path()), "--least"]));
        for row in object["policies"].as_array().expect("policies") {
            let policy = name(row);
            let limit = column(&ran, &policy, "least limit");
            let with = replay(&trace, &["--limit", limit]);
            assert_eq!(number(self::policy(&with, &policy), "refused"), 0, "{policy}: {limit}");
            let least = number(row, "least_limit");
            assert!((least..=least + least / 50).contains(&number(&with, "limit")), "{policy}: {limit} of {least}");
        }
    }
    // 2.24 MiB, rounded to the nearest hundredth, is 2 kB too little.
    let file = file(b"alloc 0 2350926 256\n");
    let ran = call(&IMAGE, ["replay", text(file.path()), "--least"]);
    assert_eq!((column(&ran, "no pool", "reserved"), column(&ran, "no pool", "least limit")), ("2.24 MiB", "2.25 MiB"));
}

/// So many blocks that the pool defers frees, which a sample would coalesce.
fn churn() -> String {
    let mut random = 7_u64;
    let mut next = move |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    let (mut trace, mut live, mut blocks) = (String::new(), Vec::new(), 0);
    for _ in 0..60_000 {
        if live.len() < 15_000 && (live.is_empty() || next(16) < 11) {
            writeln!(trace, "alloc {blocks} {} 256", 1 + next(100_000)).expect("room");
            live.push(blocks);
            blocks += 1;
        } else {
            let block = live.swap_remove(next(live.len() as u64) as usize);
            writeln!(trace, "free {block}").expect("room");
        }
    }
    trace
}

#[test]
fn files_of_a_replay_do_not_change_its_figures() {
    let directory = tempfile::tempdir().expect("a directory");
    let [snapshot, table] = ["memory.json", "calls.csv"].map(|name| directory.path().join(name));
    let trace = churn();
    let figures = |options: &[&str]| {
        let mut object = replay(&trace, options);
        object["elapsed_ns"] = Value::Null;
        object
    };
    let alone = figures(&["--exact"]);
    for (option, path) in [("--snapshot", &snapshot), ("--csv", &table)] {
        assert_eq!(figures(&["--exact", option, text(path)]), alone, "{option}");
    }
    // The row of slabs is of a run whose peak is not read.
    let slabs = figures(&["--exact", "--slab", "32MiB"]);
    let rows = [policy(&alone, "ringmem's pool, slabs"), policy(&slabs, "ringmem's pool")];
    assert_eq!(rows[0]["driver_calls"], rows[1]["driver_calls"]);
}

#[test]
fn requests_that_no_limit_lets_succeed_are_counted_apart() {
    for (request, why) in [
        ("4096 4194304", "invalid alignment: 4194304 is not a power of two up to 2097152"),
        ("4096 3", "invalid alignment: 3 is not a power of two up to 2097152"),
    ] {
        let trace = format!("alloc 0 4096 256\nalloc 1 {request}\nfree 1\nrefused {request}\nalloc 2 8192 256\n");
        for options in [&[][..], &["--limit", "1GiB"], &["--limit", "8KiB"], &["--no-pool"], &["--least"]] {
            let object = replay(&trace, options);
            let refused = u64::from(options.contains(&"8KiB"));
            let figures = ["allocations", "refused", "impossible", "frees_of_nothing"].map(|name| number(&object, name));
            assert_eq!(figures, [2 - refused, refused, 2, 0], "{object}");
            assert_eq!(object["first_impossible"], json!({ "event": 2, "why": why }));
            assert_eq!(object["first_refusal"].is_null(), refused == 0);
            if !options.contains(&"--no-pool") {
                let ours = policy(&object, "ringmem's pool");
                assert_eq!((number(ours, "refused"), number(ours, "impossible")), (refused, 2));
                assert_eq!(ours["first_impossible"], json!({ "event": 2, "why": why }));
                assert!(ours["least_limit"].is_null(), "{object}");
            }
        }
        let file = file(trace.as_bytes());
        let ran = call(&IMAGE, ["replay", text(file.path()), "--limit", "1GiB"]);
        let row = ran.out.lines().find(|line| line.starts_with("  ringmem's pool  ")).expect("a row");
        assert!(row.ends_with(&format!("  not possible: {why}; event 2 and 1 more")), "{row}");
        for fact in ["2 given, 0 refused, 2 not possible; 0 freed\n", &format!("  not possible   event 2: {why}\n")] {
            assert!(ran.out.contains(fact), "`{fact}` is not in\n{}", ran.out);
        }
        assert!(!ran.out.contains("first refusal"), "{ran:?}");
        let ran = call(&IMAGE, ["replay", text(file.path()), "--limit", "8KiB"]);
        let row = ran.out.lines().find(|line| line.starts_with("  ringmem's pool  ")).expect("a row");
        assert!(row.ends_with("  no: event 5 refused, 8 KiB"), "{row}");
    }
}

#[test]
fn no_ratio_is_of_no_live_bytes() {
    for trace in ["free 7\n", "refused 0 256\n"] {
        let object = replay(trace, &[]);
        assert!(object["policies"].as_array().expect("policies").iter().all(|row| row["of_peak"].is_null()), "{object}");
        let ran = call(&IMAGE, ["replay", text(file(trace.as_bytes()).path())]);
        let row: Vec<&str> = ran.out.lines().find(|line| line.starts_with("  no pool ")).expect("a row").split_whitespace().collect();
        assert!(matches!(row[..], ["no", "pool", "0", "bytes", _]), "{row:?}");
    }
}

#[test]
fn a_table_with_a_limit_names_the_allocators_that_fit() {
    // 20 MiB remain of a segment of 60 MiB. 41 MiB are more than its rest, to which an expandable segment adds 20 MiB.
    let file = file(b"alloc 0 62914560 256\nfree 0\nalloc 1 20971520 256\nalloc 2 42991616 256\n");
    let remedy = |options: &[&str]| {
        let ran = call(&IMAGE, ["replay", text(file.path())].iter().chain(options));
        ran.out.lines().find_map(|line| line.strip_prefix("  fits with      ").map(str::to_owned))
    };
    let expandable = "PyTorch's, expandable segments: set `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`";
    let pool =
        |setting: &str| format!("ringmem's pool: load `libringmem_capi.so` as PyTorch's allocator{setting}, see docs/guide/python.md");
    assert_eq!(remedy(&["--limit", "80MiB", "--slab", "2MiB"]), Some(format!("{expandable}; {}", pool(" with `RINGMEM_TORCH=slab=2MiB`"))));
    assert_eq!(remedy(&["--limit", "80MiB", "--no-pool"]).as_deref(), Some(expandable));
    if cfg!(target_os = "linux") {
        assert_eq!(remedy(&["--limit", "80MiB"]), Some(format!("{expandable}; {}", pool(""))));
        assert_eq!(remedy(&["--limit", "64MiB"]), Some(pool("")));
    }
    // The library rounds no slab, and has no exact blocks.
    assert!(remedy(&["--limit", "80MiB", "--slab", "2500000"]).is_some_and(|line| line.contains("slab=2500000B`")));
    assert_eq!(remedy(&["--limit", "80MiB", "--exact"]).as_deref(), Some(expandable));
    // PyTorch's fits, none fits, no limit.
    assert_eq!([&["--limit", "102MiB"][..], &["--limit", "60MiB"], &["--least"], &[]].map(remedy), [const { None }; 4]);
}

/// A dictionary of a pickle, of keys and pickled values.
fn dictionary(fields: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let pairs: Vec<u8> = fields.iter().flat_map(|(key, value)| [pickled(key), value.clone()].concat()).collect();
    [&b"}("[..], &pairs, b"u"].concat()
}

fn pickled(text: &str) -> Vec<u8> {
    [&[0x8c, text.len() as u8], text.as_bytes()].concat()
}

fn integer(value: i32) -> Vec<u8> {
    [&b"J"[..], &value.to_le_bytes()].concat()
}

fn list(items: &[Vec<u8>]) -> Vec<u8> {
    [&b"]("[..], &items.concat(), b"e"].concat()
}

/// An event of PyTorch, with the key of its first number.
fn event(action: &str, key: &str, value: i32, size: i32) -> Vec<u8> {
    dictionary(&[("action", pickled(action)), (key, integer(value)), ("size", integer(size))])
}

/// A snapshot of PyTorch with a segment of 40 MiB, which has live blocks of these addresses and sizes.
fn dumped(blocks: &[(i32, i32)], events: &[Vec<u8>]) -> Vec<u8> {
    let block = |&(address, size): &(i32, i32)| {
        dictionary(&[("address", integer(address)), ("size", integer(size)), ("state", pickled("active_allocated"))])
    };
    let blocks = list(&blocks.iter().map(block).collect::<Vec<_>>());
    let segment = dictionary(&[("address", integer(4096)), ("total_size", integer(40 << 20)), ("blocks", blocks)]);
    let root = dictionary(&[("segments", list(&[segment])), ("device_traces", list(&[list(events)]))]);
    [&b"\x80\x04"[..], &root, b"."].concat()
}

#[test]
fn a_recording_without_history_has_neither_yes_nor_no() {
    let pickle = dumped(&[(4096, 3 << 20), (8 << 20, 21 << 20)], &[]);
    let file = file(&pickle);
    let advice =
        "  no history     only the blocks live at the dump; call torch.cuda.memory._record_memory_history before the first allocation\n";
    for options in [&[][..], &["--limit", "1GiB"], &["--limit", "8MiB"], &["--least"]] {
        let ran = call(&IMAGE, ["replay", text(file.path())].iter().chain(options));
        assert!(ran.code == 0 && ran.out.contains(advice), "{ran:?}");
        assert!(
            ran.out.contains("  24 MiB live at the dump ") && ran.out.contains("  recorded       40 MiB reserved at the dump\n"),
            "{ran:?}"
        );
        for claim in ["yes", "no: ", "fits", "least limit", "live at most", "before the recording", "the model"] {
            assert!(!ran.out.contains(claim), "`{claim}` is in\n{}", ran.out);
        }
        let object = call(&IMAGE, ["replay", text(file.path()), "--json"].iter().chain(options)).json();
        assert_eq!((object["history"].as_bool(), number(&object, "live_before")), (Some(false), 2));
        assert!(object["least_limit_step"].is_null(), "{object}");
        assert!(object["policies"].as_array().expect("policies").iter().all(|row| row["least_limit"].is_null()), "{object}");
    }
    let late = dumped(&[(4096, 3 << 20), (8 << 20, 21 << 20)], &[event("alloc", "addr", 8 << 20, 21 << 20)]);
    let file = self::file(&late);
    let ran = call(&IMAGE, ["replay", text(file.path()), "--limit", "1GiB"]);
    assert!(ran.out.matches("  yes\n").count() == 5 && !ran.out.contains("no history"), "{ran:?}");
    assert_eq!(replay("alloc 0 1 1\n", &[])["history"], true);
}

#[test]
fn an_idle_device_of_a_recording_with_history_has_a_verdict() {
    let block = dictionary(&[("address", integer(4096)), ("size", integer(3 << 20)), ("state", pickled("active_allocated"))]);
    let segment = [("device", integer(1)), ("address", integer(4096)), ("total_size", integer(40 << 20)), ("blocks", list(&[block]))];
    let traces = list(&[list(&[event("alloc", "addr", 8 << 20, 1 << 20)]), list(&[])]);
    let root = dictionary(&[("segments", list(&[dictionary(&segment)])), ("device_traces", traces)]);
    let file = file(&[&b"\x80\x04"[..], &root, b"."].concat());
    for (options, rows) in [(&[][..], 10), (&["--device", "1"], 5)] {
        let ran = call(&IMAGE, ["replay", text(file.path()), "--limit", "1GiB"].iter().chain(options));
        assert!(ran.out.matches("  yes\n").count() == rows && !ran.out.contains("no history"), "{ran:?}");
    }
}

#[test]
fn an_oom_names_the_memory_that_the_program_could_have() {
    let events = [event("alloc", "addr", 4096, 3 << 20), event("oom", "device_free", (93 << 20) + 5300, 114 << 20)];
    let file = file(&dumped(&[(4096, 3 << 20)], &events));
    let ran = call(&IMAGE, ["replay", text(file.path())]);
    let line = "  out of memory  event 2: 114 MiB were refused; the program could have 133 MiB: `--limit 133MiB`\n";
    assert!(ran.out.contains(line), "{ran:?}");
    let object = call(&IMAGE, ["replay", text(file.path()), "--json"]).json();
    let free = (93 << 20) + 5300;
    let figures = ["device_free", "obtainable"].map(|name| number(&object["out_of_memory"], name));
    assert_eq!(figures, [free, free + (40 << 20)]);
    let without = &replay("refused 64 256\n", &[])["out_of_memory"];
    assert!(without["device_free"].is_null() && without["obtainable"].is_null(), "{without}");
}

#[test]
fn a_snapshot_of_pytorch_replays_as_the_program_that_it_recorded() {
    let directory = tempfile::tempdir().expect("a directory");
    let [trace, snapshot, pickle] = ["a.trace", "a.json", "a.pickle"].map(|name| directory.path().join(name));
    std::fs::write(&trace, recorded()).expect("room for it");
    let ran = call(&IMAGE, ["replay", text(&trace), "--snapshot", text(&snapshot), "--json"]);
    let wanted = ran.json();
    call(&IMAGE, ["view", text(&snapshot), "--format", "pytorch", "--output", text(&pickle)]);
    for file in [&snapshot, &pickle] {
        let object = call(&IMAGE, ["replay", text(file), "--device", "0", "--json"]).json();
        for figure in ["events", "allocations", "frees", "wanted_peak", "requested_peak", "reserved_peak"] {
            assert_eq!(object[figure], wanted[figure], "{figure}: {object}");
        }
    }
    let ran = call(&IMAGE, ["replay", text(&pickle), "--device", "0"]);
    assert!(ran.out.contains("429 events on ") && ran.out.contains(" of device 0\n"), "{ran:?}");
}

#[test]
fn devices_are_replayed_one_after_another() {
    let two = r#"{"version":1,"traces":[{"name":"a","events":[{"kind":"alloc","block":1,"bytes":10}]},
        {"name":"b","events":[{"kind":"alloc","block":1,"bytes":20},{"kind":"free","block":1}]}]}"#;
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("two.json");
    std::fs::write(&path, two).expect("room for it");
    let ran = call(&IMAGE, ["replay", text(&path), "--json"]);
    let objects: Vec<Value> = ran.out.lines().map(|line| serde_json::from_str(line).expect("an object a line")).collect();
    let facts: Vec<_> =
        objects.iter().map(|object| (number(object, "device"), object["name"].as_str(), number(object, "wanted_peak"))).collect();
    assert_eq!(facts, [(0, Some("a"), 10), (1, Some("b"), 20)]);
    let ran = call(&IMAGE, ["replay", text(&path), "--device", "1"]);
    assert!(ran.out.contains("two.json: 2 events on 0 streams, trace \"b\"\n") && !ran.out.contains("\"a\""), "{ran:?}");
    call(&IMAGE, ["replay", text(&path), "--device", "2"]).refuses(1, &["no device 2; the file has 0, 1"]);
    let to = directory.path().join("to");
    call(&IMAGE, ["replay", text(&path), "--csv", text(&to)]).refuses(2, &["--csv", "--device", "one of 0, 1"]);
    assert_eq!(call(&IMAGE, ["replay", text(&path), "--csv", text(&to), "--device", "0"]).code, 0);
}

#[test]
fn a_refused_request_is_tried_and_given_back() {
    let trace = "alloc 0 3145728 256\nrefused 22020096 256\nalloc 1 22020096 256\n";
    let ran = call(&IMAGE, ["replay", text(file(trace.as_bytes()).path())]);
    assert!(ran.out.contains("  out of memory  event 2: 21 MiB were refused\n"), "{ran:?}");
    let object = replay(&format!("{trace}refused 1 256\n"), &[]);
    let recorded = &object["out_of_memory"];
    assert_eq!((number(recorded, "count"), number(&recorded["first"], "event"), number(&recorded["first"], "bytes")), (2, 2, 21 << 20));
    let two = call(&IMAGE, ["replay", text(file(format!("{trace}refused 1 256\n").as_bytes()).path())]);
    assert!(two.out.contains("  out of memory  event 2: 21 MiB were refused; 1 more\n"), "{two:?}");
    assert_eq!(number(&replay("alloc 0 1 1\n", &[])["out_of_memory"], "count"), 0);
    assert!(ran.out.contains("  24 MiB wanted at most"), "{ran:?}");
    let object = replay(trace, &[]);
    assert_eq!(number(policy(&object, "PyTorch's allocator"), "reserved_peak"), (20 + 22) << 20);
    assert_eq!(number(policy(&object, "no pool"), "reserved_peak"), 24 << 20);
    assert_eq!(number(policy(&replay(trace, &["--limit", "20MiB"]), "no pool"), "refused"), 2);
}

#[test]
fn the_addresses_of_a_device_serve_the_next() {
    // Each takes two TiB of addresses, of which a process has 128.
    let device = r#"{"name":"d","events":[{"kind":"alloc","block":0,"bytes":549755813888}]}"#;
    let document = format!(r#"{{"version":1,"traces":[{}]}}"#, vec![device; 150].join(","));
    let ran = call(&IMAGE, ["replay", text(file(document.as_bytes()).path()), "--json"]);
    assert_eq!((ran.code, ran.out.lines().count()), (0, 150), "{}", ran.err);
}

#[test]
fn repairs_of_a_recording_are_reported() {
    let log = "Action,Pointer,Size,Stream\nallocate,1,100,0\nallocate,1,200,7\nfree,1,200,7\nfree,1,200,7\nfree,2,50,7\n";
    let file = file(log.as_bytes());
    let ran = call(&IMAGE, ["replay", text(file.path())]);
    for fact in [
        ": 6 events on 2 streams\n",
        "  before         1 block, 50 bytes, live before the recording: allocated first\n",
        "  repaired       1 free added before reuses, 1 free of no live block left out\n",
    ] {
        assert!(ran.out.contains(fact), "`{fact}` is not in\n{}", ran.out);
    }
    let object = call(&IMAGE, ["replay", text(file.path()), "--json"]).json();
    let figures = ["live_before", "missing_frees", "unknown_frees", "streams", "wanted_peak"].map(|name| number(&object, name));
    assert_eq!(figures, [1, 1, 1, 2, 250]);
}

#[test]
fn events_of_unknown_kinds_and_memory_of_the_host_are_counted() {
    // {"segments": [], "device_traces": [[two of an unknown kind, and perhaps an allocation]], "host_traces": [[None, None]]}
    let event = |action: &str| {
        [&b"}(\x8c\x06action\x8c"[..], &[action.len() as u8], action.as_bytes(), b"\x8c\x04addrK\x01\x8c\x04sizeK\x64u"].concat()
    };
    let recording = |events: &[Vec<u8>]| {
        let head = &b"\x80\x04}(\x8c\x08segments]\x8c\x0ddevice_traces](]("[..];
        [head, &events.concat(), b"ee\x8c\x0bhost_traces](](NNeeu."].concat()
    };
    let unknown = || event("frob\u{1b}");
    let none = file(&recording(&[unknown(), unknown()]));
    for command in ["replay", "view"] {
        let facts = ["no allocations were recorded", "left out: 2 events of host memory, 2 events of the unknown kind \"frob\\u{1b}\""];
        call(&IMAGE, [command, text(none.path())]).refuses(1, &facts);
    }
    let some = file(&recording(&[unknown(), event("alloc")]));
    let ran = call(&IMAGE, ["replay", text(some.path())]);
    assert!(ran.out.contains("  left out       2 events of host memory, 1 event of the unknown kind \"frob\\u{1b}\"\n"), "{ran:?}");
    let object = call(&IMAGE, ["replay", text(some.path()), "--json"]).json();
    assert_eq!(object["left_out"], json!([{ "kind": "host_traces", "count": 2 }, { "kind": "frob\u{1b}", "count": 1 }]));
    let page = tempfile::NamedTempFile::new().expect("a file");
    let ran = call(&IMAGE, ["view", text(some.path()), "--output", text(page.path())]);
    assert!(ran.out.contains("; left out: 2 events of host memory, 1 event of the unknown kind"), "{ran:?}");
    assert_eq!(replay("alloc 0 1 1\n", &[])["left_out"], json!([]));
}

#[test]
fn calls_of_a_replay_have_the_names_and_streams_of_the_recording() {
    let directory = tempfile::tempdir().expect("a directory");
    let [log, table, snapshot] = ["a.csv", "calls.csv", "memory.json"].map(|name| directory.path().join(name));
    let lines = "allocate,0x10,3145728,0x7f2a\nallocate failure,(nil),64,0\nallocate failure,(nil),18446744073709551615,0\nallocate failure,(nil),0,0\nallocate,0x20,18874368,0\nfree,0x10,3145728,0x7f2a\nallocate,0x30,22020096,0x7f2a\n";
    std::fs::write(&log, format!("Action,Pointer,Size,Stream\n{lines}")).expect("room for it");
    let recorded = call(&IMAGE, ["replay", text(&log), "--csv", text(&table), "--snapshot", text(&snapshot), "--json"]).json();
    let rows = std::fs::read_to_string(&table).expect("a table");
    let facts: Vec<Vec<&str>> = rows
        .lines()
        .map(|row| row.split(',').enumerate().filter(|(column, _)| [0, 3, 5].contains(column)).map(|(_, fact)| fact).collect())
        .collect();
    // The refused request is tried, and freed at once. Those of a size that no memory has are no calls.
    let expected = [
        ["kind", "bytes", "stream"],
        ["alloc", "3145728", "0"],
        ["alloc", "64", "1"],
        ["free", "", ""],
        ["alloc", "18874368", "1"],
        ["free", "", ""],
        ["alloc", "22020096", "0"],
    ];
    assert_eq!(facts, expected, "{rows}");
    for file in [&table, &snapshot] {
        let again = call(&IMAGE, ["replay", text(file), "--json"]).json();
        assert_eq!(
            number(policy(&again, "PyTorch's allocator"), "reserved_peak"),
            number(policy(&recorded, "PyTorch's allocator"), "reserved_peak")
        );
    }
    let named = directory.path().join("named.csv");
    let head = "kind,time_ns,block,bytes,align,stream,address,name,place,after,backtrace\n";
    std::fs::write(
        &named,
        format!(
            "{head}free,,9,,,,,,,,\nalloc,,0,512,256,,,weights,,,\nrefused,,,64,256,4,,,,,\nfree,,0,,,,,,,,\nalloc,,1,8,256,,,bias,,,\n"
        ),
    )
    .expect("room");
    call(&IMAGE, ["replay", text(&named), "--csv", text(&table)]);
    let rows = std::fs::read_to_string(&table).expect("a table");
    let names: Vec<(&str, &str)> =
        rows.lines().map(|row| (row.split(',').next().expect("a kind"), row.split(',').nth(7).expect("a name"))).collect();
    assert_eq!(names[1..], [("alloc", "weights"), ("alloc", ""), ("free", ""), ("free", ""), ("alloc", "bias")], "{rows}");
}

#[cfg(target_os = "linux")]
#[test]
fn too_few_addresses_are_an_error_with_their_number() {
    let file = file(b"alloc 0 4096 256\n");
    for (kib, options, bytes) in [(1_000_000, "", "107"), (4_000_000, "", "17"), (1_000_000, "--limit 2GiB --no-pool", "21")] {
        let mut shell = std::process::Command::new("sh");
        let line = format!("ulimit -v {kib} && exec {} replay {} {options}", env!("CARGO_BIN_EXE_ringmem"), text(file.path()));
        shell.args(["-c", &line]);
        let ran = crate::program::finish(shell);
        ran.refuses(1, &[&format!("cannot reserve {bytes}"), " bytes of addresses for the simulated device: ", "ulimit -v", "--no-pool"]);
        assert_eq!(ran.err.contains("--limit: cannot"), !options.is_empty(), "{ran:?}");
    }
}
