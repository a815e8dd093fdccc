//! The page: markup, style and script, and the recording as the JSON that the script reads.
//!
//! Blocks are columns of numbers, for fast parsing. Numbers that grow are differences. A text, frame or stack of many blocks is there once.

use std::collections::HashMap;
use std::hash::Hash;
use std::io;

use ringmem::escape;
use ringmem_recordings::{Device, Event, Frame, Kind, NO_STREAM, Segment, StackId, Stacks};
use serde::Serialize;

use super::document::{Document, Life, Manager, Pool, Sample, Tracker, address, hex, lives, times};

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// Numbers of texts, frames and stacks are -1 for none.
#[derive(Serialize)]
struct Data<'a> {
    source: &'a str,
    taken_ns: u64,
    pools: &'a [Pool],
    samples: &'a [Sample],
    trackers: &'a [Tracker],
    managers: &'a [Manager],
    traces: Vec<Columns<'a>>,
    texts: Vec<&'a str>,
    /// [Name](Frame::name) and [source](Frame::source) as texts, line, and whether it is in a library.
    frames: Vec<(i64, i64, u32, bool)>,
    /// Frames, innermost first.
    stacks: Vec<Vec<i64>>,
    /// Of each stack: the frame of the program itself.
    places: Vec<i64>,
}

/// Blocks in order of allocation.
#[derive(Default, Serialize)]
struct Columns<'a> {
    name: &'a str,
    /// Blocks that were live before the recording.
    before: usize,
    events: usize,
    /// In nanoseconds, if all events have one: that of the first, and for each the time since the one before it.
    begun: Option<u64>,
    times: Vec<u64>,
    /// Events since the allocation before it.
    begin: Vec<usize>,
    /// Events until its free, 0 for none.
    life: Vec<usize>,
    bytes: Vec<u64>,
    /// -1 for none.
    stream: Vec<i64>,
    /// The recorded names of streams, by number; without one, the number is the name.
    streams: Vec<&'a str>,
    address: Vec<Option<Address>>,
    label: Vec<i64>,
    stack: Vec<i64>,
    /// Event, bytes, label and stack.
    refused: Vec<(usize, u64, i64, i64)>,
    /// Address, bytes, stream, first event and end, -1 for before and never, and whether it is a piece of a larger one.
    segments: Vec<(Address, u64, i64, i64, i64, bool)>,
}

/// JavaScript's numbers have 53 bits, addresses of simulated devices more.
#[derive(Serialize)]
#[serde(untagged)]
enum Address {
    Number(u64),
    Text(String),
}

impl Address {
    fn of(address: u64) -> Self {
        if address >> 53 == 0 { Self::Number(address) } else { Self::Text(hex(address)) }
    }
}

pub(super) fn page(document: &Document, source: &str) -> Result<Vec<u8>, serde_json::Error> {
    let Document { taken_ns, pools, samples, trackers, managers, traces, stacks, .. } = document;
    let mut shared = Shared { all: stacks, texts: Numbered::default(), frames: Numbered::default(), stacks: Numbered::default() };
    let traces = traces.iter().map(|trace| shared.columns(trace)).collect();
    let (stacks, places) = shared.stacks();
    let frames = shared.frames();
    let texts = shared.texts.values;
    let data = Data { source, taken_ns: *taken_ns, pools, samples, trackers, managers, traces, texts, frames, stacks, places };
    let page = PAGE.replace("/* STYLE */", STYLE).replace("/* SCRIPT */", SCRIPT);
    let (before, after) = page.split_once("DATA").unwrap_or((&page, ""));
    let mut bytes = before.as_bytes().to_vec();
    data.serialize(&mut serde_json::Serializer::with_formatter(&mut bytes, Element))?;
    bytes.extend(after.as_bytes());
    Ok(bytes)
}

/// JSON within an element of a page: an escaped `<` cannot end it or begin a comment.
struct Element;

impl serde_json::ser::Formatter for Element {
    fn write_string_fragment<W: ?Sized + io::Write>(&mut self, out: &mut W, fragment: &str) -> io::Result<()> {
        for (index, piece) in fragment.split('<').enumerate() {
            out.write_all(if index == 0 { b"" } else { b"\\u003c" })?;
            write!(out, "{}", escape::json_document(piece))?;
        }
        Ok(())
    }
}

/// Values by number, in the order of their first use.
struct Numbered<T> {
    values: Vec<T>,
    known: HashMap<T, i64>,
}

impl<T> Default for Numbered<T> {
    fn default() -> Self {
        Self { values: Vec::new(), known: HashMap::new() }
    }
}

impl<T: Copy + Eq + Hash> Numbered<T> {
    fn number(&mut self, value: T) -> i64 {
        *self.known.entry(value).or_insert_with(|| {
            self.values.push(value);
            self.values.len() as i64 - 1
        })
    }
}

/// Shared by the traces.
struct Shared<'a> {
    all: &'a Stacks,
    texts: Numbered<&'a str>,
    frames: Numbered<Frame<'a>>,
    stacks: Numbered<StackId>,
}

impl<'a> Shared<'a> {
    fn text(&mut self, text: Option<&'a str>) -> i64 {
        text.filter(|text| !text.is_empty()).map_or(-1, |text| self.texts.number(text))
    }

    /// Label and stack.
    fn origin(&mut self, event: &Event) -> (i64, i64) {
        let stack = if event.stack == StackId::default() { -1 } else { self.stacks.number(event.stack) };
        (self.text(self.all.name(event.name)), stack)
    }

    fn columns(&mut self, trace: &'a Device) -> Columns<'a> {
        let name = trace.name.as_deref().unwrap_or_default();
        let mut columns = Columns { name, before: trace.before, events: trace.events.len(), ..Columns::default() };
        columns.streams = trace.streams.iter().map(|stream| &*stream.name).collect();
        if let Some(times) = times(trace) {
            columns.begun = times.first().copied();
            columns.times = differences(times);
        }
        let mut last = 0;
        for Life { begin, end, event } in lives(trace) {
            columns.begin.push(begin - std::mem::replace(&mut last, begin));
            columns.life.push(end.map_or(0, |end| end - begin));
            columns.bytes.push(event.size);
            columns.stream.push(stream(event.stream));
            columns.address.push(address(event).map(Address::of));
            let (label, stack) = self.origin(event);
            columns.label.push(label);
            columns.stack.push(stack);
        }
        for (index, event) in trace.events.iter().enumerate().filter(|(_, event)| event.kind == Kind::Refused) {
            let (label, stack) = self.origin(event);
            columns.refused.push((index, event.size, label, stack));
        }
        let event = |event: Option<usize>| event.map_or(-1, |event| event as i64);
        columns.segments = trace
            .segments
            .iter()
            .map(|&Segment { address, bytes, stream: on, is_piece, begin, end }| {
                (Address::of(address), bytes, stream(on), event(begin), event(end), is_piece)
            })
            .collect();
        columns
    }

    /// The frames of each stack, and its place.
    fn stacks(&mut self) -> (Vec<Vec<i64>>, Vec<i64>) {
        // As shown: those that look the same are one.
        let mut number = |frame: Frame<'a>| self.frames.number(Frame { function: frame.name(), file: frame.source(), ..frame });
        let stacks = self.stacks.values.iter().map(|&stack| self.all.frames(stack).map(&mut number).collect()).collect();
        let places = self.stacks.values.iter().map(|&stack| self.all.place(stack).map_or(-1, &mut number)).collect();
        (stacks, places)
    }

    fn frames(&mut self) -> Vec<(i64, i64, u32, bool)> {
        let frames = std::mem::take(&mut self.frames.values);
        let as_numbers = |frame: Frame<'a>| (self.text(Some(frame.function)), self.text(Some(frame.file)), frame.line, frame.is_library());
        frames.into_iter().map(as_numbers).collect()
    }
}

fn stream(stream: u32) -> i64 {
    if stream == NO_STREAM { -1 } else { i64::from(stream) }
}

fn differences(mut values: Vec<u64>) -> Vec<u64> {
    let mut last = values.first().copied().unwrap_or(0);
    for value in &mut values {
        *value -= std::mem::replace(&mut last, *value);
    }
    values
}
