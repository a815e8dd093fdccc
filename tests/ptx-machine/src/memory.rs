//! [`Memory`], under the PTX memory model. Three mechanisms find mistakes:
//!
//! 1. Two lanes: vector clocks compare accesses of the same bytes. Unordered ones are a race, unless both are
//!    reads, or both are strong, in each other's scope, and of exactly the same bytes. The blocks of a grid that have ended precede all accesses of other
//!    grids, as if the host had waited for them.
//! 2. The host writes, a lane reads: a weak or sub-system-scope load of a byte that the host changed is unordered, if the byte was
//!    seen unchanged after the last host write that the lane's acquires cover. A system-scope load that sees the change does not
//!    order it. Each access of a part of eight aligned bytes also sees the other bytes that are known.
//! 3. A lane writes, the host reads: weak and sub-system-scope stores stay invisible to the host until a release of system scope, or earlier: until a later
//!    step stores to the same granule, until an update, or a store of system scope that is not delayed, stores to it, until the table of hidden bytes is full,
//!    or until the block ends. Stores of system scope become visible in any order, and take along other bytes of the granule that the same step has stored;
//!    updates are visible at once. A host that is notified too early finds old bytes. A word that a block accesses at system scope, and later stores with
//!    less, is reported at once.
//!
//! # Happens-before
//!
//! Each lane has a [`View`] with a vector clock: how many steps of every lane, and which machine time of the host, precede its next access. A step ends at
//! each release, and at each barrier (`Block::join`). Order passes from one lane to another in three parts, as in the PTX model:
//!
//! 1. A *release* (a fence, or a releasing store) saves the lane's clock in the view: in `fences` for all later stores, in `releases` for stores to one word.
//! 2. A later strong *store* to a word takes these clocks along, in `released` under the word's address, with the value that it stored.
//! 3. A strong *load* that finds this value moves them into the reader's `pending`. An *acquire* (a fence, or the acquiring load itself) joins them into the
//!    reader's clock.
//!
//! Each part holds at the smallest scope of the three operations; lanes that this scope does not reach get nothing. An atomic update continues the chain of
//! the store that it replaces (a release sequence), so it keeps that store's clocks. If two of the parts were swapped, for example a fence after the store,
//! the reader would find no clock with the value, and its next weak load would be reported as a race.
//!
//! The host executes real code, which the machine does not see. Its order has two halves. Towards the host, a release at system scope shows all hidden bytes
//! that precede it, and joins the lane's clock into `to_host`: whatever the host stores later is stored after these steps, so a lane that acquires such a
//! value gets that clock back (`Sight::host`). From the host, `Clock::host` is a machine time: the host's writes that were first seen up to that time
//! precede the lane. A lane that reads a changed byte without such an acquire has a race, because it could as well have read the old one.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};

use crate::clock::{Clock, Lane};
use crate::code::{Order, Scope, Strength, Type, Update};
use crate::fault::{Answer, Fault, Kind};

const PAGE: u64 = 4096;
const HIDDEN: usize = 1 << 16;

type Page = [Granule; (PAGE / 8) as usize];

#[derive(Default)]
pub struct Hash(u64);

impl Hasher for Hash {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64((*byte).into()));
    }
    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0 ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(26);
    }
    fn write_u32(&mut self, value: u32) {
        self.write_u64(value.into());
    }
}

pub type Map<K, V> = HashMap<K, V, BuildHasherDefault<Hash>>;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Action {
    Load,
    Store,
    Update,
}

/// An access that a later one may race with. A record is dropped when an access after it [stands for](Record::stands_for) it: what races with the first then
/// races with the second.
#[derive(Clone)]
struct Record {
    lane: Lane,
    step: u32,
    line: u32,
    mask: u8,
    kind: Action,
    strength: Strength,
    /// Each lane's first strong read of this write.
    observers: Vec<(Lane, u32)>,
}

impl Record {
    fn is_write(&self) -> bool {
        self.kind != Action::Load
    }

    /// The two do not race: both are strong, each in the scope of the other, and of exactly the same bytes.
    fn is_morally_strong(&self, other: &Self) -> bool {
        match (self.strength, other.strength) {
            (Strength::Strong(a), Strength::Strong(b)) => reaches(a.min(b), self.lane.block, other.lane.block) && self.mask == other.mask,
            _ => false,
        }
    }

    /// What races with an earlier access of these bytes, or of some of them, races with this one. For strong accesses of other bytes, or beyond the scope, this
    /// is false: a third access may be morally strong with only one of them. Accesses at system scope stay, so that a weaker store that follows is reported,
    /// whatever loads come between.
    fn stands_for(&self, earlier: &Self) -> bool {
        match self.strength {
            Strength::Weak => earlier.strength != Strength::Strong(Scope::System),
            strength => strength == earlier.strength && self.is_morally_strong(earlier),
        }
    }
}

/// Bytes of a granule whose values were first seen at the same time.
#[derive(Clone, Default)]
struct Sight {
    mask: u8,
    /// When the values were first seen; 0 for a lane's own values.
    first: u64,
    /// When the host's change of the bytes was found, the time when they were last seen unchanged; 0 if no change was found.
    before: u64,
    /// What the host had acquired at most, when the values were first seen.
    host: Option<Arc<Clock>>,
}

/// Eight aligned bytes. Masks have a bit for each byte. An access of some bytes compares all known bytes with the memory, because a flag and its data may share
/// a granule: if a poll of the flag forgot when the data was last seen, a later load of the data without an acquire would not be reported.
#[derive(Clone, Default)]
struct Granule {
    /// The last value seen, of the bytes in `known`; 0 in others.
    seen: u64,
    known: u8,
    /// Bytes that a lane has written.
    written: u8,
    /// When the bytes in `known` were last seen, all together.
    last: u64,
    /// The line that saw them.
    line: u32,
    // INVARIANT: each byte in `known` is in the mask of exactly one sight, and other bytes are in none. Most granules have one: `others` allocates nothing.
    sight: Sight,
    others: Vec<Sight>,
    records: Vec<Record>,
}

impl Granule {
    fn sights(&self, mask: u8) -> impl Iterator<Item = &Sight> {
        std::iter::once(&self.sight).chain(&self.others).filter(move |sight| sight.mask & mask != 0)
    }

    fn forget(&mut self, mask: u8) {
        self.known &= !mask;
        self.seen &= !spread(mask);
        self.sight.mask &= !mask;
        self.others.retain_mut(|sight| {
            sight.mask &= !mask;
            sight.mask != 0
        });
    }

    /// Adds bytes that are not known.
    fn add(&mut self, sight: Sight, value: u64) {
        self.known |= sight.mask;
        self.seen |= value & spread(sight.mask);
        if self.sight.mask == 0 {
            self.sight = sight;
        } else if (self.sight.first, self.sight.before) == (sight.first, sight.before) {
            // First seen at the same time, so `host` is equal.
            self.sight.mask |= sight.mask;
        } else {
            self.others.push(sight);
        }
    }

    /// Sees the bytes in `mask`, which contains all known ones; `value` is 0 in others. Changed bytes get a sight of their own: an acquire of an unchanged flag
    /// does not cover a later change of its data.
    fn see(&mut self, value: u64, mask: u8, now: u64, host: Option<&Arc<Clock>>) {
        let changed = (value ^ self.seen) & spread(self.known);
        if changed != 0 {
            let (mask, before) = (bytes_of(changed), self.last);
            self.forget(mask);
            self.add(Sight { mask, first: now, before, host: host.cloned() }, value);
        }
        let mask = mask & !self.known;
        if mask != 0 {
            self.add(Sight { mask, first: now, before: 0, host: host.cloned() }, value);
        }
        self.last = now;
    }

    /// Notes a lane's own value of the bytes in `mask`, and sees the other known ones.
    fn overwrite(&mut self, number: u64, value: u64, mask: u8, now: u64, host: Option<&Arc<Clock>>) {
        self.forget(mask);
        if self.known != 0 {
            self.see(read_known(number, self.known, self.known | mask), self.known, now, host);
        }
        self.add(Sight { mask, ..Sight::default() }, value);
        self.last = now;
    }
}

/// Bytes that lanes have stored and the host cannot see yet.
// INVARIANT: all are of one lane and one step, since `hide` shows others first. If `is_delayed`, the granule is in `Memory::delayed`.
struct Hidden {
    bytes: u64,
    mask: u8,
    lane: Lane,
    step: u32,
    /// One of the stores is of system scope, and so becomes visible at any time.
    is_delayed: bool,
}

/// A saved clock, and the scope and block within which it orders.
#[derive(Clone)]
struct Release {
    clock: Arc<Clock>,
    scope: Scope,
    block: u32,
}

impl Release {
    /// Adds it to a list with one clock for each scope and block.
    fn join(self, list: &mut Vec<Self>) {
        match list.iter_mut().find(|other| (other.scope, other.block) == (self.scope, self.block)) {
            Some(other) if Arc::ptr_eq(&other.clock, &self.clock) => {}
            Some(other) => Arc::make_mut(&mut other.clock).join(&self.clock),
            None => list.push(self),
        }
    }
}

/// The clocks that the last strong store to a word carries. A reader of another value gets none. If the host stores the same value, a reader gets these clocks
/// too: the machine does not see that store.
struct Released {
    releases: Vec<Release>,
    value: u64,
}

/// What strong loads of a word have found, until an acquire joins it.
#[derive(Default)]
struct Pending {
    releases: Vec<Release>,
    host: u64,
}

struct Running {
    grid: u64,
    has_ended: bool,
}

#[derive(Default)]
pub struct Memory {
    time: u64,
    pages: Map<u64, Box<Page>>,
    hidden: Map<u64, Hidden>,
    released: Map<u64, Released>,
    to_host: Option<Arc<Clock>>,
    /// Ended blocks stay until their grid ends.
    blocks: Map<u32, Running>,
    faults: Vec<(u64, Fault)>,
    next_block: u32,
    pub poison: Option<u8>,
    /// Values stored to words, by host address.
    pub recorded: Map<u64, Vec<u64>>,
    /// Granules with a store that [`tick`](Self::tick) may show; it may contain granules that are shown already.
    delayed: Vec<u64>,
    random: Random,
}

pub struct Random(u64);

impl Random {
    pub const fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32
    }
}

impl Default for Random {
    fn default() -> Self {
        Self::new(1)
    }
}

pub const SHADOW_PAGE: usize = PAGE as usize;

/// A lane's place in the happens-before order.
pub struct View {
    pub lane: Lane,
    pub clock: Clock,
    /// The last fence of at least each scope.
    fences: [Option<Arc<Clock>>; 3],
    /// Releasing writes, by word.
    releases: Map<u64, Vec<Release>>,
    pending: Map<u64, Pending>,
}

#[derive(Clone, Copy)]
pub struct Access {
    pub line: u32,
    pub address: u64,
    pub place: NonNull<u8>,
    pub bytes: u8,
    pub order: Order,
    pub is_private: bool,
}

/// Apart from its use: the page would take 52 KiB of the stack at every access, and be touched.
#[cold]
#[inline(never)]
fn new_page() -> Box<Page> {
    let granules: Vec<Granule> = (0..PAGE / 8).map(|_| Granule::default()).collect();
    granules.into_boxed_slice().try_into().unwrap_or_else(|_| unreachable!("as many granules as a page has"))
}

fn granule_at(pages: &mut Map<u64, Box<Page>>, number: u64) -> &mut Granule {
    let page = pages.entry(number * 8 / PAGE).or_insert_with(new_page);
    &mut page[(number % (PAGE / 8)) as usize]
}

/// Calls a function with the granules that a range contains, and their places.
fn for_each_granule(pages: &mut Map<u64, Box<Page>>, place: NonNull<u8>, bytes: u64, mut each: impl FnMut(&mut Granule, NonNull<u8>)) {
    let first = place.as_ptr().expose_provenance() as u64;
    let (mut at, end) = (first.next_multiple_of(8), (first + bytes) & !7);
    while at < end {
        let stop = end.min((at / PAGE + 1) * PAGE);
        let page = pages.entry(at / PAGE).or_insert_with(new_page);
        for address in (at..stop).step_by(8) {
            if let Some(place) = pointer(address) {
                each(&mut page[(address % PAGE / 8) as usize], place);
            }
        }
        at = stop;
    }
}

/// The bits of each byte in a mask.
fn spread(mask: u8) -> u64 {
    // A table, since each access needs several.
    const BITS: [u64; 256] = {
        let mut table = [0; 256];
        let mut bit = 0;
        while bit < 256 * 8 {
            let (mask, byte) = (bit / 8, bit % 8);
            if mask >> byte & 1 != 0 {
                table[mask] |= 0xff << (byte * 8);
            }
            bit += 1;
        }
        table
    };
    BITS[mask as usize]
}

/// Reads bytes of a granule: together if all eight are `readable`, otherwise one by one, because the others may be outside all allocations.
fn read_known(number: u64, mask: u8, readable: u8) -> u64 {
    let read = |at: u64, bytes: u8| pointer(number * 8 + at).map_or(0, |place| read(place, bytes));
    if readable == u8::MAX {
        return read(0, 8) & spread(mask);
    }
    (0..8).filter(|byte| mask & (1 << byte) != 0).fold(0, |value, byte| value | read(byte, 1) << (byte * 8))
}

/// A bit for each byte that is not 0.
fn bytes_of(value: u64) -> u8 {
    (0..8).filter(|byte| value >> (byte * 8) & 0xff != 0).fold(0, |mask, byte| mask | 1 << byte)
}

fn read(place: NonNull<u8>, bytes: u8) -> u64 {
    // SAFETY: `translate` returned the place for as many bytes, which outlive the launch, or these are bytes that `read_known` reads: `translate` returned them
    // for an earlier access, and they are in the page of an access that is valid now. Aligned, by `Block::access` or as part of a granule. Concurrent accesses
    // of both sides are atomic, or the race that the machine reports.
    unsafe {
        match bytes {
            1 => AtomicU8::from_ptr(place.as_ptr()).load(Relaxed).into(),
            2 => AtomicU16::from_ptr(place.as_ptr().cast()).load(Relaxed).into(),
            4 => AtomicU32::from_ptr(place.as_ptr().cast()).load(Relaxed).into(),
            _ => AtomicU64::from_ptr(place.as_ptr().cast()).load(std::sync::atomic::Ordering::Acquire),
        }
    }
}

fn write(place: NonNull<u8>, bytes: u8, value: u64) {
    use std::sync::atomic::Ordering::Release;
    // SAFETY: `translate` returned the place for as many bytes, which outlive the launch; aligned, by `Block::access`; concurrent accesses
    // of both sides are atomic, or the race that the machine reports.
    unsafe {
        match bytes {
            1 => AtomicU8::from_ptr(place.as_ptr()).store(value as u8, Release),
            2 => AtomicU16::from_ptr(place.as_ptr().cast()).store(value as u16, Release),
            4 => AtomicU32::from_ptr(place.as_ptr().cast()).store(value as u32, Release),
            _ => AtomicU64::from_ptr(place.as_ptr().cast()).store(value, Release),
        }
    }
}

fn replace(place: NonNull<u8>, bytes: u8, old: u64, new: u64) -> bool {
    use std::sync::atomic::Ordering::AcqRel;
    // SAFETY: `translate` returned the place for as many bytes, which outlive the launch; aligned, by `Block::access`; concurrent accesses
    // of both sides are atomic, or the race that the machine reports.
    unsafe {
        match bytes {
            4 => AtomicU32::from_ptr(place.as_ptr().cast()).compare_exchange(old as u32, new as u32, AcqRel, Relaxed).is_ok(),
            _ => AtomicU64::from_ptr(place.as_ptr().cast()).compare_exchange(old, new, AcqRel, Relaxed).is_ok(),
        }
    }
}

fn pointer(address: u64) -> Option<NonNull<u8>> {
    NonNull::new(std::ptr::with_exposed_provenance_mut(usize::try_from(address).ok()?))
}

impl Access {
    fn host(&self) -> u64 {
        self.place.as_ptr().expose_provenance() as u64
    }
    fn granule(&self) -> u64 {
        self.host() / 8
    }
    fn shift(&self) -> u64 {
        self.host() % 8
    }
    fn mask(&self) -> u8 {
        (((1_u16 << self.bytes) - 1) << self.shift()) as u8
    }
    const fn is_system(&self) -> bool {
        matches!(self.order.strength, Strength::Strong(Scope::System))
    }
}

impl View {
    pub fn new(lane: Lane, clock: Clock) -> Self {
        Self { lane, clock, fences: [const { None }; 3], releases: Map::default(), pending: Map::default() }
    }
}

/// Set in the numbers of a peer device's blocks.
const PEER: u32 = 1 << 31;

fn reaches(scope: Scope, a: u32, b: u32) -> bool {
    match scope {
        Scope::Block => a == b,
        Scope::Device => (a ^ b) & PEER == 0,
        Scope::System => true,
    }
}

impl Memory {
    pub fn new(seed: u64) -> Self {
        Self { random: Random::new(seed), ..Self::default() }
    }

    pub fn now(&mut self) -> u64 {
        self.time += 1;
        self.time
    }

    pub fn begin(&mut self, grid: u64, is_peer: bool) -> u32 {
        if self.blocks.values().all(|block| block.has_ended && block.grid != grid) {
            self.blocks.clear();
            self.faults.clear();
            self.pages.clear();
            self.released.clear();
            self.to_host = None;
        }
        self.next_block += 1;
        let number = self.next_block | if is_peer { PEER } else { 0 };
        self.blocks.insert(number, Running { grid, has_ended: false });
        number
    }

    pub fn end(&mut self, block: u32, groups: u64, fault: Option<&Fault>, shared: Option<(NonNull<u8>, u64)>) {
        self.show(|hidden| hidden.lane.block == block);
        let Some(Running { grid, has_ended }) = self.blocks.get_mut(&block) else { return };
        *has_ended = true;
        let grid = *grid;
        let is_over = |block: &Running| block.grid == grid && block.has_ended;
        if self.blocks.values().filter(|block| is_over(block)).count() as u64 >= groups {
            let to_host = &mut self.to_host;
            self.blocks.retain(|number, block| {
                if let Some(to_host) = to_host.as_mut().filter(|_| is_over(block)) {
                    Arc::make_mut(to_host).forget(*number);
                }
                !is_over(block)
            });
            self.faults.retain(|(faulted, _)| *faulted != grid);
        } else if let Some(fault) = fault {
            self.faults.push((grid, fault.clone()));
        }
        if let Some((place, bytes)) = shared {
            let first = place.as_ptr().addr() as u64 / PAGE;
            for page in first..=first + bytes / PAGE {
                self.pages.remove(&page);
            }
        }
    }

    fn release_to_host(&mut self, clock: &Clock) {
        match &mut self.to_host {
            Some(to_host) => Arc::make_mut(to_host).join(clock),
            None => self.to_host = Some(Arc::new(clock.clone())),
        }
    }

    pub fn knows(&self, place: NonNull<u8>) -> bool {
        self.pages.contains_key(&(place.as_ptr().addr() as u64 / PAGE))
    }

    /// Notes bytes of the host that no lane has accessed yet as seen now.
    pub fn look(&mut self, place: NonNull<u8>, bytes: u64) {
        let now = self.now();
        let Self { pages, to_host, .. } = self;
        for_each_granule(pages, place, bytes, |granule, place| {
            if granule.known != u8::MAX {
                granule.see(read(place, 8), u8::MAX, now, to_host.as_ref());
            }
        });
    }

    /// Notes bytes that the host has not changed since as seen unchanged now. Changed ones are left to the next access.
    pub fn look_again(&mut self, place: NonNull<u8>, bytes: u64) {
        let now = self.now();
        for_each_granule(&mut self.pages, place, bytes, |granule, place| {
            if read(place, 8) & spread(granule.known) == granule.seen {
                granule.last = now;
            }
        });
    }

    fn show(&mut self, which: impl Fn(&Hidden) -> bool) {
        let now = self.now();
        let shown: Vec<u64> = self.hidden.iter().filter(|(_, hidden)| which(hidden)).map(|(granule, _)| *granule).collect();
        for granule in shown {
            self.show_granule(granule, now);
        }
    }

    /// Fewer than 8 bytes are written one by one: the host may see a part of a store, even of a strong one of 4 bytes that was delayed.
    fn show_granule(&mut self, number: u64, now: u64) {
        let Some(hidden) = self.hidden.remove(&number) else { return };
        let Some(place) = pointer(number * 8) else { return };
        if hidden.mask == u8::MAX {
            write(place, 8, hidden.bytes);
        } else {
            for byte in (0..8).filter(|byte| hidden.mask & (1 << byte) != 0) {
                if let Some(place) = pointer(number * 8 + byte) {
                    write(place, 1, hidden.bytes >> (byte * 8) & 0xff);
                }
            }
        }
        let Self { pages, to_host, .. } = self;
        granule_at(pages, number).overwrite(number, hidden.bytes, hidden.mask, now, to_host.as_ref());
    }

    /// Lets a delayed store become visible at random; fails after a fault of the grid.
    pub fn tick(&mut self, grid: u64) -> Answer {
        if let Some((_, fault)) = self.faults.iter().find(|(faulted, _)| *faulted == grid) {
            return Err(fault.clone());
        }
        let random = self.random.next();
        if random & 3 == 0 && !self.delayed.is_empty() {
            let number = self.delayed.swap_remove(random as usize / 4 % self.delayed.len());
            // The store may be visible already, by a release; what is hidden then are later stores, which wait for a fence.
            if self.hidden.get(&number).is_some_and(|hidden| hidden.is_delayed) {
                let now = self.now();
                self.show_granule(number, now);
            }
        }
        Ok(())
    }

    /// Compares an access with the earlier ones of its granule, and remembers it.
    fn record(&mut self, order: &View, access: &Access, kind: Action) -> Answer {
        let record = Record {
            lane: order.lane,
            step: order.clock.get(order.lane),
            line: access.line,
            mask: access.mask(),
            kind,
            strength: access.order.strength,
            observers: Vec::new(),
        };
        let (is_write, own) = (record.is_write(), order.lane.block);
        let Self { blocks, pages, .. } = self;
        let number = access.granule();
        let granule = granule_at(pages, number);
        let mut race = None;
        let mut mixed = None;
        granule.records.retain(|earlier| {
            let block = earlier.lane.block;
            let precedes = |lane, step| lane == order.lane || order.clock.covers(lane, step);
            let is_before = precedes(earlier.lane, earlier.step)
                || blocks.get(&block).is_none_or(|block| block.has_ended && blocks.get(&own).is_none_or(|own| own.grid != block.grid))
                || earlier.observers.iter().any(|(lane, step)| precedes(*lane, *step));
            if !is_before && !record.is_morally_strong(earlier) && (earlier.is_write() || is_write) && earlier.mask & record.mask != 0 {
                race = Some(earlier.clone());
            }
            let is_shared = earlier.strength == Strength::Strong(Scope::System) && record.strength != earlier.strength;
            if kind == Action::Store && is_shared && !access.is_private && block == own && earlier.mask & record.mask != 0 {
                mixed = Some(earlier.clone());
            }
            // The accesses of an ended grid precede all later ones.
            let is_replaced = || record.stands_for(earlier) || !blocks.contains_key(&block);
            !(is_before && earlier.mask & !record.mask == 0 && (is_write || !earlier.is_write()) && is_replaced())
        });
        if kind != Action::Store && record.strength != Strength::Weak {
            observe_writes(&mut granule.records, &record);
        }
        if is_write {
            granule.written |= record.mask;
        }
        granule.records.push(record);
        if race.is_none()
            && let Some(earlier) = mixed
        {
            return Err(Fault::new(
                Kind::Race,
                access.line,
                format!(
                    "data race at {:#x}: line {} accesses the word at system scope, so the host may read it, and this store is weaker",
                    access.address, earlier.line
                ),
            ));
        }
        let Some(earlier) = race else { return Ok(()) };
        let verb = |is_write, strength| match (is_write, strength) {
            (true, Strength::Weak) => "a weak store",
            (false, Strength::Weak) => "a weak load",
            (true, _) => "a strong store",
            (false, _) => "a strong load",
        };
        Err(Fault::new(
            Kind::Race,
            access.line,
            format!(
                "data race at {:#x}: {} of lane {} of block {}, and {} of lane {} of block {} at line {}, without order between them",
                access.address,
                verb(is_write, access.order.strength),
                order.lane.index,
                own,
                verb(earlier.is_write(), earlier.strength),
                earlier.lane.index,
                earlier.lane.block,
                earlier.line,
            ),
        ))
    }

    /// Reads the bytes that a lane sees, the hidden ones of all lanes included; fails if they may be the host's and are not ordered. Afterwards the granule
    /// knows these bytes and those that it knew, apart from hidden ones, as of now. A failure ends the grid.
    fn observe(&mut self, order: &View, access: &Access) -> Answer<u64> {
        let now = self.now();
        let raw = read(access.place, access.bytes) << (access.shift() * 8);
        let mask = access.mask();
        let mut hidden_mask = 0;
        let mut value = raw;
        if let Some(hidden) = self.hidden.get(&access.granule()) {
            let bits = spread(hidden.mask);
            (hidden_mask, value) = (hidden.mask, raw & !bits | hidden.bytes & bits);
        }
        let Self { pages, to_host, poison, .. } = self;
        let number = access.granule();
        let granule = granule_at(pages, number);
        if granule.known & hidden_mask != 0 {
            granule.forget(hidden_mask);
        }
        let (visible, others) = (mask & !hidden_mask, granule.known & !mask);
        let mut seen = raw & spread(visible);
        if others != 0 {
            seen |= read_known(number, others, mask | others);
        }
        granule.see(seen, visible | others, now, to_host.as_ref());
        if !access.is_system() && granule.sights(visible).any(|sight| sight.before > order.clock.host) {
            let seen = if granule.line == 0 { String::new() } else { format!(" by line {}", granule.line) };
            return Err(Fault::new(
                Kind::Race,
                access.line,
                format!(
                    "data race at {:#x}: the host changed the bytes after they were last seen{seen}, and lane {} has acquired nothing from the host \
                     since (or the scope of this access is smaller than the system)",
                    access.address, order.lane.index
                ),
            ));
        }
        if let Some(poison) = *poison
            && !access.is_system()
            && access.bytes >= 4
            && (mask & (granule.written | hidden_mask)) == 0
            && (raw ^ u64::from_le_bytes([poison; 8])) & spread(mask) == 0
        {
            return Err(Fault::new(
                Kind::Unwritten,
                access.line,
                format!("loads {} bytes at {:#x} that were never written", access.bytes, access.address),
            ));
        }
        if access.is_private && mask & !(granule.written | hidden_mask) != 0 {
            return Err(Fault::new(
                Kind::Unwritten,
                access.line,
                format!("loads {} bytes of shared memory that were never written", access.bytes),
            ));
        }
        granule.line = access.line;
        Ok((value & spread(mask)) >> (access.shift() * 8))
    }

    pub fn load(&mut self, order: &mut View, access: &Access) -> Answer<u64> {
        let value = self.observe(order, access)?;
        self.record(order, access, Action::Load)?;
        if let Strength::Strong(scope) = access.order.strength {
            self.synchronise(order, access, scope, value);
            if access.order.acquires {
                acquire(order, scope, Some(access.host()));
            }
        }
        Ok(value)
    }

    /// Collects the clocks that come with a loaded value.
    fn synchronise(&mut self, order: &mut View, access: &Access, scope: Scope, value: u64) {
        let key = access.host();
        let mut from_lane = false;
        if let Some(released) = self.released.get(&key)
            && released.value == value
        {
            from_lane = true;
            for release in &released.releases {
                let scope = scope.min(release.scope);
                if reaches(scope, order.lane.block, release.block) {
                    Release { scope, ..release.clone() }.join(&mut order.pending.entry(key).or_default().releases);
                }
            }
        }
        if scope == Scope::System {
            let newest = granule_at(&mut self.pages, access.granule()).sights(access.mask()).max_by_key(|sight| sight.first);
            let pending = order.pending.entry(key).or_default();
            if let Some(Sight { first, host, .. }) = newest {
                pending.host = pending.host.max(*first);
                if !from_lane && let Some(clock) = host.clone() {
                    Release { clock, scope, block: order.lane.block }.join(&mut pending.releases);
                }
            }
        }
    }

    pub fn store(&mut self, order: &mut View, access: &Access, value: u64) -> Answer {
        if access.order.releases {
            let Strength::Strong(scope) = access.order.strength else { return Ok(()) };
            self.release(order, scope, Some(access.host()));
        }
        self.record(order, access, Action::Store)?;
        let number = access.granule();
        let is_delayed = self.random.next() & 3 == 0;
        if access.is_system() && !is_delayed {
            let now = self.now();
            self.show_granule(number, now);
            self.put(access, value, now);
        } else {
            self.hide(order, access, value);
            if access.is_system() {
                self.delayed.push(number);
                if let Some(hidden) = self.hidden.get_mut(&number) {
                    hidden.is_delayed = true;
                }
            }
        }
        self.carry(order, access, value, None);
        Ok(())
    }

    /// Attaches the clocks of earlier releases to a stored value; `before` are those of the value that an update has replaced.
    fn carry(&mut self, order: &View, access: &Access, value: u64, before: Option<Released>) {
        if let Some(recorded) = self.recorded.get_mut(&(access.granule() * 8)) {
            recorded.push(value << (access.shift() * 8));
        }
        let Strength::Strong(scope) = access.order.strength else {
            self.released.remove(&access.host());
            return;
        };
        let mut releases = Vec::new();
        for release in before.into_iter().flat_map(|before| before.releases) {
            Release { scope: release.scope.min(scope), ..release }.join(&mut releases);
        }
        let mut wider = None;
        for of in [Scope::System, Scope::Device, Scope::Block].into_iter().filter(|of| *of <= scope) {
            let Some(fence) = &order.fences[of as usize] else { continue };
            if wider.replace(fence).is_none_or(|wider| !Arc::ptr_eq(wider, fence)) {
                Release { clock: Arc::clone(fence), scope: of, block: order.lane.block }.join(&mut releases);
            }
        }
        for release in order.releases.get(&access.host()).into_iter().flatten() {
            Release { scope: release.scope.min(scope), ..release.clone() }.join(&mut releases);
        }
        if releases.is_empty() {
            self.released.remove(&access.host());
        } else {
            self.released.insert(access.host(), Released { releases, value });
        }
    }

    fn put(&mut self, access: &Access, value: u64, now: u64) {
        write(access.place, access.bytes, value);
        self.saw(access, value, now);
    }

    fn saw(&mut self, access: &Access, value: u64, now: u64) {
        let Self { pages, to_host, .. } = self;
        let number = access.granule();
        let granule = granule_at(pages, number);
        granule.overwrite(number, value << (access.shift() * 8), access.mask(), now, to_host.as_ref());
        granule.line = access.line;
    }

    /// Stores bytes that the host does not see until a release or a delay shows them.
    fn hide(&mut self, order: &View, access: &Access, value: u64) {
        let number = access.granule();
        if self.hidden.len() >= HIDDEN {
            self.show(|_| true);
        }
        let (mask, shift, step) = (access.mask(), access.shift() * 8, order.clock.get(order.lane));
        // Bytes of an earlier step are shown first: together with later bytes they would wait for a later release.
        if self.hidden.get(&number).is_some_and(|hidden| (hidden.lane, hidden.step) != (order.lane, step)) {
            let now = self.now();
            self.show_granule(number, now);
        }
        let bits = spread(mask);
        let hidden = self.hidden.entry(number).or_insert(Hidden { bytes: 0, mask: 0, lane: order.lane, step, is_delayed: false });
        hidden.bytes = hidden.bytes & !bits | value << shift & bits;
        hidden.mask |= mask;
    }

    pub fn update(&mut self, order: &mut View, access: &Access, update: Update, ty: Type, sources: [u64; 2]) -> Answer<u64> {
        let Strength::Strong(scope) = access.order.strength else {
            return Err(Fault::new(Kind::Syntax, access.line, "an update without a scope"));
        };
        if access.order.releases {
            self.release(order, scope, Some(access.host()));
        }
        let now = self.now();
        self.show_granule(access.granule(), now);
        let old = loop {
            let old = self.observe(order, access)?;
            let new = crate::alu::update(update, ty, old, sources)
                .ok_or_else(|| Fault::new(Kind::UnknownOpcode, access.line, "the machine does not implement this update"))?;
            if replace(access.place, access.bytes, old, new) {
                self.record(order, access, Action::Update)?;
                self.synchronise(order, access, scope, old);
                let before = self.released.remove(&access.host()).filter(|released| released.value == old);
                // Later than the old value was seen: the update's acquire does not cover the host's writes from here on.
                let now = self.now();
                self.saw(access, new, now);
                self.carry(order, access, new, before);
                break old;
            }
        };
        if access.order.acquires {
            acquire(order, scope, Some(access.host()));
        }
        Ok(old)
    }

    pub fn fence(&mut self, order: &mut View, scope: Scope, [acquires, releases]: [bool; 2]) {
        if acquires {
            acquire(order, scope, None);
        }
        if releases {
            self.release(order, scope, None);
        }
    }

    fn release(&mut self, order: &mut View, scope: Scope, word: Option<u64>) {
        let clock = Arc::new(order.clock.clone());
        if scope == Scope::System {
            self.show(|hidden| clock.covers(hidden.lane, hidden.step));
            self.release_to_host(&clock);
        }
        match word {
            Some(word) => {
                let releases = order.releases.entry(word).or_default();
                releases.retain(|release| release.scope > scope);
                releases.push(Release { clock, scope, block: order.lane.block });
            }
            None => {
                order.fences[..=scope as usize].fill(Some(clock));
                order.releases.retain(|_, releases| releases.iter().any(|release| release.scope > scope));
            }
        }
        order.clock.step(order.lane.index);
    }
}

/// Notes that a lane has read a write: what follows the read is ordered after it (PTX's observation order). An update that stands for the write that it
/// has read replaces it.
fn observe_writes(records: &mut Vec<Record>, read: &Record) {
    for at in (0..records.len()).rev() {
        let write = &mut records[at];
        if !write.is_write() || write.mask != read.mask {
            continue;
        }
        let is_last = write.kind == Action::Store;
        if read.is_write() && read.stands_for(write) {
            records.remove(at);
        } else if write.lane != read.lane && write.observers.iter().all(|(lane, _)| *lane != read.lane) {
            write.observers.push((read.lane, read.step));
        }
        if is_last {
            break;
        }
    }
}

/// Joins what earlier loads have found into the lane's clock; with `word`, of that word alone. What the scope does not reach stays.
fn acquire(order: &mut View, scope: Scope, word: Option<u64>) {
    let View { lane, clock, pending, .. } = order;
    let mut leaves_some = |pending: &mut Pending| {
        if scope == Scope::System {
            clock.host = clock.host.max(std::mem::take(&mut pending.host));
        }
        pending.releases.retain(|release| {
            let is_taken = reaches(scope.min(release.scope), lane.block, release.block);
            if is_taken {
                clock.join(&release.clock);
            }
            !is_taken
        });
        pending.host != 0 || !pending.releases.is_empty()
    };
    match word {
        None => pending.retain(|_, pending| leaves_some(pending)),
        Some(word) => {
            if pending.get_mut(&word).is_some_and(|pending| !leaves_some(pending)) {
                pending.remove(&word);
            }
        }
    }
}
