//! [`Slots`]: a table of values by number. A lookup takes no lock and moves nothing.
//!
//! 1. An [`Index`] identifies one value forever. A reused slot has the next generation; a slot whose generations are used up is retired.
//! 2. Values are accessed through any number of [`Shared`] leases, or one [`Exclusive`] or [`Moved`] lease.
//! 3. A removed value grants no new lease. It is taken out with its last lease, or by the removal if there is none.
//! 4. Only filling and emptying a slot takes a lock. No value is dropped and no foreign code runs under this lock.
//! 5. A lease that is forgotten, or dropped in a forked process, keeps its value.
//!
//! # States of a slot
//!
//! Each slot has a [`Gate`], one word of a generation, flags and a number of leases. The gate decides which caller may access the slot's value:
//!
//! | state | flags | the value | next state |
//! |---|---|---|---|
//! | vacant | `VACANT` | absent, or accessed by the caller that fills or empties the slot | open, by `open` |
//! | open | - | present, no lease | shared, held or moving by a lease; vacant by `close` |
//! | shared | count > 0 | read by `count` leases | open with the last `leave`; closed by `close` |
//! | held | `HELD` | written by one lease | open by `let_go`; closed by `close`, or by `close_alone` of the lease itself |
//! | moving | `HELD`, `MOVING` | written by one caller, which holds it for a copy at most | open by `let_go`; closed by `close_alone` |
//! | closed | `CLOSED` with leases | accessed by the remaining leases | vacant, by the last of them |
//! | retired | `VACANT`, generation 0 | absent | none |
//!
//! In the states open to closed, the value is present. Each change between these is one read-modify-write of the word, so that two callers never get the
//! same value: `close` returns 0 leases to one caller, or the last `leave` or `let_go` returns true to one caller; that caller owns the value and calls
//! `reclaim`. `open` and `vacate` are stores, by the one caller that has the slot.
//!
//! # Order of steps
//!
//! *Filling*: take a number under the lock, store the value, open the gate. With the gate opened first, a lease would read a slot without value. The
//! caller that has a number of a vacant slot is the only one that accesses the slot: the number is in no list.
//!
//! *Emptying* (`reclaim`): take the value out, set the gate to vacant with the next generation, then list the number as vacant. With the number listed
//! first, another thread would fill the slot while this one takes the value out. With the generation unchanged, an old index would find the next
//! value.
//!
//! A request during a move waits; each other refusal is returned. So a copy may hold a value for its own duration without a failure elsewhere, and must
//! not wait for a lease meanwhile.

use core::cell::UnsafeCell;
use core::marker::PhantomData;
use core::mem::ManuallyDrop;
use core::ops::{Deref, DerefMut};
use core::ptr::{self, NonNull};
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use core::{fmt, hint};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::vec::Vec;

use ringmem_layouts::RmwWord;

use crate::error::IdError;
use crate::growing_table::{self, GrowingTable};
use crate::sys::fork::Process;
use crate::{Error, HostWord, Rejected, Result};

/// A slot and its generation. All zero is no index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Index {
    pub index: u32,
    /// From 1.
    pub generation: u32,
}

impl Index {
    pub const fn bits(self) -> u64 {
        (self.generation as u64) << 32 | self.index as u64
    }

    pub const fn from_bits(bits: u64) -> Self {
        Self { index: bits as u32, generation: (bits >> 32) as u32 }
    }
}

/// The table, with `shared`, which each of its leases can reach.
pub(crate) struct Slots<V, S = ()> {
    /// Unique in this process, and very probably among processes. Not 0.
    number: u64,
    /// In a forked process, a thread that does not exist may hold the lock: there, `insert` fails before it takes the lock, and before other calls the caller
    /// asks [`here`](Self::here) or [`own`](Self::own).
    process: Process,
    slots: GrowingTable<Slot<V>>,
    vacancies: Mutex<Vacancies>,
    /// Values removed, leased or not. Outside of the lock, since a removal under leases takes no lock.
    removed: AtomicU64,
    pub shared: S,
}

/// INVARIANT: the value is present unless the gate is vacant. It is accessed by leases, by the caller to which the gate gave it, and in a vacant slot
/// by the caller that took the number.
struct Slot<V> {
    gate: Gate<HostWord>,
    value: UnsafeCell<Option<V>>,
}

// SAFETY: shared leases give `&V` to any thread; exclusive ones, and the end of the last, give `V`. The gate separates them.
unsafe impl<V: Send + Sync> Sync for Slot<V> {}

/// INVARIANT: each number below `fresh` is in `emptied`, or retired, or its slot is filled, or one caller fills or empties the slot.
struct Vacancies {
    emptied: Vec<u32>,
    fresh: u32,
    counts: Counts,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub inserted: u64,
    /// Removed values, leased or not.
    pub removed: u64,
    pub freed: u64,
    pub retired: u64,
}

pub(crate) enum Removed<V> {
    Value(V),
    /// The last of these leases takes the value out.
    UnderLease(u32),
}

impl<V, S> Slots<V, S> {
    pub fn new(shared: S) -> Self {
        Self {
            number: next_number(),
            process: Process::this(),
            slots: GrowingTable::new(),
            vacancies: Mutex::new(Vacancies { emptied: Vec::new(), fresh: 0, counts: Counts::default() }),
            removed: AtomicU64::new(0),
            shared,
        }
    }

    #[inline(always)]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Fails in a forked process.
    #[inline(always)]
    pub fn here(&self) -> Result<()> {
        if self.process.is_this() { Ok(()) } else { Err(forked()) }
    }

    /// Returns the index, unless it is of the table `got`, another one, or this is a forked process.
    #[inline(always)]
    pub fn own(&self, got: u64, index: Index) -> Result<Index> {
        self.here()?;
        let expected = self.number;
        if got == expected { Ok(index) } else { Err(IdError::Foreign { expected, got }.into()) }
    }

    /// Returns the value with [`IdError::Full`], or in a forked process.
    #[allow(clippy::result_large_err, reason = "what comes back is as large as what went in")]
    pub fn insert(&self, value: V) -> Result<Index, Rejected<V>> {
        if let Err(error) = self.here() {
            return Err(Rejected { error, value });
        }
        let Some((index, slot)) = self.vacant() else {
            return Err(Rejected { error: IdError::Full { slots: growing_table::MOST }.into(), value });
        };
        // SAFETY: the slot is vacant; only this caller has its number.
        unsafe { *slot.value.get() = Some(value) };
        let generation = slot.gate.generation();
        slot.gate.open(generation);
        Ok(Index { index, generation })
    }

    fn vacant(&self) -> Option<(u32, &Slot<V>)> {
        let mut vacancies = self.vacancies();
        let index = match vacancies.emptied.pop() {
            Some(index) => index,
            None if vacancies.fresh < growing_table::MOST => {
                vacancies.fresh += 1;
                vacancies.fresh - 1
            }
            None => return None,
        };
        let slot = self.slots.get_or_grow(index, || Slot { gate: Gate::vacant(1), value: UnsafeCell::new(None) })?;
        vacancies.counts.inserted += 1;
        Some((index, slot))
    }

    // Inlined: a lease is then built in place, not moved out of a result.
    #[inline(always)]
    pub fn share(self: &Arc<Self>, index: Index) -> Result<Shared<'_, V, S>> {
        let slot = self.slot(index)?;
        self.admitted(index, || slot.gate.share(index.generation))?;
        Ok(Shared::new(self, slot, index.index))
    }

    pub fn exclusive(self: &Arc<Self>, index: Index) -> Result<Exclusive<'_, V, S>> {
        self.hold(index, Hold::Lease)
    }

    /// Returns an exclusive lease for the duration of a copy: concurrent requests wait. The caller must not wait while it has the lease.
    pub fn briefly(self: &Arc<Self>, index: Index) -> Result<Moved<'_, V, S>> {
        self.hold(index, Hold::Move)
    }

    fn hold<K: Alone>(self: &Arc<Self>, index: Index, hold: Hold) -> Result<Leased<'_, V, S, K>> {
        let slot = self.slot(index)?;
        self.admitted(index, || slot.gate.hold(index.generation, hold))?;
        Ok(Leased::new(self, slot, index.index))
    }

    /// Removes a value, now or with its last lease. Waits for a concurrent move.
    pub fn remove(&self, index: Index) -> Result<Removed<V>> {
        let slot = self.slot(index)?;
        let leases = self.admitted(index, || slot.gate.close(index.generation))?;
        self.removed.fetch_add(1, Relaxed);
        if leases > 0 {
            return Ok(Removed::UnderLease(leases));
        }
        // SAFETY: the gate is closed, without leases.
        let value = unsafe { self.reclaim(slot, index.index) };
        // SAFETY: it was open, so it was filled.
        Ok(Removed::Value(unsafe { value.unwrap_unchecked() }))
    }

    #[inline]
    pub fn contains(&self, index: Index) -> bool {
        self.slot(index).is_ok_and(|slot| slot.gate.open_generation() == Some(index.generation))
    }

    /// Returns the indices of the values that are not removed. Not of one instant.
    pub fn indices(&self) -> impl Iterator<Item = Index> + '_ {
        let fresh = self.vacancies().fresh;
        (0..fresh).filter_map(|index| {
            let generation = self.slots.get(index)?.gate.open_generation()?;
            Some(Index { index, generation })
        })
    }

    pub fn leases(&self) -> u64 {
        let fresh = self.vacancies().fresh;
        (0..fresh).filter_map(|index| self.slots.get(index)).map(|slot| u64::from(slot.gate.leases())).sum()
    }

    pub fn counts(&self) -> Counts {
        Counts { removed: self.removed.load(Relaxed), ..self.vacancies().counts }
    }

    #[inline(always)]
    fn slot(&self, index: Index) -> Result<&Slot<V>> {
        self.slots.get(index.index).ok_or_else(|| self.unknown(index))
    }

    #[cold]
    fn unknown(&self, index: Index) -> Error {
        IdError::Unknown { index: index.index, slots: self.vacancies().fresh }.into()
    }

    /// Waits for a concurrent move.
    #[inline(always)]
    fn admitted<T>(&self, index: Index, ask: impl Fn() -> Result<T, Refusal>) -> Result<T> {
        match ask() {
            Ok(admitted) => Ok(admitted),
            Err(refusal) => self.refused(index, refusal, ask),
        }
    }

    #[cold]
    fn refused<T>(&self, index: Index, mut refusal: Refusal, ask: impl Fn() -> Result<T, Refusal>) -> Result<T> {
        let mut polls = 0_u32;
        while refusal == Refusal::Moving {
            polls += 1;
            if polls < 100 {
                hint::spin_loop()
            } else {
                thread::yield_now()
            }
            match ask() {
                Ok(admitted) => return Ok(admitted),
                Err(next) => refusal = next,
            }
        }
        let slot = index.index;
        Err(match refusal {
            // The slot is vacant, and no value has had this generation yet.
            Refusal::Stale(expected) if expected == index.generation => self.unknown(index),
            Refusal::Stale(expected) => IdError::Stale { index: slot, expected, got: index.generation }.into(),
            Refusal::Closed(leases) => IdError::Released { index: slot, leases }.into(),
            Refusal::Taken(0) | Refusal::Moving => Error::Busy { what: "the buffer has an exclusive lease" },
            Refusal::Taken(_) => Error::Busy { what: "the buffer has a lease" },
        })
    }

    /// Empties a slot, in the order that the module explains.
    ///
    /// # Safety
    ///
    /// The slot is `index`'s; its gate gave the value to the caller.
    #[cold]
    unsafe fn reclaim(&self, slot: &Slot<V>, index: u32) -> Option<V> {
        // SAFETY: the gate gave the value to the caller, as the caller promises, so that no other access exists.
        let value = unsafe { (*slot.value.get()).take() };
        let next = slot.gate.generation().checked_add(1);
        slot.gate.vacate(next.unwrap_or(0));
        let mut vacancies = self.vacancies();
        vacancies.counts.freed += 1;
        match next {
            Some(_) => vacancies.emptied.push(index),
            None => vacancies.counts.retired += 1,
        }
        value
    }

    fn vacancies(&self) -> MutexGuard<'_, Vacancies> {
        self.vacancies.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn next_number() -> u64 {
    static KEYS: OnceLock<RandomState> = OnceLock::new();
    static NEXT: AtomicU64 = AtomicU64::new(0);
    // A forked process has the same keys and differs only in its id.
    let process = KEYS.get_or_init(RandomState::new).hash_one(std::process::id());
    loop {
        let number = process.wrapping_add(NEXT.fetch_add(1, Relaxed));
        if number != 0 {
            return number;
        }
    }
}

fn forked() -> Error {
    Error::Unsupported { what: "a manager of the parent process after fork" }
}

impl<V, S> fmt::Debug for Slots<V, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Slots").field(&self.counts()).finish()
    }
}

/// The kind of a lease.
pub(crate) trait Mode {
    /// Ends the lease; returns whether the gate gave the value to the caller.
    fn end(gate: &Gate<HostWord>) -> bool;
}

/// A lease that excludes all others.
pub(crate) trait Alone: Mode {}

pub(crate) enum Read {}
pub(crate) enum Write {}
pub(crate) enum Move {}

impl Mode for Read {
    #[inline(always)]
    fn end(gate: &Gate<HostWord>) -> bool {
        gate.leave()
    }
}
impl Mode for Write {
    fn end(gate: &Gate<HostWord>) -> bool {
        gate.let_go(Hold::Lease)
    }
}
impl Mode for Move {
    fn end(gate: &Gate<HostWord>) -> bool {
        gate.let_go(Hold::Move)
    }
}
impl Alone for Write {}
impl Alone for Move {}

pub(crate) type Shared<'a, V, S = ()> = Leased<'a, V, S, Read>;
pub(crate) type Exclusive<'a, V, S = ()> = Leased<'a, V, S, Write>;
pub(crate) type Moved<'a, V, S = ()> = Leased<'a, V, S, Move>;

enum Table<'a, V, S> {
    Borrowed(&'a Arc<Slots<V, S>>),
    Owned(Arc<Slots<V, S>>),
}

/// A lease: the value stays in its slot meanwhile.
// INVARIANT: `slot` is the table's slot of this index, where the lease is counted; slots never move.
pub(crate) struct Leased<'a, V, S, K: Mode> {
    table: Table<'a, V, S>,
    slot: NonNull<Slot<V>>,
    index: u32,
    _mode: PhantomData<fn() -> K>,
}

// SAFETY: a lease is `&V`, or `V` for the last one, and `&S`; the table is shared by threads under the same bounds.
unsafe impl<V: Send + Sync, S: Send + Sync, K: Mode> Send for Leased<'_, V, S, K> {}
// SAFETY: a lease is `&V`, or `V` for the last one, and `&S`; the table is shared by threads under the same bounds.
unsafe impl<V: Send + Sync, S: Send + Sync, K: Mode> Sync for Leased<'_, V, S, K> {}

impl<'a, V, S, K: Mode> Leased<'a, V, S, K> {
    #[inline(always)]
    fn new(table: &'a Arc<Slots<V, S>>, slot: &'a Slot<V>, index: u32) -> Self {
        Self { table: Table::Borrowed(table), slot: NonNull::from(slot), index, _mode: PhantomData }
    }

    fn slot(&self) -> &Slot<V> {
        // SAFETY: by the invariant, a slot of the table, which outlives this and never moves its slots.
        unsafe { self.slot.as_ref() }
    }

    pub fn table(&self) -> &Slots<V, S> {
        match &self.table {
            Table::Borrowed(slots) => slots,
            Table::Owned(slots) => slots,
        }
    }

    pub fn shared(&self) -> &S {
        &self.table().shared
    }

    /// Returns a handle of the table, which outlives the lease.
    pub fn handle(&self) -> Arc<Slots<V, S>> {
        match &self.table {
            Table::Borrowed(slots) => Arc::clone(slots),
            Table::Owned(slots) => Arc::clone(slots),
        }
    }

    pub fn id(&self) -> Index {
        Index { index: self.index, generation: self.slot().gate.generation() }
    }

    /// Lets the lease own a handle of the table, which then outlives it even if the lease is forgotten.
    pub fn hold(&mut self) {
        if let Table::Borrowed(slots) = self.table {
            self.table = Table::Owned(Arc::clone(slots));
        }
    }

    pub fn into_owned(self) -> Leased<'static, V, S, K> {
        let this = ManuallyDrop::new(self);
        // SAFETY: `this` is not dropped; its table is not used again.
        let slots = match unsafe { ptr::read(&raw const this.table) } {
            Table::Borrowed(slots) => Arc::clone(slots),
            Table::Owned(slots) => slots,
        };
        Leased { table: Table::Owned(slots), slot: this.slot, index: this.index, _mode: PhantomData }
    }

    /// Drops the value, except in a forked process, where the value is the parent's.
    ///
    /// # Safety
    ///
    /// The gate gave the value to the caller.
    #[cold]
    unsafe fn reclaim(&self) {
        let table = self.table();
        if table.process.is_this() {
            // SAFETY: the gate gave the value to the caller, as it promises; by the invariant, the slot is this index's.
            drop(unsafe { table.reclaim(self.slot(), self.index) });
        }
    }
}

impl<V, S, K: Alone> Leased<'_, V, S, K> {
    /// Takes the value out of the table; returns whether it had not been removed meanwhile.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::Error::Unsupported) in a forked process, where the value stays.
    pub fn remove(self) -> Result<(V, bool)> {
        self.table().here()?;
        let mut this = ManuallyDrop::new(self);
        let gate = &this.slot().gate;
        // The gate is closed before the lease ends: otherwise another caller could lease or remove the value in between. If the gate is closed already,
        // the value was removed and counted meanwhile, and this lease is the last one.
        let was_there = gate.close_alone(gate.generation()).is_ok();
        if was_there {
            this.table().removed.fetch_add(1, Relaxed);
        }
        K::end(gate);
        // SAFETY: the gate is closed; this was the only lease.
        let value = unsafe { this.table().reclaim(this.slot(), this.index) };
        // SAFETY: `this` is not dropped or used again.
        unsafe { ptr::drop_in_place(&raw mut this.table) };
        // SAFETY: a leased slot is filled.
        Ok((unsafe { value.unwrap_unchecked() }, was_there))
    }
}

impl<V, S, K: Mode> Deref for Leased<'_, V, S, K> {
    type Target = V;

    #[inline]
    fn deref(&self) -> &V {
        // SAFETY: a shared lease excludes writers, and an exclusive one is the only lease.
        let value = unsafe { &*self.slot().value.get() };
        // SAFETY: a leased slot is filled.
        unsafe { value.as_ref().unwrap_unchecked() }
    }
}

impl<V, S, K: Alone> DerefMut for Leased<'_, V, S, K> {
    fn deref_mut(&mut self) -> &mut V {
        // SAFETY: the exclusive lease, borrowed mutably.
        let value = unsafe { &mut *self.slot().value.get() };
        // SAFETY: a leased slot is filled.
        unsafe { value.as_mut().unwrap_unchecked() }
    }
}

impl<V, S, K: Mode> Drop for Leased<'_, V, S, K> {
    #[inline]
    fn drop(&mut self) {
        if K::end(&self.slot().gate) {
            // SAFETY: the gate gave the value to this caller.
            unsafe { self.reclaim() };
        }
    }
}

/// The slot is empty, being filled or being emptied.
const VACANT: u64 = 1 << 31;
/// The gate grants no lease.
const CLOSED: u64 = 1 << 30;
/// An exclusive lease exists ...
const HELD: u64 = 1 << 29;
/// ... so briefly that others wait for it.
const MOVING: u64 = 1 << 28;
/// The number of shared leases.
const LEASES: u64 = MOVING - 1;

/// A slot's access word. The high half is the generation; the low half has the flags and the number of shared leases.
///
/// 1. It counts shared leases, or one exclusive lease. Taking one is one read-modify-write.
/// 2. A closed gate grants no lease. One caller gets the value: the one that closed it without leases, or the last to leave.
/// 3. A request with another generation than the present value's fails and changes nothing.
pub(crate) struct Gate<W>(W);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    /// A lease: concurrent requests fail.
    Lease,
    /// A copy: concurrent requests wait.
    Move,
}

impl Hold {
    const fn bits(self) -> u64 {
        match self {
            Self::Lease => HELD,
            Self::Move => HELD | MOVING,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The present value's generation, or the next one's.
    Stale(u32),
    /// The leases left.
    Closed(u32),
    /// The shared leases; 0 for an exclusive one.
    Taken(u32),
    Moving,
}

const fn generation(word: u64) -> u32 {
    (word >> 32) as u32
}

const fn leases(word: u64) -> u32 {
    (word & LEASES) as u32 + (word & HELD != 0) as u32
}

fn is_open(word: u64, asked: u32) -> Result<(), Refusal> {
    if generation(word) != asked || word & VACANT != 0 {
        return Err(Refusal::Stale(generation(word)));
    }
    if word & CLOSED != 0 {
        return Err(Refusal::Closed(leases(word)));
    }
    Ok(())
}

impl<W: RmwWord> Gate<W> {
    pub fn vacant(generation: u32) -> Self {
        Self(W::new((generation as u64) << 32 | VACANT))
    }

    pub fn generation(&self) -> u32 {
        generation(self.0.load())
    }

    pub fn open_generation(&self) -> Option<u32> {
        let word = self.0.load();
        (word & (VACANT | CLOSED) == 0).then_some(generation(word))
    }

    pub fn leases(&self) -> u32 {
        leases(self.0.load())
    }

    /// Opens a vacant gate, for a caller that has filled the slot.
    pub fn open(&self, generation: u32) {
        // SYNC POINT: slot filled. Pairs with share and hold.
        self.0.store_release((generation as u64) << 32);
    }

    /// Makes the gate vacant, for a caller that has taken the value out. The lock of the vacant numbers publishes it to the next caller that fills the
    /// slot.
    pub fn vacate(&self, next: u32) {
        self.0.store((next as u64) << 32 | VACANT);
    }

    #[inline(always)]
    pub fn share(&self, asked: u32) -> Result<(), Refusal> {
        let mut word = self.0.load();
        loop {
            is_open(word, asked)?;
            if word & HELD != 0 {
                return Err(if word & MOVING != 0 { Refusal::Moving } else { Refusal::Taken(0) });
            }
            if word & LEASES == LEASES {
                return Err(Refusal::Taken(leases(word)));
            }
            // SYNC POINT: slot filled. Pairs with open. And value left: pairs with let_go.
            match self.0.compare_exchange(word, word + 1) {
                Ok(_) => return Ok(()),
                Err(now) => word = now,
            }
        }
    }

    /// Ends a shared lease; returns whether the value is the caller's.
    #[inline(always)]
    pub fn leave(&self) -> bool {
        // SYNC POINT: value left. Pairs with hold, close and the last lease.
        let before = self.0.fetch_add(1_u64.wrapping_neg());
        before & (CLOSED | HELD | LEASES) == CLOSED | 1
    }

    pub fn hold(&self, asked: u32, hold: Hold) -> Result<(), Refusal> {
        let mut word = self.0.load();
        loop {
            is_open(word, asked)?;
            if word & (HELD | LEASES) != 0 {
                return Err(if word & MOVING != 0 { Refusal::Moving } else { Refusal::Taken((word & LEASES) as u32) });
            }
            // SYNC POINT: slot filled. Pairs with open. And value left: pairs with leave and let_go.
            match self.0.compare_exchange(word, word | hold.bits()) {
                Ok(_) => return Ok(()),
                Err(now) => word = now,
            }
        }
    }

    /// Ends the exclusive lease; returns whether the value is the caller's.
    pub fn let_go(&self, hold: Hold) -> bool {
        // SYNC POINT: value left. Pairs with share and hold.
        let before = self.0.fetch_add(hold.bits().wrapping_neg());
        before & CLOSED != 0
    }

    /// Closes the gate; returns the leases left. Without any, the value is the caller's.
    pub fn close(&self, asked: u32) -> Result<u32, Refusal> {
        self.close_unless(MOVING, asked)
    }

    /// As [`close`](Self::close), by the exclusive lease, which is the one left.
    pub fn close_alone(&self, asked: u32) -> Result<u32, Refusal> {
        self.close_unless(0, asked)
    }

    fn close_unless(&self, moving: u64, asked: u32) -> Result<u32, Refusal> {
        let mut word = self.0.load();
        loop {
            is_open(word, asked)?;
            if word & moving != 0 {
                return Err(Refusal::Moving);
            }
            // SYNC POINT: value left. Pairs with leave and let_go.
            match self.0.compare_exchange(word, word | CLOSED) {
                Ok(_) => return Ok(leases(word)),
                Err(now) => word = now,
            }
        }
    }
}

#[cfg(test)]
mod tests;
