use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use ringmem::error::OperationFault;

use ringmem::Error;
use ringmem::backend::host::{Fault, Faults, HostBackend, Verb};
use ringmem::manager::{AnyBufferId, BufferId};
use ringmem::memory::Device;
use ringmem::stream::Stream;

use super::{Manager, eventually, holding, numbers, plain};
use crate::rig::leak_checked::Clean;

const LIMIT: u64 = 24_000;
const KEPT: usize = 16;
const SHARED: u32 = 6;
const THREADS: usize = 8;
const ROUNDS: u64 = 4000;

struct Dice(u64);

impl Dice {
    fn next(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below
    }
}

fn allowed<T>(outcome: Result<T, Error>) -> Option<T> {
    match outcome {
        Ok(value) => Some(value),
        Err(
            Error::Busy { .. }
            | Error::Limit { .. }
            | Error::Size { .. }
            | Error::OutOfMemory { .. }
            | Error::Injected { .. }
            | Error::Operation { what: OperationFault::AlreadyReported, .. },
        ) => None,
        Err(error) => panic!("{error}"),
    }
}

fn own(which: u32) -> Vec<u32> {
    numbers(which * 1000, KEPT)
}

fn work(manager: &Manager, streams: &[Stream; 2], ids: &[BufferId<u32>], seed: u64) -> u64 {
    let (mut dice, mut done) = (Dice(seed), 0);
    for round in 0..ROUNDS {
        let which = dice.next(SHARED.into()) as usize;
        let len = KEPT + dice.next(600) as usize;
        let stream = &streams[dice.next(2) as usize];
        let outcome = match dice.next(9) {
            0 => manager.lease_mut(ids[which]).and_then(|mut lease| lease.resize(len)),
            1 => manager.lease_mut(ids[which]).and_then(|mut lease| lease.resize_on(len, stream)),
            2 => manager.lease_mut(ids[which]).and_then(|mut lease| lease.shrink_to_fit().map(drop)),
            3 => manager.lease_mut(ids[which]).and_then(|mut lease| lease.extend_from_slice(&[7; 9])),
            kind @ (4 | 5) => {
                let first = ids.iter().skip(which).map(|&id| (AnyBufferId::from(id), len)).take(3);
                if kind == 4 { manager.resize_group(first) } else { manager.resize_group_on(first, stream) }
            }
            6 => stream.synchronize(),
            7 => {
                let name = format!("{seed} {round}");
                manager.create::<u32>(&name, len, plain()).map(|id| {
                    assert_eq!(manager.find::<u32>(&name).expect("its own"), id);
                    let _ = manager.free(id);
                    assert!(!manager.contains(id) && manager.find::<u32>(&name).is_err());
                })
            }
            _ => {
                assert!(manager.cleanup(Duration::from_secs(3600), |_| true).is_empty());
                manager.lease(ids[which]).and_then(|lease| {
                    assert_eq!(lease.slice(..KEPT)?.to_vec()?, own(which as u32));
                    Ok(())
                })
            }
        };
        done += u64::from(allowed(outcome).is_some());
        assert!(manager.budget().used() <= LIMIT);
    }
    done
}

#[test]
fn concurrent_calls_with_faults_keep_the_accounting_exact() {
    for seed in 1..=6_u64 {
        let backend = Clean::build(HostBackend::builder().device_memory(LIMIT * 2).faults(Faults::new()));
        let manager = Manager::with_limit(Device::new(&backend, 0), LIMIT);
        let streams = [0; 2].map(|_| Stream::new(&backend, 0).expect("a stream"));
        let ids: Vec<BufferId<u32>> = (0..SHARED).map(|which| holding(&manager, &format!("{which}"), &own(which))).collect();
        let fault = |verb: u64| Fault::random(0.04, seed * 100 + verb);
        let verbs = [Verb::Allocate, Verb::Copy, Verb::Free, Verb::StreamWait, Verb::RecordPosition, Verb::Wait];
        let faults = (1..).zip(verbs).fold(Faults::new(), |faults, (number, verb)| faults.on(verb, fault(number)));
        backend.set_faults(&faults.on(Verb::Copy, fault(9).when_executed()));
        let all = Barrier::new(THREADS);
        let done: u64 = thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS as u64)
                .map(|thread| {
                    let (manager, streams, ids, all) = (manager.clone(), &streams, &ids, &all);
                    scope.spawn(move || {
                        all.wait();
                        work(&manager, streams, ids, seed * 1000 + thread)
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).sum()
        });
        backend.set_faults(&Faults::new());
        assert!(done > THREADS as u64 * ROUNDS / 10, "{done}");
        streams.iter().for_each(|stream| drop(stream.synchronize()));
        for (which, &id) in (0..).zip(&ids) {
            assert_eq!(manager.lease(id).expect("nobody else").slice(..KEPT).expect("within").to_vec().expect("a copy"), own(which));
        }
        let figures = manager.statistics();
        eventually("what was freed after its uses is free", || manager.budget().used() == figures.buffer_bytes());
        assert_eq!((figures.buffers.len(), figures.created - figures.released), (SHARED as usize, SHARED.into()));
        assert!(figures.peak_bytes <= LIMIT);
        assert_eq!(backend.counters().device_live.bytes, figures.buffer_bytes());
        drop((manager, ids));
        drop(streams);
        assert_eq!(backend.counters().device_live.bytes, 0);
    }
}
