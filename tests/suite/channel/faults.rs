use futures::executor::block_on;
use ringmem::error::OperationFault;

use ringmem::backend::host::{Fault, Faults, Verb};
use ringmem::control::Command;

use super::*;

struct Life {
    channel: Channel<Echo, Echo>,
    sent: u64,
    received: u64,
    errors: Vec<Error>,
}

impl Life {
    fn note<T>(&mut self, outcome: Result<T, Error>) -> bool {
        outcome.map_err(|error| self.errors.push(error)).is_ok()
    }

    fn exchange(&mut self, send: u64, receive: u64) {
        let begun = Instant::now();
        loop {
            while self.sent < send {
                let outcome = self.channel.try_send(message(self.sent));
                self.sent += u64::from(matches!(outcome, Ok(()) | Err(SendError::Flush { message: None, .. })));
                match outcome {
                    Ok(()) => {}
                    Err(SendError::Flush { error, .. }) => self.errors.push(error),
                    Err(_) => break,
                }
            }
            loop {
                match self.channel.try_recv() {
                    Ok(answer) => assert_eq!(answer, message(self.received), "each once, in order"),
                    Err(ReceiveError::Flush(error)) => break self.errors.push(error),
                    Err(_) => break,
                }
                self.received += 1;
            }
            if self.sent >= send && self.received >= receive {
                return;
            }
            let outcome = self.channel.flush();
            self.note(outcome.map(drop));
            assert!(begun.elapsed() < LIMIT, "{} sent, {} received: {:?}", self.sent, self.received, self.errors);
            thread::sleep(Duration::from_micros(20));
        }
    }

    fn again(&mut self, fact: &str, mut act: impl FnMut(&mut Channel<Echo, Echo>) -> Result<(), Error>) {
        eventually(fact, || match act(&mut self.channel) {
            Err(Error::Busy { .. }) => false,
            outcome => self.note(outcome),
        });
    }
}

fn live(backend: &Arc<HostBackend>, way: &Options<'_>) -> Vec<Error> {
    let options = Options { input_capacity: 2, output_capacity: 2, batch: 2, start: u64::MAX - 2, ..way.clone() };
    // SAFETY: `echo` takes no own arguments.
    let opened = Module::load(backend, &IMAGE, &ABI).and_then(|module| unsafe { Channel::open_raw(backend, 0, &module, &options) });
    let channel = match opened {
        Ok(channel) => channel,
        Err(error) => return vec![error],
    };
    let mut life = Life { channel, sent: 0, received: 0, errors: Vec::new() };
    life.exchange(5, 5);
    life.again("it pauses", |channel| channel.command(Command::PAUSE));
    life.exchange(7, 5);
    life.again("it has left", Channel::drain);
    life.exchange(7, 7);
    // SAFETY: `echo` takes no own arguments.
    life.again("it is launched again", |channel| unsafe { channel.restart_raw() });
    life.exchange(9, 9);
    match life.channel.try_recv() {
        Err(ReceiveError::Empty) => {}
        Err(ReceiveError::Flush(error)) => life.errors.push(error),
        other => panic!("none twice: {other:?}"),
    }
    let Life { channel, mut errors, .. } = life;
    errors.extend(channel.close().err());
    errors
}

fn is_of(verb: Verb, error: &Error) -> bool {
    match error {
        Error::Injected { call, .. } => *call == verb.name(),
        Error::OutOfMemory { .. } | Error::Map { .. } => verb == Verb::Allocate,
        Error::Operation { what: OperationFault::Unpublished, .. } => matches!(verb, Verb::Copy | Verb::Publish),
        _ => false,
    }
}

const QUEUED: [Verb; 3] = [Verb::Copy, Verb::Publish, Verb::Launch];

#[test]
fn a_fault_at_any_call_is_reported_and_leaks_nothing() {
    for way in ways() {
        let whole = backend();
        whole.set_faults(&Faults::new());
        assert!(live(&whole, &way).is_empty(), "{way:?}: nothing fails by itself");
        for verb in Verb::ALL {
            let calls = whole.calls(verb).expect("counted");
            let is_queued = QUEUED.contains(&verb);
            for when_executed in [false, true].into_iter().take(1 + usize::from(is_queued)) {
                for nth in 1..=calls.min(crate::MOST_FAULTS) {
                    let backend = backend();
                    let fault = Fault::nth(nth);
                    backend.set_faults(&Faults::new().on(verb, if when_executed { fault.when_executed() } else { fault }));
                    let errors = live(&backend, &way);
                    let context = format!("{way:?}: call {nth} of {verb:?}, when executed: {when_executed}: {errors:?}");
                    assert!(errors.iter().all(|error| is_of(verb, error)), "{context}");
                    let has_struck = backend.calls(verb).expect("counted") >= nth;
                    match verb {
                        Verb::Allocate | Verb::OpenStream | Verb::Load | Verb::Launch => {
                            assert!(!has_struck || !errors.is_empty(), "{context}")
                        }
                        Verb::Free => eventually("it is counted", || !has_struck || backend.counters().unreported > 0),
                        _ => {}
                    }
                    eventually("all is given back", || {
                        let counters = backend.counters();
                        [counters.device_live.bytes, counters.pinned_live.bytes, counters.unified_live.bytes] == [0; 3]
                    });
                }
            }
        }
    }
}

#[test]
fn a_lasting_failure_ends_a_receive_from_a_living_kernel() {
    for way in ways().into_iter().skip(SHARED) {
        let backend = backend();
        let mut channel = open(&backend, &way).expect("a channel");
        backend.set_faults(&Faults::new().on(Verb::Copy, Fault::from(1)).on(Verb::Publish, Fault::from(1)));
        assert!(channel.try_send(message(0)).is_err(), "{way:?}: it stays in the ring");
        let begun = Instant::now();
        for received in [channel.recv_timeout(2 * LIMIT), block_on(channel.recv_async())] {
            assert!(matches!(received, Err(Error::Injected { .. })), "{way:?}: {received:?}");
        }
        assert!(begun.elapsed() < LIMIT, "{way:?}: it is not the limit that ends it");
        channel.check().expect("the kernel runs");
        backend.set_faults(&Faults::new());
        assert_eq!(receive(&mut channel), message(0), "{way:?}");
    }
}

#[test]
fn a_drain_returns_the_failure_that_keeps_answers_from_moving() {
    for way in ways().into_iter().skip(SHARED).filter(|way| way.placement == Some([Placement::DEVICE; 2])) {
        let backend = backend();
        let options = Options { input_capacity: 16, output_capacity: 2, timeout: Duration::from_secs(1), ..way };
        let mut channel = open(&backend, &options).expect("a channel");
        (0..12).for_each(|id| channel.send(message(id)).expect("room"));
        // All are in the kernel's ring, and more answers than the rings have room for are to come.
        eventually("all are in the kernel's ring", || {
            channel.flush().is_ok_and(|_| channel.input_waiting().is_ok()) && channel.metrics()[0].messages == 12
        });
        assert_eq!([receive(&mut channel), receive(&mut channel)], [message(0), message(1)], "{options:?}");
        backend.set_faults(&Faults::new().on(Verb::Copy, Fault::from(1)));
        let drained = channel.drain();
        assert!(matches!(drained, Err(Error::Injected { .. })), "{options:?}: {drained:?}");
        backend.set_faults(&Faults::new());
        for id in 2..12 {
            assert_eq!(receive(&mut channel), message(id), "{options:?}");
        }
        channel.drain().expect("nothing is in its way");
    }
}

#[test]
fn a_failed_flush_is_returned_and_loses_no_message() {
    for way in ways().into_iter().skip(SHARED) {
        let backend = backend();
        let mut channel = open(&backend, &Options { input_capacity: 2, ..way.clone() }).expect("a channel");
        backend.set_faults(&Faults::new().on(Verb::Copy, Fault::from(1)).on(Verb::Publish, Fault::from(1)));
        for id in 0..2 {
            let sent = channel.try_send(message(id));
            assert!(matches!(sent, Err(SendError::Flush { error: Error::Injected { .. }, message: None })), "{way:?}: {sent:?}");
        }
        let full = channel.try_send(message(2));
        let is_returned = |error: &SendError<Echo>| matches!(error, SendError::Flush { error: Error::Injected { .. }, .. });
        assert!(full.as_ref().is_err_and(is_returned), "{way:?}: {full:?}");
        assert_eq!(full.expect_err("it is full").into_inner(), Some(message(2)), "{way:?}");
        for _ in 0..2 {
            let received = channel.try_recv();
            assert!(matches!(received, Err(ReceiveError::Flush(Error::Injected { .. }))), "{way:?}: {received:?}");
        }
        assert!(matches!(channel.flush(), Err(Error::Injected { .. })), "{way:?}");
        assert!(matches!(channel.input_waiting(), Err(Error::Injected { .. })), "{way:?}");
        let waited = channel.recv_timeout(Duration::from_millis(5));
        assert!(matches!(waited, Err(Error::Injected { .. })), "{way:?}: {waited:?}");
        channel.check().expect("the kernel runs");
        backend.set_faults(&Faults::new());
        assert_eq!([receive(&mut channel), receive(&mut channel)], [message(0), message(1)], "{way:?}: each once, in order");
        assert_eq!(channel.close().expect("it leaves").control.processed, 2, "{way:?}");
    }
}
