use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::time::Duration;

use ringmem_kernels::echo::{self, Echo};
use ringmem_kernels::{Lanes, Launch, Simulated, persistent_paired};
use ringmem_layouts::control::{Command, Fault, State};
use ringmem_layouts::image::KernelHost;
use ringmem_layouts::ring::paired::{Consumer, Producer};
use ringmem_layouts::ring::{PopError, RingFlags};
use ringmem_layouts::{Host, HostWord};

use crate::echo::message;
use crate::flag_suite::suite;
use crate::memory::{Bytes, Device};
use crate::rig::{OwnRings, Rig, Shape, until};
use crate::simulated_warp::{Lane, with_a_warp};

const WORDS: u64 = 16;

fn send(sender: &mut Producer<'_, Echo, Host>, ids: Range<u64>) -> u64 {
    ids.take_while(|&id| sender.push(message(id)).is_ok()).count() as u64
}

suite! { PAIRED, "echo_paired", persistent_paired, send, batches [1, 3, 128], warps [(32, 64, 40), (2, 256, 100), (40, 16, 3)] }

#[test]
fn a_message_is_consumed_after_all_its_words() {
    let shape = Shape { batch: 8, input: 8, output: 8, start: 5 };
    let (of_rig, of_rings) = (shape.memory::<Echo, Echo>(), memory(shape));
    let mut rig = Rig::<Echo, Echo>::new(&of_rig, shape);
    let mut rings = Rings::new(&of_rings, shape, &rig);
    let (of_other, of_words) = (shape.memory::<Echo, Echo>(), memory(shape));
    let other = Rig::<Echo, Echo>::new(&of_other, shape);
    let mut words = Rings::new(&of_words, shape, &other);
    let device = Device::new([of_rig.range(), of_rings.range()]);
    rig.run_image("echo_paired", &[], &device, |rig| {
        rig.command(Command::ACTIVATE);
        for id in 0..shape.input {
            words.sender.push(message(id)).expect("room for eight");
            let slot = own(shape).layouts()[0].slots_offset() + (shape.start + id) % shape.input * WORDS * 8;
            let word = |memory: &Bytes, number: u64| memory.place::<HostWord>(slot + number * 8);
            // SAFETY: words of both rings; no other producer stores now.
            let copy = |number| unsafe { word(&of_rings, number).as_ref().store(word(&of_words, number).as_ref().load(Relaxed), Relaxed) };
            let missing = 2 * id + id % 2;
            (0..WORDS).filter(|number| *number != missing).for_each(copy);
            rig.until_beats(5);
            assert!(rings.receiver.pop().is_err(), "word {missing} is not there");
            copy(missing);
            until("there is an answer", || rings.receiver.pop().is_ok_and(|answer| answer == message(id)));
        }
        rig.command(Command::DRAIN);
    });
    assert_eq!((rig.end(), rig.snapshot().processed), ((State::Terminated, 0, None), shape.input));
}

#[test]
fn a_second_launch_continues_where_the_first_ended() {
    let shape = Shape { batch: 8, input: 8, output: 16, start: u64::MAX - 3 };
    let (of_rig, of_rings) = (shape.memory::<Echo, Echo>(), memory(shape));
    let mut rig = Rig::<Echo, Echo>::new(&of_rig, shape);
    let mut rings = Rings::new(&of_rings, shape, &rig);
    let device = Device::new([of_rig.range(), of_rings.range()]);
    for id in [0, 5] {
        (id..id + 5).for_each(|id| rings.sender.push(message(id)).expect("room for five"));
        let mut again = Rig::<Echo, Echo>::new(&of_rig, shape);
        own(shape).enter(&of_rings, &again);
        again.run_image("echo_paired", &[], &device, |rig| rig.command(Command::DRAIN));
        assert_eq!(again.end(), (State::Terminated, 0, None));
        rig = again;
    }
    assert_eq!(rig.snapshot().processed, 5);
    (0..10).for_each(|id| assert_eq!(rings.receiver.pop(), Ok(message(id))));
}

/// Half of the lanes attach after the host's first pop.
struct HalfLate<'a> {
    device: &'a dyn KernelHost,
    lane: u32,
    slots: u64,
    arrived: &'a AtomicU32,
    is_popped: &'a AtomicBool,
}

impl KernelHost for HalfLate<'_> {
    fn translate(&self, address: u64, bytes: u64) -> Option<NonNull<u8>> {
        if address == self.slots {
            self.arrived.fetch_add(1, Relaxed);
            if self.lane >= 16 {
                until("the host has popped", || self.is_popped.load(Acquire));
            }
        }
        self.device.translate(address, bytes)
    }

    fn now_ns(&self) -> u64 {
        self.device.now_ns()
    }

    fn pause(&self, times: u32) {
        self.device.pause(times);
    }
}

#[test]
fn a_pop_while_lanes_attach_loses_no_answer() {
    let shape = Shape { batch: 8, input: 8, output: 2, start: 0 };
    let (of_rig, of_rings) = (shape.memory::<Echo, Echo>(), memory(shape));
    let mut rig = Rig::<Echo, Echo>::new(&of_rig, shape);
    let mut rings = Rings::new(&of_rings, shape, &rig);
    let device = Device::new([of_rig.range(), of_rings.range()]);
    (0..2).for_each(|id| rings.sender.push(message(id)).expect("room for two"));
    rig.run_image("echo_paired", &[], &device, |rig| rig.command(Command::DRAIN));
    rings.sender.push(message(2)).expect("room for one");
    let mut again = Rig::<Echo, Echo>::new(&of_rig, shape);
    own(shape).enter(&of_rings, &again);
    let slots = of_rings.address() + own(shape).output_at() + own(shape).layouts()[1].slots_offset();
    let (arrived, is_popped) = (AtomicU32::new(0), AtomicBool::new(false));
    let kernel = |machine: &Simulated<'_>, lanes: &Lane<'_>, launch: &Launch| {
        let host = HalfLate { device: machine.0, lane: lanes.lane(), slots, arrived: &arrived, is_popped: &is_popped };
        // SAFETY: all outlive it; the only peer.
        unsafe { persistent_paired(&Simulated(&host), lanes, launch, &mut echo::Handle::<true>) }
    };
    let panicked = with_a_warp(&mut again, &device, kernel, |rig| {
        until("all lanes attach", || arrived.load(Relaxed) == 32);
        // The other half reads the head meanwhile.
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(rings.receiver.pop(), Ok(message(0)));
        is_popped.store(true, Release);
        rig.command(Command::DRAIN);
        (1..3).for_each(|id| until("there is an answer", || rings.receiver.pop().is_ok_and(|answer| answer == message(id))));
    });
    assert_eq!((panicked, again.end()), (0, (State::Terminated, 0, None)));
}
