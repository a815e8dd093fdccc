//! Recorded allocations of GPU programs, and models of the allocators that made them.
//!
//! | file | recognised by |
//! |---|---|
//! | PyTorch's `torch.cuda.memory._dump_snapshot`, or the pickled list of `torch.cuda.memory_snapshot()` | its first byte, of a pickle of protocol 2 to 5 |
//! | a log of RMM's logging adaptor | its columns, in the first line |
//! | ringmem's `Trace`, table of calls ([`csv`](ringmem::snapshot::csv)), [snapshot](ringmem::snapshot) | its first line; `{` |
//!
//! ```
//! use ringmem_recordings::{Format, Kind, Recording};
//!
//! let log = "Thread,Time,Action,Pointer,Size,Stream\n\
//!            1,10:00:00:000100,allocate,0x7f0000000000,1048576,0x0\n\
//!            1,10:00:00:000200,free,0x7f0000000000,1048576,0x0\n";
//! let recording = Recording::parse(log.into())?;
//! assert_eq!(recording.format, Format::Rmm);
//! let events = &recording.devices[0].events;
//! assert_eq!((events[0].kind, events[0].size, events[1].kind), (Kind::Alloc, 1 << 20, Kind::Free));
//! # Ok::<(), ringmem_recordings::ReadError>(())
//! ```
//!
//! A file is data: nothing in it is executed, and a truncated or absurd file is an error that tells where. Reading a snapshot with the deep stacks of real programs
//! takes twice the memory of the file, the file included; with stacks of one frame it takes up to eight times. `ringmem replay` and `ringmem view` read these files.

pub mod models;
mod native;
mod pickle;
mod pytorch;
mod rmm;
mod segments;
mod stacks;

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::num::NonZeroU64;

use ringmem::memory::Trace;

pub use segments::Segment;
pub use stacks::{Frame, NameId, StackId, Stacks};

/// Recorded allocations and frees.
#[derive(Debug)]
pub struct Recording {
    /// The file's form.
    pub format: Format,
    /// Those with blocks, by number.
    pub devices: Vec<Device>,
    /// Where blocks were allocated.
    pub stacks: Stacks,
}

/// The program or library that wrote a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Format {
    /// ringmem: a trace, table or snapshot.
    Ringmem,
    /// PyTorch: a snapshot.
    PyTorch,
    /// RMM: a log.
    Rmm,
}

/// The events of a device, or of one allocator.
#[derive(Debug, Default)]
pub struct Device {
    /// Its number; 0 if the file has none.
    pub number: u32,
    /// The allocator's name, of a ringmem snapshot.
    pub name: Option<String>,
    /// In order of time. First come allocations of the blocks that [were live before](Self::before) the recording.
    pub events: Vec<Event>,
    /// How many blocks were live before: they are freed in the file, or in its list of blocks, and never allocated.
    pub before: usize,
    /// Allocations at an address that was in use: the free between them is missing, and was added.
    pub missing_frees: u64,
    /// Frees of no live block. Of a ringmem file they are [events](Self::events), of block `u32::MAX`; of others they are left out.
    pub unknown_frees: u64,
    /// Memory that the allocator had from the driver, if the file tells.
    pub reserved: Option<Reserved>,
    /// The pieces of that memory, in the order in which they came.
    pub segments: Vec<Segment>,
    /// The trace itself, with its streams.
    native: Option<Trace>,
}

/// Bytes that a recorded allocator had from the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reserved {
    /// Before the first event.
    pub begin: u64,
    /// At most.
    pub peak: u64,
    /// After the last event.
    pub end: u64,
}

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Given, refused or freed.
    pub kind: Kind,
    /// The block's number. Numbers count up from 0 in the order of allocation. 0 for [`Kind::Refused`].
    pub block: u32,
    /// Its number in a ringmem file, [`NO_STREAM`] without one; of other files, numbered by first use.
    pub stream: u32,
    /// Where it was allocated; for a free, of its allocation.
    pub stack: StackId,
    /// Its name in a ringmem file. Of PyTorch's its metadata, else its category, else the annotation in which it was allocated.
    pub name: NameId,
    /// Bytes, as requested where the file tells.
    pub size: u64,
    /// Bytes; 256 if the file does not tell.
    pub align: u32,
    /// As in the file.
    pub address: u64,
    /// On the file's clock, which may begin anywhere.
    pub time_ns: Option<NonZeroU64>,
}

/// The [stream](Event::stream) of a request of a ringmem file that was made on none.
pub const NO_STREAM: u32 = u32::MAX;

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A block was given.
    Alloc,
    /// None was given: out of memory.
    Refused,
    /// A block came back, and its uses were complete.
    Free,
}

/// Why a file cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// In a binary file.
    #[error("byte {offset}: {what}")]
    Byte {
        /// From 0.
        offset: u64,
        /// The fault.
        what: String,
    },
    /// In a text.
    #[error("line {line}: {what}")]
    Line {
        /// From 1.
        line: u64,
        /// The fault.
        what: String,
    },
    /// In the contents.
    #[error("{what}")]
    Content {
        /// The fault, and its place.
        what: String,
    },
}

impl ReadError {
    fn byte(offset: usize, what: impl Into<String>) -> Self {
        Self::Byte { offset: offset as u64, what: one_line(what.into()) }
    }

    fn line(line: impl TryInto<u64>, what: impl Into<String>) -> Self {
        Self::Line { line: line.try_into().unwrap_or(u64::MAX), what: one_line(what.into()) }
    }

    fn content(what: impl Into<String>) -> Self {
        Self::Content { what: one_line(what.into()) }
    }
}

/// The beginning of a message, which may quote the file, without its control characters.
fn one_line(what: String) -> String {
    const LONGEST: usize = 300;
    if what.len() <= LONGEST && !what.contains(char::is_control) {
        return what;
    }
    let mut text = String::new();
    for char in what.chars() {
        if text.len() > LONGEST {
            text.push_str("...");
            break;
        }
        if char.is_control() { text.extend(char.escape_default()) } else { text.push(char) }
    }
    text
}

impl Recording {
    /// Reads a file's contents, which it frees early.
    ///
    /// # Errors
    ///
    /// The first fault and its place.
    pub fn parse(bytes: Vec<u8>) -> Result<Self, ReadError> {
        // PROTO begins every pickle from protocol 2 on.
        if bytes.first() == Some(&0x80) {
            return pytorch::read(bytes);
        }
        for (magic, name) in [(&b"\x1f\x8b"[..], "gzip"), (b"PK\x03\x04", "zip"), (b"\x28\xb5\x2f\xfd", "zstd")] {
            if bytes.starts_with(magic) {
                return Err(ReadError::byte(0, format!("a file compressed by {name}: unpack it first")));
            }
        }
        let text = match str::from_utf8(&bytes) {
            Ok(text) => text,
            Err(error) => {
                let before = bytes.get(..error.valid_up_to()).unwrap_or_default();
                let line = before.iter().filter(|&&byte| byte == b'\n').count() + 1;
                return Err(ReadError::line(line, "not UTF-8, and the file is no pickle of protocol 2 to 5"));
            }
        };
        let start = text.trim_start_matches('\u{feff}');
        if start.trim_start().starts_with('{') {
            return native::snapshot(start);
        }
        let first = start.lines().next().unwrap_or_default();
        if rmm::is_header(first) {
            return rmm::read(start);
        }
        if first.starts_with("kind,") {
            return native::table(start);
        }
        if !first.is_empty() && !["alloc", "refused", "free"].contains(&first.split(' ').next().unwrap_or_default()) {
            let what = "no recording is recognised: expected a snapshot of PyTorch, a log of RMM with its columns, or a trace, table or snapshot of ringmem";
            return Err(ReadError::line(1, what));
        }
        native::trace(start)
    }
}

impl Device {
    /// As a trace of as many events, to be replayed on any memory. Streams are those of a ringmem trace; of other files they are left out, because each block
    /// is unused when it is freed.
    #[must_use]
    pub fn trace(&self) -> Cow<'_, Trace> {
        use ringmem::memory::Event;
        if let Some(trace) = &self.native {
            return Cow::Borrowed(trace);
        }
        let events = self.events.iter().map(|event| {
            let (block, size, align) = (event.block.into(), event.size, event.align.into());
            match event.kind {
                Kind::Alloc => Event::Alloc { block, size, align, on: None },
                Kind::Refused => Event::Refused { size, align, on: None },
                Kind::Free => Event::Free { block, after: [].into() },
            }
        });
        // Blocks are numbered in the order of their allocation.
        Cow::Owned(Trace::new(events.collect()).unwrap_or_default())
    }

    /// The most bytes that were live or refused at one time, and the number of the event that first reached them, from 1.
    #[must_use]
    pub fn peak(&self) -> (u64, usize) {
        let (mut live, mut peak) = (0_u64, (0, 0));
        for (number, event) in (1..).zip(&self.events) {
            let wanted = match event.kind {
                Kind::Free => live.saturating_sub(event.size),
                Kind::Alloc | Kind::Refused => live.saturating_add(event.size),
            };
            if event.kind != Kind::Refused {
                live = wanted;
            }
            if wanted > peak.0 {
                peak = (wanted, number);
            }
        }
        peak
    }
}

/// A time of a file; 0 is the nanosecond after it.
const fn at(nanoseconds: u64) -> NonZeroU64 {
    match NonZeroU64::new(nanoseconds) {
        Some(time) => time,
        None => NonZeroU64::MIN,
    }
}

/// Numbers blocks by address, and finds those of which the file has only one end.
#[derive(Default)]
struct Builder {
    device: Device,
    /// By address: the index of the event that allocated it.
    live: HashMap<u64, usize>,
    /// Blocks of which the first event is their free.
    before: Vec<Event>,
    /// Addresses so far: a free of one is not that of a block from before.
    mentioned: HashSet<u64>,
    streams: HashMap<u64, u32>,
}

/// An event of a file.
struct Raw {
    address: u64,
    size: u64,
    stream: u64,
    stack: StackId,
    name: NameId,
    time_ns: Option<NonZeroU64>,
}

impl Builder {
    /// The number of a stream.
    fn stream(&mut self, stream: u64) -> u32 {
        let next = self.streams.len() as u32;
        *self.streams.entry(stream).or_insert(next)
    }

    fn event(&mut self, kind: Kind, block: u32, raw: &Raw) -> Event {
        let stream = self.stream(raw.stream);
        let Raw { address, size, stack, name, time_ns, .. } = *raw;
        Event { kind, block, stream, stack, name, size, align: 256, address, time_ns }
    }

    /// Numbers are given at the [end](Self::finish): first come the blocks that were live before. Until then a block's number is its event's index.
    fn alloc(&mut self, raw: &Raw) {
        // It needs no memory.
        if raw.size == 0 {
            return;
        }
        self.mentioned.insert(raw.address);
        if let Some(of) = self.live.remove(&raw.address) {
            self.device.missing_frees += 1;
            let free = Event { kind: Kind::Free, time_ns: raw.time_ns, ..self.device.events[of] };
            self.device.events.push(free);
        }
        let at = self.device.events.len();
        self.live.insert(raw.address, at);
        let event = self.event(Kind::Alloc, at as u32, raw);
        self.device.events.push(event);
    }

    fn refused(&mut self, raw: &Raw) {
        let event = self.event(Kind::Refused, 0, raw);
        self.device.events.push(event);
    }

    fn free(&mut self, raw: &Raw) {
        if let Some(of) = self.live.remove(&raw.address) {
            let Event { block, size, stack, name, .. } = self.device.events[of];
            let event = self.event(Kind::Free, block, &Raw { size, stack, name, ..*raw });
            self.device.events.push(event);
        } else if raw.size == 0 || !self.mentioned.insert(raw.address) {
            self.device.unknown_frees += 1;
        } else {
            let block = self.was_live(raw);
            let event = self.event(Kind::Free, block, raw);
            self.device.events.push(event);
        }
    }

    /// A block that was live before the recording; returns its number.
    fn was_live(&mut self, raw: &Raw) -> u32 {
        self.mentioned.insert(raw.address);
        let block = !(self.before.len() as u32);
        let event = self.event(Kind::Alloc, block, &Raw { time_ns: None, ..*raw });
        self.before.push(event);
        block
    }

    fn finish(self) -> Device {
        let Self { mut device, before, .. } = self;
        device.before = before.len();
        // By number so far: counted down for blocks from before, the event's index for others.
        let count = before.len() as u32;
        let mut next = count;
        let mut numbers = vec![0; device.events.len()];
        for (at, event) in device.events.iter_mut().enumerate() {
            if event.kind == Kind::Refused {
                continue;
            }
            if event.kind == Kind::Alloc {
                numbers[at] = next;
                next += 1;
            }
            event.block = if !event.block < count { !event.block } else { numbers.get(event.block as usize).copied().unwrap_or(0) };
        }
        let first = before.into_iter().map(|event| Event { block: !event.block, ..event });
        device.events.splice(0..0, first);
        for place in device.segments.iter_mut().flat_map(|segment| segment.begin.iter_mut().chain(&mut segment.end)) {
            *place += device.before;
        }
        device
    }
}
