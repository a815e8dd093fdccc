//! The form of `torch.cuda.memory._dump_snapshot`, which memory_viz shows.
//!
//! Each trace is a device, together with the pool of its name; each other pool is a further device. A block outside all slabs is its own segment, as
//! memory_viz requires. Streams are numbered from 1; 0 means none.

use std::collections::BTreeMap;

use super::document::{Allocation, Document, Event, Kind, Pool, State, Trace};
use super::pickle::{Fields, Pickle};

/// For blocks without an address: above devices' addresses, and exact in JavaScript.
const UNKNOWN: u64 = 1 << 50;
/// The bits kept of addresses: simulated devices use 64, memory_viz 53.
const KEPT: u64 = (1 << 48) - 1;

struct Device<'a> {
    pool: Option<&'a Pool>,
    trace: Option<&'a Trace>,
    blocks: Vec<Allocation<'a>>,
    addresses: Vec<u64>,
    slabs: BTreeMap<u64, u64>,
}

struct Owner<'a> {
    bytes: u64,
    name: Option<&'a str>,
    place: Option<&'a str>,
    backtrace: Option<&'a str>,
}

pub(super) fn pickle(document: &Document) -> Vec<u8> {
    let mut pools: Vec<&Pool> = document.pools.iter().collect();
    let mut devices: Vec<Device<'_>> = Vec::new();
    for trace in &document.traces {
        let pool = pools.iter().position(|pool| pool.name == trace.name).map(|at| pools.remove(at));
        let blocks = trace.allocations();
        let mut next = UNKNOWN;
        let mut address = |block: &Allocation<'_>| {
            let unknown = next;
            next = next.saturating_add(block.bytes.max(1)).checked_next_multiple_of(512).unwrap_or(u64::MAX);
            block.event.address.map_or(unknown, exact)
        };
        let addresses = blocks.iter().map(&mut address).collect();
        devices.push(Device::new(pool, Some(trace), blocks, addresses));
    }
    devices.extend(pools.into_iter().map(|pool| Device::new(Some(pool), None, Vec::new(), Vec::new())));
    let leaks = document.trackers.iter().flat_map(|tracker| &tracker.leaks);
    let owners: BTreeMap<u64, Owner<'_>> = leaks
        .filter_map(|leak| {
            let (name, place, backtrace) = (leak.name.as_deref(), leak.place.as_deref(), leak.backtrace.as_deref());
            Some((exact(leak.address?), Owner { bytes: leak.bytes, name, place, backtrace }))
        })
        .collect();

    let mut pickle = Pickle::new();
    pickle.dict(|fields| {
        let segments = fields.field("segments");
        segments.list(devices.iter().enumerate().flat_map(|(number, device)| device.segments(number)), |pickle, segment| {
            segment.write(pickle, &owners);
        });
        fields.field("device_traces").list(&devices, |pickle, device| device.events(pickle));
        fields.field("allocator_settings").dict(|_| {});
    });
    pickle.finish()
}

struct Segment<'a> {
    device: usize,
    address: u64,
    bytes: u64,
    stream: u64,
    blocks: Vec<(u64, State, Option<Owner<'a>>)>,
}

impl<'a> Device<'a> {
    fn new(pool: Option<&'a Pool>, trace: Option<&'a Trace>, blocks: Vec<Allocation<'a>>, addresses: Vec<u64>) -> Self {
        let slabs = pool.iter().flat_map(|pool| &pool.slabs).map(|slab| (slab_address(slab.number, slab.address), slab.bytes)).collect();
        Self { pool, trace, blocks, addresses, slabs }
    }

    fn segments(&'a self, device: usize) -> Vec<Segment<'a>> {
        let mut segments = Vec::new();
        let live: BTreeMap<u64, &Allocation<'_>> =
            self.addresses.iter().copied().zip(&self.blocks).filter(|(_, block)| block.end.is_none()).collect();
        for slab in self.pool.iter().flat_map(|pool| &pool.slabs) {
            let address = slab_address(slab.number, slab.address);
            let mut blocks = Vec::new();
            let mut end = 0;
            for part in &slab.parts {
                // memory_viz adds sizes: a gap would move the blocks after it.
                if part.offset > end {
                    blocks.push((part.offset - end, State::Free, None));
                }
                end = part.offset.saturating_add(part.bytes);
                let owner = live.get(&address.saturating_add(part.offset)).filter(|_| part.state == State::Live);
                blocks.push((part.bytes, part.state, owner.map(|block| Owner::of(block.event, block.bytes))));
            }
            segments.push(Segment { device, address, bytes: slab.bytes, stream: 0, blocks });
        }
        for (address, block) in live.into_iter().filter(|(address, _)| !self.is_in_slab(*address)) {
            let owner = Owner::of(block.event, block.bytes);
            let stream = stream(block.event);
            segments.push(Segment { device, address, bytes: block.bytes, stream, blocks: vec![(block.bytes, State::Live, Some(owner))] });
        }
        segments
    }

    fn is_in_slab(&self, address: u64) -> bool {
        self.slabs.range(..=address).next_back().is_some_and(|(start, bytes)| address - start < *bytes)
    }

    fn events(&self, pickle: &mut Pickle) {
        let Some(trace) = self.trace else { return pickle.list([(); 0], |_, ()| {}) };
        let mut begins = BTreeMap::new();
        let mut ends = BTreeMap::new();
        for (block, &address) in self.blocks.iter().zip(&self.addresses) {
            begins.insert(block.begin, (block, address));
            block.end.map(|end| ends.insert(end, (block, address)));
        }
        let mut actions: Vec<(&str, u64, u64, usize, &Event)> = Vec::new();
        for (index, event) in trace.events.iter().enumerate() {
            if event.kind == Kind::Refused {
                actions.push(("oom", 0, event.bytes.unwrap_or(0), index, event));
            }
            if let Some(&(block, address)) = begins.get(&index) {
                if !self.is_in_slab(address) {
                    actions.push(("segment_alloc", address, block.bytes, index, event));
                }
                actions.push(("alloc", address, block.bytes, index, event));
            }
            if let Some(&(block, address)) = ends.get(&index) {
                actions.push(("free_requested", address, block.bytes, index, block.event));
                actions.push(("free_completed", address, block.bytes, index, block.event));
                if !self.is_in_slab(address) {
                    actions.push(("segment_free", address, block.bytes, index, block.event));
                }
            }
        }
        let times = trace.times();
        pickle.list(actions, |pickle, (action, address, bytes, index, event)| {
            pickle.dict(|fields| {
                fields.field("action").text(action);
                fields.field("addr").number(address);
                fields.field("size").number(bytes);
                fields.field("stream").number(stream(event));
                let time = times.as_ref().and_then(|times| times.get(index)).map_or(index as u64, |time| time / 1000);
                fields.field("time_us").number(time);
                if action == "oom" {
                    // Unknown; memory_viz formats it as a number.
                    fields.field("device_free").number(0);
                }
                frames(fields, Some(&Owner::of(event, bytes)));
            });
        });
    }
}

impl Segment<'_> {
    fn write(&self, pickle: &mut Pickle, owners: &BTreeMap<u64, Owner<'_>>) {
        let sum = |states: &[State]| self.blocks.iter().filter(|block| states.contains(&block.1)).map(|block| block.0).sum();
        pickle.dict(|fields| {
            fields.field("device").number(self.device as u64);
            fields.field("address").number(self.address);
            fields.field("total_size").number(self.bytes);
            fields.field("allocated_size").number(sum(&[State::Live]));
            fields.field("active_size").number(sum(&[State::Live, State::Pending]));
            fields.field("requested_size").number(sum(&[State::Live]));
            fields.field("stream").number(self.stream);
            fields.field("segment_type").text(if self.bytes < 20 << 20 { "small" } else { "large" });
            frames(fields, None);
            let mut address = self.address;
            fields.field("blocks").list(&self.blocks, |pickle, (bytes, state, owner)| {
                let owner = owner.as_ref().or_else(|| owners.get(&address).filter(|_| *state == State::Live));
                pickle.dict(|fields| {
                    fields.field("address").number(address);
                    fields.field("size").number(*bytes);
                    fields.field("requested_size").number(owner.map_or(*bytes, |owner| owner.bytes));
                    fields.field("state").text(match state {
                        State::Live => "active_allocated",
                        State::Pending => "active_pending_free",
                        State::Cached | State::Free => "inactive",
                    });
                    frames(fields, owner);
                });
                address = address.saturating_add(*bytes);
            });
        });
    }
}

impl<'a> Owner<'a> {
    fn of(event: &'a Event, bytes: u64) -> Self {
        Self { bytes, name: event.name.as_deref(), place: event.place.as_deref(), backtrace: event.backtrace.as_deref() }
    }
}

/// The frames of a block: its place with its name, then its backtrace.
fn frames(fields: &mut Fields<'_>, owner: Option<&Owner<'_>>) {
    let mut all: Vec<(&str, &str, u64)> = Vec::new();
    if let Some(Owner { name, place, backtrace, .. }) = owner {
        if name.is_some() || place.is_some() {
            let (file, line) = file_line(place.unwrap_or(""));
            all.push((name.unwrap_or(""), file, line));
        }
        let mut function = "";
        for text in backtrace.unwrap_or("").lines().map(str::trim) {
            match (text.strip_prefix("at "), text.split_once(": ")) {
                (Some(place), _) => {
                    let (file, line) = file_line(place);
                    all.push((function, file, line));
                }
                (None, Some((_, name))) => function = name,
                (None, None) => {}
            }
        }
    }
    fields.field("frames").list(all, |pickle, (name, file, line)| {
        pickle.dict(|fields| {
            fields.field("name").text(name);
            fields.field("filename").text(file);
            fields.field("line").number(line);
        });
    });
}

/// Splits `FILE:LINE:COLUMN`; the line is 0 if missing.
fn file_line(place: &str) -> (&str, u64) {
    let mut parts = place.rsplitn(3, ':');
    match (parts.next(), parts.next().map(str::parse), parts.next()) {
        (Some(_), Some(Ok(line)), Some(file)) => (file, line),
        _ => (place, 0),
    }
}

fn slab_address(number: u64, address: Option<u64>) -> u64 {
    address.map_or(UNKNOWN.saturating_add(number << 40), exact)
}

fn exact(address: u64) -> u64 {
    if address >> 53 == 0 { address } else { address & KEPT }
}

fn stream(event: &Event) -> u64 {
    event.stream.map_or(0, |stream| stream.saturating_add(1))
}
