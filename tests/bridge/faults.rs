use ringmem::backend::host::{Fault, Faults, Verb};

use super::*;

#[test]
fn nothing_is_lost_whatever_call_fails_at_whatever_moment() {
    for strategy in [TransferStrategy::Sync, TransferStrategy::Async] {
        for verb in [Verb::Copy, Verb::Publish, Verb::Wait] {
            for when_executed in [false, true] {
                for nth in 1..16 {
                    let backend = backend();
                    let mut rig = rig(&backend, &options(strategy, Placement::DEVICE, 8), 50);
                    let fault = Fault::nth(nth);
                    backend.set_faults(&Faults::new().on(verb, if when_executed { fault.when_executed() } else { fault }));
                    let _ = exchange(&mut rig, 50);
                    backend.set_faults(&Faults::new());
                    until("the kernel has left", || rig.kernel.is_done());
                }
            }
        }
    }
}

#[test]
fn nothing_is_lost_where_a_tenth_of_all_calls_fails() {
    for strategy in [TransferStrategy::Sync, TransferStrategy::Async] {
        for when_executed in [false, true] {
            for seed in 0..4 {
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
                until("the kernel has left", || rig.kernel.is_done());
            }
        }
    }
}

#[test]
fn nothing_is_lost_whatever_call_of_a_long_run_fails() {
    for strategy in [TransferStrategy::Sync, TransferStrategy::Async] {
        let mut struck = 0;
        for nth in 1..=50 {
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
            until("the kernel has left", || rig.kernel.is_done());
        }
        // A hundred messages through four slots are twenty-five flushes each way at least, of a copy and an index.
        assert!(struck >= 25, "{strategy:?}: {struck} of 50");
    }
}
