use std::sync::Arc;
use std::time::{Duration, Instant};

use ringmem::backend::MemoryLocation;
use ringmem::backend::cuda::CudaBackend;
use ringmem::bridge::{Placement, TransferStrategy};
use ringmem::channel::{Builder, Channel, Options};
use ringmem::control::{Command, Fault, State};
use ringmem::kernel::DevicePointer;
use ringmem::memory::{Buffer, Device, GpuBuffer, Pinned, PinnedBuffer};
use ringmem::stream::{Module, Stream};
use ringmem::{Error, RingMessage};
use ringmem_kernels::burst::{BURST, Burst, Report as Numbered};
use ringmem_kernels::echo::{ECHO_BLOCK, ECHO_GROUPED, Echo};
use ringmem_kernels::grid::{SAXPY, SMOOTH, VECTOR_ADD};
use ringmem_kernels::{ABI, IMAGE, Index, saxpy, smooth};

use crate::Scale;
use crate::child::Child;
use crate::exchange::{Echoes, STRATEGIES, by, exchange, open, options};
use crate::limits::{Limits, limits};
use crate::prefilled;
use crate::report::{Failure, Report, Skipped, demand};

const NEAR_THE_END: u64 = u64::MAX - 20;
const SHORT: Duration = Duration::from_millis(300);
/// The longest idle limit that `deadline` tries is below twice this.
const LONGEST: Duration = Duration::from_millis(2500);

pub fn run(report: &mut Report, backend: &Arc<CudaBackend>, scale: Scale) -> Result<(), Failure> {
    let is_free = report.fact("cuMemHostAlloc beside a running kernel", allocated);
    let allocating = |find: fn(&Arc<CudaBackend>) -> Result<String, Failure>| {
        if is_free {
            find(backend)
        } else {
            Err(Skipped("allocates pinned memory, which waits for the kernel's deadline".to_owned()).into())
        }
    };
    for strategy in STRATEGIES {
        let few = (scale.messages / 20).min(5_000);
        report.fact(format!("{few} messages through small rings across the wrap, {}", strategy.name()), || {
            through(backend, &Options { input_capacity: 16, output_capacity: 8, start: NEAR_THE_END, ..by(strategy) }, few)
        });
        let shared = matches!(strategy, TransferStrategy::Unified | TransferStrategy::Flagged);
        let many = if shared { scale.messages } else { scale.messages / 10 };
        report.fact(format!("{many} messages, {}", strategy.name()), || through(backend, &by(strategy), many));
    }
    for strategy in [TransferStrategy::Sync, TransferStrategy::Async] {
        report.fact(format!("a header on each side, {}", strategy.name()), || {
            let split = |slots, header| Placement { slots, peer_header: Some(header) };
            let placement = [split(MemoryLocation::Device, MemoryLocation::Pinned), split(MemoryLocation::Pinned, MemoryLocation::Device)];
            through(backend, &Options { strategy: Some(strategy), placement: Some(placement), ..options("echo") }, scale.messages / 100)
        });
    }
    report.fact("several kernels at once, each with its rings", || allocating(several));
    for groups in [1, 4, 16, 64] {
        let builder = Channel::builder(ECHO_GROUPED).groups(groups);
        report.fact(format!("one channel answered by {groups} groups"), || together(backend, builder, scale.messages / 2));
    }
    for warps in [1, 2, 4, 8] {
        let builder = Channel::builder(ECHO_BLOCK).warps(warps).batch(256);
        report.fact(format!("one channel answered by a block of {warps} warps"), || together(backend, builder, scale.messages / 2));
    }
    report.fact("reports without a message for each", || reports(backend, scale.messages));
    report.fact("many groups of one launch", || groups(backend));
    report.fact("many groups of one launch beside a running kernel", || groups_beside(backend));
    report.fact("kernels over buffers", || over_buffers(backend, scale.elements));
    report.fact("kernels over buffers beside a running kernel", || {
        let mut channel = open(backend, &options("echo"))?;
        exchange(&mut channel, 0, 100)?;
        let facts = over_buffers(backend, 10_000)?;
        exchange(&mut channel, 100, 100)?;
        ended(channel, 200)?;
        Ok(facts)
    });
    report.fact("paused and told to go on", || paused(backend));
    report.fact("memory comes and goes under a running kernel", || allocating(under));
    report.fact("ended by its deadline, then another epoch on the same rings", || deadline(backend));
    // The likeliest to hang, because they assume most of the driver. Only the test that kills a process follows.
    report.fact("a block of several warps beside many groups", || allocating(beside_groups));
    report.fact("many streams beside a running kernel", || allocating(streams));
    report.fact("the host process killed under its kernel, and another started", || killed(backend));
    Ok(())
}

pub fn short(report: &mut Report, backend: &Arc<CudaBackend>) -> Result<(), Failure> {
    report.fact("copies, fills and a kernel", || {
        let stream = Stream::new(backend, 0)?;
        let module = Module::load(backend, &IMAGE, &ABI)?;
        let mut buffer = Buffer::<u8, _>::new(Device::new(backend, 0), 5000)?;
        buffer.fill(6)?;
        let address = buffer.device_address().ok_or("device memory has no address")?.get();
        // SAFETY: the buffer's bytes, otherwise unused; it records the launch.
        let kernel = unsafe { stream.launch(&module, "increment", &[address, 5000]) }?;
        buffer.used_by(&stream)?;
        kernel.wait().map_err(ringmem::Rejected::into_error)?;
        demand(buffer.to_vec()?.iter().all(|&byte| byte == 7), || "not every byte is one more".to_owned())?;
        Ok("5000 bytes".to_owned())
    });
    // Channels of messages would not open where launches wait for their kernels.
    report.fact("messages, by indices", || prefilled::echo(backend));
    report.fact("messages, by a flag each", || prefilled::echo_flagged(backend));
    report.fact("messages, by a flag in each word pair", || prefilled::echo_paired(backend));
    Ok(())
}

fn through(backend: &Arc<CudaBackend>, options: &Options<'_>, messages: u64) -> Result<String, Failure> {
    let begun = Instant::now();
    let mut channel = open(backend, options)?;
    exchange(&mut channel, 0, messages)?;
    let took = begun.elapsed();
    ended(channel, messages)?;
    Ok(format!("each once, whole and in order, in {} ms", took.as_millis()))
}

fn ended(channel: Echoes, messages: u64) -> Result<(), Failure> {
    let control = channel.close()?.control;
    let (state, processed) = (control.kernel_state(), control.processed);
    demand((state, processed) == (Some(State::Terminated), messages), || format!("{state:?} after {processed} of {messages} messages"))
}

fn several(backend: &Arc<CudaBackend>) -> Result<String, Failure> {
    let messages = 200;
    let mut channels = (0..4).map(|_| open(backend, &options("echo"))).collect::<Result<Vec<_>, Failure>>()?;
    for round in 0..2 {
        for channel in &mut channels {
            exchange(channel, round * messages, messages)?;
        }
    }
    let count = channels.len();
    channels.into_iter().try_for_each(|channel| ended(channel, 2 * messages))?;
    Ok(format!("{count} kernels, {messages} messages twice each"))
}

fn limited<In: RingMessage, Out: RingMessage>(builder: Builder<In, Out>) -> Builder<In, Out> {
    let Limits { idle, timeout, .. } = *limits();
    builder.idle(idle).timeout(timeout)
}

fn together(backend: &Arc<CudaBackend>, builder: Builder<Echo, Echo>, messages: u64) -> Result<String, Failure> {
    let mut channel = match limited(builder).open(backend, 0) {
        Err(error @ (Error::Size { .. } | Error::Residency { .. })) => return Err(Skipped(error.to_string()).into()),
        opened => opened?,
    };
    let begun = Instant::now();
    exchange(&mut channel, 0, messages)?;
    let rate = messages as f64 / begun.elapsed().as_secs_f64() / 1e6;
    ended(channel, messages)?;
    Ok(format!("{messages} messages, each once, whole and in order: {rate:.3} M msg/s"))
}

/// A multiprocessor that runs blocks keeps its division into cache and shared memory, of which only the block of several warps needs some.
fn beside_groups(backend: &Arc<CudaBackend>) -> Result<String, Failure> {
    let most = match Channel::builder(ECHO_GROUPED).groups(u32::MAX).open(backend, 0) {
        Err(Error::Size { most, .. }) => most,
        opened => return Err(format!("{:?}, with too many groups", opened.map(drop)).into()),
    };
    let groups = (most / 2).min(160) as u32;
    for is_block_first in [false, true] {
        let mut builders = [Channel::builder(ECHO_GROUPED).groups(groups), Channel::builder(ECHO_BLOCK).warps(4)];
        if is_block_first {
            builders.reverse();
        }
        let opened = builders.into_iter().map(|builder| limited(builder).open(backend, 0));
        let mut channels = opened.collect::<Result<Vec<_>, _>>()?;
        for channel in &mut channels {
            exchange(channel, 0, 100)?;
        }
        channels.into_iter().try_for_each(|channel| ended(channel, 100))?;
    }
    Ok(format!("{groups} groups, in either order"))
}

fn reports(backend: &Arc<CudaBackend>, count: u64) -> Result<String, Failure> {
    let mut channel = limited(Channel::builder(BURST)).open(backend, 0)?;
    channel.send(Burst { count }).map_err(|error| error.to_string())?;
    let begun = Instant::now();
    for number in 0..count {
        let report = channel.recv_timeout(limits().answer)?;
        demand(report == Numbered { number }, || format!("{report:?} in place of {number}"))?;
    }
    let rate = count as f64 / begun.elapsed().as_secs_f64() / 1e6;
    let processed = channel.close()?.control.processed;
    demand(processed == 1, || format!("{processed} messages are counted"))?;
    Ok(format!("{count} for one message, in order: {rate:.3} M msg/s"))
}

/// With fewer queues than streams, a driver queues some streams' work behind the kernel.
fn streams(backend: &Arc<CudaBackend>) -> Result<String, Failure> {
    const COUNT: usize = 24;
    let mut channel = open(backend, &options("echo"))?;
    exchange(&mut channel, 0, 100)?;
    let streams = (0..COUNT).map(|_| Stream::new(backend, 0)).collect::<Result<Vec<_>, _>>()?;
    for (nth, stream) in streams.iter().enumerate() {
        let from = Buffer::<u8, _>::new(Pinned::new(backend, 0), 5000)?;
        let copy = stream.copy(from, Buffer::<u8, _>::new(Device::new(backend, 0), 5000)?).map_err(ringmem::Rejected::into_error)?;
        let Ok(copied) = copy.wait_timeout(limits().answer) else {
            return Err(format!("a copy on stream {nth} waits for the kernel").into());
        };
        copied.map_err(ringmem::Rejected::into_error)?;
    }
    exchange(&mut channel, 100, 100)?;
    ended(channel, 200)?;
    Ok(format!("a copy on each of {COUNT}"))
}

fn allocated() -> Result<String, Failure> {
    let mut child = Child::start("child-allocates", &[])?;
    let said = child.line(limits().start)?;
    demand(said.starts_with("listens"), || format!("the child said `{said}`"))?;
    let said = child.line(limits().answer).map_err(|failure| format!("it waits for the kernel: {failure}"))?;
    demand(said.starts_with("allocated: "), || format!("the child said `{said}`"))?;
    Ok(said)
}

fn groups(backend: &Arc<CudaBackend>) -> Result<String, Failure> {
    const WANTED: u32 = 300;
    const COUNT: usize = 100_003;
    let (stream, module) = (Stream::new(backend, 0)?, Module::load(backend, &IMAGE, &ABI)?);
    let memory = Device::new(backend, 0);
    let [a, b] = [3, 5].map(|factor| (0..COUNT).map(|i| (i % 1000 * factor) as f32).collect::<Vec<f32>>());
    let mut sums = GpuBuffer::<f32>::new(memory.clone(), COUNT)?;
    sums.zero()?;
    let [mut a, mut b] = [GpuBuffer::from_slice(memory.clone(), &a)?, GpuBuffer::from_slice(memory, &b)?];
    let [to, left, right] = [&sums, &a, &b].map(|buffer| buffer.device_address().map_or(0, |address| address.get()));
    let arguments = (DevicePointer::new(to), DevicePointer::new(left), DevicePointer::new(right), COUNT as u64);
    let begun = Instant::now();
    // SAFETY: `COUNT` elements of each, otherwise unused; they record the launch.
    let launch = |groups| unsafe { stream.start(&module, &VECTOR_ADD, arguments, groups) };
    let mut groups = WANTED;
    let kernel = loop {
        match launch(groups) {
            Err(Error::Size { most: fit, .. } | Error::Residency { free: fit, .. }) if (2..u64::from(groups)).contains(&fit) => {
                groups = fit as u32
            }
            launched => break launched?,
        }
    };
    for buffer in [&mut sums, &mut a, &mut b] {
        buffer.used_by(&stream)?;
    }
    let left = kernel.wait_timeout(limits().answer).map_err(|_| "it does not end")?;
    left.map_err(ringmem::Rejected::into_error)?;
    let took = begun.elapsed();
    demand(took < limits().answer, || format!("it took {} ms", took.as_millis()))?;
    let wrong = sums.to_vec()?.iter().enumerate().filter(|&(i, &sum)| sum != (i % 1000 * 8) as f32).count();
    demand(wrong == 0, || format!("{wrong} of {COUNT} sums are wrong"))?;
    Ok(format!("{groups} groups, {COUNT} sums, in {} ms", took.as_millis()))
}

fn groups_beside(backend: &Arc<CudaBackend>) -> Result<String, Failure> {
    let mut channel = open(backend, &options("echo"))?;
    exchange(&mut channel, 0, 100)?;
    let facts = groups(backend)?;
    exchange(&mut channel, 100, 100)?;
    ended(channel, 200)?;
    Ok(facts)
}

/// Compares kernels with their functions, for some shapes of a launch; then times one over more elements than a launch has threads.
fn over_buffers(backend: &Arc<CudaBackend>, most: usize) -> Result<String, Failure> {
    let stream = Stream::new(backend, 0)?;
    // Of 1024 threads: two for each element, up to 200 blocks.
    let blocks = (most / 512).min(200) as u32;
    for len in [1, 63, 1025, 100_003.min(most)] {
        let x: Vec<f32> = (0..len).map(|i| (i % 97) as f32).collect();
        let inputs = Buffer::from_slice(Device::new(backend, 0), &x)?;
        let mut outputs = Buffer::from_slice(Device::new(backend, 0), &vec![3.0_f32; len])?;
        for (threads, blocks) in [(0, 0), (64, 1), (96, 3), (1024, blocks)] {
            let shape = || format!("{len} elements, {threads} threads, {blocks} blocks: not what the function gives");
            outputs.fill(3.0)?;
            stream.run(SAXPY.threads(threads).blocks(blocks), (&inputs, &mut outputs, 0.5))?;
            let mut expected = vec![3.0; len];
            expected.iter_mut().zip(&x).for_each(|(y, x)| saxpy(x, y, 0.5));
            demand(outputs.to_vec()? == expected, shape)?;
            stream.run(SMOOTH.threads(threads).blocks(blocks), (&inputs, &mut outputs))?;
            expected.iter_mut().enumerate().for_each(|(at, y)| smooth(Index::new(at, len), &x, y));
            demand(outputs.to_vec()? == expected, shape)?;
        }
    }
    let mut x = GpuBuffer::<f32>::new(Device::new(backend, 0), most)?;
    let mut y = GpuBuffer::<f32>::new(Device::new(backend, 0), most)?;
    x.fill(1.0)?;
    y.fill(0.0)?;
    let begun = Instant::now();
    for _ in 0..10 {
        stream.run(SAXPY, (&x, &mut y, 1.0))?;
    }
    let rate = 10.0 * 12.0 * most as f64 / begun.elapsed().as_secs_f64() / 1e9;
    demand(y.to_vec()?.iter().all(|&y| y == 10.0), || "not every element was added to ten times".to_owned())?;
    Ok(format!("{most} elements, read twice and written once, with the launch and the wait: {rate:.1} GB/s"))
}

fn paused(backend: &Arc<CudaBackend>) -> Result<String, Failure> {
    let mut channel = open(backend, &options("echo"))?;
    exchange(&mut channel, 0, 100)?;
    channel.command(Command::PAUSE)?;
    demand(channel.state() == Some(State::Paused), || format!("it is {:?}", channel.state()))?;
    channel.command(Command::ACTIVATE)?;
    exchange(&mut channel, 100, 100)?;
    ended(channel, 200)?;
    Ok("200 messages around it".to_owned())
}

fn under(backend: &Arc<CudaBackend>) -> Result<String, Failure> {
    const LEN: usize = 1 << 20;
    let mut channel = open(backend, &options("echo"))?;
    let stream = Stream::new(backend, 0)?;
    for round in 0..20 {
        exchange(&mut channel, u64::from(round) * 50, 50)?;
        let mut gpu = GpuBuffer::<u8>::new(Device::new(backend, 0), LEN)?;
        gpu.fill(round)?;
        let pinned = PinnedBuffer::<u8>::new(Pinned::new(backend, 0), LEN)?;
        let copied = stream.copy(gpu, pinned).map_err(ringmem::Rejected::into_error)?;
        let (gpu, pinned) = copied.wait().map_err(ringmem::Rejected::into_error)?;
        demand(pinned.as_slice()?.iter().all(|&byte| byte == round), || format!("round {round} came back otherwise"))?;
        drop((gpu, pinned, Stream::new(backend, 0)?));
    }
    let waited = backend.waiting();
    ended(channel, 1000)?;
    // The backend's thread may be freeing them.
    let begun = Instant::now();
    while backend.waiting() > 0 {
        demand(begun.elapsed() < limits().answer, || format!("{} blocks are still kept", backend.waiting()))?;
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(format!("20 rounds; {waited} blocks were freed when it had left"))
}

fn deadline(backend: &Arc<CudaBackend>) -> Result<String, Failure> {
    let has_idled = |failure: &Failure| matches!(failure.downcast_ref(), Some(Error::Kernel { fault: Some(Fault::Deadline), .. }));
    let mut idle = SHORT;
    loop {
        match deadline_of(backend, idle) {
            // On a slow machine a short limit is over between two messages; nothing is known about a longer one.
            Err(failure) if has_idled(&failure) && idle < LONGEST => idle *= 4,
            ended => return ended,
        }
    }
}

fn deadline_of(backend: &Arc<CudaBackend>, idle: Duration) -> Result<String, Failure> {
    let options = Options { idle, start: NEAR_THE_END, ..options("echo") };
    let mut channel = open(backend, &options)?;
    exchange(&mut channel, 0, 50)?;
    let begun = Instant::now();
    let left = loop {
        match channel.check() {
            Err(error) => break error,
            Ok(()) if begun.elapsed() > idle * 20 => return Err("it listens still".into()),
            Ok(()) => std::thread::sleep(Duration::from_millis(1)),
        }
    };
    let took = begun.elapsed();
    demand(matches!(left, Error::Kernel { state: Some(State::Faulted), fault: Some(Fault::Deadline), .. }), || left.to_string())?;
    let before = channel.control().kernel_epoch();
    let begun = Instant::now();
    loop {
        // SAFETY: `echo` takes no own arguments.
        match unsafe { channel.restart_raw() } {
            Err(Error::Busy { .. }) if begun.elapsed() < idle * 20 => std::thread::yield_now(),
            restarted => break restarted?,
        }
    }
    let after = channel.control().kernel_epoch();
    demand(after != before, || format!("epoch {after} as before"))?;
    exchange(&mut channel, 50, 50)?;
    channel.close()?;
    Ok(format!("left after {} ms; epoch {before}, then {after}", took.as_millis()))
}

fn killed(backend: &Arc<CudaBackend>) -> Result<String, Failure> {
    let mut child = Child::start("child-listens", &[])?;
    let said = child.line(limits().start)?;
    demand(said.starts_with("listens"), || format!("the child said {said}"))?;
    child.kill()?;
    let begun = Instant::now();
    through(backend, &options("echo"), 100)?;
    let mut next = Child::start("child-listens", &[])?;
    let said = next.line(limits().start)?;
    demand(said.starts_with("listens"), || format!("the next child said {said}"))?;
    next.kill()?;
    Ok(format!("both work, {} ms after it", begun.elapsed().as_millis()))
}
