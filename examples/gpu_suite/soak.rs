use std::alloc::Layout;
use std::sync::Arc;
use std::time::Instant;

use ringmem::backend::Uses;
use ringmem::backend::cuda::CudaBackend;
use ringmem::channel::Options;
use ringmem::control::{Command, State};
use ringmem::memory::{Buffer, Device, Memory, Pinned, PinnedBuffer};
use ringmem::pool::Pool;
use ringmem::stream::Stream;

use crate::exchange::{STRATEGIES, by, exchange, open};
use crate::report::{Failure, Report, demand};

const MESSAGES: u64 = 1000;
const TURNS: u64 = 50;
/// Bytes of a copy that runs during a channel's messages.
const LEN: usize = 256 << 10;

#[derive(Default)]
struct Done {
    messages: u64,
    channels: u64,
    copies: u64,
}

pub fn run(report: &mut Report, backend: &Arc<CudaBackend>, until: Instant) -> Result<(), Failure> {
    let mut done = Done::default();
    report.fact("messages, copies and blocks until its time is over", || {
        let begun = Instant::now();
        let mut strategies = STRATEGIES.iter().cycle();
        while Instant::now() < until || done.channels < STRATEGIES.len() as u64 {
            let Some(strategy) = strategies.next() else { break };
            let start = u64::MAX - done.channels * 777;
            channel(backend, &Options { start, ..by(*strategy) }, until, &mut done)?;
        }
        let Done { messages, channels, copies } = done;
        Ok(format!("{messages} messages by {channels} channels, {copies} copies beside them, in {} s", begun.elapsed().as_secs()))
    });
    report.fact("nothing is left of it", || {
        let counters = backend.counters();
        let (pinned, device) = (counters.pinned_live.bytes, counters.device_live.bytes);
        demand((pinned, device, backend.waiting()) == (0, 0, 0), || {
            format!("{pinned} pinned bytes, {device} of the device, {} that wait", backend.waiting())
        })?;
        Ok("no memory, no kernel".to_owned())
    });
    Ok(())
}

fn channel(backend: &Arc<CudaBackend>, options: &Options<'_>, until: Instant, done: &mut Done) -> Result<(), Failure> {
    let stream = Stream::new(backend, 0)?;
    let pool = Pool::builder(Device::new(backend, 0)).build()?;
    // Before the kernel is launched: a driver may let an allocation of pinned memory wait for every running kernel.
    let pinned = || Buffer::<u8, _>::new(Pinned::new(backend, 0), LEN);
    let mut pair = [pinned()?, pinned()?];
    let mut channel = open(backend, options)?;
    let mut turns = 0;
    while turns == 0 || turns < TURNS && Instant::now() < until {
        exchange(&mut channel, turns * MESSAGES, MESSAGES)?;
        blocks(&pool, turns)?;
        pair = copy(backend, &stream, pair, turns as u8)?;
        if turns % 10 == 9 {
            channel.command(Command::PAUSE)?;
            channel.command(Command::ACTIVATE)?;
        }
        turns += 1;
        done.copies += 2;
    }
    let control = channel.close()?.control;
    let (state, processed) = (control.kernel_state(), control.processed);
    let expected = turns * MESSAGES;
    demand((state, processed) == (Some(State::Terminated), expected), || format!("{state:?} after {processed} of {expected}"))?;
    (done.messages, done.channels) = (done.messages + expected, done.channels + 1);
    Ok(())
}

fn blocks(pool: &Pool<Device>, turn: u64) -> Result<(), Failure> {
    let mut kept = Vec::new();
    for i in 0..32 {
        let bytes = 1 + (turn * 7919 + i * 104_729) as usize % (1 << 20);
        kept.push(pool.alloc(Layout::from_size_align(bytes, 64)?, None)?);
    }
    for block in kept {
        // SAFETY: freed once, unused.
        unsafe { pool.free(&block, &Uses::NONE) }?;
    }
    Ok(())
}

fn copy(
    backend: &Arc<CudaBackend>,
    stream: &Stream,
    [mut source, back]: [PinnedBuffer<u8>; 2],
    byte: u8,
) -> Result<[PinnedBuffer<u8>; 2], Failure> {
    source.as_mut_slice()?.fill(byte);
    let gpu = Buffer::<u8, _>::new(Device::new(backend, 0), LEN)?;
    let (source, gpu) = stream.copy(source, gpu).map_err(ringmem::Rejected::into_error)?.detach();
    let (_, back) = stream.copy(gpu, back).map_err(ringmem::Rejected::into_error)?.wait().map_err(ringmem::Rejected::into_error)?;
    demand(back.as_slice()?.iter().all(|&back| back == byte), || format!("bytes {byte} came back otherwise"))?;
    Ok([source, back])
}
