use ringmem::backend::host::{self, Faults, Verb};
use ringmem::control::{Command, State};

use super::*;

#[test]
fn an_open_channel_is_active_and_answers_in_order() {
    for (input, output, batch, start) in [(1024, 1024, 128, 0), (1, 1, 1, u64::MAX), (2, 8, 3, u64::MAX - 5)] {
        let options = Options { input_capacity: input, output_capacity: output, batch, start, ..Options::new("echo") };
        let backend = backend();
        let mut channel = open(&backend, &options).expect("a channel");
        assert_eq!(channel.state(), Some(State::Active));
        assert_eq!((channel.control().abi, channel.control().abi_seen), (ABI.hash, ABI.hash));
        assert_eq!(channel.indices(), (start, start), "both rings begin where they were told to");
        let mut sent = 0;
        for received in 0..200 {
            let answer = receive_sending(&mut channel, |channel| {
                while sent < 200 && channel.try_send(message(sent)).is_ok() {
                    sent += 1;
                }
            });
            assert_eq!(answer, message(received));
        }
        assert!(matches!(channel.try_recv(), Err(ReceiveError::Empty)));
        channel.check().expect("it runs");
        let closed = channel.close().expect("it ends as told");
        assert_eq!((closed.control.processed, closed.telemetry.processed, closed.telemetry.dropped), (200, 200, 0));
        assert_eq!((closed.control.kernel_state(), closed.control.faults()), (Some(State::Terminated), (0, None)));
    }
}

#[test]
fn close_after_terminate_succeeds() {
    let backend = backend();
    for _ in 0..200 {
        let mut channel = open(&backend, &Options::new("echo")).expect("a channel");
        channel.command(Command::TERMINATE).expect("the last command is acknowledged too");
        channel.close().expect("it left as told");
    }
}

#[test]
fn a_command_to_an_ended_kernel_is_an_error() {
    let backend = backend();
    let mut channel = open(&backend, &Options::new("echo")).expect("a channel");
    channel.drain().expect("it leaves");
    let error = channel.command(Command::ACTIVATE).expect_err("nobody is there");
    assert!(matches!(error, Error::Kernel { state: Some(State::Terminated), fault: None, .. }), "{error:?}");
}

#[test]
fn close_processes_all_sent_messages() {
    let backend = backend();
    let mut channel = open(&backend, &Options::new("echo")).expect("a channel");
    for id in 0..300 {
        channel.try_send(message(id)).expect("room");
    }
    let closed = channel.close().expect("it ends as told");
    assert_eq!((closed.control.processed, closed.control.in_flight, closed.telemetry.output_depth()), (300, 0, 300));
}

#[test]
fn each_channel_of_a_backend_has_its_own_epoch() {
    let backend = backend();
    let mut channels: Vec<_> = (0..3).map(|_| open(&backend, &Options::new("echo")).expect("a channel")).collect();
    let epochs: Vec<u64> = channels.iter().map(|channel| channel.control().epoch).collect();
    assert!(epochs[0] != 0 && epochs[0] < epochs[1] && epochs[1] < epochs[2], "{epochs:?}");
    for (id, channel) in channels.iter_mut().enumerate() {
        channel.try_send(message(id as u64)).expect("room");
    }
    for (id, channel) in channels.iter_mut().enumerate() {
        assert_eq!(receive(channel), message(id as u64));
    }
}

#[test]
fn dropping_a_channel_ends_its_kernel_and_frees_its_memory() {
    let backend = backend();
    for sent in [0, 1, 1000] {
        for command in [None, Some(Command::PAUSE)] {
            let mut channel = open(&backend, &Options::new("echo")).expect("a channel");
            if let Some(command) = command {
                channel.command(command).expect("it is acted on");
            }
            for id in 0..sent {
                channel.try_send(message(id)).expect("room");
            }
            assert!(backend.counters().pinned_live.bytes > 0);
            drop(channel);
            assert_eq!(backend.counters().pinned_live.bytes, 0, "the kernel has left, so its memory is free");
        }
    }
    assert_eq!(backend.counters().kernel_panics, 0);
}

#[test]
fn a_restarted_kernel_continues_where_the_last_one_stopped() {
    for way in ways() {
        let backend = backend();
        let mut channel = open(&backend, &way).expect("a channel");
        // SAFETY: `echo` takes no own arguments.
        assert!(matches!(unsafe { channel.restart_raw() }, Err(Error::Busy { .. })), "it runs");
        let mut received = 0;
        for round in 0..3_u64 {
            for id in 0..10 {
                channel.try_send(message(round * 10 + id)).expect("room");
            }
            eventually("all are answered", || {
                while let Ok(answer) = channel.try_recv() {
                    assert_eq!(answer.words[0], received);
                    received += 1;
                }
                received == (round + 1) * 10
            });
            channel.drain().expect("it leaves");
            eventually("it has left", || channel.check().is_err());
            channel.try_send(message((round + 1) * 10)).expect("there is room while nobody takes it");
            // SAFETY: `echo` takes no own arguments.
            eventually("it is launched again", || unsafe { channel.restart_raw() }.is_ok());
            eventually("what was sent meanwhile is answered", || {
                channel.try_recv().is_ok_and(|answer| answer.words[0] == (round + 1) * 10)
            });
            received = (round + 1) * 10;
        }
    }
}

#[test]
fn a_kernel_can_be_restarted_a_hundred_times() {
    for way in ways() {
        let backend = backend();
        let mut channel = open(&backend, &way).expect("a channel");
        let epoch = channel.control().epoch;
        for id in 0..100 {
            channel.command(Command::PAUSE).expect("it is acted on");
            channel.try_send(message(id)).expect("room");
            channel.command(Command::TERMINATE).expect("it is acted on");
            // SAFETY: `echo` takes no own arguments.
            eventually("it is launched again", || unsafe { channel.restart_raw() }.is_ok());
            assert_eq!((channel.state(), receive(&mut channel).words[0]), (Some(State::Active), id), "{way:?}");
        }
        assert!(channel.control().epoch >= epoch + 100, "a launch each");
    }
}

fn whole_life(backend: &Arc<HostBackend>, way: &Options<'_>) -> Result<(), Error> {
    let mut channel = open(backend, &Options { input_capacity: 4, output_capacity: 4, ..way.clone() })?;
    let mut received = 0;
    for round in 0..2 {
        for id in round * 10..(round + 1) * 10 {
            eventually("there is room", || matches!(channel.try_send(message(id)), Ok(()) | Err(SendError::Flush { message: None, .. })));
            eventually("it is answered", || {
                let answer = channel.try_recv();
                received += u64::from(answer.as_ref().is_ok_and(|answer| answer.words[0] == id));
                answer.is_ok()
            });
        }
        assert_eq!(received, (round + 1) * 10, "{way:?}: each once, in order");
        channel.command(Command::TERMINATE)?;
        eventually("it has left", || channel.check().is_err_and(|error| matches!(error, Error::Kernel { .. })));
        eventually("it is launched again", || {
            // SAFETY: `echo` takes no own arguments.
            let launched = unsafe { channel.restart_raw() };
            let is_known = |error: &Error| matches!(error, Error::Busy { .. } | Error::Injected { .. } | Error::Kernel { .. });
            assert!(launched.as_ref().err().is_none_or(is_known), "{way:?}: {launched:?}");
            launched.is_ok()
        });
    }
    channel.close().map(drop)
}

#[test]
fn a_failed_call_in_a_channel_s_life_leaks_nothing() {
    let [mut lives, mut whole] = [0, 0];
    for way in ways() {
        for verb in
            [Verb::Allocate, Verb::OpenStream, Verb::Copy, Verb::Publish, Verb::Launch, Verb::Wait, Verb::Synchronize, Verb::RecordPosition]
        {
            for nth in 1..=8 {
                for when_executed in [false, true] {
                    let backend = backend();
                    let fault = host::Fault::nth(nth);
                    backend.set_faults(&Faults::new().on(verb, if when_executed { fault.when_executed() } else { fault }));
                    let outcome = whole_life(&backend, &way);
                    let is_known = |error: &Error| {
                        matches!(error, Error::Injected { .. } | Error::OutOfMemory { .. } | Error::Map { .. } | Error::Kernel { .. })
                    };
                    assert!(outcome.as_ref().err().is_none_or(is_known), "{way:?} {verb:?} {nth}: {outcome:?}");
                    lives += 1;
                    whole += u64::from(outcome.is_ok());
                    eventually("all is given back", || {
                        backend.counters().device_live.bytes == 0 && backend.counters().pinned_live.bytes == 0
                    });
                }
            }
        }
    }
    assert!(whole > lives / 2, "{whole} of {lives} went on to the end");
}
