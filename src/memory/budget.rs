//! [`Budget`]: so many bytes, and who has some of them.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use core::{fmt, mem};
use std::sync::Arc;

use crate::error::LimitOf;
use crate::{Error, Result};

/// Bytes that may be taken up to a limit. Clones are the same budget.
///
/// 1. To look whether there is enough and to take it is one step: [`used`](Self::used) is above the limit at no instant, whatever the number of
///    threads, and what was promised to one is not promised to another.
/// 2. A [`Reservation`] gives its bytes back when it is dropped. One that is forgotten keeps them.
/// 3. It counts and allocates nothing: whoever allocates reserves before, and lets go after the memory is really free.
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
    /// At most `limit`.
    used: AtomicU64,
    /// At least every value that `used` had.
    peak: AtomicU64,
}

impl Budget {
    /// At most `limit` bytes.
    #[must_use]
    pub fn new(limit: u64) -> Self {
        Self { shared: Arc::new(Shared { limit, used: AtomicU64::new(0), peak: AtomicU64::new(0) }) }
    }

    /// The most bytes.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.shared.limit
    }

    /// The bytes that are taken now.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.shared.used.load(Relaxed)
    }

    /// The most that were taken at any instant.
    #[must_use]
    pub fn peak(&self) -> u64 {
        self.shared.peak.load(Relaxed)
    }

    /// Whether so many bytes could be reserved now. Another thread may have them by the time they are asked for: reserve them instead.
    #[must_use]
    pub fn has(&self, bytes: u64) -> bool {
        self.used().checked_add(bytes).is_some_and(|used| used <= self.limit())
    }

    /// Takes bytes, all of them or none.
    ///
    /// # Errors
    ///
    /// [`Limit`](Error::Limit) where fewer are left.
    pub fn reserve(&self, bytes: u64) -> Result<Reservation> {
        self.take(bytes)?;
        Ok(self.taken(bytes))
    }

    /// Takes bytes; whoever calls gives them back.
    pub(crate) fn take(&self, bytes: u64) -> Result<()> {
        let Shared { limit, used, peak } = &*self.shared;
        let add = |used: u64| used.checked_add(bytes).filter(|used| used <= limit);
        match used.fetch_update(Relaxed, Relaxed, add) {
            Ok(before) => {
                // Most of the time it has been more.
                if peak.load(Relaxed) < before + bytes {
                    peak.fetch_max(before + bytes, Relaxed);
                }
                Ok(())
            }
            Err(used) => Err(Error::Limit { of: LimitOf::Memory, requested: bytes, used, limit: *limit }),
        }
    }

    /// Gives bytes back that were taken.
    pub(crate) fn give(&self, bytes: u64) {
        self.shared.used.fetch_sub(bytes, Relaxed);
    }

    /// Bytes that were taken, to be given back when this is dropped.
    pub(crate) fn taken(&self, bytes: u64) -> Reservation {
        Reservation { budget: self.clone(), bytes }
    }
}

impl fmt::Debug for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Budget").field("limit", &self.limit()).field("used", &self.used()).field("peak", &self.peak()).finish()
    }
}

/// Bytes of a [`Budget`] that are this value's until it is dropped.
#[derive(Debug)]
#[must_use = "dropping it gives the bytes back"]
pub struct Reservation {
    budget: Budget,
    // INVARIANT: taken, and given back by nobody else.
    bytes: u64,
}

impl Reservation {
    /// How many.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Some of them, apart from the rest, which stay here.
    ///
    /// # Errors
    ///
    /// [`Size`](Error::Size) for more than there are; all stay here.
    pub fn split(&mut self, bytes: u64) -> Result<Self> {
        let Some(rest) = self.bytes.checked_sub(bytes) else {
            return Err(Error::Size { what: "size in bytes", asked: bytes, least: 0, most: self.bytes });
        };
        self.bytes = rest;
        Ok(self.budget.taken(bytes))
    }

    /// Adds bytes of the same budget.
    pub(crate) fn join(&mut self, mut other: Self) {
        self.bytes += mem::take(&mut other.bytes);
    }

    /// Whether they are of this budget.
    pub(crate) fn is_of(&self, budget: &Budget) -> bool {
        Arc::ptr_eq(&self.budget.shared, &budget.shared)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.budget.give(self.bytes);
    }
}
