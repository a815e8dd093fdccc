//! Echo kernels with rings in pinned memory: layout, launch, message exchange, shutdown.

use std::time::{Duration, Instant};

use ringmem::attach::AttachError;
use ringmem::control::{Capabilities, Command, HostSide, Launch, Shared, State};
use ringmem::ring::spsc::{Consumer, Producer};
use ringmem::{Host, HostWord, Result, RingHeader, RingLayout};
use ringmem_kernels::echo::Echo;

use crate::driver::{Gpu, Pinned, Stream};

/// Time limit without an answer.
const STALL: Duration = Duration::from_secs(8);
pub const CAPACITY: u64 = 1024;

/// One ring pair and its control block.
pub struct Pair {
    pub producer: Producer<'static, Echo, Host>,
    pub consumer: Consumer<'static, Echo, Host>,
    pub control: HostSide<'static, HostWord>,
    sent: u64,
    received: u64,
    /// Number of answers that were not the expected message.
    pub wrong: u64,
    /// With headers on each side: copies the host's indices to the device.
    carrier: Option<Carrier>,
}

/// Copies indices to the headers that the device polls in its own memory.
struct Carrier {
    stream: Stream,
    input_tail: u64,
    output_head: u64,
}

/// A launch of one echo kernel per pair.
pub struct Rig {
    pub pairs: Vec<Pair>,
    memory: Pinned,
    near: Option<Near>,
    stream: Stream,
}

pub struct Shape {
    pub groups: u32,
    pub batch: u64,
    pub start: u64,
    pub epoch: u32,
    pub idle: Duration,
    pub headers: Headers,
}

/// The placement of the rings' headers; the slots are in pinned memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Headers {
    /// One header for both sides, in pinned memory.
    Shared,
    /// One per side, both in pinned memory, the kernel's written through a stream: the control of `OnEachSide`.
    BothHere,
    /// The kernel's header in device memory, written through a stream; the host's in pinned memory.
    OnEachSide,
}

/// The kernel's own headers.
enum Near {
    Device(u64),
    Here(Pinned),
}

impl Near {
    fn address(&self) -> u64 {
        match self {
            Self::Device(address) => *address,
            Self::Here(memory) => memory.device,
        }
    }
}

const HEADER: u64 = 384;
const STRIDE: u64 = 128;

impl Rig {
    /// Lays out the memory and launches; the kernels are active when it returns.
    pub fn launch(gpu: &Gpu, shape: &Shape) -> Result<Self> {
        let ring = RingLayout::of::<Echo>(CAPACITY)?;
        let groups = u64::from(shape.groups);
        // Control blocks first, then telemetry, then per group: input ring, output ring, two headers of the host.
        let telemetry_at = groups * STRIDE;
        let rings_at = telemetry_at + groups * STRIDE;
        let each = 2 * ring.size() + 2 * HEADER;
        let memory = gpu.pinned((rings_at + groups * each) as usize)?;
        let stream = gpu.stream()?;
        let bytes = 2 * HEADER as usize;
        let near = match shape.headers {
            Headers::Shared => None,
            Headers::BothHere => Some(Near::Here(gpu.pinned(bytes)?)),
            Headers::OnEachSide => Some(Near::Device(gpu.alloc(bytes)?)),
        };
        let near_at = near.as_ref().map(Near::address);
        let mut pairs = Vec::new();
        let mut extra = Vec::new();
        for group in 0..groups {
            let input_at = rings_at + group * each;
            let output_at = input_at + ring.size();
            let spare_at = output_at + ring.size();
            // SAFETY: offsets within the allocation, aligned to 128 (rings are 384 + 65536 bytes); zeroed. It outlives the rig, and only
            // the rig's kernels and host ends access it.
            let pair = unsafe {
                let place = |offset: u64| memory.host.add(offset as usize);
                let header = |offset: u64| place(offset).cast::<RingHeader<HostWord>>().as_ref();
                for at in [input_at, output_at, spare_at, spare_at + HEADER] {
                    header(at).format::<Echo>(&ring, shape.start);
                }
                let slots = |at: u64| place(at + ring.slots_offset()).cast();
                let (input_peer, output_peer) =
                    if near.is_some() { (header(spare_at), header(spare_at + HEADER)) } else { (header(input_at), header(output_at)) };
                let launch = Launch {
                    abi: ringmem_kernels::ABI.hash,
                    capabilities: Capabilities::SYSTEM_SCOPE | Capabilities::TELEMETRY,
                    epoch: shape.epoch,
                    input_ring: near_at.unwrap_or(memory.device + input_at),
                    output_ring: near_at.map_or(memory.device + output_at, |near| near + HEADER),
                    telemetry: memory.device + telemetry_at + group * STRIDE,
                };
                Pair {
                    producer: Producer::new(header(input_at), input_peer, slots(input_at))?,
                    consumer: Consumer::new(header(output_at), output_peer, slots(output_at))?,
                    control: HostSide::prepare(place(group * STRIDE).cast::<Shared<HostWord>>().as_ref(), &launch),
                    sent: 0,
                    received: 0,
                    wrong: 0,
                    carrier: None,
                }
            };
            pairs.push(pair);
            if let Some(near) = &near {
                // SAFETY: two headers are within the pair's part of the memory.
                let spare = unsafe { memory.host.add(spare_at as usize).as_ptr() };
                match near {
                    // SAFETY: two headers long on both sides, and neither is in use yet.
                    Near::Here(here) => unsafe { here.host.as_ptr().copy_from_nonoverlapping(spare, bytes) },
                    Near::Device(address) => {
                        // SAFETY: two headers long on both sides; waited for at once.
                        unsafe { stream.copy_to_device(*address, spare, bytes)? };
                        stream.synchronize()?;
                    }
                }
                // The kernel publishes to the host's headers and reads the slots in pinned memory.
                let device = |at: u64| memory.device + at;
                extra = vec![
                    device(input_at),
                    device(input_at + ring.slots_offset()),
                    device(output_at),
                    device(output_at + ring.slots_offset()),
                ];
            }
        }
        if let (Some(near), Some(pair)) = (near_at, pairs.first_mut()) {
            // Offsets of `tail` and `head` in a header.
            let carrier = Carrier { stream: gpu.stream()?, input_tail: near, output_head: near + HEADER + 128 };
            pair.carrier = Some(carrier);
        }
        let idle_ns = u64::try_from(shape.idle.as_nanos()).unwrap_or(u64::MAX);
        let mut arguments = vec![memory.device, u64::from(shape.epoch), idle_ns, shape.batch];
        arguments.extend(extra);
        let kernel = gpu.kernel(if near.is_some() { "echo_split" } else { "echo" })?;
        // SAFETY: the kernel's arguments, in order; the memory is freed only after the kernel has exited.
        unsafe { stream.launch(kernel, shape.groups, &arguments)? };
        let mut rig = Self { pairs, memory, near, stream };
        for pair in &mut rig.pairs {
            pair.control.command(Command::ACTIVATE);
        }
        for pair in &rig.pairs {
            pair.wait_for(State::Active)?;
        }
        Ok(rig)
    }

    /// Waits until every kernel has exited.
    pub fn wait(&self) -> Result<()> {
        self.stream.synchronize()
    }

    /// Drains, waits until every kernel has exited, and frees the memory. Returns each kernel's count of processed messages.
    pub fn end(mut self, gpu: &Gpu) -> Result<Vec<u64>> {
        for pair in &mut self.pairs {
            if pair.control.state() == Some(State::Active) {
                pair.control.command(Command::DRAIN);
            }
        }
        self.wait()?;
        let processed = self.pairs.iter().map(|pair| pair.control.snapshot().processed).collect();
        if let Some(carrier) = self.pairs.first().and_then(|pair| pair.carrier.as_ref()) {
            carrier.stream.synchronize()?;
        }
        self.pairs.clear();
        match self.near {
            Some(Near::Device(address)) => gpu.free(address)?,
            Some(Near::Here(memory)) => gpu.free_pinned(memory)?,
            None => {}
        }
        gpu.free_pinned(self.memory)?;
        Ok(processed)
    }
}

/// Maximum number of messages per step.
const MOST: usize = 128;

/// Buffers for the messages and answers of a step.
struct Scratch {
    messages: [Echo; MOST],
    answers: [Echo; MOST],
}

/// Sends `messages` more messages to each pair and waits for all answers, with every ring busy at once.
pub fn pump(pairs: &mut [Pair], messages: u64, window: usize) -> Result<()> {
    let lasts: Vec<u64> = pairs.iter().map(|pair| pair.received + messages).collect();
    let mut scratch = Scratch { messages: [Pair::message(0); MOST], answers: [Pair::message(0); MOST] };
    let (mut moved, mut idle) = (Instant::now(), 0);
    loop {
        let (mut progress, mut done) = (false, true);
        for (pair, &last) in pairs.iter_mut().zip(&lasts) {
            if pair.received < last {
                done = false;
                progress |= pair.step(last, window, &mut scratch)?;
            }
        }
        if done {
            return Ok(());
        }
        if progress {
            moved = Instant::now();
            idle = 0_u32;
        } else if moved.elapsed() > STALL {
            return Err(pairs
                .iter()
                .zip(&lasts)
                .find(|(pair, last)| pair.received < **last)
                .map_or(ringmem::Error::Closed { what: "stream" }, |(pair, _)| pair.stuck(moved)));
        } else {
            // With fewer cores than threads, spinning would delay the thread that carries the kernel's answers.
            idle = idle.saturating_add(1);
            if idle < 10_000 { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
    }
}

impl Pair {
    pub fn wait_for(&self, state: State) -> Result<()> {
        let begun = Instant::now();
        while self.control.state() != Some(state) {
            if self.control.state() == Some(State::Faulted) {
                return Err(self.ended(begun));
            }
            if begun.elapsed() > STALL {
                return Err(self.stuck(begun));
            }
            std::thread::yield_now();
        }
        Ok(())
    }

    fn stuck(&self, since: Instant) -> ringmem::Error {
        eprintln!("stuck: {} sent, {} received, {:?}", self.sent, self.received, self.control.snapshot());
        self.ended(since)
    }

    fn ended(&self, since: Instant) -> ringmem::Error {
        let control = self.control.snapshot();
        let (faults, fault) = control.faults();
        ringmem::Error::Kernel { state: control.kernel_state(), is_over: false, fault, faults, waited: since.elapsed() }
    }

    fn message(number: u64) -> Echo {
        Echo { words: [number, !number, number, !number, number, !number, number, !number] }
    }

    /// Checks that each answer is the next number, with all its words; counts lost, duplicate and torn ones in `wrong`.
    fn check(&mut self, answers: &[Echo]) {
        for answer in answers {
            self.wrong += u64::from(*answer != Self::message(self.received));
            self.received += 1;
        }
    }

    /// Sends and receives without waiting, up to `window` messages each way and `last` in total. Returns whether any message moved.
    fn step(&mut self, last: u64, window: usize, Scratch { messages, answers }: &mut Scratch) -> Result<bool> {
        let mut wanted = (last - self.sent).min(window.min(MOST) as u64);
        if self.producer.free() < wanted {
            wanted = wanted.min(self.producer.refresh().map_err(AttachError::Corrupt)?);
        }
        let wanted = wanted as usize;
        for (number, message) in (self.sent..).zip(&mut messages[..wanted]) {
            *message = Self::message(number);
        }
        let sent = self.producer.push_slice(&messages[..wanted]).map_err(AttachError::Corrupt)?;
        self.sent += sent as u64;
        self.carry(sent > 0, false)?;
        let received = self.consumer.pop_slice(&mut answers[..window.min(MOST)]).map_err(AttachError::Corrupt)?;
        self.check(&answers[..received]);
        self.carry(false, received > 0)?;
        Ok(sent + received > 0)
    }

    /// Returns the round trip of one message in nanoseconds.
    pub fn round_trip(&mut self) -> Result<f64> {
        let begun = Instant::now();
        let message = Self::message(self.sent);
        self.producer.push_slice(&[message]).map_err(AttachError::Corrupt)?;
        self.sent += 1;
        self.carry(true, false)?;
        let answer = loop {
            match self.consumer.pop() {
                Ok(answer) => break answer,
                Err(_) if begun.elapsed() > STALL => return Err(self.stuck(begun)),
                Err(_) => std::hint::spin_loop(),
            }
        };
        let took = begun.elapsed().as_nanos() as f64;
        self.carry(false, true)?;
        self.check(&[answer]);
        Ok(took)
    }

    fn carry(&self, tail: bool, head: bool) -> Result<()> {
        let Some(carrier) = &self.carrier else { return Ok(()) };
        // SAFETY: words of headers in device memory, which is freed after the carrier's stream is synchronised.
        unsafe {
            if tail {
                carrier.stream.write_word(carrier.input_tail, self.producer.tail())?;
            }
            if head {
                carrier.stream.write_word(carrier.output_head, self.consumer.head())?;
            }
        }
        Ok(())
    }
}
