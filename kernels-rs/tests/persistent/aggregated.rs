use std::sync::atomic::Ordering::Relaxed;
use std::thread;

use ringmem_kernels::echo::{self, Echo};
use ringmem_kernels::{Batch, Handler, Simulated, Single, persistent_aggregated};
use ringmem_layouts::control::{Command, Fault, State};
use ringmem_layouts::image::KernelHost;
use ringmem_layouts::kernel::DevicePointer;
use ringmem_layouts::ring::aggregate::Aggregate;
use ringmem_layouts::ring::spsc::{Consumer, PopError};
use ringmem_layouts::{Host, HostWord, Machine, RingHeader, RingLayout, Word};

use crate::machine::unmapped;
use crate::memory::{Bytes, Device};
use crate::rig::{Rig, Shape, until};
use crate::simulated_warp::on_a_warp;

const OUTPUT: u64 = 128;

pub fn message(group: u64, id: u64) -> Echo {
    Echo { words: std::array::from_fn(|word| [group, id][word % 2]) }
}

pub struct Shared {
    pub memory: Bytes,
    layout: RingLayout,
}

impl Shared {
    pub fn new(capacity: u64, start: u64) -> Self {
        let layout = RingLayout::of::<Echo>(capacity).expect("a geometry");
        let memory = Bytes::zeroed((OUTPUT + layout.size()) as usize);
        // SAFETY: within the memory, unused.
        unsafe { memory.place::<Aggregate<HostWord>>(0).write(Aggregate::starting_at(start)) };
        // SAFETY: the memory holds the layout at `OUTPUT`, and nothing else uses it before `new` returns.
        unsafe { memory.place::<RingHeader<HostWord>>(OUTPUT).as_ref().format::<Echo>(&layout, start) };
        Self { memory, layout }
    }

    pub fn receiver(&self) -> Consumer<'_, Echo, Host> {
        // SAFETY: the layout's memory; the only consumer.
        unsafe { Consumer::from_raw(self.memory.place(OUTPUT), self.layout.size()) }.expect("just formatted")
    }

    pub fn output(&self) -> &RingHeader<HostWord> {
        // SAFETY: formatted by `new`; words.
        unsafe { self.memory.place(OUTPUT).as_ref() }
    }

    fn counters(&self) -> &Aggregate<HostWord> {
        // SAFETY: initialised by `new`; words.
        unsafe { self.memory.place(0).as_ref() }
    }

    fn reserve_without_publishing(&self) {
        // SAFETY: initialised by `new`; the first word of the counters.
        let reserved: &HostWord = unsafe { self.memory.place(0).as_ref() };
        reserved.fetch_add(1, Relaxed);
    }
}

pub fn joins(rig: &mut Rig<'_, Echo, Echo>, shared: &Shared, group: u64) {
    rig.block.output_ring.store(shared.memory.address() + OUTPUT, Relaxed);
    rig.launch.controls = rig.launch.controls.wrapping_sub(group * 128);
}

struct Group<'a> {
    device: &'a Device,
    number: u64,
}

impl KernelHost for Group<'_> {
    fn translate(&self, address: u64, bytes: u64) -> Option<std::ptr::NonNull<u8>> {
        self.device.translate(address, bytes)
    }
    fn now_ns(&self) -> u64 {
        thread::yield_now();
        self.device.now_ns()
    }
    fn group(&self) -> u64 {
        self.number
    }
    fn pause(&self, times: u32) {
        self.device.pause(times);
    }
}

fn converse(rigs: &mut [Rig<'_, Echo, Echo>], shared: &Shared, count: u64) {
    let mut receiver = shared.receiver();
    let mut sent = vec![0; rigs.len()];
    let mut answered = vec![0; rigs.len()];
    rigs.iter_mut().for_each(|rig| rig.command(Command::ACTIVATE));
    until("all is answered", || {
        for (group, rig) in rigs.iter_mut().enumerate() {
            while sent[group] < count && rig.sender.push(message(group as u64, sent[group])).is_ok() {
                sent[group] += 1;
            }
        }
        loop {
            match receiver.pop() {
                Ok(answer) => {
                    let group = answer.words[0] as usize;
                    assert_eq!(answer, message(group as u64, answered[group]), "whole and in its group's order");
                    answered[group] += 1;
                }
                Err(PopError::Empty) => break,
                Err(PopError::Corrupt(corrupt)) => panic!("{corrupt}"),
            }
        }
        answered.iter().all(|answered| *answered == count)
    });
    rigs.iter_mut().for_each(|rig| rig.command(Command::DRAIN));
}

#[test]
fn several_groups_answer_into_one_ring_without_loss() {
    for (groups, capacity, batch, start) in [(1, 1, 1, 0), (2, 2, 8, u64::MAX), (4, 8, 8, u64::MAX - 100), (4, 64, 32, 0)] {
        let shape = Shape { batch, ..Shape::default() };
        let shared = Shared::new(capacity, start);
        let memories: Vec<Bytes> = (0..groups).map(|_| shape.memory::<Echo, Echo>()).collect();
        let device = Device::new(memories.iter().map(Bytes::range).chain([shared.memory.range()]));
        let mut rigs: Vec<_> = memories.iter().map(|memory| Rig::<Echo, Echo>::new(memory, shape)).collect();
        rigs.iter_mut().zip(0..).for_each(|(rig, group)| joins(rig, &shared, group));
        let launches: Vec<_> = rigs.iter().map(|rig| rig.launch).collect();
        thread::scope(|scope| {
            for (launch, number) in launches.into_iter().zip(0..) {
                let (device, counters) = (&device, shared.memory.address());
                scope.spawn(move || {
                    let host = Group { device, number };
                    // SAFETY: all outlive it; the only peer.
                    unsafe { echo::echo_aggregated(&Simulated(&host), &Single(&host), &launch, DevicePointer::new(counters)) }
                });
            }
            converse(&mut rigs, &shared, 500);
        });
        for rig in &rigs {
            assert_eq!((rig.end(), rig.snapshot().processed), ((State::Terminated, 0, None), 500), "{groups} groups");
        }
        let all = start.wrapping_add(500 * groups);
        assert_eq!([shared.counters().reserved(), shared.counters().published()], [all; 2]);
    }
}

#[test]
fn two_warps_share_one_output_ring() {
    let shape = Shape { batch: 40, ..Shape::default() };
    let shared = Shared::new(64, u64::MAX - 9);
    let memories = [shape.memory::<Echo, Echo>(), shape.memory::<Echo, Echo>()];
    let device = Device::new(memories.iter().map(Bytes::range).chain([shared.memory.range()]));
    let mut rigs: Vec<_> = memories.iter().map(|memory| Rig::<Echo, Echo>::new(memory, shape)).collect();
    rigs.iter_mut().zip(0..).for_each(|(rig, group)| joins(rig, &shared, group));
    let launches: Vec<_> = rigs.iter().map(|rig| rig.launch).collect();
    thread::scope(|scope| {
        for (launch, group) in launches.into_iter().zip(0..) {
            let (device, counters) = (&device, shared.memory.address());
            scope.spawn(move || {
                // SAFETY: the memories and the shared ring outlive the scope; this launch is the only peer of each ring.
                on_a_warp(device, group, |machine, lanes| unsafe {
                    echo::echo_aggregated(machine, lanes, &launch, DevicePointer::new(counters))
                })
            });
        }
        converse(&mut rigs, &shared, 100);
    });
    assert_eq!([rigs[0].end(), rigs[1].end()], [(State::Terminated, 0, None); 2]);
}

#[test]
fn an_unpublished_reservation_faults_the_next_group() {
    let shape = Shape::default();
    let (shared, memory) = (Shared::new(64, 0), shape.memory::<Echo, Echo>());
    let device = Device::with_manual_clock([memory.range(), shared.memory.range()]);
    let mut rig = Rig::<Echo, Echo>::new(&memory, shape);
    joins(&mut rig, &shared, 0);
    rig.launch.idle_ns = 1_000;
    shared.reserve_without_publishing();
    let counters = shared.memory.address();
    rig.run_image("echo_aggregated", &[counters], &device, |rig| {
        rig.command(Command::ACTIVATE);
        rig.send(message(0, 0));
        until("its batch is reserved", || shared.counters().reserved() == 2);
        device.until_it_pauses();
        device.advance(1_000);
        let before = device.pauses.load(Relaxed);
        until("it reads the clock", || device.pauses.load(Relaxed) > before + 200);
        assert_eq!(rig.state(), Some(State::Active), "the deadline itself is not past it");
        device.advance(1);
        rig.until_state(State::Faulted);
    });
    assert_eq!(rig.end(), (State::Faulted, 1, Some(Fault::Deadline)));
    assert_eq!((rig.snapshot().processed, shared.receiver().pop()), (0, Err(PopError::Empty)), "nothing overtakes what came before");
    assert_eq!(rig.snapshot().in_flight, 1, "it was taken");
}

#[test]
fn a_timed_out_batch_stays_in_flight() {
    struct Overtaken<'s>(&'s Shared, bool);
    impl<M: Machine> Handler<M, Single<'_>> for Overtaken<'_> {
        type Input = Echo;
        type Output = Echo;
        unsafe fn answer(&mut self, _: &Single<'_>, batch: &mut Batch<'_, '_, Echo, Echo, M>) -> u64 {
            if !std::mem::replace(&mut self.1, true) {
                self.0.reserve_without_publishing();
            }
            batch.len()
        }
    }
    let shape = Shape { batch: 3, ..Shape::default() };
    let (shared, memory) = (Shared::new(64, 0), shape.memory::<Echo, Echo>());
    let device = Device::with_manual_clock([memory.range(), shared.memory.range()]);
    let mut rig = Rig::<Echo, Echo>::new(&memory, shape);
    joins(&mut rig, &shared, 0);
    rig.launch.idle_ns = 1_000;
    for id in 0..5 {
        rig.send(message(0, id));
    }
    let (launch, counters) = (rig.launch, shared.memory.address());
    let kernel = || {
        let mut handler = Overtaken(&shared, false);
        // SAFETY: rig and shared memory outlive this only kernel.
        unsafe { persistent_aggregated(&Simulated(&device), &Single(&device), &launch, counters, &mut handler) }
    };
    let (_, ended) = rig.run(kernel, |rig| {
        rig.control.command(Command::ACTIVATE);
        until("its second batch is reserved", || shared.counters().reserved() == 6);
        device.until_it_pauses();
        device.advance(1_001);
        rig.until_state(State::Faulted);
    });
    ended.expect("the kernel does not panic");
    assert_eq!(rig.end(), (State::Faulted, 1, Some(Fault::Deadline)));
    let (block, told) = (rig.snapshot(), rig.telemetry.snapshot().expect("nobody writes any more"));
    assert_eq!((block.processed, block.in_flight), (3, 2), "answered, and taken");
    assert_eq!((told.processed, told.dropped), (3, 3));
}

#[test]
fn bad_counters_and_impossible_indices_are_faults() {
    let shape = Shape::default();
    let (shared, memory) = (Shared::new(64, 0), shape.memory::<Echo, Echo>());
    let device = Device::new([memory.range(), shared.memory.range()]);
    for counters in [0, shared.memory.address() + 8].into_iter().chain(unmapped([shared.memory.address() ^ 1 << 62])) {
        let mut rig = Rig::<Echo, Echo>::new(&memory, shape);
        joins(&mut rig, &shared, 0);
        rig.run_image("echo_aggregated", &[counters], &device, |_| {});
        assert_eq!(rig.end(), (State::Faulted, 1, Some(Fault::Address)), "{counters:#x}");
    }
    for wrong in [2, 2_u64.wrapping_neg()] {
        let shared = Shared::new(1, 0);
        let device = Device::new([memory.range(), shared.memory.range()]);
        let mut rig = Rig::<Echo, Echo>::new(&memory, shape);
        joins(&mut rig, &shared, 0);
        let counters = shared.memory.address();
        rig.run_image("echo_aggregated", &[counters], &device, |rig| {
            rig.command(Command::ACTIVATE);
            Word::store_release(&shared.output().consumer.head, wrong);
            rig.send(message(0, 0));
            rig.send(message(0, 1));
            rig.until_state(State::Faulted);
        });
        assert_eq!(rig.end(), (State::Faulted, 1, Some(Fault::Corrupt)), "{wrong}");
    }
}
