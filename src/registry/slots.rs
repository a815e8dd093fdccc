//! [`Slots`]: values by number. Looking one up takes no lock and moves nothing.
//!
//! 1. An [`Index`] names one value for ever: its slot is used again, under another generation. A slot whose generations are used up is not.
//! 2. A value is reached through leases, counted in its slot's word: any number of [`Shared`] ones or one [`Exclusive`]. A lookup is one
//!    read-modify-write of that word.
//! 3. What is removed admits nobody from then on, and is dropped when the last lease is given back.
//! 4. Slots are in chunks, each twice as long as the one before, that never move. Only filling and emptying a slot takes a lock, and no
//!    value is dropped under it.
//! 5. A lease that is forgotten keeps its value as long as the table lives. Nothing worse comes of it. So does one that goes in a fork of the process.

mod gate;
mod lease;

use core::cell::UnsafeCell;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use core::{fmt, hint};
use std::boxed::Box;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::vec::Vec;

use gate::{Gate, Hold, Refusal};

use super::IdError;
use crate::fork::Process;
use crate::{Error, HostWord, Rejected, Result};

pub(crate) use lease::{Exclusive, Shared};

/// Slots of the first chunk, as a power of two.
const FIRST_BITS: u32 = 6;
const CHUNKS: usize = 26;
/// Slots in all: what so many chunks have together.
const MOST: u32 = u32::MAX - ((1 << FIRST_BITS) - 1);

/// Which slot, and which of the values that it has had. All zero is none's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Index {
    pub index: u32,
    /// From 1.
    pub generation: u32,
}

impl Index {
    /// As one number: the generation in the high half.
    pub const fn bits(self) -> u64 {
        (self.generation as u64) << 32 | self.index as u64
    }

    pub const fn from_bits(bits: u64) -> Self {
        Self { index: bits as u32, generation: (bits >> 32) as u32 }
    }
}

/// A table of values. It is used through an [`Arc`], which leases may hold.
pub(crate) struct Slots<V> {
    /// The one that it is of. In a fork somebody who is not there may hold the lock for ever.
    process: Process,
    chunks: [OnceLock<Box<[Slot<V>]>>; CHUNKS],
    vacancies: Mutex<Vacancies>,
    removed: AtomicU64,
}

/// INVARIANT: the value is there unless the gate is vacant; it is touched by who has a lease, by who the gate told that it is its own, and
/// in a vacant slot by who took its number from the vacancies.
struct Slot<V> {
    gate: Gate<HostWord>,
    value: UnsafeCell<Option<V>>,
}

// SAFETY: shared leases give `&V` to any thread; exclusive ones, and giving back the last, `V` itself. The gate keeps them apart.
unsafe impl<V: Send + Sync> Sync for Slot<V> {}

/// What is empty, and what has been.
struct Vacancies {
    emptied: Vec<u32>,
    /// The first that was never filled.
    fresh: u32,
    counts: Counts,
}

/// What a table has done. Exact while no other thread uses it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Values that were put in.
    pub inserted: u64,
    /// Values that were removed, among them those that leases still keep.
    pub removed: u64,
    /// Values that have gone.
    pub freed: u64,
    /// Slots that have no generation left.
    pub retired: u64,
}

/// What became of a value that was removed.
pub(crate) enum Removed<V> {
    /// Nobody had a lease.
    Value(V),
    /// It goes with the last of so many leases.
    Leased(u32),
}

impl<V> Slots<V> {
    pub fn new() -> Self {
        let vacancies = Vacancies { emptied: Vec::new(), fresh: 0, counts: Counts::default() };
        Self {
            process: Process::this(),
            chunks: [const { OnceLock::new() }; CHUNKS],
            vacancies: Mutex::new(vacancies),
            removed: AtomicU64::new(0),
        }
    }

    /// Puts a value in.
    ///
    /// # Errors
    ///
    /// The value, with [`IdError::Full`].
    #[allow(clippy::result_large_err, reason = "what comes back is as large as what went in")]
    pub fn insert(&self, value: V) -> Result<Index, Rejected<V>> {
        let Some((index, slot)) = self.vacant() else {
            return Err(Rejected { error: IdError::Full { slots: MOST }.into(), value });
        };
        // SAFETY: the slot is vacant, and its number is nobody else's.
        unsafe { *slot.value.get() = Some(value) };
        let generation = slot.gate.generation();
        slot.gate.open(generation);
        Ok(Index { index, generation })
    }

    /// A slot to fill. It counts as filled.
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

    /// A shared lease.
    ///
    /// # Errors
    ///
    /// [`IdError`] for what is not there, [`Error::Busy`] while somebody has it alone.
    #[inline]
    pub fn share(self: &Arc<Self>, index: Index) -> Result<Shared<'_, V>> {
        let slot = self.slot(index)?;
        self.admitted(index, || slot.gate.share(index.generation))?;
        Ok(Shared::new(self, slot, index.index))
    }

    /// The exclusive lease.
    ///
    /// # Errors
    ///
    /// As [`share`](Self::share), and [`Error::Busy`] while it has any lease.
    pub fn exclusive(self: &Arc<Self>, index: Index) -> Result<Exclusive<'_, V>> {
        self.hold(index, Hold::Lease)
    }

    /// The exclusive lease for as long as a copy takes: whoever asks for the value meanwhile waits. Drop it soon, and do not wait with it.
    ///
    /// # Errors
    ///
    /// As [`exclusive`](Self::exclusive).
    pub fn briefly(self: &Arc<Self>, index: Index) -> Result<Exclusive<'_, V>> {
        self.hold(index, Hold::Move)
    }

    fn hold(self: &Arc<Self>, index: Index, hold: Hold) -> Result<Exclusive<'_, V>> {
        let slot = self.slot(index)?;
        self.admitted(index, || slot.gate.hold(index.generation, hold))?;
        Ok(Exclusive::new(self, slot, index.index, hold))
    }

    /// Takes a value out of the table: at once if nobody has a lease, else when the last is given back. Waits for who moves it: that is no lease
    /// that anybody would know of.
    ///
    /// # Errors
    ///
    /// [`IdError`] for what is not there.
    pub fn remove(&self, index: Index) -> Result<Removed<V>> {
        let slot = self.slot(index)?;
        let leases = self.admitted(index, || slot.gate.close(index.generation))?;
        self.removed.fetch_add(1, Relaxed);
        if leases > 0 {
            return Ok(Removed::Leased(leases));
        }
        // SAFETY: the gate is closed and nobody was left.
        let value = unsafe { self.reclaim(slot, index.index) };
        // SAFETY: it was open, so it was filled.
        Ok(Removed::Value(unsafe { value.unwrap_unchecked() }))
    }

    /// Whether a lease of it could be had, now or when somebody is done. Costs one load.
    #[inline]
    pub fn contains(&self, index: Index) -> bool {
        self.slot(index).is_ok_and(|slot| slot.gate.open_generation() == Some(index.generation))
    }

    /// What is there now. What comes or goes meanwhile may be missing or among it.
    pub fn indices(&self) -> impl Iterator<Item = Index> + '_ {
        let fresh = self.vacancies().fresh;
        (0..fresh).filter_map(|index| {
            let generation = self.at(index)?.gate.open_generation()?;
            Some(Index { index, generation })
        })
    }

    /// Leases that there are, exclusive or not: looks at every slot.
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

    /// What a gate says, after waiting for who moves the value. A refusal becomes an error.
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
            // Nothing has gone by that id yet.
            Refusal::Stale(expected) if expected == index.generation => self.unknown(index),
            Refusal::Stale(expected) => IdError::Stale { index: slot, expected, got: index.generation }.into(),
            Refusal::Closed(leases) => IdError::Released { index: slot, leases }.into(),
            Refusal::Taken(0) | Refusal::Moving => Error::Busy { what: "the buffer has an exclusive lease" },
            Refusal::Taken(_) => Error::Busy { what: "the buffer has a lease" },
        })
    }

    /// Empties a slot and makes it vacant.
    ///
    /// # Safety
    ///
    /// The slot is `index`'s, and its gate told the caller that the value is its own.
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

/// Which chunk a slot is in, and where.
const fn place(index: u32) -> (usize, usize) {
    // Counted from the length of the first, the chunks begin at powers of two.
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
