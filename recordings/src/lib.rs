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
//! A file is data: nothing in it is executed, and a truncated or absurd file is an error that tells where. A block of more than [`LARGEST`] bytes is absurd,
//! and so are blocks that have more together at one time; a refused request may have any size, because programs make such requests by mistake. Reading a
//! snapshot with the deep stacks of real programs takes twice the memory of the file, the file included; with stacks of one frame it takes up to eight times.
//! `ringmem replay` and `ringmem view` read these files.

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
    /// Parts of the file that were counted and not read.
    pub left_out: Vec<LeftOut>,
}

/// Parts of a file of PyTorch that were counted and not read: events of a kind that this reader does not know, and memory of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// The `action` of the events, or the list: `host_traces` or `host_segments`. `other kinds` stands for all after the first few.
    pub kind: String,
    /// How many.
    pub count: u64,
}

/// The most bytes of a block, and of all blocks that are live at one time, in a file that is read: 128 TiB, the addresses of a process on x86-64.
pub const LARGEST: u64 = 1 << 47;

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
    /// Index of a refused request and free bytes of the device then, in order of the requests.
    device_free: Vec<(usize, u64)>,
    /// The recorded identifiers of streams, by the [number](Event::stream) of the stream. Empty for a ringmem file, whose numbers are the recorded ones.
    pub streams: Vec<Stream>,
    /// The trace itself, with its streams.
    native: Option<Trace>,
}

/// A stream of a file of PyTorch or RMM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stream {
    /// Its handle. PyTorch's are signed.
    pub id: u64,
    /// The handle's text: in decimal of PyTorch, as in the log of RMM.
    pub name: Box<str>,
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
    /// Its number in a ringmem file, [`NO_STREAM`] without one; in other files numbered by first use, with the recorded one in [`Device::streams`].
    pub stream: u32,
    /// Where it was allocated; for a free, of its allocation.
    pub stack: StackId,
    /// Its name in a ringmem file. Of PyTorch's its metadata, else its category, else the annotation in which it was allocated.
    pub name: NameId,
    /// Bytes, as requested where the file tells.
    pub size: u64,
    /// Bytes; 256 if the file does not tell.
    pub align: u32,
    /// As in the file; 0 if the file does not tell.
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
        if bytes.is_empty() {
            return Err(ReadError::content("the file is empty"));
        }
        // PROTO begins every pickle from protocol 2 on.
        if bytes.first() == Some(&0x80) {
            return pytorch::read(bytes);
        }
        if let Some(what) = other_form(&bytes) {
            return Err(ReadError::byte(0, what));
        }
        let text = match str::from_utf8(&bytes) {
            Ok(text) => text,
            Err(error) => {
                let before = bytes.get(..error.valid_up_to()).unwrap_or_default();
                let line = before.iter().filter(|&&byte| byte == b'\n').count() + 1;
                return Err(ReadError::line(line, "not UTF-8, and the file is no pickle of protocol 2 to 5"));
            }
        };
        let start = without_mark(text);
        match Form::of(start)? {
            Form::Snapshot => native::snapshot(start),
            Form::Log => rmm::read(start),
            Form::Table => native::table(start),
            Form::Trace => native::trace(start),
        }
    }

    /// Returns whether each event of a file is a line of its own, as in a trace and in a log of RMM. A backtrace in a table or snapshot has lines, too.
    #[must_use]
    pub fn has_an_event_per_line(bytes: &[u8]) -> bool {
        str::from_utf8(bytes).is_ok_and(|text| matches!(Form::of(without_mark(text)), Ok(Form::Log | Form::Trace)))
    }
}

fn without_mark(text: &str) -> &str {
    text.trim_start_matches('\u{feff}')
}

/// The form of a text.
enum Form {
    Snapshot,
    /// Of RMM.
    Log,
    Table,
    Trace,
}

impl Form {
    /// By the first line that is not blank.
    fn of(text: &str) -> Result<Self, ReadError> {
        if text.trim_start().starts_with('{') {
            return Ok(Self::Snapshot);
        }
        let Some((line, first)) = (1_u64..).zip(text.lines()).find(|(_, line)| !line.trim().is_empty()) else {
            return Err(ReadError::content("the file has only blank lines"));
        };
        if rmm::is_header(first) {
            return Ok(Self::Log);
        }
        if let Some(what) = rmm::missing_columns(first) {
            return Err(ReadError::line(line, what));
        }
        if first.starts_with("kind,") {
            return Ok(Self::Table);
        }
        if !["alloc", "refused", "free"].contains(&first.split(' ').next().unwrap_or_default()) {
            let what = "no recording is recognised: expected a snapshot of PyTorch, a log of RMM with its columns, or a trace, table or snapshot of ringmem";
            return Err(ReadError::line(line, what));
        }
        Ok(Self::Trace)
    }
}

/// The lines of a table's rows. The reader's own count is of the place where it began to read a row: before empty lines, and between the two characters
/// that end a line.
#[derive(Default)]
pub(crate) struct Lines {
    counted: usize,
    ends: u64,
}

impl Lines {
    /// Of a row at this position, which is after those of before.
    pub fn of(&mut self, text: &str, position: Option<&csv::Position>) -> u64 {
        let from = position.and_then(|position| usize::try_from(position.byte()).ok()).unwrap_or(0);
        let rest = text.as_bytes().get(from..).unwrap_or_default();
        let begin = from + rest.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
        let passed = text.as_bytes().get(self.counted..begin).unwrap_or_default();
        self.ends += passed.iter().filter(|&&byte| byte == b'\n').count() as u64;
        self.counted = self.counted.max(begin);
        self.ends + 1
    }
}

/// The known form of a file that is none of these recordings, and how to convert it.
fn other_form(bytes: &[u8]) -> Option<String> {
    const COMPRESSED: [(&[u8], &str); 6] = [
        (b"\x1f\x8b", "gzip"),
        (b"PK\x03\x04", "zip"),
        (b"\x28\xb5\x2f\xfd", "zstd"),
        (b"\xfd7zXZ\0", "xz"),
        (b"BZh", "bzip2"),
        (b"\x04\x22\x4d\x18", "lz4"),
    ];
    if let Some((_, name)) = COMPRESSED.iter().find(|(magic, _)| bytes.starts_with(magic)) {
        return Some(format!("a file compressed by {name}: unpack it first"));
    }
    // With a byte order mark, or a first character of ASCII.
    if matches!(bytes, [0xff, 0xfe, ..] | [0xfe, 0xff, ..] | [0, b' '..=b'~', ..] | [b' '..=b'~', 0, ..]) {
        return Some("text in UTF-16: convert it to UTF-8, for example with `iconv -f UTF-16 -t UTF-8`".to_owned());
    }
    // A dictionary or list, and STOP.
    let is_old_pickle = bytes.ends_with(b".") && [b"(d", b"(l", b"}q", b"]q", b"}(", b"]("].iter().any(|start| bytes.starts_with(*start));
    is_old_pickle.then(|| {
        "a pickle of protocol 0 or 1, expected 2 to 5: write it again with `pickle.dump(pickle.load(old), new, protocol=4)`".to_owned()
    })
}

/// Checks a block's size. The error is the fault.
fn possible(size: u64) -> Result<u64, String> {
    if size > LARGEST { Err(format!("a block of {size} bytes; no device has more than 2^47 (128 TiB)")) } else { Ok(size) }
}

/// Adds the size of a block to the bytes of the live ones. The error is the fault.
fn hold(live: &mut u64, size: u64) -> Result<(), String> {
    let held = *live + possible(size)?;
    if held > LARGEST {
        return Err(format!(
            "{held} bytes are live with this block, those from before the recording included; no device has more than 2^47 (128 TiB)"
        ));
    }
    *live = held;
    Ok(())
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

    /// The recorded identifier of a stream of an event or a segment; `None` for [`NO_STREAM`].
    #[must_use]
    pub fn stream_name(&self, stream: u32) -> Option<Cow<'_, str>> {
        if stream == NO_STREAM {
            return None;
        }
        Some(self.streams.get(stream as usize).map_or_else(|| stream.to_string().into(), |recorded| (*recorded.name).into()))
    }

    /// The bytes that the allocator had from the driver before the event at an index, if the file tells.
    #[must_use]
    pub fn reserved_at(&self, index: usize) -> Option<u64> {
        self.reserved?;
        let held = |segment: &&Segment| segment.begin.is_none_or(|begin| begin <= index) && segment.end.is_none_or(|end| end > index);
        Some(self.segments.iter().filter(held).fold(0, |bytes: u64, segment| bytes.saturating_add(segment.bytes)))
    }

    /// The free bytes of the device at the refused request with an index, if the file tells.
    #[must_use]
    pub fn device_free(&self, index: usize) -> Option<u64> {
        self.device_free
            .binary_search_by_key(&index, |&(at, _)| at)
            .ok()
            .and_then(|found| self.device_free.get(found))
            .map(|&(_, bytes)| bytes)
    }

    /// The memory that the program could have from the driver at the refused request with an index: its [reserved](Self::reserved_at) bytes, and the
    /// [free](Self::device_free) ones. `None` if the file does not tell.
    #[must_use]
    pub fn obtainable(&self, index: usize) -> Option<u64> {
        Some(self.device_free(index)?.saturating_add(self.reserved_at(index).unwrap_or(0)))
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
    /// Addresses of allocations of no bytes: their frees are not unknown.
    empty: HashSet<u64>,
    /// By handle.
    streams: HashMap<u64, u32>,
    /// Bytes of `live` and `before`. INVARIANT: at most [`LARGEST`].
    live_bytes: u64,
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
    /// The number of a stream, whose handle is a signed number in the file.
    fn stream(&mut self, id: u64) -> u32 {
        self.stream_named(id, || (id as i64).to_string())
    }

    fn stream_named(&mut self, id: u64, name: impl FnOnce() -> String) -> u32 {
        let next = self.streams.len() as u32;
        let number = *self.streams.entry(id).or_insert(next);
        if number == next {
            self.device.streams.push(Stream { id, name: name().into() });
        }
        number
    }

    fn event(&mut self, kind: Kind, block: u32, raw: &Raw) -> Event {
        let stream = self.stream(raw.stream);
        let Raw { address, size, stack, name, time_ns, .. } = *raw;
        Event { kind, block, stream, stack, name, size, align: 256, address, time_ns }
    }

    /// Numbers are given at the [end](Self::finish): first come the blocks that were live before. Until then a block's number is its event's index. The error
    /// is the fault.
    fn alloc(&mut self, raw: &Raw) -> Result<(), String> {
        // It needs no memory.
        if raw.size == 0 {
            self.empty.insert(raw.address);
            return Ok(());
        }
        self.mentioned.insert(raw.address);
        if let Some(of) = self.live.remove(&raw.address) {
            self.device.missing_frees += 1;
            let free = Event { kind: Kind::Free, time_ns: raw.time_ns, ..self.device.events[of] };
            self.live_bytes -= free.size;
            self.device.events.push(free);
        }
        hold(&mut self.live_bytes, raw.size)?;
        let at = self.device.events.len();
        self.live.insert(raw.address, at);
        let event = self.event(Kind::Alloc, at as u32, raw);
        self.device.events.push(event);
        Ok(())
    }

    fn refused(&mut self, raw: &Raw, device_free: Option<u64>) {
        let at = self.device.events.len();
        self.device.device_free.extend(device_free.map(|bytes| (at, bytes)));
        let event = self.event(Kind::Refused, 0, raw);
        self.device.events.push(event);
    }

    fn free(&mut self, raw: &Raw) -> Result<(), String> {
        if let Some(of) = self.live.remove(&raw.address) {
            let Event { block, size, stack, name, .. } = self.device.events[of];
            self.live_bytes -= size;
            let event = self.event(Kind::Free, block, &Raw { size, stack, name, ..*raw });
            self.device.events.push(event);
        } else if raw.address == 0 || raw.size == 0 && self.empty.contains(&raw.address) {
            // Neither is a block: a null pointer, and the address that an allocation of no bytes returned.
        } else if raw.size == 0 || !self.mentioned.insert(raw.address) {
            self.device.unknown_frees += 1;
        } else {
            let block = self.was_live(raw)?;
            let event = self.event(Kind::Free, block, raw);
            self.device.events.push(event);
        }
        Ok(())
    }

    /// A block that was live before the recording; returns its number. It counts as live to the end: all of them were live at the beginning.
    fn was_live(&mut self, raw: &Raw) -> Result<u32, String> {
        hold(&mut self.live_bytes, raw.size)?;
        self.mentioned.insert(raw.address);
        let block = !(self.before.len() as u32);
        let event = self.event(Kind::Alloc, block, &Raw { time_ns: None, ..*raw });
        self.before.push(event);
        Ok(block)
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
        for (at, _) in &mut device.device_free {
            *at += device.before;
        }
        device
    }
}
