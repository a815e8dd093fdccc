use super::*;

fn placements(strategy: TransferStrategy) -> Vec<Placement> {
    match strategy {
        TransferStrategy::Unified => vec![Placement::PINNED],
        _ => vec![Placement::DEVICE, Placement::SPLIT, Placement::PINNED, Placement::UNIFIED],
    }
}

#[test]
fn every_message_arrives_once_in_order_by_every_strategy_between_every_pair_of_places() {
    for strategy in STRATEGIES {
        for placement in placements(strategy) {
            for capacity in [1, 4, 64] {
                let backend = backend();
                let count = 20 * capacity + 300;
                let mut rig = rig(&backend, &options(strategy, placement, capacity), count);
                assert_eq!(exchange(&mut rig, count), 0, "{strategy:?} {placement:?}");
                until("the kernel has left", || rig.kernel.is_done());
                let [up, down] = rig.bridge.metrics();
                if strategy != TransferStrategy::Unified {
                    until("all slots are given back", || rig.bridge.poll().is_ok() && rig.bridge.metrics()[0].messages == count);
                    assert_eq!((up.bytes, down.messages, down.bytes), (count * 64, count, count * 64), "{strategy:?} {placement:?}");
                }
            }
        }
    }
}

#[test]
fn a_flush_is_one_copy_or_two_where_it_wraps_and_one_index() {
    let backend = backend();
    let Opened { mut sender, mut bridge, .. } =
        open(&backend, &Options { start: 6, ..options(TransferStrategy::Sync, Placement::SPLIT, 8) });
    let counters = || {
        let counters = backend.counters();
        (counters.uploads.count, counters.uploads.bytes, counters.publications)
    };
    let before = counters();
    for number in 0..5 {
        sender.push(message(number)).expect("room");
    }
    assert_eq!(bridge.flush_to_device().expect("no fault"), 5);
    let after = counters();
    assert_eq!((after.0 - before.0, after.1 - before.1, after.2 - before.2), (2, 5 * 64, 1), "slots 6 and 7, then 0 to 2");
    sender.push(message(5)).expect("room");
    assert_eq!(bridge.flush_to_device().expect("no fault"), 1);
    let last = counters();
    assert_eq!((last.0 - after.0, last.1 - after.1, last.2 - after.2), (1, 64, 1));
    assert_eq!(bridge.flush_to_device().expect("no fault"), 0);
    assert_eq!(counters(), last, "nothing to move is no call");
    for number in 6..20 {
        let fits = number < 14;
        assert_eq!(sender.push(message(number)).is_ok(), fits, "six are at the device and were given back");
        if !fits {
            break;
        }
    }
    assert_eq!(bridge.flush_to_device().expect("no fault"), 2, "two slots are free at the device");
    assert_eq!(bridge.flush_to_device().expect("no fault"), 0);
    let [up, _] = bridge.metrics();
    assert_eq!((up.messages, up.full, up.flushes), (8, 1, 3));
    assert_eq!(bridge.pending()[0], 6);
}
