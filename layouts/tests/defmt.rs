//! Values written through defmt.

use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use defmt::Format;
use ringmem_layouts::attach::{AttachError, Corrupt};
use ringmem_layouts::control::{Capabilities, Command, Fault, Launch, State};
use ringmem_layouts::dump::{Conclusion, Dump, Indices, Side, Twins};
use ringmem_layouts::region::{RegionEntry, RegionHeader};
use ringmem_layouts::ring::{LayoutError, RingFlags, framed, lossy, spsc};
use ringmem_layouts::telemetry::Busy;
use ringmem_layouts::watchdog::{Verdict, Watchdog};
use ringmem_layouts::{ControlBlock, RingHeader, TelemetryBuffer};
use zerocopy::FromZeros;

static WRITTEN: AtomicUsize = AtomicUsize::new(0);
static COUNTING: Mutex<()> = Mutex::new(());

#[defmt::global_logger]
struct Counter;

// SAFETY: `COUNTING` excludes other threads from acquire to release; no re-entry.
unsafe impl defmt::Logger for Counter {
    fn acquire() {}
    unsafe fn flush() {}
    unsafe fn release() {}
    unsafe fn write(bytes: &[u8]) {
        WRITTEN.fetch_add(bytes.len(), Relaxed);
    }
}

defmt::timestamp!("{=u8}", 0);

fn bytes(value: &dyn Fn()) -> usize {
    let before = WRITTEN.load(Relaxed);
    value();
    WRITTEN.load(Relaxed) - before
}

#[derive(Format)]
struct Name;

macro_rules! each_is_written {
    ($least:literal: $($value:expr),+ $(,)?) => {{
        let _alone = COUNTING.lock().unwrap_or_else(|broken| broken.into_inner());
        let name = bytes(&|| defmt::error!("{}", Name));
        assert!(name > 0, "nothing reaches the logger");
        $({
            let value = $value;
            fn formats(_: &impl Format) {}
            formats(&value);
            let written = bytes(&|| defmt::error!("{}", value)) - name;
            assert!(written >= $least, "{}: {written} bytes", stringify!($value));
        })+
    }};
}

#[test]
fn states_faults_and_verdicts_have_their_encoded_size() {
    each_is_written!(1: State::ALL[4], Fault::Corrupt, Side::Input, Verdict::Alive, Conclusion::Idle, spsc::PopError::<Corrupt>::Empty);
    each_is_written!(9: Verdict::Stuck { for_ns: 1 }, Conclusion::Working { waiting: 1, in_flight: 1 });
}

#[test]
fn flags_are_encoded_with_their_bits() {
    each_is_written!(8: Command::DRAIN, Command::from_bits_retain(!0));
    each_is_written!(12: Capabilities::TELEMETRY, RingFlags::MPMC);
}

#[test]
fn errors_are_encoded_with_their_fields() {
    let corrupt = Corrupt { head: 1, tail: 2, capacity: 3 };
    each_is_written!(1: Err::<u8, Busy>(Busy));
    each_is_written!(1: LayoutError::ZeroSized);
    each_is_written!(24: corrupt, spsc::PopError::Corrupt(corrupt), AttachError::Corrupt(corrupt), framed::PopError::Corrupt(corrupt));
    each_is_written!(9: AttachError::Count { got: 1 }, spsc::PushError::<_, Corrupt>::Full(7_u64), LayoutError::NotAPowerOfTwo { capacity: 3 });
    each_is_written!(1: framed::PushError::<Corrupt>::Full, spsc::ReserveError::<Corrupt>::Full { free: 1 }, lossy::ReadError::<Corrupt>::Empty, lossy::LatestError::Empty);
}

#[test]
fn snapshots_are_encoded_whole() {
    let (control, telemetry) = (ControlBlock::<u64>::new_zeroed(), TelemetryBuffer::<u64>::new_zeroed());
    let ring = Indices { head: 0, tail: 0, capacity: 8 };
    each_is_written!(120: control, RingHeader::<u64>::new_zeroed());
    each_is_written!(56: telemetry, RegionHeader::<u64>::new_zeroed());
    each_is_written!(24: RegionEntry::<u64>::new_zeroed(), ring);
    each_is_written!(9: Watchdog::new(1));
    each_is_written!(200: Dump { control, telemetry: Ok(telemetry), input: ring, output: ring, twins: Twins::Seen([ring; 2]), verdict: Verdict::Alive });
    let capabilities = Capabilities::empty();
    each_is_written!(40: Launch { abi: 0, capabilities, epoch: 1, input_ring: 0, output_ring: 0, second_headers: [None; 2], telemetry: 0 });
}
