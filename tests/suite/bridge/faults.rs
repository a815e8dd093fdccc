use ringmem::Error;
use ringmem::backend::host::{Fault, Faults, Verb};
use ringmem::error::OperationFault;

use super::*;

#[test]
fn a_tenth_of_failing_calls_loses_no_message() {
    for strategy in [TransferStrategy::Sync, TransferStrategy::Async] {
        for when_executed in [false, true] {
            for seed in 0..crate::DEPTH.min(4) {
                let backend = backend();
                let mut rig = rig(&backend, &options(strategy, Placement::DEVICE, 16), 2000);
                let mut faults = Faults::new();
                for verb in [Verb::Copy, Verb::Publish, Verb::Wait, Verb::Synchronize] {
                    let fault = Fault::random(0.1, seed);
                    faults = faults.on(verb, if when_executed { fault.when_executed() } else { fault });
                }
                backend.set_faults(&faults);
                let failures = exchange(&mut rig, 2000);
                assert!(failures > 0, "{strategy:?}: the plan strikes");
                backend.set_faults(&Faults::new());
                eventually("the kernel has left", || rig.kernel.is_done());
            }
        }
    }
}

#[test]
fn a_fault_at_any_call_loses_no_message() {
    for strategy in [TransferStrategy::Sync, TransferStrategy::Async] {
        // An odd step keeps both kinds of faults.
        let step = if crate::DEPTH == 1 { 3 } else { 1 };
        let (mut count, mut struck) = (0, 0);
        for nth in (1..=50).step_by(step) {
            count += 1;
            let backend = backend();
            let mut rig = rig(&backend, &options(strategy, Placement::SPLIT, 4), 100);
            let mut faults = Faults::new();
            for verb in [Verb::Copy, Verb::Publish, Verb::Wait] {
                let fault = Fault::nth(nth);
                faults = faults.on(verb, if nth % 2 == 0 { fault.when_executed() } else { fault });
            }
            backend.set_faults(&faults);
            struck += u64::from(exchange(&mut rig, 100) > 0);
            backend.set_faults(&Faults::new());
            eventually("the kernel has left", || rig.kernel.is_done());
        }
        assert!(2 * struck >= count, "{strategy:?}: {struck} of {count}");
    }
}

type Flush = fn(&mut RingBufferBridge<Echo, Echo>) -> Result<u64, Error>;

fn failures(mut rig: Rig, count: u64) -> [Vec<Error>; 2] {
    let flushes: [Flush; 2] = [RingBufferBridge::flush_to_device, RingBufferBridge::flush_to_host];
    let (mut sent, mut received, mut errors) = (0, 0, [Vec::new(), Vec::new()]);
    eventually("all are answered", || {
        while sent < count && rig.sender.push(message(sent)).is_ok() {
            sent += 1;
        }
        for (flush, errors) in flushes.into_iter().zip(&mut errors) {
            errors.extend(flush(&mut rig.bridge).err());
        }
        while let Ok(got) = rig.receiver.pop() {
            assert_eq!(got, message(received), "the next in order");
            received += 1;
        }
        if received < count {
            thread::sleep(Duration::from_micros(20));
        }
        received == count
    });
    eventually("the kernel has left", || rig.kernel.is_done());
    assert_eq!(rig.receiver.pop(), Err(PopError::Empty), "none twice");
    errors
}

#[test]
fn a_fault_at_any_call_is_reported_for_its_direction() {
    const COUNT: u64 = 8;
    for strategy in STRATEGIES {
        let placements: &[Placement] =
            if strategy == TransferStrategy::Unified { &[Placement::PINNED] } else { &[Placement::DEVICE, Placement::SPLIT] };
        for placement in placements {
            let begin = || {
                let backend = backend();
                let rig = rig(&backend, &options(strategy, *placement, 2), COUNT);
                (backend, rig)
            };
            let (whole, rig) = begin();
            whole.set_faults(&Faults::new());
            assert!(failures(rig, COUNT).iter().all(Vec::is_empty), "{strategy:?}: nothing fails by itself");
            for verb in Verb::ALL {
                let calls = whole.calls(verb).expect("counted");
                assert!(calls > 0 || !matches!(verb, Verb::Copy | Verb::Publish) || strategy == TransferStrategy::Unified);
                let is_queued = strategy != TransferStrategy::Sync && matches!(verb, Verb::Copy | Verb::Publish);
                for when_executed in [false, true].into_iter().take(1 + usize::from(is_queued)) {
                    for nth in 1..=calls.min(crate::MOST_FAULTS) {
                        let (backend, rig) = begin();
                        let fault = Fault::nth(nth);
                        backend.set_faults(&Faults::new().on(verb, if when_executed { fault.when_executed() } else { fault }));
                        let [up, down] = failures(rig, COUNT);
                        let context =
                            format!("{strategy:?} {placement:?}: call {nth} of {verb:?}, when executed: {when_executed}: {up:?}, {down:?}");
                        let is_named = |error: &Error| match error {
                            Error::Injected { call, .. } => *call == verb.name(),
                            Error::Operation { what: OperationFault::Unpublished, .. } => when_executed && verb == Verb::Copy,
                            _ => false,
                        };
                        assert!(up.iter().chain(&down).all(is_named), "{context}");
                        assert!(up.is_empty() || down.is_empty(), "{context}: a call is of one direction");
                        let has_struck = backend.calls(verb).expect("counted") >= nth;
                        let is_told = !when_executed && matches!(verb, Verb::Copy | Verb::Publish);
                        assert!(!is_told || !has_struck || up.len() + down.len() == 1, "{context}");
                    }
                }
            }
        }
    }
}
