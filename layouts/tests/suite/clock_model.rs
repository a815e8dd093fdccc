use proptest::collection::vec;
use proptest::prelude::*;
use ringmem_layouts::HostWord;
use ringmem_layouts::clock::{Drift, HybridClock, LAST_US, Stamp, tick};

fn clock(last: u64) -> HybridClock<HostWord> {
    HybridClock { last: HostWord::new(last) }
}

#[test]
fn a_microsecond_holds_4096_stamps() {
    let patient = clock(0);
    for now_us in 1_000..1_020 {
        for counter in 0..4096 {
            let stamp = patient.tick(now_us);
            assert_eq!((stamp.physical_us(), stamp.counter()), (now_us, counter));
        }
    }
    let hasty = clock(0);
    for ahead in 0..20 {
        for _ in 0..4096 {
            assert_eq!(hasty.tick(1_000).physical_us(), 1_000 + ahead);
        }
    }
    assert_eq!(hasty.tick(1_019).physical_us(), 1_020);
    assert_eq!(hasty.tick(1_021), Stamp::at(1_021));
}

#[test]
fn merge_rejects_a_stamp_too_far_ahead() {
    let clock = clock(0);
    let before = clock.tick(1_000);
    let remote = Stamp::from_bits(Stamp::at(1_501).bits() | 9);
    assert_eq!(clock.merge(remote, 1_000, 500), Err(Drift { remote, now_us: 1_000, most_ahead_us: 500 }));
    assert_eq!(clock.last(), before);
    assert_eq!(
        Drift { remote, now_us: 1_000, most_ahead_us: 500 }.to_string(),
        "stamp 1501+9 is 501 us ahead of the local time, 1000 us: at most 500 us ahead is allowed, and no stamp after 4222124650659839 us"
    );
    let merged = clock.merge(remote, 1_001, 500).unwrap();
    assert_eq!(merged.bits(), remote.bits() + 1);
    assert!(clock.tick(1_001) > merged);
}

#[test]
fn merging_a_past_stamp_acts_as_a_tick() {
    let clock = clock(0);
    let stamp = clock.merge(Stamp::at(5), 1_000, 0).unwrap();
    assert_eq!(stamp, Stamp::at(1_000));
    assert_eq!(clock.merge(stamp, 10, 990).unwrap().bits(), stamp.bits() + 1, "the time stepped back");
}

#[test]
fn stamps_past_the_last_time_increment_only() {
    assert_eq!(Stamp::at(u64::MAX), Stamp::at(LAST_US));
    let clock = clock(0);
    let mut last = clock.tick(LAST_US);
    for now_us in [LAST_US, LAST_US + 1, 1 << 52, u64::MAX] {
        let stamp = clock.tick(now_us);
        assert_eq!(stamp.bits(), last.bits() + 1, "at {now_us}");
        assert_eq!(tick(last.bits(), now_us), stamp.bits(), "alone as together");
        last = stamp;
    }
    assert!(u64::MAX - last.bits() > 1 << 59);
    let remote = Stamp::from_bits(u64::MAX);
    assert_eq!(clock.merge(remote, u64::MAX, u64::MAX), Err(Drift { remote, now_us: u64::MAX, most_ahead_us: u64::MAX }));
    assert_eq!(clock.last(), last);
    assert!(clock.merge(Stamp::at(LAST_US), u64::MAX, 1).is_ok(), "a sum that 64 bits do not hold");
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Tick(u64),
    Merge { remote: u64, now_us: u64, most_ahead_us: u64 },
}

fn op() -> impl Strategy<Value = Op> {
    let time = || prop_oneof![0_u64..40, Just(LAST_US - 1), Just(LAST_US), any::<u64>()];
    let remote = prop_oneof![0_u64..(40 << 12), any::<u64>()];
    prop_oneof![
        time().prop_map(Op::Tick),
        (remote, time(), prop_oneof![0_u64..20, any::<u64>()]).prop_map(|(remote, now_us, most_ahead_us)| Op::Merge {
            remote,
            now_us,
            most_ahead_us
        }),
    ]
}

proptest! {
    #[test]
    fn a_clock_follows_its_model(ops in vec(op(), 0..200)) {
        let clock = clock(0);
        let (mut last, mut greatest, mut stamps) = (0, 0, 0);
        for op in ops {
            let (stamp, floor) = match op {
                Op::Tick(now_us) => {
                    prop_assert_eq!(clock.tick(now_us).bits(), tick(last, now_us));
                    (clock.last(), Stamp::at(now_us).bits())
                }
                Op::Merge { remote, now_us, most_ahead_us } => {
                    let remote = Stamp::from_bits(remote);
                    let allowed = u128::from(remote.physical_us()) <= u128::from(now_us) + u128::from(most_ahead_us)
                        && remote.physical_us() <= LAST_US;
                    let merged = clock.merge(remote, now_us, most_ahead_us);
                    prop_assert_eq!(merged.is_ok(), allowed);
                    let Ok(stamp) = merged else {
                        prop_assert_eq!(clock.last().bits(), last);
                        continue;
                    };
                    prop_assert!(stamp > remote);
                    (stamp, Stamp::at(now_us).bits().max(remote.bits() + 1))
                }
            };
            prop_assert!(stamp.bits() > last && stamp.bits() >= floor);
            (greatest, stamps) = (floor.max(greatest), stamps + 1);
            prop_assert!(stamp.bits() <= greatest + stamps);
            prop_assert_eq!(stamp.bits(), floor.max(last + 1));
            last = stamp.bits();
        }
    }

    #[test]
    fn a_stamp_round_trips_through_its_bits(bits in any::<u64>()) {
        let stamp = Stamp::from_bits(bits);
        prop_assert_eq!(stamp.physical_us() << 12 | u64::from(stamp.counter()), bits);
        prop_assert_eq!(stamp.bits(), bits);
        prop_assert_eq!(stamp.to_string(), format!("{}+{}", bits >> 12, bits & 0xfff));
    }
}
