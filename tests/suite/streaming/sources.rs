use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::ops::ControlFlow;

use ringmem::streaming::{Cause, FileSource, Job, Progress, Sequential, Source, Through};
use tempfile::NamedTempFile;

use crate::streaming::rig::{backend, incremented, noise, plus_one, streamer};

fn file(bytes: &[u8]) -> NamedTempFile {
    let mut file = NamedTempFile::new().expect("a temporary file");
    file.write_all(bytes).expect("room");
    file
}

struct Trickle<'a> {
    bytes: &'a [u8],
    turn: usize,
}

impl Read for Trickle<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.turn += 1;
        if self.turn.is_multiple_of(3) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let count = (self.turn % 17 + 1).min(buffer.len());
        self.bytes.read(&mut buffer[..count])
    }
}

#[test]
fn a_sequential_source_is_streamed_to_its_end() {
    let backend = backend();
    let mut streamer = streamer(&backend, 100, 3);
    for length in [0, 1, 99, 100, 101, 1000, 1234] {
        let (bytes, mut sink) = (noise(length), Vec::new());
        let mut source = Sequential::new(Trickle { bytes: &bytes, turn: 0 });
        let job = Job::new(&mut source).to(&mut sink).checksums();
        let streamed = streamer.run(job, &mut incremented(&backend)).expect("no fault");
        assert!(sink == plus_one(&bytes));
        assert_eq!((streamed.bytes, streamed.chunks), (length as u64, length.div_ceil(100) as u64));
        let whole = streamer.run(Job::new(&mut &bytes[..]).checksums(), &mut Through).expect("no fault");
        assert_eq!(streamed.read, whole.read, "{length} bytes");
    }
}

#[test]
fn a_sequential_source_skips_forward_and_cannot_seek_back() {
    let backend = backend();
    let mut streamer = streamer(&backend, 100, 3);
    let bytes = noise(1000);
    let mut source = Sequential::new(&bytes[..]);
    let mut sink = bytes[..500].to_vec();
    streamer.run(Job::new(&mut source).from(500).to(&mut sink), &mut Through).expect("no fault");
    assert!(sink == bytes);
    let stopped = streamer.run(Job::new(&mut source), &mut Through).expect_err("it is at its end");
    assert!(matches!(&stopped.cause, Cause::Read { at: 0, source } if source.kind() == io::ErrorKind::NotSeekable), "{stopped:?}");
    let stopped = streamer.run(Job::new(&mut Sequential::new(&bytes[..])).until(1001), &mut Through).expect_err("one too many");
    assert!(matches!(stopped.cause, Cause::Truncated { at: 1000, promised: 1001 }), "{stopped:?}");
    assert_eq!(stopped.cause.to_string(), "ended at byte 1000 of 1001");
    assert_eq!(stopped.done % 100, 0);
}

#[test]
fn a_partial_element_at_the_end_of_a_pipe_is_an_error() {
    let backend = backend();
    let mut streamer = ringmem::streaming::Streamer::builder(&backend, 0).chunk(80).element(8).build().expect("room");
    let bytes = noise(403);
    let stopped = streamer.run(Job::new(&mut Sequential::new(&bytes[..])), &mut Through).expect_err("three left over");
    assert!(matches!(stopped.cause, Cause::Ragged { length: 3, element: 8 }), "{stopped:?}");
}

#[test]
fn a_file_four_times_the_device_memory_is_streamed() {
    let backend = backend();
    let bytes = noise((4 << 20) + 13);
    let file = file(&bytes);
    let mut source = FileSource::open(file.path()).expect("it is there");
    assert_eq!(source.len(), bytes.len() as u64);
    let mut sink = Vec::new();
    streamer(&backend, 100_000, 3).run(Job::new(&mut source).to(&mut sink), &mut incremented(&backend)).expect("no fault");
    assert!(sink == plus_one(&bytes));
}

fn changed(change: impl Fn(&File)) -> (u64, Cause, Vec<u8>, Vec<u8>) {
    let backend = backend();
    let bytes = noise(1000);
    let file = file(&bytes);
    let mut source = FileSource::open(file.path()).expect("it is there");
    let mut sink = Vec::new();
    let mut callback = |progress: Progress| {
        if progress.chunks == 3 {
            change(&OpenOptions::new().append(true).open(file.path()).expect("it is ours"));
        }
        ControlFlow::Continue(())
    };
    let job = Job::new(&mut source).to(&mut sink).on_progress(&mut callback);
    let stopped = streamer(&backend, 100, 2).run(job, &mut Through).expect_err("it changed");
    (stopped.done, stopped.cause, sink, bytes)
}

#[test]
fn a_file_that_shrinks_stops_the_stream_at_a_boundary() {
    let (done, cause, sink, bytes) = changed(|file| file.set_len(650).expect("shorter"));
    assert!(matches!(cause, Cause::Truncated { at: 650, promised: 1000 }), "{cause:?}");
    assert_eq!((done % 100, sink.len() as u64), (0, done));
    assert!(sink == bytes[..sink.len()] && (300..=600).contains(&done));
    let (done, cause, ..) = changed(|file| {
        file.set_len(1001).expect("longer");
    });
    assert!(matches!(cause, Cause::Changed { promised: 1000, now: 1001 }), "{cause:?}");
    assert_eq!(done, 1000);
}

#[test]
fn an_unlinked_file_is_read_to_its_end() {
    let backend = backend();
    let bytes = noise(1000);
    let file = file(&bytes);
    let mut source = FileSource::open(file.path()).expect("it is there");
    file.close().expect("it is ours");
    let mut sink = Vec::new();
    streamer(&backend, 100, 2).run(Job::new(&mut source).to(&mut sink), &mut Through).expect("no fault");
    assert!(sink == bytes);
}

#[test]
#[cfg(target_os = "linux")]
fn a_file_that_continues_past_its_length_is_an_error() {
    let backend = backend();
    let mut source = FileSource::open("/proc/cpuinfo").expect("it says that it is a file");
    let stopped = streamer(&backend, 100, 2).run(Job::new(&mut source), &mut Through).expect_err("it goes on");
    assert!(matches!(stopped.cause, Cause::Endless { promised: 0 }), "{stopped:?}");
    // SAFETY: no process shortens it.
    let mut source =
        unsafe { ringmem::streaming::Mapped::new(File::open("/proc/cpuinfo").expect("it is there")) }.expect("it says that it is a file");
    let stopped = streamer(&backend, 100, 2).run(Job::new(&mut source), &mut Through).expect_err("it goes on");
    assert!(matches!(stopped.cause, Cause::Endless { promised: 0 }), "{stopped:?}");
}

#[test]
#[cfg(unix)]
fn a_mapped_file_is_streamed_through_windows() {
    let backend = backend();
    let bytes = noise(1_000_003);
    let file = file(&bytes);
    // SAFETY: the test's file.
    let mut source = unsafe { ringmem::streaming::Mapped::new(File::open(file.path()).expect("it is there")) }.expect("a length");
    for (chunk, begin) in [(4096, 0), (100_000, 0), (65_537, 70_001)] {
        let mut sink = bytes[..begin].to_vec();
        let job = Job::new(&mut source).from(begin as u64).to(&mut sink);
        streamer(&backend, chunk, 2).run(job, &mut Through).expect("no fault");
        assert!(sink == bytes);
    }
    for (place, kind) in [("/dev/null", io::ErrorKind::InvalidInput), ("/", io::ErrorKind::IsADirectory)] {
        // SAFETY: refused.
        let refused = unsafe { ringmem::streaming::Mapped::new(File::open(place).expect("it is there")) }.expect_err("no regular file");
        assert_eq!(refused.kind(), kind, "{place}: {refused}");
    }
    // A promise broken before a mapping is an error, not a signal.
    file.as_file().set_len(500_000).expect("shorter");
    let stopped = streamer(&backend, 4096, 2).run(Job::new(&mut source), &mut Through).expect_err("it is shorter");
    assert!(matches!(stopped.cause, Cause::Truncated { at: 500_000, promised: 1_000_003 }), "{stopped:?}");
    assert!(matches!(source.check(), Err(Cause::Changed { promised: 1_000_003, now: 500_000 })));
}

#[test]
fn is_at_recognises_links_to_the_source() {
    let place = tempfile::tempdir().expect("a directory");
    let [one, link, hard, other] = ["one", "link", "hard", "other"].map(|name| place.path().join(name));
    std::fs::write(&one, "bytes").and_then(|()| std::fs::write(&other, "bytes")).expect("room");
    let source = FileSource::open(&one).expect("it is there");
    assert!(source.is_at(&one).expect("it is there") && !source.is_at(&other).expect("it is there"));
    assert!(!source.is_at(place.path().join("nowhere")).expect("not there"));
    if cfg!(unix) {
        std::fs::hard_link(&one, &hard).expect("a link");
        #[cfg(unix)]
        std::os::unix::fs::symlink(&one, &link).expect("a link");
        assert!(source.is_at(&hard).expect("it is there") && source.is_at(&link).expect("it is there"));
    }
}

struct Unsteady<'a> {
    bytes: &'a [u8],
    fails_after: Option<usize>,
}

impl Read for Unsteady<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = match self.fails_after {
            Some(0) => {
                self.fails_after = None;
                return Err(io::ErrorKind::TimedOut.into());
            }
            Some(left) => left.min(buffer.len()),
            None => buffer.len(),
        };
        let count = self.bytes.read(&mut buffer[..most])?;
        self.fails_after = self.fails_after.map(|left| left - count);
        Ok(count)
    }
}

#[test]
fn a_failed_skip_resumes_at_the_failed_byte() {
    let backend = backend();
    let mut streamer = streamer(&backend, 100, 3);
    let bytes = noise(1000);
    let mut source = Sequential::new(Unsteady { bytes: &bytes, fails_after: Some(250) });
    let mut sink = bytes[..500].to_vec();
    let stopped = streamer.run(Job::new(&mut source).from(500).to(&mut sink), &mut Through).expect_err("it fails once");
    assert!(matches!(&stopped.cause, Cause::Read { at: 500, source } if source.kind() == io::ErrorKind::TimedOut), "{stopped:?}");
    streamer.run(Job::new(&mut source).from(stopped.done).to(&mut sink), &mut Through).expect("once");
    assert!(sink == bytes);
}

#[test]
fn a_source_shorter_than_the_job_s_start_is_an_error() {
    let backend = backend();
    let mut streamer = streamer(&backend, 100, 3);
    let bytes = noise(1000);
    for begin in [1001, u64::MAX - 1] {
        let stopped = streamer.run(Job::new(&mut Sequential::new(&bytes[..])).from(begin), &mut Through).expect_err("it has a thousand");
        assert!(matches!(&stopped.cause, Cause::Read { source, .. } if source.kind() == io::ErrorKind::UnexpectedEof), "{stopped:?}");
        assert_eq!(stopped.done, begin);
    }
    let streamed = streamer.run(Job::new(&mut Sequential::new(&bytes[..])).from(1000), &mut Through).expect("its very end");
    assert_eq!(streamed.bytes, 0);
}

struct Everlasting;

impl Source for Everlasting {
    fn length(&self) -> Option<u64> {
        None
    }

    fn read_at(&mut self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        buffer.iter_mut().zip(at..=u64::MAX).for_each(|(byte, at)| *byte = at as u8);
        Ok(buffer.len())
    }
}

#[test]
fn a_source_ends_at_the_largest_offset() {
    let backend = backend();
    let mut streamer = streamer(&backend, 100, 3);
    let streamed = streamer.run(Job::new(&mut Everlasting).from(u64::MAX - 250), &mut Through).expect("as far as one can count");
    assert_eq!((streamed.bytes, streamed.chunks), (250, 3));
}
