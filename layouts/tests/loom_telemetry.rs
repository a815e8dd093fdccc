//! Every interleaving of a telemetry record being written, or taken back, and being read: a snapshot is one record, never two halves.

// Only its word is needed here.
#[allow(dead_code)]
mod loom_machine;

use loom::sync::Arc;
use loom::thread;
use loom_machine::{LoomWord, READER_LOOKS_RELAXED, STRONG, Side, WRITER_PUBLISHES_RELAXED, check, must_fail, take_side};
use ringmem_layouts::telemetry::Recorder;
use ringmem_layouts::{ReadOnly, TelemetryBuffer, Word};

/// A word whose reader lets the writer go on when it has seen an odd value. In this model only the sequence is ever odd, and only while a
/// record is being written; without this, loom would have a reader look at one and the same half record 128 times, in every way.
struct Patient<const WEAK: u8>(LoomWord<WEAK>);

// SAFETY: as `LoomWord`.
unsafe impl<const WEAK: u8> Word for Patient<WEAK> {
    fn new(value: u64) -> Self {
        Self(LoomWord::new(value))
    }
    fn load(&self) -> u64 {
        self.0.load()
    }
    fn load_acquire(&self) -> u64 {
        let value = self.0.load_acquire();
        if value & 1 == 1 {
            thread::yield_now();
        }
        value
    }
    fn store(&self, value: u64) {
        self.0.store(value);
    }
    fn store_release(&self, value: u64) {
        self.0.store_release(value);
    }
    fn publish_all<const N: usize>(words: [(&Self, u64); N]) {
        for (word, value) in words {
            word.store_release(value);
        }
    }
}

/// What the record of two messages is.
const RECORD: [u64; 8] = [2, 2, 2, 20, 10, 10, 6, 100];

fn buffer<const WEAK: u8>(fields: [u64; 8]) -> Arc<TelemetryBuffer<ReadOnly<Patient<WEAK>>>> {
    let [sequence, processed, dropped, latency_total_ns, latency_min_ns, latency_max_ns, depths, updated_ns] =
        fields.map(|field| ReadOnly::new(Patient::new(field)));
    Arc::new(TelemetryBuffer { sequence, processed, dropped, latency_total_ns, latency_min_ns, latency_max_ns, depths, updated_ns })
}

/// Looks once, as the reader: a record, or another.
fn look<const WEAK: u8>(buffer: &TelemetryBuffer<ReadOnly<Patient<WEAK>>>, records: [[u64; 8]; 2]) {
    take_side(Side::Reader);
    let seen = buffer.snapshot().unwrap();
    let fields = [
        seen.sequence,
        seen.processed,
        seen.dropped,
        seen.latency_total_ns,
        seen.latency_min_ns,
        seen.latency_max_ns,
        seen.depths,
        seen.updated_ns,
    ];
    assert!(records.contains(&fields), "torn: {fields:?}");
}

fn a_record_is_read_while_it_is_written<const WEAK: u8>() {
    let buffer = buffer::<WEAK>([0; 8]);
    let writer = thread::spawn({
        let buffer = Arc::clone(&buffer);
        move || {
            take_side(Side::Writer);
            // SAFETY: this thread alone writes.
            let mut recorder = unsafe { Recorder::new(&*buffer) };
            recorder.count(2, 2, 10);
            recorder.publish(6, 0, 100);
        }
    });
    look(&buffer, [[0; 8], RECORD]);
    writer.join().unwrap();
}

fn a_record_is_read_while_it_is_taken_back<const WEAK: u8>() {
    let buffer = buffer::<WEAK>(RECORD);
    let writer = thread::spawn({
        let buffer = Arc::clone(&buffer);
        move || {
            take_side(Side::Writer);
            // SAFETY: this thread alone writes.
            unsafe { buffer.reset() };
        }
    });
    look(&buffer, [RECORD, [4, 0, 0, 0, 0, 0, 0, 0]]);
    writer.join().unwrap();
}

const PREEMPTIONS: usize = 2;

#[test]
fn a_snapshot_is_one_record() {
    check(PREEMPTIONS, a_record_is_read_while_it_is_written::<STRONG>);
}

#[test]
fn a_snapshot_under_a_reset_is_one_record() {
    check(PREEMPTIONS, a_record_is_read_while_it_is_taken_back::<STRONG>);
}

#[test]
fn fields_that_are_written_relaxed_are_found() {
    must_fail("torn", PREEMPTIONS, a_record_is_read_while_it_is_written::<WRITER_PUBLISHES_RELAXED>);
    must_fail("torn", PREEMPTIONS, a_record_is_read_while_it_is_taken_back::<WRITER_PUBLISHES_RELAXED>);
}

#[test]
fn fields_that_are_read_relaxed_are_found() {
    must_fail("torn", PREEMPTIONS, a_record_is_read_while_it_is_written::<READER_LOOKS_RELAXED>);
    must_fail("torn", PREEMPTIONS, a_record_is_read_while_it_is_taken_back::<READER_LOOKS_RELAXED>);
}
