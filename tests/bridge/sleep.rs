use ringmem::wait::{How, Waiting};

use super::*;

#[test]
fn who_sleeps_at_an_end_is_woken_by_the_bridge() {
    for strategy in [TransferStrategy::Sync, TransferStrategy::Async] {
        let backend = backend();
        let Rig { sender, receiver, bridge, kernel } = rig(&backend, &options(strategy, Placement::DEVICE, 4), 200);
        let pump = bridge.pump().expect("a thread");
        let asleep = How::Sleep { looks: 0 };
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut sender = <Waiting<_>>::sender(sender, asleep);
                for number in 0..200 {
                    assert!(sender.send_timeout(message(number), LIMIT).is_ok(), "message {number} finds room in time");
                }
            });
            let mut receiver = <Waiting<_>>::receiver(receiver, asleep);
            for number in 0..200 {
                assert_eq!(receiver.recv_timeout(LIMIT).expect("in time"), message(number));
            }
        });
        drop(pump);
        until("the kernel has left", || kernel.is_done());
    }
}
