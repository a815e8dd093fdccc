use std::future::IntoFuture;

use ringmem::Error;
use ringmem::backend::host::{Fault, Faults, Phase, Verb};
use tokio::task::{JoinSet, yield_now};

use super::*;

fn in_time<F: Future>(future: F) -> F::Output {
    let executor = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("an executor");
    executor.block_on(async { tokio::time::timeout(LIMIT, future).await.expect("in time") })
}

#[test]
fn a_join_set_awaits_thirty_transfers() {
    in_time(async {
        let backend = build(builder());
        let streams = [0; 3].map(|_| stream(&backend));
        let held = streams.each_ref().map(|stream| Held::new(&backend, stream));
        let mut copies = JoinSet::new();
        for (stream, value) in streams.iter().cycle().zip(0..30_u8) {
            let (stream, gpu, pinned) = (stream.clone(), gpu(&backend, 1000), pinned(&backend, 1000));
            copies.spawn(async move {
                let gpu = stream.fill(gpu, .., value)?.detach();
                let (_, pinned) = stream.copy(gpu, pinned)?.await?;
                Ok::<_, Error>((value, pinned))
            });
        }
        yield_now().await;
        let releaser = thread::spawn(|| held.into_iter().for_each(Held::let_go));
        let mut seen = [false; 30];
        while let Some(copied) = copies.join_next().await {
            let (value, pinned) = copied.expect("no panic").expect("no fault");
            assert_eq!(pinned.as_slice().expect("idle"), [value; 1000]);
            assert!(!std::mem::replace(&mut seen[usize::from(value)], true));
        }
        releaser.join().expect("the kernels leave");
        assert_eq!(seen, [true; 30]);
    });
}

#[test]
fn a_failed_transfer_fails_only_its_own_branch_of_a_join() {
    in_time(async {
        let backend = build(builder().faults(Faults::new().on(Verb::Fill, Fault::nth(2).when_executed())));
        let stream = stream(&backend);
        let fill = |value| stream.fill(gpu(&backend, 64), .., value).expect("it is queued");
        let (first, second, third) = tokio::join!(fill(1).into_future(), fill(2).into_future(), fill(3).into_future());
        assert_eq!(first.expect("no fault").to_vec().expect("a copy"), [1; 64]);
        assert!(matches!(second.expect_err("planned").error, Error::Injected { call: "fill", number: 2 }));
        assert_eq!(third.expect("no fault").to_vec().expect("a copy"), [3; 64]);
    });
}

#[test]
fn a_cancelled_transfer_executes_before_its_buffers_are_freed() {
    in_time(async {
        let backend = build(builder().log(true));
        let stream = stream(&backend);
        let held = Held::new(&backend, &stream);
        let copied = stream.copy(pinned(&backend, 512), gpu(&backend, 512)).expect("it is queued");
        tokio::select! {
            biased;
            _ = copied.into_future() => panic!("a kernel is in front of it"),
            () = yield_now() => {}
        }
        held.let_go();
        stream.synchronize().expect("nothing failed");
        let freed = || backend.call_log().iter().filter(|call| (call.phase, call.bytes) == (Phase::Freed, 512)).count();
        eventually("both buffers go", || freed() == 2);
        let calls = backend.call_log();
        let at = |of: &dyn Fn(&ringmem::backend::host::Call) -> bool| calls.iter().position(of).expect("it happened");
        let executed = at(&|call| (call.verb, call.phase) == (Verb::Copy, Phase::Executed));
        assert!(executed < at(&|call| (call.phase, call.bytes) == (Phase::Freed, 512)), "{calls:?}");
    });
}

#[test]
fn a_transfer_continues_after_a_select_by_reference() {
    in_time(async {
        let backend = build(builder());
        let stream = stream(&backend);
        let held = Held::new(&backend, &stream);
        let mut filled = stream.fill(gpu(&backend, 64), .., 9).expect("it is queued").into_future();
        tokio::select! {
            biased;
            _ = &mut filled => panic!("a kernel is in front of it"),
            () = yield_now() => {}
        }
        let releaser = thread::spawn(move || held.let_go());
        assert_eq!(filled.await.expect("no fault").to_vec().expect("a copy"), [9; 64]);
        releaser.join().expect("the kernel leaves");
    });
}

#[test]
fn an_aborted_task_does_not_cancel_its_transfer() {
    in_time(async {
        let backend = build(builder());
        let stream = stream(&backend);
        let held = Held::new(&backend, &stream);
        let pending = stream.copy(pinned(&backend, 64), gpu(&backend, 64)).expect("it is queued");
        let task = tokio::spawn(pending.into_future());
        yield_now().await;
        task.abort();
        assert!(task.await.expect_err("it was aborted").is_cancelled());
        held.let_go();
        stream.record().expect("it is queued").is_complete().await.expect("nothing failed");
        assert_eq!(backend.counters().uploads.count, 1);
    });
}
