//! [`Slots`]: a table of values by number. A lookup takes no lock and moves nothing.
//!
//! 1. An [`Index`] identifies one value forever. A reused slot has another generation; it is retired when these are used up.
//! 2. Values are accessed through any number of [`Shared`] leases or one [`Exclusive`].
//! 3. A removed value grants no new lease and is dropped with its last one.
//! 4. Slots are in chunks that never move. Only filling and emptying a slot takes a lock, under which no value is dropped.
//! 5. A lease that is forgotten, or dropped in a forked process, keeps its value.

mod gate;
mod lease;

use core::cell::UnsafeCell;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use core::{fmt, hint};
use std::boxed::Box;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::vec::Vec;

use gate::{Gate, Hold, Refusal};

use super::IdError;
use crate::fork::Process;
use crate::{Error, HostWord, Rejected, Result};

use lease::{Alone, Held, Moved};
pub(crate) use lease::{Exclusive, Shared};

/// As a power of two.
const FIRST_BITS: u32 = 6;
const CHUNKS: usize = 26;
const MOST: u32 = u32::MAX - ((1 << FIRST_BITS) - 1);

/// All zero is no index.
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

pub(crate) struct Slots<V> {
    /// Unique in this process, and very probably among processes. Not 0.
    number: u64,
    /// In a forked process, a thread that does not exist may hold the lock.
    process: Process,
    chunks: [OnceLock<Box<[Slot<V>]>>; CHUNKS],
    vacancies: Mutex<Vacancies>,
    removed: AtomicU64,
}

/// INVARIANT: the value exists unless the gate is vacant. It is accessed by leases, by the caller to which the gate gave it, and in a vacant slot by
/// the caller that took the number.
struct Slot<V> {
    gate: Gate<HostWord>,
    value: UnsafeCell<Option<V>>,
}

// SAFETY: shared leases give `&V` to any thread; exclusive ones, and the end of the last, give `V`. The gate separates them.
unsafe impl<V: Send + Sync> Sync for Slot<V> {}

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
    /// Dropped with the last of these leases.
    Leased(u32),
}

impl<V> Slots<V> {
    pub fn new() -> Self {
        let vacancies = Vacancies { emptied: Vec::new(), fresh: 0, counts: Counts::default() };
        Self {
            number: next_number(),
            process: Process::this(),
            chunks: [const { OnceLock::new() }; CHUNKS],
            vacancies: Mutex::new(vacancies),
            removed: AtomicU64::new(0),
        }
    }

    #[inline(always)]
    pub fn number(&self) -> u64 {
        self.number
    }

    #[inline(always)]
    pub fn here(&self) -> Result<()> {
        if self.process.is_this() { Ok(()) } else { Err(forked()) }
    }

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
            return Err(Rejected { error: IdError::Full { slots: MOST }.into(), value });
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
            None if vacancies.fresh < MOST => {
                vacancies.fresh += 1;
                vacancies.fresh - 1
            }
            None => return None,
        };
        let (chunk, offset) = place(index);
        let slots = self.chunks.get(chunk)?.get_or_init(|| {
            let empty = || Slot { gate: Gate::vacant(1), value: UnsafeCell::new(None) };
            core::iter::repeat_with(empty).take(1 << (chunk as u32 + FIRST_BITS)).collect()
        });
        vacancies.counts.inserted += 1;
        Some((index, slots.get(offset)?))
    }

    #[inline]
    pub fn share(self: &Arc<Self>, index: Index) -> Result<Shared<'_, V>> {
        let slot = self.slot(index)?;
        self.admitted(index, || slot.gate.share(index.generation))?;
        Ok(Shared::new(self, slot, index.index))
    }

    pub fn exclusive(self: &Arc<Self>, index: Index) -> Result<Exclusive<'_, V>> {
        self.hold(index, Hold::Lease)
    }

    /// Exclusive, for the duration of a copy: concurrent requests wait. Do not wait while holding it.
    pub fn briefly(self: &Arc<Self>, index: Index) -> Result<Moved<'_, V>> {
        self.hold(index, Hold::Move)
    }

    fn hold<K: Alone>(self: &Arc<Self>, index: Index, hold: Hold) -> Result<Held<'_, V, K>> {
        let slot = self.slot(index)?;
        self.admitted(index, || slot.gate.hold(index.generation, hold))?;
        Ok(Held::new(self, slot, index.index))
    }

    /// Removes a value, now or with its last lease. Waits for a concurrent move.
    pub fn remove(&self, index: Index) -> Result<Removed<V>> {
        let slot = self.slot(index)?;
        let leases = self.admitted(index, || slot.gate.close(index.generation))?;
        self.removed.fetch_add(1, Relaxed);
        if leases > 0 {
            return Ok(Removed::Leased(leases));
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

    pub fn indices(&self) -> impl Iterator<Item = Index> + '_ {
        let fresh = self.vacancies().fresh;
        (0..fresh).filter_map(|index| {
            let generation = self.at(index)?.gate.open_generation()?;
            Some(Index { index, generation })
        })
    }

    pub fn leases(&self) -> u64 {
        let fresh = self.vacancies().fresh;
        (0..fresh).filter_map(|index| self.at(index)).map(|slot| u64::from(slot.gate.leases())).sum()
    }

    pub fn counts(&self) -> Counts {
        Counts { removed: self.removed.load(Relaxed), ..self.vacancies().counts }
    }

    #[inline(always)]
    fn slot(&self, index: Index) -> Result<&Slot<V>> {
        self.at(index.index).ok_or_else(|| self.unknown(index))
    }

    #[cold]
    fn unknown(&self, index: Index) -> Error {
        IdError::Unknown { index: index.index, slots: self.vacancies().fresh }.into()
    }

    #[inline(always)]
    fn at(&self, index: u32) -> Option<&Slot<V>> {
        let (chunk, offset) = place(index);
        self.chunks.get(chunk)?.get()?.get(offset)
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
        let mut looks = 0_u32;
        while refusal == Refusal::Moving {
            looks += 1;
            if looks < 100 {
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
            // Not yet given to a value.
            Refusal::Stale(expected) if expected == index.generation => self.unknown(index),
            Refusal::Stale(expected) => IdError::Stale { index: slot, expected, got: index.generation }.into(),
            Refusal::Closed(leases) => IdError::Released { index: slot, leases }.into(),
            Refusal::Taken(0) | Refusal::Moving => Error::Busy { what: "the buffer has an exclusive lease" },
            Refusal::Taken(_) => Error::Busy { what: "the buffer has a lease" },
        })
    }

    /// # Safety
    ///
    /// The slot is `index`'s; its gate gave the value to the caller.
    #[cold]
    unsafe fn reclaim(&self, slot: &Slot<V>, index: u32) -> Option<V> {
        // SAFETY: the caller's promise.
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
    // A forked process differs only in its id.
    let process = KEYS.get_or_init(RandomState::new).hash_one(std::process::id());
    loop {
        let number = process.wrapping_add(NEXT.fetch_add(1, Relaxed));
        if number != 0 {
            return number;
        }
    }
}

fn forked() -> Error {
    Error::Unsupported { what: "a registry or manager of the parent process after fork" }
}

const fn place(index: u32) -> (usize, usize) {
    // Counted from the first chunk's length, chunks begin at powers of two.
    let from = index as u64 + (1 << FIRST_BITS);
    let bits = from.ilog2();
    ((bits - FIRST_BITS) as usize, (from - (1 << bits)) as usize)
}

impl<V> fmt::Debug for Slots<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Slots").field(&self.counts()).finish()
    }
}

#[cfg(test)]
mod tests;
