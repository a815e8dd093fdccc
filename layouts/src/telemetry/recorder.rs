//! [`Recorder`]: the device's hand on a telemetry buffer.

use core::fmt;

use super::Shared;
use crate::{TelemetryBuffer, Word};

/// The device's hand on a telemetry buffer: counts privately, writes when told to.
pub struct Recorder<'a, W> {
    buffer: &'a Shared<W>,
    now: TelemetryBuffer<u64>,
}

impl<'a, W: Word> Recorder<'a, W> {
    /// Begins with nothing processed.
    ///
    /// # Safety
    ///
    /// Nobody else writes to the buffer while this value is used.
    pub unsafe fn new(buffer: &'a Shared<W>) -> Self {
        let now = TelemetryBuffer {
            sequence: buffer.sequence.load() & !1,
            processed: 0,
            dropped: 0,
            latency_total_ns: 0,
            latency_min_ns: 0,
            latency_max_ns: 0,
            depths: 0,
            updated_ns: 0,
        };
        Self { buffer, now }
    }

    /// Counts a batch whose messages each took `latency_ns` from the look that found it to its answer, `refused` of them in vain.
    pub fn count(&mut self, messages: u64, refused: u64, latency_ns: u64) {
        if messages == 0 {
            return;
        }
        let now = &mut self.now;
        let least = if now.processed == 0 { latency_ns } else { now.latency_min_ns.min(latency_ns) };
        now.latency_min_ns = least;
        now.latency_max_ns = now.latency_max_ns.max(latency_ns);
        now.latency_total_ns = now.latency_total_ns.wrapping_add(latency_ns.wrapping_mul(messages));
        now.processed = now.processed.wrapping_add(messages);
        now.dropped = now.dropped.wrapping_add(refused);
    }

    /// For who counts elsewhere: messages in all and how many of them in vain, the sum of what each took, the least and the greatest of that.
    #[inline(always)]
    pub fn set(&mut self, processed: u64, dropped: u64, total_ns: u64, least_ns: u64, most_ns: u64) {
        let least_ns = if processed == 0 { 0 } else { least_ns };
        let (sequence, depths, updated_ns) = (self.now.sequence, self.now.depths, self.now.updated_ns);
        self.now = TelemetryBuffer {
            sequence,
            processed,
            dropped,
            latency_total_ns: total_ns,
            latency_min_ns: least_ns,
            latency_max_ns: most_ns,
            depths,
            updated_ns,
        };
    }

    /// When the last record was written, nanoseconds; 0 before the first.
    #[must_use]
    pub const fn updated_ns(&self) -> u64 {
        self.now.updated_ns
    }

    /// Writes a record.
    pub fn publish(&mut self, input_depth: u32, output_depth: u32, now_ns: u64) {
        let Self { buffer, now } = self;
        now.depths = u64::from(output_depth) << 32 | u64::from(input_depth);
        now.updated_ns = now_ns;
        buffer.sequence.word().store(now.sequence.wrapping_add(1));
        // SYNC POINT: fields written. The odd sequence is visible to whoever sees one of them: pairs with snapshot.
        W::publish_all([
            (buffer.processed.word(), now.processed),
            (buffer.dropped.word(), now.dropped),
            (buffer.latency_total_ns.word(), now.latency_total_ns),
            (buffer.latency_min_ns.word(), now.latency_min_ns),
            (buffer.latency_max_ns.word(), now.latency_max_ns),
            (buffer.depths.word(), now.depths),
            (buffer.updated_ns.word(), now.updated_ns),
        ]);
        now.sequence = now.sequence.wrapping_add(2);
        // SYNC POINT: record complete. Pairs with the first look of snapshot.
        W::publish_all([(buffer.sequence.word(), now.sequence)]);
    }
}

impl<W> fmt::Debug for Recorder<'_, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").field("now", &self.now).finish_non_exhaustive()
    }
}
