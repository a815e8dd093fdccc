//! PyTorch's snapshots: `{"segments": [..], "device_traces": [[..], ..], ..}`, or the list of segments alone.
//!
//! 1. An event is a dictionary of `action`, `addr` (or `device_free`, for `oom`), `size`, `stream`, since 2.2 `time_us`, and `frames` unless they were off. A
//!    block is `alloc`ated, `free_requested` by the program, and `free_completed` when its uses on other streams are: only then can it be given again.
//! 2. `segment_alloc`, `segment_map` and their opposites tell the allocator's memory from the driver. Where a recording begins is known from its end: the
//!    segments of the snapshot, less those that the events added.
//! 3. A recording that is switched on late, or whose ring of events has overflowed, begins with live blocks: those that it frees without an allocation, and
//!    those of `segments` that no event mentions. Blocks of versions before 2.1 have no `address`: they lie in a row.
//! 4. Other actions, and keys that are not named here, mean nothing for memory: `snapshot`, `user_defined`, annotations, settings, pools, compile contexts.

use std::collections::HashMap;
use std::num::NonZeroU64;

use crate::pickle::{Tree, Value};
use crate::stacks::{StackId, Stacks};
use crate::{Builder, Device, Format, Raw, ReadError, Recording, Reserved};

/// No machine has more.
const DEVICES: usize = 1024;
/// Bytes of the file for each event at least: a dictionary that many events share is no recording.
const EVENT: usize = 16;

struct Keys {
    action: Option<u32>,
    addr: Option<u32>,
    device_free: Option<u32>,
    size: Option<u32>,
    stream: Option<u32>,
    time_us: Option<u32>,
    frames: Option<u32>,
    history: Option<u32>,
    name: Option<u32>,
    filename: Option<u32>,
    line: Option<u32>,
    address: Option<u32>,
    device: Option<u32>,
    total_size: Option<u32>,
    blocks: Option<u32>,
    state: Option<u32>,
    requested_size: Option<u32>,
    real_size: Option<u32>,
}

impl Keys {
    fn of(tree: &Tree) -> Self {
        let key = |text| tree.number(text);
        Self {
            action: key("action"),
            addr: key("addr"),
            device_free: key("device_free"),
            size: key("size"),
            stream: key("stream"),
            time_us: key("time_us"),
            frames: key("frames"),
            history: key("history"),
            name: key("name"),
            filename: key("filename"),
            line: key("line"),
            address: key("address"),
            device: key("device"),
            total_size: key("total_size"),
            blocks: key("blocks"),
            state: key("state"),
            requested_size: key("requested_size"),
            real_size: key("real_size"),
        }
    }
}

struct Reader<'a> {
    tree: &'a Tree,
    keys: Keys,
    stacks: Stacks,
    /// By the number of a list, so that a stack that many events share is read once.
    read: HashMap<u32, StackId>,
    /// By the number of a dictionary: many stacks share a frame.
    frames: HashMap<u32, u32>,
    /// Events that the file may still have.
    left: usize,
}

pub(crate) fn read(bytes: Vec<u8>) -> Result<Recording, ReadError> {
    let tree = Tree::read(&bytes)?;
    let left = bytes.len() / EVENT;
    // The tree has all of it.
    drop(bytes);
    let mut reader =
        Reader { keys: Keys::of(&tree), tree: &tree, stacks: Stacks::default(), read: HashMap::new(), frames: HashMap::new(), left };
    let (segments, traces) = match tree.root {
        Value::List(_) => (Some(tree.root), None),
        root if tree.is_small_dict(root) => (tree.get(root, tree.number("segments")), tree.get(root, tree.number("device_traces"))),
        _ => (None, None),
    };
    if !matches!(segments, Some(Value::List(_))) {
        return Err(ReadError::content("a pickle, but no snapshot of PyTorch: it has no list `segments`"));
    }
    let traces = traces.unwrap_or(Value::None);
    if !matches!(traces, Value::None | Value::List(_)) {
        return Err(ReadError::content(format!("`device_traces` is {}, expected a list", tree.describe(traces))));
    }
    if tree.items(traces).nth(DEVICES).is_some() {
        return Err(ReadError::content(format!("`device_traces` of more than {DEVICES} devices")));
    }
    let mut builders: Vec<(Builder, Segments)> = Vec::new();
    for (number, trace) in tree.items(traces).enumerate() {
        if !matches!(trace, Value::List(_)) {
            return Err(ReadError::content(format!("device {number} of `device_traces` is {}, expected a list", tree.describe(trace))));
        }
        let mut device = (Builder::default(), Segments::default());
        for (index, event) in tree.items(trace).enumerate() {
            reader.event(&mut device, event).map_err(|what| ReadError::content(format!("device {number}, event {index}: {what}")))?;
        }
        builders.push(device);
    }
    for (index, segment) in tree.items(segments.unwrap_or(Value::None)).enumerate() {
        reader.segment(&mut builders, segment).map_err(|what| ReadError::content(format!("segment {index}: {what}")))?;
    }
    let devices = (0..).zip(builders);
    let devices = devices.map(|(number, (builder, segments))| Device { number, reserved: segments.reserved(), ..builder.finish() });
    let devices: Vec<Device> = devices.filter(|device| !device.events.is_empty() || device.reserved.is_some()).collect();
    Ok(Recording { format: Format::PyTorch, devices, stacks: reader.stacks })
}

/// Bytes from the driver: those that the events add, and those at the end.
#[derive(Default)]
struct Segments {
    added: i128,
    most: i128,
    has_any: bool,
    end: u64,
}

impl Segments {
    fn add(&mut self, bytes: i128) {
        self.has_any = true;
        self.added += bytes;
        self.most = self.most.max(self.added);
    }

    fn reserved(&self) -> Option<Reserved> {
        // Events that were lost may leave less than nothing.
        let begin = (i128::from(self.end) - self.added).max(0);
        let bytes = |bytes: i128| u64::try_from(bytes).unwrap_or(u64::MAX);
        self.has_any.then(|| Reserved { begin: bytes(begin), peak: bytes(begin + self.most), end: self.end })
    }
}

/// The fault in an event or segment.
type Fault = String;

impl Reader<'_> {
    /// Counts an event, segment or block, and checks that it is a dictionary.
    fn check(&mut self, value: Value) -> Result<(), Fault> {
        self.left =
            self.left.checked_sub(1).ok_or("more events and blocks than a file of this length can have: it is damaged, or no snapshot")?;
        match value {
            Value::Dict(_) if self.tree.is_small_dict(value) => Ok(()),
            Value::Dict(_) => Err("a dictionary of too many keys".into()),
            other => Err(format!("{}, expected a dictionary", self.tree.describe(other))),
        }
    }

    fn unsigned(&self, dict: Value, key: Option<u32>, what: &str) -> Result<Option<u64>, Fault> {
        match self.tree.get(dict, key) {
            None | Some(Value::None) => Ok(None),
            Some(Value::Int(int)) if int >= 0 => Ok(Some(int as u64)),
            Some(other) => Err(format!("`{what}` is {}, expected an unsigned number", self.tree.describe(other))),
        }
    }

    fn size(&self, dict: Value) -> Result<u64, Fault> {
        self.unsigned(dict, self.keys.size, "size")?.ok_or_else(|| "no `size`".into())
    }

    /// Signed, where a pointer is one.
    fn stream(&self, dict: Value) -> Result<u64, Fault> {
        match self.tree.get(dict, self.keys.stream) {
            None | Some(Value::None) => Ok(0),
            Some(Value::Int(stream)) => Ok(stream as u64),
            Some(other) => Err(format!("`stream` is {}, expected a number", self.tree.describe(other))),
        }
    }

    fn raw(&mut self, dict: Value, address: Option<u32>) -> Result<Raw, Fault> {
        let time = self.unsigned(dict, self.keys.time_us, "time_us")?;
        Ok(Raw {
            address: self.unsigned(dict, address, "addr")?.unwrap_or(0),
            size: self.size(dict)?,
            stream: self.stream(dict)?,
            stack: self.stack(dict)?,
            time_ns: time.and_then(|time| NonZeroU64::new(time.saturating_mul(1000))),
        })
    }

    fn event(&mut self, (builder, segments): &mut (Builder, Segments), event: Value) -> Result<(), Fault> {
        self.check(event)?;
        let action = self.tree.get(event, self.keys.action).and_then(|action| self.tree.text(action)).ok_or("no `action`")?;
        match action {
            "alloc" | "free_completed" => {
                let raw = self.raw(event, self.keys.addr)?;
                if action == "alloc" { builder.alloc(&raw) } else { builder.free(&raw) }
            }
            "oom" => {
                let raw = self.raw(event, self.keys.device_free)?;
                builder.refused(&raw);
            }
            "segment_alloc" | "segment_map" => segments.add(self.size(event)?.into()),
            "segment_free" | "segment_unmap" => segments.add(-i128::from(self.size(event)?)),
            _ => {}
        }
        Ok(())
    }

    fn segment(&mut self, builders: &mut Vec<(Builder, Segments)>, segment: Value) -> Result<(), Fault> {
        self.check(segment)?;
        let device = self.unsigned(segment, self.keys.device, "device")?.unwrap_or(0);
        if device >= DEVICES as u64 {
            return Err(format!("`device` is {device}, expected at most {}", DEVICES - 1));
        }
        let device = device as usize;
        if device >= builders.len() {
            builders.resize_with(device + 1, Default::default);
        }
        let total = self.unsigned(segment, self.keys.total_size, "total_size")?.ok_or("no `total_size`")?;
        let mut next = self.unsigned(segment, self.keys.address, "address")?.unwrap_or(0);
        let stream = self.stream(segment)?;
        let (builder, segments) = &mut builders[device];
        segments.has_any = true;
        segments.end = segments.end.saturating_add(total);
        let blocks = self.tree.get(segment, self.keys.blocks).unwrap_or(Value::None);
        for (index, block) in self.tree.items(blocks).enumerate() {
            self.block(builder, block, &mut next, stream).map_err(|what| format!("block {index}: {what}"))?;
        }
        Ok(())
    }

    /// `next` is the address of a block without one.
    fn block(&mut self, builder: &mut Builder, block: Value, next: &mut u64, stream: u64) -> Result<(), Fault> {
        self.check(block)?;
        let size = self.size(block)?;
        let address = self.unsigned(block, self.keys.address, "address")?.unwrap_or(*next);
        *next = address.saturating_add(size);
        let state = self.tree.get(block, self.keys.state).and_then(|state| self.tree.text(state)).unwrap_or_default();
        if !state.starts_with("active") || builder.mentioned.contains(&address) {
            return Ok(());
        }
        // Before 2.1, a block has a history of allocations: first its own, then older ones in its place.
        let history = self.tree.get(block, self.keys.history).and_then(|history| self.tree.items(history).next());
        let of = history.filter(|&own| self.tree.is_small_dict(own));
        let (of, key) = of.map_or((block, self.keys.requested_size), |own| (own, self.keys.real_size));
        let requested = self.unsigned(of, key, "requested_size")?.filter(|&size| size > 0);
        let stack = self.stack(of)?;
        builder.was_live(&Raw { address, size: requested.unwrap_or(size), stream, stack, time_ns: None });
        Ok(())
    }

    fn stack(&mut self, dict: Value) -> Result<StackId, Fault> {
        let (list, number) = match self.tree.get(dict, self.keys.frames) {
            None | Some(Value::None) => return Ok(StackId::default()),
            Some(list @ Value::List(number)) => (list, number),
            Some(other) => return Err(format!("`frames` is {}, expected a list", self.tree.describe(other))),
        };
        if let Some(&stack) = self.read.get(&number) {
            return Ok(stack);
        }
        let mut frames = Vec::new();
        for frame in self.tree.items(list) {
            frames.push(self.frame(frame)?);
        }
        let stack = self.stacks.stack(&frames);
        self.read.insert(number, stack);
        Ok(stack)
    }

    fn frame(&mut self, frame: Value) -> Result<u32, Fault> {
        let Value::Dict(number) = frame else { return Err(format!("a frame is {}, expected a dictionary", self.tree.describe(frame))) };
        if let Some(&frame) = self.frames.get(&number) {
            return Ok(frame);
        }
        if !self.tree.is_small_dict(frame) {
            return Err("a frame of too many keys".into());
        }
        let text = |key| self.tree.get(frame, key).and_then(|text| self.tree.text(text)).unwrap_or_default();
        let line = self.unsigned(frame, self.keys.line, "line")?.unwrap_or(0);
        let (function, file) = (self.stacks.text(text(self.keys.name)), self.stacks.text(text(self.keys.filename)));
        let read = self.stacks.frame(function, file, u32::try_from(line).unwrap_or(0));
        self.frames.insert(number, read);
        Ok(read)
    }
}
