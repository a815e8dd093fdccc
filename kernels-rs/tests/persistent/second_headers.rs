//! Rings with a second header, so that each side polls memory near it.

use std::sync::atomic::Ordering::Relaxed;

use ringmem_kernels::echo::Echo;
use ringmem_layouts::control::{Command, Fault, State};
use ringmem_layouts::ring::spsc::{Consumer, Producer};
use ringmem_layouts::{HostWord, RingHeader};

use crate::echo::message;
use crate::machine::unmapped;
use crate::memory::{Bytes, Device};
use crate::rig::{Rig, Shape};

fn address(header: &RingHeader<HostWord>) -> u64 {
    (&raw const *header).expose_provenance() as u64
}

fn slots(header: &RingHeader<HostWord>) -> u64 {
    address(header) + size_of::<RingHeader<u64>>() as u64
}

/// Names second headers, as in [`SecondHeader`](ringmem_layouts::control::SecondHeader).
fn split(rig: &Rig<'_, Echo, Echo>, [input, output]: [u64; 2]) {
    rig.block.input_second.store(input, Relaxed);
    rig.block.output_second.store(output, Relaxed);
}

fn peers(host: &Rig<'_, Echo, Echo>) -> [u64; 2] {
    [host.input, host.output].map(address)
}

pub fn rigs<'a>(far: &'a Bytes, near: &'a Bytes, shape: Shape) -> (Rig<'a, Echo, Echo>, Rig<'a, Echo, Echo>) {
    let (mut rig, host) = (Rig::<Echo, Echo>::new(far, shape), Rig::<Echo, Echo>::new(near, shape));
    let place = |address: u64| std::ptr::NonNull::new(std::ptr::with_exposed_provenance_mut(address as usize)).expect("not null");
    // SAFETY: headers and slots live as long as the rig; the kernel is the peer.
    unsafe {
        rig.sender = Producer::new(host.input, rig.input, place(slots(rig.input))).expect("two headers of one ring");
        rig.receiver = Consumer::new(host.output, rig.output, place(slots(rig.output))).expect("two headers of one ring");
    }
    split(&rig, peers(&host));
    (rig, host)
}

#[test]
fn each_side_polls_only_its_own_header() {
    for (capacity, start) in [(1, 0), (8, u64::MAX - 3)] {
        let shape = Shape { input: capacity, output: capacity, start, ..Shape::default() };
        let (far, near) = (shape.memory::<Echo, Echo>(), shape.memory::<Echo, Echo>());
        let (mut rig, host) = rigs(&far, &near, shape);
        rig.run_image("echo", &[], &Device::new([far.range(), near.range()]), |rig| {
            rig.command(Command::ACTIVATE);
            for id in 0..100 {
                rig.send(message(id));
                assert_eq!(rig.receive(), message(id));
            }
            rig.command(Command::DRAIN);
        });
        assert_eq!(rig.end(), (State::Terminated, 0, None));
        let index = |word: &HostWord| word.load(Relaxed).wrapping_sub(start);
        let (device_input, device_output) = (rig.input, rig.output);
        assert_eq!(
            (index(&device_input.producer.tail), index(&device_output.consumer.head)),
            (100, 100),
            "written by the host, polled by the kernel"
        );
        assert_eq!(
            (index(&host.input.consumer.head), index(&host.output.producer.tail)),
            (100, 100),
            "written by the kernel, polled by the host"
        );
        assert_eq!((index(&device_input.consumer.head), index(&device_output.producer.tail)), (0, 0), "nobody needs these");
        assert_eq!((index(&host.input.producer.tail), index(&host.output.consumer.head)), (0, 0), "nor these");
    }
}

#[test]
fn unmapped_or_mismatched_split_headers_are_faults() {
    let shape = Shape::default();
    let (far, near) = (shape.memory::<Echo, Echo>(), shape.memory::<Echo, Echo>());
    let device = Device::new([far.range(), near.range()]);
    let end_of = |peers: [u64; 2]| {
        let mut rig = Rig::<Echo, Echo>::new(&far, shape);
        split(&rig, peers);
        rig.run_image("echo", &[], &device, |_| {});
        rig.end()
    };
    let host = Rig::<Echo, Echo>::new(&near, shape);
    let good = peers(&host);
    for part in 0..2 {
        for bad in [8, good[part] + 8].into_iter().chain(unmapped([good[part] ^ (1 << 62)])) {
            let mut peers = good;
            peers[part] = bad;
            assert_eq!(end_of(peers), (State::Faulted, 1, Some(Fault::Address)), "part {part} at {bad:#x}");
        }
    }
    for header in [host.input, host.output] {
        header.constants.capacity.store(2, Relaxed);
        assert_eq!(end_of(good), (State::Faulted, 1, Some(Fault::Ring)), "the two headers differ");
        header.constants.capacity.store(64, Relaxed);
    }
}
