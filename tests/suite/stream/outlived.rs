use std::future::Future;
use std::pin::Pin;
use std::sync::Mutex;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::task::{Context, Poll, Wake, Waker};

use ringmem::Error;
use ringmem::backend::Backend;
use ringmem::backend::host::{Fault, Faults, Verb};

use super::*;

fn failing() -> Clean {
    build(builder().faults(Faults::new().on(Verb::Fill, Fault::from(1).when_executed())))
}

fn is_told(outcome: Result<Vec<u8>, Error>, asked: u64) -> bool {
    matches!(outcome, Err(Error::Injected { call: "fill", number }) if number == asked)
}

#[test]
fn a_buffer_reports_a_failure_after_its_stream_was_dropped() {
    let backend = failing();
    let stream = stream(&backend);
    let buffers = [0; 2].map(|_| stream.fill(gpu(&backend, 64), .., 7).expect("it is queued").detach());
    drop(stream);
    assert_eq!(backend.counters().unreported, 2, "so far");
    let [first, second] = buffers;
    assert!(is_told(second.to_vec(), 2) && is_told(first.to_vec(), 1));
    let again = first.to_vec();
    assert!(matches!(&again, Err(Error::Tainted { number: 1, .. })), "nothing was written: {again:?}");
    assert_eq!(backend.counters().unreported, 0);
}

#[test]
fn a_waiter_gets_the_failure_of_a_closed_stream() {
    let backend = failing();
    let stream = stream(&backend);
    let pending = stream.fill(gpu(&backend, 64), .., 7).expect("it is queued");
    backend.close_stream(stream.id());
    assert!(matches!(pending.wait().map_err(|rejected| rejected.error), Err(Error::Injected { call: "fill", number: 1 })));
}

#[test]
fn unreported_failures_of_dropped_streams_are_counted() {
    let backend = failing();
    let mut last = None;
    for _ in 0..100 {
        let stream = stream(&backend);
        last = Some(stream.fill(gpu(&backend, 64), .., 7).expect("it is queued").detach());
    }
    assert!(last.is_some_and(|last| is_told(last.to_vec(), 100)));
    assert_eq!(backend.counters().unreported, 99);
}

struct Inline {
    wakes: AtomicU64,
    future: Mutex<Option<Pin<Box<dyn Future<Output = ()> + Send>>>>,
}

impl Wake for Inline {
    fn wake(self: Arc<Self>) {
        if self.wakes.fetch_add(1, AcqRel) > 0 {
            return;
        }
        let waker = Waker::from(Arc::clone(&self));
        let mut seen = 1;
        loop {
            let mut future = self.future.lock().expect("nobody panicked");
            if future.as_mut().is_some_and(|future| future.as_mut().poll(&mut Context::from_waker(&waker)) != Poll::Pending) {
                *future = None;
            }
            drop(future);
            seen = match self.wakes.fetch_sub(seen, AcqRel) - seen {
                0 => return,
                more => more,
            };
        }
    }
}

#[test]
fn a_task_may_drop_its_stream_on_the_stream_thread() {
    let backend = build(builder());
    let stream = stream(&backend);
    let held = Held::new(&backend, &stream);
    let (mut host, mut device) = (pinned(&backend, 64), gpu(&backend, 64));
    let (ended, is_alone) = (Arc::new(Mutex::new(None)), Arc::new(AtomicBool::new(false)));
    let task = {
        let (ended, is_alone) = (Arc::clone(&ended), Arc::clone(&is_alone));
        async move {
            for round in 0..100 {
                device = stream.fill(device, .., round).expect("it is queued").await.expect("no fault");
                (device, host) = stream.copy(device, host).expect("it is queued").await.expect("no fault");
                stream.record().expect("it is queued").is_complete().await.expect("nothing failed");
                assert_eq!(host.as_slice().expect("idle"), [round; 64]);
            }
            eventually("nobody else has the stream", || is_alone.load(Acquire));
            drop((stream, device, host));
            *ended.lock().expect("nobody panicked") = thread::current().name().map(str::to_owned);
        }
    };
    let task = Arc::new(Inline { wakes: AtomicU64::new(0), future: Mutex::new(Some(Box::pin(task))) });
    Arc::clone(&task).wake();
    assert!(ended.lock().expect("nobody panicked").is_none(), "a kernel is in front of it");
    held.let_go();
    is_alone.store(true, Release);
    eventually("the task ends", || ended.lock().expect("nobody panicked").is_some());
    assert!(ended.lock().expect("nobody panicked").as_ref().is_some_and(|name| name.starts_with("ringmem-")));
    eventually("nobody keeps it", || Arc::strong_count(&task) == 1);
}

#[test]
fn a_dropped_event_future_releases_its_waker() {
    let backend = build(builder());
    let stream = stream(&backend);
    let held = Held::new(&backend, &stream);
    let moment = stream.record().expect("it is queued");
    let task = Arc::new(Inline { wakes: AtomicU64::new(0), future: Mutex::new(None) });
    let waker = Waker::from(Arc::clone(&task));
    {
        let mut reached = std::pin::pin!(moment.is_complete());
        for _ in 0..3 {
            assert!(reached.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        }
    }
    drop(waker);
    assert_eq!(Arc::strong_count(&task), 1);
    held.let_go();
    assert!(moment.wait_timeout(LIMIT).expect("nothing failed"));
    assert_eq!(task.wakes.load(Relaxed), 0);
}
