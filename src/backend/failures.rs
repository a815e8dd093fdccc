//! [`Failures`] of a stream's operations, and [`Ended`] streams that still have some to report.
//!
//! Each failure is reported to one waiter, with its error. Later waiters for the same operation learn that it failed ([`Failures::have`]), not why. A stream
//! that is closed before its failures are reported is kept for the holders of its tickets.

use core::ops::RangeInclusive;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

use super::StreamId;
use crate::{Error, Result};

/// Runs of reported failures that a stream keeps. Beyond that, the two oldest are merged: a success may then count as a failure, never the reverse.
const REPORTED_RUNS: usize = 256;

/// Each error is reported once; its number is kept.
#[derive(Default)]
pub(super) struct Failures {
    unreported: Vec<(u64, Error)>,
    /// First and last of each run, in order.
    reported: Vec<(u64, u64)>,
}

impl Failures {
    /// The number is new.
    pub fn add(&mut self, number: u64, error: Error) {
        let behind = self.unreported.partition_point(|&(failed, _)| failed < number);
        self.unreported.insert(behind, (number, error));
    }

    /// The range's others count as reported.
    pub fn report(&mut self, numbers: RangeInclusive<u64>) -> Result<()> {
        let begin = self.unreported.partition_point(|(failed, _)| failed < numbers.start());
        let end = self.unreported.partition_point(|(failed, _)| failed <= numbers.end());
        let mut first = Ok(());
        let Self { unreported, reported } = self;
        for (number, error) in unreported.drain(begin..end) {
            first = first.and(Err(error));
            remember(reported, number);
        }
        first
    }

    pub fn have(&self, number: u64) -> bool {
        let behind = self.reported.partition_point(|&(first, _)| first <= number);
        let reported = behind.checked_sub(1).and_then(|run| self.reported.get(run));
        reported.is_some_and(|&(_, last)| number <= last) || self.unreported.binary_search_by_key(&number, |&(failed, _)| failed).is_ok()
    }

    pub fn unreported(&self) -> u64 {
        self.unreported.len() as u64
    }
}

fn remember(reported: &mut Vec<(u64, u64)>, number: u64) {
    let behind = reported.partition_point(|&(first, _)| first <= number);
    reported.insert(behind, (number, number));
    reported.dedup_by(|next, run| {
        let joins = next.0 <= run.1.saturating_add(1);
        if joins {
            run.1 = run.1.max(next.1);
        }
        joins
    });
    if reported.len() > REPORTED_RUNS {
        let (first, _) = reported.remove(0);
        if let Some(oldest) = reported.first_mut() {
            oldest.0 = first;
        }
    }
}

/// An older stream's waiters succeed; its failures count as unreported.
const ENDED_STREAMS: usize = 64;

pub(super) trait HasUnreported {
    fn unreported(&self) -> u64;
}

pub(super) struct Ended<Q> {
    queues: Mutex<VecDeque<(StreamId, Arc<Q>)>>,
}

impl<Q> Default for Ended<Q> {
    fn default() -> Self {
        Self { queues: Mutex::default() }
    }
}

impl<Q: HasUnreported> Ended<Q> {
    /// Returns the number of forgotten failures.
    pub fn keep(&self, id: StreamId, queue: Arc<Q>) -> u64 {
        let mut queues = self.queues();
        queues.retain(|(_, queue)| queue.unreported() > 0);
        if queue.unreported() == 0 {
            return 0;
        }
        let oldest = if queues.len() < ENDED_STREAMS { None } else { queues.pop_front() };
        queues.push_back((id, queue));
        oldest.map_or(0, |(_, queue)| queue.unreported())
    }

    pub fn get(&self, id: StreamId) -> Option<Arc<Q>> {
        self.queues().iter().find(|(ended, _)| *ended == id).map(|(_, queue)| Arc::clone(queue))
    }

    pub fn unreported(&self) -> u64 {
        self.queues().iter().map(|(_, queue)| queue.unreported()).sum()
    }

    fn queues(&self) -> MutexGuard<'_, VecDeque<(StreamId, Arc<Q>)>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(numbers: impl IntoIterator<Item = u64>) -> Failures {
        let mut failures = Failures::default();
        numbers.into_iter().for_each(|number| failures.add(number, Error::Injected { call: "copy", number }));
        failures
    }

    fn reported(failures: &mut Failures, numbers: RangeInclusive<u64>) -> Option<u64> {
        failures.report(numbers).err().map(|error| match error {
            Error::Injected { number, .. } => number,
            error => panic!("{error}"),
        })
    }

    #[test]
    fn a_failure_is_reported_at_most_once_and_remembered() {
        let mut failures = failed([2, 3, 5, 8, 9]);
        assert_eq!(reported(&mut failures, 5..=5), Some(5));
        assert_eq!(reported(&mut failures, 5..=5), None);
        assert_eq!(reported(&mut failures, 9..=9), Some(9));
        assert_eq!(reported(&mut failures, 4..=8), Some(8));
        assert_eq!((failures.unreported(), failures.reported.as_slice()), (2, &[(5, 5), (8, 9)][..]));
        assert_eq!(reported(&mut failures, 0..=9), Some(2), "and 3 with it");
        assert_eq!(reported(&mut failures, 3..=3), None);
        assert_eq!((failures.unreported(), failures.reported.as_slice()), (0, &[(2, 3), (5, 5), (8, 9)][..]));
        assert!((0..12).filter(|&number| failures.have(number)).eq([2, 3, 5, 8, 9]));
    }

    #[test]
    fn unreported_failures_count_as_failed_in_any_order() {
        let failures = failed([6, 4]);
        assert!((0..9).filter(|&number| failures.have(number)).eq([4, 6]));
    }

    #[test]
    fn many_failures_use_bounded_memory() {
        let mut failures = failed((1..=10_000).map(|number| number * 2));
        assert_eq!(reported(&mut failures, 0..=u64::MAX), Some(2));
        assert_eq!(failures.reported.len(), REPORTED_RUNS);
        assert!((1..=10_000).all(|number| failures.have(number * 2)));
        let exact = (0..20_001).filter(|&number| number % 2 == 1 && !failures.have(number));
        assert_eq!(exact.count(), REPORTED_RUNS, "between the newest, and before the first");
        // A broken stream's failures are one run.
        let mut failures = failed(1..=10_000);
        assert_eq!(reported(&mut failures, 0..=u64::MAX), Some(1));
        assert_eq!(failures.reported, [(1, 10_000)]);
    }
}
