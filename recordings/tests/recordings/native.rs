use ringmem::backend::host::HostBackend;
use ringmem::memory::{Buffer, Device, Logged};
use ringmem::snapshot::{Snapshot, csv};
use ringmem::stream::Stream;
use ringmem_recordings::Format;
use ringmem_recordings::Kind::{Alloc, Free, Refused};

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
        assert_eq!(place.map(|frame| frame.function), has_place.then_some("a, \"b\"\nc"));
    }
    assert_eq!(*read(memory.trace().to_string()).devices[0].trace(), memory.trace(), "with its streams");
}

#[test]
fn frees_of_unknown_blocks_are_counted() {
    let recording = read("alloc 3 10 1\nfree 9\nfree 3\nfree 3\n");
    let device = &recording.devices[0];
    assert_eq!(events(device), [(Alloc, 0, 10), (Free, u32::MAX, 0), (Free, 0, 10), (Free, u32::MAX, 0)]);
    assert_eq!((device.unknown_frees, device.peak()), (2, (10, 1)));
}

#[test]
fn an_invalid_text_is_an_error_with_its_line() {
    let head = "kind,time_ns,block,bytes,align,stream,address,name,place,after,backtrace\n";
    for (text, fact) in [
        ("alloc 0 1 1\nalloc\n".to_owned(), "line 2: not `alloc BLOCK SIZE ALIGN [on STREAM]`"),
        ("nonsense\n".to_owned(), "line 1: no recording is recognised: expected a snapshot of PyTorch, a log of RMM"),
        ("alloc 0 1 1\nnonsense\n".to_owned(), "line 2: not `alloc ..., refused ... or free ...`"),
        ("\u{1f}\u{8}".to_owned(), "line 1: no recording"),
        (format!("{head}alloc,1,0,x,1,,,,,,\n"), "line 2: "),
        (format!("{head}alloc,1,0,,1,,,,,,\n"), "line 2: no `bytes`"),
        (format!("{head}free,1,,,,,,,,,\n"), "line 2: no `block`"),
        (format!("{head}freed,1,0,,,,,,,,\n"), "line 2: "),
        (format!("{head}alloc,1,0,1,1,,"), "line 2: "),
        (format!("{head}alloc,1,0,1,1,,,,,,"), "line 2: no line end"),
        ("{\"version\":1}".to_owned(), "the snapshot has no trace"),
        ("{\"version\":2,\"traces\":[]}".to_owned(), "snapshot version 2, expected 1"),
        ("{\n\"version\":".to_owned(), "line 2: not a snapshot of memory"),
        ("{\"version\":1,\"traces\":[{\"name\":\"t\",\"events\":[{\"kind\":\"alloc\"}]}]}".to_owned(), "trace \"t\", event 0: no `block`"),
    ] {
        let error = refuses(text);
        assert!(error.starts_with(fact), "{error}");
    }
    // Errors that quote a file quote the beginning, and no control characters.
    let error = refuses(format!("{head}\"a\nb\u{1b}[31m\",1,0,1,1,,,,,,\n"));
    assert!(error.contains("`a\\nb\\u{1b}[31m`"), "{error}");
    assert!(refuses(format!("{head}{},1,0,1,1,,,,,,\n", "long".repeat(1000))).len() < 350);
    assert!(refuses(b"\x1f\x8b\x08\0".to_vec()).starts_with("byte 0: a file compressed by gzip"));
    assert!(refuses(b"alloc 0 1 1\n\xff\n".to_vec()).starts_with("line 2: not UTF-8"));
}
