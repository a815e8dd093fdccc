//! The loop of a persistent kernel.
//!
//! 1. Every lane takes part in the same exchanges of the lanes, in the same order; between two of them, lane 0 does more. In the loop, only lane 0 accesses
//!    indices, control words and telemetry; each lane accesses its slots, with their flags in [flagged](warp_rings::Flagged) rings and their words
//!    in [paired](warp_rings::Paired) ones, and holds an equal copy of the rings' state.
//! 2. Per batch: poll (acquire), broadcast, barrier; lanes read and write slots in place; barrier; one `publish_all`.
//! 3. Every [`COMMAND_POLL_ROUNDS`] rounds (batches or dry polls), epoch and command are loaded with the poll of the rings, and obeyed
//!    before the next round. Then, and with each timed batch, the heartbeat is stored.
//! 4. Counters are stored every [`ACCOUNT_ROUNDS`] rounds or [`ACCOUNT_NS`], before a command is obeyed, when the ring runs dry
//!    and on leaving, unless the epoch is over, a lane panicked, or the handler does not [account](Handler::ACCOUNTS); the count in flight, for each batch. A
//!    batch whose answers could not be published stays counted as in flight.
//! 5. Telemetry is written after [`COMMAND_POLL_ROUNDS`] dry rounds, with the counters if the last record is [`TELEMETRY_NS`] old, and on
//!    leaving; while dry, again every [`TELEMETRY_NS`] until the host has popped all answers. A record while dry loads the host's index; others
//!    have the output depth of the last poll.
//! 6. Each batch is timed, from poll to answer, until the second multiple of [`ACCOUNT_ROUNDS`] rounds after a dry one. From then on only the
//!    first batch of each account is timed; its time is counted for all messages of that account. A time is at most 4.29 s.
//! 7. With [grouped](warp_rings::Grouped) rings, several groups run this loop. Group 0 alone is the kernel that steps 3 to 6 describe: it counts the messages
//!    of all groups, and times its own. The others take messages until group 0 lets them leave.
//! 8. A handler that [initiates](Handler::INITIATES) messages is called in each round of an active kernel with a free slot. The round is dry if there was no
//!    message and it sends none.
//! 9. The lanes of a block of several warps run this loop as those of one warp do; their barriers are the block's. A round that takes messages has four, and a
//!    batch one more. Own messages, refusals and the idle limit add one or two.
//! 10. The kernel leaves on a command, after a panic of a lane, on a fault, which it reports, when its epoch is over (without further stores to words that the
//!     host reads), and after the idle limit.

mod batch;
pub(crate) mod expansion;
mod handlers;
mod warp_rings;

use core::marker::PhantomData;
use core::ptr::NonNull;

use ringmem_layouts::control::{self, Addresses, Command, DeviceSide, Fault, Glance, State};
use ringmem_layouts::kernel::{DevicePointer, Epoch};
use ringmem_layouts::ring::groups::Over;
use ringmem_layouts::telemetry::{self, Recorder};
use ringmem_layouts::{ControlBlock, Counter, Machine, RingMessage, Word};

use crate::{Lanes, Pairs, WarpLanes};

pub use batch::Batch;
pub use handlers::{Actor, Each, Fold, Typed};
use warp_rings::{Flagged, Grouped, Indexed, Membership, Paired, Patience, Rings};

pub const COMMAND_POLL_ROUNDS: u32 = 16;
pub const ACCOUNT_ROUNDS: u64 = 128;
pub const ACCOUNT_NS: u32 = 1_000_000;
pub const TELEMETRY_NS: u64 = 1_000_000;

/// The work of a persistent kernel on a batch of messages.
pub trait Handler<M: Machine, L: Lanes> {
    /// The type of its messages.
    type Input: RingMessage;
    /// The type of its answers.
    type Output: RingMessage;
    /// Whether counters, the host's only view of progress, are stored, and batches timed. The heartbeat is stored in any case, and so is telemetry when the
    /// ring is dry and on leaving; without this, its records show no messages.
    const ACCOUNTS: bool = true;
    /// Whether it decides how many messages it [sends](Batch::send), instead of one for each message of the host. While the kernel is active and slots are
    /// free, it is then also called without a message of the host, and has [room](Batch::room) for up to a batch more than the answers. For a `persistent fn`
    /// or a `block fn` only.
    const INITIATES: bool = false;

    /// Answers every message of a batch. Returns the number refused by this lane.
    ///
    /// # Safety
    ///
    /// Every lane of the group calls it, once, with its own copy of one batch. Until all lanes have passed a [`barrier`](Lanes::barrier), no
    /// lane lets another handler answer that batch: two handlers may assign one slot to two lanes.
    ///
    /// An implementation that calls the exchanges of [`Lanes`] calls them on every lane, in the same order: else a lane still answers when another publishes.
    unsafe fn answer(&mut self, lanes: &L, batch: &mut Batch<'_, '_, Self::Input, Self::Output, M>) -> u64;
}

/// The arguments that every persistent kernel takes.
#[derive(Clone, Copy, Debug)]
pub struct Launch {
    /// Device address of the first control block; group `g` uses the `g`-th, unless the groups [share](persistent_grouped) one.
    pub controls: u64,
    /// Launch generation.
    pub epoch: u32,
    /// Nanoseconds after which the kernel leaves, without a message, with messages but no free slot for their answers, and without a command. Before it is
    /// active, and while it is paused, it takes no messages: only a command restarts the time then, even a refused one.
    pub idle_ns: u64,
    /// The most messages popped together, at least 1.
    pub batch: u64,
    /// Hash of the kernel's layouts; another in its control block is [`Fault::Abi`].
    pub abi: u64,
}

impl Launch {
    /// Converts arguments.
    #[must_use]
    #[inline(always)]
    pub const fn new(controls: DevicePointer<ControlBlock<u64>>, epoch: Epoch, idle_ns: u64, batch: u64, abi: u64) -> Self {
        Self { controls: controls.address(), epoch: epoch.get(), idle_ns, batch, abi }
    }
}

/// What all lanes do in a round, as lane 0 tells them.
mod mode {
    pub const WAIT: u32 = 0;
    pub const TAKE: u32 = 1;
    pub const DRAIN: u32 = 2;
    pub const LEAVE: u32 = 3;
}

#[derive(Clone, Copy)]
#[repr(u64)]
enum Verdict {
    OtherEpoch = 0,
    OtherAbi = 1,
    Run = 2,
}

/// Runs a handler between two SPSC rings until the kernel leaves.
///
/// # Safety
///
/// Every lane of the group calls this once, with an equal `launch`. The group's control block, and the rings and telemetry that it names,
/// are live until this returns, and accessed by their protocols only, with one host side and no other kernel.
#[inline(always)]
pub unsafe fn persistent<M: Machine, L: Lanes, H: Handler<M, L>>(machine: &M, lanes: &L, launch: &Launch, handler: &mut H) {
    // SAFETY: the caller promises live rings with one host side and no other kernel, and that every lane calls this; `serve` requires that
    // of indexed rings.
    unsafe { serve::<M, L, H, Indexed<'_, H::Input, H::Output, M>>(machine, lanes, launch, (), handler) }
}

/// Like [`persistent`], between [`flagged`](ringmem_layouts::ring::flagged) rings.
///
/// # Safety
///
/// As [`persistent`].
#[inline(always)]
pub unsafe fn persistent_flagged<M: Machine, L: WarpLanes, H: Handler<M, L>>(machine: &M, lanes: &L, launch: &Launch, handler: &mut H) {
    // SAFETY: the caller promises that every lane calls this once with an equal `launch`, and that control block, flagged rings and telemetry are live until
    // this returns, accessed by their protocols only, with one host side and no other kernel.
    unsafe { serve::<M, L, H, Flagged<'_, H::Input, H::Output, M>>(machine, lanes, launch, (), handler) }
}

/// Like [`persistent`], for all groups of a launch together: they share the first control block and its rings, and answers are in the order of their
/// messages. `shared` is the address of their [`Groups`](ringmem_layouts::ring::groups::Groups).
///
/// # Safety
///
/// As [`persistent`], except that all groups of this launch call it, with equal arguments, at the same time. `shared` is zeroed, or was used by an earlier
/// launch of another epoch that has returned; it is live until this returns, and nothing else accesses it.
#[inline(always)]
pub unsafe fn persistent_grouped<M: Machine<Word: Counter>, L: Lanes, H: Handler<M, L>>(
    machine: &M,
    lanes: &L,
    launch: &Launch,
    shared: u64,
    handler: &mut H,
) {
    // SAFETY: the caller promises that every lane of all groups of this launch calls this once, at the same time, with equal arguments. Control block, rings
    // and telemetry are live until this returns, accessed by their protocols only, with one host side and no other kernel. Only these groups access `shared`,
    // which is live, and zeroed or of an earlier epoch's launch that has returned.
    unsafe { serve::<M, L, H, Grouped<'_, H::Input, H::Output, M>>(machine, lanes, launch, shared, handler) }
}

/// Returns each message between [`paired`](ringmem_layouts::ring::paired) rings, without calling [`Handler::answer`].
///
/// # Safety
///
/// As [`persistent`].
#[inline(always)]
pub unsafe fn persistent_paired<M: Pairs, L: WarpLanes, T: RingMessage, H: Handler<M, L, Input = T, Output = T>>(
    machine: &M,
    lanes: &L,
    launch: &Launch,
    handler: &mut H,
) {
    // SAFETY: the caller promises that every lane calls this once with an equal `launch`, and that control block, paired rings and telemetry are live until
    // this returns, accessed by their protocols only, with one host side and no other kernel.
    unsafe { serve::<M, L, H, Paired<'_, T, M>>(machine, lanes, launch, (), handler) }
}

/// # Safety
///
/// As [`persistent`], with rings of this kind; for [`Grouped`] rings, as [`persistent_grouped`].
#[inline(always)]
unsafe fn serve<'a, M: Machine, L: Lanes, H: Handler<M, L>, R: Rings<'a, H::Input, H::Output, M, L>>(
    machine: &M,
    lanes: &L,
    launch: &Launch,
    argument: R::Argument,
    handler: &mut H,
) where
    M::Word: 'a,
    M::Cell<H::Input>: 'a,
    M::Cell<H::Output>: 'a,
{
    const {
        assert!(
            R::IS_FREE || !H::INITIATES,
            "a handler with `INITIATES` is that of a `persistent fn` or a `block fn`: in other rings, each message has one answer"
        )
    };
    let number = if R::Member::IS_SHARED { 0 } else { lanes.group() };
    let Some(block) = block(machine, launch, number) else { return };
    // SAFETY: `at` mapped and aligned the block; the caller promises that it is live until this returns, and accessed by its protocol only.
    let block: &'a control::Shared<M::Word> = unsafe { block.cast::<control::Shared<M::Word>>().as_ref() };
    // SAFETY: the only kernel on the block; only lane 0 of one group writes below.
    let mut control = unsafe { DeviceSide::attach(block, launch.epoch) };
    // SAFETY: the caller promises that the argument is live for `'a` and used by the groups of this launch only.
    let joined = unsafe { R::join(machine, lanes, argument) };
    let is_first = !R::Member::IS_SHARED || lanes.group() == 0;
    let leader = lanes.lane() == 0 && is_first;
    if lanes.lane() == 0 {
        let shared = joined.as_ref().map_or(0, Membership::address);
        // SAFETY: block and counters are live until this returns, which resets it, or the lane has exited; only the first group stores the block's state.
        unsafe { lanes.remember(if is_first { (&raw const *block) as u64 } else { 0 }, launch.epoch, shared) };
    }
    let unwinding = Unwinding { block: is_first.then_some(block), epoch: launch.epoch, member: joined.ok() };
    // A kernel that finds its epoch over stores nothing more. Until it reads the epoch again, it may store.
    let verdict = if leader {
        match control.is_current() {
            true if control.agree(launch.abi) => Verdict::Run,
            true => Verdict::OtherAbi,
            false => Verdict::OtherEpoch,
        }
    } else {
        // Another lane's verdict does not count.
        let runs = lanes.lane() == 0 && joined.is_ok_and(|member| member.has_begun(lanes, launch.epoch));
        if runs { Verdict::Run } else { Verdict::OtherEpoch }
    };
    let verdict = lanes.broadcast(verdict as u64);
    if R::Member::IS_SHARED {
        // The stores that lane 0 has seen in `has_begun` precede the other lanes' loads: a shuffle orders none.
        lanes.barrier();
    }
    let ran = if verdict == Verdict::OtherEpoch as u64 {
        Err(None)
    } else if verdict == Verdict::OtherAbi as u64 {
        Err(Some(Fault::Abi))
    } else {
        // SAFETY: the caller promises that the rings and the telemetry, whose addresses the block holds, are live and used by their protocols only, and that
        // no other kernel uses them.
        let attached = joined.and_then(|member| unsafe { attach::<M, L, H::Input, H::Output, R>(machine, control.addresses(), member) });
        // All run, or none: lanes may have seen different rings.
        let all = lanes.barrier_and(attached.is_ok());
        attached.and_then(|attached| if all { Ok(attached) } else { Err(Fault::Ring) }).map_err(Some)
    };
    match ran {
        Ok((mut rings, recorder)) => {
            rings.begin(lanes, launch.epoch);
            let (patience, began) = (Patience { ns: launch.idle_ns }, rings.taken());
            Kernel {
                control,
                recorder,
                rings,
                lanes,
                leader,
                patience,
                last_command: 0,
                rounds: 0,
                settled: began,
                last_account_ns: 0,
                refused: 0,
                times: Times::new(leader, began),
                _handler: PhantomData::<fn(&H)>,
            }
            .run(launch, handler);
        }
        Err(fault) => {
            if let Ok(member) = joined
                && lanes.lane() == 0
            {
                if is_first { member.refuse(launch.epoch) } else { member.end(fault) }
            }
            if let Some(fault) = fault {
                leave_with(&mut control, leader, fault);
            }
        }
    }
    core::mem::forget(unwinding);
    if lanes.lane() == 0 {
        // SAFETY: no addresses.
        unsafe { lanes.remember(0, 0, 0) };
    }
}

/// Reports a fault in the arguments and leaves.
///
/// # Safety
///
/// As [`persistent`].
#[inline(always)]
pub unsafe fn refuse<M: Machine, L: Lanes>(machine: &M, lanes: &L, launch: &Launch, fault: Fault) {
    let Some(block) = block(machine, launch, lanes.group()) else { return };
    // SAFETY: `at` mapped and aligned the block; the caller promises that it is live until this returns, and accessed by its protocol only.
    let block = unsafe { block.cast::<control::Shared<M::Word>>().as_ref() };
    // SAFETY: the only kernel on the block; only lane 0 writes below.
    let mut control = unsafe { DeviceSide::attach(block, launch.epoch) };
    leave_with(&mut control, lanes.lane() == 0, fault);
}

#[inline(always)]
fn block<M: Machine>(machine: &M, launch: &Launch, number: u64) -> Option<NonNull<u8>> {
    let size = size_of::<ControlBlock<u64>>() as u64;
    // `at` on a GPU rejects only null and misaligned addresses: not a later group's.
    if launch.controls == 0 {
        return None;
    }
    machine.at(launch.controls.wrapping_add(number.wrapping_mul(size)), size, 128)
}

#[inline(always)]
fn leave_with<W: Word>(control: &mut DeviceSide<'_, W>, leader: bool, fault: Fault) {
    if leader && control.is_current() {
        control.note(fault);
        control.enter(State::Faulted);
    }
}

/// On the host, a panic of a lane: the other lanes of its group see it at the barrier after the batch.
struct Unwinding<'a, W: Word, S: Membership> {
    /// Unless another group stores the state.
    block: Option<&'a control::Shared<W>>,
    epoch: u32,
    member: Option<S>,
}

impl<W: Word, S: Membership> Drop for Unwinding<'_, W, S> {
    fn drop(&mut self) {
        if let Some(member) = self.member {
            member.end(Some(Fault::Panic));
        }
        if let Some(block) = self.block {
            // SAFETY: the only kernel on the block, which unwinds: on the host perhaps on one lane of several, of which the others may store a state once more
            // before they see that this one has ended.
            unsafe { control::panicked(block, self.epoch) };
        }
    }
}

/// # Safety
///
/// Memory mapped at the addresses is live for `'a` and shared by the rings' and the telemetry's protocols only. The lanes of this group are
/// the only writer of the telemetry, and the ends of the rings that [`Rings::attach`] requires.
#[inline(always)]
unsafe fn attach<'a, M: Machine, L: Lanes, I: RingMessage, O: RingMessage, R: Rings<'a, I, O, M, L>>(
    machine: &M,
    addresses: Addresses,
    member: R::Member,
) -> Result<(R, Recorder<'a, M::Word>), Fault>
where
    M::Word: 'a,
{
    // SAFETY: the caller promises that memory at the addresses is live for `'a`, shared by the rings' protocol only, and that this group is
    // the end of the rings that `R::attach` requires.
    let rings = unsafe { R::attach(machine, addresses.input, addresses.output, member)? };
    let telemetry = machine.at(addresses.telemetry, 64, 64).ok_or(Fault::Address)?;
    // SAFETY: `at` mapped and aligned the telemetry; the caller promises that it is live for `'a` and shared by its protocol only.
    let telemetry = unsafe { telemetry.cast::<telemetry::Shared<M::Word>>().as_ref() };
    // SAFETY: this kernel is its only writer.
    Ok((rings, unsafe { Recorder::new(telemetry) }))
}

/// By lane 0's clock. `total` has the times of the messages up to `counted`. `took` is the last measured time, 0 before the first, and stands for all messages
/// until the next one; before the first, `least` exceeds `most`. `begun_ns` is the begin of the last round that might be timed.
struct Times {
    begun_ns: u64,
    /// Delay to the next account; 0 if the next batch is timed.
    due_after_ns: u32,
    /// Ends of [`ACCOUNT_ROUNDS`] rounds since a dry one.
    busy_rounds: u32,
    took: u32,
    least: u32,
    most: u32,
    /// The first message not in `total`.
    counted: u64,
    /// In nanoseconds.
    total: u64,
}

impl Times {
    const fn new(leader: bool, began: u64) -> Self {
        let due_after_ns = if leader { 0 } else { u32::MAX };
        Self { begun_ns: 0, due_after_ns, busy_rounds: 0, took: 0, least: u32::MAX, most: 0, counted: began, total: 0 }
    }

    #[inline(always)]
    const fn are_due(&self, now_ns: u64) -> bool {
        (now_ns as u32).wrapping_sub(self.begun_ns as u32) >= self.due_after_ns
    }

    #[inline(always)]
    fn count(&mut self, taken: u64, now_ns: u64) {
        let messages = taken.wrapping_sub(self.counted);
        if messages == 0 {
            return;
        }
        if self.due_after_ns == 0 {
            self.took = u32::try_from(now_ns.wrapping_sub(self.begun_ns)).unwrap_or(u32::MAX);
            self.least = self.least.min(self.took);
            self.most = self.most.max(self.took);
            // The first end may have followed a dry round.
            if self.busy_rounds > 1 {
                self.due_after_ns = ACCOUNT_NS;
            }
        }
        self.total = self.total.wrapping_add(u64::from(self.took).wrapping_mul(messages));
        self.counted = taken;
    }
}

/// Equal on all lanes are `rings`, `rounds` and `refused`, and in `run` `mode_of_all`, `count` and `idle_times`. The other changing values are each lane's own:
/// only lane 0's count, and none of them may decide whether a lane takes part in an exchange.
struct Kernel<'a, 'l, M: Machine, L, H, R> {
    control: DeviceSide<'a, M::Word>,
    recorder: Recorder<'a, M::Word>,
    rings: R,
    lanes: &'l L,
    /// Lane 0 of the group that stores state and counters.
    leader: bool,
    patience: Patience,
    last_command: u32,
    rounds: u64,
    /// Messages in the stored counters: at most those in `times.counted`, which are at most those taken.
    settled: u64,
    last_account_ns: u64,
    refused: u64,
    times: Times,
    _handler: PhantomData<fn(&H)>,
}

impl<'a, M: Machine, L: Lanes, H: Handler<M, L>, R: Rings<'a, H::Input, H::Output, M, L>> Kernel<'a, '_, M, L, H, R>
where
    M::Cell<H::Input>: 'a,
    M::Cell<H::Output>: 'a,
{
    #[inline(always)]
    fn run(mut self, launch: &Launch, handler: &mut H) {
        let batch = launch.batch.max(1);
        // Whether another group follows commands: see `ringmem_layouts::ring::groups`.
        let follows = R::Member::IS_SHARED && self.lanes.group() != 0;
        let mut mode = if follows { mode::TAKE } else { mode::WAIT };
        let mut answered = 0;
        let mut idle_times: u32 = 0;
        let mut glance = Glance::default();
        let mut active_ns = self.lanes.now_ns();
        if self.leader {
            self.control.enter(State::Ready);
        }
        let fault = loop {
            let phase = self.rounds % u64::from(COMMAND_POLL_ROUNDS);
            let mut now = if H::ACCOUNTS { self.lanes.now_ns() } else { 0 };
            // The other lanes are never due: `due_after_ns`.
            let is_due = H::ACCOUNTS && self.times.are_due(now);
            if phase <= 1 || is_due {
                let looks = phase == 0;
                if self.leader {
                    if looks || self.rings.taken() != self.times.counted {
                        self.control.beat(self.rounds);
                    }
                    if H::ACCOUNTS && (is_due || self.rounds.is_multiple_of(ACCOUNT_ROUNDS)) {
                        self.account(now);
                    }
                    if looks {
                        // In flight with the poll of the rings, compared a round later. In between, the kernel answers and publishes one whole round, even if
                        // this glance saw another epoch or command.
                        glance = self.control.glance();
                    } else if phase == 1 && self.control.is_news(glance, self.last_command) {
                        if let Some(told) = self.look() {
                            mode = told;
                            active_ns = self.lanes.now_ns();
                        }
                        if H::ACCOUNTS {
                            now = self.lanes.now_ns();
                        }
                    }
                }
                if H::ACCOUNTS && self.times.due_after_ns == 0 {
                    self.times.begun_ns = now;
                }
            }
            self.rounds += 1;
            let mode_of_all = self.lanes.broadcast(mode.into()) as u32;
            if mode_of_all == mode::LEAVE {
                return;
            }
            let takes = mode_of_all != mode::WAIT;
            let own = if H::INITIATES && mode_of_all == mode::TAKE { batch } else { 0 };
            let count = match if takes { self.rings.take(self.lanes, batch, own) } else { Ok(0) } {
                Ok(count) => count,
                Err(Over { fault }) => break fault,
            };
            let mut is_dry = if H::INITIATES { self.rings.room(count, own) == 0 } else { count == 0 };
            if !is_dry {
                if H::ACCOUNTS && self.leader && count > 0 {
                    self.control.take(self.rings.in_flight(count));
                }
                // If a lane panics, or `publish` fails, nothing of this round is published or released: the next launch takes its messages again.
                // SAFETY: just taken.
                let (refused, mut sent) = unsafe { self.rings.answer(self.lanes, count, own, handler) };
                // SAFETY: `count` was just taken and is not yet published; every lane runs this line once.
                unsafe { self.rings.prepare(self.lanes, count) };
                // Refusals are rare: one vote instead of a sum. It fails for a refusal or an exit; the next only for an exit, after which a sum is unspecified.
                if !self.lanes.barrier_and(refused == 0) {
                    if !self.lanes.barrier_and(true) {
                        // A lane has panicked, and reported it, unless its row was overwritten: the other groups must end nevertheless.
                        self.rings.end(Some(Fault::Panic));
                        return;
                    }
                    self.refused = self.refused.wrapping_add(self.lanes.sum(refused));
                }
                if H::INITIATES {
                    sent = self.lanes.broadcast(sent);
                    is_dry = count == 0 && sent == 0;
                }
                if !is_dry {
                    // SAFETY: just taken, and answered before the barrier; `sent` is lane 0's number.
                    if let Err(fault) = unsafe { self.rings.publish(self.lanes, count, sent, self.patience) } {
                        self.refused = self.refused.wrapping_sub(self.lanes.sum(refused));
                        break Some(fault);
                    }
                    if follows && self.refused != 0 {
                        if self.lanes.lane() == 0 {
                            self.rings.refuse(self.refused);
                        }
                        self.refused = 0;
                    }
                    idle_times = 0;
                }
            }
            if is_dry {
                if idle_times == 0 {
                    active_ns = self.lanes.now_ns();
                    self.settle(active_ns);
                }
                if self.leader {
                    self.times.busy_rounds = 0;
                    self.times.due_after_ns = 0;
                }
                if mode_of_all == mode::DRAIN && self.rings.waiting() == 0 {
                    break None;
                }
                // Rounds are equal on every lane; lane 0's clock decides.
                if self.rounds.is_multiple_of(COMMAND_POLL_ROUNDS.into()) {
                    let now = self.lanes.now_ns();
                    if R::Member::IS_SHARED && self.leader && self.rings.taken() != answered {
                        // By others.
                        answered = self.rings.taken();
                        active_ns = now;
                        self.settle(now);
                    }
                    let is_first = idle_times.wrapping_sub(COMMAND_POLL_ROUNDS - 1) < COMMAND_POLL_ROUNDS;
                    // The host may pop the last answers after the first idle record.
                    let is_stale = self.recorder.output_depth() > 0 && now.saturating_sub(self.recorder.updated_ns()) >= TELEMETRY_NS;
                    if self.leader && (is_first || is_stale) {
                        self.record(now, self.rings.unread());
                    }
                    if !follows && self.lanes.broadcast(u64::from(now.saturating_sub(active_ns) > launch.idle_ns)) != 0 {
                        break Some(Fault::Deadline);
                    }
                }
                self.lanes.pause(idle_times);
                idle_times = idle_times.checked_add(1).unwrap_or(1 << 31);
            }
        };
        self.leave(fault);
    }

    /// Lane 0 only: times the last batch, and settles if due.
    #[inline(always)]
    fn account(&mut self, now_ns: u64) {
        self.times.count(self.rings.taken(), now_ns);
        let tells = self.rounds.is_multiple_of(ACCOUNT_ROUNDS);
        if tells {
            self.times.busy_rounds = self.times.busy_rounds.saturating_add(1);
        }
        if tells || now_ns.saturating_sub(self.last_account_ns) >= u64::from(ACCOUNT_NS) {
            self.settle(now_ns);
        }
        if self.rings.taken() == self.settled {
            self.last_account_ns = now_ns;
            // A handler that sends without messages has nothing to settle.
            if H::INITIATES && now_ns.saturating_sub(self.recorder.updated_ns()) >= TELEMETRY_NS {
                self.record(now_ns, self.rings.known_unread());
            }
        }
    }

    /// Lane 0 only: returns a changed mode. Between two rounds: this group has no batch, and `permit` waits for the others. So once the host sees `Paused`, no
    /// message is being answered.
    #[inline(always)]
    fn look(&mut self) -> Option<u32> {
        if !self.control.is_current() {
            self.rings.end(None);
            return Some(mode::LEAVE);
        }
        let (sequence, bits) = self.control.command();
        if sequence == self.last_command {
            return None;
        }
        self.last_command = sequence;
        let obeyed = self.obey(bits);
        // After the other groups' last batches, and before the host sees a state in which the number is exact.
        self.settle(self.lanes.now_ns());
        if let Ok(Some(state)) = obeyed {
            self.control.enter(state);
        }
        // Before a final state: a host that waits for both sees both.
        self.control.acknowledge(sequence);
        if let Err(fault) = obeyed {
            self.leave(fault);
            return Some(mode::LEAVE);
        }
        Some(match self.control.state() {
            State::Active => mode::TAKE,
            State::Draining => mode::DRAIN,
            _ => mode::WAIT,
        })
    }

    /// Lane 0 only: returns the state to enter, which the groups are in then. An error is the reason to leave, `None` for a command.
    #[inline(always)]
    fn obey(&mut self, bits: u32) -> Result<Option<State>, Option<Fault>> {
        let Some(command) = Command::from_bits(bits) else {
            return Err(Some(Fault::UnknownCommand));
        };
        let state = self.control.state();
        let ending = Command::TERMINATE.union(Command::DRAIN);
        if state == State::Ready && command.intersects(ending) {
            // The only way from Ready to an end.
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
            return Ok(None);
        };
        if wanted == self.control.state() {
            return Ok(None);
        }
        if !self.control.state().may_become(wanted) {
            self.control.note(Fault::RefusedCommand);
            return Ok(None);
        }
        // Before the host sees the state, which is that of all groups.
        self.rings.permit(self.lanes, wanted != State::Paused, self.patience).map_err(Some)?;
        Ok(Some(wanted))
    }

    /// Counts the answered messages, on the leader; does nothing on other lanes.
    #[inline(always)]
    fn settle(&mut self, now_ns: u64) {
        let taken = self.rings.taken();
        let messages = taken.wrapping_sub(self.settled);
        if !H::ACCOUNTS || !self.leader || messages == 0 {
            return;
        }
        self.times.count(taken, now_ns);
        self.times.due_after_ns = 0;
        self.settled = taken;
        self.control.answered(messages);
        let in_flight = self.rings.in_flight(0);
        if in_flight > 0 {
            self.control.take(in_flight);
        }
        if now_ns.saturating_sub(self.recorder.updated_ns()) >= TELEMETRY_NS {
            self.record(now_ns, self.rings.known_unread());
        }
    }

    #[inline(always)]
    fn record(&mut self, now_ns: u64, unread: u64) {
        let depth = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
        let Times { total, least, most, .. } = self.times;
        let refused = self.refused.wrapping_add(self.rings.refused_by_others());
        self.recorder.set(self.control.processed(), refused, total, least.into(), most.into());
        self.recorder.publish(depth(self.rings.waiting()), depth(unread), now_ns);
    }

    /// Reports the end, on the leader, and leaves shared rings, on lane 0 of each group; does nothing on other lanes. `None` leaves as commanded.
    #[inline(always)]
    fn leave(&mut self, fault: Option<Fault>) {
        let mut fault = fault;
        if R::Member::IS_SHARED && self.lanes.lane() == 0 {
            fault = self.rings.leave(self.lanes, fault, self.patience);
        }
        if !self.leader {
            return;
        }
        self.settle(self.lanes.now_ns());
        self.record(self.lanes.now_ns(), self.rings.known_unread());
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
