use std::time::{Duration, Instant};

use ringmem::attach::AttachError;
use ringmem::backend::{Address, Copy, DeviceAddress};
use ringmem::control::{Command, HostSide, SecondHeader, State};
use ringmem::ring::spsc::{Consumer, Producer};
use ringmem::{Host, HostWord, Result, RingHeader, RingLayout};
use ringmem_kernels::echo::Echo;

use crate::driver::{Gpu, Pinned, Stream};
use crate::limits::limits;
use crate::rings::Rings;

pub const CAPACITY: u64 = 1024;

pub struct Pair {
    pub producer: Producer<'static, Echo, Host>,
    pub consumer: Consumer<'static, Echo, Host>,
    pub control: HostSide<'static, HostWord>,
    sent: u64,
    received: u64,
    pub wrong: u64,
    carrier: Option<Carrier>,
}

struct Carrier {
    stream: Stream,
    input_tail: u64,
    output_head: u64,
}

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

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Headers {
    Shared,
    /// The control of `OnEachSide`.
    BothHere,
    OnEachSide,
}

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

impl Rig {
    pub fn launch(gpu: &Gpu, shape: &Shape) -> Result<Self> {
        let ring = RingLayout::of::<Echo>(CAPACITY)?;
        let groups = u64::from(shape.groups);
        let spare = Rings::bytes(&ring, groups);
        let memory = gpu.pinned((spare + 2 * HEADER) as usize)?;
        // SAFETY: the allocation is zeroed, page-aligned and longer; it outlives the pairs, and only they and the kernels access this range.
        let rings = unsafe { Rings::format(memory, ring, groups, shape.start) };
        let stream = gpu.stream()?;
        let bytes = 2 * HEADER as usize;
        let near = match shape.headers {
            Headers::Shared => None,
            Headers::BothHere => Some(Near::Here(gpu.pinned(bytes)?)),
            Headers::OnEachSide => Some(Near::Device(gpu.alloc(bytes)?)),
        };
        let near_at = near.as_ref().map(Near::address);
        // SAFETY: an offset of a header within the allocation.
        let header = |at: u64| unsafe { memory.host.add(at as usize).cast::<RingHeader<HostWord>>().as_ref() };
        if let Some(near) = &near {
            for at in [spare, spare + HEADER] {
                // SAFETY: zeroed, behind the rings, aligned to 128; no end is attached.
                unsafe { header(at).format::<Echo>(&ring, shape.start) };
            }
            // SAFETY: within the allocation.
            let from = unsafe { memory.host.add(spare as usize) };
            match near {
                // SAFETY: two headers long on both sides, unused.
                Near::Here(here) => unsafe { here.host.as_ptr().copy_from_nonoverlapping(from.as_ptr(), bytes) },
                Near::Device(address) => {
                    let copy = Copy { to: Address::Device(DeviceAddress::new(*address)), from: Address::Host(from), bytes: 2 * HEADER };
                    // SAFETY: two headers long on both sides, unused; waited for.
                    unsafe { stream.copy(&copy)? };
                    stream.synchronize()?;
                }
            }
        }
        let mut pairs = Vec::new();
        for group in 0..groups {
            let (input, output) = (rings.input(group), rings.output(group));
            let peers = if near.is_some() { [spare, spare + HEADER] } else { [input, output] }.map(header);
            // The kernel polls the headers near it, and publishes to those before the slots.
            let second = [0, HEADER].map(|at| near_at.map(|near| SecondHeader { address: near + at, is_polled: true }));
            let slots = |at: u64| rings.place(at + ring.slots_offset()).cast();
            // SAFETY: formatted headers and slots of one ring each, attached to once; the control block is prepared once, before the launch.
            let pair = unsafe {
                Pair {
                    producer: Producer::new(header(input), peers[0], slots(input))?,
                    consumer: Consumer::new(header(output), peers[1], slots(output))?,
                    control: rings.control(group, shape.epoch, second),
                    sent: 0,
                    received: 0,
                    wrong: 0,
                    carrier: None,
                }
            };
            pairs.push(pair);
        }
        if let (Some(near), Some(pair)) = (near_at, pairs.first_mut()) {
            let carrier = Carrier { stream: gpu.stream()?, input_tail: near, output_head: near + HEADER + 128 };
            pair.carrier = Some(carrier);
        }
        let idle_ns = u64::try_from(shape.idle.as_nanos()).unwrap_or(u64::MAX);
        let arguments = [memory.device, u64::from(shape.epoch), idle_ns, shape.batch];
        let kernel = gpu.kernel("echo")?;
        // SAFETY: the kernel's arguments, in order; freed after it exits.
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

    pub fn wait(&self) -> Result<()> {
        self.stream.synchronize()
    }

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

const MOST: usize = 128;

struct Scratch {
    messages: [Echo; MOST],
    answers: [Echo; MOST],
}

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
        } else if moved.elapsed() > limits().answer {
            return Err(pairs
                .iter()
                .zip(&lasts)
                .find(|(pair, last)| pair.received < **last)
                .map_or(ringmem::Error::Closed { what: "stream" }, |(pair, _)| pair.stuck(moved)));
        } else {
            // With fewer cores than threads, spinning delays the thread that carries answers.
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
            if begun.elapsed() > limits().answer {
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

    fn check(&mut self, answers: &[Echo]) {
        for answer in answers {
            self.wrong += u64::from(*answer != Self::message(self.received));
            self.received += 1;
        }
    }

    fn step(&mut self, last: u64, window: usize, Scratch { messages, answers }: &mut Scratch) -> Result<bool> {
        let mut wanted = (last - self.sent).min(window.min(MOST) as u64) as usize;
        if self.producer.free() < wanted {
            wanted = wanted.min(self.producer.refresh().map_err(AttachError::Corrupt)?);
        }
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

    pub fn round_trip(&mut self) -> Result<f64> {
        let begun = Instant::now();
        let message = Self::message(self.sent);
        self.producer.push_slice(&[message]).map_err(AttachError::Corrupt)?;
        self.sent += 1;
        self.carry(true, false)?;
        let answer = loop {
            match self.consumer.pop() {
                Ok(answer) => break answer,
                Err(_) if begun.elapsed() > limits().answer => return Err(self.stuck(begun)),
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
        // SAFETY: header words in device memory, freed after the stream is synchronised.
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
