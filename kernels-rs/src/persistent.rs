//! The skeleton of a persistent kernel.
//!
//! 1. Every lane runs every line. Lane 0 alone touches shared words; the others hold equal copies of the rings' state and learn by
//!    broadcast what lane 0 saw.
//! 2. Per batch: poll (acquire), broadcast, barrier; lanes read and write slots in place; barrier; one `publish_all` for the answers and the
//!    freed slots together.
//! 3. Commands are read every [`LOOK_EVERY`] rounds, busy or dry: over a bus each look costs as much as a poll, and the message that
//!    arrives meanwhile would wait for it. Heartbeat, counters and clock are relaxed stores, made then too, when it has run dry and on leaving; only what is in
//!    flight is stored for each batch. After one that took [`TELEMETRY_NS`] the next look comes at once. A batch of more than 4.29 s counts as that. Telemetry is written after as many dry rounds, at
//!    most every [`TELEMETRY_NS`] otherwise, and on leaving. After a panic the last batches may be missing in the counters; the rings tell.
//! 4. It leaves when told to, when its epoch is over (then without another word), when nothing has happened for as long as the launch
//!    says, and on a fault, which it names.

mod batch;
mod rings;

use core::marker::PhantomData;
use core::ptr::NonNull;

use ringmem_layouts::control::{self, Command, DeviceSide, Fault, State};
use ringmem_layouts::kernel::{DevicePointer, Epoch};
use ringmem_layouts::telemetry::{self, Recorder};
use ringmem_layouts::{ControlBlock, Counter, Machine, RingMessage, Word};

use crate::{ABI, Lanes};

pub use batch::Batch;
use rings::{Aggregated, Flagged, Indexed, Patience, Rings};

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
    /// Whether counters, clock, heartbeat and telemetry are kept while there is work. Without them nobody sees how it goes: for kernels that
    /// measure what they cost.
    const ACCOUNTS: bool = true;

    /// Answers every message of a batch; every lane calls it. How many this lane refused (and answered as refused).
    fn answer(&mut self, lanes: &L, batch: &Batch<'_, '_, Self::Input, Self::Output, M>) -> u64;
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

impl Launch {
    /// Of the arguments that every persistent kernel takes first, rings in one piece each.
    #[must_use]
    #[inline(always)]
    pub const fn new(controls: DevicePointer<ControlBlock<u64>>, epoch: Epoch, idle_ns: u64, batch: u64) -> Self {
        Self { controls: controls.address(), epoch: epoch.get(), idle_ns, batch, split: None }
    }
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

/// Runs a handler until it is told to stop, between two SPSC rings.
///
/// # Safety
///
/// What the control block names (rings, telemetry) is live until this returns and used by one host side only; this is the only kernel on it.
#[inline(always)]
pub unsafe fn persistent<M: Machine, L: Lanes, H: Handler<M, L>>(machine: &M, lanes: &L, launch: &Launch, handler: &mut H) {
    // SAFETY: the caller's promise.
    unsafe { serve::<M, L, H, Indexed<'_, H::Input, H::Output, M>>(machine, lanes, launch, launch.split, handler) }
}

/// As [`persistent`], between two rings with a flag in each slot ([`flagged`](ringmem_layouts::ring::flagged)): a message and what says that it is
/// there are polled together.
///
/// # Safety
///
/// As [`persistent`].
#[inline(always)]
pub unsafe fn persistent_flagged<M: Machine, L: Lanes, H: Handler<M, L>>(machine: &M, lanes: &L, launch: &Launch, handler: &mut H) {
    // SAFETY: the caller's promise.
    unsafe { serve::<M, L, H, Flagged<'_, H::Input, H::Output, M>>(machine, lanes, launch, launch.split, handler) }
}

/// As [`persistent`], for groups that all answer into one SPSC ring: each control block names its own input ring and the same output ring,
/// `shared` is the address of their [`Aggregate`](ringmem_layouts::ring::aggregate::Aggregate). Answers of one group come in order, a batch in a row.
///
/// # Safety
///
/// As [`persistent`], but that all groups of this launch share the output ring and `shared`, and nobody else has them; `shared` began where the
/// output ring's indices do.
#[inline(always)]
pub unsafe fn persistent_aggregated<M: Machine<Word: Counter>, L: Lanes, H: Handler<M, L>>(
    machine: &M,
    lanes: &L,
    launch: &Launch,
    shared: u64,
    handler: &mut H,
) {
    // SAFETY: the caller's promise.
    unsafe { serve::<M, L, H, Aggregated<'_, H::Input, H::Output, M>>(machine, lanes, launch, shared, handler) }
}

/// # Safety
///
/// As [`persistent`], with rings of this kind.
#[inline(always)]
unsafe fn serve<'a, M: Machine, L: Lanes, H: Handler<M, L>, R: Rings<'a, H::Input, H::Output, M>>(
    machine: &M,
    lanes: &L,
    launch: &Launch,
    places: R::Places,
    handler: &mut H,
) where
    M::Word: 'a,
    M::Cell<H::Input>: 'a,
    M::Cell<H::Output>: 'a,
{
    let Some(block) = block(machine, lanes, launch) else { return };
    // SAFETY: mapped and aligned, checked by `at`; live and made of words, by the caller's promise.
    let block: &'a control::Shared<M::Word> = unsafe { block.cast::<control::Shared<M::Word>>().as_ref() };
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
        let attached = unsafe { attach::<M, H::Input, H::Output, R>(machine, control.addresses(), places) };
        // Each lane has looked for itself, and a ring that changes meanwhile may have shown them different things: all, or none.
        let all = lanes.ballot(attached.is_ok()) == u32::MAX >> (32 - L::WIDTH);
        match attached {
            Ok((rings, recorder)) if all => {
                let (began, sums) = (rings.taken(), Sums { refused: 0, total: 0, least: u32::MAX, most: 0 });
                Kernel {
                    control,
                    recorder,
                    rings,
                    lanes,
                    leader,
                    acted: 0,
                    rounds: 0,
                    began,
                    settled: 0,
                    sums,
                    _handler: PhantomData::<fn(&H)>,
                }
                .run(launch, handler);
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

/// # Safety
///
/// What is mapped at the addresses is live for `'a` and shared only by the rings' and the telemetry's protocols.
#[inline(always)]
unsafe fn attach<'a, M: Machine, I: RingMessage, O: RingMessage, R: Rings<'a, I, O, M>>(
    machine: &M,
    [input, output, telemetry]: [u64; 3],
    places: R::Places,
) -> Result<(R, Recorder<'a, M::Word>), Fault>
where
    M::Word: 'a,
{
    // SAFETY: the caller's promise.
    let rings = unsafe { R::attach(machine, input, output, places)? };
    let telemetry = machine.at(telemetry, 64, 64).ok_or(Fault::Address)?;
    // SAFETY: mapped and aligned; words, live by the caller's promise.
    let telemetry = unsafe { telemetry.cast::<telemetry::Shared<M::Word>>().as_ref() };
    // SAFETY: this kernel is its only writer.
    Ok((rings, unsafe { Recorder::new(telemetry) }))
}

/// What all batches have come to, each lane by its own clock. Never set back, which would cost each batch some moves.
#[derive(Clone, Copy)]
struct Sums {
    refused: u64,
    /// Nanoseconds, each message's.
    total: u64,
    least: u32,
    most: u32,
}

struct Kernel<'a, 'l, M: Machine, L, H, R> {
    control: DeviceSide<'a, M::Word>,
    recorder: Recorder<'a, M::Word>,
    rings: R,
    lanes: &'l L,
    /// Whether this is lane 0.
    leader: bool,
    /// Sequence number of the last command acted on.
    acted: u32,
    /// Rounds that will be done when it looks next.
    rounds: u64,
    /// Where the input ring's head was.
    began: u64,
    /// Messages that lane 0 has written down.
    settled: u64,
    sums: Sums,
    _handler: PhantomData<fn(&H)>,
}

impl<'a, M: Machine, L: Lanes, H: Handler<M, L>, R: Rings<'a, H::Input, H::Output, M>> Kernel<'a, '_, M, L, H, R>
where
    M::Cell<H::Input>: 'a,
    M::Cell<H::Output>: 'a,
{
    #[inline(always)]
    fn run(mut self, launch: &Launch, handler: &mut H) {
        let batch = launch.batch.max(1);
        let mut mode = Mode::Wait;
        let mut until_look = 0;
        let mut idle_times: u32 = 0;
        let mut active_ns = self.lanes.now_ns();
        if self.leader {
            self.control.enter(State::Ready);
        }
        loop {
            if until_look == 0 || idle_times == 1 {
                self.settle(until_look, 0);
            }
            if until_look == 0 {
                until_look = LOOK_EVERY;
                self.rounds += u64::from(LOOK_EVERY);
                if self.leader {
                    let acted = self.acted;
                    mode = self.look();
                    if acted != self.acted {
                        active_ns = self.lanes.now_ns();
                    }
                }
            }
            let mode_of_all = self.lanes.broadcast(mode as u64);
            if mode_of_all == Mode::Leave as u64 {
                return;
            }
            let takes = mode_of_all != Mode::Wait as u64;
            let Ok(count) = (if takes { self.rings.take(self.lanes, batch) } else { Ok(0) }) else {
                self.settle(until_look, 0);
                return self.leave(Some(Fault::Corrupt));
            };
            if count > 0 {
                let taken_ns = if H::ACCOUNTS { self.lanes.now_ns() } else { 0 };
                if H::ACCOUNTS && self.leader {
                    self.control.take(count);
                }
                // SAFETY: just taken.
                let messages = unsafe { self.rings.batch(count) };
                let refused = handler.answer(self.lanes, &messages);
                // SAFETY: as above.
                unsafe { self.rings.prepare(self.lanes, count) };
                // The lanes' slots become visible to lane 0, which publishes for all of them.
                self.lanes.barrier();
                if self.lanes.ballot(true) != u32::MAX >> (32 - L::WIDTH) {
                    // A lane has panicked and left; it has said so itself.
                    return;
                }
                // Mostly none refuses: one vote instead of a sum.
                if self.lanes.ballot(refused != 0) != 0 {
                    self.sums.refused += self.lanes.sum(refused);
                }
                // SAFETY: just taken; every slot has been answered, and the barrier after that has passed.
                if let Err(fault) = unsafe { self.rings.publish(self.lanes, count, Patience { ns: launch.idle_ns }) } {
                    // They were not answered.
                    self.sums.refused -= self.lanes.sum(refused);
                    self.settle(until_look, count);
                    return self.leave(Some(fault));
                }
                active_ns = self.lanes.now_ns();
                // 0, or 1 where the next look would come late: by the lane's own clock, so it decides nothing that lanes do together.
                idle_times = if H::ACCOUNTS { self.answered(count, active_ns.wrapping_sub(taken_ns)) } else { 0 };
            } else {
                if mode_of_all == Mode::Drain as u64 && self.rings.waiting() == 0 {
                    self.settle(until_look, 0);
                    if self.leader {
                        self.record(self.lanes.now_ns());
                        self.control.enter(State::Terminated);
                    }
                    return;
                }
                if self.leader {
                    self.control.beat(self.done(until_look) + 1);
                }
                // Every lane counts its rounds alike; lane 0's clock decides for all.
                if until_look == 1 {
                    let now = self.lanes.now_ns();
                    // Once, after as many dry rounds.
                    if self.leader && idle_times.wrapping_sub(LOOK_EVERY - 1) < LOOK_EVERY {
                        self.record(now);
                    }
                    if self.lanes.broadcast(u64::from(now.saturating_sub(active_ns) > launch.idle_ns)) != 0 {
                        return self.leave(Some(Fault::Deadline));
                    }
                }
                self.lanes.pause(idle_times);
                // Back to a long wait, never to a short one.
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

    /// Rounds that are done, where so many are left to the next look.
    #[inline(always)]
    fn done(&self, until_look: u32) -> u64 {
        self.rounds - u64::from(until_look)
    }

    /// Counts a batch that was published; 1 if it took so long that others should be told now.
    #[inline(always)]
    fn answered(&mut self, count: u64, took_ns: u64) -> u32 {
        let took = if took_ns >> 32 == 0 { took_ns as u32 } else { u32::MAX };
        let sums = &mut self.sums;
        // No ring holds more messages than 32 bits count.
        sums.total = sums.total.wrapping_add(u64::from(took) * u64::from(count as u32));
        sums.least = sums.least.min(took);
        sums.most = sums.most.max(took);
        u32::from(u64::from(took) >= TELEMETRY_NS)
    }

    /// Messages that were answered.
    #[inline(always)]
    fn processed(&self) -> u64 {
        self.rings.taken().wrapping_sub(self.began)
    }

    /// Lane 0 writes down what batches have come to since the last time, without the last `unanswered` messages.
    #[inline(always)]
    fn settle(&mut self, until_look: u32, unanswered: u64) {
        let messages = self.processed().wrapping_sub(unanswered).wrapping_sub(self.settled);
        if !H::ACCOUNTS || !self.leader || messages == 0 {
            return;
        }
        self.settled = self.settled.wrapping_add(messages);
        let now = self.lanes.now_ns();
        self.control.answered(messages, now / 1000);
        if unanswered > 0 {
            self.control.take(unanswered);
        }
        self.control.beat(self.done(until_look));
        if now.saturating_sub(self.recorder.updated_ns()) >= TELEMETRY_NS {
            self.record(now);
        }
    }

    /// Lane 0 writes a telemetry record.
    #[inline(always)]
    fn record(&mut self, now_ns: u64) {
        let depth = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
        let Sums { refused, total, least, most } = self.sums;
        self.recorder.set(self.settled, refused, total, least.into(), most.into());
        self.recorder.publish(depth(self.rings.waiting()), depth(self.rings.unread()), now_ns);
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
