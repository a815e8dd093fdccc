use ringmem_kernels::echo::{ECHO, ECHO_BLOCK, ECHO_FLAGGED, ECHO_GROUPED};

use super::*;

/// One thread for each lane, and one for all.
fn backends() -> [Clean; 2] {
    [true, false].map(|lanes| Clean::build(HostBackend::builder().device_memory(1 << 20).thread_per_lane(lanes)))
}

#[test]
fn warps_answer_in_order_over_every_strategy() {
    for (strategy, backend) in [TransferStrategy::Sync, TransferStrategy::Async, TransferStrategy::Unified]
        .into_iter()
        .flat_map(|strategy| backends().map(|backend| (strategy, backend)))
    {
        let builder = Channel::builder(ECHO_BLOCK).warps(3).strategy(strategy).input_capacity(128).output_capacity(128).batch(96);
        let mut channel = builder.open(&*backend, 0).expect("a channel");
        exchange(&mut channel, 500);
        assert_eq!(channel.close().expect("it ends").control.processed, 500);
    }
}

#[test]
fn warps_answer_the_messages_of_the_launch_before() {
    for backend in backends() {
        let mut channel = Channel::builder(ECHO_BLOCK).warps(2).open(&*backend, 0).expect("a channel");
        restart_with_answers(&mut channel, 100);
        assert_eq!(channel.close().expect("it ends").control.processed, 0, "of the last launch");
    }
}

#[test]
fn warps_of_another_kernel_and_impossible_numbers_are_errors() {
    for backend in backends() {
        for kernel in [ECHO, ECHO_FLAGGED, ECHO_GROUPED] {
            for warps in [0, 2] {
                let error = Channel::builder(kernel).warps(warps).open(&*backend, 0).expect_err("one warp");
                assert!(matches!(error, Error::Unsupported { what } if what.contains("block fn")), "{error}");
            }
            Channel::builder(kernel).warps(1).open(&*backend, 0).expect("one warp is what it has");
        }
        for warps in [0, 33, u32::MAX] {
            let error = Channel::builder(ECHO_BLOCK).warps(warps).open(&*backend, 0).expect_err("no such block");
            assert!(matches!(error, Error::Size { asked, least: 1, most: 32, .. } if asked == u64::from(warps)), "{error}");
        }
        let error = Channel::builder(ECHO_BLOCK).groups(2).warps(2).open(&*backend, 0).expect_err("one block");
        assert!(matches!(error, Error::Unsupported { what } if what.contains("grouped fn")), "{error}");
        let flagged = Channel::builder(ECHO_BLOCK).strategy(TransferStrategy::Flagged).open(&*backend, 0);
        let error = flagged.expect_err("another kind of ring");
        assert!(matches!(error, Error::Unsupported { what } if what.contains("flagged fn")), "{error}");
    }
}

#[test]
fn groups_of_warps_count_as_their_warps() {
    for (lanes, most) in [(true, 4), (false, 32)] {
        let backend = Clean::build(HostBackend::builder().device_memory(1 << 20).thread_per_lane(lanes).resident_groups(4));
        Channel::builder(ECHO_BLOCK).warps(most).open(&*backend, 0).expect("as many threads as it may have");
        let error = Channel::builder(ECHO_BLOCK).warps(most + 1).open(&*backend, 0).expect_err("too many");
        assert!(
            matches!(error, Error::Size { asked, least: 1, most: limit, .. } if (asked, limit) == (u64::from(most) + 1, most.into())),
            "{error}"
        );
    }
}

#[test]
fn the_largest_block_answers() {
    for backend in backends() {
        let mut channel = Channel::builder(ECHO_BLOCK).warps(32).batch(1024).open(&*backend, 0).expect("a channel");
        exchange(&mut channel, 1000);
    }
}
