//! ringmem's own files.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::num::NonZeroU64;

use ringmem::memory::{Event as Traced, Trace, TraceError};
use ringmem::snapshot::VERSION;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::stacks::{Frame, NameId, StackId, Stacks};
use crate::{Device, Event, Format, Kind, Lines, NO_STREAM, ReadError, Recording, at, hold};

/// A trace of a `Logged` memory.
pub(crate) fn trace(text: &str) -> Result<Recording, ReadError> {
    let trace = Trace::parse(text).map_err(|error| match error {
        TraceError::Line { line, form } => ReadError::line(line, format!("not `{form}`")),
        TraceError::Number { line, block } => {
            ReadError::line(line, format!("block number {block} is not above those before it: each allocation has a higher one"))
        }
        TraceError::Cut { line } => ReadError::line(line, "no line end: the trace is truncated"),
        error => ReadError::content(error.to_string()),
    })?;
    let mut blocks = Blocks::default();
    // Each event has a line.
    for (line, event) in (1_u64..).zip(trace.events()) {
        let added = match *event {
            Traced::Alloc { block, size, align, on } => {
                blocks.add(Kind::Alloc, Some(block), Request { size, align, stream: on.map(Into::into), ..Request::default() })
            }
            Traced::Refused { size, align, on } => {
                blocks.add(Kind::Refused, None, Request { size, align, stream: on.map(Into::into), ..Request::default() })
            }
            Traced::Free { block, .. } => blocks.add(Kind::Free, Some(block), Request::default()),
        };
        added.map_err(|what| ReadError::line(line, what))?;
    }
    let device = Device { native: Some(trace), ..blocks.device };
    Ok(Recording { format: Format::Ringmem, devices: vec![device], stacks: Stacks::default(), left_out: Vec::new() })
}

/// Numbers blocks of numbered blocks.
#[derive(Default)]
struct Blocks {
    device: Device,
    /// By the file's number: the index of the event that allocated it.
    live: HashMap<u64, usize>,
    count: u32,
    last: Option<NonZeroU64>,
    /// Bytes of `live`.
    live_bytes: u64,
}

#[derive(Clone, Copy, Default)]
struct Request {
    size: u64,
    align: u64,
    stream: Option<u64>,
    address: u64,
    stack: StackId,
    name: NameId,
    time_ns: Option<NonZeroU64>,
}

impl Blocks {
    /// Of each event one, also for a free of no block. The error is its fault.
    fn add(&mut self, kind: Kind, block: Option<u64>, request: Request) -> Result<(), String> {
        let Request { size, align, stream, address, stack, name, time_ns } = request;
        if time_ns.is_some() && time_ns < self.last {
            return Err("its time is before that of the previous event".into());
        }
        self.last = time_ns.or(self.last);
        let align = u32::try_from(align).unwrap_or(1 << 31).max(1);
        let stream = stream.map_or(NO_STREAM, |stream| u32::try_from(stream).unwrap_or(NO_STREAM - 1).min(NO_STREAM - 1));
        let mut event = Event { kind, block: 0, stream, stack, name, size, align, address, time_ns };
        match (kind, block) {
            (Kind::Alloc, Some(block)) => {
                event.block = self.count;
                self.count += 1;
                if self.live.insert(block, self.device.events.len()).is_some() {
                    return Err(format!("block {block} is live already"));
                }
                hold(&mut self.live_bytes, size)?;
            }
            (Kind::Free, Some(block)) => match self.live.remove(&block) {
                Some(of) => {
                    event = Event { kind, time_ns, ..self.device.events[of] };
                    self.live_bytes -= event.size;
                }
                None => {
                    // Nothing of the recording leaves with it.
                    (event.block, event.size) = (u32::MAX, 0);
                    self.device.unknown_frees += 1;
                }
            },
            _ => {}
        }
        self.device.events.push(event);
        Ok(())
    }
}

/// Values are absent or empty where they are not known.
#[derive(Deserialize)]
struct Call<'a> {
    kind: CallKind,
    time_ns: Option<u64>,
    block: Option<u64>,
    bytes: Option<u64>,
    align: Option<u64>,
    stream: Option<u64>,
    address: Option<u64>,
    #[serde(borrow)]
    name: Option<Cow<'a, str>>,
    #[serde(borrow)]
    place: Option<Cow<'a, str>>,
    #[serde(borrow)]
    backtrace: Option<Cow<'a, str>>,
}

#[derive(Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum CallKind {
    Alloc,
    Refused,
    Free,
}

impl Call<'_> {
    fn add_to(&self, blocks: &mut Blocks, stacks: &mut Stacks) -> Result<(), String> {
        let kind = match self.kind {
            CallKind::Alloc => Kind::Alloc,
            CallKind::Refused => Kind::Refused,
            CallKind::Free => Kind::Free,
        };
        if kind != Kind::Refused && self.block.is_none() {
            return Err("no `block`".into());
        }
        if kind != Kind::Free && self.bytes.is_none() {
            return Err("no `bytes`".into());
        }
        let request = Request {
            size: self.bytes.unwrap_or(0),
            align: self.align.unwrap_or(256),
            stream: self.stream,
            address: self.address.unwrap_or(0),
            stack: self.stack(stacks),
            name: stacks.named(self.name.as_deref().unwrap_or_default()),
            time_ns: self.time_ns.map(at),
        };
        blocks.add(kind, self.block, request)
    }

    fn stack(&self, stacks: &mut Stacks) -> StackId {
        let frames = Frame::of(self.place.as_deref().unwrap_or_default(), self.backtrace.as_deref().unwrap_or_default());
        let frames: Vec<u32> = frames
            .into_iter()
            .map(|Frame { function, file, line }| {
                let (function, file) = (stacks.text(function), stacks.text(file));
                stacks.frame(function, file, line)
            })
            .collect();
        stacks.stack(&frames)
    }
}

/// The table of [`ringmem::snapshot::csv`].
pub(crate) fn table(text: &str) -> Result<Recording, ReadError> {
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    let (mut blocks, mut stacks) = (Blocks::default(), Stacks::default());
    let mut lines = Lines::default();
    let headers = reader.headers().map_err(|error| fact(&error, &csv::StringRecord::new(), 1))?.clone();
    let mut record = csv::StringRecord::new();
    while reader.read_record(&mut record).map_err(|error| fact(&error, &headers, lines.of(text, error.position())))? {
        let line = lines.of(text, record.position());
        let call: Call<'_> = record.deserialize(Some(&headers)).map_err(|error| fact(&error, &headers, line))?;
        call.add_to(&mut blocks, &mut stacks).map_err(|what| ReadError::line(line, what))?;
    }
    if !text.ends_with('\n') {
        return Err(ReadError::line(text.lines().count(), "no line end: the table is truncated"));
    }
    Ok(Recording { format: Format::Ringmem, devices: vec![blocks.device], stacks, left_out: Vec::new() })
}

/// A fault in a table, with its column.
fn fact(error: &csv::Error, headers: &csv::StringRecord, line: u64) -> ReadError {
    let column = |number: u64| headers.get(usize::try_from(number).ok()?);
    let what = match error.kind() {
        csv::ErrorKind::Deserialize { err, .. } => match err.field().and_then(column) {
            Some(column) => format!("`{column}`: {}", err.kind()),
            None => err.kind().to_string(),
        },
        csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
            let missing = column(*len).map_or_else(String::new, |missing| format!(": `{missing}` is missing"));
            format!("{len} fields, expected {expected_len}{missing}")
        }
        _ => error.to_string(),
    };
    ReadError::line(line, what)
}

/// Another version may have any shape.
#[derive(Deserialize)]
struct Snapshot<'a> {
    #[serde(borrow)]
    version: Option<&'a RawValue>,
    #[serde(borrow)]
    traces: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Calls<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    events: &'a RawValue,
}

/// The traces of a [`ringmem::snapshot::Snapshot`].
pub(crate) fn snapshot(text: &str) -> Result<Recording, ReadError> {
    // A part of the text is parsed by itself: the error's line is counted from its beginning.
    let fact = |part: &str, error: &serde_json::Error| {
        let before = text.get(..part.as_ptr().addr() - text.as_ptr().addr()).unwrap_or_default();
        let what = error.to_string();
        let what = what.rsplit_once(" at line ").map_or(&*what, |(what, _)| what);
        ReadError::line(before.matches('\n').count() + error.line(), format!("not a snapshot of memory: {what}"))
    };
    let snapshot: Snapshot<'_> = serde_json::from_str(text).map_err(|error| fact(text, &error))?;
    match snapshot.version.map(RawValue::get) {
        None => return Err(ReadError::content("not a snapshot of memory: no field `version`")),
        Some(version) if version.parse() == Ok(VERSION) => {}
        Some(version) => {
            let version: String = version.chars().take(40).collect();
            return Err(ReadError::content(format!("snapshot version {version}; expected {VERSION}")));
        }
    }
    let (mut devices, mut stacks) = (Vec::new(), Stacks::default());
    let traces = snapshot.traces.map_or("[]", RawValue::get);
    let traces: Vec<Calls<'_>> = serde_json::from_str(traces).map_err(|error| fact(traces, &error))?;
    for (number, Calls { name, events }) in (0..).zip(traces) {
        let (mut blocks, mut fault) = (Blocks::default(), None);
        let mut add = |call: &Call<'_>| {
            let added = call.add_to(&mut blocks, &mut stacks);
            added.inspect_err(|what| fault = Some(format!("trace {name:?}, event {}: {what}", blocks.device.events.len()))).is_ok()
        };
        let events = events.get();
        let read = Each(&mut add).deserialize(&mut serde_json::Deserializer::from_str(events));
        if let Some(fault) = fault {
            return Err(ReadError::content(fault));
        }
        read.map_err(|error| fact(events, &error))?;
        devices.push(Device { number, name: Some(name.into_owned()), ..blocks.device });
    }
    Ok(Recording { format: Format::Ringmem, devices, stacks, left_out: Vec::new() })
}

/// Gives each call of a list to a function once it is read: all of them together would take several times the memory of the text. `false` ends it.
struct Each<F>(F);

impl<'a, F: FnMut(&Call<'a>) -> bool> DeserializeSeed<'a> for Each<F> {
    type Value = ();

    fn deserialize<D: Deserializer<'a>>(self, list: D) -> Result<(), D::Error> {
        list.deserialize_seq(self)
    }
}

impl<'a, F: FnMut(&Call<'a>) -> bool> Visitor<'a> for Each<F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of events")
    }

    fn visit_seq<A: SeqAccess<'a>>(mut self, mut calls: A) -> Result<(), A::Error> {
        while let Some(call) = calls.next_element()? {
            if !self.0(&call) {
                return Err(A::Error::custom("an invalid event"));
            }
        }
        Ok(())
    }
}
