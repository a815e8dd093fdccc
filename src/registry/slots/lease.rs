use core::marker::PhantomData;
use core::mem::ManuallyDrop;
use core::ops::{Deref, DerefMut};
use core::ptr::{self, NonNull};
use core::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;

use super::gate::{Gate, Hold};
use super::{Index, Slot, Slots};
use crate::{HostWord, Result};

pub(crate) trait Mode {
    /// Returns whether the gate gave the value to the caller.
    fn end(gate: &Gate<HostWord>) -> bool;
}

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

pub(crate) type Shared<'a, V> = Held<'a, V, Read>;
pub(crate) type Exclusive<'a, V> = Held<'a, V, Write>;
pub(crate) type Moved<'a, V> = Held<'a, V, Move>;

enum Table<'a, V> {
    Borrowed(&'a Arc<Slots<V>>),
    Owned(Arc<Slots<V>>),
}

/// A lease: the value stays in place meanwhile.
// INVARIANT: `slot` is the table's slot of this index, where the lease is counted; slots never move.
pub(crate) struct Held<'a, V, K: Mode> {
    table: Table<'a, V>,
    slot: NonNull<Slot<V>>,
    index: u32,
    _mode: PhantomData<fn() -> K>,
}

// SAFETY: a lease is `&V`, or `V` for the last one; the table is shared.
unsafe impl<V: Send + Sync, K: Mode> Send for Held<'_, V, K> {}
// SAFETY: as above.
unsafe impl<V: Send + Sync, K: Mode> Sync for Held<'_, V, K> {}

impl<'a, V, K: Mode> Held<'a, V, K> {
    #[inline(always)]
    pub(super) fn new(table: &'a Arc<Slots<V>>, slot: &'a Slot<V>, index: u32) -> Self {
        Self { table: Table::Borrowed(table), slot: NonNull::from(slot), index, _mode: PhantomData }
    }

    fn slot(&self) -> &Slot<V> {
        // SAFETY: the invariant; the table outlives this.
        unsafe { self.slot.as_ref() }
    }

    pub fn table(&self) -> &Slots<V> {
        match &self.table {
            Table::Borrowed(slots) => slots,
            Table::Owned(slots) => slots,
        }
    }

    pub fn id(&self) -> Index {
        Index { index: self.index, generation: self.slot().gate.generation() }
    }

    /// The lease then owns a handle of the table, which outlives it even if forgotten.
    pub fn hold(&mut self) {
        if let Table::Borrowed(slots) = self.table {
            self.table = Table::Owned(Arc::clone(slots));
        }
    }

    pub fn into_owned(self) -> Held<'static, V, K> {
        let this = ManuallyDrop::new(self);
        // SAFETY: `this` is not dropped; its table is not used again.
        let slots = match unsafe { ptr::read(&raw const this.table) } {
            Table::Borrowed(slots) => Arc::clone(slots),
            Table::Owned(slots) => slots,
        };
        Held { table: Table::Owned(slots), slot: this.slot, index: this.index, _mode: PhantomData }
    }

    /// # Safety
    ///
    /// The gate gave the value to the caller.
    #[cold]
    unsafe fn reclaim(&self) {
        let table = self.table();
        if table.process.is_this() {
            // SAFETY: the caller's promise, and the invariant.
            drop(unsafe { table.reclaim(self.slot(), self.index) });
        }
    }
}

impl<V, K: Alone> Held<'_, V, K> {
    /// Takes the value out of the table; returns whether it had not been removed meanwhile.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::Error::Unsupported) in a forked process, where it stays.
    pub fn remove(self) -> Result<(V, bool)> {
        self.table().here()?;
        let mut this = ManuallyDrop::new(self);
        let gate = &this.slot().gate;
        // If this fails, it was removed and counted meanwhile.
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

impl<V, K: Mode> Deref for Held<'_, V, K> {
    type Target = V;

    #[inline]
    fn deref(&self) -> &V {
        // SAFETY: a lease excludes writers, or is the only one.
        let value = unsafe { &*self.slot().value.get() };
        // SAFETY: a leased slot is filled.
        unsafe { value.as_ref().unwrap_unchecked() }
    }
}

impl<V, K: Alone> DerefMut for Held<'_, V, K> {
    fn deref_mut(&mut self) -> &mut V {
        // SAFETY: the exclusive lease, borrowed mutably.
        let value = unsafe { &mut *self.slot().value.get() };
        // SAFETY: a leased slot is filled.
        unsafe { value.as_mut().unwrap_unchecked() }
    }
}

impl<V, K: Mode> Drop for Held<'_, V, K> {
    #[inline]
    fn drop(&mut self) {
        if K::end(&self.slot().gate) {
            // SAFETY: the gate gave the value to this caller.
            unsafe { self.reclaim() };
        }
    }
}
