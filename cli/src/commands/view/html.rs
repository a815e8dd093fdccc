use std::collections::HashMap;

use ringmem::escape;
use serde::Serialize;

use super::document::{Document, Kind, Manager, Pool, Sample, Trace, Tracker, hex};

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// Blocks are columns of numbers, for fast parsing.
#[derive(Serialize)]
struct Data<'a> {
    source: &'a str,
    taken_ns: u64,
    pools: &'a [Pool],
    samples: &'a [Sample],
    trackers: &'a [Tracker],
    managers: &'a [Manager],
    traces: Vec<Columns<'a>>,
}

/// Blocks in order of allocation. Texts and events are indices, -1 for none.
#[derive(Default, Serialize)]
struct Columns<'a> {
    name: &'a str,
    events: usize,
    times: Option<Vec<u64>>,
    texts: Vec<&'a str>,
    begin: Vec<usize>,
    end: Vec<i64>,
    block: Vec<u64>,
    bytes: Vec<u64>,
    stream: Vec<Option<u64>>,
    address: Vec<Option<String>>,
    label: Vec<i64>,
    place: Vec<i64>,
    backtrace: Vec<i64>,
    refused: Vec<(usize, u64, i64, i64)>,
}

pub(super) fn page(document: &Document, source: &str) -> Result<Vec<u8>, serde_json::Error> {
    let Document { taken_ns, pools, samples, trackers, managers, traces } = document;
    let traces = traces.iter().map(Columns::of).collect();
    let data = Data { source, taken_ns: *taken_ns, pools, samples, trackers, managers, traces };
    // In JSON `<` occurs only in strings; escaped, it cannot end the script or begin a comment.
    let data = escape::json_document(&serde_json::to_string(&data)?).to_string().replace('<', "\\u003c");
    let page = PAGE.replace("/* STYLE */", STYLE).replace("/* SCRIPT */", SCRIPT);
    let (before, after) = page.split_once("DATA").unwrap_or((&page, ""));
    Ok([before, &data, after].concat().into_bytes())
}

impl<'a> Columns<'a> {
    fn of(trace: &'a Trace) -> Self {
        let mut known = HashMap::new();
        let mut columns = Self { name: &trace.name, events: trace.events.len(), times: trace.times(), ..Self::default() };
        for block in trace.allocations() {
            let event = block.event;
            columns.begin.push(block.begin);
            columns.end.push(block.end.map_or(-1, |end| end as i64));
            columns.block.push(event.block.unwrap_or(0));
            columns.bytes.push(block.bytes);
            columns.stream.push(event.stream);
            columns.address.push(hex(event.address));
            let [label, place, backtrace] =
                [&event.name, &event.place, &event.backtrace].map(|text| number(&mut known, &mut columns.texts, text.as_deref()));
            columns.label.push(label);
            columns.place.push(place);
            columns.backtrace.push(backtrace);
        }
        for (index, event) in trace.events.iter().enumerate().filter(|(_, event)| event.kind == Kind::Refused) {
            let [label, place] = [&event.name, &event.place].map(|text| number(&mut known, &mut columns.texts, text.as_deref()));
            columns.refused.push((index, event.bytes.unwrap_or(0), label, place));
        }
        columns
    }
}

fn number<'a>(known: &mut HashMap<&'a str, i64>, texts: &mut Vec<&'a str>, text: Option<&'a str>) -> i64 {
    let Some(text) = text else { return -1 };
    *known.entry(text).or_insert_with(|| {
        texts.push(text);
        texts.len() as i64 - 1
    })
}
