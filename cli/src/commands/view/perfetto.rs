//! Trace events in JSON for Chrome and Perfetto: a slice for each block, and counters. Source: "Trace Event Format", Google.
//!
//! Each trace is a process. Slices of one thread must nest, so each block is on the first free thread. Event `n` without a time is at `n`
//! microseconds.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use ringmem_recordings::{Device, Kind, Stacks};
use serde_json::{Value, json};

use super::document::{Document, Statistics, address, backtrace, hex, lives, place, times};
use crate::json_line;

pub(super) fn events(document: &Document) -> Vec<u8> {
    let mut events = Events { bytes: b"{\"displayTimeUnit\":\"ns\",\"traceEvents\":[".to_vec(), count: 0 };
    events.add(&process(0, "pools"));
    for sample in &document.samples {
        let (ts, Statistics { held_bytes, cached_bytes, free_bytes, .. }) = (micros(sample.time_ns), &sample.statistics);
        let name = &sample.pool;
        let bytes = json!({ "live": held_bytes, "cached": cached_bytes, "free": free_bytes });
        events.add(&json!({ "ph": "C", "cat": "memory", "pid": 0, "ts": ts, "name": format!("{name}: bytes"), "args": bytes }));
        let percent = json!({ "percent": 100.0 * sample.statistics.fragmentation() });
        events.add(&json!({ "ph": "C", "cat": "memory", "pid": 0, "ts": ts, "name": format!("{name}: fragmentation"), "args": percent }));
    }
    for (pid, trace) in (1..).zip(&document.traces) {
        events.trace(pid, trace, &document.stacks);
    }
    events.bytes.extend(b"]}\n");
    events.bytes
}

struct Events {
    bytes: Vec<u8>,
    count: u64,
}

impl Events {
    fn add(&mut self, event: &Value) {
        if self.count > 0 {
            self.bytes.extend(b",\n");
        }
        self.count += 1;
        self.bytes.extend(json_line(event).into_bytes());
    }

    fn trace(&mut self, pid: u64, trace: &Device, stacks: &Stacks) {
        self.add(&process(pid, trace.name.as_deref().unwrap_or_default()));
        let times = times(trace);
        let nanos = |index: usize| times.as_ref().and_then(|times| times.get(index)).map_or(index as u64 * 1000, |&nanos| nanos);
        let time = |index: usize| micros(nanos(index));
        let (blocks, last) = (lives(trace), trace.events.len().saturating_sub(1));
        let mut changes = vec![0_i128; trace.events.len()];
        let (mut busy, mut free, mut threads) = (BinaryHeap::new(), BinaryHeap::new(), 0_u64);
        for block in &blocks {
            while let Some(&Reverse((end, thread))) = busy.peek()
                && end < block.begin
            {
                busy.pop();
                free.push(Reverse(thread));
            }
            let Reverse(thread) = free.pop().unwrap_or_else(|| {
                threads += 1;
                Reverse(threads)
            });
            let end = block.end.unwrap_or(last);
            busy.push(Reverse((block.end.unwrap_or(usize::MAX), thread)));
            let event = block.event;
            changes[block.begin] += i128::from(event.size);
            if block.end.is_some() {
                changes[end] -= i128::from(event.size);
            }
            let (label, place) = (stacks.name(event.name), place(stacks, event.stack));
            let name = label.map(str::to_owned).or_else(|| place.clone()).unwrap_or_else(|| format!("{} bytes", event.size));
            // As recorded: a number of PyTorch or ringmem, mostly hexadecimal text of RMM.
            let stream =
                trace.stream_name(event.stream).map(|name| name.parse::<i64>().map_or_else(|_| json!(name), |number| json!(number)));
            let args = json!({
                "bytes": event.size, "block": event.block, "stream": stream, "address": address(event).map(hex), "name": label, "place": place,
                "backtrace": backtrace(stacks, event.stack), "freed": block.end.is_some(),
            });
            // The difference of nanoseconds is exact.
            let (ts, dur) = (time(block.begin), micros(nanos(end).saturating_sub(nanos(block.begin))));
            self.add(&json!({ "ph": "X", "pid": pid, "tid": thread, "ts": ts, "dur": dur, "cat": "memory", "name": name, "args": args }));
        }
        let counter = |name: &str, index: usize, bytes: i128| {
            // No real memory exceeds JSON's integers.
            let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
            json!({ "ph": "C", "cat": "memory", "pid": pid, "ts": time(index), "name": name, "args": { "bytes": bytes } })
        };
        let mut bytes = 0;
        for (index, change) in changes.into_iter().enumerate() {
            bytes += change;
            self.add(&counter("in use", index, bytes));
        }
        let mut reserved: BTreeMap<usize, i128> = BTreeMap::new();
        for segment in &trace.segments {
            *reserved.entry(segment.begin.unwrap_or(0)).or_default() += i128::from(segment.bytes);
            if let Some(end) = segment.end {
                *reserved.entry(end).or_default() -= i128::from(segment.bytes);
            }
        }
        let mut bytes = 0;
        for (index, change) in reserved {
            bytes += change;
            self.add(&counter("reserved", index.min(last), bytes));
        }
        for (index, event) in trace.events.iter().enumerate().filter(|(_, event)| event.kind == Kind::Refused) {
            let args = json!({ "bytes": event.size, "name": stacks.name(event.name), "place": place(stacks, event.stack) });
            self.add(&json!({ "ph": "i", "cat": "memory", "pid": pid, "tid": 0, "s": "p", "ts": time(index), "name": "failed allocation", "args": args }));
        }
    }
}

fn process(pid: u64, name: &str) -> Value {
    json!({ "ph": "M", "pid": pid, "tid": 0, "name": "process_name", "args": { "name": name } })
}

fn micros(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1000.0
}
