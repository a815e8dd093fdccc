use core::fmt;

use super::Shared;
use crate::{TelemetryBuffer, Word};

/// The writer of a telemetry buffer.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::HostWord;
/// use ringmem::telemetry::{Recorder, Shared};
///
/// let buffer: Shared<HostWord> = zerocopy::FromZeros::new_zeroed();
/// // SAFETY: there is no other writer of the buffer.
/// let mut recorder = unsafe { Recorder::new(&buffer) };
/// recorder.count(4, 1, 250); // four messages, one refused, 250 ns each
/// recorder.publish(0, 4, 9_000);
/// let record = buffer.snapshot()?;
/// assert_eq!((record.processed, record.dropped, record.latency_mean()), (4, 1, Some(250)));
/// # Ok::<(), ringmem::telemetry::Busy>(())
/// ```
pub struct Recorder<'a, W> {
    buffer: &'a Shared<W>,
    now: TelemetryBuffer<u64>,
}

impl<'a, W: Word> Recorder<'a, W> {
    /// Starts with all counts at zero.
    ///
    /// # Safety
    ///
    /// The buffer has no other writer while this value is used.
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

    /// Adds `messages`, each with a latency of `latency_ns` from poll to answer; of these, `refused` add to [`dropped`](TelemetryBuffer::dropped).
    /// No effect if `messages` is 0.
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

    /// Sets the totals: messages processed and refused, and the sum, minimum and maximum of their latencies in nanoseconds.
    #[inline(always)]
    pub fn set(&mut self, processed: u64, dropped: u64, total_ns: u64, min_ns: u64, max_ns: u64) {
        let min_ns = if processed == 0 { 0 } else { min_ns };
        let (sequence, depths, updated_ns) = (self.now.sequence, self.now.depths, self.now.updated_ns);
        self.now = TelemetryBuffer {
            sequence,
            processed,
            dropped,
            latency_total_ns: total_ns,
            latency_min_ns: min_ns,
            latency_max_ns: max_ns,
            depths,
            updated_ns,
        };
    }

    /// Returns the time of the last record in nanoseconds; 0 before the first.
    #[must_use]
    pub const fn updated_ns(&self) -> u64 {
        self.now.updated_ns
    }

    /// Returns the output depth of the last record; 0 before the first.
    #[must_use]
    pub const fn output_depth(&self) -> u32 {
        self.now.output_depth()
    }

    /// Writes a record.
    pub fn publish(&mut self, input_depth: u32, output_depth: u32, now_ns: u64) {
        let Self { buffer, now } = self;
        now.depths = u64::from(output_depth) << 32 | u64::from(input_depth);
        now.updated_ns = now_ns;
        buffer.sequence.word().store(now.sequence.wrapping_add(1));
        // SYNC POINT: fields written. A reader of one of them sees the odd sequence: pairs with snapshot.
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
        // SYNC POINT: record complete. Pairs with the first load in snapshot.
        W::publish_all([(buffer.sequence.word(), now.sequence)]);
    }
}

impl<W> fmt::Debug for Recorder<'_, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").field("now", &self.now).finish_non_exhaustive()
    }
}
