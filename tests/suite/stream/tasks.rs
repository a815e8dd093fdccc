#![allow(clippy::result_large_err, reason = "what comes back is as large as what went in")]

use std::future::{Future, IntoFuture};
use std::mem::forget;
use std::pin::{Pin, pin};
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use ringmem::Error;
use ringmem::backend::Backend;
use ringmem::backend::host::{Fault, Faults, Phase, Verb};
use ringmem::stream::{Completion, Queued};

use super::*;

struct Task {
    thread: Thread,
    woken: AtomicU64,
}

impl Task {
    fn new() -> Arc<Self> {
        Arc::new(Self { thread: thread::current(), woken: AtomicU64::new(0) })
    }

    fn woken(&self) -> u64 {
        self.woken.load(Relaxed)
    }
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.woken.fetch_add(1, Relaxed);
        self.thread.unpark();
    }
}

fn block_on<F: Future>(future: F) -> (F::Output, u64) {
    let (mut future, task, begun) = (pin!(future), Task::new(), Instant::now());
    let (waker, mut polls) = (Waker::from(Arc::clone(&task)), 0);
    loop {
        polls += 1;
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return (output, polls);
        }
        while task.woken() < polls {
            assert!(begun.elapsed() < LIMIT, "not woken in time");
            thread::park_timeout(LIMIT);
        }
    }
}

fn poll<T: Queued>(future: &mut Completion<T>, task: &Arc<Task>) -> Poll<Result<T, ringmem::Rejected<T>>> {
    Pin::new(future).poll(&mut Context::from_waker(&Waker::from(Arc::clone(task))))
}

#[test]
fn completion_wakes_a_task_exactly_once() {
    let backend = build(builder());
    let stream = stream(&backend);
    let [first, second] = [0; 2].map(|_| Held::new(&backend, &stream));
    let mut copied = stream.copy(pinned(&backend, 64), gpu(&backend, 64)).expect("it is queued").into_future();
    let task = Task::new();
    assert!(poll(&mut copied, &task).is_pending());
    assert!(poll(&mut copied, &task).is_pending(), "whoever polls without being asked learns nothing new");
    first.let_go();
    thread::sleep(Duration::from_millis(5));
    assert_eq!(task.woken(), 0, "there is one more kernel in front of it");
    second.let_go();
    eventually("the task is woken", || task.woken() == 1);
    let Poll::Ready(Ok((pinned, gpu))) = poll(&mut copied, &task) else { panic!("it was woken for nothing") };
    assert!(poll(&mut copied, &task).is_pending(), "there is nothing more to give");
    assert_eq!((task.woken(), pinned.len(), gpu.len()), (1, 64, 64));
    drop(copied);
    stream.synchronize().expect("nothing failed");
    assert_eq!((task.woken(), Arc::strong_count(&task)), (1, 1), "nobody holds its waker");
}

#[test]
fn notify_for_a_reached_ticket_wakes_at_once() {
    let backend = build(builder());
    let stream = stream(&backend);
    let ticket = backend.record(stream.id()).expect("it is queued").expect("timed");
    assert!(backend.wait(ticket, Some(LIMIT)).expect("nothing failed"));
    let is_woken = || {
        let task = Task::new();
        backend.notify(ticket, Waker::from(Arc::clone(&task))).expect("the backend notifies");
        (task.woken(), Arc::strong_count(&task)) == (1, 1)
    };
    assert!(is_woken() && is_woken());
    drop(stream);
    assert!(is_woken(), "the stream is no more");
}

#[test]
fn a_minimal_executor_awaits_copies_fills_and_events() {
    let backend = build(builder());
    let stream = stream(&backend);
    let held = Held::new(&backend, &stream);
    let pinned = pinned(&backend, 256);
    let gpu = gpu(&backend, 256);
    let work = async {
        let gpu = stream.fill(gpu, .., 7).expect("it is queued").await.expect("no fault");
        stream.copy(gpu, pinned).expect("it is queued").await.expect("no fault")
    };
    let waker = thread::spawn(move || held.let_go());
    let ((gpu, pinned), polls) = block_on(work);
    waker.join().expect("the kernel leaves");
    assert!(polls <= 3, "polled {polls} times for two operations");
    assert_eq!(pinned.as_slice().expect("idle"), [7; 256]);
    let ((), polls) = block_on(async { stream.record().expect("it is queued").is_complete().await.expect("nothing failed") });
    assert!(polls <= 2);
    drop(gpu);
}

#[test]
fn completion_wakes_only_the_waker_of_the_last_poll() {
    let backend = build(builder());
    let stream = stream(&backend);
    let held = Held::new(&backend, &stream);
    let mut filled = stream.fill(gpu(&backend, 64), .., 1).expect("it is queued").into_future();
    let tasks = [0; 3].map(|_| Task::new());
    for task in &tasks {
        assert!(poll(&mut filled, task).is_pending());
    }
    held.let_go();
    eventually("the last is woken", || tasks[2].woken() == 1);
    assert_eq!(tasks.each_ref().map(|task| task.woken()), [0, 0, 1]);
    assert!(poll(&mut filled, &tasks[0]).is_ready());
}

#[test]
fn changing_wakers_during_completion_lose_no_wake_up() {
    let backend = build(builder());
    let stream = stream(&backend);
    let mut buffer = Some(gpu(&backend, 8));
    for round in 0..2000_u32 {
        let mut filled = stream.fill(buffer.take().expect("it came back"), .., 1).expect("it is queued").into_future();
        let output = (0..1 + round % 7).find_map(|_| match poll(&mut filled, &Task::new()) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        });
        let output = output.unwrap_or_else(|| block_on(filled).0);
        buffer = Some(output.expect("no fault"));
    }
}

#[test]
fn a_dropped_future_frees_its_buffers_after_the_operation() {
    let backend = build(builder().log(true));
    let stream = stream(&backend);
    let held = Held::new(&backend, &stream);
    let mut copied = stream.copy(pinned(&backend, 128), gpu(&backend, 128)).expect("it is queued").into_future();
    let task = Task::new();
    assert!(poll(&mut copied, &task).is_pending());
    drop(copied);
    assert_eq!(Arc::strong_count(&task), 1, "its waker went with it");
    held.let_go();
    stream.synchronize().expect("nothing failed");
    let freed = || backend.call_log().iter().filter(|call| (call.phase, call.bytes) == (Phase::Freed, 128)).count();
    eventually("both buffers go", || freed() == 2);
    let calls = backend.call_log();
    let executed = calls.iter().position(|call| (call.verb, call.phase) == (Verb::Copy, Phase::Executed)).expect("it was executed");
    assert!(calls[..executed].iter().all(|call| (call.phase, call.bytes) != (Phase::Freed, 128)), "{calls:?}");
    assert_eq!(task.woken(), 0);
}

#[test]
fn a_forgotten_future_does_not_stop_the_stream() {
    let backend = build(builder());
    let stream = stream(&backend);
    let held = Held::new(&backend, &stream);
    let mut copied = stream.copy(pinned(&backend, 128), gpu(&backend, 128)).expect("it is queued").into_future();
    let task = Task::new();
    assert!(poll(&mut copied, &task).is_pending());
    forget(copied);
    backend.forgets();
    backend.forgets();
    held.let_go();
    let gpu = block_on(stream.fill(gpu(&backend, 64), .., 3).expect("it is queued").into_future()).0.expect("no fault");
    assert_eq!(gpu.to_vec().expect("a copy"), [3; 64]);
    assert!(backend.counters().uploads.count == 1, "what was forgotten was executed");
    eventually("its waker goes", || Arc::strong_count(&task) == 1);
}

#[test]
fn a_failed_operation_returns_its_error_and_buffers() {
    let backend = build(builder().faults(Faults::new().on(Verb::Copy, Fault::nth(1).when_executed())));
    let stream = stream(&backend);
    let held = Held::new(&backend, &stream);
    let copied = stream.copy(pinned(&backend, 64), gpu(&backend, 64)).expect("it is queued").into_future();
    let releaser = thread::spawn(move || held.let_go());
    let rejected = block_on(copied).0.expect_err("it was to fail");
    releaser.join().expect("the kernel leaves");
    assert!(matches!(rejected.error, Error::Injected { call: "copy", number: 1 }));
    let (pinned, gpu) = rejected.value;
    block_on(stream.copy(pinned, gpu).expect("it is queued").into_future()).0.expect("the next succeeds");
    stream.synchronize().expect("the error was told");
}

#[test]
fn operations_queued_before_a_close_can_be_awaited() {
    let backend = build(builder());
    let stream = stream(&backend);
    let held = Held::new(&backend, &stream);
    let mut filled = stream.fill(gpu(&backend, 64), .., 5).expect("it is queued").into_future();
    let task = Task::new();
    assert!(poll(&mut filled, &task).is_pending());
    backend.close_stream(stream.id());
    assert!(matches!(stream.fill(gpu(&backend, 64), .., 5).map_err(|rejected| rejected.error), Err(Error::Closed { what: "stream" })));
    assert!(poll(&mut filled, &task).is_pending());
    held.let_go();
    eventually("the task is woken", || task.woken() == 1);
    let Poll::Ready(Ok(gpu)) = poll(&mut filled, &task) else { panic!("it was executed") };
    assert_eq!(gpu.to_vec().expect("a copy"), [5; 64]);
}

#[test]
fn a_broken_stream_wakes_its_tasks_with_error_and_buffers() {
    let broken = Arc::new(OnceLock::<String>::new());
    let clock = {
        let broken = Arc::clone(&broken);
        move || {
            assert!(broken.get().is_none_or(|name| thread::current().name() != Some(name)), "a clock that a test asked for");
            0
        }
    };
    let backend = build(builder().clock(Arc::new(clock)));
    let (other, stream) = (stream(&backend), stream(&backend));
    broken.set(format!("ringmem-{}", stream.id().get())).expect("once");
    let held = Held::new(&backend, &other);
    stream.wait_for(&other).expect("one backend");
    let moment = stream.record().expect("it is queued");
    let mut filled = stream.fill(gpu(&backend, 64), .., 5).expect("it is queued").into_future();
    let task = Task::new();
    assert!(poll(&mut filled, &task).is_pending());
    held.let_go();
    eventually("the task is woken", || task.woken() == 1);
    let Poll::Ready(Err(rejected)) = poll(&mut filled, &task) else { panic!("the stream is broken") };
    assert!(matches!(rejected.error, Error::Closed { what: "stream" }));
    assert_eq!(rejected.value.len(), 64);
    assert!(matches!(block_on(moment.is_complete()).0, Err(Error::Closed { what: "stream" })));
}

/// Its waker panics.
struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("a waker that a test asked for");
    }
}

#[test]
fn a_panicking_waker_is_counted_and_others_are_woken() {
    let backend = build(builder());
    let stream = stream(&backend);
    let held = Held::new(&backend, &stream);
    let fill = || stream.fill(gpu(&backend, 64), .., 1).expect("it is queued").into_future();
    let (mut first, mut second) = (fill(), fill());
    let task = Task::new();
    assert!(Pin::new(&mut first).poll(&mut Context::from_waker(&Waker::from(Arc::new(Panics)))).is_pending());
    assert!(poll(&mut second, &task).is_pending());
    held.let_go();
    eventually("the other is woken", || task.woken() == 1);
    assert!(poll(&mut first, &task).is_ready() && poll(&mut second, &task).is_ready());
    assert_eq!(backend.counters().unreported, 1);
    stream.synchronize().expect("the stream goes on");
}

#[test]
fn an_empty_operation_is_ready_at_once() {
    let backend = build(builder());
    let stream = stream(&backend);
    let held = Held::new(&backend, &stream);
    let task = Task::new();
    let mut nothing = stream.fill(gpu(&backend, 0), .., 1).expect("nothing to do").into_future();
    assert!(matches!(poll(&mut nothing, &task), Poll::Ready(Ok(_))));
    assert_eq!(task.woken(), 0);
    held.let_go();
}
