use std::mem;

use ringmem::Error;

use super::*;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Moment {
    Before,
    InFlight,
    Whole,
    Held,
    HeldAndInFlight,
}

const MOMENTS: [Moment; 5] = [Moment::Before, Moment::InFlight, Moment::Whole, Moment::Held, Moment::HeldAndInFlight];

fn at(moment: Moment, policy: Policy) -> (Rig, Option<Held>) {
    let mut rig = Rig::new(2, policy);
    if matches!(moment, Moment::Whole | Moment::Held | Moment::HeldAndInFlight) {
        rig.arrive(1);
    }
    if matches!(moment, Moment::Held | Moment::HeldAndInFlight) {
        assert_eq!(rig.latest(), Some((1, 1)));
    }
    let held = matches!(moment, Moment::InFlight | Moment::HeldAndInFlight).then(|| {
        let held = Held::new(&rig.backend, &rig.work);
        rig.start(2).expect("a slot");
        held
    });
    (rig, held)
}

fn forgets_slots(backend: &Clean, most: u64) {
    let counters = backend.counters();
    let slots = counters.pinned_live.bytes / BYTES;
    assert_eq!(counters.pinned_live.bytes, slots * BYTES);
    assert!(slots <= most, "{slots}");
    (0..slots).for_each(|_| backend.forgets());
}

#[test]
fn halves_can_be_dropped_in_any_order_without_leaks() {
    for policy in [Policy::Newest, EVERY] {
        for moment in MOMENTS {
            for reader_first in [false, true] {
                let (Rig { writer, reader, source, work, backend }, held) = at(moment, policy);
                if reader_first {
                    drop(reader);
                    drop(writer);
                } else {
                    drop(writer);
                    drop(reader);
                }
                drop(held);
                work.synchronize().expect("no fault");
                drop(source);
                eventually("all is freed", || backend.counters().pinned_live.bytes == 0);
                assert_eq!(backend.counters().unreported, 0, "{policy:?}, {moment:?}");
            }
        }
    }
}

#[test]
fn started_frames_are_readable_after_the_writer_ended() {
    for forgets in [false, true] {
        for moment in MOMENTS {
            let (Rig { writer, mut reader, source, work, backend }, held) = at(moment, Policy::Newest);
            if forgets {
                mem::forget(writer);
            } else {
                drop(writer);
            }
            drop(held);
            let expected = match moment {
                Moment::Before | Moment::Held => None,
                Moment::Whole => Some((1, 1)),
                Moment::InFlight => Some((1, 2)),
                Moment::HeldAndInFlight => Some((2, 2)),
            };
            let wait = if expected.is_some() { LIMIT } else { Duration::ZERO };
            assert_eq!(whole(reader.next(wait)), expected, "{moment:?}, forgotten: {forgets}");
            assert_eq!(whole(reader.next(Duration::ZERO)), None);
            assert_eq!(reader.is_over(), !forgets);
            drop((reader, source, work));
            if forgets {
                forgets_slots(&backend, 2);
            }
        }
    }
}

#[test]
fn a_writer_with_a_forgotten_reader_continues_within_its_slots() {
    for policy in [Policy::Newest, EVERY] {
        for moment in MOMENTS {
            let (mut rig, held) = at(moment, policy);
            let (_, other) = double_buffer::pair(Pinned::new(&rig.backend, 0), 1, EVERY).expect("a stream");
            mem::forget(mem::replace(&mut rig.reader, other));
            drop(held);
            rig.landed();
            let refused = (0..10).map(|value| rig.start(value)).filter_map(Result::err).map(|error| match error {
                Error::Busy { .. } => 1,
                error => panic!("{error}"),
            });
            let refused: u32 = refused.sum();
            rig.landed();
            assert!(
                if policy == EVERY { refused >= 8 } else { refused < 10 || moment == Moment::HeldAndInFlight },
                "{policy:?}, {moment:?}: {refused}"
            );
            let Rig { writer, reader, source, work, backend } = rig;
            drop((writer, reader, source, work));
            forgets_slots(&backend, 2);
        }
    }
}

#[test]
fn a_forgotten_frame_keeps_no_slot() {
    let mut rig = Rig::new(2, EVERY);
    for value in 1..20 {
        rig.arrive(value);
        #[allow(clippy::forget_non_drop, reason = "whether there is anything to forget is what it is about")]
        mem::forget(rig.reader.next(LIMIT));
    }
}

#[test]
fn writers_and_readers_are_send() {
    fn is_send<T: Send>(_: &T) {}
    let rig = Rig::new(1, EVERY);
    is_send(&rig.writer);
    is_send(&rig.reader);
}
