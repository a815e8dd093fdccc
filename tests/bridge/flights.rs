use super::*;

#[test]
fn a_bridge_that_is_dropped_or_forgotten_with_transfers_under_way_harms_nobody() {
    for forget in [false, true] {
        let backend = backend();
        for _ in 0..50 {
            let Opened { mut sender, receiver, mut bridge } = open(&backend, &options(TransferStrategy::Async, Placement::DEVICE, 64));
            for number in 0..64 {
                sender.push(message(number)).expect("room");
            }
            assert_eq!(bridge.flush_to_device().expect("no fault"), 64);
            if forget {
                std::mem::forget(bridge);
            } else {
                drop(bridge);
                assert!(sender.is_disconnected() && receiver.is_disconnected());
            }
        }
        if !forget {
            until("all memory is given back", || backend.counters().device_live.bytes == 0 && backend.counters().pinned_live.bytes == 0);
        }
    }
}

#[test]
fn a_kernel_that_takes_nothing_fills_its_ring_and_no_more() {
    for strategy in [TransferStrategy::Sync, TransferStrategy::Async] {
        let backend = backend();
        let Opened { mut sender, mut bridge, .. } = open(&backend, &options(strategy, Placement::SPLIT, 4));
        let mut sent = 0;
        until("four are at the device, four at the host", || {
            sent += u64::from(sender.push(message(sent)).is_ok());
            bridge.flush_to_device().expect("no fault");
            sent == 8
        });
        for _ in 0..100 {
            assert_eq!(bridge.flush_to_device().expect("no fault"), 0);
            assert!(sender.push(message(sent)).is_err());
        }
        assert_eq!((bridge.pending()[0], bridge.metrics()[0].messages), (4, 4));
    }
}
