use ringmem::memory::Event as Traced;
use ringmem_recordings::Kind::{Alloc, Free, Refused};
use ringmem_recordings::{Format, Frame, Reserved, Segment};

use crate::pickler::Data::{self, Float, Int, List, Text, Tuple};
use crate::pickler::{Pickler, dict, event, snapshot};
use crate::{events, read, refuses};

const MIB: i128 = 1 << 20;

fn block(address: Option<i128>, size: i128, requested: Option<i128>, state: &'static str) -> Data {
    let mut fields = vec![("size", Int(size)), ("state", Text(state))];
    fields.extend(address.map(|address| ("address", Int(address))));
    fields.extend(requested.map(|requested| ("requested_size", Int(requested))));
    Data::Dict(fields)
}

fn segment(device: i128, address: i128, total: i128, blocks: Vec<Data>) -> Data {
    let pool = Tuple(vec![Int(0), Int(1)]);
    dict([
        ("device", Int(device)),
        ("address", Int(address)),
        ("total_size", Int(total)),
        ("stream", Int(0)),
        ("segment_pool_id", pool),
        ("is_expandable", Data::Bool(false)),
        ("blocks", List(blocks)),
    ])
}

#[test]
fn a_block_lives_from_its_allocation_to_the_completion_of_its_free() {
    let trace = vec![
        event("segment_alloc", 4096, 20 * MIB),
        event("alloc", 4096, 3000),
        event("alloc", 8192, 5000),
        event("free_requested", 4096, 3000),
        event("snapshot", 0, 0),
        event("alloc", 16384, 7000),
        event("free_completed", 4096, 3000),
        event("oom", 12 * MIB, 64 * MIB),
        event("alloc", 4096, 1),
    ];
    let data = snapshot(vec![segment(0, 4096, 20 * MIB, vec![])], vec![trace]);
    for protocol in 2..=5 {
        let recording = read(Pickler::pickle(protocol, &data));
        assert_eq!((recording.format, recording.devices.len()), (Format::PyTorch, 1));
        let device = &recording.devices[0];
        let expected = [(Alloc, 0, 3000), (Alloc, 1, 5000), (Alloc, 2, 7000), (Free, 0, 3000), (Refused, 0, 64 << 20), (Alloc, 3, 1)];
        assert_eq!(events(device), expected);
        assert_eq!((device.before, device.missing_frees, device.unknown_frees), (0, 0, 0));
        assert_eq!(device.reserved, Some(Reserved { begin: 0, peak: 20 << 20, end: 20 << 20 }));
        assert_eq!(device.peak(), ((64 << 20) + 12_000, 5), "the refused request, beside what lives");
        let trace = device.trace();
        assert_eq!(trace.events()[3], Traced::Free { block: 0, after: [].into() });
        assert_eq!(trace.events()[4], Traced::Refused { size: 64 << 20, align: 256, on: None });
        assert_eq!(trace.events().len(), device.events.len());
    }
}

#[test]
fn blocks_that_were_live_before_come_first() {
    let trace = vec![
        event("alloc", 100 * MIB, 10),
        // Of a block that the trace does not allocate, and of one whose size is not known.
        event("free_completed", 200 * MIB, 20),
        event("free_completed", 300 * MIB, 0),
        event("segment_free", 400 * MIB, 2 * MIB),
        // Its free is missing.
        event("alloc", 100 * MIB, 30),
    ];
    let blocks = vec![
        block(Some(100 * MIB), 512, Some(30), "active_allocated"),
        block(Some(500 * MIB), 1024, Some(1000), "active_allocated"),
        block(Some(501 * MIB), 2048, None, "active_awaiting_free"),
        block(Some(502 * MIB), 4096, Some(0), "inactive"),
    ];
    let data = snapshot(vec![segment(0, 100 * MIB, 20 * MIB, blocks)], vec![trace]);
    let recording = read(Pickler::pickle(4, &data));
    let device = &recording.devices[0];
    let expected = [(Alloc, 0, 20), (Alloc, 1, 1000), (Alloc, 2, 2048), (Alloc, 3, 10), (Free, 0, 20), (Free, 3, 10), (Alloc, 4, 30)];
    assert_eq!(events(device), expected);
    assert_eq!((device.before, device.missing_frees, device.unknown_frees), (3, 1, 1));
    assert_eq!(device.reserved, Some(Reserved { begin: 22 << 20, peak: 22 << 20, end: 20 << 20 }));
}

#[test]
fn a_list_of_segments_alone_is_the_state_at_its_time() {
    // Of 2.0: no addresses of blocks, the requested size and the frames in a history.
    let frame = dict([("name", Text("f")), ("filename", Text("a.py")), ("line", Int(3))]);
    let own = dict([("addr", Int(0)), ("real_size", Int(700)), ("frames", List(vec![frame]))]);
    let history = List(vec![own, dict([("addr", Int(512)), ("real_size", Int(400))])]);
    let Data::Dict(mut old) = block(None, 1024, None, "active_allocated") else { panic!("a dictionary") };
    old.push(("history", history));
    let blocks = vec![Data::Dict(old), block(None, 512, None, "inactive"), block(None, 512, None, "active_allocated")];
    let data = List(vec![segment(0, 4096, 2 * MIB, vec![]), segment(1, 8192, 2 * MIB, blocks)]);
    let recording = read(Pickler::pickle(3, &data));
    let numbers: Vec<u32> = recording.devices.iter().map(|device| device.number).collect();
    assert_eq!(numbers, [0, 1]);
    let device = &recording.devices[1];
    assert_eq!(events(device), [(Alloc, 0, 700), (Alloc, 1, 512)]);
    let addresses: Vec<u64> = device.events.iter().map(|event| event.address).collect();
    assert_eq!(addresses, [8192, 8192 + 1536]);
    let frames: Vec<Frame<'_>> = recording.stacks.frames(device.events[0].stack).collect();
    assert_eq!(frames, [Frame { function: "f", file: "a.py", line: 3 }]);
    assert_eq!(device.reserved, Some(Reserved { begin: 2 << 20, peak: 2 << 20, end: 2 << 20 }));
}

#[test]
fn devices_and_streams_are_apart() {
    let on = |address: i128, stream: i128| {
        let time = ("time_us", Int(1_748_733_587_416_285));
        changed(event("alloc", address, 512), vec![("stream", Int(stream)), time, ("ratio", Float(0.5))])
    };
    let data = snapshot(vec![], vec![vec![on(1, 0), on(2, 94_000_000_000_000), on(3, 0)], vec![], vec![on(1, -1)]]);
    let recording = read(Pickler::pickle(2, &data));
    let numbers: Vec<u32> = recording.devices.iter().map(|device| device.number).collect();
    assert_eq!(numbers, [0, 2], "one has nothing");
    let streams: Vec<u32> = recording.devices[0].events.iter().map(|event| event.stream).collect();
    assert_eq!(streams, [0, 1, 0]);
    let names: Vec<Vec<&str>> =
        recording.devices.iter().map(|device| device.streams.iter().map(|stream| &*stream.name).collect()).collect();
    assert_eq!(names, [vec!["0", "94000000000000"], vec!["-1"]]);
    assert_eq!(recording.devices[1].stream_name(0).as_deref(), Some("-1"));
    let time = recording.devices[1].events[0].time_ns.map(u64::from);
    assert_eq!(time, Some(1_748_733_587_416_285_000));
}

fn changed(data: Data, more: Vec<(&'static str, Data)>) -> Data {
    let Data::Dict(mut fields) = data else { panic!("a dictionary") };
    fields.retain(|field| more.iter().all(|new| new.0 != field.0));
    fields.extend(more);
    Data::Dict(fields)
}

#[test]
fn segments_last_from_one_event_to_another() {
    let trace = vec![
        event("segment_alloc", 100 * MIB, 20 * MIB),
        event("alloc", 100 * MIB, 10),
        event("segment_map", 200 * MIB, 4 * MIB),
        event("free_completed", 500 * MIB, 20),
        event("segment_unmap", 202 * MIB, 2 * MIB),
        event("segment_free", 300 * MIB, 2 * MIB),
        event("alloc", 101 * MIB, 30),
    ];
    let expandable = changed(segment(0, 200 * MIB, 2 * MIB, vec![]), vec![("is_expandable", Data::Bool(true)), ("stream", Int(7))]);
    let data = snapshot(vec![segment(0, 400 * MIB, 2 * MIB, vec![]), expandable, segment(0, 100 * MIB, 20 * MIB, vec![])], vec![trace]);
    let recording = read(Pickler::pickle(4, &data));
    let device = &recording.devices[0];
    // The block that is freed without an allocation is the first event.
    assert_eq!(events(device), [(Alloc, 0, 20), (Alloc, 1, 10), (Free, 0, 20), (Alloc, 2, 30)]);
    let lasts = |address: u64, bytes: u64, is_piece, begin: Option<usize>, end: Option<usize>| Segment {
        address: address << 20,
        bytes: bytes << 20,
        stream: 0,
        is_piece,
        begin,
        end,
    };
    let expected = [
        lasts(300, 2, false, None, Some(3)),
        lasts(400, 2, false, None, None),
        lasts(100, 20, false, Some(1), None),
        lasts(200, 2, true, Some(2), None),
        lasts(202, 2, true, Some(2), Some(3)),
    ];
    assert_eq!(device.segments, expected);
    assert_eq!(device.reserved, Some(Reserved { begin: 4 << 20, peak: 28 << 20, end: 24 << 20 }));
}

#[test]
fn a_refused_request_has_the_memory_that_the_program_could_have() {
    let trace = vec![
        // Of a block from before, so that events have other numbers in the file.
        event("free_completed", 500 * MIB, 20),
        event("segment_alloc", 100 * MIB, 20 * MIB),
        event("alloc", 100 * MIB, 3 * MIB),
        event("segment_alloc", 200 * MIB, 64 * MIB),
        event("segment_free", 200 * MIB, 64 * MIB),
        event("oom", 113 * MIB, 114 * MIB),
        event("segment_free", 300 * MIB, 2 * MIB),
        event("oom", 7, 1),
        event("segment_map", 400 * MIB, 2 * MIB),
        dict([("action", Text("oom")), ("size", Int(5)), ("stream", Int(0))]),
    ];
    let segments = [(100, 20), (400, 2)].map(|(address, bytes)| segment(0, address * MIB, bytes * MIB, vec![]));
    let recording = read(Pickler::pickle(4, &snapshot(segments.into(), vec![trace])));
    let device = &recording.devices[0];
    assert_eq!(events(device)[3..], [(Refused, 0, 114 << 20), (Refused, 0, 1), (Refused, 0, 5)]);
    assert_eq!(device.events[3].address, 0, "the free bytes are no address");
    let of = |index| (device.reserved_at(index), device.device_free(index), device.obtainable(index));
    assert_eq!(of(3), (Some(22 << 20), Some(113 << 20), Some(135 << 20)));
    assert_eq!(of(4), (Some(20 << 20), Some(7), Some((20 << 20) + 7)));
    assert_eq!((of(5), device.obtainable(2)), ((Some(22 << 20), None, None), None));
    // Without segments the allocator had none.
    let recording = read(Pickler::pickle(4, &snapshot(vec![], vec![vec![event("oom", 9, 10)]])));
    assert_eq!((recording.devices[0].reserved_at(0), recording.devices[0].obtainable(0)), (None, Some(9)));
}

#[test]
fn a_block_has_the_name_of_its_metadata_its_category_or_its_annotation() {
    let at = |time: i128, more: Vec<(&'static str, Data)>| {
        let all = [vec![("time_us", Int(time))], more].concat();
        changed(event("alloc", time * 512, 512), all)
    };
    let annotation = |time: i128, device: i128, stage, name| {
        dict([("name", Text(name)), ("stage", Text(stage)), ("device", Int(device)), ("time_us", Int(time))])
    };
    let trace = vec![
        at(10, vec![]),
        at(20, vec![]),
        at(25, vec![("category", Text("GRADIENT"))]),
        at(26, vec![("category", Text("GRADIENT")), ("user_metadata", Text("kv"))]),
        at(30, vec![("user_metadata", Text(""))]),
        at(40, vec![]),
        at(50, vec![]),
    ];
    // Threads interleave: "step" ends after "data", which began later. The end of "lost" alone means nothing.
    let annotations = vec![
        annotation(30, 0, "START", "forward"),
        annotation(15, 0, "START", "step"),
        annotation(35, 0, "END", "lost"),
        annotation(38, 0, "END", "forward"),
        annotation(39, 1, "START", "other device"),
        annotation(45, 0, "START", "data"),
        annotation(46, 0, "END", "step"),
        dict([("name", Text("no stage"))]),
    ];
    let data = changed(snapshot(vec![], vec![trace]), vec![("external_annotations", List(annotations))]);
    let recording = read(Pickler::pickle(4, &data));
    let names: Vec<Option<&str>> = recording.devices[0].events.iter().map(|event| recording.stacks.name(event.name)).collect();
    assert_eq!(names, [None, Some("step"), Some("GRADIENT"), Some("kv"), Some("forward"), Some("step"), Some("data")]);
    let nameless = changed(snapshot(vec![], vec![]), vec![("external_annotations", List(vec![dict([("stage", Text("START"))])]))]);
    assert_eq!(refuses(Pickler::pickle(4, &nameless)), "annotation 0: no `name`");
}

#[test]
fn annotations_nest_to_any_depth() {
    const DEPTH: i128 = 300;
    let annotation = |time: i128, stage, name| dict([("name", Text(name)), ("stage", Text(stage)), ("time_us", Int(time))]);
    let name = |at: i128| if at % 2 == 0 { "even" } else { "odd" };
    // "root", then 300 within each other; they end one by one, before "root" does.
    let mut annotations = vec![annotation(0, "START", "root")];
    annotations.extend((1..=DEPTH).map(|at| annotation(10 * at, "START", name(at))));
    annotations.extend((1..=DEPTH).map(|at| annotation(10 * (2 * DEPTH + 1 - at), "END", name(at))));
    annotations.push(annotation(10 * (2 * DEPTH + 1), "END", "root"));
    let at = |time: i128| changed(event("alloc", time * 512 + 512, 512), vec![("time_us", Int(time))]);
    let trace = (0..2 * DEPTH + 2).map(|step| at(10 * step + 5)).collect();
    let data = changed(snapshot(vec![], vec![trace]), vec![("external_annotations", List(annotations))]);
    let recording = read(Pickler::pickle(4, &data));
    let names: Vec<Option<&str>> = recording.devices[0].events.iter().map(|event| recording.stacks.name(event.name)).collect();
    let nested = |depth: i128| Some(if depth == 0 { "root" } else { name(depth) });
    let expected: Vec<Option<&str>> = (0..=DEPTH).chain((0..DEPTH).rev()).map(nested).chain([None]).collect();
    assert_eq!(names, expected);
}

#[test]
fn a_call_of_the_backward_pass_is_placed_at_its_step() {
    let frame = |name, file, line| dict([("name", Text(name)), ("filename", Text(file)), ("line", Int(line))]);
    let step = "torch::autograd::generated::MulBackward0::apply(std::vector<at::Tensor>&&)";
    let frames =
        List(vec![frame("malloc", "a.cpp", 12), frame(step, "/src/??", 0), frame("execute_native_thread_routine", "thread.cc", 82)]);
    let native = List(vec![frame("malloc", "a.cpp", 12), frame("start_thread", "/src/??", 0)]);
    let trace = [frames, native].map(|frames| changed(event("alloc", 512, 512), vec![("frames", frames)]));
    let recording = read(Pickler::pickle(4, &snapshot(vec![], vec![trace.into()])));
    let stacks: Vec<_> = recording.devices[0].events.iter().filter(|event| event.kind == Alloc).map(|event| event.stack).collect();
    assert_eq!(stacks.len(), 2);
    let texts: Vec<_> = stacks.iter().map(|&stack| recording.stacks.place(stack).expect("a place").to_string()).collect();
    assert_eq!(texts, ["MulBackward0::apply", "malloc in a.cpp:12"]);
    let text = |function| Frame { function, file: "a.cpp", line: 3 }.to_string();
    assert_eq!(text("at::(anonymous namespace)::f<(x)>(int)"), "at::(anonymous namespace)::f<(x)> in a.cpp:3");
    assert_eq!((text("é("), text("(")), ("é in a.cpp:3".into(), "( in a.cpp:3".into()));
}

#[test]
fn stacks_are_shared_and_the_place_is_the_program_s() {
    let frame = |name, file, line| dict([("name", Text(name)), ("filename", Text(file)), ("line", Int(line))]);
    let frames = |line| {
        List(vec![
            frame("malloc", "CUDACachingAllocator.cpp", 120),
            frame("unwind", "??", 0),
            frame("forward", "/usr/lib/site-packages/torch/nn/modules/linear.py", 125),
            frame("step", "train.py", line),
            frame("main", "train.py", 99),
        ])
    };
    let with = |address, line| {
        let Data::Dict(mut fields) = event("alloc", address, 512) else { panic!("a dictionary") };
        fields.push(("frames", frames(line)));
        Data::Dict(fields)
    };
    let data = snapshot(vec![], vec![vec![with(1, 7), with(2, 8), with(3, 7), event("free_completed", 1, 512), event("alloc", 4, 1)]]);
    let recording = read(Pickler::pickle(5, &data));
    let stacks: Vec<_> = recording.devices[0].events.iter().map(|event| event.stack).collect();
    assert!(stacks[0] == stacks[2] && stacks[0] != stacks[1] && stacks[3] == stacks[0], "{stacks:?}");
    let place = |stack| recording.stacks.place(stack).map(|frame| (frame.function, frame.file, frame.line));
    assert_eq!((place(stacks[0]), place(stacks[1])), (Some(("step", "train.py", 7)), Some(("step", "train.py", 8))));
    assert_eq!((place(stacks[4]), recording.stacks.frames(stacks[4]).count()), (None, 0));
}

/// With `stacks="all"`, frames of the interpreter and of C++ lie between those of Python.
#[test]
fn a_place_is_in_no_source_of_the_interpreter_or_the_standard_library() {
    let frame = |name, file, line| dict([("name", Text(name)), ("filename", Text(file)), ("line", Int(line))]);
    let libraries = [
        "/usr/local/src/conda/python-3.10.18/Objects/descrobject.c",
        "/usr/local/src/conda/python-3.11.5/Include/internal/pycore_ceval.h",
        "/build/python3.10-abc/build-static/../Objects/call.c",
        "../Python/bltinmodule.c",
        "Objects/call.c",
        "Modules/main.c",
        "/opt/conda/conda-bld/pytorch_1699449181081/work/aten/src/ATen/native/TensorFactories.cpp",
        "../sysdeps/nptl/libc_start_call_main.h",
        "/usr/include/c++/11/functional",
        "rmm/_lib/device_buffer.pyx",
        "/usr/lib/python3.10/contextlib.py",
        "/usr/lib64/python3.9/threading.py",
        "/root/.pyenv/versions/3.11.4/lib/python3.11/threading.py",
        "/usr/lib/python310.zip/threading.py",
        "C:\\Users\\u\\AppData\\Local\\Programs\\Python\\Python311\\Lib\\threading.py",
        "C:\\venv\\Lib\\site-packages\\torch\\nn\\modules\\module.py",
        "/usr/lib/python3/dist-packages/torch/nn/modules/module.py",
        "<frozen importlib._bootstrap>",
        "<frozen runpy>",
        "<eval_with_key>.12",
        "/tmp/torchinductor_u/ab/cabc.py",
        "/rustc/59807616e1fa2540724bfbac14d7976d7e4a3860/library/std/src/rt.rs",
        "/usr/local/cargo/registry/src/index.crates.io-1949cf8c6b5b557f/ringmem-0.1.0/src/pool/mod.rs",
    ];
    for file in libraries {
        let of = |own: &'static str| List(vec![frame("unwind", "??", 0), frame("call", file, 33), frame("run", own, 7)]);
        for own in
            ["/home/u/train.py", "lib/python/train.py", "/home/u/python3.11/train.py", "<string>", "<ipython-input-3-abc>", "src/main.rs"]
        {
            let trace = vec![changed(event("alloc", 512, 512), vec![("frames", of(own))])];
            let recording = read(Pickler::pickle(4, &snapshot(vec![], vec![trace])));
            let place = recording.stacks.place(recording.devices[0].events[0].stack).expect("a place");
            assert_eq!((place.file, place.line), (own, 7), "{file}");
        }
    }
    // Without a line of the program, one of Python tells more than one of C.
    let frames = List(vec![frame("call", "Objects/call.c", 3), frame("get", "/usr/lib/python3.10/queue.py", 9)]);
    let trace = vec![changed(event("alloc", 512, 512), vec![("frames", frames)])];
    let recording = read(Pickler::pickle(4, &snapshot(vec![], vec![trace])));
    let place = recording.stacks.place(recording.devices[0].events[0].stack).map(|frame| frame.to_string());
    assert_eq!(place.as_deref(), Some("get in /usr/lib/python3.10/queue.py:9"));
}

#[test]
fn parts_that_are_not_read_are_counted() {
    let host = || event("alloc", 4096, 512);
    let trace = vec![
        event("frobnicate", 1, 2),
        event("snapshot", 0, 0),
        event("free_requested", 1, 2),
        event("frobnicate", 1, 2),
        dict([("action", Text(""))]),
    ];
    let more =
        vec![("host_traces", List(vec![List(vec![host(), host(), host()]), List(vec![host()])])), ("host_segments", List(vec![dict([])]))];
    let recording = read(Pickler::pickle(4, &changed(snapshot(vec![], vec![trace]), more)));
    let mut left_out: Vec<(&str, u64)> = recording.left_out.iter().map(|part| (part.kind.as_str(), part.count)).collect();
    left_out.sort_unstable();
    assert_eq!(left_out, [("", 1), ("frobnicate", 2), ("host_segments", 1), ("host_traces", 4)]);
    assert!(recording.devices.is_empty());
    const KINDS: [&str; 20] = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p", "q", "r", "s", "t"];
    let trace = KINDS.iter().chain(&KINDS).map(|&kind| event(kind, 0, 0)).collect();
    let recording = read(Pickler::pickle(4, &snapshot(vec![], vec![trace])));
    let last = recording.left_out.last().expect("some");
    assert_eq!((recording.left_out.len(), last.kind.as_str(), last.count), (17, "other kinds", 8));
    // A list of itself.
    let bomb = [&b"\x80\x04}(\x8c\x08segments]\x8c\x0bhost_traces]\x94("[..], &b"h\0".repeat(1000), b"eu."].concat();
    assert!(read(bomb).left_out.iter().all(|part| part.count < 1000));
}

#[test]
fn lists_longer_than_a_batch_have_all_their_items() {
    let trace: Vec<Data> = (0..2500).map(|at| event("alloc", 1000 + at, at + 1)).collect();
    let recording = read(Pickler::pickle(4, &snapshot(vec![], vec![trace])));
    let sizes: Vec<u64> = recording.devices[0].events.iter().map(|event| event.size).collect();
    assert_eq!(sizes, (1..=2500).collect::<Vec<_>>());
}

#[test]
fn numbers_of_all_lengths_are_read() {
    let numbers: Vec<i128> = (0..63).map(|shift| 1 << shift).chain([255, 65_535, (1 << 31) - 1, (1 << 63) - 1]).collect();
    // Refused requests have any size.
    let trace = numbers.iter().map(|&number| event("oom", 0, number)).collect();
    let recording = read(Pickler::pickle(4, &snapshot(vec![], vec![trace])));
    let sizes: Vec<i128> = recording.devices[0].events.iter().map(|event| event.size.into()).collect();
    assert_eq!(sizes, numbers);
}

#[test]
fn nothing_is_imported_or_called() {
    let start = [0x80, 4];
    for (opcodes, name) in [
        (&b"cos\nsystem\n"[..], "GLOBAL"),
        (b"\x8c\x02os\x8c\x06system\x93", "STACK_GLOBAL"),
        (b"NNR", "REDUCE"),
        (b"NNb", "BUILD"),
        (b"(ios\nsystem\n", "INST"),
        (b"(No", "OBJ"),
        (b"NN\x81", "NEWOBJ"),
        (b"NNN\x92", "NEWOBJ_EX"),
        (b"\x82\x01", "EXT1"),
        (b"\x83\x01\0", "EXT2"),
        (b"\x84\x01\0\0\0", "EXT4"),
        (b"Pid\n", "PERSID"),
        (b"NQ", "BINPERSID"),
        (b"\x97", "NEXT_BUFFER"),
        (b"\x98", "READONLY_BUFFER"),
        (b"I1\n", "text protocols"),
        (b"\xff", "0xff is none of protocols"),
    ] {
        let offset = start.len() + opcodes.iter().position(|&byte| !b"N(\x8c\x02os\x06ystem".contains(&byte)).unwrap_or(0);
        let error = refuses([&start[..], opcodes].concat());
        assert!(error.contains(name), "{error}");
        if !matches!(name, "INST" | "OBJ") {
            assert!(error.starts_with(&format!("byte {offset}: ")), "{error}: {opcodes:?}");
        }
    }
}

#[test]
fn an_invalid_pickle_is_an_error_with_its_offset() {
    let valid = Pickler::pickle(4, &snapshot(vec![], vec![vec![event("alloc", 1, 2)]]));
    for length in 1..valid.len() {
        let error = refuses(&valid[..length]);
        assert!(error.starts_with("byte ") && error.contains("truncated"), "{length}: {error}");
    }
    for (bytes, fact) in [
        (&b"\x80\x01."[..], "byte 0: pickle protocol 1, expected 2 to 5"),
        (b"\x80\x06.", "byte 0: pickle protocol 6"),
        (b"\x80\x04.", "byte 2: nothing is on the stack: the pickle is damaged"),
        (b"\x80\x04e.", "byte 2: no mark is on the stack"),
        (b"\x80\x04(Ne.", "byte 4: no list or dictionary is below"),
        (b"\x80\x04}(Nu.", "byte 5: a key without a value"),
        (b"\x80\x04\x85.", "byte 2: nothing is on the stack"),
        (b"\x80\x04s.", "byte 2: no list or dictionary is below"),
        (b"\x80\x04h\x00.", "byte 2: memo index 0 of 0"),
        (b"\x80\x04Nr\xff\xff\xff\xff.", "byte 3: the values so far need more than three times"),
        (b"\x80\x04X\xff\xff\xff\xffabc.", "byte 7: 4294967295 bytes expected, 4 left"),
        (b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\xff.", "bytes expected, 1 left"),
        (b"\x80\x04\x8b\xff\xff\xff\x7f.", "2147483647 bytes expected"),
    ] {
        let error = refuses(bytes);
        assert!(error.contains(fact), "{error}");
    }
}

#[test]
fn values_that_need_much_more_memory_than_the_file_are_refused() {
    let many = 4_000_000;
    for opcode in [b"]".as_slice(), b"N", b"N\x94", b"(", b"](e", b"}"] {
        let bytes: Vec<u8> = [&[0x80, 4][..], &opcode.repeat(many), b"."].concat();
        let error = refuses(bytes);
        assert!(error.contains("more than three times the memory of the file"), "{error}: {opcode:?}");
    }
    // Each list has the one before twice: 2^60 items if they were copied. It contains itself, too.
    let mut bomb = vec![0x80, 4, b']', b'q', 0];
    for _ in 0..60 {
        bomb.extend(b"](h\x00h\x00eq\x00");
    }
    bomb.extend(b"h\x00ah\x00.");
    assert!(refuses(bomb).contains("segment 0: a list, expected a dictionary"));
}

#[test]
fn other_data_is_no_snapshot() {
    for (data, fact) in [
        (Int(7), "it has no list `segments`"),
        (dict([("segments", Int(7))]), "it has no list `segments`"),
        (dict([("a", List(vec![]))]), "it has no list `segments`"),
        (snapshot(vec![Data::None], vec![]), "segment 0: None, expected a dictionary"),
        (snapshot(vec![segment(0, 0, 0, vec![Int(7)])], vec![]), "segment 0: block 0: 7, expected a dictionary"),
        (snapshot(vec![], vec![vec![Int(7)]]), "device 0, event 0: 7, expected a dictionary"),
        (snapshot(vec![], vec![vec![dict([("size", Int(1))])]]), "device 0, event 0: no `action`"),
        (snapshot(vec![], vec![vec![event("alloc", 1, -5)]]), "device 0, event 0: `size` is -5, expected an unsigned number"),
        (snapshot(vec![], vec![vec![event("alloc", 1, 1 << 70)]]), "`size` is an integer beyond 9223372036854775807"),
        (
            snapshot(vec![], vec![vec![event("alloc", 1, 1 << 60)]]),
            "device 0, event 0: a block of 1152921504606846976 bytes; no device has",
        ),
        (
            snapshot(vec![], vec![(1..4).map(|address| event("alloc", address, 1 << 46)).collect()]),
            "device 0, event 2: 211106232532992 bytes are live with this block, those from before the recording included; no device has more than 2^47 (128 TiB)",
        ),
        (
            snapshot(vec![segment(0, 4096, 1 << 40, vec![block(Some(4096), 1 << 50, None, "active_allocated")])], vec![]),
            "segment 0: block 0: a block of 1125899906842624 bytes",
        ),
        (snapshot(vec![segment(0, 4096, 1 << 60, vec![])], vec![]), "segment 0: a block of 1152921504606846976 bytes"),
        (
            snapshot((1..4).map(|number| segment(0, number << 47, 1 << 46, vec![])).collect(), vec![]),
            "segment 2: more than 2^47 bytes (128 TiB) together with the segments before it",
        ),
        (
            snapshot(vec![], vec![(1..4).map(|number| event("segment_alloc", number << 47, 1 << 46)).collect()]),
            "device 0, event 2: segments of more than 2^47 bytes",
        ),
        (snapshot(vec![segment(2000, 0, 0, vec![])], vec![]), "segment 0: `device` is 2000, expected at most 1023"),
        (snapshot(vec![], vec![vec![]; 1025]), "more than 1024 devices"),
        (snapshot(vec![], vec![vec![dict([("action", Text("alloc")), ("addr", Int(1))])]]), "device 0, event 0: no `size`"),
        (snapshot(vec![], vec![vec![with("stream", Text("s"))]]), "device 0, event 0: `stream` is \"s\", expected a number"),
        (snapshot(vec![], vec![vec![with("frames", Float(0.5))]]), "device 0, event 0: `frames` is 0.5, expected a list"),
        (snapshot(vec![], vec![vec![with("frames", List(vec![Int(1)]))]]), "device 0, event 0: a frame is 1, expected a dictionary"),
        (snapshot(vec![dict([])], vec![]), "segment 0: no `total_size`"),
        (dict([("segments", List(vec![])), ("device_traces", Int(1))]), "`device_traces` is 1, expected a list"),
        (dict([("segments", List(vec![])), ("device_traces", List(vec![Int(1)]))]), "device 0 of `device_traces` is 1, expected a list"),
    ] {
        let error = refuses(Pickler::pickle(4, &data));
        assert!(error.contains(fact), "{error}");
    }
    // One dictionary, used as 500 000 events.
    let shared: Vec<u8> = [
        &b"\x80\x04}(\x8c\x08segments]\x8c\x0ddevice_traces](](}(\x8c\x06action\x8c\x05alloc\x8c\x04sizeK\x01u\x94"[..],
        &b"h\x00".repeat(500_000),
        b"eeu.",
    ]
    .concat();
    assert!(refuses(shared).contains("more events and blocks than a file of this length can have"));
}

#[test]
fn an_empty_recording_has_no_device() {
    let recording = read(Pickler::pickle(4, &snapshot(vec![], vec![vec![], vec![]])));
    assert!(recording.devices.is_empty());
    assert!(read(Pickler::pickle(4, &List(vec![]))).devices.is_empty());
}

fn with(key: &'static str, value: Data) -> Data {
    changed(event("alloc", 1, 512), vec![(key, value)])
}

#[test]
fn a_block_that_was_freed_before_is_not_live_before() {
    let trace = vec![
        event("alloc", 1, 100),
        event("free_completed", 1, 100),
        event("free_completed", 1, 100),
        event("free_completed", 2, 100),
        event("free_completed", 2, 100),
        event("alloc", 3, 0),
        event("free_completed", 3, 0),
    ];
    let recording = read(Pickler::pickle(4, &snapshot(vec![], vec![trace])));
    let device = &recording.devices[0];
    assert_eq!(events(device), [(Alloc, 0, 100), (Alloc, 1, 100), (Free, 1, 100), (Free, 0, 100)]);
    assert_eq!((device.before, device.unknown_frees), (1, 2));
}

/// A key and value each, of which no reader asks for one.
fn wide(keys: u32) -> Vec<u8> {
    let pair = |key: u32| [&[b'X', 4, 0, 0, 0][..], format!("{key:04}").as_bytes(), b"N"].concat();
    (0..keys).flat_map(pair).collect()
}

#[test]
fn dictionaries_with_many_keys_are_not_searched_again_and_again() {
    let events = [&b"}(\x8c\x06action\x8c\x05alloc"[..], &wide(5000), b"u\x94", &b"h\x00".repeat(2000)].concat();
    let pickle = [&b"\x80\x04}(\x8c\x08segments]\x8c\x0ddevice_traces](]("[..], &events, b"eeu."].concat();
    assert!(refuses(pickle).contains("device 0, event 0: a dictionary of too many keys"));
    let frames = [&b"}(\x8c\x04name\x8c\x01f"[..], &wide(5000), b"u\x94", &b"h\x00".repeat(20_000)].concat();
    let event = [&b"}(\x8c\x06action\x8c\x05alloc\x8c\x04sizeK\x01\x8c\x06frames]("[..], &frames, b"eu"].concat();
    let pickle = [&b"\x80\x04}(\x8c\x08segments]\x8c\x0ddevice_traces](]("[..], &event, b"eeu."].concat();
    assert!(refuses(pickle).contains("device 0, event 0: a frame of too many keys"));
}
