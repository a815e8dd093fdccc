//! Order, waiting and lifetimes of streams, most of them while a kernel runs that the test ends. Pinned memory is allocated before
//! that kernel is launched: a driver may let its allocation wait for every running kernel.

use std::future::{Future, IntoFuture};
use std::mem;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, Wake, Waker};

use ringmem::Error;
use ringmem::backend::Uses;
use ringmem::error::OperationFault;
use ringmem::memory::{Buffer, Device, Pinned};

use super::subject::{HELD_UP, Held, done, eventually, held_up, pattern, tell_tale};
use super::{LIMIT, Subject};

pub fn kernels_run_in_order_with_surrounding_transfers(subject: &Subject) {
    let (stream, gpu) = (subject.stream(), subject.gpu::<u8>(1000));
    let into = subject.pinned::<u8>(1000);
    let (_, into) = subject.changes(
        "a fill, five launches, a copy",
        |figures| (figures.fills, figures.launches, figures.downloads) = (figures.fills + 1, figures.launches + 5, figures.downloads + 1),
        || {
            let mut gpu = stream.fill(gpu, .., 3).expect("a fill").detach();
            for _ in 0..5 {
                drop(subject.increment(&stream, &mut gpu));
            }
            done(stream.copy(gpu, into).expect("a copy"))
        },
    );
    assert_eq!(into.as_slice().expect("nothing is queued"), [8; 1000]);
}

pub fn a_queued_copy_reads_its_source_at_execution(subject: &Subject) {
    let (stream, gpu, pinned) = (subject.stream(), subject.gpu::<u8>(4096), subject.pinned_of(&[1_u8; 4096]));
    let first = pinned.as_ptr().expect("bytes");
    let held = subject.hold(&stream);
    let pending = stream.copy(pinned, gpu).expect("as many");
    assert!(!pending.is_done(), "a kernel is in front of it");
    let pending = held_up(pending.try_take().expect_err("a kernel is in front of it"), "a kernel");
    // SAFETY: the operation keeps it; a kernel prevents every access.
    unsafe { first.write_bytes(2, 4096) };
    drop(held);
    let (pinned, gpu) = done(pending);
    assert_eq!(pinned.as_ptr(), Some(first), "the same memory comes back");
    assert_eq!(gpu.to_vec().expect("a copy"), [2; 4096]);
}

pub fn operations_on_one_buffer_are_ordered_across_streams(subject: &Subject) {
    let (first, second) = (subject.stream(), subject.stream());
    let (gpu, pinned) = (subject.gpu::<u8>(100), subject.pinned::<u8>(100));
    let held = subject.hold(&first);
    let gpu = first.fill(gpu, .., 1).expect("a fill").detach();
    let gpu = first.fill(gpu, 50.., 2).expect("a fill").detach();
    let mut gpu = second.fill(gpu, 40..60, 3).expect("a fill").detach();
    let incremented = subject.increment(&second, &mut gpu);
    let pending = first.copy(gpu, pinned).expect("as many");
    let incremented = held_up(incremented, "the first stream's kernel");
    assert!(!pending.is_done(), "it waits for the increment");
    drop(held);
    let (_, into) = done(pending);
    let expected: Vec<u8> = (0..100).map(|i| if (40..60).contains(&i) { 4 } else { 2 + u8::from(i >= 50) }).collect();
    assert_eq!(into.as_slice().expect("nothing is queued"), expected);
    done(incremented);
}

pub fn uses_on_many_streams_are_ordered(subject: &Subject) {
    let streams: Vec<_> = (0..9).map(|_| subject.stream()).collect();
    let mut gpu = subject.gpu::<u8>(100);
    gpu.zero().expect("a fill");
    let held = subject.hold(&streams[0]);
    gpu = streams[0].fill(gpu, .., 1).expect("a fill").detach();
    for stream in streams.iter().chain(&streams) {
        // A launch waits only for its stream; the fill also for the buffer's uses.
        gpu = stream.fill(gpu, ..1, 0).expect("a fill").detach();
        drop(subject.increment(stream, &mut gpu));
    }
    let last = held_up(streams[8].fill(gpu, 1..2, 9).expect("a fill"), "the first stream's kernel");
    drop(held);
    let gpu = done(last);
    let mut expected = [19; 100];
    expected[..2].copy_from_slice(&[1, 9]);
    assert_eq!(gpu.to_vec().expect("a copy"), expected);
}

pub fn wait_for_orders_two_streams(subject: &Subject) {
    let (first, second) = (subject.stream(), subject.stream());
    assert_ne!(first.id(), second.id());
    let held = subject.hold(&first);
    let free = done(second.fill(subject.gpu::<u8>(8), .., 1).expect("a fill")); // streams do not wait for each other by themselves
    second.wait_for(&first).expect("both of one backend");
    let pending = held_up(second.fill(free, .., 2).expect("a fill"), "the other stream's kernel");
    drop(held);
    assert_eq!(done(pending).to_vec().expect("a copy"), [2; 8]);
}

pub fn slices_of_memory_in_queued_use_are_busy(subject: &Subject) {
    let (stream, pinned) = (subject.stream(), subject.pinned::<u8>(100));
    let held = subject.hold(&stream);
    let (mut pinned, gpu) = stream.copy(pinned, subject.gpu::<u8>(100)).expect("as many").detach();
    subject.nothing("slices", || {
        assert!(matches!(pinned.as_slice(), Err(Error::Busy { .. })));
        assert!(matches!(pinned.as_mut_slice(), Err(Error::Busy { .. })));
        assert!(matches!(pinned.slice(..50).expect("within").as_slice(), Err(Error::Busy { .. })));
        assert!(matches!(pinned.slice_mut(..50).expect("within").into_mut_slice(), Err(Error::Busy { .. })));
    });
    drop(held);
    stream.synchronize().expect("it ends");
    assert!(pinned.as_slice().is_ok() && pinned.as_mut_slice().is_ok());
    drop(gpu);
}

pub fn blocking_copies_wait_for_queued_work(subject: &Subject) {
    let stream = subject.stream();
    for round in 0..20_u8 {
        let gpu = stream.fill(subject.gpu::<u8>(60_000), .., round).expect("a fill").detach();
        let mut gpu = stream.fill(gpu, ..30_000, round + 1).expect("a fill").detach();
        let bytes = gpu.to_vec().expect("a copy");
        assert!(bytes[..30_000].iter().all(|&byte| byte == round + 1) && bytes[30_000..].iter().all(|&byte| byte == round));
        gpu = stream.fill(gpu, .., 100).expect("a fill").detach();
        gpu.copy_from_at(10, &[round; 10]).expect("within");
        assert_eq!(gpu.read(|bytes| (bytes[9], bytes[10], bytes[20])).expect("a copy"), (100, round, 100));
    }
}

pub fn a_dropped_buffer_is_freed_after_its_queued_work(subject: &Subject) {
    let (stream, memory) = (subject.stream(), Device::new(&subject.backend, 0));
    let gpu = Buffer::<u8, _>::new(memory.clone(), 4096).expect("room");
    let (address, pinned) = (gpu.device_address(), subject.pinned_of(&pattern(4096)));
    let held = subject.hold(&stream);
    let before = subject.figures();
    drop(stream.copy(pinned, gpu).expect("as many"));
    assert_eq!(subject.figures(), before, "neither copied nor freed while a kernel is in front of it");
    let other = Buffer::<u8, _>::new(memory, 4096).expect("room");
    assert_ne!(other.device_address(), address, "nobody else gets it meanwhile");
    drop(held);
    stream.synchronize().expect("it ends");
    drop(other);
    let Some(before) = before else { return };
    assert_eq!(subject.figures().map(|figures| figures.uploads), Some(before.uploads + 1), "it was copied");
    eventually("it is freed", || subject.figures().is_some_and(|figures| figures.frees >= before.frees + 3));
}

pub fn a_buffer_outlives_the_launch_that_uses_it(subject: &Subject) {
    let (stream, other) = (subject.stream(), subject.stream());
    let held = subject.hold(&stream);
    let mut gpu = subject.gpu::<u8>(4096);
    let launch = subject.increment(&stream, &mut gpu);
    let before = subject.figures();
    drop(gpu);
    done(other.fill(subject.gpu::<u8>(4096), .., 1).expect("a fill"));
    let frees = subject.figures().map(|figures| figures.frees);
    assert!(frees.zip(before).is_none_or(|(frees, before)| frees <= before.frees + 1), "only the other buffer was freed");
    assert!(!launch.is_done());
    drop(held);
    done(launch);
}

pub fn forgotten_buffers_and_streams_are_never_freed(subject: &Subject) {
    let stream = subject.stream();
    let memory = Device::new(&subject.backend, 0);
    let gpu = |len| Buffer::<u8, _>::new(memory.clone(), len).expect("room");
    let pinned = Buffer::<u8, _>::new(Pinned::new(&subject.backend, 0), 100).expect("room");
    let held = subject.hold(&stream);
    mem::forget(stream.copy(pinned, gpu(100)).expect("as many"));
    mem::forget(stream.fill(gpu(200), .., 1).expect("a fill").detach());
    mem::forget(gpu(300));
    subject.forgets(100 + 100 + 200 + 300);
    let buffer = subject.gpu_of(&[5_u8; 10]);
    let last = stream.fill(buffer, ..5, 6).expect("a fill");
    drop(held);
    let buffer = done(last);
    assert_eq!(buffer.to_vec().expect("a copy"), [6, 6, 6, 6, 6, 5, 5, 5, 5, 5]);
    stream.synchronize().expect("all was executed");
    let forgotten = subject.stream();
    let pending = forgotten.fill(buffer, .., 7).expect("a fill");
    mem::forget(forgotten);
    assert_eq!(done(pending).to_vec().expect("a copy"), [7; 10]);
}

pub fn dropping_a_stream_executes_its_queued_work(subject: &Subject) {
    // Pending operations hold the stream. With a kernel, the fills are queued at the drop.
    for has_kernel in [false, true] {
        let stream = subject.stream();
        let mut held = has_kernel.then(|| subject.hold(&stream));
        drop(held.as_mut().map(Held::take));
        let fill = |i| stream.fill(subject.gpu::<u8>(10_000), .., i).expect("a fill").detach();
        let buffers: Vec<_> = (0..20).map(fill).collect();
        drop(stream);
        drop(held);
        for (i, buffer) in buffers.iter().enumerate() {
            assert_eq!(buffer.to_vec().expect("a copy"), [i as u8; 10_000]);
        }
    }
}

pub fn dropping_a_stream_does_not_wait_for_its_kernel(subject: &Subject) {
    let stream = subject.stream();
    let mut held = subject.hold(&stream);
    drop(held.take());
    let buffer = stream.fill(subject.gpu::<u8>(64), .., 1).expect("a fill").detach();
    let before = subject.figures();
    drop((stream, subject.module()));
    assert_eq!(subject.figures(), before, "nobody has told the kernel to leave");
    drop(held);
    assert_eq!(buffer.to_vec().expect("a copy"), [1; 64]);
}

pub fn a_kept_value_is_dropped_after_its_uses(subject: &Subject) {
    let stream = subject.stream();
    let mut held = subject.hold(&stream);
    let launch = held.take();
    let (value, alive) = tell_tale();
    let ticket = subject.backend.record_position(stream.id()).expect("an open stream");
    subject.backend.keep(value, &Uses::of(ticket), None);
    assert_eq!(Arc::strong_count(&alive), 2, "a kernel uses it");
    drop(held);
    done(launch);
    eventually("the value is dropped", || Arc::strong_count(&alive) == 1);
    let (value, alive) = tell_tale();
    subject.backend.keep(value, &Uses::NONE, None);
    assert_eq!(Arc::strong_count(&alive), 1, "nobody uses it");
}

#[derive(Default)]
struct Task(AtomicU64);

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Relaxed);
    }
}

pub fn a_task_is_woken_without_calls_to_the_backend(subject: &Subject) {
    let stream = subject.stream();
    let mut held = subject.hold(&stream);
    drop(held.take());
    let mut filled = pin!(stream.fill(subject.gpu::<u8>(100), .., 7).expect("a fill").into_future());
    let task = Arc::new(Task::default());
    let waker = Waker::from(Arc::clone(&task));
    let mut poll = || filled.as_mut().poll(&mut Context::from_waker(&waker));
    assert!(poll().is_pending() && poll().is_pending(), "a kernel is in front of it");
    assert_eq!(task.0.load(Relaxed), 0, "nothing has happened");
    drop(held);
    eventually("the task is woken", || task.0.load(Relaxed) == 1);
    match poll() {
        Poll::Ready(outcome) => assert_eq!(outcome.expect("no error").to_vec().expect("a copy"), [7; 100]),
        Poll::Pending => panic!("it was woken for nothing"),
    }
}

pub fn an_event_completes_after_earlier_work_and_has_a_time(subject: &Subject) {
    let (stream, other) = (subject.stream(), subject.stream());
    let begun = stream.record().expect("an open stream");
    let held = subject.hold(&stream);
    let ended = stream.record().expect("an open stream");
    other.wait_for_event(&ended).expect("both of one backend");
    let after = held_up(other.fill(subject.gpu::<u8>(8), .., 2).expect("a fill"), "the event");
    assert!(begun.wait_timeout(LIMIT).expect("no error") && !ended.is_done());
    assert!(matches!(
        ended.elapsed_since(&begun),
        Err(Error::Operation { what: OperationFault::NotReached, .. } | Error::Unsupported { .. })
    ));
    drop(held);
    assert!(ended.wait_timeout(LIMIT).expect("no error") && ended.is_done());
    match ended.elapsed_since(&begun) {
        Ok(elapsed) => assert!(elapsed >= HELD_UP, "{elapsed:?}"),
        Err(error) => assert!(matches!(error, Error::Unsupported { .. }), "{error}"),
    }
    assert_eq!(done(after).to_vec().expect("a copy"), [2; 8]);
}
