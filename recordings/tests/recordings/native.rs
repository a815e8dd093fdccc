use ringmem::backend::host::HostBackend;
use ringmem::memory::{Buffer, Device, Logged};
use ringmem::snapshot::{Snapshot, csv};
use ringmem::stream::Stream;
use ringmem_recordings::Kind::{Alloc, Free, Refused};
use ringmem_recordings::{Format, Frame, NO_STREAM, Recording};

use crate::{events, read, refuses};

/// One program in all three forms.
fn logged() -> Logged<Device> {
    let backend = HostBackend::builder().device_memory(1 << 20).build().expect("a backend");
    let memory = Logged::new(Device::new(&backend, 0));
    let stream = Stream::new(&backend, 0).expect("a stream");
    let first = Buffer::<u8, _>::new(memory.named("a, \"b\"\nc"), 1000).expect("memory");
    let second = Buffer::<u8, _>::new_on(memory.clone(), 2000, &stream).expect("memory");
    drop(first);
    Buffer::<u8, _>::new(memory.clone(), 1 << 21).expect_err("too much");
    drop(second);
    memory
}

#[test]
fn ringmem_s_own_files_have_the_same_events() {
    let memory = logged();
    let calls = memory.calls();
    let mut snapshot = Snapshot::default();
    snapshot.calls("pool", &calls);
    let expected = [(Alloc, 0, 1000), (Alloc, 1, 2000), (Free, 0, 1000), (Refused, 0, 1 << 21), (Free, 1, 2000)];
    for (text, name, has_place) in [
        (memory.trace().to_string(), None, false),
        (csv(&calls).to_string(), None, true),
        (snapshot.to_json().to_string(), Some("pool"), true),
    ] {
        let recording = read(text);
        assert_eq!((recording.format, recording.devices.len()), (Format::Ringmem, 1));
        let device = &recording.devices[0];
        assert_eq!((events(device).as_slice(), device.name.as_deref()), (&expected[..], name));
        let aligns: Vec<u32> = device.events.iter().map(|event| event.align).collect();
        assert_eq!(aligns, [1; 5]);
        let place = recording.stacks.place(device.events[0].stack);
        assert_eq!(place.map(|frame| frame.file.ends_with("native.rs") && frame.line > 0), has_place.then_some(true));
        assert_eq!(recording.stacks.name(device.events[0].name), has_place.then_some("a, \"b\"\nc"));
        let streams: Vec<u32> = device.events.iter().map(|event| event.stream).collect();
        assert_eq!(streams, [NO_STREAM, 0, NO_STREAM, NO_STREAM, 0]);
    }
    assert_eq!(*read(memory.trace().to_string()).devices[0].trace(), memory.trace(), "with its streams");
}

#[test]
fn events_are_lines_in_traces_and_logs_alone() {
    let forms: [(&[u8], bool); 7] = [
        (b"\n alloc\n", false),
        (b"\xef\xbb\xbf\nalloc 0 1 1\n", true),
        (b"free 0\n", true),
        (b"Action,Pointer,Size,Stream\n", true),
        (b"kind,time_ns,block,bytes,align,stream,address,name,place,after,backtrace\n", false),
        (b"{\n\"version\":1}", false),
        (b"\x80\x04\x8c\x18Action,Pointer,Size,Stream\n.", false),
    ];
    for (bytes, is_so) in forms {
        assert_eq!(Recording::has_an_event_per_line(bytes), is_so, "{}", String::from_utf8_lossy(bytes));
    }
}

#[test]
fn frees_of_unknown_blocks_are_counted() {
    let recording = read("alloc 3 10 1\nfree 9\nfree 3\nfree 3\n");
    let device = &recording.devices[0];
    assert_eq!(events(device), [(Alloc, 0, 10), (Free, u32::MAX, 0), (Free, 0, 10), (Free, u32::MAX, 0)]);
    assert_eq!((device.unknown_frees, device.peak()), (2, (10, 1)));
    let head = "kind,time_ns,block,bytes,align,stream,address,name,place,after,backtrace\n";
    let recording = read(format!("{head}alloc,1,0,4096,256,,,,,,\nfree,2,9,4096,256,,,,,,\nalloc,3,1,4096,256,,,,,,\n"));
    let device = &recording.devices[0];
    assert_eq!((device.unknown_frees, device.peak()), (1, (8192, 3)), "nothing that was recorded leaves with it");
}

#[test]
fn an_invalid_text_is_an_error_with_its_line() {
    let trace = |events: &str| format!("{{\n\"version\":1,\"traces\":[{{\"name\":\"t\",\n\"events\":[{events}]}}]}}");
    let head = "kind,time_ns,block,bytes,align,stream,address,name,place,after,backtrace\n";
    for (text, fact) in [
        ("alloc 0 1 1\nalloc\n".to_owned(), "line 2: not `alloc BLOCK SIZE ALIGN [on STREAM]`"),
        (String::new(), "the file is empty"),
        ("\n \r\n".to_owned(), "the file has only blank lines"),
        ("\u{feff}".to_owned(), "the file has only blank lines"),
        ("alloc 5 1 1\nfree 5\nalloc 1 1 1\n".to_owned(), "line 3: block number 1 is not above those before it"),
        (
            "alloc 0 1 1\nfree 0\nalloc 1 140737488355329 1\n".to_owned(),
            "line 3: a block of 140737488355329 bytes; no device has more than 2^47",
        ),
        (
            "alloc 0 140737488355328 1\nfree 0\nalloc 1 140737488355328 1\nalloc 2 1 1\n".to_owned(),
            "line 4: 140737488355329 bytes are live",
        ),
        ("\n\nnonsense\n".to_owned(), "line 3: no recording is recognised"),
        ("nonsense\n".to_owned(), "line 1: no recording is recognised: expected a snapshot of PyTorch, a log of RMM"),
        ("alloc 0 1 1\nnonsense\n".to_owned(), "line 2: not `alloc ..., refused ... or free ...`"),
        ("\u{1f}\u{8}".to_owned(), "line 1: no recording"),
        (format!("{head}alloc,1,0,x,1,,,,,,\n"), "line 2: `bytes`: invalid digit"),
        (format!("{head}alloc,1,0,1,1,,,,,,\nalloc,t,1,1,1,,,,,,\n"), "line 3: `time_ns`: invalid digit"),
        (format!("{head}alloc,1,0,1152921504606846976,1,,,,,,\n"), "line 2: a block of 1152921504606846976 bytes"),
        (format!("{head}alloc,1,0,,1,,,,,,\n"), "line 2: no `bytes`"),
        (format!("{head}free,1,,,,,,,,,\n"), "line 2: no `block`"),
        (format!("{head}alloc,1,0,1,1,,,,,,\nfree,1,,,,,,,,,\n").replace('\n', "\r\n"), "line 3: no `block`"),
        (format!("{head}\n\nalloc,1,0,x,1,,,,,,\n"), "line 4: `bytes`: invalid digit"),
        (format!("{head}freed,1,0,,,,,,,,\n"), "line 2: unknown variant `freed`"),
        (format!("{head}alloc,1,0,1,1,,"), "line 2: 7 fields, expected 11: `name` is missing"),
        (format!("{head}alloc,1,0,1,1,,,,,,"), "line 2: no line end"),
        ("{}".to_owned(), "not a snapshot of memory: no field `version`"),
        ("{\"version\":null}".to_owned(), "not a snapshot of memory: no field `version`"),
        ("{\"version\":2,\"traces\":{\"events\":7}}".to_owned(), "snapshot version 2; expected 1"),
        ("{\"version\":1,\"traces\":\n{}}".to_owned(), "line 2: not a snapshot of memory: invalid type: map, expected a sequence"),
        ("{\"version\":2,\"traces\":[]}".to_owned(), "snapshot version 2; expected 1"),
        (
            trace(r#"{"kind":"alloc","block":1,"bytes":1},{"kind":"alloc","block":1,"bytes":1}"#),
            "trace \"t\", event 1: block 1 is live already",
        ),
        (trace(r#"{"kind":"alloc","block":1,"bytes":1152921504606846976}"#), "trace \"t\", event 0: a block of 1152921504606846976 bytes"),
        (
            trace(r#"{"kind":"free","block":1,"time_ns":5},{"kind":"free","block":1,"time_ns":4}"#),
            "trace \"t\", event 1: its time is before",
        ),
        (trace("{\"kind\":\"free\",\n\"block\":1},\n{\"kind\":\"move\"}"), "line 5: not a snapshot of memory: unknown variant `move`"),
        (trace("7"), "line 3: not a snapshot of memory: invalid type"),
        ("{\n\"version\":".to_owned(), "line 2: not a snapshot of memory"),
        (trace(r#"{"kind":"alloc"}"#), "trace \"t\", event 0: no `block`"),
    ] {
        let error = refuses(text);
        assert!(error.starts_with(fact), "{error}");
    }
    // Errors that quote a file quote the beginning, and no control characters.
    let error = refuses(format!("{head}\"a\nb\u{1b}[31m\",1,0,1,1,,,,,,\n"));
    assert!(error.contains("`a\\nb\\u{1b}[31m`"), "{error}");
    assert!(refuses(format!("{head}{},1,0,1,1,,,,,,\n", "long".repeat(1000))).len() < 350);
    assert!(refuses(b"alloc 0 1 1\n\xff\n".to_vec()).starts_with("line 2: not UTF-8"));
}

/// A program asks for absurd sizes by mistake, and is refused.
#[test]
fn refused_requests_have_any_size() {
    let recording = read(format!("refused {} 1\nalloc 0 140737488355328 1\n", u64::MAX));
    assert_eq!(events(&recording.devices[0]), [(Refused, 0, u64::MAX), (Alloc, 0, 1 << 47)]);
}

#[test]
fn other_forms_of_files_are_named() {
    for (bytes, name) in [
        (&b"\x1f\x8b\x08\0"[..], "compressed by gzip: unpack"),
        (b"PK\x03\x04", "compressed by zip"),
        (b"\x28\xb5\x2f\xfd", "compressed by zstd"),
        (b"\xfd7zXZ\0\0\x04", "compressed by xz"),
        (b"BZh91AY&SY", "compressed by bzip2"),
        (b"\x04\x22\x4d\x18", "compressed by lz4"),
        (b"\xff\xfeT\0h\0", "text in UTF-16: convert it to UTF-8"),
        (b"\xfe\xff\0T\0h", "text in UTF-16"),
        (b"T\0h\0", "text in UTF-16"),
        (b"\0T\0h", "text in UTF-16"),
        (b"(dp0\nVsegments\np1\n(lp2\ns.", "a pickle of protocol 0 or 1, expected 2 to 5: write it again"),
        (b"(lp0\n.", "a pickle of protocol 0 or 1"),
        (b"}q\0(X\x08\0\0\0segmentsq\x01]q\x02u.", "a pickle of protocol 0 or 1"),
        (b"]q\0.", "a pickle of protocol 0 or 1"),
    ] {
        let error = refuses(bytes);
        assert!(error.starts_with("byte 0: ") && error.contains(name), "{error}");
    }
}

#[test]
fn a_snapshot_without_traces_has_no_device() {
    let recording = read("\u{feff} {\"version\":1,\"pools\":[]}");
    assert_eq!((recording.format, recording.devices.len()), (Format::Ringmem, 0));
}

#[test]
fn a_stack_is_the_place_and_then_the_backtrace() {
    let backtrace = "   0: a::f\n             at ./src/a.rs:3:5\n   1: start\n";
    let recording = read(format!(
        r#"{{"version":1,"traces":[{{"name":"t","events":[{{"kind":"alloc","block":9,"bytes":1,"place":"src/b.rs:7:9","backtrace":{}}}]}}]}}"#,
        serde_json::to_string(backtrace).expect("text")
    ));
    let frames: Vec<Frame<'_>> = recording.stacks.frames(recording.devices[0].events[0].stack).collect();
    let frame = |function, file, line| Frame { function, file, line };
    assert_eq!(frames, [frame("", "src/b.rs", 7), frame("a::f", "./src/a.rs", 3), frame("start", "", 0)]);
    assert_eq!(frames.iter().map(ToString::to_string).collect::<Vec<_>>(), ["src/b.rs:7", "a::f in ./src/a.rs:3", "start"]);
}
