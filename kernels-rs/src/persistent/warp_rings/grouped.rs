//! [`Grouped`]: one SPSC ring of messages and one of answers for all groups of a launch. The protocol: `ringmem_layouts::ring::groups`. How a warp pushes
//! in any kind of ring: `warp_rings.rs`.

use ringmem_layouts::control::{Fault, RingHeaders};
use ringmem_layouts::ring::RingFlags;
use ringmem_layouts::ring::groups::{Group, Groups, Over, Portion, first};
use ringmem_layouts::{Counter, Machine, RingMessage, Word};

use super::{Membership, Patience, Rings, answer_each, ring};
use crate::Lanes;
use crate::persistent::Handler;

/// Lane 0 reserves numbers, by one read-modify-write per batch.
pub struct Grouped<'a, I, O, M: Machine> {
    group: Group<'a, I, O, M, M::Word>,
    groups: u64,
    is_first: bool,
    /// Messages that had arrived at the last look and that no group had reserved. Equal on all lanes, which could see different counters.
    waiting: u64,
}

/// One group of a launch, with the counters of all.
pub struct Member<'a, W> {
    shared: &'a Groups<W>,
    is_first: bool,
}

impl<W> Clone for Member<'_, W> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<W> Copy for Member<'_, W> {}

impl<W: Counter> Membership for Member<'_, W> {
    const IS_SHARED: bool = true;

    #[inline(always)]
    fn address(&self) -> u64 {
        (&raw const *self.shared) as u64
    }

    #[inline(always)]
    fn refuse(&self, epoch: u32) {
        // SAFETY: the launch has exclusive use of the counters, by the promise of `join`; group 0 begins once, here or in `Rings::begin`.
        unsafe { self.shared.begin(epoch, [0; 2], true) };
    }

    #[inline(always)]
    fn has_begun<L: Lanes>(&self, lanes: &L, epoch: u32) -> bool {
        // All groups of a launch run at the same time, and group 0 begins before it waits for anything.
        let patience = Patience { ns: u64::MAX };
        patience.until(lanes, || self.shared.has_begun(epoch), || false);
        let runs = self.shared.over().is_none();
        if !runs {
            // It may have run so briefly that this group comes after its end. Group 0 waits for this group nevertheless.
            self.shared.leave();
        }
        runs
    }

    #[inline(always)]
    fn end(&self, fault: Option<Fault>) {
        self.shared.end(fault);
    }
}

impl<'a, I: RingMessage, O: RingMessage, M: Machine<Word: Counter>, L: Lanes> Rings<'a, I, O, M, L> for Grouped<'a, I, O, M>
where
    M::Word: 'a,
{
    type Argument = u64;
    type Member = Member<'a, M::Word>;

    #[inline(always)]
    unsafe fn join(machine: &M, lanes: &L, shared: u64) -> Result<Member<'a, M::Word>, Fault> {
        let shared = machine.at(shared, size_of::<Groups<u64>>() as u64, 128).ok_or(Fault::Address)?;
        // SAFETY: `at` mapped and aligned the counters; the caller promises that they are live for `'a` and accessed by the rings' protocol, so only as words.
        let shared = unsafe { shared.cast::<Groups<M::Word>>().as_ref() };
        Ok(Member { shared, is_first: lanes.group() == 0 })
    }

    #[inline(always)]
    unsafe fn attach(machine: &M, input: RingHeaders, output: RingHeaders, member: Member<'a, M::Word>) -> Result<Self, Fault> {
        // SAFETY: the caller promises that memory mapped at the input's addresses is live for `'a` and accessed by the rings' protocol, so
        // headers only as words.
        let input = unsafe { ring::<M, I, _>(machine, RingFlags::SPSC, input)? };
        // SAFETY: the caller promises that memory mapped at the output's addresses is live for `'a` and accessed by the rings' protocol, so
        // headers only as words.
        let output = unsafe { ring::<M, O, _>(machine, RingFlags::SPSC, output)? };
        let Member { shared, is_first } = member;
        // Before group 0 begins, no group publishes: the indices are those of the last launch.
        let first = if is_first { first(&input, &output).map_err(|_| Fault::Ring)? } else { shared.first() };
        // SAFETY: `ring` checked both and mapped them whole; only groups of this launch and the host's ends use them, with indices that group 0 has found.
        let group = unsafe { Group::over(input, output, first, shared) };
        Ok(Self { group, groups: 1, is_first, waiting: 0 })
    }

    #[inline(always)]
    fn begin(&mut self, lanes: &L, epoch: u32) {
        self.groups = lanes.groups();
        if self.is_first && lanes.lane() == 0 {
            // SAFETY: the launch has exclusive use of the counters, by the promise of `join`; group 0 begins once, here or in `refuse`.
            unsafe { self.group.shared().begin(epoch, self.group.first(), false) };
        }
    }

    #[inline(always)]
    fn take(&mut self, lanes: &L, batch: u64, _: u64) -> Result<u64, Over> {
        const NONE: u64 = 1 << 63;
        const FAULT: u64 = 1 << 62;
        let (mut begin, mut count, mut waiting) = (0, 0, 0);
        if lanes.lane() == 0 {
            match self.group.reserve(Portion::of(self.groups, lanes.width().into(), batch)) {
                Ok(reserved) => (begin, count) = reserved,
                Err(Over { fault }) => count = fault.map_or(NONE, |fault| NONE | FAULT | fault as u64),
            }
            waiting = self.group.waiting();
        }
        let (begin, count, waiting) = (lanes.broadcast(begin), lanes.broadcast(count), lanes.broadcast(waiting));
        lanes.barrier();
        if count & NONE != 0 {
            return Err(Over { fault: if count & FAULT == 0 { None } else { Fault::from_word(count) } });
        }
        self.waiting = waiting;
        // SAFETY: lane 0 reserved it on its copy of this group, and the barrier above ordered lane 0's loads before this call.
        unsafe { self.group.accept(begin, count) };
        Ok(count)
    }

    #[inline(always)]
    unsafe fn answer<H: Handler<M, L, Input = I, Output = O>>(&self, lanes: &L, count: u64, _: u64, handler: &mut H) -> (u64, u64) {
        // SAFETY: reserved, by `take`; every lane calls it once for these messages, and publishes them after a barrier.
        unsafe { answer_each(lanes, self.group.messages(), self.group.answers(), count, handler) }
    }

    #[inline(always)]
    unsafe fn publish(&mut self, lanes: &L, _: u64, _: u64, patience: Patience) -> Result<(), Fault> {
        let mut in_time = true;
        if lanes.lane() == 0 {
            let group = &self.group;
            in_time = patience.until(lanes, || group.is_its_turn(), || self.fault().is_some());
            if in_time {
                // SAFETY: published at once, in its turn; since the barrier no lane accesses these messages and slots.
                let indices = unsafe { group.publications() };
                // SYNC POINT: answers published and slots released. Pairs with the host's Consumer::poll and Producer::poll.
                M::Word::publish_all(indices);
                // SAFETY: just published.
                unsafe { group.pass() };
            }
        }
        if lanes.broadcast(u64::from(in_time)) != 0 { Ok(()) } else { Err(Fault::Deadline) }
    }

    /// By all groups.
    #[inline(always)]
    fn taken(&self) -> u64 {
        self.group.shared().published()
    }

    #[inline(always)]
    fn in_flight(&self, _: u64) -> u64 {
        self.group.shared().reserved().wrapping_sub(self.group.shared().published())
    }

    #[inline(always)]
    fn waiting(&self) -> u64 {
        self.waiting
    }

    #[inline(always)]
    fn known_unread(&self) -> u64 {
        self.group.known_unread()
    }

    #[inline(always)]
    fn unread(&self) -> u64 {
        self.group.unread()
    }

    #[inline(always)]
    fn refused_by_others(&self) -> u64 {
        self.group.shared().refused()
    }

    #[inline(always)]
    fn refuse(&self, count: u64) {
        self.group.shared().refuse(count);
    }

    #[inline(always)]
    fn end(&self, fault: Option<Fault>) {
        self.group.shared().end(fault);
    }

    #[inline(always)]
    fn permit(&self, lanes: &L, takes: bool, patience: Patience) -> Result<(), Fault> {
        let shared = self.group.shared();
        shared.permit(takes);
        if takes || patience.until(lanes, || shared.is_settled(), || self.fault().is_some()) {
            return Ok(());
        }
        Err(self.fault().unwrap_or(Fault::Deadline))
    }

    #[inline(always)]
    fn leave(&self, lanes: &L, fault: Option<Fault>, patience: Patience) -> Option<Fault> {
        let shared = self.group.shared();
        shared.end(fault);
        if !self.is_first {
            shared.leave();
            return fault;
        }
        let all_left = patience.until(lanes, || shared.left() + 1 == self.groups, || self.fault().is_some());
        self.fault().or((!all_left).then_some(Fault::Deadline))
    }
}

impl<I, O, M: Machine<Word: Counter>> Grouped<'_, I, O, M> {
    #[inline(always)]
    fn fault(&self) -> Option<Fault> {
        self.group.shared().over().and_then(|over| over.fault)
    }
}
