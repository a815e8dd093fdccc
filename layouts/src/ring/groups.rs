//! Groups (blocks) of one launch that share an SPSC ring of messages and an SPSC ring of answers: to the host, one consumer and one producer.
//!
//! A launch counts its messages from 0. If its rings began at the indices `i` and `o`, message `n` is at index `i + n` of the input and its answer at
//! `o + n` of the output. So one reservation of numbers claims messages *and* the slots of their answers, and answers come in the order of their messages,
//! whichever group writes them. A group takes a batch in five steps:
//!
//! 1. [`reserve`](Group::reserve): one read-modify-write of `reserved`, in device memory, for messages that have arrived and whose answers have free slots.
//!    Only loads and stores cross the bus to the host.
//! 2. It answers in place, by [`messages`](Group::messages) and [`answers`](Group::answers).
//! 3. It waits for [its turn](Group::is_its_turn): until all lower numbers are published. The rings have one index each, so answers cannot become visible in
//!    another order. A group that never publishes stops all later ones: they wait with a deadline.
//! 4. It stores both rings' indices, after one fence ([`publications`](Group::publications)).
//! 5. It passes the turn on ([`pass`](Group::pass)).
//!
//! # What makes it sound
//!
//! - A slot belongs to the group that reserved its number, from the exchange in `reserve` to the store in step 4. The exchange is relaxed: it orders nothing,
//!   and needs not, since a group sees the bytes of messages and the freedom of slots by its own acquiring loads of the host's indices.
//! - The host sees the answers of a group by the fence of step 4, and those of earlier groups by the turn, which is passed by a release and seen by an
//!   acquire: the group that stores the index `o + n` has seen all stores below it.
//! - `reserved` may be ahead of the index of the host that this group has seen: another group has seen a later one. Then nothing has arrived *for this
//!   group*, and it looks again.
//!
//! # Beginning and end
//!
//! Group 0 speaks for all: it alone reads commands, and stores the kernel's state and counters. The low bits of `reserved` tell the others what holds, so
//! that one exchange both checks it and reserves:
//!
//! | bit | name | means |
//! |---|---|---|
//! | 0 | closed | nothing may be reserved now |
//! | 1 | over | leave, once your reservation is published |
//! | 2 to 7 | a [`Fault`] | leave now: a reservation may never be published |
//! | 8 to 63 | | the next number |
//!
//! A launch that answers 10⁹ messages a second would use up its 2⁵⁶ numbers in two years.

use core::ptr::NonNull;

use crate::attach::Corrupt;
use crate::control::Fault;
use crate::ring::Row;
use crate::ring::header::used;
use crate::ring::slots::Slots;
use crate::{Counter, Machine, RingHeader, Word};

/// The counters of the groups of one launch, in device memory. Zeroed memory belongs to no launch; each launch [begins](Self::begin) it anew.
///
/// Safe code cannot change the counters, which determine slot ownership.
///
/// ```compile_fail,E0616
/// # use ringmem_layouts as ringmem;
/// # use ringmem::{HostWord, Word, ring::groups::Groups};
/// let shared = Groups::<HostWord>::new();
/// Word::store(&shared.reserved, 7); // would change the owners of slots
/// ```
#[repr(C, align(128))]
pub struct Groups<C = u64> {
    epoch: C,
    input: C,
    output: C,
    reserved: C,
    published: C,
    refused: C,
    left: C,
    _reserved: [C; 9],
}

crate::layout_table! {
    impl<C> Groups<C>: size 128, align 128;
    0  epoch: C, "group 0: of the launch that the other words belong to";
    8  input: C, "group 0: the input's index of message 0";
    16 output: C, "group 0: the output's index of answer 0";
    24 reserved: C, "any group: the next number to reserve, and flags";
    32 published: C, "the group whose turn it is: the next number to publish";
    40 refused: C, "all groups but 0: messages that they refused";
    48 left: C, "all groups but 0: how many have left";
    56 _reserved: [C; 9], "none: zero";
}

const CLOSED: u64 = 1;
const OVER: u64 = 2;
const FAULT_AT: u32 = 2;
const NUMBER_AT: u32 = 8;

/// The word `reserved`.
#[derive(Clone, Copy)]
struct Reserved(u64);

impl Reserved {
    const fn number(self) -> u64 {
        self.0 >> NUMBER_AT
    }
    const fn over(self) -> Option<Over> {
        match self.0 & ((1 << NUMBER_AT) - 1 - CLOSED) {
            0 => None,
            flags => Some(Over { fault: Fault::from_word(flags >> FAULT_AT) }),
        }
    }
    const fn is_closed(self) -> bool {
        self.0 & CLOSED != 0
    }
}

/// The work of a launch is over: its groups leave, because group 0 has ended it or because of a fault of any group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Over {
    /// The first fault.
    pub fault: Option<Fault>,
}

impl<C: Word> Groups<C> {
    /// Returns words of no launch.
    #[must_use]
    #[allow(clippy::new_without_default, reason = "zeroed memory is the usual way")]
    pub fn new() -> Self {
        let zero = || C::new(0);
        Self {
            epoch: zero(),
            input: zero(),
            output: zero(),
            reserved: zero(),
            published: zero(),
            refused: zero(),
            left: zero(),
            _reserved: core::array::from_fn(|_| zero()),
        }
    }

    /// Group 0, on one lane: begins a launch, closed, or over if `over`. `first` are the input's and the output's next indices.
    ///
    /// # Safety
    ///
    /// No group of another launch accesses these words, and no group of this one before [`has_begun`](Self::has_begun). The launch is the only one of its
    /// epoch that uses them.
    #[inline(always)]
    pub unsafe fn begin(&self, epoch: u32, first: [u64; 2], over: bool) {
        self.input.store(first[0]);
        self.output.store(first[1]);
        self.reserved.store(CLOSED | if over { OVER } else { 0 });
        self.published.store(0);
        self.refused.store(0);
        self.left.store(0);
        // SYNC POINT: launch begun. Pairs with Groups::has_begun.
        self.epoch.store_release(epoch.into());
    }

    /// Returns whether group 0 of this launch has begun it.
    #[must_use]
    #[inline(always)]
    pub fn has_begun(&self, epoch: u32) -> bool {
        // SYNC POINT: launch begun. Pairs with Groups::begin.
        self.epoch.load_acquire() == u64::from(epoch)
    }

    /// Returns the input's and the output's index of message 0.
    #[must_use]
    #[inline(always)]
    pub fn first(&self) -> [u64; 2] {
        [self.input.load(), self.output.load()]
    }

    /// Returns the number of messages whose answers are published.
    #[must_use]
    #[inline(always)]
    pub fn published(&self) -> u64 {
        self.published.load()
    }

    /// Returns the number of messages that groups have reserved.
    #[must_use]
    #[inline(always)]
    pub fn reserved(&self) -> u64 {
        self.flags().number()
    }

    /// Returns whether all that is reserved is published. All stores before the publications are then visible to this lane.
    #[must_use]
    #[inline(always)]
    pub fn is_settled(&self) -> bool {
        let reserved = self.reserved();
        // SYNC POINT: turn passed. Pairs with Group::pass.
        self.published.load_acquire() == reserved
    }

    /// Returns why the work is over, if it is.
    #[must_use]
    #[inline(always)]
    pub fn over(&self) -> Option<Over> {
        self.flags().over()
    }

    /// Returns the number of messages that the groups other than 0 have refused.
    #[must_use]
    #[inline(always)]
    pub fn refused(&self) -> u64 {
        self.refused.load()
    }

    /// Returns how many groups other than 0 have left. All their stores are then visible to this lane.
    #[must_use]
    #[inline(always)]
    pub fn left(&self) -> u64 {
        // SYNC POINT: group left. Pairs with Groups::leave.
        self.left.load_acquire()
    }

    #[inline(always)]
    fn flags(&self) -> Reserved {
        Reserved(self.reserved.load())
    }
}

impl<C: Counter> Groups<C> {
    /// Group 0: lets groups reserve, or not. A reservation that another group is making at the same time comes before or not at all.
    #[inline(always)]
    pub fn permit(&self, is_open: bool) {
        self.change(|word| if is_open { word & !CLOSED } else { word | CLOSED });
    }

    /// Ends the work: group 0 by a command, any group by a fault, of which the first counts.
    #[inline(always)]
    pub fn end(&self, fault: Option<Fault>) {
        let fault = fault.map_or(0, |fault| (fault as u64) << FAULT_AT);
        let faults = ((1 << NUMBER_AT) - 1) & !(CLOSED | OVER);
        self.change(|word| word | CLOSED | OVER | if word & faults == 0 { fault } else { 0 });
    }

    /// A group other than 0: counts refused messages.
    #[inline(always)]
    pub fn refuse(&self, count: u64) {
        self.refused.add_release(count);
    }

    /// A group other than 0, on one lane: the last thing that it does with the rings and these words.
    #[inline(always)]
    pub fn leave(&self) {
        // SYNC POINT: group left. Pairs with Groups::left.
        self.left.add_release(1);
    }

    #[inline(always)]
    fn change(&self, to: impl Fn(u64) -> u64) {
        let mut word = self.reserved.load();
        // Lock-free: each failure is another group's success.
        while let Err(found) = self.reserved.exchange_if(word, to(word)) {
            word = found;
        }
    }
}

/// A ring as the device uses it: it polls the header `own` and publishes in `peer`, which may be the same.
pub struct Side<'a, W, S> {
    /// The polled header.
    pub own: &'a RingHeader<W>,
    /// The header for this side's index.
    pub peer: &'a RingHeader<W>,
    /// The slots.
    pub slots: NonNull<S>,
    /// The number of slots.
    pub capacity: u64,
}

/// How many messages a group reserves at once: an equal part of those waiting, so that others find work too, between two limits.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::ring::groups::Portion;
///
/// let portion = Portion::of(4, 32, 128);
/// assert_eq!([10, 100, 200, 4000].map(|waiting| portion.of_waiting(waiting)), [10, 32, 50, 128]);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Portion {
    shift: u32,
    least: u64,
    most: u64,
}

impl Portion {
    /// Returns the portions of `groups` groups: at least `least` messages if they have arrived, at most `most`.
    #[must_use]
    #[inline(always)]
    pub const fn of(groups: u64, least: u64, most: u64) -> Self {
        // A division by a number that the compiler does not know takes a GPU some hundred instructions; a power of two is as fair.
        let shift = u64::BITS - groups.saturating_sub(1).leading_zeros();
        // Compared with differences of indices, which may be below 0.
        let most = if most > i64::MAX as u64 { i64::MAX as u64 } else { most };
        Self { shift, least, most }
    }

    /// Returns how many of these to reserve.
    #[must_use]
    #[inline(always)]
    pub fn of_waiting(self, waiting: u64) -> u64 {
        let equal = if self.shift < u64::BITS { waiting >> self.shift } else { 0 };
        equal.max(self.least).min(self.most).min(waiting)
    }
}

/// One group, as a part of the consumer of the messages and of the producer of the answers. In a warp, each lane has an equal copy.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// # use core::ptr::NonNull;
/// # use ringmem::ring::{BareSlot, spsc};
/// # use ringmem::{Host, HostWord, RingHeader, RingLayout, SlotCell, Word};
/// use ringmem::ring::groups::{Group, Groups, Portion, Side};
///
/// # let headers = [(); 2].map(|()| RingHeader::<HostWord>::new::<u64>(&RingLayout::of::<u64>(4).unwrap(), 0));
/// # let cells: [[BareSlot<u64>; 4]; 2] = [(); 2].map(|()| [0; 4].map(SlotCell::new));
/// # let slots = cells.each_ref().map(|cells| NonNull::from(cells).cast());
/// # let mut producer = unsafe { spsc::Producer::<u64, Host>::new(&headers[0], &headers[0], slots[0])? };
/// # let mut consumer = unsafe { spsc::Consumer::<u64, Host>::new(&headers[1], &headers[1], slots[1])? };
/// producer.push(20)?; // an `spsc::Producer` of the messages
///
/// let shared = Groups::<HostWord>::new();
/// let side = |ring: usize| Side { own: &headers[ring], peer: &headers[ring], slots: slots[ring], capacity: 4 };
/// // SAFETY: the only group of the only launch; both rings begin at 0.
/// let mut group = unsafe {
///     shared.begin(1, [0, 0], false);
///     Group::<u64, u64, Host, _>::over(side(0), side(1), [0, 0], &shared)
/// };
/// shared.permit(true);
/// let (begin, count) = group.reserve(Portion::of(1, 1, u64::MAX)).expect("not over");
/// assert_eq!((begin, count), (0, 1));
/// // SAFETY: just reserved by this group; written once, and published in its turn.
/// unsafe {
///     group.accept(begin, count);
///     let message = group.messages().at(0).with(|message| *message);
///     group.answers().at(0).with_mut(|slot| slot.write(message + 1));
///     assert!(group.is_its_turn());
///     HostWord::publish_all(group.publications());
///     group.pass();
/// }
/// assert_eq!(consumer.pop(), Ok(21)); // an `spsc::Consumer` of the answers
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Group<'a, I, O, M: Machine, C> {
    shared: &'a Groups<C>,
    input: Reached<'a, M::Word, M::Cell<I>>,
    output: Reached<'a, M::Word, M::Cell<O>>,
    // INVARIANT: the messages with numbers from `begin` to `end`, and the slots of their answers, are this group's, unless it has published them.
    begin: u64,
    end: u64,
}

/// A ring, and how far the host has come in it.
struct Reached<'a, W, S> {
    own: &'a RingHeader<W>,
    peer: &'a RingHeader<W>,
    slots: Slots<'a, S>,
    /// The index of number 0.
    first: u64,
    /// The first number that the host has not reached, as last polled: whose message has not arrived, or whose answer has no free slot.
    limit: u64,
}

impl<'a, W: Word, S> Reached<'a, W, S> {
    /// # Safety
    ///
    /// As [`Group::over`].
    #[inline(always)]
    unsafe fn new(side: Side<'a, W, S>, first: u64) -> Self {
        // SAFETY: the caller promises `capacity` valid cells for `'a`, a power of two that fits `usize`.
        let slots = unsafe { Slots::new(side.slots, side.capacity) };
        Self { own: side.own, peer: side.peer, slots, first, limit: 0 }
    }

    /// Takes over a polled index; `ahead` is the limit that index `first` stands for. Returns the limit, unless the index goes back.
    #[inline(always)]
    const fn reach(&mut self, index: u64, ahead: u64) -> Option<u64> {
        let limit = index.wrapping_sub(self.first).wrapping_add(ahead);
        // Successive loads of one word by one lane never go back.
        if (limit.wrapping_sub(self.limit) as i64) < 0 {
            return None;
        }
        self.limit = limit;
        Some(limit)
    }

    #[inline(always)]
    const fn index(&self, number: u64) -> u64 {
        self.first.wrapping_add(number)
    }

    /// # Safety
    ///
    /// A slot is its cell.
    #[inline(always)]
    const unsafe fn row(&self, number: u64) -> Row<'a, S> {
        // SAFETY: the caller promises that a slot is its cell.
        unsafe { self.slots.row(self.index(number), 0) }
    }
}

/// Returns the indices at which a launch on these rings begins, from the headers.
///
/// # Errors
///
/// [`Corrupt`], for an index of the host.
#[inline(always)]
pub fn first<W: Word, I, O>(input: &Side<'_, W, I>, output: &Side<'_, W, O>) -> Result<[u64; 2], Corrupt> {
    let [head, tail] = [input.peer.consumer.head.load(), output.peer.producer.tail.load()];
    used(head, input.own.producer.tail.load(), input.capacity)?;
    used(output.own.consumer.head.load(), tail, output.capacity)?;
    Ok([head, tail])
}

impl<'a, I, O, M: Machine, C: Counter> Group<'a, I, O, M, C> {
    /// Joins a launch whose message 0 is at these indices.
    ///
    /// # Safety
    ///
    /// For `'a`, `capacity` cells at each side's `slots` are valid and initialised, a power of two that fits `usize`; only the host's producer and consumer
    /// and the groups of this launch, all with this `shared` and this `first`, access them or the headers, whose next indices `first` were when it began.
    #[inline(always)]
    pub unsafe fn over(
        input: Side<'a, M::Word, M::Cell<I>>,
        output: Side<'a, M::Word, M::Cell<O>>,
        first: [u64; 2],
        shared: &'a Groups<C>,
    ) -> Self {
        // SAFETY: the caller promises valid cells, a power of two, at both sides.
        let (input, output) = unsafe { (Reached::new(input, first[0]), Reached::new(output, first[1])) };
        Self { shared, input, output, begin: 0, end: 0 }
    }

    /// Returns the groups' counters.
    #[inline(always)]
    #[must_use]
    pub const fn shared(&self) -> &'a Groups<C> {
        self.shared
    }

    /// Returns the indices of message 0 and of its answer.
    #[inline(always)]
    #[must_use]
    pub const fn first(&self) -> [u64; 2] {
        [self.input.first, self.output.first]
    }

    /// Reserves a portion of the messages that have arrived and whose answers have free slots; returns the first number and how many, perhaps 0. For one
    /// lane; others [`accept`](Self::accept) the result.
    ///
    /// # Errors
    ///
    /// [`Over`]; with [`Fault::Corrupt`], if an index of the host is impossible.
    #[inline(always)]
    pub fn reserve(&mut self, portion: Portion) -> Result<(u64, u64), Over> {
        let corrupt = Over { fault: Some(Fault::Corrupt) };
        loop {
            let word = self.shared.flags();
            if let Some(over) = word.over() {
                return Err(over);
            }
            let begin = word.number();
            if word.is_closed() {
                return Ok((begin, 0));
            }
            let mut arrived = self.input.limit;
            if (arrived.wrapping_sub(begin) as i64) < portion.most as i64 {
                // SYNC POINT: message seen. Pairs with the producer's publication.
                let tail = self.input.own.producer.tail.load_acquire();
                arrived = self.input.reach(tail, 0).ok_or(corrupt)?;
            }
            let waiting = arrived.wrapping_sub(begin);
            if (waiting as i64) <= 0 {
                return Ok((begin, 0));
            }
            let count = portion.of_waiting(waiting);
            let mut free = self.output.limit;
            if (free.wrapping_sub(begin) as i64) < count as i64 {
                // SYNC POINT: slot released. Pairs with the consumer's release.
                let head = self.output.own.consumer.head.load_acquire();
                free = self.output.reach(head, self.output.slots.capacity()).ok_or(corrupt)?;
            }
            let room = free.wrapping_sub(begin);
            if waiting > self.input.slots.capacity() || (room as i64 > 0 && room > self.output.slots.capacity()) {
                // Impossible, unless others have reserved since: the host may be past their publications.
                if self.shared.flags().number() == begin {
                    return Err(corrupt);
                }
                continue;
            }
            let count = if room as i64 <= 0 { 0 } else { count.min(room) };
            // Lock-free: each failure is another group's success.
            if count == 0 || self.shared.reserved.exchange_if(word.0, word.0 + (count << NUMBER_AT)).is_ok() {
                return Ok((begin, count));
            }
        }
    }

    /// Accepts a reservation of one lane on all lanes.
    ///
    /// # Safety
    ///
    /// It came from [`reserve`](Self::reserve) on this group, and a barrier ordered that lane's loads before this call.
    #[inline(always)]
    pub const unsafe fn accept(&mut self, begin: u64, count: u64) {
        self.begin = begin;
        self.end = begin.wrapping_add(count);
    }

    /// Returns the reserved messages.
    #[inline(always)]
    #[must_use]
    pub const fn messages(&self) -> Row<'a, M::Cell<I>> {
        // SAFETY: a slot of an SPSC ring is its cell.
        unsafe { self.input.row(self.begin) }
    }

    /// Returns the slots of their answers.
    #[inline(always)]
    #[must_use]
    pub const fn answers(&self) -> Row<'a, M::Cell<O>> {
        // SAFETY: a slot of an SPSC ring is its cell.
        unsafe { self.output.row(self.begin) }
    }

    /// Returns whether all lower numbers are published.
    #[inline(always)]
    #[must_use]
    pub fn is_its_turn(&self) -> bool {
        // SYNC POINT: turn passed. Pairs with Group::pass.
        self.shared.published.load_acquire() == self.begin
    }

    /// Returns words and values that publish the answers and free the messages' slots, for [`Word::publish_all`].
    ///
    /// # Safety
    ///
    /// Only these values are stored to these words, once, in [its turn](Self::is_its_turn), after every lane has finished with the messages and slots.
    #[inline(always)]
    #[must_use]
    pub unsafe fn publications(&self) -> [(&'a M::Word, u64); 2] {
        [(&self.output.peer.producer.tail, self.output.index(self.end)), (&self.input.peer.consumer.head, self.input.index(self.end))]
    }

    /// Passes the turn on.
    ///
    /// # Safety
    ///
    /// The [`publications`](Self::publications) are stored; one lane calls this once.
    #[inline(always)]
    pub unsafe fn pass(&self) {
        // SYNC POINT: turn passed. Pairs with Group::is_its_turn and Groups::is_settled.
        self.shared.published.add_release(self.end.wrapping_sub(self.begin));
    }

    /// Returns the messages that this group has seen and no group had reserved at the last look.
    #[inline(always)]
    #[must_use]
    pub fn waiting(&self) -> u64 {
        let waiting = self.input.limit.wrapping_sub(self.shared.reserved());
        if (waiting as i64) < 0 { 0 } else { waiting }
    }

    /// Returns the published answers that the consumer had not popped at this group's last poll, at most the capacity.
    #[inline(always)]
    #[must_use]
    pub fn known_unread(&self) -> u64 {
        self.unread_at(self.output.limit)
    }

    /// Returns the published answers that the consumer has not popped, at most the capacity: a figure, from loads without ordering.
    #[inline(always)]
    #[must_use]
    pub fn unread(&self) -> u64 {
        let head = self.output.own.consumer.head.load();
        self.unread_at(head.wrapping_sub(self.output.first).wrapping_add(self.output.slots.capacity()))
    }

    #[inline(always)]
    fn unread_at(&self, limit: u64) -> u64 {
        let capacity = self.output.slots.capacity();
        // The consumer may have popped answers that were published in between.
        let unread = self.shared.published().wrapping_add(capacity).wrapping_sub(limit);
        if (unread as i64) < 0 { 0 } else { unread.min(capacity) }
    }
}
