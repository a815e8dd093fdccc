use proptest::prelude::*;
use ringmem::Error;
use ringmem::backend::Uses;
use ringmem::memory::{Arena, Buffer, Device, Event, Failing, Limited, Logged, Outcome, Statistics, Trace, TraceError, When};
use ringmem::stream::Stream;

use crate::adaptors::facts::{backend, bytes};
use crate::adaptors::hooked::{Hooked, set};
use crate::rig::busy_stream::Held;

fn letters(outcomes: &[Outcome]) -> String {
    let letter = |outcome: &Outcome| match outcome {
        Outcome::Allocated => 'A',
        Outcome::Refused(_) => 'R',
        Outcome::Freed => 'F',
        Outcome::FreeFailed(_) => 'E',
        Outcome::NotLive => 'N',
    };
    outcomes.iter().map(letter).collect()
}

#[test]
fn a_trace_records_allocations_errors_frees_and_streams() {
    let backend = backend();
    let [first, second] = [(); 2].map(|()| Stream::new(&backend, 0).expect("a stream"));
    let memory = Logged::new(Limited::new(Device::new(&backend, 0), 1000));
    let small = Buffer::<u16, _>::new(memory.clone(), 100).expect("room");
    let held = Held::new(&backend, &second);
    drop(Buffer::<u8, _>::new_on(memory.clone(), 400, &first).expect("room"));
    assert!(Buffer::<u32, _>::new_on(memory.clone(), 1000, &second).is_err());
    assert!(Buffer::<u8, _>::new(memory.clone(), 1001).is_err());
    let mut small = second.fill(small, .., 1).expect("queued").detach();
    small.used_by(&first).expect("listed");
    drop(small);
    held.let_go();
    let text = "alloc 0 200 2\nalloc 1 400 1 on 0\nfree 1\nrefused 4000 4 on 1\nrefused 1001 1\nfree 0 after 1 0\n";
    assert_eq!(memory.trace().to_string(), text);
    assert_eq!((memory.trace().streams(), Trace::parse(text)), (2, Ok(memory.take())));
    assert_eq!(memory.take(), Trace::default());
}

#[test]
fn a_trace_replays_on_another_memory() {
    let backend = backend();
    let streams = [(); 2].map(|()| Stream::new(&backend, 0).expect("a stream"));
    let text = "alloc 0 200 2\nalloc 1 400 1 on 0\nfree 1\nrefused 4000 4 on 1\nalloc 7 600 1\nfree 0 after 1 0\n";
    let trace = Trace::parse(text).expect("as it is written");
    let memory = Logged::new(Statistics::new(Limited::new(Device::new(&backend, 0), 1000)));
    assert_eq!(letters(&trace.replay(&memory, &streams).expect("enough streams")), "AAFRAF");
    assert_eq!(memory.take().to_string(), text.replace("alloc 7", "alloc 2") + "free 2\n");
    assert_eq!((memory.inner().scope().bytes.peak, memory.inner().scope().bytes.live), (800, 0));
    let less = Limited::new(Device::new(&backend, 0), 500);
    assert_eq!(letters(&trace.replay(&less, &streams).expect("enough streams")), "ARNRRF");
    let more = Arena::new(Device::new(&backend, 0), 1 << 14, 256).expect("room");
    assert_eq!(letters(&trace.replay(&more, &streams).expect("enough streams")), "AAFAAF");
    assert_eq!(more.free_bytes(), 1 << 14);
    let failing = Failing::new(Device::new(&backend, 0)).frees(When::Call(2));
    assert_eq!(letters(&trace.replay(&failing, &streams).expect("enough streams")), "AAFEAF");
    drop(more);
    assert_eq!(backend.counters().device_live.bytes, 0);
}

#[test]
fn a_replayed_free_waits_for_its_streams() {
    let backend = backend();
    let stream = Stream::new(&backend, 0).expect("a stream");
    let trace = Trace::parse("alloc 0 100 1\nfree 0 after 0\n").expect("as it is written");
    let held = Held::new(&backend, &stream);
    assert_eq!(letters(&trace.replay(&Device::new(&backend, 0), std::slice::from_ref(&stream)).expect("a stream")), "AF");
    assert_eq!(backend.counters().device_live.bytes, 100);
    held.let_go();
    drop(stream);
    assert_eq!(backend.counters().device_live.bytes, 0);
}

#[test]
fn replay_needs_enough_streams_of_one_backend() {
    let (ours, others) = (backend(), backend());
    let trace = Trace::parse("alloc 0 100 1 on 0\nfree 0 after 0 2\n").expect("as it is written");
    let stream = Stream::new(&ours, 0).expect("a stream");
    let memory = Device::new(&ours, 0);
    let outcome = trace.replay(&memory, &[stream.clone(), stream.clone()]);
    assert!(matches!(outcome, Err(Error::Size { what: "number of streams", asked: 2, least: 3, .. })), "{outcome:?}");
    let strange = Stream::new(&others, 0).expect("a stream");
    assert!(matches!(trace.replay(&memory, &[stream.clone(), stream, strange]), Err(Error::OtherBackend { .. })));
    assert_eq!(ours.counters().device_allocations.count, 0);
}

#[test]
fn replay_rejects_impossible_sizes_and_alignments() {
    let backend = backend();
    let text = "alloc 0 0 1\nalloc 1 1 0\nalloc 2 1 3\nalloc 3 18446744073709551615 1\nalloc 4 9223372036854775807 4096\nfree 3\n";
    let outcomes = Trace::parse(text).expect("as it is written").replay(&Device::new(&backend, 0), &[]).expect("no streams");
    assert_eq!(letters(&outcomes), "RRRRRN");
    assert!(matches!(
        outcomes[..3],
        [
            Outcome::Refused(Error::Size { asked: 0, .. }),
            Outcome::Refused(Error::Align { asked: 0, .. }),
            Outcome::Refused(Error::Align { asked: 3, .. })
        ]
    ));
    for line in
        ["alloc 0 9223372036854775807 4096\n", "alloc 0 4096 9223372036854775808\n", "alloc 0 4611686018427387905 4611686018427387904\n"]
    {
        let outcomes = Trace::parse(line).expect("as it is written").replay(&Device::new(&backend, 0), &[]).expect("no streams");
        match &outcomes[0] {
            Outcome::Refused(Error::Size { asked, most, .. } | Error::Align { asked, most }) => assert!(asked > most, "{line}"),
            other => panic!("{line}: {other:?}"),
        }
    }
}

#[test]
fn an_invalid_line_is_an_error_with_its_number() {
    let wrong = [
        "",
        "allocate 0 1 1",
        "alloc",
        "alloc 0",
        "alloc 0 1",
        "alloc -1 1 1",
        "alloc 0 1 1 1",
        "alloc 0 1 1 on",
        "alloc 0 1 1 on x",
        "alloc 0 1 1 on 4294967296",
        "alloc 0 1 1 on 0 0",
        "alloc 0 18446744073709551616 1",
        "refused 1",
        "refused 1 1 after 0",
        "free",
        "free x",
        "free 0 0",
        "free 0 on 0",
        "free 0 after",
        "free 0 after 0 x",
        "free 0 after 0 1 2 3 4",
    ];
    for line in wrong {
        let outcome = Trace::parse(&format!("free 0 after 0 1 2 3\n{line}\n"));
        assert!(matches!(outcome, Err(TraceError::Line { line: 2, .. })), "`{line}`: {outcome:?}");
    }
    let last = format!("alloc {0} 1 1\nalloc {0} 1 1", u64::MAX);
    for (twice, number) in [("alloc 3 1 1\nalloc 3 1 1", 3), ("alloc 3 1 1\nfree 3\nalloc 2 1 1", 2), (&last, u64::MAX)] {
        assert!(matches!(Trace::parse(twice), Err(TraceError::Number { block, .. }) if block == number), "{twice}");
    }
    assert_eq!(Trace::parse(""), Ok(Trace::default()));
    let events = vec![Event::Alloc { block: 0, size: 1, align: 1, on: None }, Event::Free { block: 0, after: [0, 1, 2, 3, 4].into() }];
    assert!(matches!(Trace::new(events), Err(TraceError::Line { line: 2, .. })), "a free after more streams than a block lists");
}

#[test]
fn a_truncated_trace_is_an_error() {
    let text = "alloc 0 4096 256\nalloc 1 4096 256 on 2\nfree 0 after 2\n";
    assert!(Trace::parse(text).is_ok());
    for end in 0..text.len() {
        let (cut, outcome) = (&text[..end], Trace::parse(&text[..end]));
        match &outcome {
            Ok(trace) => assert!(cut.is_empty() || cut.ends_with('\n'), "`{cut}` is {trace}"),
            Err(TraceError::Cut { line } | TraceError::Line { line, .. }) => assert_eq!(*line, cut.lines().count(), "`{cut}`"),
            Err(_) => panic!("`{cut}`: {outcome:?}"),
        }
    }
    assert_eq!(Trace::parse("alloc 0 4096 2"), Err(TraceError::Cut { line: 1 }));
}

fn event() -> impl Strategy<Value = (u8, u64, u64, Option<u32>, Vec<u32>)> {
    (0_u8..3, any::<u64>(), any::<u64>(), any::<Option<u32>>(), prop::collection::vec(any::<u32>(), 0..=Uses::MOST))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_written_trace_parses_to_equal_events(events in prop::collection::vec(event(), 0..20)) {
        let events = (0..).zip(events).map(|(number, (kind, size, align, on, after))| match kind {
            0 => Event::Alloc { block: number, size, align, on },
            1 => Event::Refused { size, align, on },
            _ => Event::Free { block: size, after: after.into() },
        });
        let events: Vec<Event> = events.collect();
        let text: String = events.iter().map(|event| format!("{event}\n")).collect();
        let trace = Trace::parse(&text).expect("as it was written");
        prop_assert_eq!(trace.events(), &events[..]);
        prop_assert_eq!(trace.to_string(), text);
    }

    #[test]
    fn parsing_arbitrary_text_does_not_panic(text in "(alloc|free|refused|on|after|[0-9]{1,21}| |\n|x){0,40}") {
        if let Ok(trace) = Trace::parse(&text) {
            prop_assert_eq!(Trace::parse(&trace.to_string()), Ok(trace));
        }
    }
}

#[test]
fn an_address_reused_during_a_free_is_logged_after_it() {
    let backend = backend();
    let below = Hooked::new(&backend);
    let memory = Logged::new(below.clone());
    let again = memory.clone();
    let first = bytes(&memory, 100).expect("room");
    set(&below.after_free, move || drop(bytes(&again, 100).expect("room")));
    drop(first);
    assert_eq!(memory.take().to_string(), "alloc 0 100 1\nfree 0\nalloc 1 100 1\nfree 1\n");
}
