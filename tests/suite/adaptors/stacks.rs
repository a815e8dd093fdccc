use std::alloc::Layout;
use std::sync::Arc;

use proptest::prelude::*;
use ringmem::Error;
use ringmem::backend::Uses;
use ringmem::backend::host::HostBackend;
use ringmem::memory::{
    Aligned, Arena, Both, Buffer, Device, DeviceOnly, Event, Failing, Host, HostOnly, Limited, Logged, Memory, Pinned, Prefetching,
    Statistics, Tracked, Unified, Visibility, When,
};
use ringmem::pool::Pool;
use ringmem::stream::{Pending, Queued, Stream};

use crate::eventually;
use crate::rig::leak_checked::Clean;

pub type Any<V> = Arc<dyn Memory<Visibility = V>>;

type Step = (u8, usize, u32);

const SCRIPT: &[Step] = &[
    (0, 100, 1),
    (1, 33, 2),
    (4, 0, 3),
    (0, 500, 4),
    (5, 1, 5),
    (2, 0, 6),
    (6, 0, 7),
    (0, 64, 8),
    (7, 2, 9),
    (1, 8, 10),
    (3, 1, 11),
    (4, 1, 12),
    (8, 0, 13),
    (5, 0, 14),
];
const SCRIPT_ALLOCS: u64 = 5;

fn run<M: Memory + Clone>(memory: &M, streams: &[Stream; 2], steps: &[Step]) {
    let mut live: Vec<(Buffer<u32, M>, Vec<u32>)> = Vec::new();
    for &(step, which, number) in steps {
        let stream = &streams[number as usize % 2];
        if step % 9 < 2 {
            let len = which % 600;
            let on_stream = step % 9 == 1;
            let given = if on_stream { Buffer::new_on(memory.clone(), len, stream) } else { Buffer::new(memory.clone(), len) };
            match given {
                Ok(mut buffer) => {
                    let model: Vec<u32> = (0..len as u32).map(|at| at ^ number).collect();
                    buffer.copy_from(&model).expect("as long");
                    live.push((buffer, model));
                }
                Err(Error::Injected { .. } | Error::Limit { .. } | Error::OutOfMemory { .. }) => {}
                Err(error) => panic!("{error}"),
            }
            continue;
        }
        if live.is_empty() {
            continue;
        }
        let (mut buffer, mut model) = live.swap_remove(which % live.len());
        let half = model.len() / 2;
        match step % 9 {
            2 => {
                buffer.fill(number).expect("live");
                model.fill(number);
            }
            3 => match buffer.close() {
                Ok(()) | Err(Error::Injected { call: "free", .. }) => continue,
                Err(error) => panic!("{error}"),
            },
            4 => {
                let Some(back) = end(stream.fill(buffer, half.., number).expect("queued"), number) else { continue };
                model[half..].fill(number);
                buffer = back;
            }
            5 | 6 if !live.is_empty() => {
                let (other, mut other_model) = live.swap_remove(number as usize % live.len());
                let shared = model.len().min(other_model.len());
                let at = other_model.len() - shared;
                let Some((from, to)) = end(stream.copy_range(buffer, ..shared, other, at).expect("queued"), number) else { continue };
                other_model[at..].copy_from_slice(&model[..shared]);
                live.push((to, other_model));
                buffer = from;
            }
            7 => {
                drop(stream.fill(buffer, .., number).expect("queued").detach());
                continue;
            }
            _ => assert_eq!(buffer.to_vec().expect("live"), model),
        }
        live.push((buffer, model));
    }
    for (buffer, model) in &live {
        assert_eq!(buffer.to_vec().expect("live"), *model);
    }
}

fn end<T: Queued>(pending: Pending<T>, number: u32) -> Option<T> {
    match number % 5 {
        0 => None,
        1 | 2 => Some(pending.detach()),
        _ => Some(pending.wait().unwrap_or_else(|refused| panic!("{}", refused.error))),
    }
}

fn scene(play: impl FnOnce(&Arc<HostBackend>, &[Stream; 2]) -> Vec<Probe>) {
    let backend = Clean::build(HostBackend::builder().device_memory(1 << 20));
    let streams = [Stream::new(&backend, 0).expect("a stream"), Stream::new(&backend, 0).expect("a stream")];
    let probes = play(&backend, &streams);
    for stream in &streams {
        stream.synchronize().expect("nothing failed");
    }
    drop(streams);
    // A stream frees memory shortly after its waiters return.
    for (name, live) in &probes {
        eventually(name, || live() == 0);
    }
}

type Probe = (&'static str, Box<dyn Fn() -> u64>);

const ADAPTORS: usize = 6;

fn wrap<V: Visibility>(adaptor: usize, memory: Any<V>, limit: u64, probes: &mut Vec<Probe>) -> Any<V> {
    match adaptor % ADAPTORS {
        0 => {
            let memory = Limited::new(memory, limit);
            probes.push((
                "Limited",
                Box::new({
                    let memory = memory.clone();
                    move || memory.used()
                }),
            ));
            Arc::new(memory)
        }
        1 => {
            let memory = Logged::new(memory);
            probes.push((
                "Logged",
                Box::new({
                    let memory = memory.clone();
                    move || unfreed(&memory)
                }),
            ));
            Arc::new(memory)
        }
        2 => Arc::new(Failing::new(memory).allocs(When::Above(2000))),
        3 => {
            let memory = Statistics::new(memory);
            memory.push();
            probes.push((
                "Statistics",
                Box::new({
                    let memory = memory.clone();
                    move || memory.overall().bytes.live as u64
                }),
            ));
            Arc::new(memory)
        }
        4 => Arc::new(Aligned::new(memory, 512).and_then(|memory| memory.rounding(256)).expect("a power of two")),
        _ => {
            let memory = Tracked::new(memory);
            probes.push((
                "Tracked",
                Box::new({
                    let memory = memory.clone();
                    move || memory.live_bytes() + memory.leaks().len() as u64
                }),
            ));
            Arc::new(memory)
        }
    }
}

pub fn unfreed<M: Memory>(memory: &Logged<M>) -> u64 {
    let events = memory.trace();
    let count = |is: fn(&Event) -> bool| events.events().iter().filter(|event| is(event)).count() as u64;
    count(|event| matches!(event, Event::Alloc { .. })) - count(|event| matches!(event, Event::Free { .. }))
}

fn stacked<V: Visibility>(base: Any<V>, adaptors: &[usize], limit: u64, streams: &[Stream; 2], steps: &[Step]) -> Vec<Probe> {
    let mut probes = Vec::new();
    let memory = adaptors.iter().fold(base, |memory, &adaptor| wrap(adaptor, memory, limit, &mut probes));
    run(&memory, streams, steps);
    probes
}

const BASES: usize = 5;

fn play(base: usize, adaptors: &[usize], limit: u64, alloc: u64, free: u64, steps: &[Step]) {
    scene(|backend, streams| {
        fn failing<M: Memory>(memory: M, alloc: u64, free: u64) -> Arc<Failing<M>> {
            Arc::new(Failing::new(memory).allocs(When::Call(alloc)).frees(When::Call(free)))
        }
        let device = Device::new(backend, 0);
        match base % BASES {
            0 => stacked::<DeviceOnly>(failing(device, alloc, free), adaptors, limit, streams, steps),
            1 => stacked::<Both>(failing(Pinned::new(backend, 0), alloc, free), adaptors, limit, streams, steps),
            2 => stacked::<Both>(failing(Unified::new(backend, 0), alloc, free), adaptors, limit, streams, steps),
            3 => stacked::<HostOnly>(failing(Host::new(backend, 0), alloc, free), adaptors, limit, streams, steps),
            _ => {
                let arena = Arena::new(device, 8192, 4096).expect("room for it");
                stacked::<DeviceOnly>(failing(arena, alloc, free), adaptors, limit, streams, steps)
            }
        }
    });
}

#[test]
fn every_pair_works_over_every_memory_with_a_failed_call() {
    for base in 0..BASES {
        for (outer, inner) in (0..ADAPTORS).flat_map(|outer| (0..ADAPTORS).map(move |inner| (outer, inner))) {
            for call in 1..=SCRIPT_ALLOCS {
                play(base, &[inner, outer], 1 << 16, call, 0, SCRIPT);
                play(base, &[inner, outer], 1 << 16, 0, call, SCRIPT);
            }
        }
    }
}

#[test]
fn every_triple_works_over_every_memory() {
    for stack in 0..ADAPTORS.pow(3) {
        let adaptors = [stack % ADAPTORS, stack / ADAPTORS % ADAPTORS, stack / ADAPTORS / ADAPTORS];
        for base in 0..BASES {
            play(base, &adaptors, 3000, 3, 4, SCRIPT);
        }
    }
}

trait Visitor {
    fn visit<M: Memory + Clone>(&mut self, memory: M);
}

fn each<M: Memory + Clone>(memory: M, visitor: &mut impl Visitor) {
    visitor.visit(Limited::new(memory.clone(), 1 << 16));
    visitor.visit(Logged::new(memory.clone()));
    visitor.visit(Failing::new(memory.clone()).allocs(When::Call(4)).frees(When::Call(2)));
    visitor.visit(Statistics::new(memory.clone()));
    visitor.visit(Aligned::new(memory.clone(), 512).and_then(|memory| memory.rounding(256)).expect("a power of two"));
    visitor.visit(Tracked::new(memory));
}

struct Over<'a, V>(&'a mut V);

impl<V: Visitor> Visitor for Over<'_, V> {
    fn visit<M: Memory + Clone>(&mut self, memory: M) {
        each(memory, self.0);
    }
}

struct Runs<'a> {
    streams: &'a [Stream; 2],
    count: usize,
}

struct Concrete<'a, 'b>(&'a mut Runs<'b>);

impl Visitor for Runs<'_> {
    fn visit<M: Memory + Clone>(&mut self, memory: M) {
        let memory: Any<M::Visibility> = Arc::new(memory);
        run(&memory, self.streams, SCRIPT);
        self.count += 1;
    }
}

impl Visitor for Concrete<'_, '_> {
    fn visit<M: Memory + Clone>(&mut self, memory: M) {
        run(&memory, self.0.streams, SCRIPT);
        self.0.count += 1;
    }
}

#[test]
fn every_pair_works_as_a_concrete_type() {
    scene(|backend, streams| {
        let mut runs = Runs { streams, count: 0 };
        each(Device::new(backend, 0), &mut Over(&mut runs));
        each(Device::new(backend, 0), &mut Concrete(&mut runs));
        each(Pinned::new(backend, 0), &mut runs);
        each(Unified::new(backend, 0), &mut runs);
        each(Host::new(backend, 0), &mut runs);
        each(Arena::new(Device::new(backend, 0), 8192, 4096).expect("room for it"), &mut runs);
        assert_eq!(runs.count, ADAPTORS * (ADAPTORS + 5));
        Vec::new()
    });
}

type Composed = (&'static str, fn(Any<Both>, &Stream) -> Any<Both>);

const COMPOSED: [Composed; 9] = [
    ("Limited", |memory, _| Arc::new(Limited::new(memory, 16 << 20))),
    ("Logged", |memory, _| Arc::new(Logged::new(memory))),
    ("Failing", |memory, _| Arc::new(Failing::new(memory))),
    ("Statistics", |memory, _| Arc::new(Statistics::new(memory))),
    (ALIGNED, |memory, _| Arc::new(Aligned::new(memory, PAGE).and_then(|memory| memory.rounding(256)).expect("a power of two"))),
    ("Tracked", |memory, _| Arc::new(Tracked::new(memory))),
    ("Prefetching", |memory, stream| Arc::new(Prefetching::new(memory, stream.clone(), Some(0)))),
    ("Arena", |memory, _| Arc::new(Arena::new(memory, 1 << 20, PAGE).expect("room for it"))),
    ("Pool", |memory, _| Arc::new(Pool::builder(memory).slab(64 << 10).limit(1 << 20).build().expect("a pool"))),
];
const ALIGNED: &str = "Aligned";
const PAGE: usize = 4096;

fn gives_every_alignment(memory: &Any<Both>, least: usize, stack: &str) {
    let mut live = Vec::new();
    for (bytes, align) in [1, 64, 256, 512, PAGE].into_iter().flat_map(|align| [1, 100, 1000, 5000].map(|bytes| (bytes, align))) {
        let layout = Layout::from_size_align(bytes, align).expect("a layout");
        let block = memory.alloc(layout, None).unwrap_or_else(|error| panic!("{stack}, {layout:?}: {error}"));
        let place = block.host.expect("the host sees it").as_ptr().addr();
        assert!(place.is_multiple_of(align.max(least)), "{stack}: {layout:?} at {place:#x}");
        assert!(block.layout.size() == bytes && block.layout.align() >= align.max(least), "{stack}: {layout:?} as {:?}", block.layout);
        live.push((place, block));
    }
    live.sort_unstable_by_key(|&(place, _)| place);
    assert!(live.windows(2).all(|pair| pair[0].0 + pair[0].1.layout.size() <= pair[1].0), "{stack}: {live:x?}");
    for (_, block) in live {
        let uses = block.ready.map_or(Uses::NONE, Uses::of);
        // SAFETY: this memory's block, freed once; only the operation that made it ready uses it.
        unsafe { memory.free(&block, &uses) }.unwrap_or_else(|error| panic!("{stack}: {error}"));
    }
}

#[test]
fn every_pair_of_adaptors_keeps_alignments() {
    for (lowest, (inner, outer)) in [false, true]
        .into_iter()
        .flat_map(|lowest| COMPOSED.into_iter().flat_map(move |inner| COMPOSED.map(|outer| (lowest, (inner, outer)))))
    {
        scene(|backend, [stream, _]| {
            let unified = Unified::new(backend, 0);
            let base: Any<Both> = if lowest { Arc::new(Aligned::new(unified, PAGE).expect("a power of two")) } else { Arc::new(unified) };
            let memory = outer.1(inner.1(base, stream), stream);
            let least = if lowest || [inner.0, outer.0].contains(&ALIGNED) { PAGE } else { 1 };
            let stack = format!("{} over {} over managed memory{}", outer.0, inner.0, if lowest { " of aligned pages" } else { "" });
            assert_eq!(memory.min_align(), least, "{stack}");
            for _ in 0..2 {
                gives_every_alignment(&memory, least, &stack);
            }
            Vec::new()
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_stacks_and_workloads_keep_data_and_leak_nothing(
        base in 0..BASES,
        adaptors in prop::collection::vec(0..ADAPTORS, 0..5),
        limit in 500_u64..20_000,
        alloc in 0_u64..8,
        free in 0_u64..8,
        steps in prop::collection::vec((0_u8..9, 0_usize..1000, 0_u32..1000), 0..50),
    ) {
        play(base, &adaptors, limit, alloc, free, &steps);
    }
}
