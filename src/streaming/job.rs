use core::fmt;
use core::ops::ControlFlow;

use super::{Sink, Source};

/// One run of a [`Streamer`](super::Streamer): a whole source, or a range.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::streaming::{Job, Streamer, Through};
///
/// let backend = HostBackend::builder().build()?;
/// let mut streamer = Streamer::builder(&backend, 0).chunk(64 << 10).build()?;
/// let mut source = &[7_u8; 200_000][..];
/// let streamed = streamer.run(Job::new(&mut source).from(100_000).until(150_000).checksums(), &mut Through)?;
/// assert_eq!(streamed.bytes, 50_000);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub struct Job<'a> {
    pub(super) source: &'a mut dyn Source,
    pub(super) sink: Option<&'a mut dyn Sink>,
    pub(super) begin: u64,
    pub(super) end: Option<u64>,
    pub(super) checksums: bool,
    pub(super) expected: Option<u32>,
    pub(super) progress: Option<&'a mut dyn FnMut(Progress) -> ControlFlow<()>>,
}

impl fmt::Debug for Job<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { begin, end, checksums, expected, .. } = self;
        f.debug_struct("Job")
            .field("begin", begin)
            .field("end", end)
            .field("checksums", checksums)
            .field("expected", expected)
            .finish_non_exhaustive()
    }
}

/// Progress of a job.
///
/// ```
/// use std::ops::ControlFlow;
///
/// use ringmem::backend::host::HostBackend;
/// use ringmem::streaming::{Job, Progress, Streamer, Through};
///
/// let backend = HostBackend::builder().build()?;
/// let mut streamer = Streamer::builder(&backend, 0).chunk(64 << 10).build()?;
/// let mut last = None;
/// let mut report = |progress| {
///     last = Some(progress);
///     ControlFlow::Continue(())
/// };
/// streamer.run(Job::new(&mut &[7_u8; 100_000][..]).on_progress(&mut report), &mut Through)?;
/// assert_eq!(last, Some(Progress { done: 100_000, end: Some(100_000), chunks: 2 }));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of the source that are done.
    pub done: u64,
    /// End, if known.
    pub end: Option<u64>,
    /// Chunks that are done.
    pub chunks: u64,
}

/// The result of a job.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::streaming::{Job, Streamer, Through};
///
/// let backend = HostBackend::builder().build()?;
/// let mut streamer = Streamer::builder(&backend, 0).chunk(64 << 10).build()?;
/// let mut sink = Vec::new();
/// let streamed = streamer.run(Job::new(&mut &[7_u8; 100_000][..]).to(&mut sink).checksums(), &mut Through)?;
/// assert!(streamed.read.is_some() && streamed.read == streamed.written); // unchanged by `Through`
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Streamed {
    /// Bytes read.
    pub bytes: u64,
    /// Chunks.
    pub chunks: u64,
    /// Most chunks in flight at once.
    pub max_in_flight: usize,
    /// CRC-32C of the bytes read, if [requested](Job::checksums).
    pub read: Option<u32>,
    /// CRC-32C of the bytes written, if requested.
    pub written: Option<u32>,
}

impl<'a> Job<'a> {
    /// Reads all of a source, without a sink.
    pub fn new(source: &'a mut dyn Source) -> Self {
        Self { source, sink: None, begin: 0, end: None, checksums: false, expected: None, progress: None }
    }

    /// Writes each chunk to a sink, at its offset in the source.
    pub fn to(mut self, sink: &'a mut dyn Sink) -> Self {
        self.sink = Some(sink);
        self
    }

    /// Begins at a byte, such as [where a job stopped](super::Interrupted::done).
    pub const fn from(mut self, begin: u64) -> Self {
        self.begin = begin;
        self
    }

    /// Ends before a byte.
    pub const fn until(mut self, end: u64) -> Self {
        self.end = Some(end);
        self
    }

    /// Computes the CRC-32C (RFC 3720) of bytes read and written.
    pub const fn checksums(mut self) -> Self {
        self.checksums = true;
        self
    }

    /// Sets the expected CRC-32C of the bytes read. Another is an error, found after all writes: use the output only afterwards.
    pub const fn expect(mut self, checksum: u32) -> Self {
        self.checksums = true;
        self.expected = Some(checksum);
        self
    }

    /// Calls `progress` after each chunk; `Break` stops the job.
    pub fn on_progress<'b>(self, progress: &'b mut dyn FnMut(Progress) -> ControlFlow<()>) -> Job<'b>
    where
        'a: 'b,
    {
        let Self { source, sink, begin, end, checksums, expected, progress: _ } = self;
        let sink = sink.map(|sink| sink as &'b mut dyn Sink);
        Job { source, sink, begin, end, checksums, expected, progress: Some(progress) }
    }
}
