use std::convert::Infallible;
use std::future::Future;

use futures::FutureExt;
use futures::future::{BoxFuture, Either, select};
use ringmem::ring::{Owned, Pop, Reborrow, flagged, framed, lossy, mailbox, mpmc, mpsc, spsc};
use ringmem::wait::{RecvError, WaitError, WaitStrategy, Waiting, broadcast, pair};

use super::LIMIT;

const HOW: WaitStrategy = WaitStrategy::Sleep { polls: 10 };
const MESSAGES: u64 = 100;

fn spawn<A, B>(tasks: impl Fn() -> (A, B))
where
    A: Future<Output = ()> + Send + 'static,
    B: Future<Output = ()> + Send + 'static,
{
    spawn_boxed(&|| {
        let (first, second) = tasks();
        [first.boxed(), second.boxed()]
    });
}

fn spawn_boxed(tasks: &dyn Fn() -> [BoxFuture<'static, ()>; 2]) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
    let [first, second] = tasks();
    let (first, second) = (runtime.spawn(first), runtime.spawn(second));
    runtime.block_on(async {
        tokio::time::timeout(LIMIT, first).await.expect("no end").unwrap();
        tokio::time::timeout(LIMIT, second).await.expect("no end").unwrap();
    });
    let [first, second] = tasks();
    let (first, second) = (smol::spawn(first), smol::spawn(second));
    let both = async move {
        first.await;
        second.await;
    };
    let ended = smol::block_on(select(both.boxed(), smol::Timer::after(LIMIT)));
    assert!(matches!(ended, Either::Left(_)), "no end");
}

const WORDS: [&str; 3] = ["one", "two", "three"];

macro_rules! rings_of_values {
    ($($tests:ident: $kind:ident;)+) => {$(
        mod $tests {
            use super::*;

            #[test]
            fn values_pass_between_spawned_tasks() {
                spawn(|| {
                    let (producer, consumer) = $kind::Boxed::<u64>::over(Box::new_uninit_slice(4)).unwrap().into_ends();
                    let (mut sender, mut receiver) = pair(producer, consumer, HOW);
                    let sends = async move {
                        for number in 0..MESSAGES {
                            sender.send_async(number).await.unwrap();
                        }
                    };
                    (sends, async move {
                        for number in 0..MESSAGES {
                            assert_eq!(receiver.recv_async().await, Ok(number));
                        }
                        assert_eq!(receiver.recv_async().await, Err(RecvError::Disconnected));
                    })
                });
            }

            #[test]
            fn values_with_a_lifetime_pass_between_spawned_tasks() {
                spawn(|| {
                    let (producer, consumer) = $kind::Ring::<&'static str, 1>::new().into_ends();
                    let (mut sender, mut receiver) = pair(producer, consumer, HOW);
                    let sends = async move {
                        for word in WORDS {
                            sender.send_async(word).await.unwrap();
                        }
                    };
                    (sends, async move {
                        for word in WORDS {
                            assert_eq!(receiver.recv_async().await, Ok(word));
                        }
                    })
                });
            }

            #[test]
            fn spawned_tasks_wait_for_any_operation() {
                spawn(|| {
                    let (producer, consumer) = $kind::Ring::<u64, 4>::new().into_ends();
                    let (mut sender, mut receiver) = pair(producer, consumer, HOW);
                    let sends = async move {
                        let two = sender.wait_async(|end| {
                            end.with(|end| end.reserve(2).ok().map(|mut grant| Ok::<_, Infallible>(grant.fill([1, 2]))))
                        });
                        assert_eq!(two.await, Ok(2));
                    };
                    (sends, async move {
                        for number in [1, 2] {
                            assert_eq!(receiver.wait_async(|end| end.pop().ok().map(Ok::<_, Infallible>)).await, Ok(number));
                        }
                        let end = receiver.wait_async(|end| end.pop().ok().map(Ok::<_, Infallible>)).await;
                        assert_eq!(end, Err(WaitError::Disconnected));
                    })
                });
            }

            #[cfg(feature = "futures")]
            #[test]
            fn streams_and_sinks_can_be_spawned() {
                use futures::{SinkExt, StreamExt};
                spawn(|| {
                    let (producer, consumer) = $kind::Ring::<u64, 4>::new().into_ends();
                    let (sender, receiver) = pair(producer, consumer, HOW);
                    let (mut sink, mut messages) = (sender.into_sink(), receiver.into_stream());
                    let sends = async move {
                        for number in 0..MESSAGES {
                            sink.send(number).await.unwrap();
                        }
                        sink.close().await.unwrap();
                    };
                    (sends, async move {
                        for number in 0..MESSAGES {
                            assert_eq!(messages.next().await, Some(Ok(number)));
                        }
                        assert_eq!(messages.next().await, None);
                    })
                });
            }
        }
    )+};
}

rings_of_values! {
    of_spsc: spsc;
    of_flagged: flagged;
    of_mpsc: mpsc;
    of_mpmc: mpmc;
}

#[test]
fn bytes_pass_between_spawned_tasks() {
    spawn(|| {
        let (producer, consumer) = framed::Ring::<64>::new().into_ends();
        let (mut sender, mut receiver) = pair(producer, consumer, HOW);
        let sends = async move {
            for number in 0..MESSAGES {
                sender.send_bytes_async(&number.to_le_bytes()).await.unwrap();
            }
        };
        (sends, async move {
            let mut into = [0; 8];
            for number in 0..MESSAGES {
                assert_eq!(receiver.recv_bytes_async(&mut into).await, Ok(8));
                assert_eq!(u64::from_le_bytes(into), number);
            }
            assert_eq!(receiver.recv_bytes_async(&mut into).await, Err(WaitError::Disconnected));
        })
    });
}

#[cfg(feature = "futures")]
#[test]
fn streams_and_sinks_of_bytes_can_be_spawned() {
    use futures::{SinkExt, StreamExt};
    spawn(|| {
        let (producer, consumer) = framed::Ring::<64>::new().into_ends();
        let (sender, receiver) = pair(producer, consumer, HOW);
        let (mut sink, mut messages) = (sender.into_bytes_sink(), receiver.into_bytes_stream());
        let sends = async move {
            for number in 0..MESSAGES {
                sink.send(number.to_le_bytes().to_vec()).await.unwrap();
            }
            sink.close().await.unwrap();
        };
        (sends, async move {
            for number in 0..MESSAGES {
                assert_eq!(messages.next().await, Some(Ok(number.to_le_bytes().to_vec())));
            }
            assert_eq!(messages.next().await, None);
        })
    });
}

#[test]
fn a_spawned_task_awaits_a_frame_in_place() {
    spawn(|| {
        let (producer, consumer) = framed::Ring::<64>::new().into_ends();
        let (mut sender, mut receiver) = pair(producer, consumer, HOW);
        let sends = async move { sender.send_bytes_async(b"in place").await.unwrap() };
        (sends, async move {
            let len = receiver.wait_async(|end| {
                end.with(|end| {
                    let frame = end.peek().ok()?;
                    let len = frame.len();
                    frame.release();
                    Some(Ok::<_, Infallible>(len))
                })
            });
            assert_eq!(len.await, Ok(8));
        })
    });
}

#[test]
fn readers_of_lossy_rings_can_be_spawned() {
    spawn(|| {
        let (writer, reader) = lossy::Ring::<u64, 4>::new().into_ends();
        let (mut sender, mut receiver) = broadcast(writer, reader, HOW);
        let sends = async move {
            for number in 1..=MESSAGES {
                sender.send_async(number).await.unwrap();
            }
        };
        (sends, async move {
            let (mut count, mut last) = (0, 0);
            loop {
                match receiver.recv_async().await {
                    Ok(Ok(number)) => (count, last) = (count + 1, number),
                    Ok(Err(overrun)) => count += overrun.lost,
                    Err(end) => break assert_eq!(end, RecvError::Disconnected),
                }
            }
            assert_eq!((count, last), (MESSAGES, MESSAGES));
        })
    });
    spawn(|| {
        let (writer, reader) = mailbox::Mailbox::<u64>::new().into_ends();
        let (mut sender, mut receiver) = broadcast(writer, reader, HOW);
        let sends = async move {
            for number in 1..=MESSAGES {
                sender.send_async(number).await.unwrap();
            }
        };
        (sends, async move {
            let mut last = 0;
            while let Ok(new) = receiver.recv_async().await {
                last = new.value;
            }
            assert_eq!(last, MESSAGES);
        })
    });
}

#[cfg(feature = "futures")]
#[test]
fn streams_of_lossy_rings_can_be_spawned() {
    use futures::{SinkExt, StreamExt};
    spawn(|| {
        let (writer, reader) = mailbox::Mailbox::<u64>::new().into_ends();
        let (sender, receiver) = broadcast(writer, reader, HOW);
        let (mut sink, mut values) = (sender.into_sink(), receiver.into_stream());
        let sends = async move {
            for number in 1..=MESSAGES {
                sink.send(number).await.unwrap();
            }
            sink.close().await.unwrap();
        };
        (sends, async move {
            let mut last = 0;
            while let Some(new) = values.next().await {
                last = new.unwrap().value;
            }
            assert_eq!(last, MESSAGES);
        })
    });
}

async fn sum<E>(mut receiver: Waiting<Owned<E>>, is_connected: impl Fn(&E::At<'_>) -> bool) -> u64
where
    E: Reborrow + Pop<Item = u64>,
    ringmem::wait::Os: ringmem::wait::Park<E::Word>,
{
    let mut sum = 0;
    while let Ok(number) = receiver.recv_async().await {
        let _ = is_connected(receiver.end().end());
        sum += number;
    }
    sum
}

#[test]
fn a_task_generic_over_the_end_can_be_spawned() {
    spawn(|| {
        let (producer, consumer) = spsc::Ring::<u64, 4>::new().into_ends();
        let (mut sender, receiver) = pair(producer, consumer, HOW);
        let sends = async move {
            for number in 0..MESSAGES {
                sender.send_async(number).await.unwrap();
            }
        };
        (sends, async move {
            assert_eq!(sum(receiver, |end| !end.is_disconnected()).await, (0..MESSAGES).sum::<u64>());
        })
    });
}
