//! The skeleton of a persistent kernel.
//!
//! 1. Every lane runs every line. Lane 0 alone touches shared words; the others hold equal copies of the rings' state and learn by
//!    broadcast what lane 0 saw.
//! 2. Per batch: poll (acquire), broadcast, barrier; lanes read and write slots in place; barrier; one `publish_all` for the answers and the
//!    freed slots together.
//! 3. Commands are read every [`LOOK_EVERY`] rounds, busy or dry: over a bus each look costs as much as a poll, and the message that
//!    arrives meanwhile would wait for it. Heartbeat, counters and clock are relaxed stores; telemetry is written after as many dry rounds,
//!    at most every [`TELEMETRY_NS`] otherwise, and on leaving.
//! 4. It leaves when told to, when its epoch is over (then without another word), when nothing has happened for as long as the launch
//!    says, and on a fault, which it names.

use core::mem::ManuallyDrop;
use core::ptr::NonNull;

use ringmem_layouts::control::{self, Command, DeviceSide, Fault, State};
use ringmem_layouts::ring::spsc::{Consumer, Producer};
use ringmem_layouts::telemetry::{self, Recorder};
use ringmem_layouts::{ControlBlock, Machine, RingHeader, RingMessage, SlotCell, Word};

use crate::{ABI, Lanes};

/// How many rounds, batches or dry polls, pass between two looks at the command word, and between dryness and what can wait.
pub const LOOK_EVERY: u32 = 16;
/// How long a busy kernel keeps its telemetry to itself, nanoseconds.
pub const TELEMETRY_NS: u64 = 100_000;

/// What a kernel does with its messages.
pub trait Handler<M: Machine, L: Lanes> {
    /// What it takes.
    type Input: RingMessage;
    /// What it answers.
    type Output: RingMessage;
    /// Hash of what it was compiled with; a control block that asks for another is refused with [`Fault::Abi`]. A crate with messages
    /// of its own names the hash of its own set, the one in its image.
    const ABI: u64 = ABI.hash;

    /// Answers every message of a batch; every lane calls it. How many this lane refused (and answered as refused).
    fn answer(&mut self, lanes: &L, batch: &Batch<'_, '_, Self::Input, Self::Output, M>) -> u64;
}

/// Messages that were taken together, and the slots for their answers.
pub struct Batch<'b, 'a, I, O, M: Machine> {
    input: &'b Consumer<'a, I, M>,
    output: &'b Producer<'a, O, M>,
    count: u64,
}

impl<I: RingMessage, O: RingMessage, M: Machine> Batch<'_, '_, I, O, M> {
    /// Messages, at least one.
    #[inline(always)]
    #[must_use]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u64 {
        self.count
    }

    /// The message at `index`, in place, for all lanes at once.
    ///
    /// # Safety
    ///
    /// `index` is below [`len`](Self::len).
    #[inline(always)]
    pub unsafe fn message<R>(&self, index: u64, read: impl FnOnce(&I) -> R) -> R {
        // SAFETY: the slot belongs to this batch by the caller's promise, and holds initialised memory that is valid for any bytes; nobody
        // writes to it before it is released.
        self.input.slot(index).with(|message| unsafe { read(&*message) })
    }

    /// The message at `index` and the slot of its answer, both in place.
    ///
    /// # Safety
    ///
    /// `index` is below [`len`](Self::len), and no other lane exchanges at this index.
    #[inline(always)]
    pub unsafe fn exchange<R>(&self, index: u64, answer: impl FnOnce(&I, &mut O) -> R) -> R {
        self.input.slot(index).with(|message| {
            self.output.slot(index).with_mut(|slot| {
                // SAFETY: both slots belong to this batch, hold initialised memory that is valid for any bytes, and are at this lane's hands
                // alone, by the caller's promise.
                unsafe { answer(&*message, &mut *slot) }
            })
        })
    }
}

/// The arguments that every persistent kernel takes.
#[derive(Clone, Copy, Debug)]
pub struct Launch {
    /// Device address of the first control block; group `g` takes the `g`-th.
    pub controls: u64,
    /// Launch generation.
    pub epoch: u32,
    /// Nanoseconds without message, command or room for answers after which the kernel leaves.
    pub idle_ns: u64,
    /// Messages taken together at most, at least 1.
    pub batch: u64,
    /// Where the rings lie if not in one piece each; for a launch of one group.
    pub split: Option<Split>,
}

/// Device addresses of rings with a header on each side. The control block then names the headers that the kernel polls.
#[derive(Clone, Copy, Debug)]
pub struct Split {
    /// The input ring's header that the kernel publishes to.
    pub input_peer: u64,
    /// The input ring's slots.
    pub input_slots: u64,
    /// The output ring's header that the kernel publishes to.
    pub output_peer: u64,
    /// The output ring's slots.
    pub output_slots: u64,
}

/// What lane 0 tells the others to do next.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
enum Mode {
    Wait = 0,
    Take = 1,
    Drain = 2,
    Leave = 3,
}

/// What lane 0 thinks of a launch.
#[derive(Clone, Copy)]
#[repr(u64)]
enum Verdict {
    OtherEpoch = 0,
    OtherAbi = 1,
    Run = 2,
}

/// Runs a handler until it is told to stop.
///
/// # Safety
///
/// What the control block names (rings, telemetry) is live until this returns and used by one host side only; this is the only kernel on it.
#[inline(always)]
pub unsafe fn persistent<M: Machine, L: Lanes, H: Handler<M, L>>(machine: &M, lanes: &L, launch: &Launch, handler: &mut H) {
    let Some(block) = block(machine, lanes, launch) else { return };
    // SAFETY: mapped and aligned, checked by `at`; live and made of words, by the caller's promise.
    let block = unsafe { block.cast::<control::Shared<M::Word>>().as_ref() };
    // SAFETY: the only kernel on the block, and only lane 0 writes below.
    let mut control = unsafe { DeviceSide::attach(block, launch.epoch) };
    let leader = lanes.lane() == 0;
    if leader {
        lanes.remember((&raw const *block) as u64, launch.epoch);
    }
    let unwinding = Unwinding { block, epoch: launch.epoch };
    // Lane 0 decides for all; whoever comes after its epoch is over writes nothing, not even why.
    let verdict = match leader && control.is_current() {
        true if control.agree(H::ABI) => Verdict::Run,
        true => Verdict::OtherAbi,
        false => Verdict::OtherEpoch,
    };
    let verdict = lanes.broadcast(verdict as u64);
    if verdict == Verdict::OtherAbi as u64 {
        leave_with(&mut control, leader, Fault::Abi);
    } else if verdict == Verdict::Run as u64 {
        // SAFETY: the caller's promise about what the block names.
        let attached = unsafe { attach::<M, H::Input, H::Output>(machine, control.addresses(), launch.split) };
        // Each lane has looked for itself, and a ring that changes meanwhile may have shown them different things: all, or none.
        let all = lanes.ballot(attached.is_ok()) == u32::MAX >> (32 - L::WIDTH);
        match attached {
            Ok((input, output, recorder)) if all => {
                Kernel { control, recorder, input, output, lanes, leader, acted: 0 }.run(launch, handler);
            }
            Ok(_) => leave_with(&mut control, leader, Fault::Ring),
            Err(fault) => leave_with(&mut control, leader, fault),
        }
    }
    core::mem::forget(unwinding);
    if lanes.lane() == 0 {
        lanes.remember(0, 0);
    }
}

/// Says `Faulted` without having begun: for a kernel whose own arguments are wrong.
///
/// # Safety
///
/// As [`persistent`].
#[inline(always)]
pub unsafe fn refuse<M: Machine, L: Lanes>(machine: &M, lanes: &L, launch: &Launch, fault: Fault) {
    let Some(block) = block(machine, lanes, launch) else { return };
    // SAFETY: mapped and aligned, checked by `at`; live and made of words, by the caller's promise.
    let block = unsafe { block.cast::<control::Shared<M::Word>>().as_ref() };
    // SAFETY: the only kernel on the block, and only lane 0 writes below.
    let mut control = unsafe { DeviceSide::attach(block, launch.epoch) };
    leave_with(&mut control, lanes.lane() == 0, fault);
}

/// Where this group's control block is mapped. Without one there is nobody to tell.
#[inline(always)]
fn block<M: Machine, L: Lanes>(machine: &M, lanes: &L, launch: &Launch) -> Option<NonNull<u8>> {
    let size = size_of::<ControlBlock<u64>>() as u64;
    machine.at(launch.controls.wrapping_add(lanes.group().wrapping_mul(size)), size, 128)
}

#[inline(always)]
fn leave_with<W: Word>(control: &mut DeviceSide<'_, W>, leader: bool, fault: Fault) {
    if leader && control.is_current() {
        control.note(fault);
        control.enter(State::Faulted);
    }
}

/// Says `Faulted` when a handler's panic unwinds through; a device has its panic handler for that.
struct Unwinding<'a, W: Word> {
    block: &'a control::Shared<W>,
    epoch: u32,
}

impl<W: Word> Drop for Unwinding<'_, W> {
    fn drop(&mut self) {
        // SAFETY: it unwinds out of the only kernel on the block.
        unsafe { control::panicked(self.block, self.epoch) };
    }
}

/// The ends are never dropped: they are not announced, since every lane holds them, so dropping them would do nothing but ask whether to.
type Attached<'a, I, O, M> = (ManuallyDrop<Consumer<'a, I, M>>, ManuallyDrop<Producer<'a, O, M>>, Recorder<'a, <M as Machine>::Word>);

/// # Safety
///
/// What is mapped at the addresses is live for `'a` and shared only by the rings' and the telemetry's protocols.
#[inline(always)]
unsafe fn attach<'a, M: Machine, I: RingMessage, O: RingMessage>(
    machine: &M,
    [input, output, telemetry]: [u64; 3],
    split: Option<Split>,
) -> Result<Attached<'a, I, O, M>, Fault> {
    // SAFETY: the caller's promise, for both.
    let (input, output) = unsafe {
        (
            ring::<M, I>(machine, input, split.map(|split| (split.input_peer, split.input_slots)))?,
            ring::<M, O>(machine, output, split.map(|split| (split.output_peer, split.output_slots)))?,
        )
    };
    // SAFETY: mapped for the whole ring, and this is its only consumer.
    let input = unsafe { Consumer::new(input.own, input.peer, input.slots) }.map(ManuallyDrop::new).map_err(|_| Fault::Ring)?;
    // SAFETY: mapped for the whole ring, and this is its only producer.
    let output = unsafe { Producer::new(output.own, output.peer, output.slots) }.map(ManuallyDrop::new).map_err(|_| Fault::Ring)?;
    let telemetry = machine.at(telemetry, 64, 64).ok_or(Fault::Address)?;
    // SAFETY: mapped and aligned; words, live by the caller's promise.
    let telemetry = unsafe { telemetry.cast::<telemetry::Shared<M::Word>>().as_ref() };
    // SAFETY: this kernel is its only writer.
    Ok((input, output, unsafe { Recorder::new(telemetry) }))
}

/// A ring's parts, each mapped.
struct Parts<'a, T, M: Machine> {
    own: &'a RingHeader<M::Word>,
    peer: &'a RingHeader<M::Word>,
    slots: NonNull<M::Cell<T>>,
}

/// Finds a ring of `T`: in one piece at `own`, or with the peer's header and the slots elsewhere.
///
/// # Safety
///
/// What is mapped at the addresses is live for `'a`; headers are made of words.
#[inline(always)]
unsafe fn ring<'a, M: Machine, T: RingMessage>(machine: &M, own: u64, apart: Option<(u64, u64)>) -> Result<Parts<'a, T, M>, Fault> {
    let header = |address: u64| {
        let place = machine.at(address, 384, 128).ok_or(Fault::Address)?;
        // SAFETY: mapped and aligned, checked by `at`; the rest is the caller's promise.
        Ok::<_, Fault>(unsafe { place.cast::<RingHeader<M::Word>>().as_ref() })
    };
    let found = header(own)?;
    let layout = found.geometry::<T>().map_err(|_| Fault::Ring)?;
    let (peer, slots) = apart.unwrap_or((own, own.wrapping_add(layout.slots_offset())));
    let bytes = layout.capacity() * layout.slot_size();
    let slots = machine.at(slots, bytes, align_of::<T>() as u64).ok_or(Fault::Address)?;
    Ok(Parts { own: found, peer: header(peer)?, slots: slots.cast() })
}

struct Kernel<'a, 'l, I, O, M: Machine, L> {
    control: DeviceSide<'a, M::Word>,
    recorder: Recorder<'a, M::Word>,
    input: ManuallyDrop<Consumer<'a, I, M>>,
    output: ManuallyDrop<Producer<'a, O, M>>,
    lanes: &'l L,
    /// Whether this is lane 0.
    leader: bool,
    /// Sequence number of the last command acted on.
    acted: u32,
}

impl<I: RingMessage, O: RingMessage, M: Machine, L: Lanes> Kernel<'_, '_, I, O, M, L> {
    #[inline(always)]
    fn run<H: Handler<M, L, Input = I, Output = O>>(mut self, launch: &Launch, handler: &mut H) {
        let batch = launch.batch.max(1);
        let mut mode = Mode::Wait;
        let mut until_look = 0;
        let mut idle_times: u32 = 0;
        let mut active_ns = self.lanes.now_ns();
        if self.leader {
            self.control.enter(State::Ready);
        }
        loop {
            if until_look == 0 {
                until_look = LOOK_EVERY;
                if self.leader {
                    let acted = self.acted;
                    mode = self.look();
                    if acted != self.acted {
                        active_ns = self.lanes.now_ns();
                    }
                }
            }
            let Ok(count) = self.take(mode, batch) else {
                return self.leave(Some(Fault::Corrupt));
            };
            let mode_of_all = self.lanes.broadcast(mode as u64);
            if mode_of_all == Mode::Leave as u64 {
                return;
            }
            if count > 0 {
                let taken_ns = self.lanes.now_ns();
                if self.leader {
                    self.control.take(count);
                }
                let messages = Batch { input: &self.input, output: &self.output, count };
                let refused = self.lanes.sum(handler.answer(self.lanes, &messages));
                // The lanes' slots become visible to lane 0, which publishes for all of them.
                self.lanes.barrier();
                if self.lanes.ballot(true) != u32::MAX >> (32 - L::WIDTH) {
                    // A lane has panicked and left; it has said so itself.
                    return;
                }
                active_ns = self.answered(count, refused, taken_ns);
                idle_times = 0;
            } else {
                if mode_of_all == Mode::Drain as u64 && self.input.available() == 0 {
                    if self.leader {
                        self.record(self.lanes.now_ns());
                        self.control.enter(State::Terminated);
                    }
                    return;
                }
                if self.leader {
                    self.control.beat();
                }
                // Every lane counts alike; lane 0's clock decides for all.
                if idle_times % LOOK_EVERY == LOOK_EVERY - 1 {
                    let now = self.lanes.now_ns();
                    if self.leader && idle_times == LOOK_EVERY - 1 {
                        self.record(now);
                    }
                    if self.lanes.broadcast(u64::from(now.saturating_sub(active_ns) > launch.idle_ns)) != 0 {
                        return self.leave(Some(Fault::Deadline));
                    }
                }
                self.lanes.pause(idle_times);
                // Wrapping keeps the remainder: LOOK_EVERY divides 2^32; back to a long wait, never to a short one.
                idle_times = idle_times.checked_add(1).unwrap_or(1 << 31);
            }
            until_look -= 1;
        }
    }

    /// Lane 0: acts on a new command; what to do next.
    #[inline(always)]
    fn look(&mut self) -> Mode {
        if !self.control.is_current() {
            return Mode::Leave;
        }
        let (sequence, bits) = self.control.command();
        if sequence != self.acted {
            self.acted = sequence;
            let obeyed = self.obey(bits);
            // Before a last state, so that who waits for both sees both.
            self.control.acknowledge(sequence);
            if let Err(fault) = obeyed {
                self.leave(fault);
            }
        }
        match self.control.state() {
            State::Active => Mode::Take,
            State::Draining => Mode::Drain,
            State::Terminated | State::Faulted => Mode::Leave,
            State::Created | State::Ready | State::Paused => Mode::Wait,
        }
    }

    /// Lane 0: the strongest command wins. An error is why to leave; none if as told.
    #[inline(always)]
    fn obey(&mut self, bits: u32) -> Result<(), Option<Fault>> {
        let Some(command) = Command::from_bits(bits) else {
            return Err(Some(Fault::UnknownCommand));
        };
        let state = self.control.state();
        let ending = Command::TERMINATE.union(Command::DRAIN);
        if state == State::Ready && command.intersects(ending) {
            // The only legal way from Ready to an end leads through Active.
            self.control.enter(State::Active);
        }
        let wanted = if command.contains(Command::TERMINATE) {
            return Err(None);
        } else if command.contains(Command::DRAIN) {
            State::Draining
        } else if command.contains(Command::PAUSE) {
            State::Paused
        } else if command.contains(Command::ACTIVATE) {
            State::Active
        } else {
            return Ok(());
        };
        if wanted != self.control.state() && !self.control.enter(wanted) {
            self.control.note(Fault::RefusedCommand);
        }
        Ok(())
    }

    /// How many messages all lanes take now.
    #[inline(always)]
    fn take(&mut self, mode: Mode, batch: u64) -> Result<u64, ()> {
        // Lane 0 looks only for what it does not know already; what it does not look for stays as it is.
        let (mut tail, mut head, mut takes) = (0, 0, false);
        if self.leader {
            takes = matches!(mode, Mode::Take | Mode::Drain);
            tail = self.input.head().wrapping_add(self.input.available());
            head = self.output.tail().wrapping_add(self.output.free()).wrapping_sub(self.output.capacity());
            if takes && self.input.available() < batch {
                tail = self.input.poll();
            }
            if takes && self.output.free() < batch {
                head = self.output.poll();
            }
        }
        let (tail, head) = (self.lanes.broadcast(tail), self.lanes.broadcast(head));
        let takes = self.lanes.broadcast(u64::from(takes)) != 0;
        self.lanes.barrier();
        // SAFETY: lane 0 polled both, or held them already; the barrier makes visible to all what it saw.
        let (available, free) = unsafe { (self.input.accept(tail).map_err(drop)?, self.output.accept(head).map_err(drop)?) };
        Ok(if takes { available.min(free).min(batch) } else { 0 })
    }

    /// Publishes a batch and counts it; the time.
    #[inline(always)]
    fn answered(&mut self, count: u64, refused: u64, taken_ns: u64) -> u64 {
        // SAFETY: `take` gave at most what is available and free; every slot has been answered, and the barrier after that has passed.
        unsafe {
            self.input.advance(count);
            self.output.advance(count);
        }
        let now = self.lanes.now_ns();
        if self.leader {
            // SAFETY: both go straight to `publish_all`; the barrier has passed, so no lane is at these slots any more.
            let words = unsafe { [self.output.publication(), self.input.publication()] };
            // SYNC POINT: answers published and slots released, with one fence. Pairs with the host's Consumer::poll and Producer::poll.
            M::Word::publish_all(words);
            self.control.answered(count, now / 1000);
            self.control.beat();
            self.recorder.count(count, refused, now.saturating_sub(taken_ns));
            if now.saturating_sub(self.recorder.updated_ns()) >= TELEMETRY_NS {
                self.record(now);
            }
        }
        now
    }

    #[inline(always)]
    fn record(&mut self, now_ns: u64) {
        let depth = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
        let waiting = depth(self.output.capacity() - self.output.free());
        self.recorder.publish(depth(self.input.available()), waiting, now_ns);
    }

    /// Lane 0 says why the kernel ends: a fault, or as told.
    #[inline(always)]
    fn leave(&mut self, fault: Option<Fault>) {
        if !self.leader {
            return;
        }
        self.record(self.lanes.now_ns());
        match fault {
            None => {
                self.control.enter(State::Terminated);
            }
            Some(fault) => {
                self.control.note(fault);
                self.control.enter(State::Faulted);
            }
        }
    }
}
