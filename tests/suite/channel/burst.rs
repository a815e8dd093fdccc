use std::vec::Vec;

use ringmem::control::{Command, State};
use ringmem_kernels::burst::{BURST, Burst, Report};

use super::*;

#[test]
fn reports_arrive_in_order_over_every_strategy() {
    for strategy in [TransferStrategy::Sync, TransferStrategy::Async, TransferStrategy::Unified] {
        let backend = backend();
        let builder = Channel::builder(BURST).strategy(strategy).input_capacity(16).output_capacity(16).batch(4);
        let mut channel = builder.open(&*backend, 0).expect("a channel");
        channel.send(Burst { count: 500 }).expect("room");
        (0..250).for_each(|number| assert_eq!(channel.recv().expect("a report"), Report { number }, "{strategy:?}"));
        channel.send(Burst { count: 1 }).expect("room");
        (250..501).for_each(|number| assert_eq!(channel.recv().expect("a report"), Report { number }, "{strategy:?}"));
        assert_eq!(channel.close().expect("it ends").control.processed, 2);
    }
}

#[test]
fn a_drained_kernel_sends_no_more_and_a_restarted_one_starts_anew() {
    let backend = backend();
    let mut channel = Channel::builder(BURST).output_capacity(16).open(&*backend, 0).expect("a channel");
    for _ in 0..3 {
        assert!(matches!(channel.try_recv(), Err(ReceiveError::Empty)), "nobody has asked");
        channel.send(Burst { count: u64::MAX }).expect("room");
        assert_eq!(channel.recv().expect("a report").number, 0);
        channel.drain().expect("what it has still to send does not hold it up");
        assert_eq!(channel.state(), Some(State::Terminated));
        let rest: Vec<u64> = channel.iter().map(|report| report.number).collect();
        assert_eq!(rest, (1..=rest.len() as u64).collect::<Vec<_>>());
        channel.restart().expect("it runs again");
    }
    channel.send(Burst { count: u64::MAX }).expect("room");
    channel.recv().expect("a report");
    channel.command(Command::PAUSE).expect("it stops");
    channel.try_iter().for_each(drop);
    channel.command(Command::DRAIN).expect("it goes on");
    assert_eq!(channel.iter().count(), 0, "slots are free, and it has still to send");
    channel.restart().expect("it runs again");
    channel.send(Burst { count: u64::MAX }).expect("room");
    let closed = channel.close().expect("it ends although nobody receives");
    assert_eq!(closed.control.kernel_state(), Some(State::Terminated));
}
