//! A hybrid logical clock against a model.

#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use ringmem_layouts::HostWord;
use ringmem_layouts::clock::{HybridClock, LAST_US, Stamp, tick};

#[derive(Arbitrary, Debug)]
struct Input {
    written: Option<u64>,
    calls: Vec<Call>,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Call {
    Tick(Time),
    Merge { remote: Remote, now: Time, most_ahead: Time },
    Burst(u8),
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Time {
    Near(u8),
    BeforeTheLast(u8),
    Any(u64),
}

impl Time {
    fn us(self) -> u64 {
        match self {
            Self::Near(us) => us.into(),
            Self::BeforeTheLast(us) => LAST_US - u64::from(us),
            Self::Any(us) => us,
        }
    }
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Remote {
    At(Time, u16),
    Any(u64),
}

impl Remote {
    fn stamp(self) -> Stamp {
        match self {
            Self::At(time, counter) => Stamp::from_bits(Stamp::at(time.us()).bits() | u64::from(counter % 4096)),
            Self::Any(bits) => Stamp::from_bits(bits),
        }
    }
}

fn merge(clock: &HybridClock<HostWord>, remote: Stamp, now_us: u64, most_ahead_us: u64) -> Option<Stamp> {
    let before = clock.last();
    let ahead = u128::from(remote.physical_us()) > u128::from(now_us) + u128::from(most_ahead_us);
    match clock.merge(remote, now_us, most_ahead_us) {
        Ok(stamp) => {
            assert!(!ahead && remote.physical_us() <= LAST_US);
            Some(stamp)
        }
        Err(drift) => {
            assert!(ahead || remote.physical_us() > LAST_US);
            assert_eq!((drift.remote, drift.now_us, drift.most_ahead_us), (remote, now_us, most_ahead_us));
            assert!(!drift.to_string().is_empty());
            assert_eq!(clock.last(), before);
            None
        }
    }
}

fuzz_target!(|input: Input| {
    let clock = HybridClock { last: HostWord::new(input.written.unwrap_or(0)) };
    let (mut last, mut greatest, mut stamps) = (0, 0, 0);
    let mut given = |stamp: Stamp, floor: u64| {
        if input.written.is_some() {
            return;
        }
        let bits = stamp.bits();
        assert!(bits > last && bits >= floor);
        (greatest, stamps) = (floor.max(greatest), stamps + 1);
        assert!(bits <= greatest + stamps, "{stamp} is further ahead than what was given");
        assert_eq!(bits, (last + 1).max(floor));
        last = bits;
    };
    for call in input.calls {
        match call {
            Call::Tick(time) => {
                let before = clock.last();
                let stamp = clock.tick(time.us());
                assert_eq!(stamp.bits(), tick(before.bits(), time.us()), "alone as together");
                given(stamp, Stamp::at(time.us()).bits());
            }
            Call::Merge { remote, now, most_ahead } => {
                let (remote, now_us) = (remote.stamp(), now.us());
                if let Some(stamp) = merge(&clock, remote, now_us, most_ahead.us()) {
                    given(stamp, Stamp::at(now_us).bits().max(remote.bits() + 1));
                }
            }
            Call::Burst(count) => (0..count).for_each(|_| given(clock.tick(0), 0)),
        }
    }
});
