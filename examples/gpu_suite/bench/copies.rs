use std::mem::offset_of;
use std::time::Instant;

use ringmem::backend::{Address, Backend, Copy, DeviceAddress, Fill, StreamId};
use ringmem::bridge::{Opened, Options, Placement, RingBufferBridge, TransferStrategy};
use ringmem::memory::{Buffer, Device, Host, Memory, Pinned};
use ringmem::stream::{Pending, Stream};
use ringmem::{Rejected, RingHeader};
use ringmem_kernels::echo::Echo;

use super::{Rig, Subject, Turn, Workload};
use crate::driver;
use crate::report::{Failure, demand};

type Pair<A, B> = Option<(Buffer<u8, A>, Buffer<u8, B>)>;

const DRIVER: &str = "driver, bare copy";
const LOST: &str = "an operation failed before";

pub fn large(rig: &Rig, name: &'static str) -> Result<(), Failure> {
    let (pinned, device) = (Pinned::new(&rig.backend, 0), Device::new(&rig.backend, 0));
    match name {
        "h2d" => copy(rig, name, &pinned, &device),
        "d2h" => copy(rig, name, &device, &pinned),
        _ => copy(rig, name, &device, &device),
    }
}

fn copy<A: Placed, B: Placed>(rig: &Rig, name: &'static str, from: &A, to: &B) -> Result<(), Failure> {
    let stream = Stream::new(&rig.backend, 0)?;
    let mut from = Buffer::<u8, A>::new(from.clone(), rig.bytes)?;
    from.fill(7)?;
    let mut pair = Some((from, Buffer::<u8, B>::new(to.clone(), rig.bytes)?));
    let bare = Bare::of(rig, &pair, &stream)?;
    let ours = || {
        let begun = Instant::now();
        queued_copy(&stream, &mut pair)?;
        Ok(begun.elapsed().as_nanos() as f64)
    };
    let subjects = vec![
        Subject { name: "ringmem Stream", turn: Box::new(ours) },
        // SAFETY: both buffers have equal length; `ours` completes its copy first, so turns do not overlap.
        Subject { name: "backend", turn: Box::new(|| unsafe { bare.run(rig) }) },
        // SAFETY: both buffers have equal length; `ours` completes its copy first, so turns do not overlap.
        Subject { name: DRIVER, turn: Box::new(|| unsafe { bare.by_the_driver() }) },
    ];
    rig.measure(Workload { name, unit: "ns", aim: 1.03, subjects })
}

fn queued_copy<A: Memory, B: Memory>(stream: &Stream, pair: &mut Pair<A, B>) -> Result<(), Failure> {
    let (from, to) = pair.take().ok_or(LOST)?;
    *pair = Some(stream.copy(from, to).and_then(Pending::wait).map_err(Rejected::into_error)?);
    Ok(())
}

pub struct Large<A: Memory, B: Memory> {
    stream: Stream,
    pair: Pair<A, B>,
}

impl<A: Memory + Clone, B: Memory + Clone> Large<A, B> {
    pub fn new(rig: &Rig, from: &A, to: &B, bytes: usize) -> Result<Self, Failure> {
        let mut from = Buffer::<u8, A>::new(from.clone(), bytes)?;
        from.fill(7)?;
        Ok(Self { stream: Stream::new(&rig.backend, 0)?, pair: Some((from, Buffer::new(to.clone(), bytes)?)) })
    }

    pub fn turn(&mut self) -> Result<f64, Failure> {
        let begun = Instant::now();
        queued_copy(&self.stream, &mut self.pair)?;
        Ok(begun.elapsed().as_nanos() as f64)
    }
}

pub struct Link {
    up: Large<Pinned, Device>,
    down: Large<Device, Pinned>,
    bytes: usize,
}

impl Link {
    pub fn new(rig: &Rig) -> Result<Self, Failure> {
        let (pinned, device, bytes) = (Pinned::new(&rig.backend, 0), Device::new(&rig.backend, 0), rig.bytes.min(64 << 20));
        Ok(Self { up: Large::new(rig, &pinned, &device, bytes)?, down: Large::new(rig, &device, &pinned, bytes)?, bytes })
    }

    pub fn turn(&mut self, bytes: usize) -> Result<f64, Failure> {
        let begun = Instant::now();
        let (from, to) = self.up.pair.take().ok_or(LOST)?;
        let up = self.up.stream.copy(from, to).map_err(Rejected::into_error)?;
        queued_copy(&self.down.stream, &mut self.down.pair)?;
        self.up.pair = Some(up.wait().map_err(Rejected::into_error)?);
        Ok(begun.elapsed().as_nanos() as f64 / self.bytes as f64 * bytes as f64)
    }
}

trait Placed: Memory + Clone {
    fn place(buffer: &Buffer<u8, Self>) -> Option<Address>;
}

impl Placed for Pinned {
    fn place(buffer: &Buffer<u8, Self>) -> Option<Address> {
        buffer.as_ptr().map(Address::Host)
    }
}

impl Placed for Device {
    fn place(buffer: &Buffer<u8, Self>) -> Option<Address> {
        buffer.device_address().map(Address::Device)
    }
}

/// A copy without [`Stream`] and its checks: by the backend, and by the driver.
struct Bare {
    copy: Copy,
    on: StreamId,
    driver: driver::Stream,
}

impl Bare {
    fn of<A: Placed, B: Placed>(rig: &Rig, pair: &Pair<A, B>, stream: &Stream) -> Result<Self, Failure> {
        let copy =
            pair.as_ref().and_then(|(from, to)| Some(Copy { to: B::place(to)?, from: A::place(from)?, bytes: from.size_bytes() as u64 }));
        Ok(Self { copy: copy.ok_or("no bytes to copy")?, on: stream.id(), driver: rig.gpu.stream()? })
    }

    /// # Safety
    ///
    /// As [`Backend::copy`](ringmem::backend::Backend::copy), until this returns.
    unsafe fn run(&self, rig: &Rig) -> Result<f64, Failure> {
        let begun = Instant::now();
        // SAFETY: the caller promises two live ranges without overlap and other use until this returns; the copy is waited for below.
        let ticket = unsafe { rig.backend.copy(&self.copy, self.on) }?;
        rig.backend.wait(ticket, None)?;
        Ok(begun.elapsed().as_nanos() as f64)
    }

    /// # Safety
    ///
    /// As [`run`](Self::run).
    unsafe fn by_the_driver(&self) -> Result<f64, Failure> {
        let begun = Instant::now();
        // SAFETY: the caller promises two live ranges without overlap and other use until this returns; the copy is waited for below.
        unsafe { self.driver.copy(&self.copy) }?;
        self.driver.synchronize()?;
        Ok(begun.elapsed().as_nanos() as f64)
    }
}

pub fn overlap(rig: &Rig) -> Result<(), Failure> {
    let [filling, copying] = [(); 2].map(|()| Stream::new(&rig.backend, 0));
    let (filling, copying) = (filling?, copying?);
    let device = Device::new(&rig.backend, 0);
    let half = rig.bytes / 2;
    let mut filled = Some(Buffer::<u8, _>::new(device.clone(), half)?);
    let mut pair = Some((Buffer::<u8, _>::new(Pinned::new(&rig.backend, 0), half)?, Buffer::<u8, _>::new(device, half)?));
    let bare = Bare::of(rig, &pair, &copying)?;
    let shared = std::cell::RefCell::new((&mut filled, &mut pair));
    let fill_alone = || {
        let (filled, _) = &mut *shared.borrow_mut();
        let begun = Instant::now();
        let fill = filling.fill(filled.take().ok_or(LOST)?, .., 1).map_err(Rejected::into_error)?;
        **filled = Some(fill.wait().map_err(Rejected::into_error)?);
        Ok::<f64, Failure>(begun.elapsed().as_nanos() as f64)
    };
    let both = || {
        let (filled, pair) = &mut *shared.borrow_mut();
        let begun = Instant::now();
        let fill = filling.fill(filled.take().ok_or(LOST)?, .., 1).map_err(Rejected::into_error)?;
        queued_copy(&copying, pair)?;
        **filled = Some(fill.wait().map_err(Rejected::into_error)?);
        Ok(begun.elapsed().as_nanos() as f64)
    };
    let longer = || {
        let fill = fill_alone()?;
        // SAFETY: the pair is idle; live buffers.
        let copy = unsafe { bare.run(rig) }?;
        Ok(fill.max(copy))
    };
    let summed = || {
        // SAFETY: the pair is idle; live buffers.
        Ok(fill_alone()? + unsafe { bare.run(rig) }?)
    };
    let mut pageable = Large::new(rig, &Host::new(&rig.backend, 0), &Device::new(&rig.backend, 0), half)?;
    let summed_pageable = || Ok(fill_alone()? + pageable.turn()?);
    let subjects = vec![
        Subject { name: "ringmem, both", turn: Box::new(both) },
        Subject { name: "the longer alone", turn: Box::new(longer) },
        Subject { name: "alone: one by one", turn: Box::new(summed) },
        Subject { name: "alone: from pageable", turn: Box::new(summed_pageable) },
    ];
    rig.measure(Workload { name: "overlap", unit: "ns", aim: 1.10, subjects })
}

pub fn flush(rig: &Rig, name: &'static str) -> Result<(), Failure> {
    let (bytes, aim) = match name {
        "flush" | "flush-back" => (1 << 20, 1.11),
        "flush-16M" => (16 << 20, 1.11),
        _ => (rig.bytes, 1.03),
    };
    let is_back = name.starts_with("flush-back");
    let mut flush = Flush::new(rig, bytes, is_back)?;
    let ours: Turn<'_> = if is_back { Box::new(|| flush.down()) } else { Box::new(|| flush.up()) };
    let (pinned, device) = (Pinned::new(&rig.backend, 0), Device::new(&rig.backend, 0));
    if is_back {
        against_bare(rig, name, aim, ours, &device, &pinned, bytes)
    } else {
        against_bare(rig, name, aim, ours, &pinned, &device, bytes)
    }
}

fn against_bare<A: Placed, B: Placed>(
    rig: &Rig,
    name: &'static str,
    aim: f64,
    ours: Turn<'_>,
    from: &A,
    to: &B,
    bytes: usize,
) -> Result<(), Failure> {
    let mut from = Buffer::<u8, A>::new(from.clone(), bytes)?;
    from.fill(7)?;
    let pair = Some((from, Buffer::<u8, B>::new(to.clone(), bytes)?));
    let stream = Stream::new(&rig.backend, 0)?;
    let bare = Bare::of(rig, &pair, &stream)?;
    let subjects = vec![
        Subject { name: "ringmem bridge", turn: ours },
        // SAFETY: the pair is otherwise unused, and dropped after the run.
        Subject { name: "backend", turn: Box::new(|| unsafe { bare.run(rig) }) },
        // SAFETY: the pair is otherwise unused, and dropped after the run.
        Subject { name: DRIVER, turn: Box::new(|| unsafe { bare.by_the_driver() }) },
    ];
    rig.measure(Workload { name, unit: "ns", aim, subjects })
}

struct Flush<'a> {
    rig: &'a Rig,
    opened: Opened<Echo, Echo>,
    lines: Vec<Echo>,
    index: Address,
    written: u64,
}

impl<'a> Flush<'a> {
    fn new(rig: &'a Rig, bytes: usize, is_back: bool) -> Result<Self, Failure> {
        let lines = vec![Echo { words: [7; 8] }; bytes / size_of::<Echo>()];
        let slots = (lines.len() as u64).next_power_of_two();
        let capacity = if is_back { [1, slots] } else { [slots, 1] };
        let options = Options { placement: Some([Placement::DEVICE; 2]), capacity, ..Options::new(TransferStrategy::Sync) };
        let opened = RingBufferBridge::<Echo, Echo>::open(&rig.backend, 0, &options)?;
        let [input, output] = opened.bridge.addresses()?;
        let index = if is_back {
            output.peer + offset_of!(RingHeader<u64>, producer) as u64
        } else {
            input.peer + offset_of!(RingHeader<u64>, consumer) as u64
        };
        if is_back {
            let fill = Fill::of(Address::Device(DeviceAddress::new(output.slots)), 7_u64, slots * 8);
            // SAFETY: the ring's slots, none of which is published.
            unsafe { rig.backend.fill_now(&fill) }?;
        }
        Ok(Self { rig, opened, lines, index: Address::Device(DeviceAddress::new(index)), written: 0 })
    }

    fn up(&mut self) -> Result<f64, Failure> {
        let Opened { sender, bridge, .. } = &mut self.opened;
        let pushed = sender.push_slice(&self.lines)?;
        let begun = Instant::now();
        let moved = bridge.flush_to_device()?;
        let took = begun.elapsed();
        self.all([pushed as u64, moved])?;
        self.publish()?;
        // Refreshes the host's view, so that the next flush does not poll.
        if let Some((_, looked)) = self.opened.bridge.untaken() {
            looked?;
        }
        Ok(took.as_nanos() as f64)
    }

    fn down(&mut self) -> Result<f64, Failure> {
        self.publish()?;
        let begun = Instant::now();
        let moved = self.opened.bridge.flush_to_host()?;
        let took = begun.elapsed();
        self.lines.fill(Echo { words: [0; 8] });
        let popped = self.opened.receiver.pop_slice(&mut self.lines)?;
        self.all([popped as u64, moved])?;
        demand(self.lines.iter().all(|line| line.words == [7; 8]), || "a received message differs from the sent one".to_owned())?;
        Ok(took.as_nanos() as f64)
    }

    fn publish(&mut self) -> Result<(), Failure> {
        self.written += self.lines.len() as u64;
        // SAFETY: a word of a live ring's header, accessed as one word by all.
        Ok(unsafe { self.rig.backend.publish_now(self.index, self.written) }?)
    }

    fn all(&self, counts: [u64; 2]) -> Result<(), Failure> {
        let count = self.lines.len() as u64;
        demand(counts == [count; 2], || format!("{counts:?} of {count} messages were flushed"))
    }
}
