use std::collections::VecDeque;
use std::ptr::NonNull;

use ringmem::SharedLayout;
use ringmem::backend::host::{Fault, Faults, Verb};
use ringmem::backend::{Address, Backend, Copy, DeviceAddress};

use super::*;

#[derive(Clone, Copy, PartialEq, SharedLayout)]
#[repr(C)]
#[layout(size = 8192, message = 8192, writer = "the sender")]
struct Large {
    words: [u64; 1024],
}

fn large(number: u64) -> Large {
    Large { words: std::array::from_fn(|word| number << 32 | word as u64) }
}

const START: u64 = u64::MAX - 5;
const TAIL: u64 = 0;
const HEAD: u64 = 128;

struct Kernel {
    backend: Arc<HostBackend>,
    input: RingAddresses,
    output: RingAddresses,
    capacity: u64,
    taken: u64,
    given: u64,
    held: VecDeque<Large>,
}

impl Kernel {
    fn again(mut call: impl FnMut() -> Result<(), ringmem::Error>) {
        eventually("a call goes well", || call().is_ok());
    }

    fn copy<T>(&self, address: u64, value: &mut T, up: bool) {
        let ends = [Address::Device(DeviceAddress::new(address)), Address::Host(NonNull::from(value).cast())];
        let [to, from] = if up { ends } else { [ends[1], ends[0]] };
        // SAFETY: within a live ring: an index, or a slot of the kernel's.
        Self::again(|| unsafe { self.backend.copy_now(&Copy { to, from, bytes: size_of::<T>() as u64 }) });
    }

    fn word(&self, address: u64) -> u64 {
        let mut word = 0_u64;
        self.copy(address, &mut word, false);
        word
    }

    fn publish(&self, address: u64, value: u64) {
        // SAFETY: an index of a live ring that the kernel writes.
        Self::again(|| unsafe { self.backend.publish_now(Address::Device(DeviceAddress::new(address)), value) });
    }

    fn slot(&self, ring: RingAddresses, index: u64) -> u64 {
        ring.slots + (index & (self.capacity - 1)) * size_of::<Large>() as u64
    }

    fn take(&mut self) {
        let tail = self.word(self.input.own + TAIL);
        assert!(tail.wrapping_sub(self.taken) <= self.capacity, "{tail} of {}", self.taken);
        if tail == self.taken {
            return;
        }
        let mut message = large(0);
        self.copy(self.slot(self.input, self.taken), &mut message, false);
        self.held.push_back(message);
        self.taken = self.taken.wrapping_add(1);
        self.publish(self.input.peer + HEAD, self.taken);
    }

    fn give(&mut self) {
        let used = self.given.wrapping_sub(self.word(self.output.own + HEAD));
        assert!(used <= self.capacity, "{used}");
        if used == self.capacity {
            return;
        }
        let Some(mut message) = self.held.pop_front() else { return };
        self.copy(self.slot(self.output, self.given), &mut message, true);
        self.given = self.given.wrapping_add(1);
        self.publish(self.output.peer + TAIL, self.given);
    }
}

#[test]
fn large_messages_in_small_rings_survive_faults_and_stalls() {
    const COUNT: u64 = 40;
    let (mut failures, mut runs) = (0, 0);
    for strategy in [TransferStrategy::Sync, TransferStrategy::Async, TransferStrategy::DmaPolling { poll_interval_us: 1 }] {
        for (seed, (placement, capacity)) in
            [Placement::DEVICE, Placement::SPLIT].into_iter().flat_map(|placement| [(placement, 1), (placement, 2)]).enumerate()
        {
            let backend = backend();
            let options = Options { start: START, ..options(strategy, placement, capacity) };
            let Opened { mut sender, mut receiver, mut bridge } =
                RingBufferBridge::<Large, Large>::open(&backend, 0, &options).expect("a bridge");
            let [input, output] = bridge.addresses().expect("addresses");
            let mut kernel =
                Kernel { backend: Arc::clone(&backend), input, output, capacity, taken: START, given: START, held: VecDeque::new() };
            let mut faults = Faults::new();
            for verb in [Verb::Copy, Verb::Publish, Verb::Wait, Verb::Synchronize] {
                let fault = Fault::random(0.1, seed as u64);
                faults = faults.on(verb, if capacity == 1 { fault } else { fault.when_executed() });
            }
            backend.set_faults(&faults);
            let (mut sent, mut received, mut state) = (0, 0, 88_172_645_463_325_252 + seed as u64);
            let begun = Instant::now();
            while received < COUNT {
                assert!(begun.elapsed() < LIMIT, "{strategy:?} {placement:?}: {sent} sent, {received} received, {bridge:?}");
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                let (turn, still) = (state % 6, (state >> 32) % 7);
                for _ in 0..16 {
                    match turn {
                        _ if turn == still => {}
                        0 => sent += u64::from(sent < COUNT && sender.push(large(sent)).is_ok()),
                        1 => failures += u64::from(bridge.flush_to_device().is_err()),
                        2 => failures += u64::from(bridge.flush_to_host().is_err()),
                        3 => kernel.take(),
                        4 => kernel.give(),
                        _ => {
                            if let Ok(message) = receiver.pop() {
                                assert!(message == large(received), "{strategy:?} {placement:?}: {received} is whole, and the next");
                                received += 1;
                            }
                        }
                    }
                }
            }
            runs += 1;
        }
    }
    assert!(failures > 10 * runs, "{failures} in {runs} runs");
}
