//! The round trip of rings with a flag in each word: are they worth their memory?

use std::time::Instant;

use ringmem::control::{Capabilities, Command, HostSide, Launch, Shared, State};
use ringmem::ring::RingFlags;
use ringmem::ring::paired::{Consumer, Producer};
use ringmem::{Host, HostWord, Result, RingHeader, RingLayout};
use ringmem_kernels::echo::Echo;

use crate::driver::Gpu;
use crate::rig::{CAPACITY, Shape};
use crate::table::Table;

const TELEMETRY: u64 = 128;
const INPUT: u64 = 256;

pub fn round_trips(table: &mut Table, gpu: &Gpu, shape: &Shape, scale: u64) -> Result<()> {
    let ring = RingLayout::of_kind::<Echo>(RingFlags::PAIRED, CAPACITY)?;
    let output = INPUT + ring.size();
    let (memory, stream) = (gpu.pinned((output + ring.size()) as usize)?, gpu.stream()?);
    // SAFETY: offsets within the zeroed allocation, aligned to 128, which outlives the ends; only they and the kernel access it.
    let (mut producer, mut consumer, mut control) = unsafe {
        let place = |offset: u64| memory.host.add(offset as usize);
        for at in [INPUT, output] {
            place(at).cast::<RingHeader<HostWord>>().as_ref().format::<Echo>(&ring, shape.start);
        }
        let launch = Launch {
            abi: ringmem_kernels::ABI.hash,
            capabilities: Capabilities::SYSTEM_SCOPE | Capabilities::TELEMETRY,
            epoch: shape.epoch,
            input_ring: memory.device + INPUT,
            output_ring: memory.device + output,
            second_headers: [None; 2],
            telemetry: memory.device + TELEMETRY,
        };
        (
            Producer::<Echo, Host>::from_raw(place(INPUT), ring.size())?,
            Consumer::<Echo, Host>::from_raw(place(output), ring.size())?,
            HostSide::prepare(place(0).cast::<Shared<HostWord>>().as_ref(), &launch),
        )
    };
    let idle_ns = u64::try_from(shape.idle.as_nanos()).unwrap_or(u64::MAX);
    // SAFETY: the kernel's arguments, in order; memory is freed only after it exits.
    unsafe { stream.launch(gpu.kernel("echo_paired")?, 1, &[memory.device, u64::from(shape.epoch), idle_ns, shape.batch])? };
    control.command(Command::ACTIVATE);
    let rounds = (10_000 / scale).max(400);
    let (mut times, mut wrong) = (Vec::new(), 0_u64);
    'rounds: for number in 0..rounds {
        let message = Echo { words: std::array::from_fn(|place| [number, !number][place % 2]) };
        let begun = Instant::now();
        if producer.push(message).is_err() {
            break;
        }
        let answer = loop {
            match consumer.pop() {
                Ok(answer) => break answer,
                Err(_) if begun.elapsed() > shape.idle => break 'rounds,
                Err(_) => std::hint::spin_loop(),
            }
        };
        times.push(begun.elapsed().as_nanos() as f64);
        wrong += u64::from(answer != message);
    }
    control.command(Command::DRAIN);
    stream.synchronize()?;
    let seen = control.snapshot();
    drop((producer, consumer, control));
    gpu.free_pinned(memory)?;
    let facts = format!("{} of {rounds} messages across the wrap, {wrong} wrong, the kernel counted {}", times.len(), seen.processed);
    times.drain(..1.min(times.len()));
    table.row("echo round trip, a flag in each word".to_owned(), "ns", &mut times, Some("echo round trip, one shared header"));
    let holds = (wrong, seen.processed, seen.kernel_state()) == (0, rounds, Some(State::Terminated));
    table.fact("echo, a flag in each word", Some(holds), facts);
    Ok(())
}
