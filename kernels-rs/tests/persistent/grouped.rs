use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::thread;

use ringmem_kernels::echo::Echo;
use ringmem_kernels::{Batch, Handler, Launch, Simulated, Single, persistent_grouped};
use ringmem_layouts::control::{Command, Fault, State};
use ringmem_layouts::image::KernelHost;
use ringmem_layouts::ring::groups::Groups;
use ringmem_layouts::ring::spsc::PopError;
use ringmem_layouts::{HostWord, Machine, Word};

use crate::machine::{run_image, unmapped};
use crate::memory::{Bytes, Device};
use crate::rig::{EPOCH, Rig, Shape, until};
use crate::simulated_warp::on_a_warp;

pub fn message(id: u64) -> Echo {
    Echo { words: [id; 8] }
}

/// Zeroed memory for `Groups`.
pub fn memory() -> Bytes {
    Bytes::zeroed(128)
}

pub fn counters(memory: &Bytes) -> &Groups<HostWord> {
    // SAFETY: within the memory, aligned; words, of any bytes.
    unsafe { memory.place(0).as_ref() }
}

struct Group<'a> {
    device: &'a Device,
    place: [u64; 2],
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
        self.place[0]
    }
    fn groups(&self) -> u64 {
        self.place[1]
    }
    fn pause(&self, times: u32) {
        self.device.pause(times);
    }
}

/// Runs a kernel on each group; returns how many panicked.
fn on_groups(device: &Device, groups: u64, kernel: impl Fn(&Group<'_>) + Sync) -> usize {
    thread::scope(|scope| {
        let all: Vec<_> = (0..groups)
            .map(|group| {
                let (group, kernel) = (Group { device, place: [group, groups] }, &kernel);
                scope.spawn(move || catch_unwind(AssertUnwindSafe(|| kernel(&group))).is_err())
            })
            .collect();
        all.into_iter().map(|group| usize::from(group.join().expect("its panic was caught"))).sum()
    })
}

/// Runs `echo_grouped` of the image on groups while the host works.
fn with_echo(rig: &mut Rig<'_, Echo, Echo>, device: &Device, groups: u64, shared: &Bytes, host: impl FnOnce(&mut Rig<'_, Echo, Echo>)) {
    let arguments = rig.arguments(&[shared.address()]);
    let (_, ended) = rig.run(|| assert_eq!(on_groups(device, groups, |group| run_image("echo_grouped", &arguments, group)), 0), host);
    ended.expect("no group panics");
}

/// Sends messages and receives their answers, in order, then ends the kernel.
fn converse(rig: &mut Rig<'_, Echo, Echo>, ids: std::ops::Range<u64>) {
    rig.command(Command::ACTIVATE);
    let mut sent = ids.start;
    for id in ids.clone() {
        let answer = rig.receive_sending(|sender| {
            while sent < ids.end && sender.push(message(sent)).is_ok() {
                sent += 1;
            }
        });
        assert_eq!(answer, message(id), "whole, and in the order of the messages");
    }
    rig.command(Command::DRAIN);
}

#[test]
fn several_groups_answer_in_order_without_loss() {
    for (groups, capacity, batch, start) in [(1, 1, 1, 0), (2, 2, 8, u64::MAX), (4, 8, 8, u64::MAX - 100), (5, 64, 32, 0)] {
        let shape = Shape { input: capacity, output: capacity, batch, start };
        let (ground, shared) = (shape.memory::<Echo, Echo>(), memory());
        let device = Device::new([ground.range(), shared.range()]);
        let mut rig = Rig::<Echo, Echo>::new(&ground, shape);
        with_echo(&mut rig, &device, groups, &shared, |rig| converse(rig, 0..1000));
        assert_eq!((rig.end(), rig.snapshot().processed), ((State::Terminated, 0, None), 1000), "{groups} groups");
        assert_eq!([counters(&shared).reserved(), counters(&shared).published()], [1000; 2]);
        assert_eq!(counters(&shared).left(), groups - 1, "all others have left before the end");
        assert_eq!(rig.output.producer.tail.load(Relaxed), start.wrapping_add(1000));
    }
}

#[test]
fn two_warps_answer_in_order() {
    let shape = Shape { batch: 40, start: u64::MAX - 9, ..Shape::default() };
    let (ground, shared) = (shape.memory::<Echo, Echo>(), memory());
    let device = Device::new([ground.range(), shared.range()]);
    let mut rig = Rig::<Echo, Echo>::new(&ground, shape);
    let launch = rig.launch;
    let kernel = || {
        thread::scope(|scope| {
            for group in 0..2 {
                let (device, shared) = (&device, shared.address());
                scope.spawn(move || {
                    // SAFETY: the memories outlive the scope; these groups are the only peer of the host.
                    on_a_warp(device, [group, 2], |machine, lanes| unsafe {
                        persistent_grouped(machine, lanes, &launch, shared, &mut ringmem_kernels::echo::Handle::<true>)
                    })
                });
            }
        });
    };
    let (_, ended) = rig.run(kernel, |rig| converse(rig, 0..200));
    ended.expect("no panic");
    assert_eq!((rig.end(), rig.snapshot().processed), ((State::Terminated, 0, None), 200));
}

/// A test's code within a group's answers.
trait During: Sync {
    fn answer(&self, group: u64, first: u64, count: u64) -> u64;
}

impl<F: Fn(u64, u64, u64) -> u64 + Sync> During for F {
    fn answer(&self, group: u64, first: u64, count: u64) -> u64 {
        self(group, first, count)
    }
}

struct Watched<'a> {
    during: &'a dyn During,
    group: u64,
}

impl<M: Machine> Handler<M, Single<'_>> for Watched<'_> {
    type Input = Echo;
    type Output = Echo;
    unsafe fn answer(&mut self, _: &Single<'_>, batch: &mut Batch<'_, '_, Echo, Echo, M>) -> u64 {
        let mut first = None;
        for index in 0..batch.len() {
            // SAFETY: below the length; the only lane.
            let id = unsafe {
                batch.exchange(index, |message, answer| {
                    *answer = *message;
                    message.words[0]
                })
            };
            first = first.or(Some(id));
        }
        self.during.answer(self.group, first.expect("not empty"), batch.len())
    }
}

/// Runs as many groups of [`Watched`] handlers; returns how many panicked.
fn watched(device: &Device, groups: u64, launch: Launch, shared: u64, during: &dyn During) -> usize {
    on_groups(device, groups, |group| {
        let mut handler = Watched { during, group: group.place[0] };
        // SAFETY: all memory outlives the groups, which are the only peer of the host.
        unsafe { persistent_grouped(&Simulated(group), &Single(group), &launch, shared, &mut handler) }
    })
}

/// A point where a group waits for the test.
#[derive(Default)]
struct Gate(AtomicU64);

impl Gate {
    fn pass(&self) {
        self.0.fetch_add(1, AcqRel);
        until("the test opens the gate", || self.0.load(Acquire) >= 100);
    }
    fn open(&self) {
        self.0.fetch_add(100, Release);
    }
    /// Opens it even if the test fails.
    fn opened_at_last(&self) -> impl Drop {
        struct Opening<'a>(&'a Gate);
        impl Drop for Opening<'_> {
            fn drop(&mut self) {
                self.0.open();
            }
        }
        Opening(self)
    }
    fn until_one_waits(&self) {
        until("a group waits", || !self.0.load(Acquire).is_multiple_of(100));
    }
}

const SHAPE: Shape = Shape { input: 64, output: 64, start: 5, batch: 8 };

#[test]
fn a_portion_leaves_messages_to_other_groups() {
    let (ground, shared) = (SHAPE.memory::<Echo, Echo>(), memory());
    let device = Device::new([ground.range(), shared.range()]);
    let mut rig = Rig::<Echo, Echo>::new(&ground, SHAPE);
    rig.launch.batch = 64;
    (0..64).for_each(|id| rig.send(message(id)));
    let (launch, most) = (rig.launch, AtomicU64::new(0));
    let during = |_: u64, _: u64, count: u64| {
        most.fetch_max(count, Relaxed);
        0
    };
    let kernel = || assert_eq!(watched(&device, 2, launch, shared.address(), &during), 0);
    let (_, ended) = rig.run(kernel, |rig| converse(rig, 64..64));
    ended.expect("no panic");
    assert_eq!((rig.end(), rig.snapshot().processed), ((State::Terminated, 0, None), 64));
    assert_eq!(most.into_inner(), 32, "the first of two groups leaves half");
}

#[test]
fn a_stuck_group_faults_those_behind_it() {
    let (ground, shared, gate) = (SHAPE.memory::<Echo, Echo>(), memory(), Gate::default());
    let device = Device::with_manual_clock([ground.range(), shared.range()]);
    let mut rig = Rig::<Echo, Echo>::new(&ground, SHAPE);
    (rig.launch.idle_ns, rig.launch.batch) = (1_000, 1);
    let launch = rig.launch;
    let during = |group: u64, first: u64, _: u64| {
        if first == 0 {
            gate.pass();
        }
        u64::from(group == 0)
    };
    let kernel = || assert_eq!(watched(&device, 2, launch, shared.address(), &during), 0);
    let (_, ended) = rig.run(kernel, |rig| {
        let _opening = gate.opened_at_last();
        rig.control.command(Command::ACTIVATE);
        rig.send(message(0));
        gate.until_one_waits();
        rig.send(message(1));
        until("its batch is reserved", || counters(&shared).reserved() == 2);
        device.until_it_pauses();
        device.advance(1_000);
        let before = device.pauses.load(Relaxed);
        until("it reads the clock", || device.pauses.load(Relaxed) > before + 200);
        assert_eq!(counters(&shared).over(), None, "the deadline itself is not past it");
        device.advance(1);
        until("it gives up", || counters(&shared).over().is_some());
        gate.open();
        rig.until_state(State::Faulted);
    });
    ended.expect("no panic");
    assert_eq!(rig.end(), (State::Faulted, 1, Some(Fault::Deadline)));
    let (block, told) = (rig.snapshot(), rig.telemetry.snapshot().expect("nobody writes any more"));
    assert_eq!(rig.received(), [message(0)], "nothing overtakes what came before");
    assert_eq!((block.processed + block.in_flight, told.processed), (2, block.processed), "both were taken");
}

#[test]
fn a_pause_waits_for_the_batches_of_other_groups() {
    for ends in [false, true] {
        let (ground, shared, gate) = (SHAPE.memory::<Echo, Echo>(), memory(), Gate::default());
        let device = Device::new([ground.range(), shared.range()]);
        let mut rig = Rig::<Echo, Echo>::new(&ground, SHAPE);
        let launch = rig.launch;
        // Only what group 1 has taken is held back.
        let during = |group: u64, _: u64, _: u64| {
            if group == 1 {
                gate.pass();
            }
            u64::from(group == 1)
        };
        let kernel = || assert_eq!(watched(&device, 2, launch, shared.address(), &during), 0);
        let (_, ended) = rig.run(kernel, |rig| {
            let _opening = gate.opened_at_last();
            rig.command(Command::ACTIVATE);
            // One message at a time, so that group 0 has none when group 1 has one.
            let mut sent = 0;
            while gate.0.load(Acquire) == 0 {
                rig.send(message(sent));
                sent += 1;
                until("a group has it", || rig.receiver.pop().is_ok() || gate.0.load(Acquire) > 0);
            }
            rig.control.command(if ends { Command::TERMINATE } else { Command::PAUSE });
            let before = device.pauses.load(Relaxed);
            until("group 0 waits", || device.pauses.load(Relaxed) > before + 300 || rig.state().is_some_and(State::has_ended));
            assert_ne!(rig.state(), Some(State::Terminated), "group 1 still works");
            assert!(ends || !rig.control.acknowledged(), "group 1 still works");
            gate.open();
            if ends {
                rig.until_state(State::Terminated);
            } else {
                until("the pause is acknowledged", || rig.control.acknowledged());
                let published = counters(&shared).published();
                assert_eq!(counters(&shared).reserved(), published);
                let told = rig.snapshot();
                assert_eq!((told.processed, told.in_flight), (published, 0), "exact in a pause");
                let _ = rig.sender.push(message(sent)); // or else, the ring is full of others
                rig.until_beats(64);
                assert_eq!(counters(&shared).reserved(), published, "nobody takes a message in a pause");
                rig.command(Command::ACTIVATE);
                rig.control.command(Command::DRAIN);
                until("all is answered", || {
                    let _ = rig.receiver.pop();
                    rig.state() == Some(State::Terminated)
                });
            }
        });
        ended.expect("no panic");
        let told = rig.telemetry.snapshot().expect("nobody writes any more");
        assert_eq!(rig.end(), (State::Terminated, 0, None));
        assert_eq!((rig.snapshot().processed, told.processed), (counters(&shared).published(), counters(&shared).published()));
        assert_eq!(told.dropped, counters(&shared).refused(), "as group 1 has counted");
        assert!(told.dropped > 0);
    }
}

#[test]
fn a_panic_of_any_group_ends_all() {
    for (of, groups) in [(0, 1), (0, 3), (1, 3), (2, 3)] {
        let (ground, shared) = (SHAPE.memory::<Echo, Echo>(), memory());
        let device = Device::new([ground.range(), shared.range()]);
        let mut rig = Rig::<Echo, Echo>::new(&ground, SHAPE);
        let launch = rig.launch;
        let during = |group: u64, _: u64, _: u64| if group == of { panic!("of group {of}") } else { 0 };
        let kernel = || assert_eq!(watched(&device, groups, launch, shared.address(), &during), 1);
        let (_, ended) = rig.run(kernel, |rig| {
            rig.control.command(Command::ACTIVATE);
            let mut sent = 0;
            until("the kernel is faulted", || {
                sent += u64::from(rig.sender.push(message(sent)).is_ok());
                let _ = rig.receiver.pop();
                rig.state() == Some(State::Faulted)
            });
        });
        ended.expect("one group panics");
        assert_eq!(rig.snapshot().faults().1, Some(Fault::Panic), "group {of} of {groups}");
    }
}

#[test]
fn another_abi_or_epoch_lets_all_groups_leave() {
    for (abi, epoch) in [(1, 0), (0, 1)] {
        let (ground, shared) = (SHAPE.memory::<Echo, Echo>(), memory());
        let device = Device::new([ground.range(), shared.range()]);
        let mut rig = Rig::<Echo, Echo>::new(&ground, SHAPE);
        (rig.launch.abi, rig.launch.epoch) = (rig.launch.abi ^ abi, EPOCH + epoch);
        let launch = rig.launch;
        let during = |_: u64, _: u64, _: u64| 0;
        let kernel = || assert_eq!(watched(&device, 3, launch, shared.address(), &during), 0);
        rig.run(kernel, |_| {}).1.expect("no panic");
        let expected = if abi == 1 { (Some(State::Faulted), Some(Fault::Abi)) } else { (Some(State::Created), None) };
        assert_eq!((rig.state(), rig.snapshot().faults().1), expected);
    }
}

#[test]
fn a_later_launch_goes_on_where_the_last_ended() {
    let (ground, shared) = (SHAPE.memory::<Echo, Echo>(), memory());
    let device = Device::new([ground.range(), shared.range()]);
    let mut rig = Rig::<Echo, Echo>::new(&ground, SHAPE);
    with_echo(&mut rig, &device, 3, &shared, |rig| {
        rig.command(Command::ACTIVATE);
        (0..10).for_each(|id| rig.send(message(id)));
        until("they are answered", || counters(&shared).published() == 10);
        rig.control.command(Command::TERMINATE);
        rig.until_state(State::Terminated);
    });
    (10..20).for_each(|id| rig.send(message(id)));
    let prepared = ringmem_layouts::control::Launch {
        abi: ringmem_kernels::ABI.hash,
        capabilities: ringmem_layouts::control::Capabilities::SYSTEM_SCOPE,
        epoch: EPOCH + 1,
        input_ring: rig.block.input_ring.load(Relaxed),
        output_ring: rig.block.output_ring.load(Relaxed),
        second_headers: [None; 2],
        telemetry: rig.block.telemetry.load(Relaxed),
    };
    // SAFETY: the kernel has returned; the only host.
    rig.control = unsafe {
        ringmem_layouts::control::HostSide::prepare(ground.place::<ringmem_layouts::control::Shared<HostWord>>(0).as_ref(), &prepared)
    };
    rig.launch.epoch = EPOCH + 1;
    with_echo(&mut rig, &device, 2, &shared, |rig| {
        rig.command(Command::ACTIVATE);
        (0..20).for_each(|id| assert_eq!(rig.receive(), message(id)));
        rig.command(Command::DRAIN);
    });
    assert_eq!((rig.end(), rig.snapshot().processed), ((State::Terminated, 0, None), 10));
    assert_eq!(counters(&shared).first(), [15, 15]);
}

#[test]
fn a_group_that_comes_after_the_end_is_waited_for() {
    let (ground, shared) = (SHAPE.memory::<Echo, Echo>(), memory());
    let device = Device::with_manual_clock([ground.range(), shared.range()]);
    let mut rig = Rig::<Echo, Echo>::new(&ground, SHAPE);
    rig.launch.idle_ns = 1_000;
    let (arguments, is_gone) = (rig.arguments(&[shared.address()]), AtomicBool::new(false));
    let kernel = || {
        let late = |group: &Group<'_>| {
            if group.place[0] > 0 {
                until("group 0 ends the work", || counters(&shared).over().is_some());
            }
            run_image("echo_grouped", &arguments, group);
            if group.place[0] > 0 {
                is_gone.store(true, Release);
            }
        };
        assert_eq!(on_groups(&device, 2, late), 0);
    };
    let (_, ended) = rig.run(kernel, |rig| {
        rig.command(Command::ACTIVATE);
        rig.control.command(Command::TERMINATE);
        until("group 1 has come and gone", || is_gone.load(Acquire));
        // Had it not been counted, group 0 would wait in vain.
        device.advance(1_001);
        until("group 0 ends", || rig.state().is_some_and(State::has_ended));
    });
    ended.expect("no group panics");
    assert_eq!((rig.end(), counters(&shared).left()), ((State::Terminated, 0, None), 1));
}

#[test]
fn the_idle_limit_counts_from_the_last_answer_of_any_group() {
    /// Group 0 looks only when the test lets it, so that it never sees a message.
    struct Held<'a> {
        group: &'a Group<'a>,
        rounds: &'a Rounds,
    }
    #[derive(Default)]
    struct Rounds {
        is_held: AtomicBool,
        begun: AtomicU64,
        over: AtomicU64,
    }
    impl KernelHost for Held<'_> {
        fn translate(&self, address: u64, bytes: u64) -> Option<std::ptr::NonNull<u8>> {
            self.group.translate(address, bytes)
        }
        fn now_ns(&self) -> u64 {
            self.group.now_ns()
        }
        fn group(&self) -> u64 {
            self.group.group()
        }
        fn groups(&self) -> u64 {
            self.group.groups()
        }
        fn pause(&self, times: u32) {
            self.group.pause(times);
            if self.group() == 0 && self.rounds.is_held.load(Acquire) {
                let round = self.rounds.begun.fetch_add(1, AcqRel);
                until("the test lets group 0 look", || self.rounds.over.load(Acquire) > round || !self.rounds.is_held.load(Acquire));
            }
        }
    }
    let (ground, shared, rounds) = (SHAPE.memory::<Echo, Echo>(), memory(), Rounds::default());
    let device = Device::with_manual_clock([ground.range(), shared.range()]);
    let mut rig = Rig::<Echo, Echo>::new(&ground, SHAPE);
    rig.launch.idle_ns = 1_000;
    let arguments = rig.arguments(&[shared.address()]);
    let kernel = || assert_eq!(on_groups(&device, 2, |group| run_image("echo_grouped", &arguments, &Held { group, rounds: &rounds })), 0);
    struct Freeing<'a>(&'a Rounds);
    impl Drop for Freeing<'_> {
        fn drop(&mut self) {
            self.0.is_held.store(false, Release);
        }
    }
    let (_, ended) = rig.run(kernel, |rig| {
        let _freeing = Freeing(&rounds);
        rig.command(Command::ACTIVATE);
        rounds.is_held.store(true, Release);
        for id in 0..64 {
            until("group 0 stands still", || rounds.begun.load(Acquire) > id);
            assert_eq!(counters(&shared).over(), None, "after {id} answers of group 1");
            rig.send(message(id));
            assert_eq!(rig.receive(), message(id), "by group 1");
            device.advance(100);
            rounds.over.fetch_add(1, AcqRel);
        }
        rounds.is_held.store(false, Release);
        until("it has seen the last one", || rig.snapshot().processed == 64);
        device.advance(1_001);
        rig.until_state(State::Faulted);
    });
    ended.expect("no group panics");
    assert_eq!(rig.end(), (State::Faulted, 1, Some(Fault::Deadline)));
}

#[test]
fn bad_counters_and_impossible_indices_are_faults() {
    let (ground, shared) = (SHAPE.memory::<Echo, Echo>(), memory());
    let device = Device::new([ground.range(), shared.range()]);
    for counters in [0, shared.address() + 8].into_iter().chain(unmapped([shared.address() ^ 1 << 62])) {
        let mut rig = Rig::<Echo, Echo>::new(&ground, SHAPE);
        let arguments = rig.arguments(&[counters]);
        let (_, ended) = rig.run(|| assert_eq!(on_groups(&device, 2, |group| run_image("echo_grouped", &arguments, group)), 0), |_| {});
        ended.expect("no group panics");
        assert_eq!(rig.end(), (State::Faulted, 1, Some(Fault::Address)), "{counters:#x}");
    }
    for wrong in [2, 2_u64.wrapping_neg()] {
        for of_input in [false, true] {
            let shape = Shape { input: 1, output: 1, start: 0, batch: 1 };
            let (ground, shared) = (shape.memory::<Echo, Echo>(), memory());
            let device = Device::new([ground.range(), shared.range()]);
            let mut rig = Rig::<Echo, Echo>::new(&ground, shape);
            with_echo(&mut rig, &device, 2, &shared, |rig| {
                // Before a group may look.
                until("it is ready", || rig.state() == Some(State::Ready));
                match of_input {
                    true => Word::store_release(&rig.input.producer.tail, wrong),
                    false => {
                        Word::store_release(&rig.output.consumer.head, wrong);
                        rig.send(message(0));
                    }
                }
                rig.control.command(Command::ACTIVATE);
                rig.until_state(State::Faulted);
            });
            assert_eq!(rig.end(), (State::Faulted, 1, Some(Fault::Corrupt)), "{wrong}");
            assert_eq!(rig.receiver.pop(), Err(PopError::Empty));
        }
    }
}
