/// A histogram of durations, four buckets per power of two: percentiles are at most a quarter too large.
///
/// ```
/// use ringmem::monitor::RoundTrips;
///
/// let mut buckets = [0; RoundTrips::BUCKETS];
/// buckets[RoundTrips::bucket(1000)] = 99;
/// buckets[RoundTrips::bucket(5000)] = 1;
/// let trips = RoundTrips(buckets);
/// assert_eq!((trips.count(), trips.percentile(50), trips.percentile(100)), (100, Some(1023), Some(5119)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoundTrips(pub [u64; Self::BUCKETS]);

impl RoundTrips {
    /// Number of buckets.
    pub const BUCKETS: usize = 256;

    /// Returns the bucket of a duration in nanoseconds.
    #[must_use]
    pub const fn bucket(ns: u64) -> usize {
        match ns {
            0..4 => ns as usize,
            _ => {
                let octave = ns.ilog2();
                octave as usize * 4 + (ns >> (octave - 2) & 3) as usize
            }
        }
    }

    const fn longest(bucket: usize) -> u64 {
        match bucket {
            0..8 => bucket as u64,
            _ => {
                let shift = bucket as u32 / 4 - 2;
                let first = (4 + bucket as u64 % 4) << shift;
                first | ((1 << shift) - 1)
            }
        }
    }

    /// Returns the number of durations, at most `u64::MAX`.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.iter().fold(0, |sum, &count| sum.saturating_add(count))
    }

    /// Returns the duration that this percentage does not exceed, rounded up to its bucket's end, nanoseconds; `None` without durations.
    #[must_use]
    pub fn percentile(&self, percent: u64) -> Option<u64> {
        let total: u128 = self.0.iter().copied().map(u128::from).sum();
        let rank = (total * u128::from(percent.min(100))).div_ceil(100).max(1);
        let mut seen = 0;
        let bucket = self.0.iter().position(|&count| {
            seen += u128::from(count);
            seen >= rank
        });
        bucket.map(Self::longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_end_exceeds_its_durations_by_at_most_a_quarter() {
        let ends = (0..64).flat_map(|shift| [1_u64 << shift, (1 << shift) - 1, 5 << shift.min(61), (7 << shift.min(61)) + 1]);
        for ns in ends.chain([u64::MAX]) {
            let bucket = RoundTrips::bucket(ns);
            let longest = RoundTrips::longest(bucket);
            assert!(ns <= longest && longest - ns <= ns / 4, "{ns}: {bucket}, {longest}");
        }
        assert_eq!(RoundTrips::longest(255), u64::MAX);
        assert!((8..255).all(|bucket| RoundTrips::bucket(RoundTrips::longest(bucket) + 1) == bucket + 1));
    }

    #[test]
    fn any_counts_have_percentiles() {
        assert_eq!(RoundTrips([0; 256]).percentile(50), None);
        let full = RoundTrips([u64::MAX; 256]);
        assert_eq!((full.count(), full.percentile(0), full.percentile(1000)), (u64::MAX, Some(0), Some(u64::MAX)));
    }
}
