use std::sync::Arc;
use std::time::Instant;
use std::{array, thread};

use proptest::prelude::*;
use ringmem::backend::host::{Fault, Faults, HostBackend, Verb};
use ringmem::memory::{
    Aligned, Arena, Both, Buffer, Device, DeviceOnly, Failing, Host, HostOnly, Limited, Logged, Memory, Pinned, Prefetching, Statistics,
    Tracked, Unified, Visibility, When,
};
use ringmem::pool::Pool;
use ringmem::stream::{Pending, Queued, Stream};
use ringmem::{Error, Rejected, Result};

use crate::LIMIT;
use crate::adaptors::stacks::{Any, unfreed};
use crate::rig::leak_checked::Clean;

const ARENA: usize = 256 << 10;
const SLAB: u64 = 64 << 10;

type Step = (u8, usize, u32);

const STEPS: u8 = 9;

const SCRIPT: &[Step] =
    &[(0, 100, 1), (1, 33, 2), (2, 0, 6), (1, 500, 4), (5, 1, 5), (4, 0, 3), (0, 64, 8), (6, 1, 4), (7, 2, 9), (3, 1, 11), (8, 0, 0)];

const ADAPTORS: usize = 9;
const BASES: usize = 4;

fn is_told(error: &Error) -> bool {
    match error {
        Error::Injected { .. } | Error::OutOfMemory { .. } | Error::Limit { .. } | Error::Map { .. } => true,
        Error::Tainted { cause, .. } => cause.ends_with("failed: injected fault"),
        _ => false,
    }
}

fn told(error: Error) -> Error {
    assert!(is_told(&error), "{error}");
    error
}

type Model<M> = (Buffer<u32, M>, Option<Vec<u32>>);

fn end<T: Queued>(pending: Result<Pending<T>, Rejected<T>>, number: u32, is_late: bool) -> Option<(T, Option<bool>)> {
    match (pending, number % 5) {
        (Err(Rejected { error, value }), _) => {
            told(error);
            Some((value, Some(false)))
        }
        (Ok(_), 0) => None,
        (Ok(pending), 1 | 2) => Some((pending.detach(), (!is_late).then_some(true))),
        (Ok(pending), _) => match pending.wait() {
            Ok(value) => Some((value, Some(true))),
            Err(Rejected { error: Error::Injected { call: "wait", .. }, value }) => Some((value, Some(true))),
            Err(Rejected { error, value }) => {
                told(error);
                Some((value, Some(false)))
            }
        },
    }
}

fn after(model: Option<Vec<u32>>, is_done: Option<bool>, change: impl FnOnce(&mut [u32])) -> Option<Vec<u32>> {
    let mut model = model?;
    if is_done? {
        change(&mut model);
    }
    Some(model)
}

fn check<M: Memory>((buffer, model): &Model<M>) {
    match (buffer.to_vec(), model) {
        (Ok(read), Some(model)) => assert_eq!(read, *model),
        (Ok(_), None) => {}
        (Err(error), _) => drop(told(error)),
    }
}

fn run<M: Memory + Clone>(memory: &M, streams: &[Stream; 2], is_late: bool, steps: &[Step]) {
    let mut live: Vec<Model<M>> = Vec::new();
    for &(step, which, number) in steps {
        let stream = &streams[number as usize % 2];
        if step % STEPS < 2 {
            let len = which % 600;
            let on_stream = step % STEPS == 1;
            let given = if on_stream { Buffer::new_on(memory.clone(), len, stream) } else { Buffer::new(memory.clone(), len) };
            match given {
                Ok(mut buffer) => {
                    let model: Vec<u32> = (0..len as u32).map(|at| at ^ number).collect();
                    let model = buffer.copy_from(&model).map(|()| model).map_err(told).ok();
                    live.push((buffer, model));
                }
                Err(error) => drop(told(error)),
            }
            continue;
        }
        if live.is_empty() {
            continue;
        }
        let (mut buffer, mut model) = live.swap_remove(which % live.len());
        let half = buffer.len() / 2;
        match step % STEPS {
            2 => match buffer.fill(number) {
                Ok(()) => model = Some(vec![number; buffer.len()]),
                Err(error) => drop(told(error)),
            },
            3 => {
                let _ = buffer.close().map_err(told);
                continue;
            }
            4 => {
                let Some((back, is_done)) = end(stream.fill(buffer, half.., number), number, is_late) else { continue };
                model = after(model, is_done, |model| model[half..].fill(number));
                buffer = back;
            }
            5 | 6 if !live.is_empty() => {
                let (other, other_model) = live.swap_remove(number as usize % live.len());
                let shared = buffer.len().min(other.len());
                let at = other.len() - shared;
                let Some(((from, to), is_done)) = end(stream.copy_range(buffer, ..shared, other, at), number, is_late) else { continue };
                let other_model = match &model {
                    Some(model) => after(other_model, is_done, |other| other[at..].copy_from_slice(&model[..shared])),
                    None => None,
                };
                live.push((to, other_model));
                buffer = from;
            }
            7 => {
                drop(stream.fill(buffer, .., number).map(Pending::detach).map_err(|rejected| told(rejected.error)));
                continue;
            }
            _ => {}
        }
        live.push((buffer, model));
        if step % STEPS == 8 {
            live.last().into_iter().for_each(check);
        }
    }
    live.iter().for_each(check);
}

type Probe = (&'static str, Box<dyn Fn() -> u64>);

fn wrap<V: Visibility>(adaptor: usize, memory: Any<V>, stream: &Stream, probes: &mut Vec<Probe>) -> Result<Any<V>> {
    macro_rules! probed {
        ($name:literal, $memory:expr, |$probed:ident| $live:expr) => {{
            let memory = $memory;
            let $probed = memory.clone();
            probes.push(($name, Box::new(move || $live)));
            Arc::new(memory)
        }};
    }
    Ok(match adaptor % ADAPTORS {
        0 => probed!("Limited", Limited::new(memory, 1 << 20), |it| it.used()),
        1 => probed!("Logged", Logged::new(memory), |it| unfreed(&it)),
        2 => {
            let chance = |seed| When::Chance { seed, probability: 0.1 };
            Arc::new(Failing::new(memory).allocs(chance(1)).frees(chance(2)))
        }
        3 => probed!("Statistics", Statistics::new(memory), |it| it.overall().bytes.live as u64),
        4 => Arc::new(Aligned::new(memory, 512)?.rounding(256)?),
        5 => probed!("Tracked", Tracked::new(memory), |it| it.live_bytes() + it.live_blocks() as u64),
        6 => Arc::new(Prefetching::new(memory, stream.clone(), Some(0))),
        7 => probed!("Arena", Arena::new(memory, ARENA, 4096)?, |it| ARENA as u64 - it.free_bytes()),
        _ => probed!("Pool", Pool::builder(memory).slab(SLAB).limit(1 << 20).build()?, |it| it.statistics().live),
    })
}

fn stacked<V: Visibility>(base: impl Memory<Visibility = V>, adaptors: &[usize], stream: &Stream, work: impl FnOnce(&Any<V>)) {
    let mut probes = Vec::new();
    let base: Any<V> = Arc::new(base);
    match adaptors.iter().try_fold(base, |memory, &adaptor| wrap(adaptor, memory, stream, &mut probes)) {
        Ok(memory) => work(&memory),
        Err(error) => drop(told(error)),
    }
    let _ = stream.synchronize().map_err(told);
    while let Some((name, live)) = probes.pop() {
        let begun = Instant::now();
        while live() != 0 {
            assert!(begun.elapsed() < LIMIT, "{name}: {} are live in {adaptors:?}", live());
            thread::yield_now();
        }
    }
}

fn play(base: usize, adaptors: &[usize], (plan, is_late): (Faults, bool), steps: &[Step]) -> [u64; Verb::ALL.len()] {
    let backend = Clean::build(HostBackend::builder().device_memory(4 << 20).page_size(4096).faults(plan));
    if let [Ok(first), Ok(second)] = array::from_fn(|_| Stream::new(&backend, 0).map_err(told)) {
        let streams = &[first, second];
        fn work<V: Visibility>(memory: &Any<V>, streams: &[Stream; 2], is_late: bool, steps: &[Step]) {
            run(memory, streams, is_late, steps);
            streams.iter().for_each(|stream| drop(stream.synchronize().map_err(told)));
        }
        match base % BASES {
            0 => stacked::<DeviceOnly>(Device::new(&backend, 0), adaptors, &streams[0], |memory| work(memory, streams, is_late, steps)),
            1 => stacked::<Both>(Pinned::new(&backend, 0), adaptors, &streams[0], |memory| work(memory, streams, is_late, steps)),
            2 => stacked::<Both>(Unified::new(&backend, 0), adaptors, &streams[0], |memory| work(memory, streams, is_late, steps)),
            _ => stacked::<HostOnly>(Host::new(&backend, 0), adaptors, &streams[0], |memory| work(memory, streams, is_late, steps)),
        }
    }
    Verb::ALL.map(|verb| backend.calls(verb).expect("it has a plan"))
}

fn struck_everywhere(base: usize, adaptors: &[usize], steps: &[Step]) -> u64 {
    let calls = play(base, adaptors, (Faults::new(), false), steps);
    for (verb, calls) in Verb::ALL.into_iter().zip(calls) {
        for fault in (1..=calls).map(Fault::nth) {
            play(base, adaptors, (Faults::new().on(verb, fault), false), steps);
            if matches!(verb, Verb::Copy | Verb::Fill | Verb::Prefetch | Verb::StreamWait) {
                play(base, adaptors, (Faults::new().on(verb, fault.when_executed()), true), steps);
            }
        }
    }
    calls.into_iter().sum()
}

#[test]
fn every_pair_of_adaptors_leaks_nothing_under_any_fault() {
    let mut struck = 0;
    for (outer, inner) in (0..ADAPTORS).flat_map(|outer| (0..ADAPTORS).map(move |inner| (outer, inner))) {
        let base = if [outer, inner].contains(&6) { 2 } else { outer + inner };
        struck += struck_everywhere(base, &[inner, outer], SCRIPT);
    }
    assert!(struck > 1500, "{struck} calls");
}

#[test]
fn threads_sharing_a_faulty_stack_leak_nothing() {
    const STACKS: [&[usize]; 6] = [&[0, 3], &[5, 6, 0, 1], &[7, 3, 8], &[8, 1, 0], &[2, 8, 6], &[5, 7, 4, 0]];
    let mut calls = [0; 2];
    for (seed, adaptors) in (0..).zip(STACKS.into_iter().cycle().take(30)) {
        let plan = Verb::ALL.into_iter().fold(Faults::new(), |plan, verb| plan.on(verb, Fault::random(0.05, seed)));
        let backend = &Clean::build(HostBackend::builder().device_memory(4 << 20).page_size(4096).faults(plan));
        let Ok(stream) = Stream::new(backend, 0).map_err(told) else { continue };
        stacked::<Both>(Unified::new(backend, 0), adaptors, &stream, |memory| {
            thread::scope(|scope| {
                for thread in 0..4 {
                    scope.spawn(move || {
                        let [Ok(first), Ok(second)] = array::from_fn(|_| Stream::new(backend, 0).map_err(told)) else { return };
                        let steps = SCRIPT.iter().map(|&(step, which, number)| (step, which + thread, number + thread as u32));
                        let steps: Vec<Step> = steps.cycle().take(4 * SCRIPT.len()).collect();
                        run(memory, &[first, second], false, &steps);
                    });
                }
            });
        });
        let called = [Verb::Allocate, Verb::Copy].map(|verb| backend.calls(verb).expect("it has a plan"));
        calls = [calls[0] + called[0], calls[1] + called[1]];
    }
    assert!(calls[0] > 200 && calls[1] > 1000, "{calls:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, max_shrink_iters: 8, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_stacks_and_workloads_leak_nothing_under_any_fault(
        base in 0..BASES,
        adaptors in prop::collection::vec(0..ADAPTORS, 0..5),
        steps in prop::collection::vec((0..STEPS, 0_usize..1000, 0_u32..1000), 0..16),
    ) {
        struck_everywhere(base, &adaptors, &steps);
    }
}
