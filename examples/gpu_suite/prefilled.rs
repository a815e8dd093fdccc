//! Kernels whose rings are filled and commanded to drain before the launch: they end without any action of the host.
//!
//! A tool that makes launches wait for their kernels, as compute-sanitizer does, would keep a channel from ever opening.

use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use ringmem::attach::AttachError;
use ringmem::backend::cuda::CudaBackend;
use ringmem::control::{Capabilities, Command, HostSide, Launch, Shared, State};
use ringmem::memory::{Pinned, PinnedBuffer};
use ringmem::ring::{RingFlags, flagged, paired, spsc};
use ringmem::stream::{Module, Stream};
use ringmem::{Host, HostWord, RingHeader, RingLayout};
use ringmem_kernels::echo::Echo;
use ringmem_kernels::{ABI, IMAGE};

use crate::exchange::message;
use crate::report::{Failure, demand};

const CAPACITY: u64 = 512;
const MESSAGES: u64 = 500;
/// Across the wrap.
const START: u64 = u64::MAX - 100;
const PATIENCE: Duration = Duration::from_secs(20);
const TELEMETRY: u64 = 128;
const INPUT: u64 = 256;

/// Pushes a message, or returns false; pops one.
type Ends = (Box<dyn FnMut(Echo) -> bool>, Box<dyn FnMut() -> Option<Echo>>);

macro_rules! ends {
    ($kind:ident) => {
        |input, output, len| {
            // SAFETY: the promise of `drained`.
            let mut producer = unsafe { $kind::Producer::<Echo, Host>::from_raw(input, len)? };
            // SAFETY: as above.
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
    let output = INPUT + ring.size();
    // Of `u64`, 128 bytes to spare for the alignment.
    let mut memory = PinnedBuffer::<u64>::new(Pinned::new(backend, 0), ((output + ring.size()) / 8 + 16) as usize)?;
    memory.zero()?;
    let address = memory.device_address().ok_or("pinned memory has no device address")?.get();
    let skipped = address.next_multiple_of(128) - address;
    let device = address + skipped;
    let host = memory.as_ptr().ok_or("the host does not see pinned memory")?.cast::<u8>();
    // SAFETY: at most 128 bytes, which the memory has to spare.
    let base = unsafe { host.add(skipped as usize) };
    // SAFETY: offsets within the memory.
    let place = |offset: u64| unsafe { base.add(offset as usize) };
    for at in [INPUT, output] {
        // SAFETY: zeroed, aligned to 128, as long as `memory`; only the ends and the kernel access it, later.
        unsafe { place(at).cast::<RingHeader<HostWord>>().as_ref().format::<Echo>(&ring, START) };
    }
    let launch = Launch {
        abi: ABI.hash,
        capabilities: Capabilities::SYSTEM_SCOPE | Capabilities::TELEMETRY,
        epoch: EPOCH,
        input_ring: device + INPUT,
        output_ring: device + output,
        second_headers: [None; 2],
        telemetry: device + TELEMETRY,
    };
    // SAFETY: as above.
    let mut control = unsafe { HostSide::prepare(place(0).cast::<Shared<HostWord>>().as_ref(), &launch) };
    let (mut push, mut pop) = attach(place(INPUT), place(output), ring.size())?;
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
