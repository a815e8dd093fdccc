use std::collections::HashMap;

use ringmem::backend::host::{Call, Fault, Faults, Phase, Verb};

use super::*;

struct Work {
    call: Call,
    span: [usize; 2],
    ok: bool,
}

fn works(log: &[Call]) -> Vec<Work> {
    let moves = |call: &&Call| matches!(call.verb, Verb::Copy | Verb::Publish) && call.ok;
    let executed: HashMap<_, _> = log
        .iter()
        .enumerate()
        .filter(|(_, call)| call.phase == Phase::Executed)
        .map(|(place, call)| ((call.stream, call.ticket), (place, call.ok)))
        .collect();
    let called = log.iter().enumerate().filter(|(_, call)| call.phase == Phase::Called && moves(call));
    called
        .map(|(place, call)| {
            let (end, ok) = match call.ticket {
                Some(_) => *executed.get(&(call.stream, call.ticket)).expect("what was queued is executed"),
                None => (place, true),
            };
            Work { call: *call, span: [place, end], ok }
        })
        .collect()
}

fn overlap(a: [u64; 2], b: [u64; 2]) -> bool {
    a[0] < b[1] && b[0] < a[1]
}

fn touched(call: &Call) -> [Option<[u64; 2]>; 2] {
    [call.from, call.to].map(|place| place.map(|place| [place, place + call.bytes]))
}

fn accesses_only_live_memory(log: &[Call], works: &[Work]) {
    for work in works {
        for range in touched(&work.call).into_iter().flatten() {
            let of = |place: Option<u64>, bytes: u64| place.is_some_and(|place| overlap(range, [place, place + bytes]));
            let last = log[..work.span[1]].iter().rev().find(|call| match (call.verb, call.phase) {
                (Verb::Allocate, Phase::Called) => call.ok && of(call.to, call.bytes),
                (Verb::Free, Phase::Freed) => of(call.from, call.bytes),
                _ => false,
            });
            assert!(last.is_none_or(|call| call.verb == Verb::Allocate), "{:?} after {last:?}", work.call);
        }
    }
}

fn writes_data_before_the_index(works: &[Work], index: u64) {
    let mut copies: Vec<&Work> = Vec::new();
    let stream = works.iter().find(|work| work.call.verb == Verb::Publish && work.call.to == Some(index)).map(|work| work.call.stream);
    let mut written = 0;
    for work in works.iter().filter(|work| Some(work.call.stream) == stream) {
        match work.call.verb {
            Verb::Publish if work.call.to == Some(index) => {
                if work.ok {
                    written += 1;
                    assert!(copies.iter().all(|copy| copy.ok && copy.span[1] <= work.span[1]), "{:?}", work.call);
                }
                copies.clear();
            }
            Verb::Copy if work.call.bytes != 8 => copies.push(work),
            _ => {}
        }
    }
    assert!(written > 0, "there were some");
}

#[test]
fn the_call_log_obeys_the_ordering_rules() {
    for strategy in [TransferStrategy::Sync, TransferStrategy::Async, TransferStrategy::DmaPolling { poll_interval_us: 1 }] {
        for failing in [None, Some(false), Some(true)] {
            let backend = Clean::build(HostBackend::builder().device_memory(1 << 20).log(true));
            let mut rig = rig(&backend, &options(strategy, Placement::DEVICE, 16), 600);
            let [up, _] = rig.bridge.addresses().expect("addresses");
            let mut faults = Faults::new();
            for verb in [Verb::Copy, Verb::Publish, Verb::Wait].into_iter().filter(|_| failing.is_some()) {
                let fault = Fault::random(0.05, 7);
                faults = faults.on(verb, if failing == Some(true) { fault.when_executed() } else { fault });
            }
            backend.set_faults(&faults);
            exchange(&mut rig, 600);
            backend.set_faults(&Faults::new());
            eventually("the kernel has left", || rig.kernel.is_done());
            rig.sender.push(message(0)).expect("room");
            rig.bridge.flush_to_device().expect("no fault");
            drop(rig);
            eventually("all is given back", || backend.counters().device_live.bytes == 0 && backend.counters().pinned_live.bytes == 0);
            let log = backend.call_log();
            let works = works(&log);
            assert!(works.len() > 100, "{} works", works.len());
            accesses_only_live_memory(&log, &works);
            writes_data_before_the_index(&works, up.own);
        }
    }
}
