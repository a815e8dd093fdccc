//! Every variant of `Error` is returned by some call, with its facts: here or in the tests named here.

use std::alloc::Layout;
use std::collections::BTreeSet;
use std::error::Error as _;

use crate::rig::busy_stream::Held;
use crate::rig::leak_checked::Clean;
use ringmem::backend::host::{Fault, Faults, HostBackend, Verb};
use ringmem::backend::{Backend, Block, MemoryLocation, Options, Request, Uses};
use ringmem::channel::{ReceiveError, SendError};
use ringmem::image::{Entry, KernelHost};
use ringmem::memory::{Aligned, Buffer, Device, Failing, GpuBuffer, Host, Limited, Pinned, PinnedBuffer, Trace, When};
use ringmem::pool::Pool;
use ringmem::stream::{Module, Stream};
use ringmem::{Abi, Error, Image, LAYOUTS};

const ELSEWHERE: &[(&str, &str)] = &[
    ("Granularity", include_str!("../conformance/address_ranges.rs")),
    ("Lengths", include_str!("grid.rs")),
    ("System", include_str!("shared.rs")),
    ("Attach", include_str!("shared.rs")),
    ("Kernel", include_str!("channel/refusals.rs")),
    ("Operation", include_str!("mirror/reported.rs")),
    ("Tainted", include_str!("stream/tainted.rs")),
    ("Corrupted", include_str!("peers/integrity.rs")),
    ("AlreadyExists", include_str!("manager/limit.rs")),
    ("Staging", include_str!("streaming/shapes.rs")),
    ("Mirror", include_str!("mirror/table.rs")),
    ("Id", include_str!("manager/numbered/mod.rs")),
    ("Config", include_str!("pools/config.rs")),
    ("Tensor", include_str!("dlpack.rs")),
    // On the driver double.
    ("NoDriver", include_str!("../cuda/exits.rs")),
    ("Driver", include_str!("../cuda/exits.rs")),
    ("Residency", include_str!("../cuda/resident.rs")),
];

const MIRROR_FAULTS: &[(&str, &str)] = &[
    ("NotAllocated", include_str!("mirror/table.rs")),
    ("NoHostCopy", include_str!("mirror/table.rs")),
    ("NoDeviceCopy", include_str!("mirror/table.rs")),
    ("DirtyConflict", include_str!("mirror/table.rs")),
];

const OPERATION_FAULTS: &[(&str, &str)] = &[
    ("Unpublished", include_str!("host_backend/published_words.rs")),
    ("AlreadyReported", include_str!("mirror/reported.rs")),
    ("NotReached", include_str!("stream/events.rs")),
];

const CONFIGS: &[(&str, &str)] = &[
    ("Bytes", include_str!("pools/config.rs")),
    ("Interval", include_str!("../../src/config.rs")),
    ("Rate", include_str!("host_backend/link.rs")),
    ("Location", include_str!("../../src/config.rs")),
    ("Growth", include_str!("manager/names.rs")),
    ("Element", include_str!("manager/names.rs")),
    ("Setting", include_str!("../../src/config.rs")),
    ("Ring", include_str!("shared.rs")),
];

const CAUSES: &[(&str, &str)] = &[
    ("Read", include_str!("streaming/sources.rs")),
    ("Truncated", include_str!("streaming/sources.rs")),
    ("Changed", include_str!("streaming/sources.rs")),
    ("Endless", include_str!("streaming/sources.rs")),
    ("Ragged", include_str!("streaming/shapes.rs")),
    ("Checksum", include_str!("streaming/faults.rs")),
    ("Write", include_str!("streaming/sinks.rs")),
    ("Order", include_str!("streaming/causes.rs")),
    ("Refused", include_str!("streaming/persistent.rs")),
    ("Ring", include_str!("streaming/causes.rs")),
    ("Stalled", include_str!("streaming/causes.rs")),
    ("Cancelled", include_str!("streaming/faults.rs")),
    ("Device", include_str!("streaming/faults.rs")),
    ("Stage", include_str!("streaming/causes.rs")),
];

const IDS: &[(&str, &str)] = &[
    ("Unknown", include_str!("manager/numbered/messages.rs")),
    ("Stale", include_str!("manager/numbered/ids.rs")),
    ("Released", include_str!("manager/numbered/leases.rs")),
    ("Foreign", include_str!("manager/numbered/ids.rs")),
    ("Elements", include_str!("manager/numbered/messages.rs")),
    ("Mirror", include_str!("manager/numbered/mirrors.rs")),
    ("Full", include_str!("../../src/manager/numbers/tests.rs")),
    ("Reference", include_str!("manager/numbered/messages.rs")),
];

const TENSORS: &[(&str, &str)] = &[
    ("Version", include_str!("dlpack.rs")),
    ("Elements", include_str!("dlpack.rs")),
    ("Device", include_str!("dlpack.rs")),
    ("Dimensions", include_str!("dlpack.rs")),
    ("Extent", include_str!("dlpack.rs")),
    ("TooLarge", include_str!("dlpack.rs")),
    ("Strides", include_str!("dlpack.rs")),
    ("Null", include_str!("dlpack.rs")),
    ("Address", include_str!("dlpack.rs")),
    ("Len", include_str!("dlpack.rs")),
    ("ReadOnly", include_str!("dlpack.rs")),
];

const KERNELS: &[Entry] = &[Entry { name: "panic", arguments: 0, run: panics }];

const IMAGE: Image = Image { ptx: b"", host: KERNELS, abi: Abi::of(LAYOUTS) };

fn panics(_: &dyn KernelHost, _: &[u64]) {
    panic!("a kernel of a test");
}

fn backend() -> Clean {
    Clean::build(HostBackend::builder().device_memory(1 << 20))
}

fn bytes(backend: &Clean, len: usize) -> GpuBuffer<u8> {
    GpuBuffer::new(Device::new(backend, 0), len).expect("room")
}

fn variant(error: &Error) -> String {
    macro_rules! names {
        ($($name:ident)+) => {
            match error {
                $(Error::$name { .. } => stringify!($name),)+
                _ => "a variant of another file",
            }
        };
    }
    let here = names! {
        Size Align OutOfMemory Limit Range Overlap Cast Busy
        Closed NoDevice Unsupported Foreign OtherBackend Injected Map Abi
        NotFound Arguments KernelPanicked
    };
    here.to_owned()
}

fn variants(source: &str, name: &str) -> BTreeSet<String> {
    let body = source.split_once(&format!("pub enum {name} {{\n")).expect("it is there").1.split_once("\n}").expect("it ends").0;
    let first = |line: &str| Some(line.strip_prefix("    ")?).filter(|line| line.starts_with(char::is_uppercase)).map(str::to_owned);
    body.lines().filter_map(first).map(|line| line.chars().take_while(|letter| letter.is_alphanumeric()).collect()).collect()
}

/// Whether a line matches the variant as a pattern, without constructing it.
fn is_matched(file: &str, variant: &str) -> bool {
    let is_whole = |rest: &str| !rest.starts_with(|letter: char| letter.is_alphanumeric() || letter == '_');
    let is_pattern =
        |line: &str| ["matches!(", "assert_eq!(", "=>", "let "].iter().any(|word| line.contains(word)) && !line.contains("print");
    let mut code = file.lines().filter(|line| !line.trim_start().starts_with("//"));
    code.any(|line| is_pattern(line) && line.split(variant).skip(1).any(is_whole))
}

fn elsewhere(name: &str, files: &[(&str, &str)]) -> BTreeSet<String> {
    let shown = |&(variant, file): &(&str, &str)| {
        assert!(is_matched(file, &format!("{name}::{variant}")), "{name}::{variant} is not where it is said to be");
        variant.to_owned()
    };
    files.iter().map(shown).collect()
}

fn answers() -> Vec<(Error, &'static [&'static str])> {
    let (ours, theirs) = (backend(), backend());
    let (stream, strange) = (Stream::new(&ours, 0).expect("a stream"), Stream::new(&theirs, 0).expect("a stream"));
    let device = Device::new(&ours, 0);
    let module = Module::load(&ours, &IMAGE, &Abi::of(LAYOUTS)).expect("our ABI");
    let (mut buffer, seven) = (bytes(&ours, 40), 7);
    let mut answers: Vec<(Error, &'static [&'static str])> = vec![
        (Buffer::<u64, _>::new(device.clone(), usize::MAX).expect_err("no address"), &["18446744073709551615"]),
        (Aligned::new(device.clone(), 48).expect_err("no power of two"), &["48"]),
        (
            Buffer::<u8, _>::new(device.clone(), 2 << 20).expect_err("too much"),
            &["out of memory: requested 2 MiB", "free 1048536 bytes", "largest free block at that alignment 1048536 bytes"],
        ),
        (Buffer::<u8, _>::new(Limited::new(device.clone(), 100), 101).expect_err("too much"), &["101 bytes", "0 bytes of 100 bytes"]),
        (buffer.slice(12..44).expect_err("too long"), &["32", "12", "40"]),
        (buffer.slice(seven..3).expect_err("inverted"), &["7", "3"]),
        (buffer.copy_from(&[0; 41]).expect_err("one too many"), &["41", "40"]),
        (buffer.copy_within(..8, 4).expect_err("both have four"), &["8", "0", "4"]),
        (bytes(&ours, 3).cast::<u16>().expect_err("one left over").into_error(), &["3", "2"]),
        (Stream::new(&ours, 9).expect_err("no such device"), &["9", "1"]),
        (stream.prefetch(bytes(&ours, 8), None).expect_err("it does not move").into_error(), &["prefetch"]),
        (Buffer::<u8, _>::new(Failing::new(device).allocs(When::Call(1)), 8).expect_err("planned"), &["alloc", "1"]),
        (buffer.used_by(&strange).expect_err("another's"), &["backend"]),
        (
            Trace::parse("alloc 0 8 1 on 0\n").expect("as it is written").replay(&Host::new(&ours, 0), &[]).expect_err("no stream"),
            &["1", "0"],
        ),
        (Module::load(&ours, &IMAGE, &Abi::of(&LAYOUTS[1..])).expect_err("another ABI"), &[]),
    ];
    // SAFETY: rejected, or without an argument.
    let launch = |name, arguments: &[u64]| unsafe { stream.launch(&module, name, arguments) };
    answers.extend([
        (launch("pan", &[]).expect_err("no such kernel"), &["pan", "panic"] as &[_]),
        (launch("panic", &[1]).expect_err("one too many"), &["panic", "0", "1"]),
        (launch("panic", &[]).expect("queued").wait().expect_err("it panics").into_error(), &["panic"]),
    ]);
    let mut pinned = PinnedBuffer::<u8>::new(Pinned::new(&ours, 0), 8).expect("room");
    let held = Held::new(&ours, &stream);
    pinned.used_by(&stream).expect("its own backend");
    answers.push((pinned.as_slice().expect_err("in use"), &["busy: a queued operation uses the buffer"]));
    held.let_go();
    answers.extend(of_blocks(&ours, &theirs));
    stream.backend().close_stream(stream.id());
    answers.push((stream.backend().record_position(stream.id()).expect_err("closed"), &[]));
    answers
}

fn of_blocks(ours: &Clean, theirs: &Clean) -> Vec<(Error, &'static [&'static str])> {
    let layout = Layout::from_size_align(64, 8).expect("a layout");
    let request = Request { location: MemoryLocation::Device, device: 0, layout, options: Options::empty() };
    let block = ours.allocate(&request, None).expect("room");
    let shorter = Block { layout: Layout::from_size_align(63, 8).expect("a layout"), ready: None, ..block };
    // SAFETY: two are rejected; the block is unused.
    let [foreign, wrong, freed] =
        [(theirs, &block), (ours, &shorter), (ours, &block)].map(|(of, block)| unsafe { of.free(block, &Uses::NONE) });
    freed.expect("it is ours");
    let short = Clean::build(HostBackend::builder().pinned_budget(10).faults(Faults::new().on(Verb::Allocate, Fault::nth(2))));
    let over = PinnedBuffer::<u8>::new(Pinned::new(&short, 0), 11).expect_err("over the budget");
    let map = PinnedBuffer::<u8>::new(Pinned::new(&short, 0), 12).expect_err("the system has not so much");
    assert!(map.source().is_some(), "{map:?}");
    vec![
        (foreign.expect_err("not theirs"), &["free"]),
        (wrong.expect_err("another layout"), &["64", "63"]),
        (over, &["11 bytes", "0 bytes of 10 bytes"]),
        (map, &["12"]),
    ]
}

#[test]
fn every_error_variant_is_tested_and_displays_its_facts() {
    let elsewhere = elsewhere("Error", ELSEWHERE);
    let mut shown = elsewhere.clone();
    for (error, facts) in answers() {
        let says = error.to_string();
        assert!(!says.is_empty() && facts.iter().all(|fact| says.contains(fact)), "{error:?} says `{says}`, and not {facts:?}");
        assert!(!elsewhere.contains(&variant(&error)), "{error:?}: shown here and in another file");
        shown.insert(variant(&error));
    }
    assert_eq!(shown, variants(include_str!("../../src/error.rs"), "Error"));
}

#[derive(Debug)]
struct Foreign {
    says: &'static str,
    is_endless: bool,
}

impl std::fmt::Display for Foreign {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.says)
    }
}

impl std::error::Error for Foreign {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.is_endless.then_some(self)
    }
}

#[test]
fn debug_is_the_text_with_each_cause_once() {
    for (error, _) in answers() {
        let (shown, debug) = (error.to_string(), format!("{error:?}"));
        let cause = error.source().map(|cause| cause.to_string()).filter(|cause| !shown.ends_with(cause));
        assert_eq!(debug, cause.map_or(shown.clone(), |cause| format!("{shown}: {cause}")));
    }
    let map = |cause: Foreign| format!("{:?}", Error::Map { bytes: 1, source: std::io::Error::other(cause) });
    assert_eq!(map(Foreign { says: "map", is_endless: false }), "cannot map 1 bytes: map");
    assert!(map(Foreign { says: "again", is_endless: true }).starts_with("cannot map 1 bytes: again"));
    let failed = SendError::Flush { error: Error::Injected { call: "copy", number: 2 }, message: Some(Box::new(7)) };
    assert_eq!(format!("{failed:?}"), format!("{failed}: {:?}", Error::Injected { call: "copy", number: 2 }));
    assert_eq!(format!("{:?}", ReceiveError::Empty), "no answer has arrived");
}

#[test]
fn every_variant_of_the_detail_enums_is_matched_in_a_test() {
    assert_eq!(elsewhere("Cause", CAUSES), variants(include_str!("../../src/streaming/error.rs"), "Cause"));
    let errors = include_str!("../../src/error.rs");
    assert_eq!(elsewhere("MirrorFault", MIRROR_FAULTS), variants(errors, "MirrorFault"));
    assert_eq!(elsewhere("OperationFault", OPERATION_FAULTS), variants(errors, "OperationFault"));
    assert_eq!(elsewhere("ConfigError", CONFIGS), variants(include_str!("../../src/error/config.rs"), "ConfigError"));
    assert_eq!(elsewhere("IdError", IDS), variants(include_str!("../../src/error/id.rs"), "IdError"));
    assert_eq!(elsewhere("TensorError", TENSORS), variants(include_str!("../../src/error/tensor.rs"), "TensorError"));
}

#[test]
fn a_variant_in_a_comment_or_constructor_is_not_a_match() {
    for (line, expected) in [
        ("    assert!(matches!(got, Err(Error::Id(_))));", true),
        ("        Err(Error::Id(error)) => error,", true),
        ("    assert_eq!(got, Error::Id { number: 1 });", true),
        ("    let Error::Id { .. } = error else { panic!() };", true),
        ("    // as matches!(got, Error::Id)", false),
        ("    let refused = matches!(got, Error::Identity { .. });", false),
        ("        Err(Error::Id(id)) => println!(\"{id}\"),", false),
        ("    return Err(Error::Id(error));", false),
    ] {
        assert_eq!(is_matched(line, "Error::Id"), expected, "{line}");
    }
}

#[test]
fn errors_of_a_channel_and_of_telemetry_become_the_library_s() {
    let corrupt = ringmem::attach::Corrupt { head: 1, tail: 9, capacity: 4 };
    let inner = || Error::NoDevice { asked: 1, devices: 1 };
    let errors: [Error; 8] = [
        SendError::Full(7_u32).into(),
        SendError::Corrupt(7_u32, corrupt).into(),
        SendError::Flush { error: inner(), message: Some(7_u32) }.into(),
        SendError::Kernel { error: inner(), message: 7_u32 }.into(),
        ReceiveError::Empty.into(),
        ReceiveError::Corrupt(corrupt).into(),
        ReceiveError::Flush(inner()).into(),
        ringmem::telemetry::Busy.into(),
    ];
    let (full, is_corrupt, device) = ("busy: the input ring is full", "ring is corrupt: head 1 and tail 9", "no device 1");
    let texts = [full, is_corrupt, device, device, "busy: no answer has arrived", is_corrupt, device, "busy: telemetry is being written"];
    for (error, text) in errors.iter().zip(texts) {
        assert!(error.to_string().starts_with(text), "{error}");
        assert!(!error.is_timeout(), "{error}");
    }
}

#[test]
fn values_without_debug_do_not_hide_the_facts_of_their_holders() {
    let backend = Clean::build(HostBackend::builder());
    let mut buffer = GpuBuffer::<u16>::zeroed(Device::new(&backend, 0), 9).unwrap();
    let text = format!("{:?} {:?}", buffer.as_view().slice(2..7).unwrap(), Pool::builder(Device::new(&backend, 0)).limit(77));
    assert!(text.contains("len: 5") && text.contains("u16") && text.contains("limit: 77"), "{text}");
    let text = format!("{:?}", buffer.as_view_mut());
    assert!(text.starts_with("SliceMut") && text.contains("len: 9"), "{text}");
}
