use heapless::HistoryBuf;

use crate::TelemetryBuffer;

/// The last `N` records of one launch.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::telemetry::{self, History};
/// use ringmem::HostWord;
/// # let buffer: telemetry::Shared<HostWord> = zerocopy::FromZeros::new_zeroed();
/// let mut history = History::<60>::new();
/// history.push(buffer.snapshot()?); // once a second, say
/// assert_eq!(history.rate_over(10_000_000_000), None); // one record is no rate
/// # Ok::<(), ringmem::telemetry::Busy>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct History<const N: usize> {
    // INVARIANT: records of one launch, by their counts; neighbours differ in `sequence`.
    records: HistoryBuf<TelemetryBuffer<u64>, N>,
}

impl<const N: usize> History<N> {
    /// Returns an empty history.
    #[must_use]
    pub const fn new() -> Self {
        Self { records: HistoryBuf::new() }
    }

    /// Adds a snapshot and drops the oldest beyond `N`. Ignores a repeated sequence; a new launch clears the history.
    pub fn push(&mut self, snapshot: TelemetryBuffer<u64>) {
        match self.latest() {
            Some(latest) if snapshot.is_of_a_later_launch_than(latest) => self.records.clear(),
            Some(latest) if snapshot.sequence == latest.sequence => return,
            _ => {}
        }
        self.records.write(snapshot);
    }

    /// Returns the newest record.
    #[must_use]
    pub fn latest(&self) -> Option<&TelemetryBuffer<u64>> {
        self.records.recent()
    }

    /// Returns the messages per second over the last `window_ns` of the kernel's clock, from two records with different times.
    #[must_use]
    pub fn rate_over(&self, window_ns: u64) -> Option<f64> {
        let latest = self.latest()?;
        let oldest = self.iter().find(|record| latest.updated_ns.saturating_sub(record.updated_ns) <= window_ns)?;
        latest.rate(oldest)
    }

    /// Iterates over the records, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &TelemetryBuffer<u64>> {
        self.records.oldest_ordered()
    }

    /// Returns the number of records, at most `N`.
    #[must_use]
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Returns whether there are no records.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    const SECOND: u64 = 1_000_000_000;

    fn record(sequence: u64, processed: u64, seconds: u64) -> TelemetryBuffer<u64> {
        let zeroed: TelemetryBuffer<u64> = zerocopy::FromZeros::new_zeroed();
        TelemetryBuffer { sequence, processed, updated_ns: seconds * SECOND, ..zeroed }
    }

    fn sequences<const N: usize>(history: &History<N>) -> Vec<u64> {
        history.iter().map(|record| record.sequence).collect()
    }

    #[test]
    fn a_full_history_drops_its_oldest_record() {
        let mut history = History::<3>::new();
        assert!(history.is_empty() && history.latest().is_none());
        for count in 1..=5 {
            history.push(record(2 * count, count, count));
        }
        assert_eq!((sequences(&history), history.len()), (std::vec![6, 8, 10], 3));
        assert_eq!(history.latest().map(|record| record.processed), Some(5));
    }

    #[test]
    fn history_skips_duplicates_and_restarts_per_launch() {
        let mut history = History::<4>::new();
        history.push(record(2, 10, 1));
        history.push(record(4, 20, 2));
        history.push(record(4, 20, 2));
        assert_eq!(sequences(&history), [2, 4]);
        history.push(record(2, 5, 3));
        assert_eq!(sequences(&history), [2]);
        assert_eq!(history.rate_over(u64::MAX), None);
    }

    #[test]
    fn rate_over_uses_only_records_within_the_window() {
        let mut history = History::<8>::new();
        for (sequence, processed, seconds) in [(2, 0, 0), (4, 100, 10), (6, 500, 12), (8, 700, 14)] {
            history.push(record(sequence, processed, seconds));
        }
        assert_eq!(history.rate_over(2 * SECOND), Some(100.0));
        assert_eq!(history.rate_over(4 * SECOND), Some(150.0));
        assert_eq!(history.rate_over(9 * SECOND), Some(150.0), "a record of 14 s ago is not of the last 9");
        assert_eq!(history.rate_over(u64::MAX), Some(50.0));
        assert_eq!(history.rate_over(SECOND), None);
    }
}
