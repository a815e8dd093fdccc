//! Leases of a slot's value: [`Shared`] and [`Exclusive`], which borrow the table or own a handle of it.

use core::mem::ManuallyDrop;
use core::ops::{Deref, DerefMut};
use core::ptr::{self, NonNull};
use core::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;

use super::gate::Hold;
use super::{Index, Slot, Slots};
use crate::Result;

/// The table of a lease.
enum Table<'a, V> {
    Borrowed(&'a Arc<Slots<V>>),
    Owned(Arc<Slots<V>>),
}

impl<V> Table<'_, V> {
    fn slots(&self) -> &Slots<V> {
        match self {
            Self::Borrowed(slots) => slots,
            Self::Owned(slots) => slots,
        }
    }

    fn into_owned(self) -> Table<'static, V> {
        Table::Owned(match self {
            Self::Borrowed(slots) => Arc::clone(slots),
            Self::Owned(slots) => slots,
        })
    }
}

/// INVARIANT: `slot` is the table's slot of this index; slots never move, and the lease is counted there.
struct Place<'a, V> {
    table: Table<'a, V>,
    slot: NonNull<Slot<V>>,
    index: u32,
}

// SAFETY: a lease is `&V`, or `V` for the last one, and the table is shared.
unsafe impl<V: Send + Sync> Send for Place<'_, V> {}
// SAFETY: as above.
unsafe impl<V: Send + Sync> Sync for Place<'_, V> {}

impl<'a, V> Place<'a, V> {
    fn new(table: &'a Arc<Slots<V>>, slot: &'a Slot<V>, index: u32) -> Self {
        Self { table: Table::Borrowed(table), slot: NonNull::from(slot), index }
    }

    fn slot(&self) -> &Slot<V> {
        // SAFETY: the invariant; the table lives at least as long as this.
        unsafe { self.slot.as_ref() }
    }

    fn id(&self) -> Index {
        Index { index: self.index, generation: self.slot().gate.generation() }
    }

    /// # Safety
    ///
    /// The gate gave the value to the caller.
    #[cold]
    unsafe fn reclaim(&self) -> Option<V> {
        // SAFETY: the caller's promise, and the invariant.
        unsafe { self.table.slots().reclaim(self.slot(), self.index) }
    }

    /// Drops the value, except in a forked process.
    ///
    /// # Safety
    ///
    /// As [`reclaim`](Self::reclaim).
    #[cold]
    unsafe fn end(&self) {
        if self.table.slots().process.is_this() {
            // SAFETY: the caller's promise.
            drop(unsafe { self.reclaim() });
        }
    }

    fn into_owned(self) -> Place<'static, V> {
        Place { table: self.table.into_owned(), slot: self.slot, index: self.index }
    }
}

/// A shared lease: the value stays in place until this is dropped.
pub(crate) struct Shared<'a, V> {
    place: Place<'a, V>,
}

impl<'a, V> Shared<'a, V> {
    /// Returns a lease that the slot's gate has counted.
    #[inline(always)]
    pub(super) fn new(table: &'a Arc<Slots<V>>, slot: &'a Slot<V>, index: u32) -> Self {
        Self { place: Place::new(table, slot, index) }
    }

    pub fn id(&self) -> Index {
        self.place.id()
    }

    /// Returns the number of the table.
    pub fn number(&self) -> u64 {
        self.place.table.slots().number
    }

    /// Makes the lease own a handle of the table, so that the table outlives it even if it is forgotten.
    pub fn hold(&mut self) {
        if let Table::Borrowed(slots) = self.place.table {
            self.place.table = Table::Owned(Arc::clone(slots));
        }
    }

    /// Converts to a lease that owns a handle of the table.
    pub fn into_owned(self) -> Shared<'static, V> {
        let this = ManuallyDrop::new(self);
        // SAFETY: `this` is not dropped or used again.
        let place = unsafe { ptr::read(&raw const this.place) };
        Shared { place: place.into_owned() }
    }
}

impl<V> Deref for Shared<'_, V> {
    type Target = V;

    #[inline]
    fn deref(&self) -> &V {
        // SAFETY: a shared lease excludes writers.
        let value = unsafe { &*self.place.slot().value.get() };
        // SAFETY: a slot that is leased is filled.
        unsafe { value.as_ref().unwrap_unchecked() }
    }
}

impl<V> Drop for Shared<'_, V> {
    #[inline]
    fn drop(&mut self) {
        if self.place.slot().gate.leave() {
            // SAFETY: the gate gave the value to this caller.
            unsafe { self.place.end() };
        }
    }
}

/// The exclusive lease.
pub(crate) struct Exclusive<'a, V> {
    place: Place<'a, V>,
    hold: Hold,
}

impl<'a, V> Exclusive<'a, V> {
    /// Returns a lease that the slot's gate has recorded.
    pub(super) fn new(table: &'a Arc<Slots<V>>, slot: &'a Slot<V>, index: u32, hold: Hold) -> Self {
        Self { place: Place::new(table, slot, index), hold }
    }

    pub fn id(&self) -> Index {
        self.place.id()
    }

    /// Returns the number of the table.
    pub fn number(&self) -> u64 {
        self.place.table.slots().number
    }

    /// Converts to a lease that owns a handle of the table.
    pub fn into_owned(self) -> Exclusive<'static, V> {
        let this = ManuallyDrop::new(self);
        // SAFETY: `this` is not dropped or used again.
        let place = unsafe { ptr::read(&raw const this.place) };
        Exclusive { place: place.into_owned(), hold: this.hold }
    }

    /// Returns an error in a forked process.
    pub fn here(&self) -> Result<()> {
        self.place.table.slots().here()
    }

    /// Takes the value out of the table, and returns whether it was still present, not removed meanwhile.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::Error::Unsupported) in a forked process, where it stays.
    pub fn remove(self) -> Result<(V, bool)> {
        self.here()?;
        let this = ManuallyDrop::new(self);
        // SAFETY: `this` is not dropped or used again.
        let place = unsafe { ptr::read(&raw const this.place) };
        let gate = &place.slot().gate;
        // Fails if it was removed meanwhile: then it was counted, and this caller still gets the value.
        let was_there = gate.close_alone(gate.generation()).is_ok();
        if was_there {
            place.table.slots().removed.fetch_add(1, Relaxed);
        }
        gate.let_go(this.hold);
        // SAFETY: the gate is closed, and the only lease was this.
        let value = unsafe { place.reclaim() };
        // SAFETY: a slot that is leased is filled.
        Ok((unsafe { value.unwrap_unchecked() }, was_there))
    }
}

impl<V> Deref for Exclusive<'_, V> {
    type Target = V;

    fn deref(&self) -> &V {
        // SAFETY: the exclusive lease.
        let value = unsafe { &*self.place.slot().value.get() };
        // SAFETY: a slot that is leased is filled.
        unsafe { value.as_ref().unwrap_unchecked() }
    }
}

impl<V> DerefMut for Exclusive<'_, V> {
    fn deref_mut(&mut self) -> &mut V {
        // SAFETY: the exclusive lease, borrowed mutably.
        let value = unsafe { &mut *self.place.slot().value.get() };
        // SAFETY: a slot that is leased is filled.
        unsafe { value.as_mut().unwrap_unchecked() }
    }
}

impl<V> Drop for Exclusive<'_, V> {
    fn drop(&mut self) {
        if self.place.slot().gate.let_go(self.hold) {
            // SAFETY: the gate gave the value to this caller.
            unsafe { self.place.end() };
        }
    }
}
