use ringmem::Machine;
use ringmem::backend::host::{self, Faults, Verb};
use ringmem::control::{Command, State};
use ringmem::image::{Entry, KernelHost};
use ringmem_kernels::{Batch, Handler, Lanes, Launch, Simulated, Single, persistent};

use super::*;

#[test]
fn drain_leaves_all_answers_receivable() {
    for pause in [false, true] {
        let backend = backend();
        let mut channel = open(&backend, &Options::new("echo")).expect("a channel");
        if pause {
            channel.command(Command::PAUSE).expect("it is acted on");
        }
        for id in 0..500 {
            channel.try_send(message(id)).expect("room");
        }
        channel.drain().expect("it leaves");
        assert_eq!(channel.state(), Some(State::Terminated));
        for id in 0..500 {
            assert_eq!(channel.try_recv().expect("an answer"), message(id));
        }
        assert!(matches!(channel.try_recv(), Err(ReceiveError::Empty)));
        assert!(channel.check().is_err(), "it runs no more");
        assert!(matches!(channel.send(message(500)), Err(SendError::Kernel { message: back, .. }) if back == message(500)));
        let closed = channel.close().expect("closing what has drained is no failure");
        assert_eq!(closed.telemetry.processed, 500);
    }
}

#[test]
fn drain_flushes_messages_still_on_the_host() {
    for way in ways() {
        let (backend, mut channel) = with_a_batch(&way);
        backend.set_faults(&(1..=60).fold(Faults::new(), |faults, nth| faults.on(Verb::Copy, host::Fault::nth(nth))));
        channel.drain().expect("it leaves");
        for id in 0..10 {
            assert_eq!(receive(&mut channel).words[0], id, "{way:?}");
        }
    }
}

fn paused_and_full(way: &Options<'static>) -> (Clean, Channel<Echo, Echo>, u64) {
    let backend = backend();
    let mut channel = open(&backend, &Options { input_capacity: 4, ..way.clone() }).expect("a channel");
    channel.command(Command::PAUSE).expect("it is acted on");
    let all = if matches!(way.strategy, None | Some(TransferStrategy::Flagged)) { 4 } else { 8 };
    let mut sent = 0;
    eventually("nothing more fits", || {
        sent += u64::from(channel.try_send(message(sent)).is_ok());
        sent == all
    });
    (backend, channel, all)
}

#[test]
fn drain_answers_everything_a_paused_kernel_has_queued() {
    for way in ways() {
        let (_backend, mut channel, sent) = paused_and_full(&way);
        channel.drain().expect("it leaves");
        for id in 0..sent {
            assert_eq!(receive(&mut channel).words[0], id, "{way:?}");
        }
        let closed = channel.close().expect("it has ended");
        assert_eq!(closed.control.processed, sent);
    }
}

#[test]
fn close_after_terminate_succeeds_with_messages_left() {
    for way in ways() {
        let (_backend, mut channel, _) = paused_and_full(&way);
        channel.command(Command::TERMINATE).expect("it is acted on");
        let closed = channel.close().expect("it has ended as told");
        assert_eq!((closed.control.processed, closed.control.kernel_state()), (0, Some(State::Terminated)), "{way:?}");
    }
}

#[test]
fn drain_returns_the_error_that_blocks_messages() {
    for way in ways().into_iter().skip(SHARED) {
        let (backend, mut channel) = with_a_batch(&way);
        backend.set_faults(&Faults::new().on(Verb::Copy, host::Fault::from(1)).on(Verb::Publish, host::Fault::from(1)));
        let error = channel.drain().expect_err("nothing reaches the kernel");
        assert!(matches!(error, Error::Injected { .. }), "{way:?}: {error:?}");
        backend.set_faults(&Faults::new());
        channel.drain().expect("nothing is lost");
        for id in 0..10 {
            assert_eq!(receive(&mut channel).words[0], id, "{way:?}");
        }
    }
}

#[test]
fn close_makes_room_for_unreceived_answers() {
    for way in ways() {
        let backend = backend();
        let options = Options { output_capacity: 2, ..way };
        let mut channel = open(&backend, &options).expect("a channel");
        for id in 0..8 {
            channel.try_send(message(id)).expect("room");
        }
        assert_eq!(channel.close().expect("it ends").control.processed, 8, "{options:?}");
    }
}

struct Slow;

impl<M: Machine, L: Lanes> Handler<M, L> for Slow {
    type Input = Echo;
    type Output = Echo;
    unsafe fn answer(&mut self, _: &L, _: &mut Batch<'_, '_, Echo, Echo, M>) -> u64 {
        thread::sleep(Duration::from_millis(180));
        0
    }
}

unsafe fn slow(host: &dyn KernelHost, arguments: &[u64]) {
    let launch = Launch { controls: arguments[0], epoch: arguments[1] as u32, idle_ns: arguments[2], batch: arguments[3], abi: ABI.hash };
    // SAFETY: a channel launches this kernel: control block, rings and telemetry are live until it returns, with one host side and no other
    // kernel.
    unsafe { persistent(&Simulated(host), &Single(host), &launch, &mut Slow) }
}

#[test]
fn close_waits_for_a_kernel_that_makes_progress() {
    let backend = backend();
    let module = load(&backend, &Image { host: &[Entry { name: "slow", arguments: 4, run: slow }], ..IMAGE });
    let options = Options { batch: 1, timeout: Duration::from_secs(3), ..Options::new("slow") };
    // SAFETY: this kernel takes no own arguments.
    let channel = unsafe { Channel::<Echo, Echo>::open_raw(&backend, 0, &module, &options) };
    let mut channel = channel.expect("a channel");
    for id in 0..18 {
        channel.try_send(message(id)).expect("room");
    }
    assert_eq!(channel.close().expect("it ends").control.processed, 18);
}

#[test]
fn drain_with_a_full_output_ring_asks_to_receive_first() {
    let backend = backend();
    let options = Options { input_capacity: 4, output_capacity: 4, timeout: Duration::from_secs(3), ..Options::new("echo") };
    let mut channel = open(&backend, &options).expect("a channel");
    for id in 0..6 {
        eventually("room for a message", || channel.try_send(message(id)).is_ok());
    }
    let refused = channel.drain();
    assert!(matches!(refused, Err(Error::Busy { what }) if what.starts_with("the output ring is full")), "{refused:?}");
    for id in 0..6 {
        assert_eq!(receive(&mut channel), message(id));
    }
    channel.drain().expect("nothing is left to answer");
    assert_eq!(channel.close().expect("it has drained").control.processed, 6);
}
