//! [`TelemetryBuffer`]: counters of a kernel's work in one cache line that the host may read at any time.
//!
//! 1. A seqlock of words: `sequence` is odd while the device writes.
//! 2. A reader tries a bounded number of times, then returns [`Busy`]: the writer may be dead.
//!
//! Source: Boehm, "Can Seqlocks Get Along with Programming Language Memory Models?" (2012).

mod figures;
mod history;
mod recorder;

use core::fmt;

use crate::defmt_derive::Format;
use zerocopy::{FromBytes, Immutable, KnownLayout};

pub use figures::STUCK_AFTER_NS;
pub use history::History;
pub use recorder::Recorder;

use crate::{ReadOnly, Word};

/// The telemetry buffer in shared memory, writable only through the [`Recorder`].
///
/// ```compile_fail,E0599
/// # use ringmem_layouts as ringmem;
/// # use ringmem::{HostWord, telemetry};
/// # let buffer: telemetry::Shared<HostWord> = zerocopy::FromZeros::new_zeroed();
/// buffer.processed.store(1);
/// ```
pub type Shared<W> = TelemetryBuffer<ReadOnly<W>>;

/// Counters of a running kernel, in 64 bytes, written by the device; the host resets them before a launch. [`Shared`] is the shared form.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::TelemetryBuffer;
///
/// assert_eq!(size_of::<TelemetryBuffer>(), 64);
/// let telemetry = TelemetryBuffer::<u64> { processed: 4, latency_total_ns: 1000, ..zerocopy::FromZeros::new_zeroed() };
/// assert_eq!(telemetry.latency_mean(), Some(250));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, Immutable, KnownLayout)]
#[repr(C, align(64))]
pub struct TelemetryBuffer<W = u64> {
    /// Odd while a record is written; increases by two with each record, including a reset. Device.
    pub sequence: W,
    /// Messages processed since launch. Device.
    pub processed: W,
    /// Messages answered as refused. Device.
    pub dropped: W,
    /// Sum over messages of the nanoseconds from poll to answer, wrapping; at most 4.29 s each. After 129 to 256 rounds without a pause, a kernel
    /// stores several batches with the time of the first. Device.
    pub latency_total_ns: W,
    /// Minimum, nanoseconds; 0 before the first. Device.
    pub latency_min_ns: W,
    /// Maximum, nanoseconds; at most 4.29 s. Device.
    pub latency_max_ns: W,
    /// Messages in the rings as of the kernel's last loads of the host's indices: input ring in the low 32 bits, output ring in the high 32. A
    /// working kernel loads the output's index only if its answers need more slots than it knows to be free, so its output depth is an upper bound; a record
    /// without work loads it. Device.
    pub depths: W,
    /// Time of this record by the kernel's clock, nanoseconds. Device.
    pub updated_ns: W,
}

crate::layout_table! {
    impl<W> TelemetryBuffer<W>: size 64, align 64;
    0  sequence: W, "device";
    8  processed: W, "device";
    16 dropped: W, "device";
    24 latency_total_ns: W, "device";
    32 latency_min_ns: W, "device";
    40 latency_max_ns: W, "device";
    48 depths: W, "device";
    56 updated_ns: W, "device";
}

/// A record was being written at each attempt.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::telemetry::{Busy, Shared};
/// use ringmem::{HostWord, ReadOnly};
///
/// let odd = ReadOnly::new(HostWord::new(1)); // its writer stopped within a record
/// let buffer: Shared<HostWord> = Shared { sequence: odd, ..zerocopy::FromZeros::new_zeroed() };
/// assert_eq!(buffer.snapshot(), Err(Busy));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Format)]
pub struct Busy;

impl fmt::Display for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("telemetry is being written, or its writer stopped in the middle")
    }
}

impl core::error::Error for Busy {}

/// Attempts before [`Busy`].
pub const TRIES: u32 = 128;

impl<W: Word> Shared<W> {
    /// Reads a consistent snapshot.
    ///
    /// # Errors
    ///
    /// [`Busy`] after [`TRIES`] attempts.
    pub fn snapshot(&self) -> Result<TelemetryBuffer<u64>, Busy> {
        for _ in 0..TRIES {
            let sequence = self.sequence.load_acquire();
            // SYNC POINT: fields seen. Each pairs with Recorder::publish: after a newer field, the second load below returns its odd sequence.
            let snapshot = TelemetryBuffer {
                sequence,
                processed: self.processed.load_acquire(),
                dropped: self.dropped.load_acquire(),
                latency_total_ns: self.latency_total_ns.load_acquire(),
                latency_min_ns: self.latency_min_ns.load_acquire(),
                latency_max_ns: self.latency_max_ns.load_acquire(),
                depths: self.depths.load_acquire(),
                updated_ns: self.updated_ns.load_acquire(),
            };
            if sequence & 1 == 0 && self.sequence.load() == sequence {
                return Ok(snapshot);
            }
            core::hint::spin_loop();
        }
        Err(Busy)
    }

    /// Resets all fields but the sequence, which advances, before a relaunch, even after a writer's death.
    ///
    /// # Safety
    ///
    /// The buffer has no other writer.
    pub unsafe fn reset(&self) {
        // SAFETY: the caller promises that the buffer has no other writer; the recorder is dropped before this returns.
        unsafe { Recorder::new(self) }.publish(0, 0, 0);
    }
}

impl<W: Word> fmt::Debug for Shared<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.snapshot() {
            Ok(snapshot) => snapshot.fmt(f),
            Err(Busy) => f.write_str("TelemetryBuffer(Busy)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HostWord;

    fn zeroed() -> Shared<HostWord> {
        zerocopy::FromZeros::new_zeroed()
    }

    #[test]
    fn a_zeroed_record_is_valid_without_a_minimum() {
        let snapshot = zeroed().snapshot().unwrap();
        assert_eq!((snapshot.latency_min(), snapshot.latency_mean()), (None, None));
    }

    #[test]
    fn a_snapshot_returns_the_recorded_counts() {
        let buffer = zeroed();
        // SAFETY: the only writer.
        let mut recorder = unsafe { Recorder::new(&buffer) };
        recorder.count(4, 1, 100);
        recorder.count(1, 0, 50);
        recorder.publish(3, 2, 9_000);
        let snapshot = buffer.snapshot().unwrap();
        assert_eq!((snapshot.processed, snapshot.dropped), (5, 1));
        assert_eq!((snapshot.latency_min(), snapshot.latency_mean(), snapshot.latency_max_ns), (Some(50), Some(90), 100));
        assert_eq!((snapshot.input_depth(), snapshot.output_depth(), snapshot.updated_ns), (3, 2, 9_000));
        assert_eq!(snapshot.sequence, 2);
    }

    #[test]
    fn an_odd_sequence_returns_busy() {
        let buffer = zeroed();
        buffer.sequence.word().store(3, core::sync::atomic::Ordering::Relaxed);
        assert_eq!(buffer.snapshot(), Err(Busy));
    }

    #[test]
    fn a_reset_zeroes_counts_and_advances_the_sequence() {
        let buffer = zeroed();
        // SAFETY: the only writer.
        let mut recorder = unsafe { Recorder::new(&buffer) };
        recorder.count(4, 1, 100);
        recorder.publish(3, 2, 9_000);
        // SAFETY: `recorder` is not used again, so this is the only writer.
        unsafe { buffer.reset() };
        let zero = zeroed().snapshot().unwrap();
        assert_eq!(buffer.snapshot(), Ok(TelemetryBuffer { sequence: 4, ..zero }));
        buffer.sequence.word().store(7, core::sync::atomic::Ordering::Relaxed);
        // SAFETY: the only writer.
        unsafe { buffer.reset() };
        assert_eq!(buffer.snapshot(), Ok(TelemetryBuffer { sequence: 8, ..zero }));
        // SAFETY: the only writer, because `recorder` is not used again.
        let mut next = unsafe { Recorder::new(&buffer) };
        next.count(1, 0, 50);
        next.publish(0, 0, 10_000);
        assert_eq!(buffer.snapshot().map(|seen| (seen.sequence, seen.processed)), Ok((10, 1)));
    }
}
