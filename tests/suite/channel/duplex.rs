use core::pin::pin;
use core::task::{Context, Poll, Waker};

use futures::executor::block_on;
use futures::{FutureExt, Sink, SinkExt, Stream, StreamExt, TryStreamExt, future, stream};
use ringmem::channel::Duplex;
use ringmem::control::{Command, State};
use ringmem_kernels::echo::ECHO;

use super::*;

fn duplex(backend: &Clean, strategy: TransferStrategy) -> Duplex<Echo, Echo> {
    let builder = Channel::builder(ECHO).strategy(strategy).input_capacity(4).output_capacity(4);
    builder.open(&**backend, 0).expect("a channel").into_duplex()
}

const STRATEGIES: [TransferStrategy; 3] = [TransferStrategy::Sync, TransferStrategy::Async, TransferStrategy::Unified];

#[test]
fn a_closed_sink_ends_the_stream_after_the_last_answer() {
    const MESSAGES: u64 = 500;
    for strategy in STRATEGIES {
        let backend = backend();
        let (mut sink, answers) = duplex(&backend, strategy).split();
        let mut messages = stream::iter((0..MESSAGES).map(message).map(Ok));
        let sent = async {
            sink.send_all(&mut messages).await?;
            sink.close().await
        };
        let (sent, received) = block_on(future::join(sent, answers.try_collect::<Vec<_>>()));
        sent.expect("the kernel runs");
        assert!(received.expect("no fault").into_iter().eq((0..MESSAGES).map(message)), "{strategy:?}");
    }
}

#[test]
fn a_message_after_the_close_is_returned_and_the_stream_stays_ended() {
    let backend = backend();
    let mut duplex = duplex(&backend, TransferStrategy::Sync);
    duplex.channel_mut().command(Command::PAUSE).expect("it is acted on");
    block_on(duplex.send(message(1))).expect("room");
    block_on(duplex.close()).expect("a paused kernel is activated");
    block_on(duplex.close()).expect("once more");
    let error = block_on(duplex.feed(message(2))).expect_err("it is closed");
    assert!(format!("{error:?}").contains("after the close of the sink"), "{error:?}");
    assert_eq!(error.into_inner(), Some(message(2)));
    assert_eq!(block_on(duplex.next()).expect("an answer").expect("no fault"), message(1));
    for _ in 0..3 {
        assert!(block_on(duplex.next()).is_none());
    }
    assert_eq!(duplex.channel().state(), Some(State::Terminated));
    let (mut channel, unsent) = duplex.into_channel();
    assert_eq!(unsent, None);
    channel.restart().expect("it has returned");
    channel.send(message(3)).expect("room");
    assert_eq!(channel.recv().expect("an answer"), message(3));
}

#[test]
fn dropped_polls_of_sink_and_stream_lose_nothing() {
    for strategy in STRATEGIES {
        let backend = backend();
        let mut duplex = duplex(&backend, strategy);
        duplex.channel_mut().command(Command::PAUSE).expect("it is acted on");
        assert!(duplex.next().now_or_never().is_none());
        // The rings are full of all but the last message, which stays in the sink.
        let last = room(strategy);
        for id in 0..=last {
            block_on(duplex.feed(message(id))).expect("room, or the sink is empty");
        }
        assert!(duplex.flush().now_or_never().is_none() && duplex.next().now_or_never().is_none());
        let mut context = Context::from_waker(Waker::noop());
        assert!(pin!(&mut duplex).poll_ready(&mut context).is_pending());
        let refused = pin!(&mut duplex).start_send(message(99)).expect_err("one is started");
        assert!(matches!(refused, SendError::Full(unsent) if unsent == message(99)), "{strategy:?}");
        let (mut channel, unsent) = duplex.into_channel();
        assert_eq!(unsent, Some(message(last)), "{strategy:?}");
        channel.command(Command::ACTIVATE).expect("it is acted on");
        for id in 0..last {
            assert_eq!(channel.recv().expect("an answer"), message(id), "{strategy:?}");
        }
    }
}

#[test]
fn a_pending_stream_is_woken_and_its_limit_is_an_item() {
    let backend = backend();
    let channel = Channel::builder(ECHO).recv_timeout(Duration::from_millis(1)).open(&*backend, 0).expect("a channel");
    let mut duplex = channel.into_duplex();
    for _ in 0..3 {
        // Only a wake-up repeats the poll.
        let error = block_on(duplex.next()).expect("an item").expect_err("nothing was sent");
        assert!(matches!(error, Error::Kernel { state: Some(State::Active), .. }), "{error:?}");
    }
    duplex.channel_mut().command(Command::TERMINATE).expect("it is acted on");
    let mut context = Context::from_waker(Waker::noop());
    eventually("the stream has ended", || matches!(pin!(&mut duplex).poll_next(&mut context), Poll::Ready(None)));
}
