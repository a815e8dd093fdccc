use std::cell::Cell;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};

use ringmem::Error;
use ringmem::backend::host::{Fault, Faults, HostBackend, Verb};
use ringmem::memory::{Device, GpuBuffer};
use ringmem::stream::{Pending, Stream};
use ringmem::streaming::{Cause, Chunk, Interrupted, Job, Progress, Queued, Source, Streamer, Through};

use crate::rig::leak_checked::Clean;
use crate::streaming::rig::{Increment, build, incremented, noise, plus_one, streamer};

fn faulty() -> Clean {
    build(HostBackend::builder().device_memory(1 << 20).faults(Faults::new()))
}

fn stream(backend: &Clean, streamer: &mut Streamer, bytes: &[u8], sink: &mut Vec<u8>, from: u64) -> Result<(), Interrupted> {
    let mut source = bytes;
    streamer.run(Job::new(&mut source).from(from).to(sink), &mut incremented(backend)).map(drop)
}

#[test]
fn a_failed_job_stops_at_a_chunk_boundary_and_resumes_there() {
    let bytes = noise(950);
    let expected = plus_one(&bytes);
    let mut stopped_at = std::collections::BTreeSet::new();
    for verb in [Verb::Copy, Verb::Launch, Verb::StreamWait, Verb::RecordPosition, Verb::Wait, Verb::Synchronize] {
        for executed in [false, true] {
            let mut failures = 0;
            for number in 1.. {
                let backend = faulty();
                let mut streamer = streamer(&backend, 100, 3);
                let fault = Fault::nth(number);
                backend.set_faults(&Faults::new().on(verb, if executed { fault.when_executed() } else { fault }));
                let mut sink = Vec::new();
                let outcome = stream(&backend, &mut streamer, &bytes, &mut sink, 0);
                let calls = backend.calls(verb).expect("counted");
                backend.set_faults(&Faults::new());
                if let Err(Interrupted { done, cause }) = outcome {
                    failures += 1;
                    stopped_at.insert(done);
                    assert!(matches!(cause, Cause::Device(_)), "{cause:?}");
                    assert!(done.is_multiple_of(100) || done == 950, "{done}");
                    assert!(sink[..] == expected[..sink.len()] && sink.len() as u64 == done, "{verb:?} {number}: what is written is right");
                    stream(&backend, &mut streamer, &bytes, &mut sink, done).expect("no fault any more");
                }
                assert!(sink == expected, "{verb:?} {number}");
                if number > calls {
                    break;
                }
            }
            assert!(failures > 0 || verb == Verb::Synchronize, "{verb:?}: no call of it mattered");
        }
    }
    assert!(stopped_at.len() > 5, "{stopped_at:?}");
}

#[test]
fn a_failed_build_leaks_nothing() {
    // One block of device memory and one of pinned memory; three streams.
    for (verb, calls) in [(Verb::Allocate, 2), (Verb::OpenStream, 3)] {
        for number in 1.. {
            let backend = faulty();
            backend.set_faults(&Faults::new().on(verb, Fault::nth(number)));
            let built = Streamer::builder(&backend, 0).chunk(100).depth(2).build();
            let counters = backend.counters();
            let live = [counters.device_live, counters.pinned_live, counters.unified_live, counters.host_live].map(|live| live.bytes);
            match built {
                Ok(_) => {
                    assert!(number == calls + 1 && live != [0; 4], "{verb:?}: {number}");
                    break;
                }
                Err(Error::Injected { number: failed, .. }) => assert_eq!(failed, number, "{verb:?}"),
                Err(error) => assert!(verb == Verb::Allocate && matches!(error, Error::OutOfMemory { .. } | Error::Map { .. }), "{error}"),
            }
            assert_eq!(live, [0; 4], "{verb:?} {number}");
        }
    }
}

#[test]
fn on_progress_can_cancel_at_a_chunk_boundary() {
    let backend = faulty();
    let mut streamer = streamer(&backend, 100, 3);
    let bytes = noise(950);
    let mut sink = Vec::new();
    let mut source = &bytes[..];
    let mut third = |progress: Progress| if progress.chunks == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
    let job = Job::new(&mut source).to(&mut sink).on_progress(&mut third);
    let stopped = streamer.run(job, &mut incremented(&backend)).expect_err("it was cancelled");
    assert!(matches!(stopped.cause, Cause::Cancelled) && stopped.done == 300 && sink.len() == 300, "{stopped:?}");
    stream(&backend, &mut streamer, &bytes, &mut sink, 300).expect("no fault");
    assert!(sink == plus_one(&bytes));
}

#[test]
fn a_wrong_checksum_is_an_error() {
    let backend = faulty();
    let mut streamer = streamer(&backend, 4, 3);
    // CRC-32C's check value.
    let mut check = &b"123456789"[..];
    let streamed = streamer.run(Job::new(&mut check).expect(0xe306_9283), &mut Through).expect("no fault");
    assert_eq!((streamed.read, streamed.written), (Some(0xe306_9283), None));
    let mut other = &b"123456780"[..];
    let stopped = streamer.run(Job::new(&mut other).expect(0xe306_9283), &mut Through).expect_err("another digit");
    assert!(matches!(stopped.cause, Cause::Checksum { expected: 0xe306_9283, got } if got != 0xe306_9283), "{stopped:?}");
    let plain = streamer.run(Job::new(&mut other), &mut Through).expect("no fault");
    assert_eq!((plain.read, plain.written), (None, None));
}

struct Fragile<'a>(&'a [u8]);

impl Source for Fragile<'_> {
    fn length(&self) -> Option<u64> {
        Some(self.0.len() as u64)
    }

    fn read_at(&mut self, buffer: &mut [u8], at: u64) -> std::io::Result<usize> {
        assert!(at < 500, "the test's source panics");
        self.0.read_at(buffer, at)
    }
}

#[test]
fn a_streamer_works_after_a_source_panicked() {
    let backend = faulty();
    let mut streamer = streamer(&backend, 100, 3);
    let bytes = noise(950);
    let mut sink = Vec::new();
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let mut source = Fragile(&bytes);
        streamer.run(Job::new(&mut source).to(&mut sink), &mut incremented(&backend)).map(drop)
    }));
    assert!(panicked.is_err());
    let done = sink.len() as u64;
    stream(&backend, &mut streamer, &bytes, &mut sink, done).expect("no fault");
    assert!(sink == plus_one(&bytes));
}

#[test]
fn a_failure_on_a_stage_s_buffer_fails_only_its_own_job() {
    let backend = faulty();
    let mut streamer = streamer(&backend, 100, 3);
    let bytes = noise(300);
    let scratch = Cell::new(Some(GpuBuffer::<u8>::new(Device::new(&backend, 0), 16).expect("room")));
    let increment = Increment::new(&backend);
    let mut stage = Queued(|chunk: &Chunk, on: &Stream| -> Result<Pending<()>, Cause> {
        if chunk.index == 2 {
            backend.set_faults(&Faults::new().on(Verb::Fill, Fault::nth(1).when_executed()));
            let filled = on.fill(scratch.take().expect("once a job"), .., 1);
            scratch.set(Some(filled.map_err(ringmem::Rejected::into_error)?.detach()));
        }
        increment.at_once(chunk, on)
    });
    let failed = streamer.run(Job::new(&mut &bytes[..]), &mut stage).expect_err("its fill fails");
    assert!(matches!(failed.cause, Cause::Device(_)) && failed.done == 300, "{failed:?}");
    let mut last = |progress: Progress| if progress.chunks == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
    let stopped = streamer.run(Job::new(&mut &bytes[..]).on_progress(&mut last), &mut stage).expect_err("it was cancelled");
    assert!(matches!(stopped.cause, Cause::Cancelled) && stopped.done == 300, "{stopped:?}");
    backend.set_faults(&Faults::new());
    streamer.run(Job::new(&mut &bytes[..]), &mut Through).expect("a job of its own");
}

#[test]
fn downloads_wait_for_the_stage_s_own_stream() {
    let backend = faulty();
    let mut streamer = streamer(&backend, 100, 3);
    let (bytes, mut sink) = (noise(950), Vec::new());
    let (own, increment) = (Stream::new(&backend, 0).expect("a stream"), Increment::new(&backend));
    let mut stage = Queued(|chunk: &Chunk, on: &Stream| -> Result<Pending<()>, Cause> {
        own.wait_for(on)?;
        increment.late(chunk, &own)
    });
    streamer.run(Job::new(&mut &bytes[..]).to(&mut sink), &mut stage).expect("no fault");
    assert!(sink == plus_one(&bytes));
}
