use core::fmt;

use crate::TelemetryBuffer;

/// Default age of the last record of a stuck kernel: one second.
pub const STUCK_AFTER_NS: u64 = 1_000_000_000;

const SECOND: f64 = 1e9;

impl TelemetryBuffer<u64> {
    /// Returns the minimum latency in nanoseconds, if any.
    #[must_use]
    pub const fn latency_min(&self) -> Option<u64> {
        if self.processed == 0 { None } else { Some(self.latency_min_ns) }
    }

    /// Returns the mean latency in nanoseconds, if any.
    #[must_use]
    pub const fn latency_mean(&self) -> Option<u64> {
        self.latency_total_ns.checked_div(self.processed)
    }

    /// Returns the messages in the input ring at the last poll.
    #[must_use]
    pub const fn input_depth(&self) -> u32 {
        self.depths as u32
    }

    /// Returns the messages in the output ring at the last poll.
    #[must_use]
    pub const fn output_depth(&self) -> u32 {
        (self.depths >> 32) as u32
    }

    /// Returns the messages per second since `earlier`, by the kernel's clock. `None` if that clock has not advanced, or after a relaunch.
    #[must_use]
    pub fn rate(&self, earlier: &Self) -> Option<f64> {
        if self.is_of_a_later_launch_than(earlier) {
            return None;
        }
        let messages = self.processed.checked_sub(earlier.processed)?;
        let ns = self.updated_ns.checked_sub(earlier.updated_ns).filter(|&ns| ns > 0)?;
        Some(messages as f64 * SECOND / ns as f64)
    }

    pub(super) const fn is_of_a_later_launch_than(&self, earlier: &Self) -> bool {
        self.sequence < earlier.sequence || self.processed < earlier.processed
    }

    /// Returns the messages per second over `uptime_ns` since launch; `None` for 0.
    #[must_use]
    pub fn throughput(&self, uptime_ns: u64) -> Option<f64> {
        if uptime_ns == 0 { None } else { Some(self.processed as f64 * SECOND / uptime_ns as f64) }
    }

    /// Returns whether the last record is at most `stuck_after_ns` old at `now_ns` of the *kernel's* clock. For other clocks use
    /// [`Watchdog`](crate::watchdog::Watchdog).
    #[must_use]
    pub const fn is_healthy(&self, now_ns: u64, stuck_after_ns: u64) -> bool {
        now_ns.saturating_sub(self.updated_ns) <= stuck_after_ns
    }

    /// Combines the telemetry of two kernels. Sums saturate; `sequence` and `updated_ns` are the later ones.
    #[must_use]
    pub fn merge(&self, other: &Self) -> Self {
        let least = match (self.latency_min(), other.latency_min()) {
            (Some(a), Some(b)) => a.min(b),
            (one, another) => one.or(another).unwrap_or(0),
        };
        let input = self.input_depth().saturating_add(other.input_depth());
        let output = self.output_depth().saturating_add(other.output_depth());
        Self {
            sequence: self.sequence.max(other.sequence),
            processed: self.processed.saturating_add(other.processed),
            dropped: self.dropped.saturating_add(other.dropped),
            latency_total_ns: self.latency_total_ns.saturating_add(other.latency_total_ns),
            latency_min_ns: least,
            latency_max_ns: self.latency_max_ns.max(other.latency_max_ns),
            depths: u64::from(output) << 32 | u64::from(input),
            updated_ns: self.updated_ns.max(other.updated_ns),
        }
    }
}

impl fmt::Debug for TelemetryBuffer<u64> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TelemetryBuffer")
            .field("sequence", &self.sequence)
            .field("processed", &self.processed)
            .field("dropped", &self.dropped)
            .field("latency_total_ns", &self.latency_total_ns)
            .field("latency_min_ns", &self.latency_min())
            .field("latency_max_ns", &self.latency_max_ns)
            .field("input_depth", &self.input_depth())
            .field("output_depth", &self.output_depth())
            .field("updated_ns", &self.updated_ns)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ZERO: TelemetryBuffer<u64> = TelemetryBuffer {
        sequence: 0,
        processed: 0,
        dropped: 0,
        latency_total_ns: 0,
        latency_min_ns: 0,
        latency_max_ns: 0,
        depths: 0,
        updated_ns: 0,
    };

    fn record(sequence: u64, processed: u64, updated_ns: u64) -> TelemetryBuffer<u64> {
        TelemetryBuffer { sequence, processed, updated_ns, ..ZERO }
    }

    #[test]
    fn rate_needs_elapsed_time_within_one_launch() {
        let earlier = record(4, 1_000, 2_000_000_000);
        assert_eq!(record(8, 4_000, 4_000_000_000).rate(&earlier), Some(1_500.0));
        assert_eq!(record(8, 1_000, 2_500_000_000).rate(&earlier), Some(0.0), "idle");
        assert_eq!(record(8, 4_000, 2_000_000_000).rate(&earlier), None, "no time has passed");
        assert_eq!(record(8, 4_000, 1_000_000_000).rate(&earlier), None, "the clock went back");
        assert_eq!(record(2, 4_000, 4_000_000_000).rate(&earlier), None, "fewer records: another launch");
        assert_eq!(record(8, 999, 4_000_000_000).rate(&earlier), None, "fewer messages: another launch");
        assert_eq!(record(8, u64::MAX, u64::MAX).rate(&ZERO), Some(1e9), "nothing overflows");
    }

    #[test]
    fn throughput_is_per_second_of_uptime() {
        assert_eq!(record(2, 500, 0).throughput(250_000_000), Some(2_000.0));
        assert_eq!((ZERO.throughput(1), record(2, 500, 0).throughput(0)), (Some(0.0), None));
    }

    #[test]
    fn a_kernel_with_recent_records_is_healthy() {
        let last = record(2, 0, 5_000_000_000);
        assert!(last.is_healthy(6_000_000_000, STUCK_AFTER_NS));
        assert!(!last.is_healthy(6_000_000_001, STUCK_AFTER_NS));
        assert!(last.is_healthy(4_000_000_000, 0), "a clock that went back is no reason");
        assert!(!ZERO.is_healthy(u64::MAX, STUCK_AFTER_NS) && ZERO.is_healthy(0, 0));
    }

    #[test]
    fn merge_sums_counts_and_keeps_extremes() {
        let one = TelemetryBuffer {
            sequence: 6,
            processed: 10,
            dropped: 1,
            latency_total_ns: 900,
            latency_min_ns: 50,
            latency_max_ns: 200,
            depths: 3 << 32 | 2,
            updated_ns: 70,
        };
        let other = TelemetryBuffer {
            sequence: 4,
            processed: 5,
            latency_total_ns: 100,
            latency_min_ns: 7,
            latency_max_ns: 60,
            depths: 1 << 32 | 4,
            updated_ns: 90,
            ..ZERO
        };
        let both = TelemetryBuffer {
            sequence: 6,
            processed: 15,
            dropped: 1,
            latency_total_ns: 1_000,
            latency_min_ns: 7,
            latency_max_ns: 200,
            depths: 4 << 32 | 6,
            updated_ns: 90,
        };
        assert_eq!((one.merge(&other), other.merge(&one)), (both, both));
    }

    #[test]
    fn merge_ignores_the_minimum_of_an_empty_record() {
        let one = TelemetryBuffer { processed: 1, latency_min_ns: 9, latency_max_ns: 9, ..ZERO };
        assert_eq!((one.merge(&ZERO).latency_min(), ZERO.merge(&one).latency_min()), (Some(9), Some(9)));
        assert_eq!(ZERO.merge(&ZERO), ZERO);
    }

    #[test]
    fn merge_saturates_without_carry_between_depths() {
        let full = TelemetryBuffer {
            sequence: u64::MAX - 1,
            processed: u64::MAX,
            dropped: u64::MAX - 1,
            latency_total_ns: u64::MAX,
            latency_min_ns: u64::MAX,
            latency_max_ns: u64::MAX,
            depths: u64::from(u32::MAX),
            updated_ns: u64::MAX,
        };
        let merged = full.merge(&TelemetryBuffer { dropped: 5, depths: 1 << 32 | 1, ..full });
        assert_eq!((merged.processed, merged.dropped, merged.latency_total_ns), (u64::MAX, u64::MAX, u64::MAX));
        assert_eq!((merged.input_depth(), merged.output_depth()), (u32::MAX, 1), "one depth does not run over into the other");
    }

    #[test]
    fn debug_output_has_depths_and_optional_minimum() {
        let text = std::format!("{:?}", TelemetryBuffer { depths: 3 << 32 | 2, ..ZERO });
        assert!(text.contains("latency_min_ns: None") && text.contains("input_depth: 2, output_depth: 3"), "{text}");
    }
}
