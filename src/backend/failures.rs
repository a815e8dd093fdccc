use core::ops::RangeInclusive;
use std::vec::Vec;

use crate::{Error, Result};

/// Runs of reported failures. Beyond that, the two oldest are merged: a success may then count as a failure, never the reverse.
const MOST: usize = 256;

/// Each error is reported once; its number is kept.
#[derive(Default)]
pub(super) struct Failures {
    untold: Vec<(u64, Error)>,
    /// First and last of each run, in order.
    told: Vec<(u64, u64)>,
}

impl Failures {
    /// The number is new.
    pub fn add(&mut self, number: u64, error: Error) {
        let behind = self.untold.partition_point(|&(failed, _)| failed < number);
        self.untold.insert(behind, (number, error));
    }

    /// The range's others count as reported.
    pub fn tell(&mut self, numbers: RangeInclusive<u64>) -> Result<()> {
        let begin = self.untold.partition_point(|(failed, _)| failed < numbers.start());
        let end = self.untold.partition_point(|(failed, _)| failed <= numbers.end());
        let mut first = Ok(());
        let Self { untold, told } = self;
        for (number, error) in untold.drain(begin..end) {
            first = first.and(Err(error));
            remember(told, number);
        }
        first
    }

    pub fn have(&self, number: u64) -> bool {
        let behind = self.told.partition_point(|&(first, _)| first <= number);
        let told = behind.checked_sub(1).and_then(|run| self.told.get(run));
        told.is_some_and(|&(_, last)| number <= last) || self.untold.binary_search_by_key(&number, |&(failed, _)| failed).is_ok()
    }

    pub fn untold(&self) -> u64 {
        self.untold.len() as u64
    }
}

fn remember(told: &mut Vec<(u64, u64)>, number: u64) {
    let behind = told.partition_point(|&(first, _)| first <= number);
    told.insert(behind, (number, number));
    told.dedup_by(|next, run| {
        let joins = next.0 <= run.1.saturating_add(1);
        if joins {
            run.1 = run.1.max(next.1);
        }
        joins
    });
    if told.len() > MOST {
        let (first, _) = told.remove(0);
        if let Some(oldest) = told.first_mut() {
            oldest.0 = first;
        }
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

    fn told(failures: &mut Failures, numbers: RangeInclusive<u64>) -> Option<u64> {
        failures.tell(numbers).err().map(|error| match error {
            Error::Injected { number, .. } => number,
            error => panic!("{error}"),
        })
    }

    #[test]
    fn a_failure_is_reported_at_most_once_and_remembered() {
        let mut failures = failed([2, 3, 5, 8, 9]);
        assert_eq!(told(&mut failures, 5..=5), Some(5));
        assert_eq!(told(&mut failures, 5..=5), None);
        assert_eq!(told(&mut failures, 9..=9), Some(9));
        assert_eq!(told(&mut failures, 4..=8), Some(8));
        assert_eq!((failures.untold(), failures.told.as_slice()), (2, &[(5, 5), (8, 9)][..]));
        assert_eq!(told(&mut failures, 0..=9), Some(2), "and 3 with it");
        assert_eq!(told(&mut failures, 3..=3), None);
        assert_eq!((failures.untold(), failures.told.as_slice()), (0, &[(2, 3), (5, 5), (8, 9)][..]));
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
        assert_eq!(told(&mut failures, 0..=u64::MAX), Some(2));
        assert_eq!(failures.told.len(), MOST);
        assert!((1..=10_000).all(|number| failures.have(number * 2)));
        let exact = (0..20_001).filter(|&number| number % 2 == 1 && !failures.have(number));
        assert_eq!(exact.count(), MOST, "between the newest, and before the first");
        // A broken stream's failures are one run.
        let mut failures = failed(1..=10_000);
        assert_eq!(told(&mut failures, 0..=u64::MAX), Some(1));
        assert_eq!(failures.told, [(1, 10_000)]);
    }
}
