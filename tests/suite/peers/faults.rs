use super::*;

const CALLS: [(Verb, u64); 4] = [(Verb::Allocate, 4), (Verb::Copy, 23), (Verb::StreamWait, 23), (Verb::Wait, 23)];

fn plans() -> impl Iterator<Item = (Verb, Fault)> {
    CALLS.into_iter().flat_map(|(verb, calls)| {
        (1..=calls).flat_map(move |nth| [Fault::nth(nth), Fault::nth(nth).when_executed()].map(|fault| (verb, fault)))
    })
}

fn is_planned(error: &Error, verb: Verb) -> bool {
    match error {
        Error::Injected { call, .. } => *call == verb.name(),
        Error::Map { .. } => verb == Verb::Allocate,
        _ => false,
    }
}

#[test]
fn a_failed_blocking_copy_changes_only_its_target() {
    for strategy in STRATEGIES {
        let mut struck = 0;
        for (verb, fault) in plans() {
            let backend = build(two());
            let peers = peers(&backend);
            let (source, mut target) = (gpu(&backend, 0, &pattern(1)), gpu(&backend, 1, &pattern(2)));
            backend.set_faults(&Faults::new().on(verb, fault));
            let mut arrived = 0;
            let outcome = peers.copy_with(&source, &mut target, with(strategy), |progress| arrived = progress.done as usize);
            backend.set_faults(&Faults::new());
            if let Err(error) = outcome {
                assert!(is_planned(&error, verb), "{strategy:?}, {verb:?}, {fault:?}: {error}");
                struck += 1;
                let bytes = target.slice(..arrived).expect("within").to_vec().expect("what arrived is valid");
                assert!(bytes == pattern(1)[..arrived], "{strategy:?}, {fault:?}: {arrived}");
            } else {
                assert_eq!(arrived, BYTES);
            }
            assert!(source.to_vec().expect("a download") == pattern(1), "{strategy:?}, {fault:?}");
            peers.copy_with(&source, &mut target, Options { verify: true, ..with(strategy) }, |_| {}).expect("no fault any more");
            assert!(target.to_vec().expect("a download") == pattern(1), "{strategy:?}, {fault:?}");
        }
        let least = if strategy == Strategy::Direct { 4 } else { 44 };
        assert!(struck >= least, "{strategy:?}: {struck}");
    }
}

#[test]
fn a_failed_queued_copy_returns_both_buffers() {
    for strategy in STRATEGIES {
        let mut struck = 0;
        for (verb, fault) in plans() {
            let backend = build(two());
            let peers = peers(&backend);
            backend.set_faults(&Faults::new());
            let (source, target) = (gpu(&backend, 0, &pattern(1)), gpu(&backend, 1, &pattern(2)));
            backend.set_faults(&Faults::new().on(verb, fault));
            let queued = peers.queue(source, target, Some(strategy));
            let outcome = queued.map_or_else(Err, |copy| copy.wait_timeout(LIMIT).expect("in time"));
            backend.set_faults(&Faults::new());
            let (source, target) = outcome.unwrap_or_else(|rejected| {
                assert!(is_planned(&rejected.error, verb), "{strategy:?}, {verb:?}, {fault:?}: {rejected}");
                struck += 1;
                rejected.value
            });
            let (source, target) = done(peers.queue(source, target, Some(strategy)).expect("no fault any more"));
            assert!(source.to_vec().expect("a download") == pattern(1), "{strategy:?}, {fault:?}");
            assert!(target.to_vec().expect("a download") == pattern(1), "{strategy:?}, {fault:?}");
            let staged = backend.counters().pinned_live.bytes;
            assert_eq!(staged, 0, "{strategy:?}, {fault:?}: what it was staged in is given back");
        }
        let least = if strategy == Strategy::Direct { 4 } else { 44 };
        assert!(struck >= least, "{strategy:?}: {struck}");
    }
}

#[test]
fn a_failed_copy_queues_no_more_chunks() {
    let backend = build(two());
    let peers = peers(&backend);
    let (source, mut target) = (gpu(&backend, 0, &pattern(1)), gpu(&backend, 1, &pattern(2)));
    backend.set_faults(&Faults::new().on(Verb::Copy, Fault::nth(3).when_executed()));
    let before = backend.calls(Verb::Copy).expect("watched");
    peers.copy_with(&source, &mut target, with(Strategy::Staged { chunk: 100, depth: 2 }), |_| {}).expect_err("planned");
    assert_eq!(backend.calls(Verb::Copy).expect("watched") - before, 6);
}
