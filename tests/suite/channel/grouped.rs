use ringmem_kernels::echo::{ECHO, ECHO_FLAGGED, ECHO_GROUPED};

use super::*;

#[test]
fn groups_answer_in_order_over_every_strategy() {
    for strategy in [TransferStrategy::Sync, TransferStrategy::Async, TransferStrategy::Unified] {
        let backend = backend();
        let builder = Channel::builder(ECHO_GROUPED).groups(4).strategy(strategy).input_capacity(16).output_capacity(16).batch(2);
        let mut channel = builder.open(&*backend, 0).expect("a channel");
        exchange(&mut channel, 1000);
        assert_eq!(channel.close().expect("it ends").control.processed, 1000);
    }
}

#[test]
fn unanswered_messages_are_those_of_the_next_launch() {
    let backend = backend();
    let mut channel = Channel::builder(ECHO_GROUPED).groups(3).open(&*backend, 0).expect("a channel");
    restart_with_answers(&mut channel, 10);
    assert_eq!(channel.close().expect("it ends").control.processed, 0, "of the last launch");
}

#[test]
fn groups_of_another_kernel_and_impossible_numbers_are_errors() {
    let backend = backend();
    for kernel in [ECHO, ECHO_FLAGGED] {
        for groups in [0, 2] {
            let error = Channel::builder(kernel).groups(groups).open(&*backend, 0).expect_err("one group");
            assert!(matches!(error, Error::Unsupported { what } if what.contains("grouped fn")), "{error}");
        }
        Channel::builder(kernel).groups(1).open(&*backend, 0).expect("one group is what it has");
    }
    let few = Clean::build(HostBackend::builder().device_memory(1 << 20).resident_groups(4));
    for groups in [0, 5] {
        let error = Channel::builder(ECHO_GROUPED).groups(groups).open(&*few, 0).expect_err("they do not fit");
        assert!(matches!(error, Error::Size { asked, least: 1, most: 4, .. } if asked == u64::from(groups)), "{error}");
    }
    let error = Channel::builder(ECHO_GROUPED).strategy(TransferStrategy::Flagged).open(&*backend, 0).expect_err("another kind of ring");
    assert!(matches!(error, Error::Unsupported { what } if what.contains("flagged fn")), "{error}");
}
