use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use ringmem::error::OperationFault;

use ringmem::Error;
use ringmem::backend::host::{Call, Fault, Faults, Phase, Verb};
use ringmem::backend::{Backend, Ticket};

use super::*;

fn timed() -> (Clean, Arc<AtomicU64>) {
    let now = Arc::new(AtomicU64::new(0));
    let clock = Arc::clone(&now);
    (build(builder().clock(Arc::new(move || clock.load(Relaxed)))), now)
}

#[test]
fn elapsed_since_is_the_time_between_executions() {
    let (backend, now) = timed();
    let (first, second) = (stream(&backend), stream(&backend));
    now.store(1000, Relaxed);
    let begun = first.record().expect("it is queued");
    begun.wait().expect("nothing failed");
    let held = Held::new(&backend, &second);
    let ended = second.record().expect("it is queued");
    now.store(5500, Relaxed);
    held.let_go();
    assert!(ended.wait_timeout(LIMIT).expect("nothing failed"));
    assert_eq!(ended.elapsed_since(&begun).expect("both were reached"), Duration::from_nanos(4500));
    assert_eq!(begun.elapsed_since(&ended).expect("both were reached"), Duration::ZERO, "the later one was not before");
    assert_eq!(begun.elapsed_since(&begun).expect("it was reached"), Duration::ZERO);
}

#[test]
fn an_unreached_event_has_no_elapsed_time() {
    let backend = build(builder());
    let stream = stream(&backend);
    let begun = stream.record().expect("it is queued");
    assert!(begun.wait_timeout(LIMIT).expect("nothing failed"));
    let held = Held::new(&backend, &stream);
    let ended = stream.record().expect("it is queued");
    assert!(begun.is_done() && !ended.is_done());
    assert!(!ended.wait_timeout(Duration::from_millis(5)).expect("nothing failed"));
    for elapsed in [ended.elapsed_since(&begun), begun.elapsed_since(&ended)] {
        assert!(
            matches!(elapsed, Err(Error::Operation { what: OperationFault::NotReached, stream: of, number: 3 }) if of == stream.id().get()),
            "{elapsed:?}"
        );
    }
    held.let_go();
    ended.wait().expect("nothing failed");
    assert!(ended.is_done() && ended.elapsed_since(&begun).is_ok());
}

#[test]
fn events_use_the_virtual_time_of_a_link() {
    let backend = build(builder().link(link()));
    let stream = stream(&backend);
    let begun = stream.record().expect("it is queued");
    let (pinned, gpu) = stream.copy(pinned(&backend, 10_000), gpu(&backend, 10_000)).expect("it is queued").detach();
    let between = stream.record().expect("it is queued");
    backend.model_work(50_000);
    let filled = stream.fill(gpu, .., 1).expect("it is queued").detach();
    let ended = stream.record().expect("it is queued");
    ended.wait().expect("nothing failed");
    let elapsed = |later: &ringmem::stream::Event, earlier| later.elapsed_since(earlier).expect("all were reached").as_nanos();
    assert_eq!((elapsed(&between, &begun), elapsed(&ended, &between), elapsed(&ended, &begun)), (2000, 48_100, 50_100));
    drop((pinned, filled));
}

#[test]
fn work_after_wait_for_event_executes_after_the_event() {
    let backend = build(builder().log(true));
    let (first, second) = (stream(&backend), stream(&backend));
    let held = Held::new(&backend, &first);
    let before = first.fill(gpu(&backend, 64), .., 1).expect("it is queued");
    let event = first.record().expect("it is queued");
    let other_held = Held::new(&backend, &first);
    second.wait_for_event(&event).expect("one backend");
    first.wait_for_event(&event).expect("its own stream");
    let after = second.fill(gpu(&backend, 64), .., 2).expect("it is queued");
    assert!(!after.is_done());
    held.let_go();
    let after = after.wait_timeout(LIMIT).expect("in time").expect("nothing failed");
    other_held.let_go();
    let order: Vec<_> = backend.call_log().iter().filter(|call| is_executed(call)).map(|call| call.stream).collect();
    assert_eq!(order, [Some(first.id()), Some(second.id())]);
    drop((before.wait().expect("nothing failed"), after));
}

fn is_executed(call: &Call) -> bool {
    call.verb == Verb::Fill && call.phase == Phase::Executed
}

#[test]
fn events_of_two_backends_cannot_be_combined() {
    let (ours, theirs) = (build(builder()), build(builder()));
    let (here, there) = (stream(&ours), stream(&theirs));
    let events = [&here, &there].map(|stream| stream.record().expect("it is queued"));
    assert!(matches!(here.wait_for_event(&events[1]), Err(Error::OtherBackend { .. })));
    assert!(matches!(events[0].elapsed_since(&events[1]), Err(Error::OtherBackend { .. })));
}

#[test]
fn an_event_reports_an_earlier_failure_once() {
    let faults = Faults::new().on(Verb::Fill, Fault::from(2).when_executed());
    let backend = build(builder().faults(faults));
    let stream = stream(&backend);
    let fill = || stream.fill(gpu(&backend, 64), .., 1).expect("it is queued");
    drop(fill());
    let fine = stream.record().expect("it is queued");
    drop((fill(), fill()));
    let failed = stream.record().expect("it is queued");
    let waited_for = fill();
    let last = stream.record().expect("it is queued");
    drop(fill());
    fine.wait().expect("nothing had failed before it");
    assert!(matches!(failed.wait(), Err(Error::Injected { call: "fill", number: 2 })));
    failed.wait().expect("both were told");
    assert!(matches!(waited_for.wait().map_err(|rejected| rejected.error), Err(Error::Injected { call: "fill", number: 4 })));
    last.wait().expect("who queued it knows");
    assert!(failed.elapsed_since(&fine).is_ok(), "the moments were there all the same");
    assert!(matches!(stream.synchronize(), Err(Error::Injected { call: "fill", number: 5 })));
}

#[test]
fn events_of_a_broken_stream_return_closed() {
    let backend = build(builder().clock(Arc::new(|| panic!("a clock that a test asked for"))));
    let stream = stream(&backend);
    let (first, second) = (stream.record().expect("it is queued"), stream.record().expect("it is queued"));
    for event in [&first, &second] {
        assert!(matches!(event.wait_timeout(LIMIT), Err(Error::Closed { what: "stream" })));
        assert!(matches!(event.elapsed_since(&first), Err(Error::Operation { what: OperationFault::NotReached, .. })));
    }
}

#[test]
fn record_returns_the_error_of_a_failed_recording() {
    let backend = build(builder().faults(Faults::new().on(Verb::Record, Fault::nth(1))));
    let stream = stream(&backend);
    assert!(matches!(stream.record(), Err(Error::Injected { call: "record", number: 1 })));
    stream.record().expect("the next can").wait().expect("nothing failed");
}

#[test]
fn only_recorded_tickets_that_are_not_forgotten_have_times() {
    let backend = build(builder());
    let stream = stream(&backend);
    let marked = backend.record_position(stream.id()).expect("an open stream");
    let recorded = backend.record(stream.id()).expect("an open stream").expect("timed");
    assert!(backend.wait(recorded, Some(LIMIT)).expect("nothing failed"));
    assert!(matches!(backend.elapsed(marked, recorded), Err(Error::Unsupported { .. })));
    assert_eq!(backend.elapsed(recorded, recorded).expect("recorded"), Duration::ZERO);
    backend.forget(recorded);
    assert!(matches!(backend.elapsed(recorded, recorded), Err(Error::Unsupported { .. })));
    let event = stream.record().expect("it is queued");
    event.wait().expect("nothing failed");
    let recorded = Ticket { number: recorded.number + 1, ..recorded };
    assert_eq!(backend.elapsed(recorded, recorded).expect("the event's"), Duration::ZERO);
    drop(event);
    assert!(matches!(backend.elapsed(recorded, recorded), Err(Error::Unsupported { .. })), "it went with the event");
}

#[test]
fn synchronize_timeout_waits_for_what_was_queued_before_it() {
    let backend = build(builder());
    let stream = stream(&backend);
    assert!(stream.synchronize_timeout(LIMIT).expect("nothing is queued"));
    let held = Held::new(&backend, &stream);
    assert!(!stream.synchronize_timeout(Duration::from_millis(10)).expect("no error"), "a kernel runs");
    drop(held);
    assert!(stream.synchronize_timeout(LIMIT).expect("no error"));
}
