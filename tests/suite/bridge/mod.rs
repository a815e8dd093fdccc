mod faults;
mod flights;
mod hostile;
mod log;
mod model;
mod open;
mod order;
mod panics;
mod pump;
mod restart;
mod sleep;
mod tasks;

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::rig::leak_checked::Clean;
use crate::{LIMIT, eventually};
use ringmem::backend::host::HostBackend;
use ringmem::bridge::{Opened, Options, Placement, Receiver, RingAddresses, RingBufferBridge, Sender, TransferStrategy};
use ringmem::image::{Entry, KernelHost};
use ringmem::ring::spsc::{Consumer, PopError, Producer, PushError};
use ringmem::stream::{Module, Pending, Stream};
use ringmem::{Image, Machine, RingHeader, RingMessage};
use ringmem_kernels::echo::Echo;
use ringmem_kernels::{ABI, IMAGE, Simulated};

const STRATEGIES: [TransferStrategy; 4] =
    [TransferStrategy::Sync, TransferStrategy::Async, TransferStrategy::DmaPolling { poll_interval_us: 1 }, TransferStrategy::Unified];

fn backend() -> Clean {
    Clean::build(HostBackend::builder().device_memory(1 << 20))
}

fn message(number: u64) -> Echo {
    Echo { words: [number, !number, number << 7, 3, 4, 5, 6, number.wrapping_mul(number)] }
}

unsafe fn parts<'a, T: RingMessage>(
    machine: &Simulated<'a>,
    [own, peer, slots]: [u64; 3],
) -> (&'a RingHeader<ringmem::HostWord>, &'a RingHeader<ringmem::HostWord>, std::ptr::NonNull<<Simulated<'a> as Machine>::Cell<T>>) {
    let header = |address| {
        let place = machine.at(address, 384, 128).expect("a header");
        // SAFETY: mapped; headers are words.
        unsafe { place.cast::<RingHeader<ringmem::HostWord>>().as_ref() }
    };
    let layout = header(own).geometry::<T>().expect("a ring of these messages");
    let slots = machine.at(slots, layout.capacity() * layout.slot_size(), 8).expect("slots");
    (header(own), header(peer), slots.cast())
}

unsafe fn pass(host: &dyn KernelHost, arguments: &[u64]) {
    let &[a, b, c, d, e, f, count] = arguments else { return };
    let machine = Simulated(host);
    // SAFETY: the addresses of this kernel's bridge.
    let (input, output) = unsafe { (parts::<Echo>(&machine, [a, b, c]), parts::<Echo>(&machine, [d, e, f])) };
    // SAFETY: the only consumer and producer.
    let (mut input, mut output) = unsafe {
        (
            Consumer::<Echo, Simulated<'_>>::new(input.0, input.1, input.2).expect("a ring"),
            Producer::<Echo, Simulated<'_>>::new(output.0, output.1, output.2).expect("a ring"),
        )
    };
    let begun = Instant::now();
    for _ in 0..count {
        let mut held = loop {
            match input.pop() {
                Ok(message) => break message,
                Err(_) if begun.elapsed() > LIMIT => return,
                Err(_) => host.pause(1),
            }
        };
        while let Err(PushError::Full(back)) = output.push(held) {
            held = back;
            if begun.elapsed() > LIMIT {
                return;
            }
            host.pause(1);
        }
    }
}

struct Rig {
    sender: Sender<Echo>,
    receiver: Receiver<Echo>,
    bridge: RingBufferBridge<Echo, Echo>,
    kernel: Pending<()>,
}

fn options(strategy: TransferStrategy, placement: Placement, capacity: u64) -> Options {
    Options { placement: Some([placement; 2]), capacity: [capacity; 2], start: u64::MAX - 100, ..Options::new(strategy) }
}

fn open(backend: &Arc<HostBackend>, options: &Options) -> Opened<Echo, Echo> {
    RingBufferBridge::open(backend, 0, options).expect("a bridge")
}

fn rig(backend: &Arc<HostBackend>, options: &Options, count: u64) -> Rig {
    let Opened { sender, receiver, mut bridge } = open(backend, options);
    let image = Image { host: &[Entry { name: "pass", arguments: 7, run: pass }], ..IMAGE };
    let module = Module::load(backend, &image, &ABI).expect("our ABI");
    let stream = Stream::new(backend, 0).expect("a stream");
    let [input, output] = bridge.addresses().expect("addresses");
    let flat = |ring: RingAddresses| [ring.own, ring.peer, ring.slots];
    let arguments = [&flat(input)[..], &flat(output)[..], &[count]].concat();
    // SAFETY: the rings record the launch, so they outlive it.
    let kernel = unsafe { stream.launch(&module, "pass", &arguments) }.expect("a kernel");
    bridge.used_by(&kernel).expect("one launch");
    Rig { sender, receiver, bridge, kernel }
}

fn exchange(rig: &mut Rig, count: u64) -> u64 {
    let (mut sent, mut received, mut failures) = (0, 0, 0);
    let begun = Instant::now();
    while received < count {
        assert!(begun.elapsed() < LIMIT, "{sent} sent, {received} received: {:?}", rig.bridge);
        while sent < count && rig.sender.push(message(sent)).is_ok() {
            sent += 1;
        }
        let written = |rig: &Rig| rig.bridge.metrics().map(|metrics| metrics.publications);
        let before = written(rig);
        failures += u64::from(rig.bridge.poll().is_err());
        for (after, before) in written(rig).into_iter().zip(before) {
            assert!(after <= before + 1, "one index word a flush");
        }
        loop {
            match rig.receiver.pop() {
                Ok(got) => {
                    assert_eq!(got, message(received), "the next in order");
                    received += 1;
                }
                Err(PopError::Empty) => break,
                Err(PopError::Corrupt(corrupt)) => panic!("{corrupt}"),
            }
        }
        thread::yield_now();
    }
    failures
}
