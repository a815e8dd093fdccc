//! A thread's own blocks: taken and given back without a lock, and by others when they ask.

use core::cell::UnsafeCell;
use core::ptr::NonNull;
use std::boxed::Box;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::vec::Vec;

use ringmem_layouts::HostWord;

use super::seat::{Seat, System};
use crate::backend::{DeviceAddress, Ticket};

/// A part of a slab, ready to be a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    /// What the pool knows it by.
    pub tag: u64,
    pub device_address: Option<DeviceAddress>,
    pub host: Option<NonNull<u8>>,
    /// Its last use, if that may still be open.
    pub used: Option<Ticket>,
}

// SAFETY: numbers; whoever has the entry has the part.
unsafe impl Send for Entry {}

/// What a thread has of one class, and what it has done with it.
#[derive(Default)]
pub(super) struct Bin {
    /// The newest is the last.
    pub entries: Vec<Entry>,
    /// How many entries there may be.
    pub most: usize,
    pub requests: u64,
    /// Requests that an entry served.
    pub hits: u64,
    pub returns: u64,
    /// Bytes asked for, less those given back; wraps where one thread frees what another took.
    pub requested: u64,
}

/// A thread's cache of one pool.
pub(super) struct Cache {
    seat: Seat<HostWord>,
    /// Held by whoever asks for the seat.
    askers: Mutex<()>,
    // INVARIANT: touched by who sits on the seat, or by an asker while the seat is free.
    bins: UnsafeCell<Box<[Bin]>>,
}

// SAFETY: the invariant of `bins`; everything else is shared by its own accesses.
unsafe impl Sync for Cache {}

impl Cache {
    /// One that keeps so many entries of each class at most.
    pub fn new(most: impl Iterator<Item = usize>) -> Self {
        let bins = most.map(|most| Bin { most, ..Bin::default() }).collect();
        Self { seat: Seat::new(), askers: Mutex::new(()), bins: UnsafeCell::new(bins) }
    }

    /// The bins, for the thread whose cache it is. `f` calls nothing that comes back here.
    ///
    /// # Safety
    ///
    /// The calling thread is the cache's.
    #[inline(always)]
    pub unsafe fn own<R>(&self, f: impl FnOnce(&mut [Bin]) -> R) -> R {
        while !self.seat.sit::<System>() {
            // Until the asker has done.
            drop(self.askers.lock().unwrap_or_else(PoisonError::into_inner));
        }
        let stand = Stand(&self.seat);
        // SAFETY: the seat is ours.
        let result = f(unsafe { &mut *self.bins.get() });
        drop(stand);
        result
    }

    /// The bins, for another thread, while the cache's own is away; `None` where it cannot be told to stay away.
    pub fn ask<R>(&self, f: impl FnOnce(&mut [Bin]) -> R) -> Option<R> {
        let _one = self.askers.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.seat.ask::<System>() {
            return None;
        }
        let back = GiveBack(&self.seat);
        let mut times = 0_u32;
        while !self.seat.is_free() {
            times += 1;
            if times < 100 { core::hint::spin_loop() } else { thread::yield_now() }
        }
        // SAFETY: asked, and the seat is free; other askers wait for the lock.
        let result = f(unsafe { &mut *self.bins.get() });
        drop(back);
        Some(result)
    }

    /// The bins, when no thread can come to them any more.
    ///
    /// # Safety
    ///
    /// No thread is in [`own`](Self::own) or [`ask`](Self::ask) or will be, and what they did there happened before.
    pub unsafe fn alone<R>(&self, f: impl FnOnce(&mut [Bin]) -> R) -> R {
        // SAFETY: the caller's promise.
        f(unsafe { &mut *self.bins.get() })
    }
}

struct Stand<'a>(&'a Seat<HostWord>);

impl Drop for Stand<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.stand();
    }
}

struct GiveBack<'a>(&'a Seat<HostWord>);

impl Drop for GiveBack<'_> {
    fn drop(&mut self) {
        self.0.give_back();
    }
}
