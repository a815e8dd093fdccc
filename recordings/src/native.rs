//! ringmem's own files.

use std::collections::HashMap;
use std::num::NonZeroU64;

use ringmem::memory::{Event as Traced, Trace, TraceError};
use ringmem::snapshot::VERSION;
use serde::Deserialize;

use crate::stacks::{StackId, Stacks};
use crate::{Device, Event, Format, Kind, ReadError, Recording};

/// A trace of a `Logged` memory.
pub(crate) fn trace(text: &str) -> Result<Recording, ReadError> {
    let trace = Trace::parse(text).map_err(|error| match error {
        TraceError::Line { line, form } => ReadError::line(line, format!("not `{form}`")),
        TraceError::Number { line, block } => ReadError::line(line, format!("duplicate block number {block}")),
        TraceError::Cut { line } => ReadError::line(line, "no line end: the trace is truncated"),
        error => ReadError::content(error.to_string()),
    })?;
    let mut blocks = Blocks::default();
    for event in trace.events() {
        match *event {
            Traced::Alloc { block, size, align, on } => {
                blocks.add(Kind::Alloc, Some(block), Request { size, align, stream: on.map(Into::into), ..Request::default() });
            }
            Traced::Refused { size, align, on } => {
                blocks.add(Kind::Refused, None, Request { size, align, stream: on.map(Into::into), ..Request::default() });
            }
            Traced::Free { block, .. } => blocks.add(Kind::Free, Some(block), Request::default()),
        }
    }
    let device = Device { native: Some(trace), ..blocks.device };
    Ok(Recording { format: Format::Ringmem, devices: vec![device], stacks: Stacks::default() })
}

/// Numbers blocks of numbered blocks.
#[derive(Default)]
struct Blocks {
    device: Device,
    /// By the file's number: the index of the event that allocated it.
    live: HashMap<u64, usize>,
    count: u32,
}

#[derive(Clone, Copy, Default)]
struct Request {
    size: u64,
    align: u64,
    stream: Option<u64>,
    address: u64,
    stack: StackId,
    time_ns: Option<NonZeroU64>,
}

impl Blocks {
    /// Of each event one, also for a free of no block.
    fn add(&mut self, kind: Kind, block: Option<u64>, request: Request) {
        let Request { size, align, stream, address, stack, time_ns } = request;
        let align = u32::try_from(align).unwrap_or(1 << 31).max(1);
        let stream = u32::try_from(stream.unwrap_or(0)).unwrap_or(u32::MAX);
        let mut event = Event { kind, block: 0, stream, stack, size, align, address, time_ns };
        match (kind, block) {
            (Kind::Alloc, Some(block)) => {
                event.block = self.count;
                self.count += 1;
                self.live.insert(block, self.device.events.len());
            }
            (Kind::Free, Some(block)) => match self.live.remove(&block) {
                Some(of) => event = Event { kind, time_ns, ..self.device.events[of] },
                None => {
                    event.block = u32::MAX;
                    self.device.unknown_frees += 1;
                }
            },
            _ => {}
        }
        self.device.events.push(event);
    }
}

/// Values are absent or empty where they are not known.
#[derive(Deserialize)]
struct Call {
    kind: CallKind,
    time_ns: Option<u64>,
    block: Option<u64>,
    bytes: Option<u64>,
    align: Option<u64>,
    stream: Option<u64>,
    address: Option<u64>,
    name: Option<String>,
    place: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum CallKind {
    Alloc,
    Refused,
    Free,
}

impl Call {
    fn add_to(&self, blocks: &mut Blocks, stacks: &mut Stacks) -> Result<(), &'static str> {
        let kind = match self.kind {
            CallKind::Alloc => Kind::Alloc,
            CallKind::Refused => Kind::Refused,
            CallKind::Free => Kind::Free,
        };
        if kind != Kind::Refused && self.block.is_none() {
            return Err("no `block`");
        }
        if kind != Kind::Free && self.bytes.is_none() {
            return Err("no `bytes`");
        }
        let (name, place) = (self.name.as_deref().unwrap_or_default(), self.place.as_deref().unwrap_or_default());
        let stack = if name.is_empty() && place.is_empty() {
            StackId::default()
        } else {
            let (file, line) = source_line(place);
            let (name, file) = (stacks.text(name), stacks.text(file));
            let frame = stacks.frame(name, file, line);
            stacks.stack(&[frame])
        };
        let request = Request {
            size: self.bytes.unwrap_or(0),
            align: self.align.unwrap_or(256),
            stream: self.stream,
            address: self.address.unwrap_or(0),
            stack,
            time_ns: self.time_ns.and_then(NonZeroU64::new),
        };
        blocks.add(kind, self.block, request);
        Ok(())
    }
}

/// Of `file:line:column`.
fn source_line(place: &str) -> (&str, u32) {
    let mut parts = place.rsplitn(3, ':');
    match (parts.next().and_then(|column| column.parse::<u32>().ok()), parts.next().and_then(|line| line.parse().ok()), parts.next()) {
        (Some(_), Some(line), Some(file)) => (file, line),
        _ => (place, 0),
    }
}

/// The table of [`ringmem::snapshot::csv`].
pub(crate) fn table(text: &str) -> Result<Recording, ReadError> {
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    let (mut blocks, mut stacks) = (Blocks::default(), Stacks::default());
    let fact = |error: csv::Error| {
        let line = error.position().map_or(1, csv::Position::line);
        match error.kind() {
            csv::ErrorKind::Deserialize { err, .. } => ReadError::line(line, err.to_string()),
            _ => ReadError::line(line, error.to_string()),
        }
    };
    let headers = reader.headers().map_err(fact)?.clone();
    let mut record = csv::StringRecord::new();
    while reader.read_record(&mut record).map_err(fact)? {
        let line = record.position().map_or(0, csv::Position::line);
        let call: Call = record.deserialize(Some(&headers)).map_err(fact)?;
        call.add_to(&mut blocks, &mut stacks).map_err(|what| ReadError::line(line, what))?;
    }
    if !text.ends_with('\n') {
        return Err(ReadError::line(text.lines().count(), "no line end: the table is truncated"));
    }
    Ok(Recording { format: Format::Ringmem, devices: vec![blocks.device], stacks })
}

#[derive(Deserialize)]
struct Snapshot {
    version: u32,
    #[serde(default)]
    traces: Vec<Calls>,
}

#[derive(Deserialize)]
struct Calls {
    name: String,
    events: Vec<Call>,
}

/// The traces of a [`ringmem::snapshot::Snapshot`].
pub(crate) fn snapshot(text: &str) -> Result<Recording, ReadError> {
    let snapshot: Snapshot =
        serde_json::from_str(text).map_err(|error| ReadError::line(error.line(), format!("not a snapshot of memory: {error}")))?;
    if snapshot.version != VERSION {
        return Err(ReadError::content(format!("snapshot version {}, expected {VERSION}", snapshot.version)));
    }
    if snapshot.traces.is_empty() {
        return Err(ReadError::content("the snapshot has no trace: `Snapshot::calls` adds that of a `Logged` memory"));
    }
    let (mut devices, mut stacks) = (Vec::new(), Stacks::default());
    for (number, Calls { name, events }) in (0..).zip(snapshot.traces) {
        let mut blocks = Blocks::default();
        for (index, call) in events.iter().enumerate() {
            let fact = |what| ReadError::content(format!("trace {name:?}, event {index}: {what}"));
            call.add_to(&mut blocks, &mut stacks).map_err(fact)?;
        }
        devices.push(Device { number, name: Some(name), ..blocks.device });
    }
    Ok(Recording { format: Format::Ringmem, devices, stacks })
}
