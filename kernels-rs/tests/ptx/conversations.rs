use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64};
use std::thread;

use ringmem_kernels::burst::{Burst, Report};
use ringmem_kernels::echo::Echo;
use ringmem_kernels::histogram::{Chunk, Counted};
use ringmem_kernels::reduce::{Number, Reduce, Reduced, Rows};
use ringmem_kernels::transform::{Applied, Apply, Operation};
use ringmem_layouts::control::{Command, Fault, State};
use ringmem_layouts::image::KernelHost;
use ringmem_layouts::{RingMessage, TelemetryBuffer};
use ringmem_ptx_machine::{Device as Gpu, Image};

use crate::echo::message;
use crate::memory::{Bytes, Device};
use crate::reader::Reader;
use crate::rig::{Rig, Shape};
use crate::{flagged, grouped, histogram, paired, reduce, second_headers, transform};

pub type Heard = Result<(), String>;

/// Reads of the clock without progress that show a stuck kernel.
const PATIENCE: u64 = 1 << 14;

/// Room for every message and for few answers.
const FEW: Shape = Shape { batch: 8, input: 64, output: 4, start: 0 };
const MANY: u64 = 16;

pub struct Run<'r> {
    pub image: &'r Image,
    pub kernel: &'static str,
    pub seed: u64,
}

#[derive(Default)]
pub struct Watch {
    reads: AtomicU64,
    running: AtomicU64,
    has_left: AtomicBool,
    is_read: AtomicBool,
    is_over: AtomicBool,
}

impl Watch {
    /// Fails if the kernel has left or is stuck; `poll` calls its argument on progress.
    pub fn until<T>(&self, what: &str, mut poll: impl FnMut(&dyn Fn()) -> Option<T>) -> Result<T, String> {
        let since = AtomicU64::new(u64::MAX);
        loop {
            // Before the poll, which then sees the kernel's earlier writes.
            let (has_left, reads) = (self.has_left.load(Acquire), self.reads.load(Acquire));
            if let Some(value) = poll(&|| since.store(self.reads.load(Acquire), Relaxed)) {
                return Ok(value);
            }
            since.fetch_min(self.reads.load(Acquire), Relaxed);
            if has_left || reads.saturating_sub(since.load(Relaxed)) > PATIENCE {
                return Err(format!("{what}: waited in vain"));
            }
            thread::yield_now();
        }
    }
}

struct Watched<'w> {
    device: &'w (dyn KernelHost + Sync),
    watch: &'w Watch,
    number: u64,
    groups: u64,
}

impl KernelHost for Watched<'_> {
    fn translate(&self, address: u64, bytes: u64) -> Option<NonNull<u8>> {
        self.device.translate(address, bytes)
    }
    /// A minute per read after the conversation, so that every kernel leaves.
    fn now_ns(&self) -> u64 {
        let reads = self.watch.reads.fetch_add(1, Release);
        if self.watch.is_over.load(Relaxed) { (1 << 62) + reads * 60_000_000_000 } else { self.device.now_ns() }
    }
    fn group(&self) -> u64 {
        self.number
    }
    fn groups(&self) -> u64 {
        self.groups
    }
    fn pause(&self, times: u32) {
        self.device.pause(times);
    }
}

struct Reading<'w> {
    device: &'w (dyn KernelHost + Sync),
    watch: &'w Watch,
}

impl KernelHost for Reading<'_> {
    /// Nothing after the conversation, so that the reader leaves.
    fn translate(&self, address: u64, bytes: u64) -> Option<NonNull<u8>> {
        self.watch.is_read.store(true, Relaxed);
        (!self.watch.is_over.load(Relaxed)).then(|| self.device.translate(address, bytes))?
    }
    fn now_ns(&self) -> u64 {
        0
    }
    fn pause(&self, times: u32) {
        self.device.pause(times);
    }
}

/// A device with a fact about the host's words, which is checked whenever the machine accesses memory, also after the kernel's last store. A fact
/// reads the words in the reverse order of the kernel's stores.
pub struct Spy<F> {
    device: Device,
    holds: F,
    has_failed: AtomicBool,
}

impl<F: Fn() -> bool + Sync> Spy<F> {
    pub fn new(device: Device, holds: F) -> Self {
        Self { device, holds, has_failed: AtomicBool::new(false) }
    }

    pub fn has_failed(&self) -> bool {
        self.has_failed.load(Relaxed)
    }
}

impl<F: Fn() -> bool + Sync> KernelHost for Spy<F> {
    fn translate(&self, address: u64, bytes: u64) -> Option<NonNull<u8>> {
        if !(self.holds)() {
            self.has_failed.store(true, Relaxed);
        }
        self.device.translate(address, bytes)
    }
    fn now_ns(&self) -> u64 {
        self.device.now_ns()
    }
    fn pause(&self, times: u32) {
        self.device.pause(times);
    }
}

impl Run<'_> {
    fn groups(&self) -> usize {
        if self.kernel == "echo_grouped" { 2 } else { 1 }
    }

    /// Of a block.
    fn threads(&self) -> [u32; 2] {
        [32, if self.kernel == "echo_block" { 3 } else { 1 }]
    }

    pub fn hold(&self, device: &(dyn KernelHost + Sync), groups: &[Vec<u64>], host: impl FnOnce(&Watch) -> Heard) -> Heard {
        self.hold_read(device, groups, None, host)
    }

    pub fn hold_read<'g>(
        &self,
        device: &(dyn KernelHost + Sync),
        groups: &'g [Vec<u64>],
        reader: Option<&Reader<'_>>,
        host: impl FnOnce(&Watch) -> Heard,
    ) -> Heard {
        let count = groups.len() as u64;
        let (gpu, watch) = (&Gpu::new(self.seed), &Watch { running: AtomicU64::new(count), ..Watch::default() });
        thread::scope(|scope| {
            let group = |(number, arguments): (u64, &'g Vec<u64>)| {
                scope.spawn(move || {
                    let host = Watched { device, watch, number, groups: count };
                    let ended = gpu.run(self.image, self.kernel, arguments, &host, self.threads(), 1);
                    if watch.running.fetch_sub(1, Relaxed) == 1 || ended.is_err() {
                        watch.has_left.store(true, Release);
                    }
                    ended
                })
            };
            let reading = reader.map(|reader| {
                scope.spawn(move || {
                    let ended = reader.run(&gpu.peer(), &Reading { device, watch });
                    watch.has_left.fetch_or(ended.is_err(), Release);
                    ended
                })
            });
            while reading.is_some() && !watch.is_read.load(Relaxed) {
                thread::yield_now();
            }
            let running: Vec<_> = (0..).zip(groups).map(group).collect();
            let heard = host(watch);
            watch.is_over.store(true, Relaxed);
            let ended = running.into_iter().chain(reading).map(|group| group.join().expect("the machine does not panic"));
            ended.collect::<Vec<_>>().into_iter().try_for_each(|ended| ended.map_err(|fault| fault.to_string())).and(heard)
        })
    }

    fn serve<I: RingMessage, O: RingMessage>(
        &self,
        device: &Device,
        rig: &mut Rig<'_, I, O>,
        more: &[u64],
        host: impl FnOnce(&mut Rig<'_, I, O>, &Watch) -> Result<u64, String>,
    ) -> Heard {
        let groups = vec![rig.arguments(more); self.groups()];
        self.hold(device, &groups, |watch| {
            rig.control.command(Command::ACTIVATE);
            let processed = host(rig, watch)?;
            end(rig, watch, processed)
        })
    }

    /// A lane reads the answers to `sent` messages that the host sent before.
    fn read<I: RingMessage, O: RingMessage>(
        &self,
        device: &Device,
        rig: &mut Rig<'_, I, O>,
        more: &[u64],
        reader: &Reader<'_>,
        sent: u64,
    ) -> Heard {
        rig.control.command(Command::ACTIVATE);
        let groups = vec![rig.arguments(more); self.groups()];
        self.hold_read(device, &groups, Some(reader), |watch| {
            let mut last = 0;
            watch.until("the last answer", |progress| {
                let read = reader.head.load(Acquire);
                if std::mem::replace(&mut last, read) != read {
                    progress();
                }
                (read == reader.count).then_some(())
            })?;
            end(rig, watch, sent)
        })
    }

    /// As [`read`](Self::read), from an index ring of few slots. `memories` hold what the kernel works on.
    fn read_all<I: RingMessage, O: RingMessage>(
        &self,
        memories: impl IntoIterator<Item = (u64, u64)>,
        more: &[u64],
        messages: &[I],
    ) -> Heard {
        let memory = FEW.memory::<I, O>();
        let device = Device::new(memories.into_iter().chain([memory.range()]));
        let mut rig = Rig::<I, O>::new(&memory, FEW);
        let reader = Reader::of(rig.output, messages.len() as u64);
        assert_eq!(rig.sender.push_slice(messages).ok(), Some(messages.len()));
        self.read(&device, &mut rig, more, &reader, messages.len() as u64)
    }
}

/// Whether a record differs from the last one, which it replaces, without another sequence number.
fn is_torn(last: &mut Option<TelemetryBuffer<u64>>, seen: TelemetryBuffer<u64>) -> bool {
    last.replace(seen).is_some_and(|last| last.sequence == seen.sequence && last != seen)
}

/// Sends messages through two index rings; with `beats`, each after as many heartbeats. `is_done` inspects an answer's work.
fn exchange<I: RingMessage, O: RingMessage + PartialEq>(
    rig: &mut Rig<'_, I, O>,
    watch: &Watch,
    beats: u64,
    pairs: &[(I, O)],
    is_done: impl Fn(usize) -> bool,
) -> Result<u64, String> {
    let mut last: Option<TelemetryBuffer<u64>> = None;
    let mut sent = 0;
    for (answered, (_, expected)) in pairs.iter().enumerate() {
        let most = if beats == 0 { pairs.len() } else { answered + 1 };
        let begun = rig.snapshot().heartbeat;
        watch.until("a heartbeat", |_| (rig.snapshot().heartbeat >= begun + beats).then_some(()))?;
        let answer = watch.until("an answer", |progress| {
            while sent < most && rig.sender.push(pairs[sent].0).is_ok() {
                sent += 1;
                progress();
            }
            if let Ok(seen) = rig.telemetry.snapshot()
                && is_torn(&mut last, seen)
            {
                return Some(None);
            }
            rig.receiver.pop().ok().map(Some)
        })?;
        match answer {
            None => return Err("a torn telemetry record".to_owned()),
            Some(answer) if answer == *expected && is_done(answered) => {}
            Some(_) => return Err(format!("answer {answered} is wrong")),
        }
    }
    Ok(pairs.len() as u64)
}

fn end<I: RingMessage, O: RingMessage>(rig: &mut Rig<'_, I, O>, watch: &Watch, processed: u64) -> Heard {
    rig.control.command(Command::DRAIN);
    ended(rig, watch, State::Terminated, processed)
}

/// A host that sees a final state sees all that the kernel wrote before it: its counters and its last record.
fn ended<I: RingMessage, O: RingMessage>(rig: &Rig<'_, I, O>, watch: &Watch, state: State, processed: u64) -> Heard {
    watch.until("the end", |_| (rig.state() == Some(state)).then_some(()))?;
    let (counted, record) = (rig.snapshot().processed, rig.telemetry.snapshot());
    match record {
        Err(torn) => Err(format!("the last record is torn: {torn}")),
        Ok(record) if (counted, record.processed) != (processed, processed) => {
            Err(format!("{counted} of {processed} messages are counted, {} in the last record", record.processed))
        }
        Ok(_) => Ok(()),
    }
}

fn obeyed<I: RingMessage, O: RingMessage>(rig: &mut Rig<'_, I, O>, watch: &Watch, command: Command, state: State) -> Heard {
    rig.control.command(command);
    watch.until("an acknowledgement", |_| rig.control.acknowledged().then_some(()))?;
    if rig.state() == Some(state) { Ok(()) } else { Err(format!("{command:?} is acknowledged in {:?}", rig.state())) }
}

/// Until the kernel has polled for commands several times.
fn beats<I: RingMessage, O: RingMessage>(rig: &Rig<'_, I, O>, watch: &Watch) -> Heard {
    let begun = rig.snapshot().heartbeat;
    watch.until("heartbeats", |_| (rig.snapshot().heartbeat >= begun + 64).then_some(()))
}

fn echoes(count: u64) -> Vec<(Echo, Echo)> {
    (0..count).map(|id| (message(id), message(id))).collect()
}

pub fn echo(run: &Run<'_>) -> Heard {
    run.read_all::<Echo, Echo>([], &[], &(0..MANY).map(message).collect::<Vec<_>>())?;
    for (capacity, count, beats) in [(4, 60, 0), (64, 80, 0), (64, 20, 4)] {
        let shape = Shape { batch: 8, input: capacity, output: capacity, start: 0 };
        let memory = shape.memory::<Echo, Echo>();
        let mut rig = Rig::<Echo, Echo>::new(&memory, shape);
        run.serve(&Device::new([memory.range()]), &mut rig, &[], |rig, watch| exchange(rig, watch, beats, &echoes(count), |_| true))?;
    }
    Ok(())
}

/// Batches in which each warp has messages.
pub fn echo_block(run: &Run<'_>) -> Heard {
    run.read_all::<Echo, Echo>([], &[], &(0..MANY).map(message).collect::<Vec<_>>())?;
    for (batch, capacity, count, beats) in [(32, 32, 100, 0), (8, 4, 30, 0), (8, 64, 20, 4)] {
        let shape = Shape { batch, input: capacity, output: capacity, start: 0 };
        let memory = shape.memory::<Echo, Echo>();
        let mut rig = Rig::<Echo, Echo>::new(&memory, shape);
        run.serve(&Device::new([memory.range()]), &mut rig, &[], |rig, watch| exchange(rig, watch, beats, &echoes(count), |_| true))?;
    }
    Ok(())
}

/// Reports that come of themselves, asked for by messages of different counts.
pub fn burst(run: &Run<'_>) -> Heard {
    // Five counts: in a ring of a power of two, each slot's next message is another one.
    let bursts = |count| (0..count).map(|id| Burst { count: id % 5 });
    let sent: Vec<Burst> = bursts(MANY).collect();
    let memory = FEW.memory::<Burst, Report>();
    let mut rig = Rig::<Burst, Report>::new(&memory, FEW);
    assert_eq!(rig.sender.push_slice(&sent).ok(), Some(sent.len()));
    let reader = Reader::of(rig.output, sent.iter().map(|burst| burst.count).sum());
    run.read(&Device::new([memory.range()]), &mut rig, &[], &reader, MANY)?;
    // All messages as soon as there is room; or each after as many heartbeats, so that the kernel has seen its slot and the output's head before.
    for (capacity, count, pause) in [(4, 40, 0), (2, 12, 0), (64, 20, 4)] {
        let shape = Shape { batch: 8, input: capacity, output: capacity, start: 0 };
        let memory = shape.memory::<Burst, Report>();
        let mut rig = Rig::<Burst, Report>::new(&memory, shape);
        run.serve(&Device::new([memory.range()]), &mut rig, &[], |rig, watch| {
            let sent: Vec<Burst> = bursts(count).collect();
            let mut numbers = 0..;
            for part in sent.chunks(if pause == 0 { sent.len() } else { 1 }) {
                let begun = rig.snapshot().heartbeat;
                watch.until("a heartbeat", |_| (rig.snapshot().heartbeat >= begun + pause).then_some(()))?;
                let mut left = part.iter().peekable();
                for number in numbers.by_ref().take(part.iter().map(|burst| burst.count).sum::<u64>() as usize) {
                    let report = watch.until("a report", |progress| {
                        while left.next_if(|burst| rig.sender.push(**burst).is_ok()).is_some() {
                            progress();
                        }
                        rig.receiver.pop().ok()
                    })?;
                    if report != (Report { number }) {
                        return Err(format!("{report:?} in place of {number}"));
                    }
                }
                watch.until("room for the rest", |_| {
                    while left.next_if(|burst| rig.sender.push(**burst).is_ok()).is_some() {}
                    left.peek().is_none().then_some(())
                })?;
            }
            if capacity == 4 {
                beats(rig, watch)?;
            }
            rig.receiver.pop().map_or(Ok(count), |more| Err(format!("{more:?}, which is one more")))
        })?;
    }
    Ok(())
}

/// Commands and faults, by `echo`.
pub fn life(run: &Run<'_>) -> Heard {
    paused(run)?;
    drained_behind_a_full_output(run)?;
    faulted(run)
}

/// A host that sees
///
/// 1. the acknowledgement of a command sees its state, of which `states` has one for each command;
/// 2. a final state sees the last record;
/// 3. an even sequence number sees the fields of no later record.
fn serve_echo(run: &Run<'_>, shape: Shape, states: &[State], host: impl FnOnce(&mut Rig<'_, Echo, Echo>, &Watch) -> Heard) -> Heard {
    let memory = shape.memory::<Echo, Echo>();
    let mut rig = Rig::<Echo, Echo>::new(&memory, shape);
    let (block, telemetry, last) = (rig.block, rig.telemetry, Mutex::new(None));
    let spy = Spy::new(Device::new([memory.range()]), || {
        let (acknowledged, commanded) = (block.command_seen.load(Acquire), block.command.load(Relaxed) >> 32);
        let state = State::from_word(block.state.load(Acquire));
        let expected = acknowledged.checked_sub(1).filter(|_| acknowledged == commanded).and_then(|last| states.get(last as usize));
        // The kernel writes nothing meanwhile.
        let record = telemetry.sequence.load_acquire().is_multiple_of(2).then(|| telemetry.snapshot().expect("it is even"));
        let is_last = record.is_some_and(|record| record.processed == block.processed.load(Relaxed));
        let is_torn = record.is_some_and(|record| is_torn(&mut last.lock().expect("no panic"), record));
        !is_torn && expected.is_none_or(|expected| state == Some(*expected)) && (is_last || !state.is_some_and(State::has_ended))
    });
    let arguments = rig.arguments(&[]);
    run.hold(&spy, &[arguments], |watch| host(&mut rig, watch))?;
    if spy.has_failed() { Err("an acknowledgement, a final state or a record is seen too early".to_owned()) } else { Ok(()) }
}

fn paused(run: &Run<'_>) -> Heard {
    serve_echo(run, Shape::default(), &[State::Active, State::Paused, State::Active], |rig, watch| {
        obeyed(rig, watch, Command::ACTIVATE, State::Active)?;
        exchange(rig, watch, 0, &echoes(20), |_| true)?;
        obeyed(rig, watch, Command::PAUSE, State::Paused)?;
        let counted = rig.snapshot().processed;
        (0..4).for_each(|id| rig.sender.push(message(id)).expect("room"));
        beats(rig, watch)?;
        if (counted, rig.received().len()) != (20, 0) {
            return Err(format!("{counted} of 20 messages are counted, or a paused kernel answers"));
        }
        obeyed(rig, watch, Command::ACTIVATE, State::Active)?;
        echoed(watch, 4, |_, _| rig.receiver.pop().ok())?;
        rig.control.command(Command::TERMINATE);
        ended(rig, watch, State::Terminated, 24)
    })
}

fn drained_behind_a_full_output(run: &Run<'_>) -> Heard {
    serve_echo(run, FEW, &[], |rig, watch| {
        (0..MANY).for_each(|id| rig.sender.push(message(id)).expect("room"));
        obeyed(rig, watch, Command::DRAIN, State::Draining)?;
        beats(rig, watch)?;
        if rig.state() != Some(State::Draining) {
            return Err(format!("{:?} with messages in the input ring", rig.state()));
        }
        echoed(watch, MANY, |_, _| rig.receiver.pop().ok())?;
        ended(rig, watch, State::Terminated, MANY)
    })
}

fn faulted(run: &Run<'_>) -> Heard {
    serve_echo(run, Shape::default(), &[], |rig, watch| {
        obeyed(rig, watch, Command::ACTIVATE, State::Active)?;
        rig.input.producer.tail.store(65, Release);
        ended(rig, watch, State::Faulted, 0)?;
        let faults = rig.snapshot().faults();
        if faults == (1, Some(Fault::Corrupt)) { Ok(()) } else { Err(format!("an impossible tail: {faults:?}")) }
    })
}

pub fn split_rings(run: &Run<'_>) -> Heard {
    let (far, near) = (FEW.memory::<Echo, Echo>(), FEW.memory::<Echo, Echo>());
    let (mut rig, host) = second_headers::rigs(&far, &near, FEW);
    (0..MANY).for_each(|id| rig.sender.push(message(id)).expect("room"));
    let reader = Reader::of_split(host.output, rig.output, MANY);
    run.read(&Device::new([far.range(), near.range()]), &mut rig, &[], &reader, MANY)?;
    for (capacity, count, beats) in [(4, 60, 0), (64, 20, 4)] {
        let shape = Shape { batch: 8, input: capacity, output: capacity, start: 0 };
        let (far, near) = (shape.memory::<Echo, Echo>(), shape.memory::<Echo, Echo>());
        let (mut rig, _host) = second_headers::rigs(&far, &near, shape);
        let device = Device::new([far.range(), near.range()]);
        run.serve(&device, &mut rig, &[], |rig, watch| exchange(rig, watch, beats, &echoes(count), |_| true))?;
    }
    Ok(())
}

fn echoed(watch: &Watch, count: u64, mut poll: impl FnMut(u64, &dyn Fn()) -> Option<Echo>) -> Result<u64, String> {
    for answered in 0..count {
        if watch.until("an answer", |progress| poll(answered, progress))? != message(answered) {
            return Err(format!("answer {answered} is wrong"));
        }
    }
    Ok(count)
}

pub fn echo_flagged(run: &Run<'_>) -> Heard {
    let (of_rig, of_rings) = (FEW.memory::<Echo, Echo>(), flagged::memory(FEW));
    let mut rig = Rig::<Echo, Echo>::new(&of_rig, FEW);
    let mut rings = flagged::Rings::new(&of_rings, FEW, &rig);
    assert_eq!(rings.sender.push_slice(&(0..MANY).map(message).collect::<Vec<_>>()), Ok(MANY as usize));
    let output_at = rig.block.output_ring.load(Relaxed) - of_rings.address();
    // SAFETY: formatted by `new`; words.
    let reader = Reader::of_flagged(unsafe { of_rings.place(output_at).as_ref() }, MANY);
    run.read(&Device::new([of_rig.range(), of_rings.range()]), &mut rig, &[], &reader, MANY)?;
    for (capacity, count, slice) in [(4, 60, 3), (64, 100, 20), (64, 20, 1)] {
        let shape = Shape { batch: 8, input: capacity, output: capacity, start: 0 };
        let (of_rig, of_rings) = (shape.memory::<Echo, Echo>(), flagged::memory(shape));
        let mut rig = Rig::<Echo, Echo>::new(&of_rig, shape);
        let mut rings = flagged::Rings::new(&of_rings, shape, &rig);
        run.serve(&Device::new([of_rig.range(), of_rings.range()]), &mut rig, &[], |_, watch| {
            let mut sent = 0;
            echoed(watch, count, |answered, progress| {
                let values: Vec<Echo> = (sent..count).take(slice).map(message).collect();
                if slice > 1 || sent == answered {
                    let more = rings.sender.push_slice(&values).unwrap_or(0) as u64;
                    sent += more;
                    if more > 0 {
                        progress();
                    }
                }
                rings.receiver.pop().ok()
            })
        })?;
    }
    Ok(())
}

pub fn echo_paired(run: &Run<'_>) -> Heard {
    for (capacity, count, burst) in [(4, 60, 3), (64, 100, 20), (64, 20, 1)] {
        let shape = Shape { batch: 8, input: capacity, output: capacity, start: 0 };
        let (of_rig, of_rings) = (shape.memory::<Echo, Echo>(), paired::memory(shape));
        let mut rig = Rig::<Echo, Echo>::new(&of_rig, shape);
        let mut rings = paired::Rings::new(&of_rings, shape, &rig);
        run.serve(&Device::new([of_rig.range(), of_rings.range()]), &mut rig, &[], |_, watch| {
            let mut sent = 0;
            echoed(watch, count, |answered, progress| {
                while sent < count.min(answered + burst) && rings.sender.push(message(sent)).is_ok() {
                    sent += 1;
                    progress();
                }
                rings.receiver.pop().ok()
            })
        })?;
    }
    Ok(())
}

/// By two groups.
pub fn echo_grouped(run: &Run<'_>) -> Heard {
    let all: Vec<_> = (0..MANY).map(message).collect();
    let shared = grouped::memory();
    run.read_all::<Echo, Echo>([shared.range()], &[shared.address()], &all)?;
    for (input, output, count, beats) in [(4, 4, 60, 0), (64, 256, 80, 0), (4, 4, 10, 4)] {
        let shape = Shape { batch: 8, input, output, start: 0 };
        let (memory, shared) = (shape.memory::<Echo, Echo>(), grouped::memory());
        let mut rig = Rig::<Echo, Echo>::new(&memory, shape);
        run.serve(&Device::new([memory.range(), shared.range()]), &mut rig, &[shared.address()], |rig, watch| {
            exchange(rig, watch, beats, &echoes(count), |_| true)
        })?;
    }
    // What group 0 tells is true for all: answers are there after a pause, and after an end.
    for (command, state) in [(Command::PAUSE, State::Paused), (Command::TERMINATE, State::Terminated)] {
        let shape = Shape { batch: 1, input: 64, output: 64, start: 0 };
        let (memory, shared) = (shape.memory::<Echo, Echo>(), grouped::memory());
        let mut rig = Rig::<Echo, Echo>::new(&memory, shape);
        assert_eq!(rig.sender.push_slice(&echoes(40).into_iter().map(|(message, _)| message).collect::<Vec<_>>()).ok(), Some(40));
        run.serve(&Device::new([memory.range(), shared.range()]), &mut rig, &[shared.address()], |rig, watch| {
            watch.until("the first answer", |_| rig.receiver.pop().ok())?;
            rig.control.command(command);
            watch.until("a state", |_| (rig.state() == Some(state)).then_some(()))?;
            let answered = grouped::counters(&shared).reserved();
            let mut seen = 1;
            while let Ok(answer) = rig.receiver.pop() {
                if answer != message(seen) {
                    return Err(format!("answer {seen} is wrong"));
                }
                seen += 1;
            }
            if seen != answered {
                return Err(format!("{seen} answers of {answered} are there"));
            }
            Ok(if command == Command::PAUSE { 40 } else { answered })
        })?;
    }
    Ok(())
}

pub fn histogram(run: &Run<'_>) -> Heard {
    let data = histogram::noise(3000, 1);
    let ground = histogram::Ground::new(&data);
    let chunks: Vec<_> = (0..15).map(|id| Chunk { id, offset: id * 200, length: 200, first_word: id * 25 }).collect();
    run.read_all::<Chunk, Counted>([ground.data.range(), ground.work.range()], &ground.arguments(), &chunks)?;
    for (capacity, beats) in [(4, 0), (64, 4)] {
        let (mut sums, mut bytes, mut checksum) = (vec![0; 256], 0, 0_u64);
        let mut pairs = Vec::new();
        for (id, part) in (0..).zip(data.chunks(200)) {
            let first_word = id * 25;
            let (counts, sum) = histogram::slow(part, first_word);
            sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
            (bytes, checksum) = (bytes + part.len() as u64, checksum.wrapping_add(sum));
            let chunk = Chunk { id, offset: id * 200, length: part.len() as u64, first_word };
            pairs.push((chunk, Counted { id, status: 0, bytes, checksum }));
        }
        let mut ground = histogram::Ground::new(&data);
        let shape = Shape { batch: 8, input: capacity, output: capacity, start: 0 };
        let memory = shape.memory::<Chunk, Counted>();
        let device = Device::new([memory.range(), ground.data.range(), ground.work.range()]);
        let mut rig = Rig::<Chunk, Counted>::new(&memory, shape);
        run.serve(&device, &mut rig, &ground.arguments(), |rig, watch| exchange(rig, watch, beats, &pairs, |_| true))?;
        if ground.totals() != sums {
            return Err("the totals are wrong".to_owned());
        }
    }
    Ok(())
}

pub fn reduce(run: &Run<'_>) -> Heard {
    let words = reduce::words(600, Number::Whole);
    let data = Bytes::of(&words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>());
    let pairs: Vec<_> = (0..)
        .zip(words.chunks(40))
        .map(|(id, part)| {
            let request = Reduce { id, offset: id * 320, length: part.len() as u64 * 8, number: Number::Whole as u64 };
            (request, Reduced { id, ..reduce::slow(part, Number::Whole) })
        })
        .collect();
    let rows = Bytes::zeroed(size_of::<Rows>());
    let requests: Vec<_> = pairs.iter().map(|(request, _)| *request).collect();
    let more = [data.address(), 4800, rows.address()];
    run.read_all::<Reduce, Reduced>([data.range(), rows.range()], &more, &requests)?;
    for (capacity, beats) in [(4, 0), (64, 4)] {
        let rows = Bytes::zeroed(size_of::<Rows>());
        let shape = Shape { batch: 8, input: capacity, output: capacity, start: 0 };
        let memory = shape.memory::<Reduce, Reduced>();
        let device = Device::new([memory.range(), data.range(), rows.range()]);
        let mut rig = Rig::<Reduce, Reduced>::new(&memory, shape);
        let more = [data.address(), 4800, rows.address()];
        run.serve(&device, &mut rig, &more, |rig, watch| exchange(rig, watch, beats, &pairs, |_| true))?;
    }
    Ok(())
}

pub fn transform(run: &Run<'_>) -> Heard {
    let before = histogram::noise(4000, 2);
    let operation = Operation::Add(200);
    let pairs: Vec<_> =
        (0..25).map(|id| (Apply { id, offset: id * 160, length: 160, operation: operation.word() }, Applied { id, status: 0 })).collect();
    let data = Bytes::of(&before);
    let requests: Vec<_> = pairs.iter().map(|(request, _)| *request).collect();
    run.read_all::<Apply, Applied>([data.range()], &[data.address(), 4000], &requests)?;
    for (capacity, beats) in [(4, 0), (64, 4)] {
        let data = Bytes::of(&before);
        let shape = Shape { batch: 8, input: capacity, output: capacity, start: 0 };
        let memory = shape.memory::<Apply, Applied>();
        let device = Device::new([memory.range(), data.range()]);
        let mut rig = Rig::<Apply, Applied>::new(&memory, shape);
        let is_changed = |chunk: usize| {
            let all = (chunk * 160..(chunk + 1) * 160).zip(&before[chunk * 160..]);
            // SAFETY: within the data; the machine changes it by atomic accesses.
            all.into_iter()
                .all(|(at, byte)| unsafe { data.place::<AtomicU8>(at as u64).as_ref() }.load(Relaxed) == transform::slow(*byte, operation))
        };
        run.serve(&device, &mut rig, &[data.address(), 4000], |rig, watch| exchange(rig, watch, beats, &pairs, is_changed))?;
    }
    Ok(())
}
