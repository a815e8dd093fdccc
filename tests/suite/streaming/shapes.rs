use std::ops::ControlFlow;

use proptest::prelude::*;
use ringmem::Error;
use ringmem::backend::host::HostBackend;
use ringmem::streaming::{Cause, Job, Progress, Streamer, Through};

use crate::streaming::rig::{backend, build, incremented, noise, plus_one, streamer};

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn streaming_preserves_bytes_and_chunks_hold_whole_elements(
        elements in 0_usize..200, element in 1_u64..24, chunk in 1_u64..300, depth in 1_u32..5, worked in any::<bool>(),
    ) {
        let backend = backend();
        let bytes = noise(elements * element as usize);
        let length = bytes.len() as u64;
        let mut streamer =
            Streamer::builder(&backend, 0).chunk(chunk).depth(depth).element(element).build().expect("room");
        let whole = streamer.chunk();
        prop_assert!(whole.is_multiple_of(element) && whole <= chunk.max(element) && whole + element > chunk);

        let before = backend.counters();
        let (mut source, mut sink, mut ends) = (&bytes[..], Vec::new(), Vec::new());
        let mut note = |progress: Progress| {
            ends.push(progress.done);
            ControlFlow::Continue(())
        };
        let job = Job::new(&mut source).to(&mut sink).checksums().on_progress(&mut note);
        let streamed = if worked { streamer.run(job, &mut incremented(&backend)) } else { streamer.run(job, &mut Through) };
        let streamed = streamed.expect("no fault");

        let expected = if worked { plus_one(&bytes) } else { bytes };
        prop_assert!(sink == expected);
        let chunks = length.div_ceil(whole);
        prop_assert_eq!(ends, (1..=chunks).map(|end| (end * whole).min(length)).collect::<Vec<_>>());
        prop_assert_eq!((streamed.bytes, streamed.chunks), (length, chunks));
        prop_assert!(streamed.max_in_flight as u64 <= u64::from(depth).min(chunks));
        prop_assert_eq!(worked || streamed.read == streamed.written, true);
        let after = backend.counters();
        for (after, before) in [(after.uploads, before.uploads), (after.downloads, before.downloads)] {
            prop_assert_eq!((after.count - before.count, after.bytes - before.bytes), (chunks, length));
        }
        // From pinned memory only: the driver stages nothing.
        prop_assert_eq!(after.staged.count, 0);
    }
}

#[test]
fn device_memory_is_exactly_chunk_size_times_depth() {
    for (chunk, depth) in [(4096, 1), (4096, 3), (65_536, 4)] {
        let backend = build(HostBackend::builder().device_memory(chunk * u64::from(depth)));
        let bytes = noise(1_000_003);
        let mut streamer = streamer(&backend, chunk, depth);
        let mut sink = Vec::new();
        let streamed = streamer.run(Job::new(&mut &bytes[..]).to(&mut sink), &mut Through).expect("no fault");
        assert!(sink == bytes);
        assert_eq!(backend.counters().device_live.peak, chunk * u64::from(depth));
        assert_eq!(streamed.max_in_flight, depth as usize, "all of it is used");
    }
}

#[test]
fn a_streamer_runs_again_without_allocating() {
    let backend = backend();
    let mut streamer = streamer(&backend, 1000, 3);
    let before = backend.counters();
    for length in [5000, 0, 1, 999, 1000, 1001] {
        let (bytes, mut sink) = (noise(length), Vec::new());
        streamer.run(Job::new(&mut &bytes[..]).to(&mut sink), &mut incremented(&backend)).expect("no fault");
        assert!(sink == plus_one(&bytes), "{length} bytes");
    }
    let after = backend.counters();
    assert_eq!((after.pinned_allocations, after.device_allocations), (before.pinned_allocations, before.device_allocations));
}

#[test]
fn from_and_until_stream_a_part_of_the_source() {
    let backend = backend();
    let mut streamer = streamer(&backend, 100, 2);
    let bytes = noise(1000);
    let mut sink = Vec::new();
    for (begin, end) in [(0, 350), (350, 350), (350, 1000)] {
        let streamed = streamer.run(Job::new(&mut &bytes[..]).from(begin).until(end).to(&mut sink), &mut Through).expect("no fault");
        assert_eq!((streamed.bytes, sink.len() as u64), (end - begin, end));
    }
    assert!(sink == bytes);
    let stopped = streamer.run(Job::new(&mut &bytes[..]).from(900).until(1001), &mut Through).expect_err("one too many");
    assert!(matches!(stopped.cause, Cause::Device(Error::Range { offset: 900, len: 101, size: 1000, .. })), "{stopped:?}");
    let stopped = streamer.run(Job::new(&mut &bytes[..]).from(1001), &mut Through).expect_err("beyond the end");
    assert!(
        matches!(stopped.cause, Cause::Device(Error::Size { what: "range end in bytes", least: 1001, asked: 1000, .. })),
        "{stopped:?}"
    );
    assert_eq!(stopped.done, 1001);
}

#[test]
fn a_partial_element_is_an_error_before_any_upload() {
    let backend = backend();
    let mut streamer = Streamer::builder(&backend, 0).chunk(100).element(8).build().expect("room");
    assert_eq!(streamer.chunk(), 96);
    let bytes = noise(801);
    let stopped = streamer.run(Job::new(&mut &bytes[..]), &mut Through).expect_err("one left over");
    assert!(matches!(stopped.cause, Cause::Ragged { length: 801, element: 8 }), "{stopped:?}");
    assert_eq!((stopped.done, backend.counters().uploads.count), (0, 0));
}

#[test]
fn invalid_builder_settings_are_errors() {
    let backend = backend();
    let builder = || Streamer::builder(&backend, 0);
    for wrong in [builder().chunk(0), builder().depth(0), builder().staging(0), builder().element(0), builder().chunk(u64::MAX)] {
        assert!(matches!(wrong.build(), Err(Error::Size { .. })));
    }
    assert!(matches!(builder().chunk(1 << 20).depth(2).build(), Err(Error::OutOfMemory { requested, .. }) if requested == 2 << 20));
    assert!(matches!(Streamer::builder(&backend, 7).build(), Err(Error::NoDevice { asked: 7, devices: 1 })));
}

#[test]
fn staging_above_the_pinned_budget_is_refused_before_any_allocation() {
    let backend = build(HostBackend::builder().device_memory(64 << 20).pinned_budget(1 << 20));
    let builder = |staging| Streamer::builder(&backend, 0).chunk(100_000).depth(2).staging(staging);
    let error = builder(11).build().expect_err("1 100 352 bytes");
    let counters = backend.counters();
    assert_eq!([counters.pinned_live, counters.device_live].map(|live| live.peak), [0; 2], "{error}");
    assert!(matches!(error, Error::Staging { buffers: 11, bytes: 100_096, used: 0, limit: 1_048_576 }), "{error:?}");
    let said = "11 staging buffers of 100096 bytes are 1101056 bytes of pinned memory, 0 bytes of 1 MiB in use: use a smaller chunk or fewer \
                staging buffers";
    assert_eq!(error.to_string(), said);
    assert_eq!(builder(10).build().expect("1 000 960 bytes").pinned().0, 10);
}

#[test]
fn more_than_1024_chunks_in_flight_are_refused() {
    let backend = backend();
    let builder = || Streamer::builder(&backend, 0).chunk(1);
    for too_many in [builder().depth(1025), builder().depth(u32::MAX), builder().staging(1025)] {
        let error = too_many.build().expect_err("too many");
        assert!(matches!(error, Error::Size { least: 1, most: 1024, .. }), "{error}");
        assert_eq!(backend.counters().pinned_live.peak, 0);
    }
    let mut streamer = builder().depth(1024).build().expect("room");
    let (bytes, mut sink) = (noise(5000), Vec::new());
    streamer.run(Job::new(&mut &bytes[..]).to(&mut sink), &mut Through).expect("no fault");
    assert!(sink == bytes);
    // 256 bytes a chunk, in one block, not a page each.
    let counters = backend.counters();
    assert_eq!((counters.pinned_allocations.count, counters.pinned_live.peak), (1, 1024 * 256));
}
