use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use core::{fmt, mem};
use std::sync::Arc;

use crate::error::LimitOf;
use crate::{Error, Result};

/// A limit in bytes, and the bytes in use, shared by clones.
///
/// 1. Check and reservation are one atomic step: [`reserve`](Self::reserve) never exceeds the limit.
/// 2. A [`Reservation`] releases its bytes on drop, not if forgotten.
/// 3. It only counts: reserve before an allocation, release after the free.
///
/// ```
/// use ringmem::memory::Budget;
///
/// let budget = Budget::new(1000);
/// let mut first = budget.reserve(700)?;
/// assert!(budget.reserve(301).is_err());
/// let second = first.split(200)?;
/// drop(first);
/// assert_eq!((second.bytes(), budget.used(), budget.peak()), (200, 200, 700));
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone)]
pub struct Budget {
    shared: Arc<Shared>,
}

struct Shared {
    limit: u64,
    used: AtomicU64,
    peak: AtomicU64,
}

impl Budget {
    /// Creates a budget of `limit` bytes.
    #[must_use]
    pub fn new(limit: u64) -> Self {
        Self { shared: Arc::new(Shared { limit, used: AtomicU64::new(0), peak: AtomicU64::new(0) }) }
    }

    /// Returns the limit in bytes.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.shared.limit
    }

    /// Returns the reserved bytes.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.shared.used.load(Relaxed)
    }

    /// Returns the high-water mark of reserved bytes.
    #[must_use]
    pub fn peak(&self) -> u64 {
        self.shared.peak.load(Relaxed)
    }

    /// Returns whether so many bytes are free now. Prefer [`reserve`](Self::reserve): another thread may take them.
    #[must_use]
    pub fn has(&self, bytes: u64) -> bool {
        self.used().checked_add(bytes).is_some_and(|used| used <= self.limit())
    }

    /// Reserves all bytes or none.
    ///
    /// # Errors
    ///
    /// [`Limit`](Error::Limit) if fewer are free.
    pub fn reserve(&self, bytes: u64) -> Result<Reservation> {
        self.take(bytes)?;
        Ok(self.taken(bytes))
    }

    pub(crate) fn take(&self, bytes: u64) -> Result<()> {
        let Shared { limit, used, peak } = &*self.shared;
        let add = |used: u64| used.checked_add(bytes).filter(|used| used <= limit);
        match used.fetch_update(Relaxed, Relaxed, add) {
            Ok(before) => {
                if peak.load(Relaxed) < before + bytes {
                    peak.fetch_max(before + bytes, Relaxed);
                }
                Ok(())
            }
            Err(used) => Err(Error::Limit { of: LimitOf::Memory, requested: bytes, used, limit: *limit }),
        }
    }

    pub(crate) fn give(&self, bytes: u64) {
        self.shared.used.fetch_sub(bytes, Relaxed);
    }

    pub(crate) fn taken(&self, bytes: u64) -> Reservation {
        self.clone().into_reservation(bytes)
    }

    /// For bytes that the caller has taken, or has from [`Reservation::into_budget`].
    pub(crate) fn into_reservation(self, bytes: u64) -> Reservation {
        Reservation { budget: self, bytes }
    }
}

impl fmt::Debug for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Budget").field("limit", &self.limit()).field("used", &self.used()).field("peak", &self.peak()).finish()
    }
}

/// Reserved bytes of a [`Budget`], released on drop.
///
/// ```
/// use ringmem::memory::Budget;
///
/// let budget = Budget::new(1000);
/// let mut all = budget.reserve(1000)?;
/// let part = all.split(400)?;
/// drop(part);
/// assert_eq!((all.bytes(), budget.used()), (600, 600));
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "dropping it gives the bytes back"]
pub struct Reservation {
    budget: Budget,
    // INVARIANT: reserved, and released only by this value.
    bytes: u64,
}

impl Reservation {
    /// Returns the number of bytes.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Splits off some of the bytes.
    ///
    /// # Errors
    ///
    /// [`Size`](Error::Size) for more bytes than it has.
    pub fn split(&mut self, bytes: u64) -> Result<Self> {
        let Some(rest) = self.bytes.checked_sub(bytes) else {
            return Err(Error::Size { what: "size in bytes", asked: bytes, least: 0, most: self.bytes });
        };
        self.bytes = rest;
        Ok(self.budget.taken(bytes))
    }

    pub(crate) fn join(&mut self, mut other: Self) {
        self.bytes += mem::take(&mut other.bytes);
    }

    /// Counts the bytes of memory that exists already, also beyond the limit.
    pub(crate) fn recount(&mut self, bytes: u64) {
        let Shared { used, peak, .. } = &*self.budget.shared;
        if let Some(more) = bytes.checked_sub(self.bytes) {
            // Sizes of mirrors without memory can have a sum that is no `u64`: then the old bytes count on.
            let Ok(before) = used.fetch_update(Relaxed, Relaxed, |used| used.checked_add(more)) else { return };
            peak.fetch_max(before + more, Relaxed);
        } else {
            self.budget.give(self.bytes - bytes);
        }
        self.bytes = bytes;
    }

    /// Returns the budget, of which the caller then owns the bytes.
    pub(crate) fn into_budget(mut self) -> Budget {
        self.bytes = 0;
        self.budget.clone()
    }

    pub(crate) fn is_of(&self, budget: &Budget) -> bool {
        Arc::ptr_eq(&self.budget.shared, &budget.shared)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.budget.give(self.bytes);
    }
}
