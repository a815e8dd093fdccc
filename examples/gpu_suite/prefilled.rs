//! Kernels whose rings are filled and commanded to drain before the launch: they end without any action of the host.
//!
//! A tool that makes launches wait for their kernels, as compute-sanitizer does, would keep a channel from ever opening.

use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use ringmem::attach::AttachError;
use ringmem::backend::cuda::CudaBackend;
use ringmem::control::{Command, State};
use ringmem::memory::{Pinned, PinnedBuffer};
use ringmem::ring::{RingFlags, flagged, paired, spsc};
use ringmem::stream::{Module, Stream};
use ringmem::{Host, RingLayout};
use ringmem_kernels::echo::Echo;
use ringmem_kernels::{ABI, IMAGE};

use crate::driver;
use crate::exchange::message;
use crate::report::{Failure, demand};
use crate::rings::Rings;

const CAPACITY: u64 = 512;
const MESSAGES: u64 = 500;
/// Across the wrap.
const START: u64 = u64::MAX - 100;
const PATIENCE: Duration = Duration::from_secs(20);

/// Pushes a message, or returns false; pops one.
type Ends = (Box<dyn FnMut(Echo) -> bool>, Box<dyn FnMut() -> Option<Echo>>);

macro_rules! ends {
    ($kind:ident) => {
        |input, output, len| {
            // SAFETY: `drained` passes the place of a formatted ring that lives as long as this end; the kernel is its only consumer.
            let mut producer = unsafe { $kind::Producer::<Echo, Host>::from_raw(input, len)? };
            // SAFETY: `drained` passes the place of a formatted ring that lives as long as this end; the kernel is its only producer.
            let mut consumer = unsafe { $kind::Consumer::<Echo, Host>::from_raw(output, len)? };
            Ok((Box::new(move |message| producer.push(message).is_ok()), Box::new(move || consumer.pop().ok())))
        }
    };
}

pub fn echo(backend: &Arc<CudaBackend>) -> Result<String, Failure> {
    drained(backend, "echo", RingFlags::SPSC, ends!(spsc))
}

pub fn echo_flagged(backend: &Arc<CudaBackend>) -> Result<String, Failure> {
    drained(backend, "echo_flagged", RingFlags::FLAGGED, ends!(flagged))
}

pub fn echo_paired(backend: &Arc<CudaBackend>) -> Result<String, Failure> {
    drained(backend, "echo_paired", RingFlags::PAIRED, ends!(paired))
}

/// `attach` gets the places of both rings and their size in bytes: formatted, and used by the kernel and these ends alone, as long as they live.
fn drained(
    backend: &Arc<CudaBackend>,
    kernel: &str,
    kind: RingFlags,
    attach: impl FnOnce(NonNull<u8>, NonNull<u8>, u64) -> Result<Ends, AttachError>,
) -> Result<String, Failure> {
    const EPOCH: u32 = 1;
    let (stream, module) = (Stream::new(backend, 0)?, Module::load(backend, &IMAGE, &ABI)?);
    let ring = RingLayout::of_kind::<Echo>(kind, CAPACITY)?;
    // Elements of 8 bytes, and 128 bytes to spare for the alignment.
    let mut memory = PinnedBuffer::<u64>::new(Pinned::new(backend, 0), (Rings::bytes(&ring, 1) / 8 + 16) as usize)?;
    memory.zero()?;
    let address = memory.device_address().ok_or("pinned memory has no device address")?.get();
    let device = address.next_multiple_of(128);
    let host = memory.as_ptr().ok_or("the host does not see pinned memory")?.cast::<u8>();
    // SAFETY: less than 128 bytes, which the memory has to spare.
    let host = unsafe { host.add((device - address) as usize) };
    // SAFETY: zeroed, aligned to 128 and as long as `memory`, which is dropped after the ends and, by its record of the launch, after the kernel.
    let rings = unsafe { Rings::format(driver::Pinned { host, device }, ring, 1, START) };
    let (input, output) = (rings.input(0), rings.output(0));
    // SAFETY: the kernel is launched below, and the control block is prepared once.
    let mut control = unsafe { rings.control(0, EPOCH, [None; 2]) };
    let (mut push, mut pop) = attach(rings.place(input), rings.place(output), ring.size())?;
    for number in 0..MESSAGES {
        demand(push(message(number)), || format!("message {number} does not fit"))?;
    }
    control.command(Command::DRAIN);
    let idle_ns = PATIENCE.as_nanos() as u64;
    // SAFETY: the kernel's arguments, in order; the memory records the launch.
    let launched = unsafe { stream.launch(&module, kernel, &[device, u64::from(EPOCH), idle_ns, 128]) }?;
    memory.used_by(&stream)?;
    let ended = launched.wait_timeout(PATIENCE).map_err(|_| format!("it does not end: {:?}", control.snapshot()))?;
    ended.map_err(ringmem::Rejected::into_error)?;
    let seen = control.snapshot();
    demand((seen.kernel_state(), seen.processed) == (Some(State::Terminated), MESSAGES), || format!("{seen:?}"))?;
    for number in 0..MESSAGES {
        let answer = pop().ok_or_else(|| format!("message {number} did not come back"))?;
        demand(answer == message(number), || format!("message {number} came back as {:?}", answer.words))?;
    }
    Ok(format!("{MESSAGES} messages across the wrap, in the ring before the launch"))
}
