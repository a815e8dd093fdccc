use super::*;

fn calls(backend: &HostBackend) -> [Option<u64>; 2] {
    [Verb::EnablePeer, Verb::DisablePeer].map(|verb| backend.calls(verb))
}

#[test]
fn the_peer_matrix_is_that_of_the_backend() {
    let pairs = [(0, 1), (2, 0), (2, 1)];
    let backend = build(pairs.iter().fold(HostBackend::builder().devices(3), |builder, &(from, to)| builder.peer(from, to)));
    let peers = peers(&backend);
    assert!(peers.matrix().iter().eq(pairs));
    for from in 0..5 {
        for to in 0..5 {
            let expected = (from == to && from < 3) || pairs.contains(&(from, to));
            assert_eq!(peers.can_reach(from, to), expected, "{from} to {to}");
            assert_eq!(peers.is_enabled(from, to), from == to && from < 3, "{from} to {to}: nothing is enabled");
        }
    }
}

#[test]
fn each_direction_is_enabled_and_disabled_by_one_call() {
    let backend = build(two().faults(Faults::new()));
    let mut peers = peers(&backend);
    for (enabled, expected) in [(false, [0, 0]), (true, [1, 0]), (false, [1, 1]), (true, [2, 1])] {
        for _ in 0..3 {
            if enabled { peers.enable(0, 1) } else { peers.disable(0, 1) }.expect("it can");
            assert_eq!((calls(&backend), peers.is_enabled(0, 1)), (expected.map(Some), enabled));
            assert!(!peers.is_enabled(1, 0), "the other way is another");
        }
    }
    let counters = backend.counters();
    assert_eq!((counters.peer_enables, counters.peer_disables), (2, 1));
}

#[test]
fn impossible_peers_are_errors_without_calls() {
    let backend = build(two().faults(Faults::new()));
    let mut peers = peers(&backend);
    for set in [Peers::enable, Peers::disable] {
        set(&mut peers, 1, 1).expect("a device reaches itself");
        assert!(peers.is_enabled(1, 1), "always");
        assert!(matches!(set(&mut peers, 1, 0), Err(Error::Unsupported { .. })));
        for (from, to) in [(0, 2), (2, 0), (2, 2)] {
            assert!(matches!(set(&mut peers, from, to), Err(Error::NoDevice { asked: 2, devices: 2 })), "{from} to {to}");
        }
    }
    assert_eq!(calls(&backend), [Some(0); 2]);
}

#[test]
fn a_failed_peer_call_changes_nothing_and_is_retried() {
    let backend = build(two().faults(Faults::new().on(Verb::EnablePeer, Fault::nth(1)).on(Verb::DisablePeer, Fault::nth(1))));
    let mut peers = peers(&backend);
    assert!(matches!(peers.enable(0, 1), Err(Error::Injected { call: "enable_peer", number: 1 })));
    assert!(!peers.is_enabled(0, 1));
    peers.enable(0, 1).expect("the second");
    assert!(matches!(peers.disable(0, 1), Err(Error::Injected { call: "disable_peer", number: 1 })));
    assert!(peers.is_enabled(0, 1));
    peers.disable(0, 1).expect("the second");
    assert_eq!((calls(&backend), peers.is_enabled(0, 1)), ([Some(2); 2], false));
}

#[test]
fn enable_all_enables_every_possible_direction() {
    let backend = build(HostBackend::builder().devices(3).peer(0, 2).peer(2, 1));
    let mut peers = peers(&backend);
    peers.enable_all().expect("they can");
    assert!((0..3).all(|from| (0..3).all(|to| peers.is_enabled(from, to) == peers.can_reach(from, to))));
    peers.enable_all().expect("and again does nothing");
    assert_eq!(backend.counters().peer_enables, 2);
}
