//! The form of `torch.cuda.memory._dump_snapshot`, which memory_viz shows.
//!
//! Each trace is a device, together with the pool of its name; each other pool is a further device. A segment is a slab of the pool, or memory from the driver
//! that the recording tells; a block outside all of these is a segment of its own, as memory_viz requires. Streams of PyTorch and RMM have their recorded
//! handles; those of ringmem are numbered from 1, and 0 means none. Blocks of PyTorch are multiples of [`UNIT`], as its allocator rounds: the lengths in the
//! file, of blocks whose rest was not split off, are not kept.

use std::collections::{BTreeMap, HashMap, HashSet};

use ringmem_recordings::{Device as Trace, Event, Frame, Kind, NO_STREAM, NameId, Segment as Recorded, StackId, Stacks};

use super::document::{Document, Life, Pool, State, address, lives, times};
use super::pickle::Pickle;

/// For blocks without an address: above devices' addresses, and exact in JavaScript.
const UNKNOWN: u64 = 1 << 50;
/// The bits kept of addresses: simulated devices use 64, memory_viz 53.
const KEPT: u64 = (1 << 48) - 1;
/// Bytes to which PyTorch rounds blocks.
const UNIT: u64 = 512;
/// Longer segments of PyTorch are of its pool of large blocks.
const SMALL_SEGMENT: u64 = 2 << 20;

#[derive(Default)]
struct Device<'a> {
    /// Lengths of blocks are multiples of it.
    unit: u64,
    pool: Option<&'a Pool>,
    trace: Option<&'a Trace>,
    blocks: Vec<Life<'a>>,
    addresses: Vec<u64>,
}

/// Memory in which blocks lie: lengths by address.
type Memory = BTreeMap<u64, u64>;

/// The bytes of a tracked block, and where it was allocated.
type Tracked<'a> = (u64, Vec<Frame<'a>>);

pub(super) fn pickle(document: &Document) -> Vec<u8> {
    let stacks = &document.stacks;
    let mut pools: Vec<&Pool> = document.pools.iter().collect();
    let mut devices: Vec<Device<'_>> = Vec::new();
    for trace in &document.traces {
        // PyTorch's devices keep their numbers.
        if document.pools.is_empty() {
            devices.resize_with(devices.len().max(trace.number as usize), Device::default);
        }
        let pool = pools.iter().position(|pool| Some(&pool.name) == trace.name.as_ref()).map(|at| pools.remove(at));
        let blocks = lives(trace);
        let mut next = UNKNOWN;
        let mut address = |block: &Life<'_>| {
            let unknown = next;
            next = next.saturating_add(block.event.size.max(1)).checked_next_multiple_of(512).unwrap_or(u64::MAX);
            address(block.event).map_or(unknown, exact)
        };
        let addresses = blocks.iter().map(&mut address).collect();
        devices.push(Device { unit: if document.is_pytorch { UNIT } else { 1 }, pool, trace: Some(trace), blocks, addresses });
    }
    devices.extend(pools.into_iter().map(|pool| Device { pool: Some(pool), ..Device::default() }));
    let leaks = document.trackers.iter().flat_map(|tracker| &tracker.leaks);
    let tracked: BTreeMap<u64, Tracked<'_>> = leaks
        .filter_map(|leak| {
            let frames = Frame::of(leak.place.as_deref().unwrap_or_default(), leak.backtrace.as_deref().unwrap_or_default());
            Some((exact(leak.address?), (leak.bytes, named(frames, leak.name.as_deref()))))
        })
        .collect();

    let mut pickle = Pickle::new();
    let mut origins = Origins { stacks, known: HashMap::new(), frames: HashMap::new() };
    pickle.dict(|fields| {
        let segments = fields.field("segments");
        segments.list(devices.iter().enumerate().flat_map(|(number, device)| device.segments(number)), |pickle, segment| {
            segment.write(pickle, &mut origins, &tracked);
        });
        fields.field("device_traces").list(&devices, |pickle, device| device.events(pickle, &mut origins));
        fields.field("allocator_settings").dict(|_| {});
    });
    pickle.finish()
}

struct Segment<'a> {
    device: usize,
    address: u64,
    bytes: u64,
    stream: u64,
    is_expandable: bool,
    blocks: Vec<(u64, State, Option<&'a Event>)>,
}

impl<'a> Device<'a> {
    fn segments(&'a self, device: usize) -> Vec<Segment<'a>> {
        let mut segments = Vec::new();
        let live: BTreeMap<u64, &Life<'_>> =
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
                blocks.push((part.bytes, part.state, owner.map(|block| block.event)));
            }
            segments.push(Segment { device, address, bytes: slab.bytes, stream: 0, is_expandable: false, blocks });
        }
        for &Recorded { address, bytes, stream: on, is_piece: is_expandable, .. } in self.recorded().filter(|segment| segment.end.is_none())
        {
            let address = exact(address);
            let (end, mut next, mut blocks) = (address.saturating_add(bytes), address, Vec::new());
            let mut starts = live.range(address..end).map(|(&start, _)| start).skip(1).chain([end]);
            for (&start, block) in live.range(address..end) {
                // A block of a damaged recording may overlap another, or the end.
                let whole = start.saturating_add(self.rounded(block.event.size)).min(starts.next().unwrap_or(end));
                let to = start.saturating_add(block.event.size).max(whole).min(end);
                if start < next || to == start {
                    continue;
                }
                if start > next {
                    blocks.push((start - next, State::Free, None));
                }
                blocks.push((to - start, State::Live, Some(block.event)));
                next = to;
            }
            if next < end {
                blocks.push((end - next, State::Free, None));
            }
            segments.push(Segment { device, address, bytes: end - address, stream: self.stream(on), is_expandable, blocks });
        }
        let memory = self.memory(|segment| segment.end.is_none());
        for (address, block) in live.into_iter().filter(|&(address, _)| !is_in(&memory, address)) {
            let bytes = self.rounded(block.event.size);
            let blocks = vec![(bytes, State::Live, Some(block.event))];
            segments.push(Segment { device, address, bytes, stream: self.stream(block.event.stream), is_expandable: false, blocks });
        }
        segments
    }

    fn rounded(&self, bytes: u64) -> u64 {
        bytes.checked_next_multiple_of(self.unit.max(1)).unwrap_or(bytes)
    }

    /// As recorded, or from 1 on.
    fn stream(&self, stream: u32) -> u64 {
        let recorded = self.trace.and_then(|trace| trace.streams.get(stream as usize));
        match recorded {
            Some(recorded) => recorded.id,
            None if stream == NO_STREAM => 0,
            None => u64::from(stream) + 1,
        }
    }

    fn recorded(&self) -> impl Iterator<Item = &'a Recorded> {
        self.trace.into_iter().flat_map(|trace| &trace.segments)
    }

    /// The slabs, and the recorded segments that `are_in` it.
    fn memory(&self, are_in: impl Fn(&Recorded) -> bool) -> Memory {
        let slabs = self.pool.iter().flat_map(|pool| &pool.slabs).map(|slab| (slab_address(slab.number, slab.address), slab.bytes));
        slabs.chain(self.recorded().filter(|segment| are_in(segment)).map(|segment| (exact(segment.address), segment.bytes))).collect()
    }

    fn events(&self, pickle: &mut Pickle, origins: &mut Origins<'a>) {
        let Some(trace) = self.trace else { return pickle.list([(); 0], |_, ()| {}) };
        // By the number of events before them. Memory at an address is given back before it comes again; memory of one moment was there between.
        let mut segments: BTreeMap<usize, Vec<(bool, &Recorded)>> = BTreeMap::new();
        let mut add = |at: Option<usize>, comes, segment| at.map(|at| segments.entry(at).or_default().push((comes, segment)));
        for segment in self.recorded().filter(|segment| segment.begin != segment.end) {
            add(segment.end, false, segment);
        }
        for segment in self.recorded().filter(|segment| segment.begin == segment.end) {
            add(segment.begin, true, segment);
            add(segment.end, false, segment);
        }
        for segment in self.recorded().filter(|segment| segment.begin != segment.end) {
            add(segment.begin, true, segment);
        }
        // The memory at an event, and the blocks that are segments of their own.
        let mut memory = self.memory(|segment| segment.begin.is_none());
        let mut alone = HashSet::new();
        let mut actions: Vec<Action<'_>> = Vec::new();
        let mut add = |action, address, bytes, on, index, event| {
            actions.push(Action { action, address, bytes, stream: self.stream(on), index, event })
        };
        for index in 0..=trace.events.len() {
            for &(comes, segment) in segments.get(&index).into_iter().flatten() {
                let address = exact(segment.address);
                if comes {
                    memory.insert(address, segment.bytes);
                } else {
                    memory.remove(&address);
                }
                let action = match (segment.is_piece, comes) {
                    (false, true) => "segment_alloc",
                    (false, false) => "segment_free",
                    (true, true) => "segment_map",
                    (true, false) => "segment_unmap",
                };
                add(action, address, segment.bytes, segment.stream, index, None);
            }
            // A block from before the recording is in the list of segments, or freed without an allocation.
            let Some(event) = trace.events.get(index).filter(|_| index >= trace.before) else { continue };
            let Event { kind, block, size, stream: on, .. } = *event;
            match (kind, self.addresses.get(block as usize)) {
                (Kind::Refused, _) => add("oom", 0, size, on, index, Some(event)),
                (Kind::Alloc, Some(&address)) => {
                    if !is_in(&memory, address) {
                        alone.insert(block);
                        add("segment_alloc", address, self.rounded(size), on, index, Some(event));
                    }
                    add("alloc", address, size, on, index, Some(event));
                }
                (Kind::Free, Some(&address)) => {
                    add("free_requested", address, size, on, index, Some(event));
                    add("free_completed", address, size, on, index, Some(event));
                    if alone.remove(&block) {
                        add("segment_free", address, self.rounded(size), on, index, Some(event));
                    }
                }
                (_, None) => {}
            }
        }
        let times = times(trace);
        pickle.list(actions, |pickle, Action { action, address, bytes, stream, index, event }| {
            pickle.dict(|fields| {
                fields.field("action").text(action);
                fields.field("addr").number(address);
                fields.field("size").number(bytes);
                fields.field("stream").handle(stream);
                let time = times.as_ref().and_then(|times| times.get(index).or(times.last())).map_or(index as u64, |time| time / 1000);
                fields.field("time_us").number(time);
                if action == "oom" {
                    // Unknown; memory_viz formats it as a number.
                    fields.field("device_free").number(0);
                }
                origins.recorded(fields.field("frames"), event);
            });
        });
    }
}

struct Action<'a> {
    action: &'a str,
    address: u64,
    bytes: u64,
    stream: u64,
    index: usize,
    event: Option<&'a Event>,
}

impl<'a> Segment<'a> {
    /// Of all blocks.
    fn requested(&self, known: &BTreeMap<u64, Tracked<'a>>) -> u64 {
        let (mut address, mut sum) = (self.address, 0_u64);
        for &(bytes, state, event) in &self.blocks {
            let tracked = known.get(&address).filter(|_| state == State::Live && event.is_none());
            sum = sum.saturating_add(requested(bytes, state, event, tracked));
            address = address.saturating_add(bytes);
        }
        sum
    }

    fn write(&self, pickle: &mut Pickle, origins: &mut Origins<'a>, tracked: &BTreeMap<u64, Tracked<'a>>) {
        let sum = |states: &[State]| self.blocks.iter().filter(|block| states.contains(&block.1)).map(|block| block.0).sum();
        pickle.dict(|fields| {
            fields.field("device").number(self.device as u64);
            fields.field("address").number(self.address);
            fields.field("total_size").number(self.bytes);
            fields.field("allocated_size").number(sum(&[State::Live]));
            fields.field("active_size").number(sum(&[State::Live, State::Pending]));
            fields.field("requested_size").number(self.requested(tracked));
            fields.field("stream").handle(self.stream);
            fields.field("segment_type").text(if self.bytes <= SMALL_SEGMENT { "small" } else { "large" });
            fields.field("is_expandable").bool(self.is_expandable);
            origins.recorded(fields.field("frames"), None);
            let mut address = self.address;
            fields.field("blocks").list(&self.blocks, |pickle, &(bytes, state, event)| {
                let tracked = tracked.get(&address).filter(|_| state == State::Live && event.is_none());
                pickle.dict(|fields| {
                    fields.field("address").number(address);
                    fields.field("size").number(bytes);
                    fields.field("requested_size").number(requested(bytes, state, event, tracked));
                    fields.field("state").text(match state {
                        State::Live => "active_allocated",
                        State::Pending => "active_pending_free",
                        State::Cached | State::Free => "inactive",
                    });
                    match tracked {
                        Some((_, frames)) => origins.frames(fields.field("frames"), frames),
                        None => origins.recorded(fields.field("frames"), event),
                    }
                });
                address = address.saturating_add(bytes);
            });
        });
    }
}

/// The requested bytes of a block: none of free memory, and all of a live one whose request is not known.
fn requested(bytes: u64, state: State, event: Option<&Event>, tracked: Option<&Tracked<'_>>) -> u64 {
    match state {
        State::Live => event.map(|event| event.size).or(tracked.map(|tracked| tracked.0)).unwrap_or(bytes),
        State::Pending => bytes,
        State::Cached | State::Free => 0,
    }
}

/// The innermost frame has the block's name, if it has no function's.
fn named<'a>(mut frames: Vec<Frame<'a>>, name: Option<&'a str>) -> Vec<Frame<'a>> {
    if let Some(name) = name {
        match frames.first_mut() {
            Some(frame) if frame.function.is_empty() => frame.function = name,
            _ => frames.insert(0, Frame { function: name, file: "", line: 0 }),
        }
    }
    frames
}

/// Writes stacks. Blocks share them, and stacks share frames: each is written once.
struct Origins<'a> {
    stacks: &'a Stacks,
    known: HashMap<(StackId, NameId), u32>,
    frames: HashMap<Frame<'a>, u32>,
}

impl<'a> Origins<'a> {
    fn recorded(&mut self, pickle: &mut Pickle, event: Option<&Event>) {
        let Some(&Event { stack, name, .. }) = event else { return self.frames(pickle, &[]) };
        if let Some(&number) = self.known.get(&(stack, name)) {
            return pickle.again(number);
        }
        self.frames(pickle, &named(self.stacks.frames(stack).collect(), self.stacks.name(name)));
        self.known.insert((stack, name), pickle.numbered());
    }

    fn frames(&mut self, pickle: &mut Pickle, frames: &[Frame<'a>]) {
        pickle.list(frames, |pickle, &frame| {
            if let Some(&number) = self.frames.get(&frame) {
                return pickle.again(number);
            }
            pickle.dict(|fields| {
                fields.field("name").text(frame.function);
                fields.field("filename").text(frame.file);
                fields.field("line").number(frame.line.into());
            });
            self.frames.insert(frame, pickle.numbered());
        });
    }
}

fn is_in(memory: &Memory, address: u64) -> bool {
    memory.range(..=address).next_back().is_some_and(|(start, bytes)| address - start < *bytes)
}

fn slab_address(number: u64, address: Option<u64>) -> u64 {
    address.map_or(UNKNOWN.saturating_add(number << 40), exact)
}

fn exact(address: u64) -> u64 {
    if address >> 53 == 0 { address } else { address & KEPT }
}
