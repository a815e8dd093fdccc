//! [`Job`]: what is to be streamed where, and what came of it.

use core::ops::ControlFlow;

use super::{Sink, Source};

/// What a [`Streamer`](super::Streamer) is to do once: all of a source, unless it says otherwise.
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

/// How far a stream has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of the source from its beginning that are done.
    pub done: u64,
    /// Where it ends, if that is known.
    pub end: Option<u64>,
    /// Chunks that are done.
    pub chunks: u64,
}

/// What came of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Streamed {
    /// Bytes that were read.
    pub bytes: u64,
    /// Chunks.
    pub chunks: u64,
    /// The most chunks that were under way at once.
    pub most_under_way: usize,
    /// CRC-32C of what was read, if [asked for](Job::checksums).
    pub read: Option<u32>,
    /// CRC-32C of what was written, if asked for, and there is a sink.
    pub written: Option<u32>,
}

impl<'a> Job<'a> {
    /// All of a source, to nowhere: what the stage makes of it is the result.
    pub fn new(source: &'a mut dyn Source) -> Self {
        Self { source, sink: None, begin: 0, end: None, checksums: false, expected: None, progress: None }
    }

    /// Writes what the stage leaves of each chunk to a sink, at the same place as it was read.
    pub fn to(mut self, sink: &'a mut dyn Sink) -> Self {
        self.sink = Some(sink);
        self
    }

    /// Begins at a byte of the source: where an interrupted job was [done](super::Interrupted::done), or a part of several begins.
    pub const fn from(mut self, begin: u64) -> Self {
        self.begin = begin;
        self
    }

    /// Ends before a byte of the source.
    pub const fn until(mut self, end: u64) -> Self {
        self.end = Some(end);
        self
    }

    /// Sums up what is read, and what is written: CRC-32C, as RFC 3720 has it.
    pub const fn checksums(mut self) -> Self {
        self.checksums = true;
        self
    }

    /// Refuses what is read if its CRC-32C is another. It is known when everything has been written: commit a sink after that.
    pub const fn expect(mut self, checksum: u32) -> Self {
        self.checksums = true;
        self.expected = Some(checksum);
        self
    }

    /// Calls this after each chunk, in order; to break stops the stream at the chunk's end.
    pub fn on_progress<'b>(self, progress: &'b mut dyn FnMut(Progress) -> ControlFlow<()>) -> Job<'b>
    where
        'a: 'b,
    {
        let Self { source, sink, begin, end, checksums, expected, progress: _ } = self;
        // The callback may live shorter than the others.
        let sink = sink.map(|sink| sink as &'b mut dyn Sink);
        Job { source, sink, begin, end, checksums, expected, progress: Some(progress) }
    }
}
