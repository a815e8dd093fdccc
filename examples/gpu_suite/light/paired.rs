//! The round trip of rings with a flag in each word: are they worth their memory?

use std::time::Instant;

use ringmem::control::{Command, State};
use ringmem::ring::RingFlags;
use ringmem::ring::paired::{Consumer, Producer};
use ringmem::{Host, Result, RingLayout};
use ringmem_kernels::echo::Echo;

use super::rig::{CAPACITY, Shape};
use super::table::Table;
use crate::driver::Gpu;
use crate::rings::Rings;

pub fn round_trips(table: &mut Table<'_>, gpu: &Gpu, shape: &Shape, scale: u64) -> Result<()> {
    let ring = RingLayout::of_kind::<Echo>(RingFlags::PAIRED, CAPACITY)?;
    let (memory, stream) = (gpu.pinned(Rings::bytes(&ring, 1) as usize)?, gpu.stream()?);
    // SAFETY: the allocation is zeroed and page-aligned, and is freed after the kernel has ended and the ends are dropped; only they access it.
    let rings = unsafe { Rings::format(memory, ring, 1, shape.start) };
    let (input, output) = (rings.input(0), rings.output(0));
    // SAFETY: formatted rings, attached to once each; the control block is prepared once, before the launch.
    let (mut producer, mut consumer, mut control) = unsafe {
        (
            Producer::<Echo, Host>::from_raw(rings.place(input), ring.size())?,
            Consumer::<Echo, Host>::from_raw(rings.place(output), ring.size())?,
            rings.control(0, shape.epoch, [None; 2]),
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
