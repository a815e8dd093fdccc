use ringmem::Error;
use ringmem::memory::Buffer;

use super::*;

#[test]
fn nothing_is_readable_before_the_first_whole_frame() {
    for policy in [Policy::Newest, EVERY] {
        let mut rig = Rig::new(2, policy);
        assert_eq!((rig.latest(), rig.next()), (None, None), "none was started");
        let held = Held::new(&rig.backend, &rig.work);
        assert_eq!(rig.start(7).expect("a slot"), 1);
        assert_eq!((rig.latest(), rig.next()), (None, None), "a kernel is in front of it");
        held.let_go();
        assert_eq!(whole(rig.reader.next(LIMIT)), Some((1, 7)));
    }
}

#[test]
fn latest_returns_the_newest_whole_frame_until_released() {
    let mut rig = Rig::new(3, Policy::Newest);
    for value in 1..=10 {
        rig.arrive(value);
    }
    assert_eq!((rig.latest(), rig.latest()), (Some((10, 10)), Some((10, 10))));
    let held = Held::new(&rig.backend, &rig.work);
    rig.start(11).expect("a slot");
    assert_eq!(rig.latest(), Some((10, 10)), "the next one is in flight");
    held.let_go();
    rig.landed();
    assert_eq!(rig.latest(), Some((11, 11)));
    rig.reader.release();
    assert_eq!((rig.latest(), rig.next()), (None, None), "an older one never comes back");
}

#[test]
fn a_held_frame_stays_unchanged() {
    let mut rig = Rig::new(3, Policy::Newest);
    rig.arrive(1);
    let Rig { writer, reader, source, work, .. } = &mut rig;
    let held = reader.latest().expect("no fault").expect("one has arrived");
    for value in 2..20 {
        let filled = work.fill(source.take().expect("it is there"), .., value).expect("queued").detach();
        writer.start(source.insert(filled), ..).expect("a slot");
        source.as_mut().expect("it is there").settle().expect("no fault");
        assert_eq!(held, Frame { sequence: 1, elements: &[1; LEN] }, "after frame {value}");
    }
    assert_eq!(rig.latest(), Some((19, 19)));
}

#[test]
fn a_second_transfer_uses_the_other_slot() {
    for policy in [Policy::Newest, EVERY] {
        let mut rig = Rig::new(2, policy);
        let held = Held::new(&rig.backend, &rig.work);
        assert_eq!((rig.start(1).expect("a slot"), rig.start(2).expect("the other")), (1, 2));
        let refused = rig.start(3).expect_err("both are in flight");
        assert!(matches!(refused, Error::Busy { .. }), "{refused}");
        held.let_go();
        assert_eq!(whole(rig.reader.next(LIMIT)), Some((1, 1)));
        assert_eq!(whole(rig.reader.next(LIMIT)), Some((2, 2)));
        assert_eq!(rig.arrive(4), 3, "one that was refused took no number");
        assert_eq!(rig.next(), Some((3, 4)));
    }
}

#[test]
fn the_newest_whole_frame_is_never_overwritten() {
    let mut rig = Rig::new(2, Policy::Newest);
    rig.arrive(1);
    rig.arrive(2);
    let held = Held::new(&rig.backend, &rig.work);
    assert_eq!(rig.start(3).expect("the first gives way"), 3);
    rig.start(4).expect_err("the second is the newest that is whole");
    assert_eq!(rig.latest(), Some((2, 2)));
    held.let_go();
    rig.landed();
    assert_eq!(rig.latest(), Some((3, 3)));
}

#[test]
fn next_returns_frames_in_order_without_gaps() {
    for slots in 1..=4 {
        let mut rig = Rig::new(slots, EVERY);
        let mut read = Vec::new();
        for round in 0..20 {
            let before = read.len() as u64;
            for value in 1..=slots as u64 {
                assert_eq!(rig.arrive((before + value) as u32), before + value);
            }
            rig.start(0).expect_err("none was read");
            while let Some(frame) = rig.next() {
                read.push(frame);
            }
            assert_eq!(read.len(), (round + 1) * slots);
        }
        assert!(read.iter().zip(1..).all(|(&frame, number)| frame == (number, number as u32)), "{slots} slots: {read:?}");
    }
}

#[test]
fn a_released_frame_makes_room_for_a_transfer() {
    let mut rig = Rig::new(1, EVERY);
    rig.arrive(1);
    assert_eq!(rig.next(), Some((1, 1)));
    rig.start(2).expect_err("it is held");
    rig.reader.release();
    assert_eq!(rig.arrive(2), 2);
    assert_eq!(rig.next(), Some((2, 2)));
    assert_eq!(rig.next(), None, "and released");
    assert_eq!(rig.arrive(3), 3);
}

#[test]
fn start_waits_for_the_reader_when_configured() {
    let Rig { mut writer, mut reader, source, work, backend } = Rig::new(2, Policy::Every { wait: LIMIT });
    let mut source = work.fill(source.expect("it is there"), .., 5).expect("queued").detach();
    writer.start(&mut source, ..).expect("a slot");
    writer.start(&mut source, ..).expect("the other");
    let waits = thread::spawn(move || {
        assert_eq!(writer.start(&mut source, ..).expect("in time"), 3);
        source.settle().expect("no fault");
    });
    thread::sleep(Duration::from_millis(50));
    assert!(!waits.is_finished());
    assert_eq!(whole(reader.next(LIMIT)), Some((1, 5)));
    reader.release();
    eventually("the writer is through", || waits.is_finished());
    waits.join().expect("no panic");
    assert_eq!([2, 3].map(|_| whole(reader.next(LIMIT))), [Some((2, 5)), Some((3, 5))]);
    drop((reader, work, backend));
}

#[test]
fn start_returns_busy_after_its_wait_and_works_later() {
    let mut rig = Rig::new(1, Policy::Every { wait: Duration::from_millis(20) });
    rig.arrive(1);
    let refused = rig.start(2).expect_err("nobody reads");
    assert!(matches!(refused, Error::Busy { .. }), "{refused}");
    assert_eq!(rig.next(), Some((1, 1)));
    rig.reader.release();
    assert_eq!(rig.arrive(3), 2);
}

#[test]
fn a_frame_start_or_the_writer_s_drop_wakes_a_reader() {
    let Rig { mut writer, mut reader, source, work: _work, backend } = Rig::new(2, EVERY);
    let reads = thread::spawn(move || {
        let first = whole(reader.next(Duration::MAX));
        (first.map(|(sequence, _)| sequence), whole(reader.next(Duration::MAX)), reader.is_over())
    });
    thread::sleep(Duration::from_millis(20));
    let mut source = source.expect("it is there");
    source.fill(9).expect("live");
    writer.start(&mut source, ..).expect("a slot");
    thread::sleep(Duration::from_millis(20));
    drop(writer);
    eventually("the reader is through", || reads.is_finished());
    assert_eq!(reads.join().expect("no panic"), (Some(1), None, true));
    drop((source, backend));
}

#[test]
fn a_reader_that_times_out_loses_no_frame() {
    let mut rig = Rig::new(2, EVERY);
    let held = Held::new(&rig.backend, &rig.work);
    rig.start(1).expect("a slot");
    rig.start(2).expect("the other");
    for _ in 0..3 {
        assert_eq!(whole(rig.reader.next(Duration::from_millis(5))), None);
    }
    rig.start(3).expect_err("both are still in flight");
    held.let_go();
    assert_eq!([1, 2].map(|_| whole(rig.reader.next(LIMIT))), [Some((1, 1)), Some((2, 2))]);
}

#[test]
fn a_frame_has_the_length_of_its_source_range() {
    let mut rig = Rig::new(2, EVERY);
    let mut source = rig.source.take().expect("it is there");
    source.copy_from(&std::array::from_fn::<u32, LEN, _>(|index| index as u32)).expect("as many");
    for part in [0..LEN, 10..20, 63..64, 5..5, 0..LEN] {
        rig.writer.start(&mut source, part.clone()).expect("a slot");
        let frame = rig.reader.next(LIMIT).expect("no fault").expect("in time");
        assert!(frame.elements.iter().copied().eq(part.start as u32..part.end as u32), "{frame:?}");
    }
}

#[test]
fn frames_allocate_each_slot_once() {
    let mut rig = Rig::new(3, Policy::Newest);
    for value in 1..=100 {
        rig.arrive(value);
        assert_eq!(rig.latest(), Some((value.into(), value)));
    }
    let counters = rig.backend.counters();
    assert_eq!((counters.pinned_allocations.count, counters.pinned_allocations.bytes), (2, 2 * BYTES), "one is held, one is written");
    assert_eq!((counters.downloads.count, counters.downloads.bytes), (100, 100 * BYTES));
    assert_eq!((counters.host_copies.count, counters.device_copies.count), (0, 0));
}

#[test]
fn a_frame_follows_the_length_of_a_new_source() {
    let mut rig = Rig::new(2, Policy::Newest);
    for len in [1, 100, 1000, 10] {
        let grown = Buffer::new(Device::new(&rig.backend, 0), len).expect("room");
        rig.source = Some(grown);
        rig.arrive(len as u32);
        let frame = rig.reader.latest().expect("no fault").expect("it has arrived");
        assert_eq!(frame.elements, vec![len as u32; len]);
    }
}

#[test]
fn a_reader_is_over_after_the_last_unread_frame() {
    let mut rig = Rig::new(2, EVERY);
    rig.arrive(1);
    rig.arrive(2);
    assert!(!rig.reader.is_over(), "the writer lives");
    let Rig { writer, mut reader, .. } = rig;
    drop(writer);
    for frame in [(1, 1), (2, 2)] {
        assert!(!reader.is_over(), "{frame:?} is unread");
        assert_eq!(whole(reader.next(LIMIT)), Some(frame));
    }
    assert!(reader.is_over());
}
