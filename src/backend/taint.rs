//! [`Taints`]: memory that failed queued operations left invalid.
//!
//! 1. A failed queued operation taints the bytes that it was to write.
//! 2. An operation that reads a tainted byte, or a launch with a tainted [operand](super::Operand), fails with the first failure's [`Error::Tainted`], and
//!    taints its target. A call that is refused at once, as each is on CUDA, leaves its target as it was. A host slice of tainted bytes is an error.
//! 3. A successful copy or fill makes its target valid; so does a host slice that is to be overwritten, and a free to the backend. Memory that is freed to a
//!    pool becomes valid with the next buffer there.
//! 4. While nothing in the process is tainted, a check is one relaxed load.
//!
//! Raw addresses in kernels, and memory outside the backend, are not tracked.
//!
//! # When operations fail
//!
//! CUDA reports a failure of a queued operation when it is queued, or not at all for a certain operation; the table changes at that call. On the simulated
//! devices an operation fails when it is executed ([`late`](Taints::late)), which may be after its memory was freed and allocated again: frees are ordered
//! by streams, not by the host. A taint would then hit the new owner. So an allocation whose block waits for earlier work (`ready`) is remembered by
//! [`reuse`](Taints::reuse) at least until that work is complete, and a failure of work up to `ready` does not taint the block. `reuse` remembers the block and
//! removes its taints, and [`add_executed`](Taints::add_executed) judges a failure and adds it, each under one lock: a failure that is judged before the
//! block is remembered is removed with the others.
//!
//! # The counter
//!
//! `TAINTED` counts the ranges of all tables of the process. It is changed under a table's lock and read without it: a reader that sees zero skips the table.
//! This is sound because a reader of bytes is ordered after the operation that failed to write them, by a wait or by a stream, and so sees its count; and
//! because the counter is never below the number of ranges: [`add`](Taints::add) adds a surplus of 1 first, and a range that is split
//! stays counted until its rests are. Only [`carry`](Taints::carry) has no surplus when it inserts ranges, of bytes that nothing uses meanwhile.

use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::Relaxed;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::string::ToString;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

use super::{Address, Ticket};
use crate::{Error, Result};

static TAINTED: AtomicUsize = AtomicUsize::new(0);

/// The tainted bytes of a backend.
///
/// ```
/// use ringmem::Error;
/// use ringmem::backend::{Address, DeviceAddress, StreamId, Taints, Ticket};
///
/// let taints = Taints::default();
/// let (address, failed) = (Address::Device(DeviceAddress::new(4096)), Ticket { stream: StreamId::next(), number: 3 });
/// taints.add(address, 8, failed, &Error::Closed { what: "stream" });
/// assert!(matches!(taints.check(address, 1), Err(Error::Tainted { number: 3, .. })));
/// taints.remove(address, 8); // written again
/// assert!(taints.check(address, 8).is_ok());
/// ```
#[derive(Debug, Default)]
pub struct Taints {
    // INVARIANT: no range is empty, and no two ranges overlap; `TAINTED` counts them.
    ranges: Mutex<BTreeMap<u64, Tainted>>,
    /// Operations fail at execution, so that failures may be later than frees.
    is_late: bool,
    /// Blocks in reused memory, at least until their `ready` tickets are complete: others leave when the list is full. Only with `is_late`.
    reused: Mutex<Vec<Reused>>,
}

/// A block whose memory earlier operations, up to `ready`, may still fail to write for its previous owner.
#[derive(Debug)]
struct Reused {
    start: u64,
    end: u64,
    ready: Ticket,
}

#[derive(Clone, Debug)]
struct Tainted {
    end: u64,
    cause: Cause,
}

#[derive(Clone, Debug)]
struct Cause {
    stream: u64,
    number: u64,
    message: Arc<str>,
}

impl Cause {
    fn of(failed: Ticket, error: &Error) -> Self {
        match error {
            Error::Tainted { stream, number, cause } => Self { stream: *stream, number: *number, message: Arc::clone(cause) },
            error => Self { stream: failed.stream.get(), number: failed.number, message: error.to_string().into() },
        }
    }
}

impl Taints {
    /// Returns an empty table; operations fail at execution.
    #[must_use]
    pub fn late() -> Self {
        Self { ranges: Mutex::default(), is_late: true, reused: Mutex::default() }
    }

    /// Makes the bytes of a new block valid, and remembers it if earlier work may still fail: a failure of an operation up to `ready` is the previous owner's,
    /// and does not taint the block.
    pub(crate) fn reuse(&self, address: Address, bytes: u64, ready: Option<Ticket>, is_complete: impl Fn(Ticket) -> bool) {
        // Until the end.
        let mut reused = ready.filter(|_| self.is_late).map(|ready| (self.reused(), ready));
        if let Some((reused, ready)) = &mut reused {
            if reused.len() == reused.capacity() {
                reused.retain(|block| !is_complete(block.ready));
            }
            let start = address.get();
            reused.push(Reused { start, end: start.saturating_add(bytes), ready: *ready });
        }
        self.remove(address, bytes);
    }

    /// Taints bytes that an operation failed to write at its execution, unless it wrote for a previous owner of them. On the stream of `ready`, its number
    /// tells; on another stream, everything queued before the free precedes `ready`, so while `ready` is not complete the operation may be one of those. It is
    /// none of the new owner's: these wait for `ready` first, also on a stream that is broken.
    pub(super) fn add_executed(&self, address: Address, bytes: u64, failed: Ticket, error: &Error, is_complete: impl Fn(Ticket) -> bool) {
        let (start, end) = (address.get(), address.get().saturating_add(bytes));
        // Until the end.
        let reused = self.reused();
        let is_of_previous_owner = reused
            .iter()
            .filter(|block| block.start < end && start < block.end)
            .any(|Reused { ready, .. }| if failed.stream == ready.stream { failed.number <= ready.number } else { !is_complete(*ready) });
        if !is_of_previous_owner {
            self.add(address, bytes, failed, error);
        }
    }

    #[inline]
    pub(crate) fn are_none() -> bool {
        // Relaxed: readers of the bytes are ordered after the failed operation.
        TAINTED.load(Relaxed) == 0
    }

    /// Checks that no byte is tainted.
    ///
    /// # Errors
    ///
    /// [`Tainted`](Error::Tainted), with the first range's cause.
    #[inline]
    pub fn check(&self, address: Address, bytes: u64) -> Result<()> {
        if Self::are_none() { Ok(()) } else { self.look_up(address.get(), bytes) }
    }

    #[cold]
    fn look_up(&self, start: u64, bytes: u64) -> Result<()> {
        let end = start.saturating_add(bytes);
        let ranges = self.ranges();
        // No bytes are not tainted.
        let before = ranges.range(..start).next_back().filter(|(_, tainted)| tainted.end > start && end > start);
        let Some((_, Tainted { cause, .. })) = before.or_else(|| ranges.range(start..end).next()) else { return Ok(()) };
        Err(Error::Tainted { stream: cause.stream, number: cause.number, cause: Arc::clone(&cause.message) })
    }

    /// Taints bytes that an operation failed to write.
    #[cold]
    pub fn add(&self, address: Address, bytes: u64, failed: Ticket, error: &Error) {
        let (start, cause) = (address.get(), Cause::of(failed, error));
        let mut ranges = self.ranges();
        // Counted first: a range that this one replaces, perhaps the only one, must not bring the counter to zero meanwhile.
        TAINTED.fetch_add(1, Relaxed);
        cut(&mut ranges, start, start.saturating_add(bytes));
        insert(&mut ranges, start, Tainted { end: start.saturating_add(bytes), cause });
        TAINTED.fetch_sub(1, Relaxed);
    }

    /// Marks bytes as valid: written, or with a new owner.
    #[inline]
    pub fn remove(&self, address: Address, bytes: u64) {
        if !Self::are_none() {
            self.remove_range(address.get(), bytes);
        }
    }

    #[cold]
    pub(super) fn remove_range(&self, start: u64, bytes: u64) {
        cut(&mut self.ranges(), start, start.saturating_add(bytes));
    }

    /// If the copy succeeds, taints move with it; after an error or a panic they stay. A copy that succeeds leaves `to` untainted: it had no memory, or the
    /// copy made it valid. It does not overlap `from`. Nothing else uses or taints these bytes meanwhile.
    pub(crate) fn carry<T>(&self, from: Address, to: Address, bytes: u64, copy: impl FnOnce() -> Result<T>) -> Result<T> {
        if Self::are_none() {
            return copy();
        }
        let (from, to) = (from.get(), to.get());
        let taken = cut(&mut self.ranges(), from, from.saturating_add(bytes));
        let outcome = catch_unwind(AssertUnwindSafe(copy));
        let base = if matches!(outcome, Ok(Ok(_))) { to } else { from };
        let mut ranges = self.ranges();
        for (start, Tainted { end, cause }) in taken {
            let [start, end] = [start, end].map(|address| base + (address - from));
            insert(&mut ranges, start, Tainted { end, cause });
        }
        drop(ranges);
        outcome.unwrap_or_else(|panic| resume_unwind(panic))
    }

    fn reused(&self) -> MutexGuard<'_, Vec<Reused>> {
        self.reused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ranges(&self) -> MutexGuard<'_, BTreeMap<u64, Tainted>> {
        self.ranges.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Taints {
    fn drop(&mut self) {
        TAINTED.fetch_sub(self.ranges().len(), Relaxed);
    }
}

fn insert(ranges: &mut BTreeMap<u64, Tainted>, start: u64, tainted: Tainted) {
    if start < tainted.end && ranges.insert(start, tainted).is_none() {
        TAINTED.fetch_add(1, Relaxed);
    }
}

/// Removes the bytes from the table; returns what was tainted of them. Ranges that reach beyond are split.
fn cut(ranges: &mut BTreeMap<u64, Tainted>, start: u64, end: u64) -> Vec<(u64, Tainted)> {
    let before = ranges.range(..start).next_back().filter(|(_, tainted)| tainted.end > start).map(|(&first, _)| first);
    let firsts: Vec<u64> = before.into_iter().chain(ranges.range(start..end.max(start)).map(|(&first, _)| first)).collect();
    let mut taken = Vec::with_capacity(firsts.len());
    for first in firsts {
        let Some(tainted) = ranges.remove(&first) else { continue };
        let part = |from: u64, to: u64| (from, Tainted { end: to, cause: tainted.cause.clone() });
        for (first, rest) in [part(first, tainted.end.min(start)), part(first.max(end), tainted.end)] {
            insert(ranges, first, rest);
        }
        // After the rests: a reader of them must not see zero meanwhile.
        TAINTED.fetch_sub(1, Relaxed);
        taken.push(part(first.max(start), tainted.end.min(end)));
    }
    taken
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{DeviceAddress, StreamId};

    const SIZE: usize = 48;

    fn at(address: usize) -> Address {
        Address::Device(DeviceAddress::new(address as u64))
    }

    fn cause(taints: &Taints, byte: usize) -> u64 {
        match taints.check(at(byte), 1) {
            Ok(()) => 0,
            Err(Error::Tainted { number, .. }) => number,
            Err(error) => panic!("{error}"),
        }
    }

    /// Another thread changes other bytes of the table's only range meanwhile.
    fn a_tainted_byte_stays_tainted_beside(change: impl Fn(&Taints) + Sync) {
        let taints = Taints::late();
        let failed = Ticket { stream: StreamId::next(), number: 1 };
        taints.add(at(0), 100, failed, &Error::Closed { what: "stream" });
        let is_over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                (0..100_000).for_each(|_| change(&taints));
                is_over.store(true, Relaxed);
            });
            while !is_over.load(Relaxed) {
                assert!(taints.check(at(50), 1).is_err(), "a byte that no operation wrote");
            }
        });
    }

    #[test]
    fn bytes_stay_tainted_while_others_of_their_range_become_valid() {
        let failed = Ticket { stream: StreamId::next(), number: 2 };
        a_tainted_byte_stays_tainted_beside(|taints| {
            taints.remove(at(0), 10);
            taints.add(at(0), 100, failed, &Error::Closed { what: "stream" });
        });
    }

    #[test]
    fn a_failure_judged_before_a_reuse_does_not_taint_the_new_block() {
        let taints = Taints::late();
        let [first, other] = [StreamId::next(), StreamId::next()];
        let (ready, failed) = (Ticket { stream: first, number: 1 }, Ticket { stream: other, number: 1 });
        taints.reuse(at(0), 8, Some(ready), |_| false);
        let begun = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            let second = scope.spawn(|| {
                begun.wait();
                taints.reuse(at(0), 8, Some(Ticket { number: 2, ..ready }), |_| false);
            });
            // Asked within the judgement, which finds no earlier owner: meanwhile the other thread gets the block.
            taints.add_executed(at(0), 8, failed, &Error::Closed { what: "stream" }, |_| {
                begun.wait();
                std::thread::sleep(std::time::Duration::from_millis(20));
                true
            });
            second.join().expect("no panic");
        });
        assert!(taints.check(at(0), 8).is_ok());
    }

    #[test]
    fn no_bytes_are_not_tainted() {
        let taints = Taints::default();
        taints.add(at(0), 8, Ticket { stream: StreamId::next(), number: 1 }, &Error::Closed { what: "stream" });
        assert!(taints.check(at(4), 0).is_ok() && taints.check(at(0), 0).is_ok() && taints.check(at(4), 1).is_err());
    }

    #[test]
    fn a_panicked_carry_leaves_the_source_tainted() {
        let taints = Taints::late();
        let failed = Ticket { stream: StreamId::next(), number: 1 };
        taints.add(at(1000), 8, failed, &Error::Closed { what: "stream" });
        let carried = crate::sys::panic::caught(|| taints.carry::<()>(at(1000), at(2000), 8, || panic!("a copy")));
        assert!(carried.is_none());
        assert!(taints.check(at(1000), 8).is_err() && taints.check(at(2000), 8).is_ok());
    }

    proptest::proptest! {
        #[test]
        fn taints_follow_a_model_by_byte(ops in proptest::collection::vec((0..4_u8, 0..SIZE, 0..SIZE, 0..SIZE), 1..60)) {
            let (taints, stream) = (Taints::default(), StreamId::next());
            let mut model = [0; SIZE];
            for (number, (kind, start, len, other)) in (1..).zip(ops) {
                let len = len.min(SIZE - start);
                match kind {
                    0 | 1 => {
                        taints.add(at(start), len as u64, Ticket { stream, number }, &Error::Closed { what: "stream" });
                        model[start..start + len].fill(number);
                    }
                    2 => {
                        taints.remove(at(start), len as u64);
                        model[start..start + len].fill(0);
                    }
                    _ => {
                        let len = len.min(SIZE - other);
                        if start < other + len && other < start + len {
                            continue;
                        }
                        taints.remove(at(other), len as u64);
                        taints.carry(at(start), at(other), len as u64, || Ok(())).expect("nothing fails");
                        model.copy_within(start..start + len, other);
                        model[start..start + len].fill(0);
                    }
                }
                for (byte, &expected) in model.iter().enumerate() {
                    proptest::prop_assert_eq!(cause(&taints, byte), expected, "byte {}", byte);
                }
                let first = model.iter().position(|&number| number > 0);
                proptest::prop_assert_eq!(taints.check(at(0), SIZE as u64).is_err(), first.is_some());
            }
        }
    }

    #[test]
    fn a_failed_carry_leaves_the_source_tainted() {
        let (taints, stream) = (Taints::default(), StreamId::next());
        taints.add(at(4), 4, Ticket { stream, number: 7 }, &Error::Closed { what: "stream" });
        assert!(taints.carry(at(0), at(100), 16, || Err::<(), _>(Error::Closed { what: "stream" })).is_err());
        assert_eq!([3, 4, 7, 8, 104].map(|byte| cause(&taints, byte)), [0, 7, 7, 0, 0]);
    }

    #[test]
    fn an_error_that_reports_a_taint_keeps_its_cause() {
        let (taints, stream) = (Taints::default(), StreamId::next());
        taints.add(at(0), 8, Ticket { stream, number: 3 }, &Error::Closed { what: "stream" });
        let error = taints.check(at(0), 8).expect_err("tainted");
        taints.add(at(64), 8, Ticket { stream: StreamId::next(), number: 9 }, &error);
        let Err(Error::Tainted { stream: first, number, cause }) = taints.check(at(64), 8) else { panic!("not tainted") };
        assert_eq!((first, number, &*cause), (stream.get(), 3, "the stream is closed"));
    }
}
