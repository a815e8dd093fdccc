use core::pin::pin;
use core::task::{Context, Poll};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Wake;

use futures::executor::block_on;
use ringmem::control::{Command, State};
use ringmem_kernels::echo::{ECHO, ECHO_BARE, ECHO_FLAGGED};

use super::*;

#[test]
fn every_typed_kernel_answers() {
    for kernel in [ECHO, ECHO_BARE, ECHO_FLAGGED] {
        let backend = backend();
        let mut channel = Channel::open(&*backend, 0, kernel).expect("a channel");
        for id in 0..100 {
            channel.send(message(id)).expect("room");
        }
        for id in 0..100 {
            assert_eq!(channel.recv().expect("an answer"), message(id), "{kernel:?}");
        }
        channel.close().expect("it ends");
    }
}

#[test]
fn the_builder_sets_strategy_and_capacity() {
    for strategy in [TransferStrategy::Sync, TransferStrategy::Async, TransferStrategy::Unified] {
        let backend = backend();
        let channel = Channel::builder(ECHO).strategy(strategy).input_capacity(4).output_capacity(8).batch(2).open(&*backend, 0);
        let mut channel = channel.expect("a channel");
        channel.command(Command::PAUSE).expect("it is acted on");
        let room = (0..).take_while(|&id| channel.try_send(message(id)).is_ok()).count();
        assert!((4..=8).contains(&room), "{strategy:?}: {room} messages in rings of 4 slots");
        channel.command(Command::ACTIVATE).expect("it is acted on");
        assert!((0..room as u64).all(|id| channel.recv().expect("an answer") == message(id)));
    }
}

#[test]
fn a_strategy_for_the_other_ring_kind_is_an_error() {
    let backend = backend();
    for (kernel, strategy) in [(ECHO, TransferStrategy::Flagged), (ECHO_FLAGGED, TransferStrategy::Sync)] {
        let error = Channel::builder(kernel).strategy(strategy).open(&*backend, 0).expect_err("another kind of ring");
        assert!(matches!(error, Error::Unsupported { what } if what.contains("flagged fn")), "{error}");
    }
}

/// While the kernel runs, a host slice of managed memory would be undefined behaviour, and no type prevents it.
#[test]
fn without_concurrent_managed_access_open_is_unsupported() {
    let backend = Clean::build(HostBackend::builder().device_memory(1 << 20).concurrent_managed_access(false));
    let error = Channel::open(&*backend, 0, ECHO).expect_err("a promise is needed");
    assert!(matches!(error, Error::Unsupported { what } if what.contains("open_raw")), "{error}");
    open(&backend, &Options::new("echo")).expect("a channel").close().expect("it ends");
}

#[test]
fn only_a_typed_kernel_has_a_safe_restart() {
    let backend = backend();
    let mut channel = Channel::open(&*backend, 0, ECHO).expect("a channel");
    channel.command(Command::TERMINATE).expect("it is acted on");
    eventually("it has left", || channel.restart().is_ok());
    channel.send(message(1)).expect("room");
    assert_eq!(channel.recv().expect("an answer"), message(1));

    let mut raw = open(&backend, &Options::new("echo")).expect("a channel");
    raw.command(Command::TERMINATE).expect("it is acted on");
    assert!(matches!(raw.restart(), Err(Error::Unsupported { what }) if what.contains("restart_raw")));
}

#[test]
fn send_waits_for_room() {
    let backend = backend();
    let mut channel = Channel::builder(ECHO).input_capacity(1).output_capacity(256).open(&*backend, 0).expect("a channel");
    for id in 0..200 {
        channel.send(message(id)).expect("the kernel makes room");
    }
    let answers: Vec<Echo> = channel.iter().take(200).collect();
    assert!(answers.iter().zip(0..).all(|(answer, id)| *answer == message(id)));
}

#[test]
fn send_returns_the_message_on_timeout_and_kernel_exit() {
    let backend = backend();
    let limit = Duration::from_millis(300);
    let mut channel = Channel::builder(ECHO).input_capacity(2).timeout(limit).open(&*backend, 0).expect("a channel");
    channel.command(Command::PAUSE).expect("it is acted on");
    while channel.try_send(message(0)).is_ok() {}
    let begun = Instant::now();
    assert!(matches!(channel.send(message(7)), Err(SendError::Full(back)) if back == message(7)));
    assert!(begun.elapsed() >= limit);
    channel.command(Command::TERMINATE).expect("it is acted on");
    eventually("it has left", || channel.state() == Some(State::Terminated));
    let error = channel.send(message(8)).expect_err("nobody makes room");
    assert!(matches!(&error, SendError::Kernel { error: Error::Kernel { .. }, .. }), "{error:?}");
    assert_eq!(error.into_inner(), Some(message(8)));
}

#[test]
fn receivers_end_after_the_last_answer_of_an_ended_kernel() {
    let backend = backend();
    let mut channel = Channel::open(&*backend, 0, ECHO).expect("a channel");
    for id in 0..10 {
        channel.send(message(id)).expect("room");
    }
    channel.drain().expect("it ends");
    assert_eq!(channel.recv().expect("the first"), message(0));
    assert_eq!(channel.try_iter().take(4).count(), 4);
    assert_eq!(channel.iter().map(|answer| answer.words[0]).collect::<Vec<_>>(), [5, 6, 7, 8, 9]);
    let error = channel.recv().expect_err("it has left");
    assert!(matches!(error, Error::Kernel { state: Some(State::Terminated), .. }), "{error}");
    assert_eq!(channel.try_iter().count(), 0);
}

#[derive(Default)]
struct Task(AtomicU64);

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Relaxed);
    }
}

#[test]
fn recv_async_wakes_its_task_and_a_dropped_future_loses_none() {
    let backend = backend();
    let mut channel = Channel::open(&*backend, 0, ECHO).expect("a channel");
    channel.command(Command::PAUSE).expect("it is acted on");
    channel.send(message(1)).expect("room");
    let task = Arc::new(Task::default());
    {
        let mut future = pin!(channel.recv_async());
        for woken in 1..20 {
            assert!(matches!(future.as_mut().poll(&mut Context::from_waker(&task.clone().into())), Poll::Pending));
            eventually("the task is woken", || task.0.load(Relaxed) == woken);
        }
    }
    channel.command(Command::ACTIVATE).expect("it is acted on");
    assert_eq!(block_on(channel.recv_async()).expect("an answer"), message(1));
    channel.drain().expect("it ends");
    assert!(matches!(block_on(channel.recv_async()), Err(Error::Kernel { .. })));
}

#[test]
fn send_async_waits_for_room_and_a_dropped_future_sends_nothing() {
    let backend = backend();
    let mut channel = Channel::builder(ECHO).input_capacity(4).output_capacity(4).open(&*backend, 0).expect("a channel");
    channel.command(Command::PAUSE).expect("it is acted on");
    for id in 0..4 {
        block_on(channel.send_async(message(id))).expect("room");
    }
    let task = Arc::new(Task::default());
    {
        let mut future = pin!(channel.send_async(message(99)));
        for woken in 1..5 {
            assert!(future.as_mut().poll(&mut Context::from_waker(&task.clone().into())).is_pending());
            eventually("the task is woken", || task.0.load(Relaxed) == woken);
        }
    }
    channel.command(Command::ACTIVATE).expect("it is acted on");
    // The kernel pops while this waits: both rings have four slots.
    block_on(channel.send_async(message(4))).expect("room, once the kernel has popped");
    for id in 0..5 {
        assert_eq!(block_on(channel.recv_async()).expect("an answer"), message(id));
    }
    channel.drain().expect("it ends");
    let Err(SendError::Kernel { error, message: unsent }) = block_on(channel.send_async(message(5))) else { panic!("it has left") };
    assert!(matches!(error, Error::Kernel { state: Some(State::Terminated), .. }), "{error}");
    assert_eq!(unsent, message(5));
}

#[test]
fn flush_async_is_ready_once_all_messages_are_in_the_kernels_ring() {
    for strategy in [TransferStrategy::Sync, TransferStrategy::Async, TransferStrategy::Unified] {
        let backend = backend();
        let opened = Channel::builder(ECHO).strategy(strategy).input_capacity(4).output_capacity(4).open(&*backend, 0);
        let mut channel = opened.expect("a channel");
        channel.command(Command::PAUSE).expect("it is acted on");
        block_on(channel.flush_async()).expect("nothing was sent");
        let room = room(strategy);
        for id in 0..room {
            block_on(channel.send_async(message(id))).expect("room");
        }
        let task = Arc::new(Task::default());
        if strategy != TransferStrategy::Unified {
            let mut future = pin!(channel.flush_async());
            for woken in 1..5 {
                assert!(future.as_mut().poll(&mut Context::from_waker(&task.clone().into())).is_pending(), "{strategy:?}");
                eventually("the task is woken", || task.0.load(Relaxed) == woken);
            }
        }
        // The dropped future has lost nothing.
        channel.command(Command::ACTIVATE).expect("it is acted on");
        let (mut received, mut flushed) = (0, false);
        while received < room {
            flushed |= block_on(async { poll_once(pin!(channel.flush_async())) }).is_some_and(|flushed| flushed.is_ok());
            if let Ok(answer) = channel.try_recv() {
                assert_eq!(answer, message(received), "{strategy:?}");
                received += 1;
            }
        }
        block_on(channel.flush_async()).expect("all are in the kernel's ring");
        assert!(flushed, "{strategy:?}");
        channel.close().expect("it ends");
    }
}

#[test]
fn flush_async_fails_if_the_kernel_has_left_before_the_last_message() {
    let backend = backend();
    let builder = Channel::builder(ECHO).strategy(TransferStrategy::Sync).input_capacity(4).output_capacity(4);
    let mut channel = builder.open(&*backend, 0).expect("a channel");
    channel.command(Command::PAUSE).expect("it is acted on");
    for id in 0..room(TransferStrategy::Sync) {
        block_on(channel.send_async(message(id))).expect("room");
    }
    channel.command(Command::TERMINATE).expect("it is acted on");
    let error = block_on(channel.flush_async()).expect_err("the kernel pops no more");
    assert!(matches!(error, Error::Kernel { state: Some(State::Terminated), is_over: true, .. }), "{error:?}");
}

fn poll_once<F: Future>(future: core::pin::Pin<&mut F>) -> Option<F::Output> {
    match future.poll(&mut Context::from_waker(core::task::Waker::noop())) {
        Poll::Ready(done) => Some(done),
        Poll::Pending => None,
    }
}

#[test]
fn the_builder_limits_recv_and_its_future_and_iterator() {
    const LEAST: Duration = Duration::from_millis(20);
    let backend = backend();
    let mut channel = Channel::builder(ECHO).recv_timeout(LEAST).open(&*backend, 0).expect("a channel");
    for received in [channel.recv(), block_on(channel.recv_async())] {
        let error = received.expect_err("nothing was sent");
        assert!(matches!(error, Error::Kernel { state: Some(State::Active), waited, .. } if waited > LEAST), "{error:?}");
    }
    assert_eq!(channel.iter().count(), 0);
    channel.send(message(1)).expect("room");
    assert_eq!(channel.recv_timeout(LIMIT).expect("its own limit"), message(1));
}
