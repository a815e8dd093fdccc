#[allow(dead_code)]
use crate::loom_machine;

use loom::sync::Arc;
use loom::thread;
use loom_machine::{LoomCell, LoomWord, READER_LOOKS_RELAXED, STRONG, Side, WRITER_PUBLISHES_RELAXED, check, must_fail, take_side};
use ringmem_layouts::control::{Addresses, Capabilities, Command, DeviceSide, HostSide, Launch, RingHeaders, State};
use ringmem_layouts::telemetry::Recorder;
use ringmem_layouts::{ControlBlock, ReadOnly, SlotCell, TelemetryBuffer, Word};

/// Yields after an odd sequence: loom would explore 128 reads of the same half.
struct Patient<const WEAK: u8>(LoomWord<WEAK>);

// SAFETY: each method is one access of the inner `LoomWord`. Some are weakened on purpose; loom refuses a racy access before it happens.
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

const RECORD: [u64; 8] = [2, 2, 2, 20, 10, 10, 6, 100];

fn buffer<const WEAK: u8>(fields: [u64; 8]) -> Arc<TelemetryBuffer<ReadOnly<Patient<WEAK>>>> {
    let [sequence, processed, dropped, latency_total_ns, latency_min_ns, latency_max_ns, depths, updated_ns] =
        fields.map(|field| ReadOnly::new(Patient::new(field)));
    Arc::new(TelemetryBuffer { sequence, processed, dropped, latency_total_ns, latency_min_ns, latency_max_ns, depths, updated_ns })
}

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
            // SAFETY: the only writer.
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
            // SAFETY: the only writer.
            unsafe { buffer.reset() };
        }
    });
    look(&buffer, [RECORD, [4, 0, 0, 0, 0, 0, 0, 0]]);
    writer.join().unwrap();
}

const PREEMPTIONS: usize = 2;

#[test]
fn a_snapshot_is_never_torn() {
    check(PREEMPTIONS, a_record_is_read_while_it_is_written::<STRONG>);
}

#[test]
fn a_snapshot_during_a_reset_is_never_torn() {
    check(PREEMPTIONS, a_record_is_read_while_it_is_taken_back::<STRONG>);
}

#[test]
fn relaxed_field_stores_tear_a_snapshot() {
    must_fail("torn", PREEMPTIONS, a_record_is_read_while_it_is_written::<WRITER_PUBLISHES_RELAXED>);
    must_fail("torn", PREEMPTIONS, a_record_is_read_while_it_is_taken_back::<WRITER_PUBLISHES_RELAXED>);
}

#[test]
fn relaxed_field_loads_tear_a_snapshot() {
    must_fail("torn", PREEMPTIONS, a_record_is_read_while_it_is_written::<READER_LOOKS_RELAXED>);
    must_fail("torn", PREEMPTIONS, a_record_is_read_while_it_is_taken_back::<READER_LOOKS_RELAXED>);
}

struct Block<const WEAK: u8> {
    block: ControlBlock<ReadOnly<LoomWord<WEAK>>>,
    payload: LoomCell<u64>,
}

// SAFETY: loom checks whether the words order the payload.
unsafe impl<const WEAK: u8> Sync for Block<WEAK> {}
// SAFETY: loom checks whether the words order the payload.
unsafe impl<const WEAK: u8> Send for Block<WEAK> {}

impl<const WEAK: u8> Block<WEAK> {
    fn zeroed() -> Arc<Self> {
        let zero = || ReadOnly::new(LoomWord::new(0));
        let block = ControlBlock {
            abi: zero(),
            capabilities: zero(),
            command: zero(),
            epoch: zero(),
            input_ring: zero(),
            output_ring: zero(),
            telemetry: zero(),
            input_second: zero(),
            state: zero(),
            command_seen: zero(),
            error: zero(),
            processed: zero(),
            in_flight: zero(),
            output_second: zero(),
            heartbeat: zero(),
            abi_seen: zero(),
        };
        Arc::new(Self { block, payload: LoomCell::new(0) })
    }
    fn host(&self) -> HostSide<'_, LoomWord<WEAK>> {
        // SAFETY: no kernel runs; one host per model.
        unsafe { HostSide::prepare(&self.block, &LAUNCH) }
    }
    fn device(&self) -> DeviceSide<'_, LoomWord<WEAK>> {
        // SAFETY: one kernel per model.
        unsafe { DeviceSide::attach(&self.block, LAUNCH.epoch) }
    }
    fn write(&self) {
        // SAFETY: the other side reads after it has seen a word, as loom checks.
        self.payload.with_mut(|payload| unsafe { payload.write(7) });
    }
    fn read(&self) -> u64 {
        // SAFETY: the other side has written before it stored the word that this side has seen, as loom checks.
        self.payload.with(|payload| unsafe { payload.read() })
    }
}

const LAUNCH: Launch = Launch {
    abi: 1,
    capabilities: Capabilities::SYSTEM_SCOPE,
    epoch: 7,
    input_ring: 128,
    output_ring: 256,
    second_headers: [None; 2],
    telemetry: 512,
};

fn told<const WEAK: u8>(block: &Arc<Block<WEAK>>, writes: impl FnOnce(&Block<WEAK>) + Send + 'static, reads: impl FnOnce(&Block<WEAK>)) {
    let writer = thread::spawn({
        let block = Arc::clone(block);
        move || {
            take_side(Side::Writer);
            writes(&block);
        }
    });
    take_side(Side::Reader);
    reads(block);
    writer.join().unwrap();
}

fn until(mut is_so: impl FnMut() -> bool) {
    while !is_so() {
        thread::yield_now();
    }
}

fn one(ring: u64) -> RingHeaders {
    RingHeaders { ring, own: ring, peer: ring }
}

fn a_block_is_prepared<const WEAK: u8>() {
    let reads = |block: &Block<WEAK>| {
        until(|| block.block.state.load() != 0);
        let device = block.device();
        assert_eq!(
            (device.addresses(), device.is_current()),
            (Addresses { input: one(128), output: one(256), telemetry: 512 }, true),
            "half prepared"
        );
    };
    let writes = |block: &Block<WEAK>| {
        let _ = block.host();
    };
    told(&Block::zeroed(), writes, reads);
}

fn a_command_is_given<const WEAK: u8>() {
    let block = Block::<WEAK>::zeroed();
    let _ = block.host();
    let writes = |block: &Block<WEAK>| {
        let mut host = block.host();
        block.write();
        host.command(Command::ACTIVATE);
    };
    told(&block, writes, |block| {
        let device = block.device();
        until(|| device.command().0 == 1);
        assert_eq!(block.read(), 7);
    });
}

fn a_state_is_entered<const WEAK: u8>() {
    let block = Block::<WEAK>::zeroed();
    let host = block.host();
    let writes = |block: &Block<WEAK>| {
        let mut device = block.device();
        block.write();
        assert!(device.enter(State::Ready));
    };
    told(&block, writes, |block| {
        until(|| host.state() == Some(State::Ready));
        assert_eq!(block.read(), 7);
    });
}

fn a_command_is_acknowledged<const WEAK: u8>() {
    let block = Block::<WEAK>::zeroed();
    let mut host = block.host();
    let sequence = host.command(Command::PAUSE);
    let writes = move |block: &Block<WEAK>| {
        let mut device = block.device();
        block.write();
        device.acknowledge(sequence);
    };
    told(&block, writes, |block| {
        until(|| host.acknowledged());
        assert_eq!(block.read(), 7);
    });
}

const RACE: &str = "Causality violation";

#[test]
fn control_block_words_publish_earlier_writes() {
    check(PREEMPTIONS, a_block_is_prepared::<STRONG>);
    check(PREEMPTIONS, a_command_is_given::<STRONG>);
    check(PREEMPTIONS, a_state_is_entered::<STRONG>);
    check(PREEMPTIONS, a_command_is_acknowledged::<STRONG>);
}

#[test]
fn relaxed_control_block_stores_are_detected() {
    must_fail("half prepared", PREEMPTIONS, a_block_is_prepared::<WRITER_PUBLISHES_RELAXED>);
    must_fail(RACE, PREEMPTIONS, a_command_is_given::<WRITER_PUBLISHES_RELAXED>);
    must_fail(RACE, PREEMPTIONS, a_state_is_entered::<WRITER_PUBLISHES_RELAXED>);
    must_fail(RACE, PREEMPTIONS, a_command_is_acknowledged::<WRITER_PUBLISHES_RELAXED>);
}

#[test]
fn relaxed_control_block_loads_are_detected() {
    must_fail("half prepared", PREEMPTIONS, a_block_is_prepared::<READER_LOOKS_RELAXED>);
    must_fail(RACE, PREEMPTIONS, a_command_is_given::<READER_LOOKS_RELAXED>);
    must_fail(RACE, PREEMPTIONS, a_state_is_entered::<READER_LOOKS_RELAXED>);
    must_fail(RACE, PREEMPTIONS, a_command_is_acknowledged::<READER_LOOKS_RELAXED>);
}
