//! [`Trace`]: recorded calls to a memory, their text, and their replay.
//!
//! 1. Numbers of blocks rise in the order of allocation, so that each names one block: [`Trace::new`] refuses others. Frees may name any block: one that was
//!    given before the recording, or refused to this run, is [`Outcome::NotLive`].
//! 2. A replay owns the blocks that it was given. It frees the rest when it ends, also by an error or a panic of `after`.
//! 3. The uses of a free are positions of the streams at that event: what was queued there before must complete first.

use core::alloc::Layout;
use core::fmt;
use core::str::{FromStr, SplitWhitespace};
use std::boxed::Box;
use std::collections::HashMap;
use std::vec::Vec;

use super::{Memory, check_align, max_bytes};
use crate::backend::{Block, Uses, same_backend};
use crate::stream::Stream;
use crate::sys::panic::{at_most_one, each};
use crate::{Error, Result};

/// The calls to a [`Logged`](super::Logged) memory.
///
/// The text form has a line per event. Sizes and alignments are in bytes; blocks and streams are numbered from 0:
///
/// ```text
/// alloc BLOCK SIZE ALIGN [on STREAM]      a block was given; its number is above that of every block before
/// refused SIZE ALIGN [on STREAM]          one was asked for and not given
/// free BLOCK [after STREAM ...]           a block came back, while operations on these streams were listed as its uses
/// ```
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use ringmem::backend::host::HostBackend;
/// use ringmem::memory::{Device, Outcome, Trace};
/// use ringmem::stream::Stream;
///
/// let backend = HostBackend::builder().device_memory(1 << 20).build()?;
/// let trace = Trace::parse("alloc 0 4096 256\nrefused 1048576 256\nfree 0 after 0\n")?;
/// let outcomes = trace.replay(&Device::new(&backend, 0), &[Stream::new(&backend, 0)?])?;
/// assert!(matches!(outcomes[..], [Outcome::Allocated, Outcome::Refused(_), Outcome::Freed]));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    events: Vec<Event>,
}

/// An event of a trace.
///
/// ```
/// use ringmem::memory::{Event, Trace};
///
/// let trace = Trace::parse("alloc 0 4096 256\nfree 0 after 1\n")?;
/// assert_eq!(trace.events()[0], Event::Alloc { block: 0, size: 4096, align: 256, on: None });
/// assert_eq!(trace.events()[1], Event::Free { block: 0, after: [1].into() });
/// # Ok::<(), ringmem::memory::TraceError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A successful allocation.
    Alloc {
        /// Block's number.
        block: u64,
        /// Bytes.
        size: u64,
        /// Bytes.
        align: u64,
        /// Stream's number, if stream-ordered.
        on: Option<u32>,
    },
    /// A failed allocation.
    Refused {
        /// Bytes.
        size: u64,
        /// Bytes.
        align: u64,
        /// Stream's number, if stream-ordered.
        on: Option<u32>,
    },
    /// A free.
    Free {
        /// Block's number.
        block: u64,
        /// Streams that may still use it.
        after: Box<[u32]>,
    },
}

/// A replayed event's outcome.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::memory::{Device, Outcome, Trace};
///
/// let backend = HostBackend::builder().device_memory(1 << 20).build()?;
/// let trace = Trace::parse("alloc 0 4096 256\nalloc 1 2097152 256\nfree 0\nfree 1\n")?;
/// let outcomes = trace.replay(&Device::new(&backend, 0), &[])?; // block 1 does not fit
/// assert!(matches!(outcomes[..], [Outcome::Allocated, Outcome::Refused(_), Outcome::Freed, Outcome::NotLive]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub enum Outcome {
    /// An allocation succeeded. If it had failed in the trace, it was freed at once.
    Allocated,
    /// An allocation failed.
    Refused(Error),
    /// A block was freed.
    Freed,
    /// A block was freed with an error.
    FreeFailed(Error),
    /// No such block: its allocation failed in the replay, or preceded the trace.
    NotLive,
}

/// An error of parsing a trace.
///
/// ```
/// use ringmem::memory::{Trace, TraceError};
///
/// let error = Trace::parse("alloc 0 4096 256\nfree\n").unwrap_err();
/// assert!(matches!(error, TraceError::Line { line: 2, .. }));
/// assert_eq!(error.to_string(), "line 2 is not `free BLOCK [after STREAM ...]`");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// A line is not an event.
    #[error("line {line} is not `{form}`")]
    Line {
        /// Line number, from 1.
        line: usize,
        /// Expected form.
        form: &'static str,
    },
    /// A block number is not above the previous ones.
    #[error("line {line}: duplicate block number {block}")]
    Number {
        /// Line number, from 1.
        line: usize,
        /// Block number.
        block: u64,
    },
    /// The last line has no line end.
    #[error("line {line} has no line end: the trace is truncated")]
    Cut {
        /// Line number, from 1.
        line: usize,
    },
}

impl Trace {
    pub(super) fn of(events: Vec<Event>) -> Self {
        Self { events }
    }

    /// Makes a trace of events.
    ///
    /// # Errors
    ///
    /// [`TraceError::Number`]: a block's number is not above the previous ones. [`TraceError::Line`]: a free lists more than [`Uses::MOST`] streams. The line
    /// is that of the text form.
    ///
    /// ```
    /// use ringmem::memory::{Event, Trace};
    ///
    /// let events = vec![Event::Alloc { block: 0, size: 4096, align: 256, on: None }, Event::Free { block: 0, after: [].into() }];
    /// assert_eq!(Trace::new(events)?.to_string(), "alloc 0 4096 256\nfree 0\n");
    /// # Ok::<(), ringmem::memory::TraceError>(())
    /// ```
    pub fn new(events: Vec<Event>) -> Result<Self, TraceError> {
        let mut last = None;
        for (line, event) in (1..).zip(&events) {
            if let Event::Alloc { block, .. } = *event {
                if last >= Some(block) {
                    return Err(TraceError::Number { line, block });
                }
                last = Some(block);
            }
            if matches!(event, Event::Free { after, .. } if after.len() > Uses::MOST) {
                return Err(TraceError::Line { line, form: FREE });
            }
        }
        Ok(Self { events })
    }

    /// Returns the events in order.
    #[must_use]
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// Returns the number of streams that a replay needs.
    #[must_use]
    pub fn streams(&self) -> u64 {
        let last = |event: &Event| match event {
            Event::Alloc { on, .. } | Event::Refused { on, .. } => *on,
            Event::Free { after, .. } => after.iter().max().copied(),
        };
        self.events.iter().filter_map(last).max().map_or(0, |last| u64::from(last) + 1)
    }

    /// Parses the text form.
    ///
    /// # Errors
    ///
    /// The first invalid line.
    pub fn parse(text: &str) -> Result<Self, TraceError> {
        let events = (1..).zip(text.lines()).map(|(line, text)| Event::parse(text).map_err(|form| TraceError::Line { line, form }));
        let trace = Self::new(events.collect::<Result<_, _>>()?)?;
        // Without a line end, a number may be truncated.
        if text.is_empty() || text.ends_with('\n') { Ok(trace) } else { Err(TraceError::Cut { line: trace.events.len() }) }
    }

    /// Replays the trace on a memory; returns each event's outcome. Frees the remaining blocks last.
    ///
    /// # Errors
    ///
    /// [`Size`](Error::Size) for too few streams or [`OtherBackend`](Error::OtherBackend), before any event; a stream's error.
    pub fn replay<M: Memory>(&self, memory: &M, streams: &[Stream]) -> Result<Vec<Outcome>> {
        let mut outcomes = Vec::with_capacity(self.events.len());
        self.replay_with(memory, streams, |outcome| outcomes.push(outcome))?;
        Ok(outcomes)
    }

    /// As [`replay`](Self::replay); calls `after` with each outcome before the next event.
    pub fn replay_with<M: Memory>(&self, memory: &M, streams: &[Stream], mut after: impl FnMut(Outcome)) -> Result<()> {
        if self.streams() > streams.len() as u64 {
            return Err(Error::Size { what: "number of streams", asked: streams.len() as u64, least: self.streams(), most: u64::MAX });
        }
        for stream in streams {
            same_backend(&**memory.backend(), &**stream.backend())?;
        }
        let mut run = Run { memory, streams, live: HashMap::new() };
        self.events.iter().try_for_each(|event| run.event(event).map(&mut after))
    }
}

struct Run<'a, M: Memory> {
    memory: &'a M,
    streams: &'a [Stream],
    live: HashMap<u64, Block>,
}

impl<M: Memory> Run<'_, M> {
    fn event(&mut self, event: &Event) -> Result<Outcome> {
        Ok(match *event {
            Event::Alloc { block, size, align, on } => match self.alloc(size, align, on) {
                Ok(given) => {
                    self.live.insert(block, given);
                    Outcome::Allocated
                }
                Err(error) => Outcome::Refused(error),
            },
            Event::Refused { size, align, on } => match self.alloc(size, align, on) {
                Ok(given) => match self.free(given, Uses::NONE) {
                    Ok(()) => Outcome::Allocated,
                    Err(error) => Outcome::FreeFailed(error),
                },
                Err(error) => Outcome::Refused(error),
            },
            Event::Free { block, ref after } => {
                let mut uses = Uses::NONE;
                for &stream in after {
                    // Fits: traces list no more uses.
                    let _ = uses.add(self.streams[stream as usize].record_position()?);
                }
                match self.live.remove(&block).map(|given| self.free(given, uses)) {
                    Some(Ok(())) => Outcome::Freed,
                    Some(Err(error)) => Outcome::FreeFailed(error),
                    None => Outcome::NotLive,
                }
            }
        })
    }

    fn alloc(&self, size: u64, align: u64, on: Option<u32>) -> Result<Block> {
        let to = usize::try_from(align).unwrap_or(usize::MAX);
        let bytes = usize::try_from(size).ok().filter(|&bytes| bytes > 0);
        let Some(layout) = bytes.and_then(|bytes| Layout::from_size_align(bytes, to).ok()) else {
            check_align(self.memory, align)?;
            return Err(Error::Size { what: "size in bytes", asked: size, least: 1, most: max_bytes(to) as u64 });
        };
        self.memory.alloc(layout, on.map(|stream| &self.streams[stream as usize]))
    }

    fn free(&self, block: Block, mut uses: Uses) -> Result<()> {
        let waited = match block.ready.map_or(Ok(()), |ready| uses.add(ready)) {
            Ok(()) => Ok(true),
            // One stream too many for the list.
            Err(ready) => self.memory.backend().wait(ready, None),
        };
        // SAFETY: of this memory, owned by this function, unused by operations.
        unsafe { self.memory.free(&block, &uses) }.and(waited.map(drop))
    }
}

impl<M: Memory> Drop for Run<'_, M> {
    fn drop(&mut self) {
        let live = core::mem::take(&mut self.live);
        let free = |(_, block)| {
            if let Err(error) = self.free(block, Uses::NONE) {
                self.memory.backend().unreported(error);
            }
        };
        at_most_one(|| each(live, free));
    }
}

const ALLOC: &str = "alloc BLOCK SIZE ALIGN [on STREAM]";
const REFUSED: &str = "refused SIZE ALIGN [on STREAM]";
const FREE: &str = "free BLOCK [after STREAM ...]";

impl Event {
    fn parse(line: &str) -> Result<Self, &'static str> {
        let mut words = line.split_whitespace();
        let (event, form) = match words.next() {
            Some("alloc") => (Self::parse_alloc(&mut words), ALLOC),
            Some("refused") => (Self::parse_refused(&mut words), REFUSED),
            Some("free") => (Self::parse_free(&mut words), FREE),
            _ => (None, "alloc ..., refused ... or free ..."),
        };
        event.filter(|_| words.next().is_none()).ok_or(form)
    }

    fn parse_alloc(words: &mut SplitWhitespace<'_>) -> Option<Self> {
        Some(Self::Alloc { block: number(words)?, size: number(words)?, align: number(words)?, on: on(words)? })
    }

    fn parse_refused(words: &mut SplitWhitespace<'_>) -> Option<Self> {
        Some(Self::Refused { size: number(words)?, align: number(words)?, on: on(words)? })
    }

    fn parse_free(words: &mut SplitWhitespace<'_>) -> Option<Self> {
        let block = number(words)?;
        let (after, least): (Vec<u32>, usize) = match words.next() {
            None => (Vec::new(), 0),
            Some("after") => (words.map(str::parse).collect::<Result<_, _>>().ok()?, 1),
            Some(_) => return None,
        };
        (least..=Uses::MOST).contains(&after.len()).then(|| Self::Free { block, after: after.into() })
    }
}

fn number<N: FromStr>(words: &mut SplitWhitespace<'_>) -> Option<N> {
    words.next()?.parse().ok()
}

fn on(words: &mut SplitWhitespace<'_>) -> Option<Option<u32>> {
    match words.next() {
        None => Some(None),
        Some("on") => number(words).map(Some),
        Some(_) => None,
    }
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.events.iter().try_for_each(|event| writeln!(f, "{event}"))
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Alloc { block, size, align, .. } => write!(f, "alloc {block} {size} {align}")?,
            Self::Refused { size, align, .. } => write!(f, "refused {size} {align}")?,
            Self::Free { block, .. } => write!(f, "free {block}")?,
        }
        match self {
            Self::Alloc { on: Some(on), .. } | Self::Refused { on: Some(on), .. } => write!(f, " on {on}"),
            Self::Free { after, .. } if !after.is_empty() => {
                f.write_str(" after")?;
                after.iter().try_for_each(|stream| write!(f, " {stream}"))
            }
            _ => Ok(()),
        }
    }
}
