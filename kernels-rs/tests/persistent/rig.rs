//! Control block, telemetry and two rings with the host's ends.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::Duration;

use ringmem_kernels::echo::Echo;
use ringmem_kernels::{ABI, Launch};
use ringmem_layouts::control::{self, Capabilities, Command, Fault, HostSide, Shared, State};
use ringmem_layouts::ring::RingFlags;
use ringmem_layouts::ring::spsc::{Consumer, PopError, Producer, PushError};
use ringmem_layouts::{ControlBlock, Host, HostWord, RingHeader, RingLayout, RingMessage, telemetry};

use crate::machine::run_image;
use crate::memory::{Bytes, Device};
pub use crate::patience::until;

/// Longer than any wait of a test, so that a slow host is not the kernel's fault.
pub const IDLE: Duration = Duration::from_secs(3600);
pub const EPOCH: u32 = 7;

const CONTROL: u64 = 0;
const TELEMETRY: u64 = 256;
const INPUT: u64 = 384;

#[derive(Clone, Copy)]
pub struct Shape {
    pub input: u64,
    pub output: u64,
    pub start: u64,
    pub batch: u64,
}

impl Default for Shape {
    fn default() -> Self {
        Self { input: 64, output: 64, start: 0, batch: 8 }
    }
}

impl Shape {
    fn layouts<I: RingMessage, O: RingMessage>(&self) -> (RingLayout, RingLayout) {
        (RingLayout::of::<I>(self.input).expect("a geometry"), RingLayout::of::<O>(self.output).expect("a geometry"))
    }

    pub fn memory<I: RingMessage, O: RingMessage>(&self) -> Bytes {
        let (input, output) = self.layouts::<I, O>();
        Bytes::zeroed((INPUT + input.size().next_multiple_of(128) + output.size()) as usize)
    }
}

#[derive(Clone, Copy)]
pub struct OwnRings {
    pub kind: RingFlags,
    pub shape: Shape,
}

impl OwnRings {
    pub fn layouts(self) -> [RingLayout; 2] {
        [self.shape.input, self.shape.output].map(|capacity| RingLayout::of_kind::<Echo>(self.kind, capacity).expect("a geometry"))
    }

    pub fn output_at(self) -> u64 {
        self.layouts()[0].size().next_multiple_of(128)
    }

    pub fn memory(self) -> Bytes {
        Bytes::zeroed((self.output_at() + self.layouts()[1].size()) as usize)
    }

    pub fn format(self, memory: &Bytes, rig: &Rig<'_, Echo, Echo>) -> [(NonNull<u8>, u64); 2] {
        let [input, output] = self.layouts();
        for (offset, layout) in [(0, &input), (self.output_at(), &output)] {
            // SAFETY: zeroed words without ends.
            unsafe { memory.place::<RingHeader<HostWord>>(offset).as_ref().format::<Echo>(layout, self.shape.start) };
        }
        self.enter(memory, rig);
        [(memory.place(0), input.size()), (memory.place(self.output_at()), output.size())]
    }

    pub fn enter(self, memory: &Bytes, rig: &Rig<'_, Echo, Echo>) {
        rig.block.input_ring.store(memory.address(), Relaxed);
        rig.block.output_ring.store(memory.address() + self.output_at(), Relaxed);
    }
}

pub struct Rig<'a, I: RingMessage, O: RingMessage> {
    pub block: &'a ControlBlock<HostWord>,
    pub telemetry: &'a telemetry::Shared<HostWord>,
    pub input: &'a RingHeader<HostWord>,
    pub output: &'a RingHeader<HostWord>,
    pub control: HostSide<'a, HostWord>,
    pub sender: Producer<'a, I, Host>,
    pub receiver: Consumer<'a, O, Host>,
    pub launch: Launch,
}

impl<'a, I: RingMessage, O: RingMessage> Rig<'a, I, O> {
    pub fn new(memory: &'a Bytes, shape: Shape) -> Self {
        let (input, output) = shape.layouts::<I, O>();
        let output_at = INPUT + input.size().next_multiple_of(128);
        // SAFETY: `place` checks bounds and alignment; zeroed, unshared words.
        let (block, telemetry, input_ring, output_ring): (
            &ControlBlock<HostWord>,
            &telemetry::Shared<HostWord>,
            &RingHeader<_>,
            &RingHeader<_>,
        ) = unsafe {
            (
                memory.place(CONTROL).as_ref(),
                memory.place(TELEMETRY).as_ref(),
                memory.place(INPUT).as_ref(),
                memory.place(output_at).as_ref(),
            )
        };
        // SAFETY: nothing is attached.
        unsafe {
            input_ring.format::<I>(&input, shape.start);
            output_ring.format::<O>(&output, shape.start);
        }
        // SAFETY: as long as the layouts; the kernel is the peer.
        let (sender, receiver) =
            unsafe { (Producer::from_raw(memory.place(INPUT), input.size()), Consumer::from_raw(memory.place(output_at), output.size())) };
        let prepared = control::Launch {
            abi: ABI.hash,
            capabilities: Capabilities::SYSTEM_SCOPE | Capabilities::TELEMETRY,
            epoch: EPOCH,
            input_ring: memory.address() + INPUT,
            output_ring: memory.address() + output_at,
            second_headers: [None; 2],
            telemetry: memory.address() + TELEMETRY,
        };
        // SAFETY: no kernel runs; the only host.
        let control = unsafe { HostSide::prepare(memory.place::<Shared<HostWord>>(CONTROL).as_ref(), &prepared) };
        Self {
            block,
            telemetry,
            input: input_ring,
            output: output_ring,
            control,
            sender: sender.expect("the ring was just formatted"),
            receiver: receiver.expect("the ring was just formatted"),
            launch: Launch {
                controls: memory.address() + CONTROL,
                epoch: EPOCH,
                idle_ns: IDLE.as_nanos() as u64,
                batch: shape.batch,
                abi: ABI.hash,
            },
        }
    }

    pub fn run<R>(&mut self, kernel: impl FnOnce() + Send, host: impl FnOnce(&mut Self) -> R) -> (R, thread::Result<()>) {
        struct Abandon<'r, 'a, I: RingMessage, O: RingMessage>(&'r mut Rig<'a, I, O>);
        impl<I: RingMessage, O: RingMessage> Drop for Abandon<'_, '_, I, O> {
            fn drop(&mut self) {
                self.0.control.abandon();
            }
        }
        thread::scope(|scope| {
            let kernel = scope.spawn(move || catch_unwind(AssertUnwindSafe(kernel)));
            let guard = Abandon(self);
            let result = host(guard.0);
            until("the kernel leaves", || kernel.is_finished());
            (result, kernel.join().expect("its panic was caught"))
        })
    }

    /// Of a persistent kernel of the image.
    pub fn arguments(&self, more: &[u64]) -> Vec<u64> {
        let Launch { controls, epoch, idle_ns, batch, .. } = self.launch;
        [&[controls, u64::from(epoch), idle_ns, batch], more].concat()
    }

    pub fn run_image<R>(&mut self, name: &str, more: &[u64], device: &Device, host: impl FnOnce(&mut Self) -> R) -> R {
        let arguments = self.arguments(more);
        let (result, ended) = self.run(move || run_image(name, &arguments, device), host);
        ended.expect("the kernel does not panic");
        result
    }

    pub fn command(&mut self, command: Command) {
        let sequence = self.control.command(command);
        until("the command is acknowledged", || self.control.acknowledged());
        assert_eq!(self.snapshot().command_seen, u64::from(sequence));
    }

    pub fn send(&mut self, message: I) {
        let mut left = Some(message);
        until("there is room in the input ring", || match self.sender.push(left.take().expect("not sent yet")) {
            Ok(()) => true,
            Err(PushError::Full(message)) => {
                left = Some(message);
                false
            }
            Err(PushError::Corrupt(..)) => panic!("the input ring is corrupt"),
        });
    }

    pub fn receive(&mut self) -> O {
        self.receive_sending(|_| ())
    }

    /// Calls `send` at each poll: the answers may be visible before the released slots.
    pub fn receive_sending(&mut self, mut send: impl FnMut(&mut Producer<'a, I, Host>)) -> O {
        let mut answer = None;
        until("there is an answer", || {
            send(&mut self.sender);
            match self.receiver.pop() {
                Ok(value) => {
                    answer = Some(value);
                    true
                }
                Err(PopError::Empty) => false,
                Err(PopError::Corrupt(corrupt)) => panic!("{corrupt}"),
            }
        });
        answer.expect("just received")
    }

    pub fn received(&mut self) -> Vec<O> {
        std::iter::from_fn(|| self.receiver.pop().ok()).collect()
    }

    pub fn snapshot(&self) -> ControlBlock<u64> {
        self.control.snapshot()
    }

    pub fn state(&self) -> Option<State> {
        self.control.state()
    }

    pub fn until_state(&self, state: State) {
        until(&format!("the kernel is {state:?}"), || self.state() == Some(state));
    }

    pub fn until_beats(&self, times: u64) {
        let begun = self.snapshot().heartbeat;
        until("the heart beats", || self.snapshot().heartbeat >= begun + times);
    }

    /// The states of all stores to the state word, each of which follows from the one before.
    pub fn states(&self, written: &[u64]) -> Vec<State> {
        let mut last = State::Created;
        let state = |word: &u64| {
            assert_eq!(word >> 32, u64::from(self.launch.epoch), "the state carries its epoch");
            let next = State::from_word(*word).expect("a known state");
            assert!(last.may_become(next), "{last:?} -> {next:?}");
            last = next;
            next
        };
        written.iter().map(state).collect()
    }

    pub fn end(&self) -> (State, u32, Option<Fault>) {
        let snapshot = self.snapshot();
        assert_eq!(snapshot.state >> 32, u64::from(self.launch.epoch), "the state carries its epoch");
        assert!(self.telemetry.sequence.load().is_multiple_of(2), "no record is left half written");
        let (count, fault) = snapshot.faults();
        (snapshot.kernel_state().expect("a known state"), count, fault)
    }
}
